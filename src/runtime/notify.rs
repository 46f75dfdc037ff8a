//! Notifies a service manager (systemd, `Type=notify`) that weir serves, is about to end, or is alive: a
//! datagram each, to the socket named in the environment. Without that variable nothing is sent.

use std::ffi::OsStr;
use std::io;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::sync::Arc;
use std::time::Duration;

use super::takeover::Manager;

/// The connection to a service manager (systemd) that is notified of the state of the process; does nothing if
/// there is none.
#[derive(Clone, Debug, Default)]
pub(super) struct Notify {
    manager: Option<Arc<(UnixDatagram, SocketAddr)>>,
    watchdog: Option<Duration>,
}

impl Notify {
    /// Opens a socket to the service manager that these settings name, if any. The error says what is wrong
    /// with the settings.
    pub fn of(manager: &Manager) -> Result<Self, String> {
        let Some(name) = &manager.socket else { return Ok(Self::default()) };
        let socket = address(OsStr::new(name)).map_err(|error| format!("NOTIFY_SOCKET: {error}"))?;
        let watchdog = manager.watchdog_micros.map(Duration::from_micros);
        Ok(Self { manager: Some(Arc::new(socket)), watchdog })
    }

    /// Notifies the service manager that weir is ready to serve.
    pub fn ready(&self) {
        self.tell("READY=1");
    }

    /// Notifies the service manager that the process `pid` is the main process of the service from now on. Does
    /// nothing if it is 0, the number of a process that cannot be seen from here, in another container.
    pub fn main_process(&self, pid: i32) {
        if pid != 0 {
            self.tell(&format!("MAINPID={pid}"));
        }
    }

    /// Notifies the service manager that weir is about to end.
    pub fn stopping(&self) {
        self.tell("STOPPING=1");
    }

    /// Notifies the service manager's watchdog that all shards respond.
    pub fn alive(&self) {
        self.tell("WATCHDOG=1");
    }

    /// Returns the interval between messages that the process is alive ([`Notify::alive`]): a third of the
    /// timeout of the service manager's watchdog. None if there is no watchdog.
    pub fn period(&self) -> Option<Duration> {
        self.watchdog.map(|within| within / 3)
    }

    fn tell(&self, word: &str) {
        if let Some((socket, manager)) = self.manager.as_deref() {
            // A manager that is away, or has too much to read, does not stop weir.
            let _ = socket.send_to_addr(word.as_bytes(), manager);
        }
    }
}

impl Manager {
    /// Reads the service manager's settings from the environment. If the environment names no manager, or the
    /// same as `before` (the settings of the process that this one takes over from), the settings in `before`
    /// are used.
    pub fn from_environment(before: Option<&Self>) -> Self {
        let socket = std::env::var_os("NOTIFY_SOCKET").filter(|name| !name.is_empty());
        let [within, of] = ["WATCHDOG_USEC", "WATCHDOG_PID"]
            .map(|name| std::env::var_os(name).and_then(|value| number(&value)));
        let is_ours = of.is_none_or(|pid| pid == u64::from(std::process::id()));
        let own = Self {
            socket: socket.and_then(|name| name.into_string().ok()),
            watchdog_micros: within.filter(|micros| is_ours && *micros > 0),
        };
        match before {
            // A process that was started by the previous one has its environment, in which the watchdog
            // settings are that process's.
            Some(before) if own.socket.is_none() || own.socket == before.socket => before.clone(),
            _ => own,
        }
    }
}

/// Parses the address of the service manager's socket: a path, or a name in the abstract namespace, which is
/// written with a leading `@`. Returns the address, and a socket to send from. An error if the name is no such
/// address, or no socket can be opened.
fn address(name: &OsStr) -> io::Result<(UnixDatagram, SocketAddr)> {
    let address = match name.as_bytes() {
        [b'@', name @ ..] => SocketAddr::from_abstract_name(name)?,
        _ => SocketAddr::from_pathname(name)?,
    };
    let socket = UnixDatagram::unbound()?;
    socket.set_nonblocking(true)?;
    Ok((socket, address))
}

fn number(value: &OsStr) -> Option<u64> {
    value.to_str()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_manager_is_told_at_a_path_and_at_an_abstract_name() {
        let folder = std::env::temp_dir().join(format!("weir-notify-{}", std::process::id()));
        let name = format!("weir-notify-{}", std::process::id());
        let at_path = UnixDatagram::bind(&folder).expect("a new path");
        let address = SocketAddr::from_abstract_name(&name).expect("a name");
        let at_name = UnixDatagram::bind_addr(&address).expect("a new name");
        for (listening, called) in
            [(at_path, folder.clone().into_os_string()), (at_name, format!("@{name}").into())]
        {
            let manager = super::address(&called).expect("it is there");
            let notify = Notify { manager: Some(Arc::new(manager)), watchdog: None };
            // A process without a number here can be the main process of no service.
            notify.main_process(0);
            notify.ready();
            let mut word = [0; 64];
            let length = listening.recv(&mut word).expect("a word");
            assert_eq!(&word[..length], b"READY=1");
        }
        std::fs::remove_file(folder).expect("it was there");
        Notify::default().ready();
    }
}
