//! A script that runs for a long time: the driver serves the sockets meanwhile, and the requests of other connections get
//! `-BUSY`, except the few that may end the script or ask about it (SCRIPT KILL, FUNCTION KILL, FUNCTION STATS), and
//! those that wait for its end instead (such as MULTI).
//!
//! ```text
//!     request that may run a script ──> aside ── the turn ends ─> the engine runs it
//!                                                                   │ now and then: Running
//!                                                                   v
//!                       Sockets::attend <── Attended: others' requests ──> -BUSY, or the script ends
//! ```

use std::cell::RefCell;
use std::collections::{BTreeSet, VecDeque};

use super::turns::{Standing, control_flow};
use super::{Service, Sockets, StoreClients, Turns};
use crate::protocol::command::{self, Flags};
use crate::protocol::{Argument, Arguments, RequestLimits, Segment, encode};
use crate::store::attend::{Kind, Running, Verdict, write_stats};
use crate::store::reply::Reply;
use crate::store::{Connections, Disposition, Session};
use crate::values::limits::{ENGINE_OUTPUT_BYTES_HELD, ENGINE_REPLY_BYTES_MAX};
use crate::values::time::Now;
use crate::values::{Action, ClientId, Owner};

/// The names of the commands that run scripts, in lower case.
const SCRIPTED: [&str; 6] = ["eval", "evalsha", "eval_ro", "evalsha_ro", "fcall", "fcall_ro"];

/// A copy of a request, which outlives the received bytes: for a request that runs later, or whose connection
/// receives more bytes while it runs.
#[derive(Debug)]
pub(super) struct Aside {
    frame: Vec<u8>,
    places: Vec<Argument>,
}

impl Aside {
    pub(super) fn new(arguments: Arguments<'_>) -> Self {
        Self { frame: arguments.frame().to_vec(), places: arguments.places().to_vec() }
    }
}

/// True for a request that may run a script: EVAL, EVALSHA, FCALL or a read-only variant outside of a
/// transaction, or EXEC of a transaction that contains one of them.
pub(super) fn may_run_long(session: &Session, arguments: Arguments<'_>) -> bool {
    let name = arguments.name();
    if !matches!(name.first(), Some(b'e' | b'E' | b'f' | b'F')) {
        return false;
    }
    if name.eq_ignore_ascii_case(b"exec") {
        return session.queued().is_some_and(|mut queued| queued.any(|request| runs_script(request.name())));
    }
    runs_script(name) && session.queued().is_none()
}

fn runs_script(name: &[u8]) -> bool {
    SCRIPTED.iter().any(|known| name.eq_ignore_ascii_case(known.as_bytes()))
}

impl Service {
    /// Carries out a request of which a copy (`aside`) was kept, because it may run a script. If the script
    /// runs for a long time, `sockets` is called regularly, and other connections get an answer. Returns
    /// whether the connection goes on; `Close` also if there is no such connection any more.
    pub(super) fn carry_out_aside(
        &mut self,
        id: ClientId,
        aside: &Aside,
        now: Now,
        sockets: &mut dyn Sockets,
    ) -> Disposition {
        let Self { engine, connections, limits, ready, .. } = self;
        let Some(connection) = connections.get(id) else { return Disposition::Close };
        let place_holder = Session::new(connection.session.id());
        let mut session = std::mem::replace(&mut connection.session, place_holder);
        connection.own.standing = Standing::Running;
        let others = Others {
            connections,
            limits,
            ready,
            killed: false,
            ended: BTreeSet::new(),
            lost: BTreeSet::new(),
            sent: BTreeSet::new(),
            unwatched: BTreeSet::new(),
        };
        let attended = RefCell::new((others, sockets));
        let attend = |running: &Running<'_>| {
            let (others, sockets) = &mut *attended.borrow_mut();
            sockets.attend(&mut Attended { others, running });
            if std::mem::take(&mut others.killed) { Verdict::Kill } else { Verdict::Continue }
        };
        let mut reply = Vec::new();
        let arguments = Arguments::new(&aside.frame, &aside.places);
        let disposition = engine.execute_attended(&mut session, arguments, now, &mut reply, Some(&attend));
        let (Others { ended, lost, sent, unwatched, .. }, _) = attended.into_inner();
        if let Some((connection, pool)) = self.connections.get_with_pool(id) {
            connection.session = session;
            connection.output.append(pool, &reply);
        }
        for id in unwatched {
            if let Some(connection) = self.connections.get(id) {
                self.engine.end_watches(&mut connection.session);
            }
        }
        // The engine could not be told of closed connections while it ran the script, so they were only
        // recorded.
        ended.into_iter().for_each(|id| self.handle_client_end(id));
        sent.into_iter().for_each(|id| self.after_output(id));
        lost.into_iter().for_each(|id| self.handle_client_lost(id));
        disposition
    }
}

