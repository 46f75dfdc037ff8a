//! Forwarding between clients and one store: whole requests of all clients go to the store in one stream, in the
//! order in which they came, and the n-th reply goes to the client that sent the n-th request. Pure: bytes come in
//! by `handle_*`, and what is to be sent or closed is polled.

use std::collections::VecDeque;
use std::fmt;

use crate::ring::Token;
use crate::scan::{self, Malformed};

/// The largest message (request or reply), in bytes: also the most that is kept of a message whose end has
/// not been received.
const MESSAGE_BYTES_MAX: usize = 64 << 20;
/// Maximum number of bytes that wait to be sent on one connection, besides those of its send in flight.
const OUTBOX_BYTES_MAX: usize = 256 << 20;

/// The reason why the forwarder closes a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    Malformed(Malformed),
    /// A request or reply is larger than 64 MiB.
    MessageTooLarge,
    /// More than 256 MiB wait to be sent on the connection: the store, or the client, reads too slowly.
    OutboxFull,
    /// The store sent a reply although all requests had been answered.
    NotAsked,
}

impl fmt::Display for Refusal {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Malformed(problem) => write!(formatter, "{problem}"),
            Self::MessageTooLarge => write!(formatter, "a message of more than {MESSAGE_BYTES_MAX} bytes"),
            Self::OutboxFull => write!(formatter, "more than {OUTBOX_BYTES_MAX} bytes wait to be sent"),
            Self::NotAsked => formatter.write_str("a reply that nobody asked for"),
        }
    }
}

impl From<Malformed> for Refusal {
    fn from(malformed: Malformed) -> Self {
        Self::Malformed(malformed)
    }
}

/// Bytes that wait to be sent on one connection, which has at most one send in flight.
#[derive(Debug, Default)]
struct Outbox {
    waiting: Vec<u8>,
    /// The emptied buffer of the last finished send, kept so that the next one needs no new memory.
    spare: Vec<u8>,
    is_sending: bool,
    /// True while the connection is in the forwarder's list of connections that have bytes to send
    /// (`ready`).
    is_ready: bool,
}

#[derive(Debug, Default)]
struct Client {
    /// The start of a request whose end has not been received.
    rest: Vec<u8>,
    outbox: Outbox,
    /// The number of this client's requests that were sent to the store and not answered yet.
    owed: usize,
    /// True if nothing more is forwarded from or to this client, because its connection is being closed.
    is_refused: bool,
    has_ended: bool,
}

/// Consecutive requests of one client in the stream of bytes to the store: the client and the number of
/// requests.
#[derive(Clone, Copy, Debug)]
struct Run {
    client: Token,
    requests: usize,
}

/// The state of one store's connection and of its clients' connections, which are named by tokens (indices in the
/// ring's list of connections).
#[derive(Debug)]
pub struct Forwarder {
    store: Token,
    to_store: Outbox,
    /// The start of a reply of the store whose end has not been received.
    reply_rest: Vec<u8>,
    /// Clients, indexed by their connections' tokens; `None` at a token that no client has at present.
    clients: Vec<Option<Client>>,
    clients_open: usize,
    /// Requests that the store has not answered, by client, in the order in which they were sent.
    unanswered: VecDeque<Run>,
    /// Connections that have bytes to send and no send in flight.
    ready: Vec<Token>,
    refused: Vec<(Token, Refusal)>,
    departed: Vec<Token>,
}

impl Forwarder {
    pub fn new(store: Token) -> Self {
        Self {
            store,
            to_store: Outbox::default(),
            reply_rest: Vec::new(),
            clients: Vec::new(),
            clients_open: 0,
            unanswered: VecDeque::new(),
            ready: Vec::new(),
            refused: Vec::new(),
            departed: Vec::new(),
        }
    }

    /// Returns the number of clients, including disconnected ones that [`Self::poll_departed`] has not returned yet.
    pub fn clients_open(&self) -> usize {
        self.clients_open
    }

    pub fn handle_client_opened(&mut self, token: Token) {
        let place = token as usize;
        if self.clients.len() <= place {
            self.clients.resize_with(place + 1, || None);
        }
        self.clients[place] = Some(Client::default());
        self.clients_open += 1;
    }

