//! Threads that run one glommio executor each, and the error messages for machines that do not allow
//! `io_uring`.

use std::future::Future;
use std::io;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use glommio::{ExecutorJoinHandle, LocalExecutorBuilder, Placement};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use signal_hook::consts::{SIGINT, SIGTERM};

/// The memory, in bytes, that glommio reserves for buffers of an executor's own `io_uring`. Requests and
/// replies go through another ring, so this one needs little memory and few entries.
const IO_MEMORY_BYTES: usize = 64 * 1024;
/// The number of entries of an executor's own `io_uring`.
const RING_ENTRIES: usize = 64;
/// The least limit of locked memory, in bytes, that glommio requires for an executor.
const MEMLOCK_BYTES_MIN: u64 = 512 * 1024;

/// Starts a thread named `name` (pinned to a CPU, if one is given) with an executor that runs the future that
/// `task` makes until it is ready.
pub(super) fn spawn<F>(
    name: &str,
    cpu: Option<usize>,
    task: impl FnOnce() -> F + Send + 'static,
) -> io::Result<ExecutorJoinHandle<io::Result<()>>>
where
    F: Future<Output = io::Result<()>> + 'static,
{
    LocalExecutorBuilder::new(cpu.map_or(Placement::Unbound, Placement::Fixed))
        .name(name)
        .io_memory(IO_MEMORY_BYTES)
        .ring_depth(RING_ENTRIES)
        .spawn(task)
        .map_err(|error| io::Error::other(format!("cannot start the executor '{name}': {error}")))
}

/// Raises the process's limits of locked memory and open files as far as allowed. Returns warnings, or an
/// error, with the exact setting to change. `files_wanted` is the number of files that the process may have
/// open at most, by which it is told whether the limit is too low.
pub fn raise_limits(files_wanted: u64) -> Result<Vec<String>, String> {
    let memlock = raise(Resource::Memlock, u64::MAX);
    if memlock < MEMLOCK_BYTES_MIN {
        return Err(format!(
            "the limit of locked memory is {memlock} bytes, and io_uring needs {MEMLOCK_BYTES_MIN} per core: set \
             LimitMEMLOCK=infinity in the systemd unit, `ulimit -l unlimited` in the shell, or --ulimit memlock=-1 \
             for a container"
        ));
    }
    let files = raise(Resource::Nofile, u64::MAX);
    let mut warnings = Vec::new();
    if files < files_wanted {
        warnings.push(format!(
            "the limit of open files is {files}, and {files_wanted} may be needed, for --max-clients and connections to \
             stores: a higher limit is expected (LimitNOFILE= in systemd, `ulimit -n`), or a lower --max-clients"
        ));
    }
    Ok(warnings)
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

/// Returns a flag that the first SIGINT or SIGTERM sets, so that a tool can clean up and report. A second one
/// ends the process.
pub fn stop_flag() -> Result<Arc<AtomicBool>, String> {
    let flag = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        signal_hook::flag::register_conditional_shutdown(signal, 130, Arc::clone(&flag))
            .and_then(|_| signal_hook::flag::register(signal, Arc::clone(&flag)))
            .map_err(|error| format!("cannot listen to signals: {error}"))?;
    }
    Ok(flag)
}