/// The connections of a service whose engine is running a script, and a record of what is to be done with
/// them when the script has ended.
struct Others<'a> {
    connections: &'a mut Connections<Turns>,
    limits: &'a RequestLimits,
    ready: &'a mut VecDeque<ClientId>,
    /// True once a request of a client (SCRIPT KILL or FUNCTION KILL) has ended the script that is running.
    killed: bool,
    /// The connections whose clients have closed their sending side while the script ran.
    ended: BTreeSet<ClientId>,
    /// The connections that were lost while the script ran; the engine is told of them afterwards.
    lost: BTreeSet<ClientId>,
    /// The connections whose output went to the socket while the script ran.
    sent: BTreeSet<ClientId>,
    /// Connections whose EXEC was refused with `-BUSY` while the script ran. Their watches (WATCH) end after
    /// it.
    unwatched: BTreeSet<ClientId>,
}

/// The clients of a store as the driver (the code that does the socket I/O) reports to them during one call
/// of `Sockets::attend`, while a script runs.
struct Attended<'own, 'parts, 'script> {
    others: &'own mut Others<'parts>,
    running: &'own Running<'script>,
}

/// The answer to a request of another connection that arrives while a script runs.
enum Answer {
    Error(String),
    Ok,
    /// The reply of FUNCTION STATS, which describes the running script.
    Stats,
    /// There is no reply yet: the request is of a kind that Redis does not answer with `-BUSY` (such as
    /// MULTI), and is carried out after the script.
    Later,
}

