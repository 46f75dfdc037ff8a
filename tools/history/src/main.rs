//! `weir-history`: drives a running weir with readers and writers of a few keys, and checks afterwards that
//! no read found a value that it cannot have found.
//!
//! ```text
//!  flags ─> set_up ─> clients (a thread each) <══> weir ══> stores <══ writers around weir
//!                      │ workload: what to ask        asked: what the reply makes of it
//!                      └──> operations by key ──> judge ──> report
//! ```

mod asked;
mod clients;
mod flags;
mod judge;
mod keys;
mod line;
mod operation;
mod report;
mod set_up;
mod workload;

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use clap::Parser as _;
use crossbeam_channel::{Receiver, RecvTimeoutError};
use weir::runtime::{Clock, stop_flag};

use asked::{Log, Tally};
use clients::{Role, Shared};
use flags::HistoryFlags;
use judge::{Rules, Verdict};
use keys::{Key, Run};
use operation::{Fate, Operation, Way};
use workload::Workload;

/// The exit code if a read found a value that it cannot have found, or if weir sent bytes that cannot be a
/// reply to the command.
const EXIT_VIOLATIONS: u8 = 1;
/// The exit code if the run could not be carried out, or if no read through weir was answered.
const EXIT_NO_RUN: u8 = 2;
const PROGRESS_EVERY: Duration = Duration::from_millis(500);
/// The tolerance for the time at which a value expires: stores count in milliseconds, and read the clock
/// when they begin a command.
const EXPIRY_SLACK: Duration = Duration::from_millis(10);

fn main() -> ExitCode {
    let flags = HistoryFlags::parse();
    match run(&flags) {
        Ok(0) => ExitCode::SUCCESS,
        Ok(_) => ExitCode::from(EXIT_VIOLATIONS),
        Err(problem) => {
            eprintln!("weir-history: {problem}");
            ExitCode::from(EXIT_NO_RUN)
        }
    }
}

/// Carries out a run, checks its operations and prints the report. Returns the number of violations: reads
/// that cannot have happened, and bytes that cannot be a reply to their command. The error says why the run
/// could not be carried out, or that it shows nothing.
fn run(flags: &HistoryFlags) -> Result<u64, String> {
    let (address, around) = flags.check()?;
    let clock = Clock::start();
    let mut keys = Key::all(flags.keys, flags.reads);
    set_up::set_up(&mut keys, address, &around)
        .map_err(|error| format!("cannot prepare {address}: {error}"))?;
    let workload = Workload::new(flags, keys, Run(clock.now().unix_ms));
    let shared = Arc::new(Shared::new(workload, flags.clone(), clock, stop_flag()?));
    let roles = (0..flags.connections).map(|number| (Role::Client(number), address));
    let threads = flags.connections as usize + around.len();
    let direct = around.iter().enumerate().map(|(store, address)| (Role::Around(store), *address));
    let (told, logs) = crossbeam_channel::unbounded();
    let began = clock.now().monotonic;
    for (role, address) in roles.chain(direct) {
        let (shared, told) = (Arc::clone(&shared), told.clone());
        thread::Builder::new()
            .name(format!("{role:?}"))
            .spawn(move || clients::run(&shared, role, address, &told))
            .map_err(|error| format!("cannot start a thread: {error}"))?;
    }
    drop(told);
    tell_progress(&shared, 0);
    let Written { operations, tally, broken } = gather(&shared, &logs, threads)?;
    print!("{}", report::headline(shared.asked(), clock.now().monotonic.since(began)));
    print!("{}", report::commands(&tally));
    let rules = Rules { ttl: flags.ttl, slack: EXPIRY_SLACK, stores_forget: flags.stores_forget };
    let is_shown = operations.iter().flatten().any(|operation| shows(operation, flags));
    let violations = judge_all(&shared.workload.keys, operations, &broken, &rules);
    if violations == 0 && !is_shown {
        return Err("no read through weir was answered, so that the run shows nothing".to_owned());
    }
    Ok(violations)
}

/// True for an answered read that weir may have answered without the store. If the run only writes, reads by
/// commands that also write count instead.
fn shows(operation: &Operation, flags: &HistoryFlags) -> bool {
    let way = if flags.writes_per_mille == 1_000 { Way::Store } else { Way::Plain };
    operation.reads().is_some() && operation.fate == Fate::Done && operation.way == way
}

