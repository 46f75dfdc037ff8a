//! Everything that weir listens on, as one table: the flag, the address, and the threads that accept there.
//!
//! | accepted by | sockets | at drain |
//! |---|---|---|
//! | shards | one for each shard | each shard cancels its accepts and closes its sockets |
//! | the thread for handshakes | one | the thread stops waiting on it and closes it |
//! | weir-control (the admin port) | one | open until the process ends; closed earlier only for a successor |
//! | weir-takeover | one | its file is removed when the process ends |
//!
//! With `--takeover`, duplicates of all sockets wait for a successor process, which asks for them by kind and
//! address as written in the flag.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use super::driver::Entrance;
use super::socket_file::SocketFile;
use super::takeover::{self, Offer, Predecessor};
use super::{admin, listen};
use crate::config::Config;

/// The paths that are served to clients over HTTP, for the log line at the start.
const HTTP_PATHS: &str = "/v1/keys, /, /pipeline, /multi-exec";

/// Listening sockets, each with the protocol (RESP or HTTP) that clients speak on it.
pub(super) type Doors = Vec<(OwnedFd, Entrance)>;

/// An address that weir listens on, with the flag that set it and the threads that accept there.
pub(super) struct Listener {
    /// The flag that set the address, named in error messages.
    flag: &'static str,
    /// The name of this kind of listener in the takeover protocol, such as "resp" or "admin".
    kind: &'static str,
    address: Address,
    acceptor: Acceptor,
}

/// An address or path that weir listens on: as written in a flag, or as bound (with the real port where port
/// 0 was asked for).
#[derive(Clone)]
enum Address {
    Tcp(SocketAddr),
    Unix(PathBuf),
}

/// The threads that accept on a listener, and the protocol that clients speak there.
#[derive(Clone, Copy)]
enum Acceptor {
    Shards(Entrance),
    /// The thread for TLS handshakes, which passes each client to a shard after its handshake.
    Handshakes(Entrance),
    Admin,
    Takeover,
}

/// All listening sockets for clients and for the admin port, as opened at the start of the process.
pub(super) struct Opened {
    /// One line for each address that weir listens on, for the log at the start.
    pub lines: Vec<String>,
    /// The port of the first `--listen` address, which `INFO` shows; 0 without one.
    pub port: u16,
    /// The address that the admin port is bound to; none without an admin port.
    pub admin: Option<SocketAddr>,
    pub admin_socket: Option<OwnedFd>,
    /// The file of the Unix socket for clients (`--unix`); none without one.
    pub file: Option<SocketFile>,
    /// The sockets that each shard accepts on, by shard number.
    pub shards: Vec<Doors>,
    /// The listening sockets on which clients connect with TLS (`--tls-listen`, `--tls-http`), each with the
    /// protocol spoken there.
    pub secure: Doors,
    /// Duplicates of the listening sockets, for a successor process that takes over. Empty without
    /// `--takeover`.
    pub offers: Vec<Offer>,
}

/// Returns every listener for clients and administrators that the flags ask for, in the order of the lines
/// about them in the log.
fn table(config: &Config) -> Vec<Listener> {
    let tcp = |flag, kind, acceptor, addresses: &[SocketAddr]| {
        let row = |address: &SocketAddr| Listener { flag, kind, address: Address::Tcp(*address), acceptor };
        addresses.iter().map(row).collect::<Vec<_>>()
    };
    let (tls, tls_http) = config.tls.as_ref().map(|tls| (&tls.listen[..], &tls.http[..])).unwrap_or_default();
    let unix = config.unix.iter().map(|path| Listener {
        flag: "--unix",
        kind: "unix",
        address: Address::Unix(path.clone()),
        acceptor: Acceptor::Shards(Entrance::Resp),
    });
    let mut rows = tcp("--listen", "resp", Acceptor::Shards(Entrance::Resp), &config.listen);
    rows.extend(tcp("--tls-listen", "tls", Acceptor::Handshakes(Entrance::Resp), tls));
    rows.extend(tcp("--tls-http", "tls-http", Acceptor::Handshakes(Entrance::Http), tls_http));
    rows.extend(unix);
    rows.extend(tcp("--http", "http", Acceptor::Shards(Entrance::Http), &config.http));
    rows.extend(tcp("--admin", "admin", Acceptor::Admin, config.admin.as_slice()));
    rows
}

/// Opens all listening sockets for clients and administrators, or takes over those that the previous process
/// (`before`) had open at the same addresses. Each of the `shards` shards gets a socket of its own for every
/// TCP address of clients without TLS, and a duplicate of the one Unix socket. TLS addresses and the admin
/// address have one socket each. The error is a message for the operator.
pub(super) fn open(
    config: &Config,
    shards: usize,
    before: &mut Option<Predecessor>,
) -> Result<Opened, String> {
    let mut opened = Opened {
        lines: Vec::new(),
        port: 0,
        admin: None,
        admin_socket: None,
        file: None,
        shards: std::iter::repeat_with(Vec::new).take(shards).collect(),
        secure: Vec::new(),
        offers: Vec::new(),
    };
    for listener in table(config) {
        let (sockets, bound) = listener.open(before, shards)?;
        if config.takeover.is_some() {
            let offer = listener.offer(&sockets);
            opened.offers.push(offer.map_err(|error| format!("cannot copy a descriptor: {error}"))?);
        }
        if let Address::Unix(path) = &bound {
            opened.file = SocketFile::at(path);
        }
        opened.add(listener.acceptor, sockets, &bound);
    }
    Ok(opened)
}

