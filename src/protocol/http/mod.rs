//! The keys over HTTP: requests of HTTP become commands, and replies become responses. This wraps a client of
//! RESP, so that a request passes through the same stages whichever way it came. Knows no sockets and no
//! tenants.
//!
//! ```text
//!   bytes ──> head ──> who asks? (the shard) ──> body ──> commands ──> as if they had come in RESP
//!                                                                                  │
//!   bytes <── response <── what was asked for, in order <── replies of RESP <──────┘
//! ```
//!
//! | what | file |
//! |---|---|
//! | head of a request, and its checks | `head.rs`, `headers.rs`, `request_target.rs` |
//! | names by which the server may be called, and web pages that may ask | `host.rs`, `source.rs` |
//! | body: a known length, or chunks | `body.rs` |
//! | a request as commands | `command.rs` |
//! | replies as JSON | `answer.rs` |
//! | responses, and refusals among them | `response.rs` |
//! | responses that wait to be sent | `written.rs` |
//! | remaining quotas, for response headers | `quotas.rs` |

mod answer;
mod body;
mod command;
mod head;
pub mod headers;
mod host;
mod quotas;
mod request_target;
mod response;
mod source;
mod written;

use std::collections::VecDeque;
use std::sync::Arc;

use answer::{ESCAPE_BYTES_MAX, Form, Reply, Unfit};
use body::Body;
pub use command::OF_CONNECTIONS;
use head::{HEAD_BYTES_MAX, Head, Method, Target};
pub use host::Host;
pub use quotas::note_quotas;
pub use request_target::RequestTarget;
pub use response::Status;
use response::{Failure, Manner};
pub use source::{Authority, Rules, Source};
use written::Written;

use super::{ReplyScanner, Segment};

/// Type byte that stands in place of the `-` of an error reply that weir itself has worded. RESP has no such
/// type, and the connection of a store that sends it is closed, so a store's words are never mistaken for
/// weir's.
const OWN: u8 = b')';
/// Maximum number of bytes (64 KiB) that a response shows of the error reply to a command; the rest is cut
/// off.
const ERROR_BYTES_MAX: usize = 64 * 1024;

/// Marks an error reply as worded by weir, not by a store; leaves other replies as they are.
pub fn mark_own(reply: &mut [u8]) {
    if let Some(kind) = reply.first_mut().filter(|kind| **kind == b'-') {
        *kind = OWN;
    }
}

/// Rule by which the RESP replies to an HTTP request's commands become its response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Get,
    Put,
    Delete,
    Command,
    /// The response is one JSON array of the replies to several commands. `left` is the number of replies
    /// that have not come yet; `first` is true until one has come, since a comma precedes all later ones.
    Pipeline {
        left: usize,
        first: bool,
    },
    /// The response is the result of a transaction, the reply to its `EXEC`; `left` is the number of replies
    /// that still come before that one (to `MULTI` and the queued commands). The first error among them
    /// explains an `EXEC` that is refused.
    Transaction {
        left: usize,
    },
    /// The response is finished before any RESP reply to the request, such as a refusal. The shard passes it
    /// in as a RESP bulk string when all earlier replies have been passed in, so that responses are sent in
    /// the order of requests.
    Told,
}

/// An HTTP request that has not been answered yet.
#[derive(Debug)]
struct Asked {
    kind: Kind,
    manner: Manner,
    in_base64: bool,
    /// The beginning of the response's body, as far as it is known; for a transaction whose `EXEC` has not
    /// been answered, the first error among the replies before.
    text: Vec<u8>,
    /// True if the response is larger than weir may write (`--max-reply-bytes`), so that an error is sent in
    /// its place.
    is_too_large: bool,
}

/// The parts of an HTTP request that have been received.
#[derive(Debug)]
enum Coming {
    Nothing,
    /// The head of the request was parsed; the shard has not checked the client's identity yet.
    Head(Head),
    Body(Head, Body),
}

