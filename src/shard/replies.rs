//! Replies on their way to the requests that wait for them, on this core or another.

use super::counters::Counter;
use super::env::Env;
use super::message::Message;
use super::note::Note;
use super::outcome::Outcome;
use super::refusal::NotSent;
use super::request::{Addressee, ReplyTo};
use crate::values::BackendId;
use crate::values::time::Now;

/// The receiver of backends' replies and of notes (messages about requests to the cores of their clients).
pub trait Replies {
    /// Passes on a reply (`message`) to the request with this reply address, of this core or another;
    /// `outcome` is the result from which its price follows. Returns the number of requests that are answered with
    /// it: those that wait for a fetch (shared read of a hot key) are many, and none is if weir gives another reply
    /// that it holds in memory.
    fn reply(&mut self, env: &mut Env, to: ReplyTo, outcome: Outcome, message: Message<'_>, now: Now) -> u64;
    /// Passes on a note (message about a request, such as that it was sent) to the core that has its client.
    fn note(&mut self, env: &mut Env, to: ReplyTo, note: Note);
}

/// Refuses a request that was sent to no backend: answers its client with the error for `why`, and counts it.
/// `to` has the request's reply address, backend and importance.
pub fn turn_away(env: &mut Env, replies: &mut impl Replies, to: Addressee, why: NotSent, now: Now) {
    turn_away_as(Outcome::Refused, env, replies, to, why, now);
}

/// Answers a request's client with the error for `why`, and counts it. The request's price follows from `outcome`;
/// `to`, `backend` and `tier` are its reply address, backend and importance.
pub fn turn_away_as(
    outcome: Outcome,
    env: &mut Env,
    replies: &mut impl Replies,
    (to, backend, tier): Addressee,
    why: NotSent,
    now: Now,
) {
    let mut text = env.pool.take();
    let counter = encode_refusal(env, backend, why, &mut text);
    let refused = replies.reply(env, to, outcome, Message::Small(&text), now);
    env.pool.give(text);
    env.counters.add(counter, refused);
    if let Some(pressure) = why.pressure() {
        env.count_refused(pressure, tier, backend, refused);
    }
}

/// Appends the error reply to a request for `backend` that was not sent for the reason `why`, and counts the refusal.
pub fn write_refusal(env: &mut Env, backend: BackendId, why: NotSent, out: &mut Vec<u8>) {
    let counter = encode_refusal(env, backend, why, out);
    env.counters.add(counter, 1);
}

/// Appends the error reply to a request for `backend` that was not sent for the reason `why`. Returns the counter of
/// such refusals.
fn encode_refusal(env: &Env, backend: BackendId, why: NotSent, out: &mut Vec<u8>) -> Counter {
    let (counter, refusal) = why.refusal(env.backend_name(backend));
    refusal.encode(out);
    counter
}