/// Opens the Unix socket at `path` to which a successor process connects, or takes over that of the previous
/// process (`before`). Returns it with its file (None if that is gone). The error is a message for the operator.
pub(super) fn open_takeover(
    path: &Path,
    before: &mut Option<Predecessor>,
) -> Result<(OwnedFd, Option<SocketFile>), String> {
    let address = Address::Unix(path.to_owned());
    let listener = Listener { flag: "--takeover", kind: "takeover", address, acceptor: Acceptor::Takeover };
    listener.open(before, 1).map(|(mut sockets, _)| (sockets.remove(0), SocketFile::at(path)))
}

impl Listener {
    /// Opens the listener's sockets, at least one, or takes them over from the previous process (`before`).
    /// Returns them with the address that they are bound to. `shards` is the number of shards. The error is a
    /// message for the operator.
    fn open(
        &self,
        before: &mut Option<Predecessor>,
        shards: usize,
    ) -> Result<(Vec<OwnedFd>, Address), String> {
        let (flag, address) = (self.flag, &self.address);
        let taken = before.as_mut().map(|before| before.take(self.kind, &address.to_string()));
        self.open_after(taken.unwrap_or_default(), shards)
            .map_err(|error| format!("{flag} {address}: cannot listen there: {error}"))
    }

    fn open_after(&self, mut taken: Vec<OwnedFd>, shards: usize) -> io::Result<(Vec<OwnedFd>, Address)> {
        let count = if matches!(self.acceptor, Acceptor::Shards(_)) { shards } else { 1 };
        match (&self.address, self.acceptor) {
            (Address::Tcp(address), Acceptor::Admin) => {
                let taken = taken.pop().map(|socket| listen::bound(socket, *address));
                let (socket, bound) = taken.unwrap_or_else(|| listen::alone(*address, admin::BACKLOG))?;
                Ok((vec![socket], Address::Tcp(bound)))
            }
            (Address::Tcp(address), _) => {
                let (sockets, bound) = listen::tcp_after(taken, *address, count)?;
                Ok((sockets, Address::Tcp(bound)))
            }
            (Address::Unix(path), acceptor) => {
                let bind = if matches!(acceptor, Acceptor::Takeover) { takeover::bind } else { listen::unix };
                let socket = taken.pop().map_or_else(|| bind(path), Ok)?;
                Ok((listen::for_each_of(socket, count)?, self.address.clone()))
            }
        }
    }

    /// Duplicates the listener's sockets, for a successor process that may take over. Returns the duplicates
    /// with the kind and address by which the successor asks for them.
    fn offer(&self, sockets: &[OwnedFd]) -> io::Result<Offer> {
        let different = match self.address {
            Address::Tcp(_) => sockets,
            // All of these are duplicates of one socket.
            Address::Unix(_) => &sockets[..1],
        };
        let sockets = different.iter().map(OwnedFd::try_clone).collect::<io::Result<_>>()?;
        Ok(Offer { entrance: self.kind, address: self.address.to_string(), sockets })
    }
}

impl Opened {
    /// Gives a listener's sockets to the threads that accept on them, and adds a line about it for the log.
    /// `bound` is the address that they are bound to.
    fn add(&mut self, acceptor: Acceptor, sockets: Vec<OwnedFd>, bound: &Address) {
        let line = match acceptor {
            Acceptor::Shards(Entrance::Resp) => format!("listening on {bound}"),
            Acceptor::Shards(Entrance::Http) => format!("keys on http://{bound}{HTTP_PATHS}"),
            Acceptor::Handshakes(Entrance::Resp) => format!("TLS on {bound}"),
            Acceptor::Handshakes(Entrance::Http) => format!("keys on https://{bound}{HTTP_PATHS}"),
            Acceptor::Admin | Acceptor::Takeover => format!(
                "metrics, health and quotas on http://{bound}/metrics, /healthz, /readyz, /config/quotas"
            ),
        };
        self.lines.push(line);
        match acceptor {
            Acceptor::Shards(entrance) => {
                if let (Address::Tcp(bound), Entrance::Resp, 0) = (bound, entrance, self.port) {
                    self.port = bound.port();
                }
                // There may be more sockets than shards, after a takeover from a process with more shards.
                let places = (0..self.shards.len()).cycle();
                let placed = sockets.into_iter().zip(places);
                placed.for_each(|(socket, at)| self.shards[at].push((socket, entrance)));
            }
            Acceptor::Handshakes(entrance) => {
                self.secure.extend(sockets.into_iter().map(|socket| (socket, entrance)));
            }
            Acceptor::Admin | Acceptor::Takeover => {
                self.admin = if let Address::Tcp(bound) = bound { Some(*bound) } else { None };
                self.admin_socket = sockets.into_iter().next();
            }
        }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => write!(f, "{address}"),
            Self::Unix(path) => write!(f, "{}", path.display()),
        }
    }
}
