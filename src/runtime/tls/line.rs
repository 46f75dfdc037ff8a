//! A connection to a store for threads that wait: plain, or with TLS around it.

use std::io::{self, Read, Write};
use std::time::Duration;

use rustls::Connection;
use socket2::Socket;

use super::session::Session;

/// It is read and written like a socket. Each of that waits once for the socket at most, as long as that may; where TLS has not come so far,
/// it says that it would have to wait.
pub(in crate::runtime) struct Line {
    socket: Socket,
    tls: Option<Box<Connection>>,
}

impl Line {
    /// Around a socket that is connected. The handshake comes with the first bytes.
    pub fn new(socket: Socket, session: Option<Session>) -> Self {
        Self { socket, tls: session.map(|session| Box::new(session.into_connection())) }
    }

    /// How long it waits for the other side.
    pub fn set_timeout(&self, time: Duration) -> io::Result<()> {
        self.socket.set_read_timeout(Some(time))?;
        self.socket.set_write_timeout(Some(time))
    }
}

/// Lets TLS say or hear something, once.
fn step(tls: &mut Connection, socket: &mut Socket) -> io::Result<()> {
    if tls.wants_write() {
        return tls.write_tls(socket).map(|_| ());
    }
    if tls.read_tls(socket)? == 0 {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    tls.process_new_packets().map(|_| ()).map_err(|error| {
        let _ = tls.write_tls(socket);
        io::Error::new(io::ErrorKind::InvalidData, error)
    })
}

impl Read for Line {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        let Some(tls) = &mut self.tls else { return self.socket.read(bytes) };
        match tls.reader().read(bytes) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            read => return read,
        }
        step(tls, &mut self.socket)?;
        tls.reader().read(bytes)
    }
}

impl Write for Line {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let Some(tls) = &mut self.tls else { return self.socket.write(bytes) };
        if tls.is_handshaking() || tls.wants_write() {
            step(tls, &mut self.socket)?;
            return Err(io::ErrorKind::WouldBlock.into());
        }
        let taken = tls.writer().write(bytes)?;
        // What does not leave now does before anything is read.
        let _ = tls.write_tls(&mut self.socket);
        Ok(taken)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
