//! The whole process, put together: sockets, mesh, shards, storage, control; and taken apart again.

use std::cell::RefCell;
use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::time::Duration;

use crossbeam_channel::Receiver;
use glommio::ExecutorJoinHandle;

use super::clock::Clock;
use super::connect::{Route, Routes};
use super::control_thread::{self, Control, ControlSettings};
use super::driver::Driver;
use super::mesh::{self, Mesh};
use super::messages::{Mailbox, Signal, ToControl, ToShard};
use super::ring::Ring;
use super::shard_thread::{Door, ShardThread};
use super::storage_thread::{self, ToStorage};
use super::{admin, executor, listen, log};
use crate::config::Quotas;
use crate::control::ProcessFacts;
use crate::routing::Topology;
use crate::shard::{BackendSettings, Shard, ShardSettings};
use crate::storage::{Engine, EngineLimits, Service};
use crate::values::ShardId;

/// Descriptors beside those of clients: rings, listeners, links, executors.
const FILES_SPARE: u64 = 1024;

/// A store to forward to.
#[derive(Clone, Debug)]
pub enum BackendAddress {
    /// `host:port`, resolved at the start.
    Tcp(SocketAddr),
    /// A socket file.
    Unix(PathBuf),
    /// The engine in this process.
    Embedded {
        /// Bytes of keys and values at which writes are refused.
        bytes_max: u64,
    },
}

/// What a server is made of.
#[derive(Clone, Debug)]
pub struct Setup {
    /// TCP addresses to listen on; port 0 leaves the choice to the system.
    pub listen: Vec<SocketAddr>,
    /// Socket files to listen on.
    pub unix: Vec<PathBuf>,
    /// Where metrics and health are served, if anywhere.
    pub admin: Option<SocketAddr>,
    /// The CPU of each shard, or `None` for one that runs anywhere.
    pub cpus: Vec<Option<usize>>,
    /// How long a shard without work keeps looking for some.
    pub busy_poll: Duration,
    /// The stores, and how shards see them, in the same order.
    pub backends: Vec<(BackendAddress, BackendSettings)>,
    /// Read again when told to.
    pub quotas_file: Option<PathBuf>,
    /// Read from there already.
    pub quotas: Quotas,
    /// Clients over all shards.
    pub clients_max: usize,
    /// How long clients may take to get their last replies.
    pub drain_timeout: Duration,
    /// What is the same for all shards; id and topology are filled in.
    pub shard: ShardTemplate,
}

/// The settings that all shards share.
#[derive(Clone, Debug)]
pub struct ShardTemplate {
    /// See [`ShardSettings`].
    pub links_per_backend: u16,
    /// See [`ShardSettings`].
    pub request_bytes_max: usize,
    /// See [`ShardSettings`].
    pub reply_bytes_max: usize,
    /// See [`ShardSettings`].
    pub output_bytes_max: usize,
    /// See [`ShardSettings`].
    pub idle_timeout: Option<Duration>,
    /// See [`ShardSettings`].
    pub send_timeout: Duration,
    /// See [`ShardSettings`].
    pub reply_timeout: Duration,
    /// See [`ShardSettings`].
    pub connect_timeout: Duration,
}

type Executor = ExecutorJoinHandle<io::Result<()>>;
type Letters<Message> = (Receiver<Message>, OwnedFd);

/// Runs weir until it is told to stop.
pub fn run(setup: Setup) -> Result<(), String> {
    let files = setup.clients_max as u64 + FILES_SPARE;
    for warning in executor::raise_limits(files)? {
        log::line(&warning);
    }
    let (_, _, probe) = Mailbox::<()>::new().map_err(|error| executor::ring_advice(&error))?;
    Ring::new(probe).map_err(|error| executor::ring_advice(&error))?;
    let clock = Clock::start();
    let shards = setup.cpus.len();
    let (listeners, report) = open_listeners(&setup, shards)?;

    let (control, control_letters, control_bell) = mailbox::<ToControl>()?;
    let mut executors: Vec<Executor> = Vec::new();
    let (routes, storage) = start_storage(&setup, clock, &mut executors)?;
    let mut mailboxes = Vec::new();
    let mut ends = Vec::new();
    for _ in 0..shards {
        let (mailbox, letters, bell) = mailbox::<ToShard>()?;
        mailboxes.push(mailbox);
        ends.push((letters, bell));
    }
    let door = Door { open: Arc::new(AtomicUsize::new(0)), clients_max: setup.clients_max };
    let quotas = Arc::new(setup.quotas.clone());
    let backends: Arc<[BackendSettings]> =
        setup.backends.iter().map(|(_, settings)| settings.clone()).collect();
    for ((index, (mesh, ends)), listeners) in
        mesh::weave(shards).into_iter().zip(ends).enumerate().zip(listeners)
    {
        let parts = Parts {
            settings: shard_settings(&setup, index, &backends),
            quotas: Arc::clone(&quotas),
            listeners,
            mesh,
            routes: routes.clone(),
            control: control.clone(),
            door: door.clone(),
            clock,
            busy_poll: setup.busy_poll,
        };
        executors.push(start_shard(setup.cpus[index], parts, ends)?);
    }

    let facts = ProcessFacts {
        pid: std::process::id(),
        port: report.port,
        clients_max: setup.clients_max,
        backends: backends.iter().map(|backend| backend.name.clone()).collect(),
        tenants: quotas.len(),
        quotas_loaded: u64::from(setup.quotas_file.is_some()),
        ..ProcessFacts::default()
    };
    let settings = ControlSettings {
        shards: mailboxes,
        storage,
        own: control.clone(),
        quotas_file: setup.quotas_file.clone(),
        facts,
        drain_timeout: setup.drain_timeout,
        clock,
    };
    let admin_listener = report.admin;
    executors.push(start_control(settings, control_letters, control_bell, admin_listener)?);
    listen_to_signals(control)?;
    for line in report.lines {
        log::line(&line);
    }
    log::line(&format!("ready: {}", summary(&setup)));
    for executor in executors {
        executor
            .join()
            .map_err(|error| format!("an executor failed: {error}"))?
            .map_err(|error| format!("an executor failed: {error}"))?;
    }
    for path in &setup.unix {
        let _ = std::fs::remove_file(path);
    }
    log::line("stopped");
    Ok(())
}

