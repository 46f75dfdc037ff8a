//! A blocking connection to a store, plain or with TLS, for threads other than shards.

use std::io::{self, Read, Write};
use std::time::Duration;

use rustls::Connection;
use socket2::Socket;

use super::session::Session;
use super::tally::StoreHandshake;
use crate::control::Handshake;

/// A connection to a store that is read and written like a socket. Each call waits for the socket at most
/// once, for at most the timeout; where TLS has no data yet, the call returns `WouldBlock`.
pub(in crate::runtime) struct Line {
    socket: Socket,
    tls: Option<Box<Secured>>,
}

/// The TLS state of a connection to a store, and the counter of its handshake's outcome.
struct Secured {
    connection: Connection,
    handshake: Option<StoreHandshake>,
}

impl Line {
    /// Wraps a socket that is connected to a store, with a TLS session if the store uses TLS (else None). The
    /// handshake is done with the first bytes.
    pub fn new(socket: Socket, session: Option<Session>) -> Self {
        let secured = session.map(|session| {
            let (connection, handshake) = session.apart();
            Box::new(Secured { connection, handshake })
        });
        Self { socket, tls: secured }
    }

    /// Sets the longest time that a read from the store or a write to it waits.
    pub fn set_timeout(&self, time: Duration) -> io::Result<()> {
        self.socket.set_read_timeout(Some(time))?;
        self.socket.set_write_timeout(Some(time))
    }
}

impl Secured {
    /// Lets the TLS connection read from or write to the socket once, and updates the outcome under which the
    /// handshake is counted if it is given up now. The error is the socket's or of TLS; after an interruption or
    /// a timeout the step can be repeated.
    fn step(&mut self, socket: &mut Socket) -> io::Result<()> {
        let gone_on = self.go_on(socket);
        let is_done = !self.connection.is_handshaking();
        if let Some(handshake) = &mut self.handshake {
            match &gone_on {
                Ok(()) if is_done => handshake.end(Handshake::Done),
                // An interruption ends nothing: the caller decides how long to go on waiting.
                Err(error) if is_interruption(error) => handshake.go_on(Handshake::TimedOut),
                _ => handshake.go_on(Handshake::Left),
            }
        }
        gone_on
    }

    fn go_on(&mut self, socket: &mut Socket) -> io::Result<()> {
        let Self { connection, handshake } = self;
        if connection.wants_write() {
            return connection.write_tls(socket).map(|_| ());
        }
        if connection.read_tls(socket)? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        connection.process_new_packets().map(|_| ()).map_err(|error| {
            if let Some(handshake) = handshake {
                handshake.note_error(&error);
            }
            let _ = connection.write_tls(socket);
            io::Error::new(io::ErrorKind::InvalidData, error)
        })
    }
}

/// True for a read or write that was ended by a signal or a timeout, after which the caller repeats it until
/// its deadline.
pub(in crate::runtime) fn is_interruption(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::Interrupted | io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut)
}

impl Read for Line {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        let Some(tls) = &mut self.tls else { return self.socket.read(bytes) };
        match tls.connection.reader().read(bytes) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            read => return read,
        }
        tls.step(&mut self.socket)?;
        tls.connection.reader().read(bytes)
    }
}

impl Write for Line {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let Some(tls) = &mut self.tls else { return self.socket.write(bytes) };
        if tls.connection.is_handshaking() || tls.connection.wants_write() {
            tls.step(&mut self.socket)?;
            return Err(io::ErrorKind::WouldBlock.into());
        }
        let taken = tls.connection.writer().write(bytes)?;
        // Bytes that cannot leave now are sent before anything is read.
        let _ = tls.connection.write_tls(&mut self.socket);
        Ok(taken)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
