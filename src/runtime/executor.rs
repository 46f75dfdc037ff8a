//! Threads that run one glommio executor each, and the error messages for machines that do not allow
//! `io_uring`.

use std::future::Future;
use std::io;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use crossbeam_channel::{Receiver, Sender};
use glommio::{ExecutorJoinHandle, LocalExecutorBuilder, Placement};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use signal_hook::consts::{SIGINT, SIGTERM};

/// The memory, in bytes, that glommio reserves for buffers of an executor's own `io_uring`. Requests and
/// replies go through the core's own ring (`ring.rs`), so the executor's needs little memory and few entries.
const IO_MEMORY_BYTES: usize = 64 * 1024;
/// The number of entries of an executor's own `io_uring`.
const RING_ENTRIES: usize = 64;
/// The least limit of locked memory, in bytes, that glommio requires for an executor.
const MEMLOCK_BYTES_MIN: u64 = 512 * 1024;

/// The time after which a task of an executor is to let others run (glommio's default), where the executor has
/// several tasks.
const TURN_OF_TASK: Duration = Duration::from_millis(100);
/// The time after which the only task of an executor is to let others run: longer than any thread is kept from
/// a CPU.
///
/// glommio goes to sleep although a task is ready, if it finds that this time has passed just when it is about to run
/// the task, because the thread got no CPU meanwhile. A core that slept then would serve nobody any more.
const TURN_OF_ONLY_TASK: Duration = Duration::from_secs(24 * 3_600);
/// The time between two wake-ups of an executor by a timer of its own, so that it does not sleep for longer if
/// it has gone to sleep although a task is ready.
const WAKING_EVERY: Duration = Duration::from_millis(700);

/// The number of tasks that an executor runs, which decides when a task has to let others run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Tasks {
    /// The executor runs one task, which never needs to let others run.
    One,
    /// The executor runs several tasks, which let each other run.
    Several,
}

/// The executors of the process. The failure of any of them is noticed: a process that lacks a core must not go
/// on, because requests for the keys that belong to that core would get no replies.
pub(super) struct Executors {
    /// The executors by number, each with its name; none for an executor that has ended without an error.
    threads: Vec<Option<(String, ExecutorJoinHandle<io::Result<()>>)>>,
    events: Receiver<Event>,
    /// The sending end of `events`, of which each executor gets a copy.
    sender: Sender<Event>,
}

/// A change in the state of an executor.
#[derive(Clone, Copy, Debug)]
enum Event {
    /// An executor's task has made everything that it needs, so that it serves from now on.
    Started,
    /// The executor with this number has ended, or could not be made.
    Ended(usize),
}

/// The tie between an executor and [`Executors`], held by the executor's task. When the tie is dropped, the
/// executor counts as ended: because its task has ended, or because the executor could not be made and the task
/// never runs.
#[derive(Debug)]
pub(super) struct Lifeline {
    number: usize,
    events: Sender<Event>,
}

impl Lifeline {
    /// Reports that the executor's task has set up everything that it needs (its ring, say), so that it can
    /// begin to serve. Called once.
    pub fn note_started(&self) {
        // Nobody listens if the process is about to end.
        let _ = self.events.send(Event::Started);
    }
}

impl Drop for Lifeline {
    fn drop(&mut self) {
        let _ = self.events.send(Event::Ended(self.number));
    }
}

impl Executors {
    pub fn new() -> Self {
        let (sender, events) = crossbeam_channel::unbounded();
        Self { threads: Vec::new(), events, sender }
    }

    /// Starts a thread named `name` (pinned to a CPU, if one is given) with an executor that runs the future
    /// which `task` makes to its end. `tasks` says whether the executor will run other tasks too. The task must
    /// hold the lifeline until it ends. The error is a message for the operator.
    pub fn spawn<F>(
        &mut self,
        name: &str,
        (cpu, tasks): (Option<usize>, Tasks),
        task: impl FnOnce(Lifeline) -> F + Send + 'static,
    ) -> Result<(), String>
    where
        F: Future<Output = io::Result<()>> + 'static,
    {
        let lifeline = Lifeline { number: self.threads.len(), events: self.sender.clone() };
        let thread = LocalExecutorBuilder::new(cpu.map_or(Placement::Unbound, Placement::Fixed))
            .name(name)
            .io_memory(IO_MEMORY_BYTES)
            .ring_depth(RING_ENTRIES)
            .preempt_timer(if tasks == Tasks::One { TURN_OF_ONLY_TASK } else { TURN_OF_TASK })
            .spawn(move || async move {
                glommio::spawn_local(wake_again_and_again()).detach();
                task(lifeline).await
            })
            .map_err(|error| format!("cannot start the executor '{name}': {error}"))?;
        self.threads.push(Some((name.to_owned(), thread)));
        Ok(())
    }

