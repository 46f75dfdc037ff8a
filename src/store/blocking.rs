//! Blocking commands, which pop from lists and sorted sets and wait for an element if there is none; and WAIT
//! and WAITAOF.

use std::ops::Range;

use bytes::Bytes;

use super::call::{Call, Command, Done, Effect, command};
use super::items::End;
use super::lists::{self, PopRequest, end_at};
use super::numbers;
use super::post::Delivery;
use super::refusal::Refusal;
use super::sorted_sets::{self, Extreme};
use super::waits::{self, Kind, Timeout, Want};

pub(super) const COMMANDS: &[Command] = &[
    command("blpop", -3, Effect::Write, blpop),
    command("brpop", -3, Effect::Write, brpop),
    command("blmove", 6, Effect::Grow, blmove),
    command("brpoplpush", 4, Effect::Grow, brpoplpush),
    command("blmpop", -5, Effect::Write, blmpop),
    command("bzpopmin", -3, Effect::Write, bzpopmin),
    command("bzpopmax", -3, Effect::Write, bzpopmax),
    command("bzmpop", -5, Effect::Write, bzmpop),
    command("wait", 3, Effect::Read, wait),
    command("waitaof", 4, Effect::Read, waitaof),
];

fn blpop(call: &mut Call<'_>) -> Done {
    pop(call, Want::Item(End::Left))
}

fn brpop(call: &mut Call<'_>) -> Done {
    pop(call, Want::Item(End::Right))
}

fn bzpopmin(call: &mut Call<'_>) -> Done {
    pop(call, Want::Member(Extreme::Lowest))
}

fn bzpopmax(call: &mut Call<'_>) -> Done {
    pop(call, Want::Member(Extreme::Highest))
}

/// Carries out a blocking command whose keys are followed by a timeout (BLPOP, BZPOPMIN and so on). `want`
/// says from which end of a list, or whether the lowest or the highest member, it pops.
fn pop(call: &mut Call<'_>, want: Want) -> Done {
    let last = call.count() - 1;
    let timeout = waits::seconds_at(call, last)?;
    serve_or_wait(call, 1..last, want, timeout)
}

fn blmove(call: &mut Call<'_>) -> Done {
    let (from, to) = (end_at(call, 3)?, end_at(call, 4)?);
    let timeout = waits::seconds_at(call, 5)?;
    let want = Want::Moved { from, to, target: call.at(2).into() };
    serve_or_wait(call, 1..2, want, timeout)
}

fn brpoplpush(call: &mut Call<'_>) -> Done {
    let timeout = waits::seconds_at(call, 3)?;
    let want = Want::Moved { from: End::Right, to: End::Left, target: call.at(2).into() };
    serve_or_wait(call, 1..2, want, timeout)
}

fn blmpop(call: &mut Call<'_>) -> Done {
    let timeout = waits::seconds_at(call, 1)?;
    let request = PopRequest::parse(call, 2, ["left", "right"])?;
    let want = Want::Items(end_at(call, request.end)?, request.count);
    serve_or_wait(call, request.keys, want, timeout)
}

fn bzmpop(call: &mut Call<'_>) -> Done {
    let timeout = waits::seconds_at(call, 1)?;
    let request = PopRequest::parse(call, 2, ["min", "max"])?;
    let extreme = if call.is(request.end, "min") { Extreme::Lowest } else { Extreme::Highest };
    serve_or_wait(call, request.keys, Want::Members(extreme, request.count), timeout)
}

/// Pops from the first of `keys` (positions of words in the request) that has an element, and replies. If
/// none has one, the call waits until an element arrives or `timeout` ends; within a transaction or a script
/// it replies with null at once. An error if a key that is looked at holds a value of another type.
fn serve_or_wait(call: &mut Call<'_>, keys: Range<usize>, want: Want, timeout: Timeout) -> Done {
    let arguments = call.arguments;
    let serve = if want.kind() == Kind::List { lists::serve } else { sorted_sets::serve };
    for key in keys.clone().map(|index| arguments.at(index)) {
        if serve(call, &want, key)? {
            return Ok(());
        }
    }
    let is_move = matches!(want, Want::Moved { .. });
    if !call.wait(&mut keys.map(|index| arguments.at(index)), want, timeout)? {
        if is_move {
            return call.null();
        }
        call.out.null_array(call.session.protocol);
    }
    Ok(())
}

/// Carries out WAIT. The store has no replicas, so no replica ever acknowledges a write: a call for more than
/// 0 replicas waits for its timeout, except in a transaction or a script, and the reply is 0.
fn wait(call: &mut Call<'_>) -> Done {
    let replicas = call.integer_at(1)?;
    let timeout = waits::milliseconds_at(call, 2)?;
    if replicas > 0 && call.wait(&mut std::iter::empty(), Want::Replicas, timeout)? {
        return Ok(());
    }
    call.integer(0)
}

/// Carries out WAITAOF. The store has no replicas, so none ever acknowledges a write: the reply is two zeros,
/// after the timeout if the call asks for replicas outside of a transaction or a script. A call that asks for
/// the store's own disk is refused, since the store writes nothing to disk.
fn waitaof(call: &mut Call<'_>) -> Done {
    let local = call.integer_at(1)?;
    if !(0..=1).contains(&local) {
        return Err(Refusal::Words("ERR value is out of range, value must between 0 and 1"));
    }
    let replicas = numbers::integer(call.at(2)).filter(|replicas| *replicas >= 0);
    let replicas = replicas.ok_or(Refusal::Words("ERR value is out of range, must be positive"))?;
    let timeout = waits::milliseconds_at(call, 3)?;
    if local > 0 {
        return Err(Refusal::Words(
            "ERR WAITAOF cannot be used when numlocal is set but appendonly is disabled.",
        ));
    }
    if replicas > 0 && call.wait(&mut std::iter::empty(), Want::Copies, timeout)? {
        return Ok(());
    }
    call.out.array(2);
    call.out.integer(0);
    call.integer(0)
}

/// Carries out CLIENT UNBLOCK, which ends the wait of another connection as if its timeout had passed, or
/// with an error. The reply is 1, or 0 if that connection does not wait.
pub(super) fn client_unblock(call: &mut Call<'_>) -> Done {
    let by_error = match call.count() {
        3 => false,
        5.. => return Err(call.wrong_subcommand()),
        _ if call.is(3, "timeout") => false,
        _ if call.is(3, "error") => true,
        _ => return Err(Refusal::Words("ERR CLIENT UNBLOCK reason should be TIMEOUT or ERROR")),
    };
    let session = call.integer_at(2)?;
    let waiter = u64::try_from(session).ok().and_then(|id| call.keyspace.interest.waits.leave(id));
    let Some(waiter) = waiter else { return call.integer(0) };
    let bytes = if by_error {
        call.tally.count_error(b"UNBLOCKED client unblocked via CLIENT UNBLOCK");
        Bytes::from_static(b"-UNBLOCKED client unblocked via CLIENT UNBLOCK\r\n")
    } else {
        waiter.reply_at_end().into()
    };
    call.post.deliver(Delivery { session: waiter.session, bytes, ends_wait: true });
    call.integer(1)
}