/// The records of all client threads.
struct Written {
    /// The operations on each key, indexed as the keys are.
    operations: Vec<Vec<Operation>>,
    /// The counts of commands by name.
    tally: BTreeMap<&'static str, Tally>,
    /// Descriptions of received bytes that cannot be replies to the commands.
    broken: Vec<String>,
}

/// Collects the records of this many client threads. The error is that of a thread which cannot continue, or says that
/// a thread has ended without a record.
fn gather(shared: &Shared, logs: &Receiver<Result<Log, String>>, threads: usize) -> Result<Written, String> {
    let mut left = threads;
    let operations = vec![Vec::new(); shared.workload.keys.len()];
    let mut written = Written { operations, tally: BTreeMap::new(), broken: Vec::new() };
    loop {
        match logs.recv_timeout(PROGRESS_EVERY) {
            Ok(log) => {
                let log = log?;
                left -= 1;
                log.operations.into_iter().for_each(|(key, operation)| {
                    written.operations[usize::from(key)].push(operation);
                });
                for (name, counts) in log.tally {
                    written.tally.entry(name).or_default().add(counts);
                }
                written.broken.extend(log.broken);
            }
            Err(RecvTimeoutError::Disconnected) if left == 0 => return Ok(written),
            Err(RecvTimeoutError::Disconnected) => {
                return Err(format!("{left} of {threads} threads of clients ended without a record"));
            }
            Err(RecvTimeoutError::Timeout) => tell_progress(shared, shared.asked()),
        }
    }
}

fn tell_progress(shared: &Shared, asked: u64) {
    eprintln!("{asked} of {} operations were asked for", shared.flags.operations);
}

/// Checks the operations on each key (`operations` is indexed as `keys`), and prints the results. Returns the
/// number of violations on all keys and of the descriptions in `broken` together.
fn judge_all(keys: &[Key], operations: Vec<Vec<Operation>>, broken: &[String], rules: &Rules) -> u64 {
    let mut verdicts: Vec<(String, Verdict)> = Vec::new();
    for (key, operations) in keys.iter().zip(operations) {
        let verdict = judge::judge(operations.clone(), rules);
        print!("{}", report::key(&key.name, &operations, &verdict));
        verdicts.push((key.name.clone(), verdict));
    }
    print!("{}", report::violations(&verdicts, broken));
    report::count(&verdicts, broken)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;

    use weir::values::Timestamp;

    use super::*;
    use operation::{Act, Found};

    #[test]
    fn a_thread_without_a_record_is_missed() {
        let flags = HistoryFlags::parse_from(["weir-history"]);
        let workload = Workload::new(&flags, Vec::new(), Run(1));
        let shared = Shared::new(workload, flags, Clock::start(), Arc::new(AtomicBool::new(false)));
        let gathered = |records| {
            let (told, logs) = crossbeam_channel::unbounded();
            (0..records).for_each(|_| told.send(Ok(Log::default())).expect("somebody listens"));
            drop(told);
            gather(&shared, &logs, 2).is_ok()
        };
        assert!(gathered(2) && !gathered(1) && !gathered(0));
    }

    #[test]
    fn a_run_without_an_answered_read_shows_nothing() {
        let flags = |writes| HistoryFlags::parse_from(["weir-history", "--writes-per-mille", writes]);
        let operation = |act, fate, way| Operation {
            asked: Timestamp::from_millis(1),
            answered: Timestamp::from_millis(2),
            session: 1,
            number: 1,
            command: "X",
            act,
            fate,
            way,
        };
        let read = Act::Read(Found::Nil);
        assert!(shows(&operation(read, Fate::Done, Way::Plain), &flags("200")));
        assert!(!shows(&operation(read, Fate::Done, Way::Store), &flags("200")), "the store answers it");
        assert!(shows(&operation(read, Fate::Done, Way::Store), &flags("1000")));
        assert!(!shows(&operation(Act::Delete, Fate::Done, Way::Store), &flags("1000")));
        assert!(!shows(&operation(read, Fate::Unknown, Way::Plain), &flags("200")));
    }
}