/// What opening the sockets told.
struct Opened {
    lines: Vec<String>,
    port: u16,
    admin: Option<std::net::TcpListener>,
}

fn open_listeners(setup: &Setup, shards: usize) -> Result<(Vec<Vec<OwnedFd>>, Opened), String> {
    let mut per_shard: Vec<Vec<OwnedFd>> = std::iter::repeat_with(Vec::new).take(shards).collect();
    let mut opened = Opened { lines: Vec::new(), port: 0, admin: None };
    for address in &setup.listen {
        let (sockets, bound) = listen::tcp(*address, shards)
            .map_err(|error| format!("cannot listen on {address} (--listen): {error}"))?;
        per_shard.iter_mut().zip(sockets).for_each(|(sockets, socket)| sockets.push(socket));
        opened.lines.push(format!("listening on {bound}"));
        opened.port = if opened.port == 0 { bound.port() } else { opened.port };
    }
    for path in &setup.unix {
        let sockets = listen::unix(path, shards)
            .map_err(|error| format!("cannot listen on {} (--unix): {error}", path.display()))?;
        per_shard.iter_mut().zip(sockets).for_each(|(sockets, socket)| sockets.push(socket));
        opened.lines.push(format!("listening on {}", path.display()));
    }
    if let Some(address) = setup.admin {
        let listener = std::net::TcpListener::bind(address)
            .map_err(|error| format!("cannot listen on {address} (--admin): {error}"))?;
        let bound = listener.local_addr().unwrap_or(address);
        opened.lines.push(format!("metrics and health on http://{bound}/metrics, /healthz, /readyz"));
        opened.admin = Some(listener);
    }
    Ok((per_shard, opened))
}

fn mailbox<Message>() -> Result<(Mailbox<Message>, Receiver<Message>, OwnedFd), String> {
    Mailbox::new().map_err(|error| format!("cannot make an eventfd: {error}"))
}

/// The routes to all backends; an embedded one is started.
fn start_storage(
    setup: &Setup,
    clock: Clock,
    executors: &mut Vec<Executor>,
) -> Result<(Routes, Option<Mailbox<ToStorage>>), String> {
    let mut embedded = None;
    let mut routes = Vec::new();
    for (address, _) in &setup.backends {
        routes.push(match address {
            BackendAddress::Tcp(address) => Route::Socket((*address).into()),
            BackendAddress::Unix(path) => Route::Socket(
                socket2::SockAddr::unix(path).map_err(|error| format!("{}: {error}", path.display()))?,
            ),
            BackendAddress::Embedded { bytes_max } => {
                let (mailbox, letters, bell) = mailbox::<ToStorage>()?;
                let limits = EngineLimits { bytes_max: *bytes_max };
                let request_bytes_max = setup.shard.request_bytes_max;
                let executor = start_engine(limits, request_bytes_max, Vec::new(), (letters, bell), clock);
                executors.push(executor.map_err(|error| error.to_string())?);
                embedded = Some(mailbox.clone());
                Route::Embedded(mailbox)
            }
        });
    }
    Ok((Routes(routes.into()), embedded))
}

fn start_engine(
    limits: EngineLimits,
    request_bytes_max: usize,
    listeners: Vec<OwnedFd>,
    (letters, bell): Letters<ToStorage>,
    clock: Clock,
) -> io::Result<Executor> {
    let seed = random_seed();
    executor::spawn("weir-storage", None, move || async move {
        let service = Service::new(Engine::new(limits, seed), request_bytes_max);
        let driver = Driver::new(Ring::new(bell)?, listeners)?;
        storage_thread::serve(service, driver, letters, clock).await
    })
}