    /// Handles bytes from a client: appends the whole requests among them to the bytes for the store, and keeps the
    /// start of an incomplete one. If they are no RESP2 requests, or if a request or the bytes that wait for the store
    /// become too large, [`Self::poll_refused`] returns the client.
    pub fn handle_client_bytes(&mut self, token: Token, bytes: &[u8]) {
        let Self { clients, to_store, unanswered, ready, refused, .. } = self;
        let client = client_of(clients, token);
        if client.is_refused {
            return;
        }
        let taken = with_rest(&mut client.rest, bytes, |bytes| {
            let whole = scan::whole_requests(bytes)?;
            to_store.append(&bytes[..whole.bytes])?;
            Ok((whole.bytes, whole.messages))
        });
        match taken {
            Ok(0) => {}
            Ok(requests) => {
                client.owed += requests;
                match unanswered.back_mut() {
                    Some(run) if run.client == token => run.requests += requests,
                    _ => unanswered.push_back(Run { client: token, requests }),
                }
                to_store.make_ready(self.store, ready);
            }
            Err(refusal) => client.refuse(token, refusal, refused),
        }
    }

    /// Handles bytes from the store: appends each whole reply to the bytes for the client that sent the oldest
    /// unanswered request. After an error (no RESP2, a reply that is too large, or one to no request) the store's
    /// connection cannot be used any more.
    pub fn handle_store_bytes(&mut self, bytes: &[u8]) -> Result<(), Refusal> {
        let Self { reply_rest, clients, unanswered, ready, refused, departed, .. } = self;
        with_rest(reply_rest, bytes, |bytes| {
            let mut done = 0;
            while done < bytes.len() {
                let run = unanswered.front_mut().ok_or(Refusal::NotAsked)?;
                let whole = scan::whole_replies(&bytes[done..], run.requests)?;
                if whole.messages == 0 {
                    break;
                }
                let client = client_of(clients, run.client);
                client.owed -= whole.messages;
                if !client.is_refused {
                    match client.outbox.append(&bytes[done..done + whole.bytes]) {
                        Ok(()) => client.outbox.make_ready(run.client, ready),
                        Err(refusal) => client.refuse(run.client, refusal, refused),
                    }
                }
                client.depart_if_done(run.client, departed);
                done += whole.bytes;
                run.requests -= whole.messages;
                if run.requests == 0 {
                    unanswered.pop_front();
                }
            }
            Ok((done, ()))
        })
    }

    /// Records that a client sends nothing more, and drops the bytes that wait to be sent to it.
    /// [`Self::poll_departed`] returns it once the store owes it no reply and no send to it is in flight.
    pub fn handle_client_ended(&mut self, token: Token) {
        let client = client_of(&mut self.clients, token);
        client.has_ended = true;
        client.is_refused = true;
        client.outbox.waiting = Vec::new();
        client.depart_if_done(token, &mut self.departed);
    }

    /// Records that the send in flight on the connection `token` (the store's or a client's) is over.
    /// `bytes` is its buffer, which is kept for reuse.
    pub fn handle_sent(&mut self, token: Token, bytes: Vec<u8>) {
        if token == self.store {
            self.to_store.handle_sent(token, bytes, &mut self.ready);
            return;
        }
        let client = client_of(&mut self.clients, token);
        client.outbox.handle_sent(token, bytes, &mut self.ready);
        client.depart_if_done(token, &mut self.departed);
    }

    /// Returns a connection that has bytes to send and no send in flight, with all its waiting bytes. `None`
    /// if there is no such connection.
    pub fn poll_transmit(&mut self) -> Option<(Token, Vec<u8>)> {
        while let Some(token) = self.ready.pop() {
            let outbox = if token == self.store {
                &mut self.to_store
            } else {
                // A client that has departed meanwhile has nothing to send.
                let Some(client) = &mut self.clients[token as usize] else { continue };
                &mut client.outbox
            };
            outbox.is_ready = false;
            if !outbox.waiting.is_empty() && !outbox.is_sending {
                outbox.is_sending = true;
                let spare = std::mem::take(&mut outbox.spare);
                return Some((token, std::mem::replace(&mut outbox.waiting, spare)));
            }
        }
        None
    }