/// Next step that the shard takes for a connection that speaks HTTP.
#[derive(Debug, PartialEq, Eq)]
pub enum Step {
    /// The shard waits until more bytes have been received.
    Wait,
    /// A request has begun: the shard checks the client's identity (the field is the value of
    /// `Authorization`), then calls `admit` or `refuse`.
    Begins(Option<Vec<u8>>),
    /// The request's commands are known, as RESP, and the shard carries them out ([`Conversation::frames`]).
    Commands,
    /// The response (the field) is known already: the shard passes it in again as a RESP bulk string when all
    /// earlier replies have been passed in, to keep the order of responses. Until then it waits among the
    /// client's replies.
    Told(Vec<u8>),
    /// The response is known already, as with `Told`, and refuses a request of an identified client: the shard
    /// charges the client for the request's bytes.
    Refused {
        /// The response. The shard queues it, as a RESP bulk string, behind the replies that the client is still owed,
        /// and passes it to [`Conversation::hear`] in its turn, so that responses keep the order of requests.
        response: Vec<u8>,
        /// Number of bytes of the request that were received.
        bytes: usize,
    },
}

/// The state of one client connection that speaks HTTP: its received bytes, and its requests without a
/// response.
#[derive(Debug)]
pub struct Conversation {
    /// Bytes that have been received and not been parsed yet.
    held: Vec<u8>,
    /// Number of bytes of `held` that were searched before and contain no whole head.
    seen: usize,
    /// The received parts of the request that is being received.
    coming: Coming,
    /// True if a request was received whole, or was refused, since [`Self::take_ended`] was called last.
    has_ended_one: bool,
    /// Commands of the current HTTP request, as RESP, for the shard to carry out.
    frames: Vec<u8>,
    /// Number of bytes of `frames` whose commands the shard has begun to carry out.
    taken: usize,
    /// User, tier (importance) and deadline of the current request, as words of options of `QOS CALL`.
    options: Vec<Vec<u8>>,
    /// Number of the database for the commands of the current HTTP request.
    database: i64,
    /// Value of the header `Authorization` of the current HTTP request; `None` without one.
    claim: Option<Vec<u8>>,
    /// Number of bytes received of the current request: its head, its body, and the framing of the body's
    /// chunks.
    received_bytes: usize,
    /// Number of bytes of the current request of which nothing is in its commands; the client is charged for
    /// them.
    unused_bytes: usize,
    /// True until the shard begins to carry out the first command of the current request.
    is_at_start: bool,
    /// Error reply for the remaining commands of the current request, which are refused; none if they are
    /// carried out.
    void: Option<String>,
    /// HTTP requests that have not been answered yet, the oldest first.
    asked: VecDeque<Asked>,
    scanner: ReplyScanner,
    /// Start of a RESP reply that is incomplete.
    partial: Vec<u8>,
    /// Responses that have not been sent yet.
    out: Written,
    /// Web pages whose requests are permitted, and host names by which the server may be addressed.
    rules: Arc<Rules>,
    /// Largest JSON body of a response that weir writes, in bytes (`--max-reply-bytes`). An error is written
    /// instead of a larger one.
    response_bytes_max: usize,
    /// True once no more input is read from the client.
    is_over: bool,
}

impl Conversation {
    /// Creates the HTTP state of a new connection, whose responses in JSON may have at most
    /// `response_bytes_max` bytes of body.
    pub fn new(response_bytes_max: usize) -> Self {
        Self {
            held: Vec::new(),
            seen: 0,
            coming: Coming::Nothing,
            has_ended_one: false,
            frames: Vec::new(),
            taken: 0,
            options: Vec::new(),
            database: 0,
            claim: None,
            received_bytes: 0,
            unused_bytes: 0,
            is_at_start: false,
            void: None,
            asked: VecDeque::new(),
            scanner: ReplyScanner::with_mark(OWN),
            partial: Vec::new(),
            out: Written::default(),
            rules: Arc::default(),
            response_bytes_max,
            is_over: false,
        }
    }

    /// Returns the connection's state with these rules: origins of web pages and host names that are allowed
    /// besides the default ones.
    #[must_use]
    pub fn with_rules(self, rules: Arc<Rules>) -> Self {
        Self { rules, ..self }
    }