    /// Waits until the task of every executor has set up everything that it needs. The error is a message for
    /// the operator: an executor could not be made, or has failed.
    pub fn wait_until_started(&mut self) -> Result<(), String> {
        let mut missing = self.threads.len();
        while missing > 0 {
            match self.events.recv() {
                Ok(Event::Started) => missing -= 1,
                Ok(Event::Ended(number)) => self.look_at(number).map_err(|(name, error)| {
                    format!("cannot start the executor '{name}': {}", start_problem(&error))
                })?,
                // An error is not possible, as `sender` is kept.
                Err(_) => break,
            }
        }
        Ok(())
    }

    /// Waits until all executors have ended, or the first one fails. The error is a message for the operator.
    pub fn join(mut self) -> Result<(), String> {
        while self.threads.iter().any(Option::is_some) {
            if let Ok(Event::Ended(number)) = self.events.recv() {
                self.look_at(number)
                    .map_err(|(name, error)| format!("the executor '{name}' failed: {error}"))?;
            }
        }
        Ok(())
    }

    /// Removes an executor that has ended. The error is its name, and the reason for which it failed.
    fn look_at(&mut self, number: usize) -> Result<(), (String, io::Error)> {
        let Some((name, thread)) = self.threads.get_mut(number).and_then(Option::take) else { return Ok(()) };
        let ended = thread.join().map_err(io::Error::from).and_then(|ended| ended);
        ended.map_err(|error| (name, error))
    }
}

/// Wakes the executor that this task runs in every 700 ms (`WAKING_EVERY`), as long as the executor runs.
async fn wake_again_and_again() {
    loop {
        glommio::timer::sleep(WAKING_EVERY).await;
    }
}

/// Returns the reason why the process could not open more files, with the exact setting to change.
pub(super) fn files_too_few() -> String {
    let limit = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    format!(
        "the limit of open files of this process, {limit}, is too low (LimitNOFILE= in systemd, `ulimit -n`)"
    )
}

/// Raises the process's limits of locked memory and open files as far as allowed. Returns a warning if fewer
/// than `files_wanted` files may be open, which are for `purpose`, and an error if too little memory may be
/// locked, both with the exact setting to change.
pub fn raise_limits(files_wanted: u64, purpose: &str) -> Result<Option<String>, String> {
    let files = raise_limits_fully()?;
    Ok((files < files_wanted).then(|| {
        format!(
            "the limit of open files is {files}, and {files_wanted} may be needed, for {purpose}: a higher limit is \
             expected (LimitNOFILE= in systemd, `ulimit -n`)"
        )
    }))
}

/// Raises the process's limits of locked memory and open files as far as allowed. Returns the limit of open
/// files, or an error, with the exact setting to change, if too little memory may be locked.
pub(super) fn raise_limits_fully() -> Result<u64, String> {
    let memlock = raise(Resource::Memlock, u64::MAX);
    if memlock < MEMLOCK_BYTES_MIN {
        return Err(format!(
            "the limit of locked memory is {memlock} bytes, and io_uring needs {MEMLOCK_BYTES_MIN} per core: set \
             LimitMEMLOCK=infinity in the systemd unit, `ulimit -l unlimited` in the shell, or --ulimit memlock=-1 \
             for a container"
        ));
    }
    Ok(raise(Resource::Nofile, u64::MAX))
}

/// Raises a soft resource limit of the process towards `wanted`, at most to the hard limit. Returns the soft
/// limit in force afterwards; `u64::MAX` for none.
fn raise(resource: Resource, wanted: u64) -> u64 {
    let limits = getrlimit(resource);
    let allowed = limits.maximum.unwrap_or(u64::MAX).min(wanted);
    if limits.current.is_some_and(|current| current < allowed) {
        let current = if allowed == u64::MAX { None } else { Some(allowed) };
        let _ = setrlimit(resource, Rlimit { current, maximum: limits.maximum });
    }
    getrlimit(resource).current.unwrap_or(u64::MAX)
}