    /// Returns a client whose connection the caller must shut down, and the reason; the caller then calls
    /// [`Self::handle_client_ended`] as soon as the connection has ended. `None` if there is no such client.
    pub fn poll_refused(&mut self) -> Option<(Token, Refusal)> {
        self.refused.pop()
    }

    /// Returns a client whose connection the caller must close; its token names no client afterwards. `None`
    /// if there is no such client.
    pub fn poll_departed(&mut self) -> Option<Token> {
        let token = self.departed.pop()?;
        self.clients[token as usize].take().expect("each client departs once");
        self.clients_open -= 1;
        Some(token)
    }
}

fn client_of(clients: &mut [Option<Client>], token: Token) -> &mut Client {
    clients[token as usize].as_mut().expect("a client that has not departed")
}

impl Client {
    fn refuse(&mut self, token: Token, refusal: Refusal, refused: &mut Vec<(Token, Refusal)>) {
        self.is_refused = true;
        self.rest = Vec::new();
        self.outbox.waiting = Vec::new();
        refused.push((token, refusal));
    }

    fn depart_if_done(&mut self, token: Token, departed: &mut Vec<Token>) {
        if self.has_ended && self.owed == 0 && !self.outbox.is_sending {
            departed.push(token);
        }
    }
}

impl Outbox {
    fn append(&mut self, bytes: &[u8]) -> Result<(), Refusal> {
        if self.waiting.len() + bytes.len() > OUTBOX_BYTES_MAX {
            return Err(Refusal::OutboxFull);
        }
        self.waiting.extend_from_slice(bytes);
        Ok(())
    }

    fn make_ready(&mut self, token: Token, ready: &mut Vec<Token>) {
        if !self.is_ready && !self.is_sending {
            self.is_ready = true;
            ready.push(token);
        }
    }

    fn handle_sent(&mut self, token: Token, mut bytes: Vec<u8>, ready: &mut Vec<Token>) {
        bytes.clear();
        self.spare = bytes;
        self.is_sending = false;
        if !self.waiting.is_empty() {
            self.make_ready(token, ready);
        }
    }
}