    /// Appends bytes that the client has sent to those that wait to be parsed. Drops them once no more input
    /// is read from the client.
    pub fn receive(&mut self, bytes: &[u8]) {
        if !self.is_over {
            self.held.extend_from_slice(bytes);
        }
    }

    /// Returns the number of bytes that wait: those received and not parsed, and those of commands that have
    /// not been begun.
    pub fn held_bytes(&self) -> usize {
        self.held.len() + self.frames.len() - self.taken
    }

    /// Returns all memory that the connection's HTTP state holds, in bytes.
    pub fn memory_bytes(&self) -> usize {
        let coming = if let Coming::Body(_, body) = &self.coming { body.bytes.capacity() } else { 0 };
        let asked: usize = self.asked.iter().map(|asked| asked.text.capacity()).sum();
        let lists = self.asked.capacity() * size_of::<Asked>();
        let buffers = [&self.held, &self.frames, &self.partial].map(Vec::capacity);
        size_of::<Self>() + coming + asked + lists + buffers.iter().sum::<usize>() + self.out.memory_bytes()
    }

    /// True once no further HTTP request will be read from the connection (the client wants that, or a
    /// request was refused so that the rest cannot be understood) and the shard has begun to carry out all
    /// commands. Replies to earlier requests may still be missing.
    pub fn is_over(&self) -> bool {
        self.is_over && self.frames.is_empty()
    }

    /// True while a part of an HTTP request has been received and the rest has not. The empty line that may
    /// stand before a request is no part of it.
    pub fn is_midway(&self) -> bool {
        !self.is_over && (head::has_begun(&self.held) || !matches!(self.coming, Coming::Nothing))
    }

    /// True if an HTTP request was received whole, or was refused, since the last call: an incomplete request has then
    /// begun to arrive later.
    pub fn take_ended(&mut self) -> bool {
        std::mem::take(&mut self.has_ended_one)
    }

    /// Returns the commands of the current HTTP request, as RESP, that the shard has not begun to carry out.
    pub fn frames(&self) -> &[u8] {
        &self.frames[self.taken..]
    }

    /// Returns user, tier (importance) and deadline of the current HTTP request, as words of options of `QOS
    /// CALL`.
    pub fn options(&self) -> &[Vec<u8>] {
        &self.options
    }

    /// Returns the number of the database for the commands of the current HTTP request: any number that the
    /// request named.
    pub fn database(&self) -> i64 {
        self.database
    }

    /// Returns the value of the header `Authorization` of the current HTTP request; `None` without one.
    pub fn claim(&self) -> Option<&[u8]> {
        self.claim.as_deref()
    }

    /// Returns the number of bytes of the current HTTP request of which nothing is in its commands, such as
    /// its head, and blanks in its body, so that the client can be charged for them. Escapes do not count.
    pub fn unused_bytes(&self) -> usize {
        self.unused_bytes
    }

    /// True until the shard begins to carry out the first command of the current request.
    pub fn is_at_start(&self) -> bool {
        self.is_at_start
    }

    /// Returns the error reply with which the remaining commands of the current request are refused; `None`
    /// if they are carried out.
    pub fn void(&self) -> Option<&str> {
        self.void.as_deref()
    }

    /// Refuses the remaining commands of the current HTTP request with this error reply, which the shard
    /// gives in their place.
    pub fn make_void(&mut self, error: String) {
        self.void = Some(error);
    }

    /// Marks the commands in the next `bytes` bytes of `frames` (commands as RESP) as begun.
    pub fn take(&mut self, bytes: usize) {
        self.is_at_start = false;
        self.taken += bytes;
        if self.taken == self.frames.len() {
            self.taken = 0;
            self.frames.clear();
            self.frames.shrink_to(HEAD_BYTES_MAX);
        }
    }

