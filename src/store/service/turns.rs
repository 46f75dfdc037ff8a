//! The order in which requests are carried out: connections take turns, so that none waits long for another's
//! requests.
//!
//! ```text
//!     bytes ──> idle ──────────────────────────> carried out until the allowance of this turn is spent
//!                 ^                                   │ more requests are there     │ replies wait
//!                 │ nothing is left                   v                             v
//!                 └────────────── ready, in a row, served at the end of a turn <── blocked until they are read
//!                                                                              <── waiting for a reply (BLPOP)
//! ```
//!
//! Each turn adds to the effort that a connection may spend. A request that spends more makes the connection
//! owe, and it is passed over until that is made up (deficit round robin). Between two turns the driver
//! receives and sends.

use super::busy::{self, Aside};
use super::{Service, Sockets, Turns};
use crate::protocol::encode;
use crate::store::{Connections, Disposition};
use crate::values::limits::{ENGINE_EFFORT_PER_TURN, ENGINE_INPUT_BYTES_HELD, ENGINE_OUTPUT_BYTES_HELD};
use crate::values::time::Now;
use crate::values::{Action, ClientId, Owner};

/// The state of a connection's received requests: all carried out, or the reason why the next one waits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Standing {
    /// All requests received so far from the connection have been carried out.
    #[default]
    Idle,
    /// Further requests wait for the connection's turn, in the queue of connections.
    Ready,
    /// Further requests of the connection wait until its client has read some of the replies that it was
    /// sent.
    Blocked,
    /// Further requests of the connection wait for the reply to its blocking call (BLPOP and the like).
    Waiting,
    /// Further requests of the connection wait for the end of a request that runs a script. If the script
    /// runs long, requests of other connections are answered meanwhile, most of them with -BUSY.
    Running,
}

/// The units of effort (steps of work) that a connection may spend on requests before it has to wait for its
/// next turn.
#[derive(Debug, Default)]
pub(super) struct Allowance {
    /// The remaining units of effort (steps of work) that the connection may spend; negative if a request
    /// took more than remained.
    units: i64,
    /// The number of the turn (pass of the service over its connections) in which units of effort were last
    /// added.
    turn: u64,
}

impl Allowance {
    /// Adds the units of effort (steps of work) of one turn, unless those of the turn with this number were
    /// added already. At most the units of one turn accumulate.
    fn renew(&mut self, turn: u64) {
        if self.turn != turn {
            self.turn = turn;
            self.add(1);
        }
    }

    fn add(&mut self, turns: i64) {
        let most = ENGINE_EFFORT_PER_TURN as i64;
        self.units = self.units.saturating_add(turns.saturating_mul(most)).min(most);
    }

    fn take(&mut self, units: u64) {
        self.units = self.units.saturating_sub(i64::try_from(units).unwrap_or(i64::MAX));
    }

    fn is_spent(&self) -> bool {
        self.units <= 0
    }

    /// Returns the number of turns after which the connection's units of effort (steps of work) are above
    /// zero again, so that its requests are carried out. Each turn adds the same number of units. At least 1.
    fn turns_owed(&self) -> i64 {
        self.units.saturating_neg().max(0) / ENGINE_EFFORT_PER_TURN as i64 + 1
    }
}

impl Service {
    /// Handles bytes (`chunk`) that were received from a client at `now`. Carries out its requests at once if
    /// none waits already and the connection may still spend effort (steps of work) in this turn, else keeps
    /// them until the connection's turn comes. A request that may run a script always waits for the next
    /// turn.
    pub(super) fn take_requests(&mut self, id: ClientId, chunk: &[u8], now: Now) {
        let Some(connection) = self.connections.get(id) else { return };
        if connection.ending {
            return;
        }
        connection.own.allowance.renew(self.turn);
        if connection.own.standing == Standing::Idle && !connection.own.allowance.is_spent() {
            self.carry_out(id, chunk, now, None);
            return;
        }
        connection.decoder.hold(chunk);
        if connection.own.standing == Standing::Idle {
            connection.own.standing = Standing::Ready;
            self.ready.push_back(id);
        }
        control_flow(&mut self.connections, id);
    }

    /// Queues a connection whose requests wait because its client has not read replies, if its unread replies
    /// now take fewer bytes than the limit. Does nothing for other connections.
    pub(super) fn unblock(&mut self, id: ClientId) {
        let Some(connection) = self.connections.get(id) else { return };
        if connection.own.standing == Standing::Blocked && connection.output.len() < ENGINE_OUTPUT_BYTES_HELD
        {
            connection.own.standing = Standing::Ready;
            self.ready.push_back(id);
        }
    }

