//! Exchanges messages with the fleet's store (Redis server with the counters of shared quotas), on a thread of
//! its own, so that the control executor can serve shards meanwhile. There is one round trip at a time, over a
//! connection that is kept; after any error it is closed, and the next exchange opens another.

use std::io;

use crossbeam_channel::Receiver;

use super::asking::{connect, receive, send, sign_in};
use super::clock::Clock;
use super::connect::{Spot, addresses_of};
use super::messages::{Mailbox, ToControl, ToFleet};
use super::tls::{Line, StoreTls};
use crate::config::FleetStore;
use crate::control::Exchange;
use crate::protocol::reply;
use crate::values::Timestamp;
use crate::values::limits::FLEET_ANSWER_BYTES_MAX;

/// Settings and channels of the thread that tells the fleet's store (Redis server with the counters of shared
/// quotas) this host's demand and asks it for that of all hosts.
pub(super) struct FleetThread {
    pub store: FleetStore,
    pub tls: Option<StoreTls>,
    pub control: Mailbox<ToControl>,
    pub questions: Receiver<ToFleet>,
    pub clock: Clock,
}

impl FleetThread {
    /// Starts the thread that exchanges messages with the fleet's store (a Redis server), which ends when the
    /// control executor drops its end of the channel. Fails if the thread cannot be started.
    pub fn start(self) -> io::Result<()> {
        std::thread::Builder::new().name("weir-fleet".to_owned()).spawn(move || self.run()).map(|_| ())
    }

    fn run(self) {
        let mut kept = None;
        while let Ok(ToFleet { exchange, deadline }) = self.questions.recv() {
            let answer = self.ask(&mut kept, &exchange, deadline);
            if answer.is_err() {
                kept = None;
            }
            let answer = answer.map_err(|error| error.to_string());
            self.control.post(ToControl::Fleet { number: exchange.number, answer });
        }
    }

    fn ask(&self, kept: &mut Option<Line>, exchange: &Exchange, deadline: Timestamp) -> io::Result<Vec<u8>> {
        let clock = self.clock;
        let connection = match kept {
            Some(connection) => connection,
            None => kept.insert(self.connect(deadline)?),
        };
        send(connection, &exchange.request, clock, deadline)?;
        receive(connection, (exchange.replies, FLEET_ANSWER_BYTES_MAX), clock, deadline)
    }

    /// Connects to the fleet's store (Redis server with the counters of shared quotas) and authenticates. The
    /// host name is looked up each time, since a store that moved has another address. An error if no address of
    /// it accepts the connection by `deadline`, or the store refuses the credentials.
    fn connect(&self, deadline: Timestamp) -> io::Result<Line> {
        let FleetStore { server, credentials, .. } = &self.store;
        let mut problem = io::ErrorKind::NotFound.into();
        for address in addresses_of(server)? {
            let spot = Spot::new(address, server);
            match connect(&spot, self.tls.as_ref(), self.clock, deadline) {
                Ok(mut line) => {
                    if let Some(known) = credentials {
                        let mut request = Vec::new();
                        sign_in(&mut request, &known.pair());
                        send(&mut line, &request, self.clock, deadline)?;
                        signed_in(&receive(&mut line, (1, FLEET_ANSWER_BYTES_MAX), self.clock, deadline)?)?;
                    }
                    return Ok(line);
                }
                Err(error) => problem = error,
            }
        }
        Err(problem)
    }
}

fn signed_in(said: &[u8]) -> io::Result<()> {
    if said.starts_with(b"-") {
        let text = String::from_utf8_lossy(reply::text(said).unwrap_or(b"AUTH failed")).into_owned();
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, text));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_store_that_says_nothing_is_given_up_at_the_deadline() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
        let port = listener.local_addr().expect("it is bound").port();
        let clock = Clock::start();
        let (control, letters, _bell) = Mailbox::for_executor().expect("an eventfd");
        let (sender, questions) = crossbeam_channel::bounded(1);
        let store = format!("redis://127.0.0.1:{port}").parse().expect("well formed");
        FleetThread { store, tls: None, control, questions, clock }.start().expect("a thread");
        let exchange = Exchange { number: 7, request: b"PING\r\n".to_vec(), replies: 1 };
        let deadline = clock.now().monotonic.after(Duration::from_millis(20));
        sender.send(ToFleet { exchange, deadline }).expect("it listens");
        let Ok(ToControl::Fleet { number: 7, answer: Err(problem) }) = letters.recv() else {
            panic!("it gives up");
        };
        assert_eq!(problem, "it did not answer in time");
    }
}