    /// Continues to parse the received bytes of the connection, after the shard has begun to carry out all
    /// earlier commands. Returns the next step for the shard.
    pub fn go_on(&mut self) -> Step {
        debug_assert!(self.frames.is_empty());
        if self.is_over {
            return Step::Wait;
        }
        match std::mem::replace(&mut self.coming, Coming::Nothing) {
            Coming::Nothing if self.held.is_empty() => Step::Wait,
            // A client that sends byte by byte does not have all bytes searched each time.
            Coming::Nothing if !head::may_be_whole(&self.held, self.seen) => {
                self.seen = self.held.len();
                Step::Wait
            }
            Coming::Nothing => match head::receive(&self.held) {
                Ok(None) => {
                    self.seen = self.held.len();
                    Step::Wait
                }
                Ok(Some((head, length))) => {
                    self.held.drain(..length);
                    (self.seen, self.received_bytes) = (0, length);
                    self.meet(head)
                }
                Err(status) => self.give_up(self.last_manner(), status),
            },
            Coming::Head(head) => {
                let who = head.authorization.clone();
                self.coming = Coming::Head(head);
                Step::Begins(who)
            }
            Coming::Body(head, mut body) => match body.take(&self.held) {
                Ok(taken) => {
                    self.held.drain(..taken);
                    self.received_bytes += taken;
                    if self.held.is_empty() {
                        self.held.shrink_to(HEAD_BYTES_MAX);
                    }
                    if body.is_whole() {
                        return self.understand(head, &body.bytes);
                    }
                    self.coming = Coming::Body(head, body);
                    Step::Wait
                }
                Err(status) => {
                    let manner = manner(&head, false);
                    self.adopt(head);
                    let bytes = self.received_bytes + self.held.len();
                    Step::Refused { response: self.end_with(manner, status), bytes }
                }
            },
        }
    }

    /// Begins an HTTP request whose head was parsed, with the checks that do not depend on the client's
    /// identity. Returns the next step: to check the client's identity, or to send a response at once (a
    /// refusal, or the answer to a browser's CORS preflight).
    fn meet(&mut self, mut head: Head) -> Step {
        match head.source.admit(&self.rules) {
            Ok(origin) => head.origin = origin,
            Err(_) => return self.deny(&head, Status::Forbidden),
        }
        if let Method::Preflight { allowed, crosses_networks } = head.method {
            let manner = manner(&head, head.keeps);
            let mut text = Vec::new();
            response::preflight(&mut text, &manner, allowed, crosses_networks);
            return Step::Told(self.tell(text, manner.keeps));
        }
        let who = head.authorization.clone();
        self.coming = Coming::Head(head);
        Step::Begins(who)
    }

    /// Continues with a request whose client the shard has identified by `authority` (kind of proof of
    /// identity), and whose body may have `bytes_max` bytes; returns the next step. Proofs that browsers add
    /// by themselves give fewer rights, since any web page can make a browser send them.
    pub fn admit(&mut self, authority: Authority, bytes_max: usize) -> Step {
        let Coming::Head(head) = std::mem::replace(&mut self.coming, Coming::Nothing) else {
            return Step::Wait;
        };
        if authority == Authority::Ambient && !head.host.is_known(&self.rules.hosts) {
            return self.deny(&head, Status::MisdirectedRequest);
        }
        let has_commands = !matches!(head.target, Target::Key(..));
        if authority != Authority::Token && has_commands && !head.is_json {
            return self.deny(&head, Status::UnsupportedMediaType);
        }
        match Body::new(head.length, bytes_max) {
            Ok(body) if head.waits && !body.is_whole() && self.held.is_empty() => {
                self.coming = Coming::Body(head, body);
                self.reserve_place();
                Step::Told(response::GO_ON.to_vec())
            }
            Ok(body) => {
                self.coming = Coming::Body(head, body);
                self.go_on()
            }
            Err(status) => self.give_up(manner(&head, false), status),
        }
    }

    /// Refuses the current request with an error reply of weir's own. Returns the response, which the shard
    /// passes in again when all earlier replies have been passed in, as with [`Step::Told`]. The connection
    /// ends after the response if `is_last` is true, if the client wants that, or if the request has a body:
    /// the bytes after a refused head may not be that body. The response says whether the connection ends.
    pub fn refuse(&mut self, error: &str, is_last: bool) -> Vec<u8> {
        let head = match std::mem::replace(&mut self.coming, Coming::Nothing) {
            Coming::Head(head) | Coming::Body(head, _) => Some(head),
            Coming::Nothing => None,
        };
        let keeps = !is_last && head.as_ref().is_some_and(|head| head.keeps && head.has_no_body());
        let manner = head.map_or(Manner::LAST, |head| manner(&head, keeps));
        let mut text = Vec::new();
        response::fail(&mut text, &manner, Failure { text: error, is_own: true }, false);
        self.tell(text, manner.keeps)
    }