/// What one shard's thread starts from.
struct Parts {
    settings: ShardSettings,
    quotas: Arc<Quotas>,
    listeners: Vec<OwnedFd>,
    mesh: Mesh,
    routes: Routes,
    control: Mailbox<ToControl>,
    door: Door,
    clock: Clock,
    busy_poll: Duration,
}

fn start_shard(
    cpu: Option<usize>,
    parts: Parts,
    (letters, bell): Letters<ToShard>,
) -> Result<Executor, String> {
    let name = format!("weir-{}", parts.settings.id.0);
    let task = move || async move {
        let Parts { settings, quotas, listeners, mesh, routes, control, door, clock, busy_poll } = parts;
        let driver = Driver::new(Ring::new(bell)?, listeners)?;
        let shard = Shard::new(settings, quotas);
        ShardThread { shard, driver, mesh, connector: routes, letters, control, door, clock, busy_poll }
            .run()
            .await
    };
    executor::spawn(&name, cpu, task).map_err(|error| error.to_string())
}

fn shard_settings(setup: &Setup, index: usize, backends: &Arc<[BackendSettings]>) -> ShardSettings {
    let template = &setup.shard;
    ShardSettings {
        id: ShardId(index as u16),
        topology: Topology::new(setup.cpus.len() as u16, backends.len() as u16),
        backends: Arc::clone(backends),
        links_per_backend: template.links_per_backend,
        request_bytes_max: template.request_bytes_max,
        reply_bytes_max: template.reply_bytes_max,
        output_bytes_max: template.output_bytes_max,
        idle_timeout: template.idle_timeout,
        send_timeout: template.send_timeout,
        reply_timeout: template.reply_timeout,
        connect_timeout: template.connect_timeout,
        seed: random_seed(),
    }
}

fn start_control(
    settings: ControlSettings,
    letters: Receiver<ToControl>,
    bell: OwnedFd,
    admin_listener: Option<std::net::TcpListener>,
) -> Result<Executor, String> {
    let task = move || async move {
        let control = Rc::new(RefCell::new(Control::new(settings)));
        if let Some(listener) = admin_listener {
            admin::serve(Rc::clone(&control), listener)?;
        }
        control_thread::run(control, letters, bell).await
    };
    executor::spawn("weir-control", None, task).map_err(|error| error.to_string())
}

fn listen_to_signals(control: Mailbox<ToControl>) -> Result<(), String> {
    use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
    let mut signals = signal_hook::iterator::Signals::new([SIGHUP, SIGINT, SIGTERM])
        .map_err(|error| format!("cannot listen to signals: {error}"))?;
    std::thread::Builder::new()
        .name("weir-signals".to_owned())
        .spawn(move || {
            for signal in signals.forever() {
                let meaning = if signal == SIGHUP { Signal::Reload } else { Signal::Terminate };
                control.post(ToControl::Signal(meaning));
            }
        })
        .map(|_| ())
        .map_err(|error| format!("cannot start a thread: {error}"))
}

fn summary(setup: &Setup) -> String {
    let cpus: Vec<String> =
        setup.cpus.iter().map(|cpu| cpu.map_or("any".to_owned(), |cpu| cpu.to_string())).collect();
    let backends: Vec<&str> = setup.backends.iter().map(|(_, backend)| backend.name.as_str()).collect();
    format!(
        "{} shards on CPUs {}; storage {}; at most {} clients, requests to {} bytes",
        setup.cpus.len(),
        cpus.join(","),
        backends.join(","),
        setup.clients_max,
        setup.shard.request_bytes_max
    )
}

/// Unguessable, so that nobody outside can choose keys that collide.
fn random_seed() -> u64 {
    use std::hash::{BuildHasher as _, RandomState};
    RandomState::new().hash_one(std::process::id())
}

/// Runs an engine with listeners of its own: the binary `weir-storage`.
pub fn run_storage(listen_on: SocketAddr, bytes_max: u64, request_bytes_max: usize) -> Result<(), String> {
    for warning in executor::raise_limits(FILES_SPARE * 16)? {
        log::line(&warning);
    }
    let (mailbox, letters, bell) = mailbox::<ToStorage>()?;
    let (sockets, bound) = listen::tcp(listen_on, 1)
        .map_err(|error| format!("cannot listen on {listen_on} (--listen): {error}"))?;
    let limits = EngineLimits { bytes_max };
    let executor = start_engine(limits, request_bytes_max, sockets, (letters, bell), Clock::start())
        .map_err(|error| executor::ring_advice(&error))?;
    use signal_hook::consts::{SIGINT, SIGTERM};
    let mut signals = signal_hook::iterator::Signals::new([SIGINT, SIGTERM])
        .map_err(|error| format!("cannot listen to signals: {error}"))?;
    std::thread::Builder::new()
        .name("weir-signals".to_owned())
        .spawn(move || {
            if signals.forever().next().is_some() {
                mailbox.post(ToStorage::Stop);
            }
        })
        .map_err(|error| format!("cannot start a thread: {error}"))?;
    log::line(&format!("storage listening on {bound}"));
    let ended = executor.join().map_err(|error| format!("the executor failed: {error}"))?;
    ended.map_err(|error| executor::ring_advice(&error))
}