    /// Carries out requests of the connections in the queue: of each until it has spent the effort (steps of
    /// work) that it may spend in this turn, and of all together until about the effort of one connection's
    /// turn is spent. Then the driver receives and sends again. A connection that has spent too much is
    /// queued again without being served.
    pub(super) fn serve_ready(&mut self, now: Now, sockets: &mut dyn Sockets) {
        let mut spent = 0;
        let mut served = false;
        for _ in 0..self.ready.len() {
            if spent >= ENGINE_EFFORT_PER_TURN {
                break;
            }
            let Some(id) = self.ready.pop_front() else { break };
            let Some(connection) = self.connections.get(id) else { continue };
            connection.own.allowance.renew(self.turn);
            if connection.own.allowance.is_spent() {
                self.ready.push_back(id);
                continue;
            }
            spent += self.carry_out(id, &[], now, Some(&mut *sockets));
            served = true;
        }
        if !served {
            self.forgive();
        }
        self.turn += 1;
    }

    /// Lets connections in the queue continue after none could be served, because each had spent too much
    /// effort (steps of work). All of them get the units of as many turns as the connection that owes least
    /// needs.
    fn forgive(&mut self) {
        let Self { ready, connections, .. } = self;
        let mut owed = |id: &ClientId| Some(connections.get(*id)?.own.allowance.turns_owed());
        let turns = ready.iter().filter_map(&mut owed).min().unwrap_or(0);
        for id in ready.iter() {
            if let Some(connection) = connections.get(*id) {
                connection.own.allowance.add(turns);
            }
        }
    }

    /// Carries out the requests of a connection that were kept, and those in `chunk`, until there are no
    /// more, the connection has spent the effort (steps of work) that it may in this turn, or too many reply
    /// bytes wait to be sent. Returns the effort that they took. If `sockets` is `None`, a request that may
    /// run a script waits for the connection's turn.
    fn carry_out(
        &mut self,
        id: ClientId,
        chunk: &[u8],
        now: Now,
        mut sockets: Option<&mut dyn Sockets>,
    ) -> u64 {
        let (mut consumed, mut spent) = (0, 0);
        let standing = loop {
            let Some((connection, pool)) = self.connections.get_with_pool(id) else { return spent };
            if connection.output.len() >= ENGINE_OUTPUT_BYTES_HELD {
                break Standing::Blocked;
            }
            if connection.own.allowance.is_spent() {
                break Standing::Ready;
            }
            let disposition = if let Some(aside) = connection.own.aside.take() {
                let Some(sockets) = sockets.as_deref_mut() else {
                    connection.own.aside = Some(aside);
                    break Standing::Ready;
                };
                self.carry_out_aside(id, &aside, now, sockets)
            } else {
                match connection.decoder.next(chunk, &mut consumed, &self.limits) {
                    Ok(Some(request)) if busy::may_run_long(&connection.session, request.arguments) => {
                        connection.own.aside = Some(Box::new(Aside::new(request.arguments)));
                        continue;
                    }
                    Ok(Some(request)) => {
                        let out = connection.output.buffer(pool);
                        self.engine.execute(&mut connection.session, request.arguments, now, out)
                    }
                    Ok(None) => {
                        connection.ending |= connection.own.ended;
                        break Standing::Idle;
                    }
                    Err(error) => {
                        encode::error(connection.output.buffer(pool), &error.0);
                        connection.ending = true;
                        break Standing::Idle;
                    }
                }
            };
            let Some(connection) = self.connections.get(id) else { return spent };
            connection.note_reply();
            connection.own.allowance.take(self.engine.effort());
            spent += self.engine.effort();
            connection.ending = disposition == Disposition::Close;
            if disposition == Disposition::Wait {
                break Standing::Waiting;
            }
            if connection.ending {
                break Standing::Idle;
            }
        };
        if let Some(connection) = self.connections.get(id) {
            // No element may be popped for a client that had gone before its call came to wait.
            let is_gone = standing == Standing::Waiting && connection.own.ended;
            if is_gone {
                self.engine.cancel_wait(&connection.session);
                connection.ending = true;
            }
            connection.own.standing = if is_gone { Standing::Idle } else { standing };
            if connection.own.standing != Standing::Idle {
                connection.decoder.hold(&chunk[consumed..]);
            }
        }
        if standing == Standing::Ready {
            self.ready.push_back(id);
        }
        control_flow(&mut self.connections, id);
        self.after_output(id);
        self.deliver();
        self.connections.close_killed(&mut self.engine);
        spent
    }
}

/// Pauses reading from a connection's socket if it has too many bytes of requests waiting, and resumes it
/// once few are left.
pub(super) fn control_flow(connections: &mut Connections<Turns>, id: ClientId) {
    let Some(connection) = connections.get(id) else { return };
    let waits = connection.own.standing != Standing::Idle;
    let held = connection.decoder.held_bytes();
    if waits && held > ENGINE_INPUT_BYTES_HELD && !connection.own.reading_paused {
        connection.own.reading_paused = true;
        connections.act(Action::PauseReading(Owner::Client(id)));
    } else if connection.own.reading_paused && (!waits || held < ENGINE_INPUT_BYTES_HELD / 2) {
        connection.own.reading_paused = false;
        connections.act(Action::ResumeReading(Owner::Client(id)));
    }
}