    /// Refuses the HTTP request that is being received, because it took too long to arrive, and ends the
    /// connection. Returns the response, which the shard passes in again when all earlier replies have been
    /// passed in, as with [`Step::Told`].
    pub fn time_out(&mut self) -> Vec<u8> {
        let manner = match &self.coming {
            Coming::Head(head) | Coming::Body(head, _) => manner(head, false),
            Coming::Nothing => self.last_manner(),
        };
        self.end_with(manner, Status::Timeout)
    }

    /// Returns the manner (properties that do not depend on the content) of a response to a head that could
    /// not be parsed; it is the last on its connection.
    fn last_manner(&self) -> Manner {
        Manner { is_head: head::wants_head_alone(&self.held), ..Manner::LAST }
    }

    /// Answers with the error `status` an HTTP request whose head was parsed, and does not carry the request
    /// out. The connection lasts only if the client wants that and the request has no body. Returns the next
    /// step.
    fn deny(&mut self, head: &Head, status: Status) -> Step {
        let manner = manner(head, head.keeps && head.has_no_body());
        let mut text = Vec::new();
        response::refuse(&mut text, &manner, status);
        Step::Told(self.tell(text, manner.keeps))
    }

    fn give_up(&mut self, manner: Manner, status: Status) -> Step {
        Step::Told(self.end_with(manner, status))
    }

    fn end_with(&mut self, manner: Manner, status: Status) -> Vec<u8> {
        let manner = Manner { keeps: false, ..manner };
        let mut text = Vec::new();
        response::refuse(&mut text, &manner, status);
        self.tell(text, manner.keeps)
    }

    /// Reserves the next place in the order of responses for `response`, which is known already and ends its request,
    /// and returns it. The connection ends after that response if `keeps` is false.
    fn tell(&mut self, response: Vec<u8>, keeps: bool) -> Vec<u8> {
        self.has_ended_one = true;
        self.reserve_place();
        self.end_unless(keeps);
        response
    }

    /// Reserves the next place in the order of responses for one that is known already.
    fn reserve_place(&mut self) {
        self.asked.push_back(Asked {
            kind: Kind::Told,
            manner: Manner::LAST,
            in_base64: false,
            text: Vec::new(),
            is_too_large: false,
        });
    }

    fn end_unless(&mut self, keeps: bool) {
        if !keeps {
            self.is_over = true;
            (self.held, self.coming) = (Vec::new(), Coming::Nothing);
        }
    }

    fn understand(&mut self, head: Head, body: &[u8]) -> Step {
        let (manner, in_base64) = (manner(&head, head.keeps), head.in_base64);
        let encoded = command::encode_commands(&head, body, &mut self.frames);
        self.adopt(head);
        match encoded {
            Ok(kind) => {
                let text = if matches!(kind, Kind::Pipeline { .. }) { vec![b'['] } else { Vec::new() };
                let keeps = manner.keeps;
                self.asked.push_back(Asked { kind, manner, in_base64, text, is_too_large: false });
                let in_commands = body.len().min(ESCAPE_BYTES_MAX * self.frames.len());
                self.unused_bytes = self.received_bytes.saturating_sub(in_commands);
                self.is_at_start = true;
                self.has_ended_one = true;
                self.end_unless(keeps);
                Step::Commands
            }
            Err(status) => {
                self.frames = Vec::new();
                // The body has been read completely, so the connection can be used again after the refusal.
                let mut text = Vec::new();
                response::refuse(&mut text, &manner, status);
                Step::Refused { response: self.tell(text, manner.keeps), bytes: self.received_bytes }
            }
        }
    }

    /// Makes the request with that head, which has been received whole or is refused, the current one.
    fn adopt(&mut self, head: Head) {
        (self.options, self.claim) = (head.options, head.authorization);
        self.database = head.database;
        self.void = None;
    }

