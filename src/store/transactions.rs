//! MULTI, EXEC and DISCARD: commands that take effect together.
//!
//! One thread carries them all out, so no other command can come in between. The limits of a request hold for
//! all of them together: a command beyond a limit is refused alone and changes nothing. WATCH makes EXEC fail
//! if a key has changed; see `watches.rs`.

use super::call::{Call, Command, Done, Effect, InnerReply, command};
use super::effort::{FIND, INSERT};
use super::engine::memory_needed;
use super::refusal::Refusal;
use super::session::Transaction;

/// The number of bytes of the limit on EXEC's reply that are reserved for each later command of the
/// transaction: enough for most replies of writes, and for a refusal.
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
    let broken = end_watches(call);
    if transaction.spoiled {
        return Err(Refusal::Words("EXECABORT Transaction discarded because of previous errors."));
    }
    if broken {
        call.out.null_array(call.session.protocol);
        return Ok(());
    }
    let growing = transaction.commands().filter(|arguments| {
        let known = call.directory.find(arguments.name());
        known.is_some_and(|position| call.directory.at(position).effect == Effect::Grow)
    });
    let needed = growing.map(memory_needed).fold(0, u64::saturating_add);
    if needed > 0 && needed >= call.memory_left() {
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
        let reply = InnerReply::Part { reserve: behind * RESERVE_BYTES };
        // The commands before may have taken more memory than was estimated.
        let needed = call.keyspace.used().saturating_add(memory_needed(arguments));
        let is_full = call.directory.at(position).effect.exceeds(needed, call.bytes_max());
        let mut inner = call.inner(arguments, reply);
        if is_full { refuse_for_memory(&mut inner) } else { inner.run(position) }
    }
    Ok(())
}

/// Refuses a command of a transaction before it is carried out, because values take as much memory as they may, and
/// counts that as for a command outside of a transaction.
fn refuse_for_memory(call: &mut Call<'_>) {
    let refusal = Refusal::OutOfMemory;
    call.effort.charge_request(call.count(), call.arguments.frame().len());
    call.tally.refused_for_memory += 1;
    call.tally.count_rejection(call.directory, call.arguments, refusal.text().as_bytes());
    call.out.refuse(&refusal);
}

/// Ends the connection's watches (WATCH). True if a watched key has changed or expired, so that EXEC must
/// fail.
fn end_watches(call: &mut Call<'_>) -> bool {
    if !std::mem::take(&mut call.session.watches) {
        return false;
    }
    let watches = &call.keyspace.interest.watches;
    let session = call.session.id;
    for (database, key) in watches.of(session) {
        // A key that has expired is removed, and that breaks the watch.
        call.effort.charge(FIND);
        call.keyspace.select(database);
        call.keyspace.find(&key);
    }
    call.keyspace.select(call.session.database);
    call.keyspace.interest.watches.end(session)
}

fn discard(call: &mut Call<'_>) -> Done {
    if call.session.transaction.take().is_none() {
        return Err(Refusal::Words("ERR DISCARD without MULTI"));
    }
    unwatch(call)
}

fn watch(call: &mut Call<'_>) -> Done {
    if call.session.transaction.is_some() {
        return Err(Refusal::Words("ERR WATCH inside MULTI is not allowed"));
    }
    call.effort.spend(call.count(), INSERT)?;
    for key in call.rest(1) {
        // A key that has expired already is as good as missing.
        call.keyspace.find(key);
        call.session.watches = true;
        call.keyspace.interest.watches.add(call.session.id, call.session.database, key)?;
    }
    call.ok()
}

fn unwatch(call: &mut Call<'_>) -> Done {
    if std::mem::take(&mut call.session.watches) {
        call.keyspace.interest.watches.end(call.session.id);
    }
    call.ok()
}

#[cfg(test)]
mod tests {
    use crate::store::bench::Bench;

    #[test]
    fn a_transaction_needs_memory_for_each_of_its_words() {
        let mut bench = Bench::bounded(40_000);
        bench.talk(&[
            ("MULTI", "+OK|"),
            (&format!("SADD s{}", " x".repeat(400)), "+QUEUED|"),
            (&format!("SADD s{}", " x".repeat(400)), "+QUEUED|"),
            (
                "EXEC",
                "-EXECABORT Transaction discarded because of: OOM command not allowed when used memory > \
                 'maxmemory'.|",
            ),
            ("MULTI", "+OK|"),
            ("SADD s x", "+QUEUED|"),
            (&format!("DEL {}", "x ".repeat(30_000).trim()), "+QUEUED|"),
            ("EXEC", "*2|:1|:0|"),
        ]);
    }

    /// Many small values take more memory than the estimate before the transaction: commands that find the memory full
    /// are refused one by one, and those that need none go on.
    #[test]
    fn a_transaction_stays_within_memory() {
        const BYTES_MAX: u64 = 100_000;
        let refusal = "-OOM command not allowed when used memory > 'maxmemory'.|";
        let mut bench = Bench::bounded(BYTES_MAX);
        bench.talk(&[("SADD first x y", ":2|"), ("MULTI", "+OK|")]);
        for number in 0..1_000 {
            bench.send(&format!("SADD k{number} x"));
        }
        bench.send("SMOVE first k0 y");
        bench.send("SREM first x");
        let reply = bench.send("EXEC");
        let added = reply.matches(":1|").count() - 2;
        assert!((200..900).contains(&added), "{added} were added");
        assert_eq!(reply, format!("*1002|{}{}:1|:1|", ":1|".repeat(added), refusal.repeat(1_000 - added)));
        let statistics = bench.engine.statistics();
        assert!(statistics.bytes_used < BYTES_MAX + 1_000, "{} bytes", statistics.bytes_used);
        assert_eq!(statistics.refused_for_memory, 1_000 - added as u64);
        assert_eq!(statistics.keys, added);
    }

    #[test]
    fn a_wrong_subcommand_is_not_queued() {
        let aborted = "-EXECABORT Transaction discarded because of previous errors.|";
        Bench::new().talk(&[
            ("MULTI", "+OK|"),
            ("XGROUP CREAT x g $", "-ERR unknown subcommand 'CREAT'. Try XGROUP HELP.|"),
            ("EXEC", aborted),
            ("MULTI", "+OK|"),
            ("OBJECT ENCODING", "-ERR wrong number of arguments for 'object|encoding' command|"),
            ("EXEC", aborted),
            ("MULTI", "+OK|"),
            ("OBJECT ENCODING k", "+QUEUED|"),
            ("COMMAND COUNT", "+QUEUED|"),
            ("DISCARD", "+OK|"),
        ]);
    }
}
