//! Whose requests are carried out next. Connections take turns, so that none waits long for another's requests.
//!
//! ```text
//!     bytes ──> idle ──────────────────────────> carried out until the allowance of this turn is spent
//!                 ^                                   │ more requests are there     │ replies wait
//!                 │ nothing is left                   v                             v
//!                 └────────────── ready, in a row, served at the end of a turn <── blocked until they are read
//! ```
//!
//! Each turn adds to what a connection may take; what one request took beyond it is owed, and a connection that owes
//! is passed over while another is ready (deficit round robin). Between two turns the driver receives and sends.

use super::{Service, find};
use crate::protocol::encode;
use crate::store::Disposition;
use crate::values::limits::{ENGINE_EFFORT_PER_TURN, ENGINE_INPUT_BYTES_HELD, ENGINE_OUTPUT_BYTES_HELD};
use crate::values::time::Now;
use crate::values::{Action, ClientId, Owner};

/// How a connection's requests stand.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Standing {
    /// All that came were carried out.
    #[default]
    Idle,
    /// The next ones wait for their turn, in the row.
    Ready,
    /// The next ones wait until replies are read.
    Blocked,
}

/// What a connection may take of the thread.
#[derive(Debug, Default)]
pub(super) struct Allowance {
    /// Negative: owed for a request that took more than there was.
    units: i64,
    /// The turn that it was last added to in.
    turn: u64,
}

impl Allowance {
    /// What one turn adds, once, and never more than that at hand.
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

    /// Turns until something is there.
    fn turns_owed(&self) -> i64 {
        self.units.saturating_neg().max(0) / ENGINE_EFFORT_PER_TURN as i64 + 1
    }
}

impl Service {
    /// Bytes from a client: carried out at once, if it is its turn.
    pub(super) fn take_requests(&mut self, id: ClientId, chunk: &[u8], now: Now) {
        let Some(connection) = find(&mut self.connections, id) else { return };
        if connection.ending {
            return;
        }
        connection.allowance.renew(self.turn);
        if connection.standing == Standing::Idle && !connection.allowance.is_spent() {
            self.carry_out(id, chunk, now);
            return;
        }
        connection.decoder.hold(chunk);
        if connection.standing == Standing::Idle {
            connection.standing = Standing::Ready;
            self.ready.push_back(id);
        }
        self.control_flow(id);
    }

    /// Replies of a connection were read: its requests may go on.
    pub(super) fn unblock(&mut self, id: ClientId) {
        let Some(connection) = find(&mut self.connections, id) else { return };
        if connection.standing == Standing::Blocked && connection.output.len() < ENGINE_OUTPUT_BYTES_HELD {
            connection.standing = Standing::Ready;
            self.ready.push_back(id);
        }
    }

    /// Serves connections in the row, one turn's worth of work in all, so that the driver is soon heard again.
    pub(super) fn serve_ready(&mut self, now: Now) {
        let mut spent = 0;
        let mut served = false;
        for _ in 0..self.ready.len() {
            if spent >= ENGINE_EFFORT_PER_TURN {
                break;
            }
            let Some(id) = self.ready.pop_front() else { break };
            let Some(connection) = find(&mut self.connections, id) else { continue };
            connection.allowance.renew(self.turn);
            if connection.allowance.is_spent() {
                self.ready.push_back(id);
                continue;
            }
            spent += self.carry_out(id, &[], now);
            served = true;
        }
        if !served {
            self.forgive();
        }
        self.turn += 1;
    }

    /// All in the row owe something: they are given as many turns at once as the first of them needs.
    fn forgive(&mut self) {
        let Self { ready, connections, .. } = self;
        let owed = |id: &ClientId| {
            let connection = connections.get(id.index as usize)?;
            Some(connection.allowance.turns_owed())
        };
        let turns = ready.iter().filter_map(owed).min().unwrap_or(0);
        for id in ready.iter() {
            if let Some(connection) = find(connections, *id) {
                connection.allowance.add(turns);
            }
        }
    }

    /// Carries out requests until there are no more, the allowance is spent, or replies wait. What that took.
    fn carry_out(&mut self, id: ClientId, chunk: &[u8], now: Now) -> u64 {
        let Self { engine, connections, limits, pool, .. } = self;
        let Some(connection) = find(connections, id) else { return 0 };
        let (mut consumed, mut spent) = (0, 0);
        let standing = loop {
            if connection.output.len() >= ENGINE_OUTPUT_BYTES_HELD {
                break Standing::Blocked;
            }
            if connection.allowance.is_spent() {
                break Standing::Ready;
            }
            match connection.decoder.next(chunk, &mut consumed, limits) {
                Ok(Some(request)) => {
                    let out = connection.output.buffer(pool);
                    let disposition = engine.execute(&mut connection.session, request.arguments, now, out);
                    connection.allowance.take(engine.effort());
                    spent += engine.effort();
                    connection.ending = disposition == Disposition::Close;
                }
                Ok(None) => {
                    connection.ending |= connection.ended;
                    break Standing::Idle;
                }
                Err(error) => {
                    encode::error(connection.output.buffer(pool), &error.0);
                    connection.ending = true;
                }
            }
            if connection.ending {
                break Standing::Idle;
            }
        };
        connection.standing = standing;
        if standing != Standing::Idle {
            connection.decoder.hold(&chunk[consumed..]);
        }
        if standing == Standing::Ready {
            self.ready.push_back(id);
        }
        self.control_flow(id);
        self.after_output(id);
        self.drop_killed();
        spent
    }

    /// Reads less, or more again, from a connection, by what it has waiting.
    fn control_flow(&mut self, id: ClientId) {
        let Some(connection) = find(&mut self.connections, id) else { return };
        let waits = connection.standing != Standing::Idle;
        let held = connection.decoder.held_bytes();
        if waits && held > ENGINE_INPUT_BYTES_HELD && !connection.reading_paused {
            connection.reading_paused = true;
            self.actions.push_back(Action::PauseReading(Owner::Client(id)));
        } else if connection.reading_paused && (!waits || held < ENGINE_INPUT_BYTES_HELD / 2) {
            connection.reading_paused = false;
            self.actions.push_back(Action::ResumeReading(Owner::Client(id)));
        }
    }
}