/// Returns advice for an operator whose kernel refuses to create an `io_uring`, depending on the error.
pub fn ring_advice(error: &io::Error) -> String {
    let advice = match error.raw_os_error() {
        Some(libc::EPERM | libc::EACCES) => {
            "io_uring is forbidden here: set the sysctl kernel.io_uring_disabled to 0, or allow io_uring_setup, \
             io_uring_enter and io_uring_register in the container's seccomp profile"
        }
        Some(libc::ENOSYS) => {
            "there is no io_uring here: a container's seccomp profile hides it (allow io_uring_setup, io_uring_enter and \
             io_uring_register), or the kernel was built without; Linux 6.1 or newer, with CONFIG_IO_URING, is needed"
        }
        Some(libc::EINVAL) => "this kernel's io_uring is too old: Linux 6.1 or newer is needed",
        Some(libc::ENOMEM) => {
            "too little memory may be locked: set LimitMEMLOCK=infinity in systemd, or `ulimit -l unlimited`"
        }
        Some(libc::EMFILE | libc::ENFILE) => {
            "too few files may be open: set LimitNOFILE= in systemd, or `ulimit -n`"
        }
        _ => "io_uring is needed",
    };
    format!("{advice} ({error})")
}

/// Returns the reason why an executor could not start, with advice if a limit of the process is too low. Other
/// errors need no advice, as it was checked before that `io_uring` can be used at all.
fn start_problem(error: &io::Error) -> String {
    match error.raw_os_error() {
        Some(libc::ENOMEM | libc::EMFILE | libc::ENFILE) => ring_advice(error),
        _ => error.to_string(),
    }
}

/// Returns a flag that the first SIGINT or SIGTERM sets, so that a tool can clean up and report. A second one
/// ends the process with status 130. The error is a message for the user.
pub fn stop_flag() -> Result<Arc<AtomicBool>, String> {
    let flag = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        signal_hook::flag::register_conditional_shutdown(signal, 130, Arc::clone(&flag))
            .and_then(|_| signal_hook::flag::register(signal, Arc::clone(&flag)))
            .map_err(|error| format!("cannot listen to signals: {error}"))?;
    }
    Ok(flag)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused() -> io::Error {
        io::Error::from_raw_os_error(libc::EMFILE)
    }

    #[test]
    fn an_executor_that_cannot_start_is_noticed_while_others_run() {
        let mut executors = Executors::new();
        let (stop, stopped) = crossbeam_channel::bounded::<()>(0);
        let runs = move |lifeline: Lifeline| async move {
            lifeline.note_started();
            let _ = stopped.recv();
            Ok(())
        };
        executors.spawn("first", (None, Tasks::One), runs).expect("a thread");
        executors
            .spawn("second", (None, Tasks::Several), |_lifeline| async { Err(refused()) })
            .expect("a thread");
        let told = executors.wait_until_started().expect_err("the second cannot start");
        assert!(told.starts_with("cannot start the executor 'second': too few files may be open"), "{told}");
        drop(stop);
    }

    #[test]
    fn an_executor_that_fails_for_another_reason_than_a_limit_is_told_of_without_advice() {
        let mut executors = Executors::new();
        let error = || io::Error::from_raw_os_error(libc::EINVAL);
        executors
            .spawn("only", (None, Tasks::One), move |_lifeline| async move { Err(error()) })
            .expect("a thread");
        let told = executors.wait_until_started().expect_err("it cannot start");
        assert_eq!(told, format!("cannot start the executor 'only': {}", error()));
    }

    #[test]
    fn an_executor_that_fails_later_is_noticed_while_others_run() {
        let mut executors = Executors::new();
        let (stop, stopped) = crossbeam_channel::bounded::<()>(0);
        let (fail, failed) = crossbeam_channel::bounded::<()>(0);
        for (name, end, outcome) in [("first", stopped, Ok(())), ("second", failed, Err(refused()))] {
            let task = move |lifeline: Lifeline| async move {
                lifeline.note_started();
                let _ = end.recv();
                outcome
            };
            executors.spawn(name, (None, Tasks::One), task).expect("a thread");
        }
        executors.wait_until_started().expect("both run");
        drop(fail);
        let told = executors.join().expect_err("the second fails");
        assert!(told.starts_with("the executor 'second' failed: "), "{told}");
        drop(stop);
    }

    #[test]
    fn executors_that_end_in_any_order_are_waited_for() {
        let mut executors = Executors::new();
        for name in ["first", "second"] {
            let task = move |lifeline: Lifeline| async move {
                lifeline.note_started();
                Ok(())
            };
            executors.spawn(name, (None, Tasks::One), task).expect("a thread");
        }
        executors.wait_until_started().expect("both run");
        executors.join().expect("both end");
    }

    #[test]
    fn an_executor_whose_task_never_runs_is_noticed() {
        let (sender, events) = crossbeam_channel::unbounded();
        drop(Lifeline { number: 3, events: sender });
        assert!(matches!(events.try_recv(), Ok(Event::Ended(3))));
    }
}