/// Lets `take` use up the bytes left over from an earlier call (`rest`) followed by new `bytes`, and keeps
/// in `rest` those that it leaves. `take` returns how many bytes it used, and a result, which is returned.
/// An error if `take` fails, or if more than 64 MiB are left.
fn with_rest<T>(
    rest: &mut Vec<u8>,
    bytes: &[u8],
    take: impl FnOnce(&[u8]) -> Result<(usize, T), Refusal>,
) -> Result<T, Refusal> {
    let result = if rest.is_empty() {
        let (used, result) = take(bytes)?;
        rest.extend_from_slice(&bytes[used..]);
        result
    } else {
        rest.extend_from_slice(bytes);
        let (used, result) = take(rest)?;
        rest.drain(..used);
        result
    };
    if rest.len() > MESSAGE_BYTES_MAX { Err(Refusal::MessageTooLarge) } else { Ok(result) }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STORE: Token = 0;

    /// Sends all bytes that are ready, and returns them by connection.
    fn sent(forwarder: &mut Forwarder) -> Vec<(Token, String)> {
        let mut sent = Vec::new();
        while let Some((token, bytes)) = forwarder.poll_transmit() {
            sent.push((token, String::from_utf8(bytes.clone()).expect("text")));
            forwarder.handle_sent(token, bytes);
        }
        sent.sort();
        sent
    }

    fn with_clients(tokens: &[Token]) -> Forwarder {
        let mut forwarder = Forwarder::new(STORE);
        tokens.iter().for_each(|token| forwarder.handle_client_opened(*token));
        forwarder
    }

    fn echo(text: &str) -> String {
        format!("*2\r\n$4\r\nECHO\r\n${}\r\n{text}\r\n", text.len())
    }

    #[test]
    fn requests_are_not_mixed_and_replies_find_their_clients() {
        let mut forwarder = with_clients(&[1, 2]);
        let (a, b, c) = (echo("a"), echo("b"), echo("c"));
        forwarder.handle_client_bytes(1, &a.as_bytes()[..9]);
        forwarder.handle_client_bytes(2, b.as_bytes());
        forwarder.handle_client_bytes(1, &a.as_bytes()[9..]);
        forwarder.handle_client_bytes(1, c.as_bytes());
        assert_eq!(sent(&mut forwarder), [(STORE, [b, a, c].concat())]);
        // The last reply arrives incomplete.
        forwarder.handle_store_bytes(b"+b\r\n+a\r\n$1").expect("replies");
        assert_eq!(sent(&mut forwarder), [(1, "+a\r\n".to_owned()), (2, "+b\r\n".to_owned())]);
        forwarder.handle_store_bytes(b"\r\nc\r\n").expect("the rest");
        assert_eq!(sent(&mut forwarder), [(1, "$1\r\nc\r\n".to_owned())]);
        assert_eq!(forwarder.handle_store_bytes(b"+more\r\n"), Err(Refusal::NotAsked));
    }

    #[test]
    fn one_send_of_a_connection_is_under_way_at_a_time() {
        let mut forwarder = with_clients(&[1]);
        forwarder.handle_client_bytes(1, echo("a").as_bytes());
        let (token, bytes) = forwarder.poll_transmit().expect("a request");
        forwarder.handle_client_bytes(1, echo("b").as_bytes());
        forwarder.handle_client_bytes(1, echo("c").as_bytes());
        assert_eq!(forwarder.poll_transmit(), None);
        forwarder.handle_sent(token, bytes);
        assert_eq!(sent(&mut forwarder), [(STORE, echo("b") + &echo("c"))]);
    }

    #[test]
    fn replies_to_a_client_that_is_gone_are_nobody_elses() {
        let mut forwarder = with_clients(&[1, 2]);
        forwarder.handle_client_bytes(1, (echo("a") + &echo("b")).as_bytes());
        forwarder.handle_client_bytes(2, echo("c").as_bytes());
        sent(&mut forwarder);
        forwarder.handle_client_ended(1);
        assert_eq!(forwarder.poll_departed(), None, "its token must not name another client yet");
        forwarder.handle_store_bytes(b"+a\r\n+b\r\n+c\r\n").expect("replies");
        assert_eq!(forwarder.poll_departed(), Some(1));
        assert_eq!(sent(&mut forwarder), [(2, "+c\r\n".to_owned())]);
        assert_eq!((forwarder.poll_departed(), forwarder.clients_open()), (None, 1));
    }

    #[test]
    fn a_malformed_request_refuses_its_client_alone() {
        let mut forwarder = with_clients(&[1, 2]);
        forwarder.handle_client_bytes(1, echo("a").as_bytes());
        forwarder.handle_client_bytes(1, b"GET key\r\n");
        assert_eq!(forwarder.poll_refused(), Some((1, Refusal::Malformed(Malformed))));
        forwarder.handle_client_bytes(1, echo("late").as_bytes());
        forwarder.handle_client_bytes(2, echo("b").as_bytes());
        assert_eq!(sent(&mut forwarder), [(STORE, echo("a") + &echo("b"))]);
        forwarder.handle_client_ended(1);
        forwarder.handle_store_bytes(b"+a\r\n+b\r\n").expect("replies");
        assert_eq!(sent(&mut forwarder), [(2, "+b\r\n".to_owned())]);
        assert_eq!((forwarder.poll_refused(), forwarder.poll_departed()), (None, Some(1)));
    }

    #[test]
    fn a_message_without_an_end_is_refused_at_its_limit() {
        let mut forwarder = with_clients(&[1]);
        forwarder.handle_client_bytes(1, b"*2\r\n$3\r\nGET\r\n$500000000\r\n");
        for _ in 0..MESSAGE_BYTES_MAX >> 20 {
            assert_eq!(forwarder.poll_refused(), None);
            forwarder.handle_client_bytes(1, &vec![b'x'; 1 << 20]);
        }
        assert_eq!(forwarder.poll_refused(), Some((1, Refusal::MessageTooLarge)));
    }
}