    /// Takes RESP replies, in any pieces, in the order of the commands that were carried out, and appends the
    /// HTTP responses that they complete to the output.
    pub fn hear(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let Ok(scanned) = self.scanner.scan(bytes) else {
                // Replies are weir's own, or were scanned before.
                debug_assert!(false, "a malformed reply");
                return self.is_over = true;
            };
            let Some(scanned) = scanned else { return self.partial.extend_from_slice(bytes) };
            let (end, rest) = bytes.split_at(scanned.end);
            bytes = rest;
            if self.partial.is_empty() {
                self.hear_one(end);
            } else {
                let mut whole = std::mem::take(&mut self.partial);
                whole.extend_from_slice(end);
                self.hear_one(&whole);
            }
        }
    }

    fn hear_one(&mut self, reply: &[u8]) {
        let Some(asked) = self.asked.front_mut() else { return };
        let is_done = asked.hear(reply, &mut self.out, self.response_bytes_max);
        if is_done {
            self.asked.pop_front();
        }
    }

    /// Takes the responses that wait to be sent, and puts the buffer `spare` in their place; `None` if there
    /// are none.
    pub fn take_output(&mut self, spare: Vec<u8>) -> Option<Segment> {
        self.out.take(spare)
    }
}

fn manner(head: &Head, keeps: bool) -> Manner {
    let origin = head.origin.clone();
    Manner { keeps, is_head: head.method == Method::Head, is_modern: head.is_modern, origin }
}

impl Asked {
    /// Takes the next RESP reply to a command of the HTTP request. True if it was the last one; then the
    /// response has been written to `out`. A response in JSON of more than `bytes_max` bytes is replaced by
    /// an error.
    fn hear(&mut self, reply: &[u8], out: &mut Written, bytes_max: usize) -> bool {
        let Self { kind, manner, in_base64, text, is_too_large } = self;
        let (manner, form) = (&*manner, Form { in_base64: *in_base64, bytes_max });
        let (mut reply, is_own) = (reply, reply.first() == Some(&OWN));
        let error = if let [b'-' | OWN, line @ .., b'\r', b'\n'] = reply {
            // A script words errors of any length, and each byte may take twelve in the response.
            Some(String::from_utf8_lossy(&line[..line.len().min(ERROR_BYTES_MAX)]))
        } else {
            None
        };
        let failure = error.as_deref().map(|text| Failure { text, is_own });
        match kind {
            Kind::Told => {
                if let Some(Reply::Bulk(response)) = answer::next(&mut reply) {
                    out.open.extend_from_slice(response);
                }
            }
            Kind::Get | Kind::Put | Kind::Delete => {
                let out = &mut out.open;
                match (&*kind, failure) {
                    (_, Some(failure)) => response::fail(out, manner, failure, true),
                    (Kind::Get, None) => match answer::next(&mut reply) {
                        Some(Reply::Bulk(value)) => {
                            response::write(out, manner, 200, "", Some((response::BYTES, value)));
                        }
                        Some(Reply::Null) => response::write(out, manner, 404, "", None),
                        _ => response::refuse_reply(out, manner),
                    },
                    (Kind::Delete, None) if reply == b":0\r\n" => {
                        response::write(out, manner, 404, "", None);
                    }
                    _ => response::write(out, manner, 204, "", None),
                }
            }
            Kind::Command => {
                if let Some(failure) = failure {
                    response::fail(&mut out.open, manner, failure, false);
                } else {
                    text.reserve(reply.len().min(bytes_max));
                    let written = write_outcome(text, &mut reply, form);
                    finish(out, manner, written.map(|()| std::mem::take(text)), bytes_max);
                }
            }
            Kind::Pipeline { left, first } => {
                if !*is_too_large {
                    if !std::mem::take(first) {
                        text.push(b',');
                    }
                    let start = text.len();
                    let written = match failure {
                        Some(failure) => write_failure(text, failure, form),
                        None => write_outcome(text, &mut reply, form),
                    };
                    let written = written.or_else(|unfit| match unfit {
                        Unfit::TooLarge => Err(unfit),
                        Unfit::Malformed => {
                            text.truncate(start);
                            let failure = Failure { text: response::BAD_REPLY, is_own: true };
                            write_failure(text, failure, form)
                        }
                    });
                    // A response that is too large is dropped, and refused in the end.
                    *is_too_large = written.is_err();
                    if *is_too_large {
                        *text = Vec::new();
                    }
                }
                *left -= 1;
                if *left > 0 {
                    return false;
                }
                text.push(b']');
                let whole = std::mem::take(text);
                finish(out, manner, if *is_too_large { Err(Unfit::TooLarge) } else { Ok(whole) }, bytes_max);
            }
            Kind::Transaction { left } if *left > 0 => {
                *left -= 1;
                // The error of the first refused command becomes the text of the HTTP reply.
                if let Some(error) = error.filter(|_| text.is_empty()) {
                    text.extend_from_slice(error.as_bytes());
                }
                return false;
            }
            Kind::Transaction { .. } => {
                if let Some(failure) = failure {
                    let why = String::from_utf8_lossy(text).into_owned();
                    // weir queues requests itself, so a command that could not be queued was refused in
                    // weir's words.
                    let queueing = Failure { text: &why, is_own: true };
                    let failure = if why.is_empty() { failure } else { queueing };
                    response::fail(&mut out.open, manner, failure, false);
                } else {
                    let written = write_outcomes(text, reply, form);
                    finish(out, manner, written.map(|()| std::mem::take(text)), bytes_max);
                }
            }
        }
        true
    }
}

