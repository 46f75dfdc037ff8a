//! Tells a service manager (systemd, `Type=notify`) that weir serves, that it is about to end, and that it lives: a datagram each, to the
//! socket that the environment names. Without one nobody is told.

use std::ffi::OsStr;
use std::io;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::sync::Arc;
use std::time::Duration;

/// Who is told, if anybody.
#[derive(Clone, Debug, Default)]
pub(super) struct Notify {
    manager: Option<Arc<(UnixDatagram, SocketAddr)>>,
    watchdog: Option<Duration>,
}

impl Notify {
    /// As the environment says. The error says what is wrong with it.
    pub fn from_environment() -> Result<Self, String> {
        let Some(name) = std::env::var_os("NOTIFY_SOCKET").filter(|name| !name.is_empty()) else {
            return Ok(Self::default());
        };
        let manager = manager(&name).map_err(|error| format!("NOTIFY_SOCKET: {error}"))?;
        let [within, of] = ["WATCHDOG_USEC", "WATCHDOG_PID"]
            .map(|name| std::env::var_os(name).and_then(|value| number(&value)));
        let is_ours = of.is_none_or(|pid| pid == u64::from(std::process::id()));
        let watchdog = within.filter(|micros| is_ours && *micros > 0).map(Duration::from_micros);
        Ok(Self { manager: Some(Arc::new(manager)), watchdog })
    }

    /// Weir serves.
    pub fn ready(&self) {
        self.tell("READY=1");
    }

    /// No new clients are taken on.
    pub fn stopping(&self) {
        self.tell("STOPPING=1");
    }

    /// All shards answer.
    pub fn alive(&self) {
        self.tell("WATCHDOG=1");
    }

    /// How often that is to be said: three times within the time that the manager waits.
    pub fn period(&self) -> Option<Duration> {
        self.watchdog.map(|within| within / 3)
    }

    fn tell(&self, word: &str) {
        if let Some((socket, manager)) = self.manager.as_deref() {
            // A manager that is away, or has too much to read, is no reason to stop.
            let _ = socket.send_to_addr(word.as_bytes(), manager);
        }
    }
}

/// A path, or a name in the abstract namespace, which is written with `@` before it.
fn manager(name: &OsStr) -> io::Result<(UnixDatagram, SocketAddr)> {
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
            let manager = manager(&called).expect("it is there");
            let notify = Notify { manager: Some(Arc::new(manager)), watchdog: None };
            notify.ready();
            let mut word = [0; 64];
            let length = listening.recv(&mut word).expect("a word");
            assert_eq!(&word[..length], b"READY=1");
        }
        std::fs::remove_file(folder).expect("it was there");
        Notify::default().ready();
    }
}
