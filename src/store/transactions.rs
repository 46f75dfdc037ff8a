//! MULTI, EXEC and DISCARD: commands that take effect together. One thread runs them all, so no other command
//! can come between. The limits of a request hold for all of them together: a command beyond a limit is
//! refused alone and changes nothing. WATCH is refused, because no other connection's writes are tracked.

use super::call::{Call, Command, Done, Effect, command};
use super::refusal::Refusal;
use super::session::{Disposition, Transaction};

/// The bytes of the reply's bound that are reserved for each further command: enough for most replies of
/// writes, and for a refusal.
const RESERVE_BYTES: usize = 64;

pub(super) const COMMANDS: &[Command] = &[
    command("multi", 1, Effect::Control, multi),
    command("exec", 1, Effect::Control, exec),
    command("discard", 1, Effect::Control, discard),
    command("watch", -2, Effect::Control, watch),
    command("unwatch", 1, Effect::Read, unwatch),
];

fn multi(call: &mut Call<'_>) -> Done {
    if call.session.transaction.is_some() {
        return Err(Refusal::Words("ERR MULTI calls can not be nested"));
    }
    call.session.transaction = Some(Transaction::default());
    call.ok()
}

fn exec(call: &mut Call<'_>) -> Done {
    let Some(transaction) = call.session.transaction.take() else {
        return Err(Refusal::Words("ERR EXEC without MULTI"));
    };
    if transaction.spoiled {
        return Err(Refusal::Words("EXECABORT Transaction discarded because of previous errors."));
    }
    let grows = transaction.commands().any(|arguments| {
        let known = call.directory.find(arguments.name());
        known.is_some_and(|position| call.directory.at(position).effect == Effect::Grow)
    });
    if grows && call.afford(transaction.bytes()).is_err() {
        return Err(Refusal::Words(
            "EXECABORT Transaction discarded because of: OOM command not allowed when used memory > 'maxmemory'.",
        ));
    }
    let mut behind = transaction.commands().len();
    if behind.saturating_mul(RESERVE_BYTES) > call.limits.reply_bytes_max {
        return Err(Refusal::Words(
            "EXECABORT Transaction discarded because its reply would be larger than a reply may be.",
        ));
    }
    call.out.array(behind);
    for arguments in transaction.commands() {
        behind -= 1;
        let position = call.directory.find(arguments.name()).expect("it was found when it was queued");
        let mut inner = Call {
            keyspace: call.keyspace,
            session: call.session,
            tally: call.tally,
            directory: call.directory,
            limits: call.limits,
            arguments,
            now: call.now,
            out: call.out.part(behind * RESERVE_BYTES),
            effort: call.effort,
            disposition: Disposition::Continue,
        };
        inner.run(position);
    }
    Ok(())
}

fn discard(call: &mut Call<'_>) -> Done {
    if call.session.transaction.take().is_none() {
        return Err(Refusal::Words("ERR DISCARD without MULTI"));
    }
    call.ok()
}

fn watch(_: &mut Call<'_>) -> Done {
    Err(Refusal::Words("ERR WATCH is not supported by the embedded engine"))
}

fn unwatch(call: &mut Call<'_>) -> Done {
    call.ok()
}