/// Writes an error reply as `{"error":...}` to `text`, without the state of quotas that weir noted in it for
/// headers. An error if `text` would get longer than `form` allows.
fn write_failure(text: &mut Vec<u8>, failure: Failure<'_>, form: Form) -> Result<(), Unfit> {
    let shown = if failure.is_own { quotas::taken_off(failure.text).0 } else { failure.text };
    answer::write_error(text, shown.as_bytes(), form)
}

/// Writes `{"result":...}` or `{"error":...}` for the first of the RESP replies in `reply`, and removes it
/// from them. An error if `text` would get longer than `form` allows, or if the reply is malformed.
fn write_outcome(text: &mut Vec<u8>, reply: &mut &[u8], form: Form) -> Result<(), Unfit> {
    if matches!(reply.first(), Some(b'-' | b'!')) {
        text.extend_from_slice(b"{\"error\":");
    } else {
        text.extend_from_slice(b"{\"result\":");
    }
    answer::write_json(text, reply, form)?;
    text.push(b'}');
    Ok(())
}

/// Writes the results and errors of a transaction's commands (`replies`, the reply to `EXEC`) as a JSON array
/// to `text`. An error if `text` would get longer than `form` allows, or if a reply is malformed.
fn write_outcomes(text: &mut Vec<u8>, mut replies: &[u8], form: Form) -> Result<(), Unfit> {
    text.clear();
    text.reserve(replies.len().min(form.bytes_max));
    text.push(b'[');
    let count = match answer::next(&mut replies) {
        Some(Reply::Array(count)) => count,
        Some(Reply::Null) => 0,
        _ => return Err(Unfit::Malformed),
    };
    for number in 0..count {
        if number > 0 {
            text.push(b',');
        }
        write_outcome(text, &mut replies, form)?;
    }
    text.push(b']');
    Ok(())
}

/// Writes the response with the JSON `text`, or an error in its place if the text is larger than `bytes_max`
/// or, as the error in `text` says, could not be written.
fn finish(out: &mut Written, manner: &Manner, text: Result<Vec<u8>, Unfit>, bytes_max: usize) {
    match text {
        Ok(text) if text.len() <= bytes_max => {
            response::write_head(&mut out.open, manner, 200, "", Some((response::JSON, text.len())));
            if !manner.is_head {
                out.append(text);
            }
        }
        Err(Unfit::Malformed) => response::refuse_reply(&mut out.open, manner),
        Ok(_) | Err(Unfit::TooLarge) => {
            let text = format!("ERR the response is larger than {bytes_max} bytes (--max-reply-bytes)");
            response::fail(&mut out.open, manner, Failure { text: &text, is_own: true }, false);
        }
    }
}

#[cfg(test)]
mod tests;