impl Attended<'_, '_, '_> {
    /// Decides how to answer a request that arrives while the script runs. SCRIPT KILL or FUNCTION KILL marks
    /// the script to be ended, if that is possible.
    fn answer(&mut self, arguments: Arguments<'_>) -> Answer {
        let is = |index: usize, word: &str| {
            arguments.get(index).is_some_and(|argument| argument.eq_ignore_ascii_case(word.as_bytes()))
        };
        if arguments.len() == 2 && is(0, "function") && is(1, "stats") {
            return Answer::Stats;
        }
        let ends = [("script", Kind::Script), ("function", Kind::Function)];
        if let Some((_, kind)) =
            ends.iter().find(|(name, _)| arguments.len() == 2 && is(0, name) && is(1, "kill"))
        {
            if let Some(refusal) = self.running.refuse_to_end(*kind) {
                return Answer::Error(refusal.text().into_owned());
            }
            self.others.killed = true;
            return Answer::Ok;
        }
        match command::recognise(&arguments) {
            Ok(known) if known.flags.contains(Flags::ALLOW_BUSY) => Answer::Later,
            _ => Answer::Error(self.running.busy().text().into_owned()),
        }
    }

    /// Answers the requests in `chunk`, which were received while a script runs, of a connection (`id`) that
    /// has no earlier requests left to answer. Requests that are not to be answered yet are kept, and so are
    /// all after them and all that come once too many bytes of replies are unsent.
    fn answer_all(&mut self, id: ClientId, chunk: &[u8]) {
        let mut consumed = 0;
        let standing = loop {
            let Some((connection, pool)) = self.others.connections.get_with_pool(id) else { return };
            if connection.output.len() >= ENGINE_OUTPUT_BYTES_HELD {
                break Standing::Blocked;
            }
            // Requests borrow from the decoder, so it is taken out of the connection while they are answered.
            let mut decoder = std::mem::take(&mut connection.decoder);
            let decoded = decoder.next(chunk, &mut consumed, self.others.limits);
            let mut standing = None;
            match decoded {
                Ok(Some(request)) => {
                    let arguments = request.arguments;
                    let mut reply = pool.take();
                    let answer = self.answer(arguments);
                    let Some((connection, pool)) = self.others.connections.get_with_pool(id) else { return };
                    match answer {
                        Answer::Error(text) => {
                            if arguments.name().eq_ignore_ascii_case(b"exec") {
                                self.others.unwatched.insert(id);
                                let text = format!("EXECABORT Transaction discarded because of: {text}");
                                encode::error(&mut reply, &text);
                            } else {
                                encode::error(&mut reply, &text);
                            }
                            connection.session.refuse(&arguments);
                        }
                        Answer::Ok => encode::simple(&mut reply, "OK"),
                        Answer::Stats => {
                            let mut out = Reply::new(&mut reply, ENGINE_REPLY_BYTES_MAX);
                            let running = Some(self.running);
                            write_stats(
                                &mut out,
                                connection.session.protocol(),
                                self.running.loaded,
                                running,
                            );
                            // The request that runs the script may be larger than a reply may be.
                            if let Err(refusal) = out.check() {
                                out.refuse(&refusal);
                            }
                        }
                        Answer::Later => {
                            connection.own.aside = Some(Box::new(Aside::new(arguments)));
                            standing = Some(Standing::Ready);
                        }
                    }
                    connection.output.append(pool, &reply);
                    connection.note_reply();
                    pool.give(reply);
                }
                Ok(None) => standing = Some(Standing::Idle),
                Err(error) => {
                    encode::error(connection.output.buffer(pool), &error.0);
                    connection.note_reply();
                    connection.ending = true;
                    standing = Some(Standing::Idle);
                }
            }
            if let Some(connection) = self.others.connections.get(id) {
                connection.decoder = decoder;
            }
            if let Some(standing) = standing {
                break standing;
            }
        };
        let Some(connection) = self.others.connections.get(id) else { return };
        connection.own.standing = standing;
        if standing != Standing::Idle {
            connection.decoder.hold(&chunk[consumed..]);
        }
        if standing == Standing::Ready {
            self.others.ready.push_back(id);
        }
        control_flow(self.others.connections, id);
        self.others.connections.list(id);
    }
}

impl StoreClients for Attended<'_, '_, '_> {
    fn handle_client_opened(&mut self, _now: Now) -> ClientId {
        self.others.connections.open(Turns::default())
    }

    fn handle_client_bytes(&mut self, id: ClientId, chunk: &[u8], _now: Now) {
        let Some(connection) = self.others.connections.get(id) else { return };
        if connection.ending {
            return;
        }
        if connection.own.standing == Standing::Idle {
            self.answer_all(id, chunk);
        } else {
            connection.decoder.hold(chunk);
            control_flow(self.others.connections, id);
        }
    }

    fn handle_client_end(&mut self, id: ClientId) {
        self.others.ended.insert(id);
    }

    fn handle_client_lost(&mut self, id: ClientId) {
        self.others.lost.insert(id);
    }

    fn handle_transmitted(&mut self, id: ClientId, segment: Segment) {
        if !self.others.connections.handle_transmitted(id, segment) {
            return;
        }
        if let Some(connection) = self.others.connections.get(id)
            && connection.own.standing == Standing::Blocked
            && connection.output.len() < ENGINE_OUTPUT_BYTES_HELD
        {
            connection.own.standing = Standing::Ready;
            self.others.ready.push_back(id);
        }
        self.others.sent.insert(id);
        self.others.connections.list(id);
    }

    fn poll_action(&mut self) -> Option<Action> {
        self.others.connections.poll_action()
    }

    fn poll_transmit(&mut self) -> Option<(Owner, Segment)> {
        self.others.connections.poll_transmit()
    }
}
