//! Starts the whole process (sockets, mesh, shards, storage, control executor) and ends it again.

use std::cell::RefCell;
use std::hash::{BuildHasher as _, RandomState};
use std::io;
use std::net::SocketAddr;
use std::num::NonZero;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR2};

use super::clock::Clock;
use super::connect::{Place, Route, Routes, Spot, addresses_of};
use super::control_thread::{self, Control, ControlSettings, TlsMailboxes};
use super::driver::{Driver, Entrance};
use super::executor::{Executors, Lifeline, Tasks};
use super::fleet_thread::FleetThread;
use super::listeners::{self, Doors, Opened};
use super::mesh::{self, Mesh};
use super::messages::{Mailbox, Signal, Takeover, ToControl, ToFleet, ToReplicas, ToShard, ToTakeover};
use super::names_thread::NamesThread;
use super::notify::Notify;
use super::quotas_thread::{QuotaFile, QuotasThread};
use super::replicas_thread::ReplicasThread;
use super::ring::Ring;
use super::shard_thread::{Door, ShardThread};
use super::storage_thread::{self, ToStorage};
use super::store_info_thread::StoreInfoThread;
use super::takeover::{self, Incumbent, Manager, Predecessor, Succession};
use super::tls::{CertificatesThread, HandshakesThread, Rates, StoreTls, Tally, Terms, TlsFiles, Watched};
use super::topology_thread::{DOUBTS_MAX, Listeners, TopologyThread};
use super::versions_thread::VersionsThread;
use super::watch::FileWatch;
use super::{executor, listen, log};
use crate::config::{
    AdminToken, Config, Credentials, FleetTerms, Layer, LimiterKind, Quotas, Size, Storage, StoreTlsSettings,
    TlsSettings, TokenSource,
};
use crate::control::pool::Rhythm;
use crate::control::quota_page::Guard;
use crate::control::reconciliation::Reconciliation;
use crate::control::{self, FleetQuotas, FleetSettings, ProcessFacts, ReplicaFacts, Versions};
use crate::policy::fixed_window::FixedWindows;
use crate::policy::fleet::HostId;
use crate::policy::hot_keys::HotSettings as Detection;
use crate::policy::queue::{Held, Patience};
use crate::policy::seats::Seats;
use crate::policy::window::Bounds;
use crate::protocol::http::Rules;
use crate::routing::Topology;
use crate::routing::cluster::Map;
use crate::shard::{
    AdmissionSettings, BackendSettings, ClientLimits, Doubt, HotSettings, Limiter, Mode, MonitorBoard,
    OverloadSettings, Shard, ShardSettings,
};
use crate::store::{Engine, EngineLimits, Service, StoreService};
use crate::values::allowance::lease_of;
use crate::values::limits::{CLUSTER_NODES_MAX, SHARED_PATTERNS_MAX, SLOTS};
use crate::values::{Random, ServerAddress, ShardId, StoreVersion};

/// The number of file descriptors that a store (the binary `weir-storage`) needs for its clients and itself.
const STORAGE_FILES: u64 = 16 * 1024;

/// The longest time that the process, at its end, waits for the thread that communicates with a successor
/// process, which may be waiting for a process that does not respond. After that the socket files are left as
/// they are.
const SUCCESSION_PATIENCE: Duration = Duration::from_secs(1);

/// The backends in order of backend number, each with the way to connect to it and its settings (name and
/// credentials).
type Backends = Vec<(Route, BackendSettings)>;

type Letters<Message> = (Receiver<Message>, OwnedFd);

/// Checks whether weir would start with this configuration, as far as that can be found out without starting it,
/// and prints a summary with any warnings. The error is a message for the operator.
pub fn check(config: &Config) -> Result<(), String> {
    let cpus = placement(config)?;
    let quotas = load_quotas(config)?;
    let token = load_token(config)?;
    check_places(config, cpus.len())?;
    resolve(config)?;
    Certificates::load(config, &Arc::default(), Clock::start())?;
    println!("weir: flags are valid; {}", tenants_line(config, &quotas));
    if let Some(beyond) = quotas.beyond(config.quota_bounds()) {
        println!("weir: quotas: {beyond}");
    }
    if let Some(beside) = config.fleet.as_ref().and_then(|fleet| fleet.beside(&config.storage)) {
        println!("weir: fleet: {beside}");
    }
    if let Some(warning) = exposure(config.admin, token) {
        println!("weir: {warning}");
    }
    Ok(())
}

/// Runs the whole proxy until a signal ends it or another process has taken over. The error is a message for
/// the operator.
pub fn run(config: &Config) -> Result<(), String> {
    log::end_at_panic();
    let cpus = placement(config)?;
    check_places(config, cpus.len())?;
    let mut config = config.clone();
    if let Some(warning) = config.fit_files(executor::raise_limits_fully()?, cpus.len()) {
        log::line(&warning);
    }
    let config = &config;
    let clock = Clock::start();
    // The watch begins before the file is read, so that no change is missed between the two.
    let quota_file = config
        .quotas
        .as_ref()
        .map(|path| QuotaFile { path: path.clone(), watch: FileWatch::new(path, clock) });
    let quotas = Arc::new(load_quotas(config)?);
    let token = load_token(config)?;
    let tally = Arc::<Tally>::default();
    let certificates = Certificates::load(config, &tally, clock)?;
    let store_tls = certificates.store_tls();
    // The fleet's store has a TLS setting of its own, independent of `--storage`.
    let storage_tls = store_tls.clone().filter(|_| config.storage.is_secure());
    probe_ring()?;
    let find = |path| Predecessor::find(path, config.fleet.is_some());
    let mut predecessor = config.takeover.as_deref().map(find).transpose()?.flatten();
    let environment = Manager::from_environment(predecessor.as_ref().map(|before| &before.manager));
    let manager = Notify::of(&environment)?;
    let mut opened = listeners::open(config, cpus.len(), &mut predecessor)?;

    let (control, control_letters, control_bell) =
        Mailbox::for_executor().map_err(|error| format!("cannot make an eventfd: {error}"))?;
    let mut executors = Executors::new();
    let (backends, storage) = start_storage(config, clock, &mut executors)?;
    let topology = topology_thread(config, &backends, storage_tls.clone(), clock);
    // Nodes of a cluster get their addresses once the first map is found.
    let (topology, slots) = topology
        .map(|mut topology| (topology.find_first(), topology))
        .map_or_else(|| (None, None), |(slots, topology)| (Some(topology), Some(slots)));
    let mut versions = ask_versions(&backends, storage_tls.clone(), clock);
    let store_version = versions.ask_first();
    let store_info = ask_for_info(&backends, storage_tls.clone(), clock);
    let (routes, backends): (Vec<Route>, Vec<BackendSettings>) = backends.into_iter().unzip();
    let routes = Routes { routes: routes.into(), tls: storage_tls.clone() };
    let backends = Arc::<[BackendSettings]>::from(backends);
    let door = Door::new(config.clients_max, config.clients_bytes_max);
    let origins = config.http_origins.iter().map(|origin| origin.as_str().into()).collect();
    let clients = ClientLimits {
        login_timeout: config.login_timeout,
        bytes_max: config.clients_bytes_max,
        seats: Seats::new(config.tenant_clients_max as u32),
        monitors: Arc::new(MonitorBoard::new(config.monitors)),
        subscriptions: Arc::default(),
        filters: Arc::default(),
        scripts: Arc::default(),
        publish_wait: config.publish_wait,
        shared_channels_max: [config.shared_channels, SHARED_PATTERNS_MAX.min(config.shared_channels)]
            .map(|most| most.div_ceil(cpus.len())),
        subscriber_bytes_max: config.subscriber_bytes_max,
        subscriber_slow_bytes: config.subscriber_slow_bytes,
        subscriber_slow_time: config.subscriber_slow_time,
        web: Arc::new(Rules { origins, hosts: config.http_hosts.clone() }),
    };
    let admission = admission_settings(config);
    let overload = overload_settings(config, cpus.len(), backends.len());
    let hot = hot_settings(config, backends.len());
    let (doubts, heard_doubts) = crossbeam_channel::bounded(DOUBTS_MAX);
    // Signal handlers come before clients: an early SIGTERM would end weir with requests under way.
    let told_to_end = listen_to_signals(control.clone(), config.takeover.is_some())?;
    let mut mailboxes = Vec::new();
    let doors = std::mem::take(&mut opened.shards);
    for ((index, mesh), listeners) in mesh::weave(cpus.len()).into_iter().enumerate().zip(doors) {
        let (mailbox, letters, bell) = mailbox::<ToShard>()?;
        mailboxes.push(mailbox);
        let parts = Parts {
            settings: shard_settings(
                config,
                (index, cpus.len()),
                &backends,
                &admission,
                &clients,
                (overload.clone(), hot.clone()),
            ),
            quotas: Arc::clone(&quotas),
            listeners,
            listens: predecessor.is_none(),
            mesh,
            routes: routes.clone(),
            control: control.clone(),
            door: door.clone(),
            clock,
            busy_poll: config.busy_poll,
            tally: Some(Arc::clone(&tally)),
            store_version,
            cluster: slots.clone().map(|slots| (slots, doubts.clone())),
        };
        start_shard(cpus[index], parts, (letters, bell), &mut executors)?;
    }

    let shards = mailboxes.clone();
    let owns_files = Arc::new(AtomicBool::new(predecessor.is_none()));
    let takeover = incumbent(
        config,
        &mut opened,
        &mut predecessor,
        (&shards, &control),
        (environment, manager.clone()),
        (&owns_files, clock),
    )?;
    let fleet_tls = store_tls.as_ref().map(StoreTls::by_host);
    let fleet = join_fleet(config, &quotas, admission.secret, (fleet_tls, control.clone()), clock)?;
    let (to_replicas, replicas) = replicas_thread(
        config,
        (mailboxes.clone(), control.clone()),
        (slots.as_ref(), quotas.have_stale_reads()),
        storage_tls,
        clock,
    )
    .unzip();
    let facts = ProcessFacts {
        pid: std::process::id(),
        port: opened.port,
        clients_max: config.clients_max,
        backends: backend_names(&backends, slots.as_deref()),
        run_id: run_id(),
        cluster: slots.clone(),
        replicas: ReplicaFacts {
            is_on: to_replicas.is_some(),
            is_wanted: quotas.have_stale_reads(),
            ..ReplicaFacts::default()
        },
        store_version,
        ..ProcessFacts::default()
    };
    let (quotas_mailbox, quotas_letters, quotas_bell) =
        Mailbox::for_executor().map_err(|error| format!("cannot make an eventfd: {error}"))?;
    let file_name = config.quotas.as_ref().map(|path| path.display().to_string());
    let secure = std::mem::take(&mut opened.secure);
    let secure = (secure, predecessor.is_none());
    let tls = certificates.start(secure, (mailboxes.clone(), control.clone()), &tally, clock)?;
    let (to_store_info, store_info_letters) = crossbeam_channel::unbounded();
    let settings = ControlSettings {
        shards: mailboxes,
        storage,
        store_info: to_store_info,
        own: control.clone(),
        quotas: quotas_mailbox,
        versions: Versions::new(Arc::clone(&quotas), file_name, clock.now().unix_ms),
        quota_bounds: config.quota_bounds(),
        has_token_file: matches!(config.admin_token, Some(TokenSource::File(_))),
        guard: opened.admin.map(|address| Guard { token: token.clone(), address }),
        facts,
        drain_timeout: config.drain_timeout,
        manager: manager.clone(),
        pools: Reconciliation::new(Rhythm { period: config.reconcile, lease: lease_of(config.reconcile) }),
        fleet,
        replicas: to_replicas,
        takeover: takeover.as_ref().map(|(_, mailbox)| mailbox.clone()),
        tls,
        tally: (config.tls.is_some() || config.store_tls.is_some()).then_some(tally),
        clock,
    };
    // These lines are in the log before the admin port says that weir is ready.
    report_start(config, &opened, &cpus, (&backends, slots.as_deref()), &quotas);
    let admin = opened.admin_socket.take().map(|socket| (socket, config.admin_hosts.clone()));
    let admin = (admin, predecessor.is_none());
    start_control(settings, (control_letters, control_bell), admin, &mut executors)?;
    QuotasThread {
        file: quota_file,
        token: config.admin_token.clone(),
        control: control.clone(),
        letters: quotas_letters,
        bell: quotas_bell,
    }
    .start()
    .map_err(|error| format!("cannot start a thread: {error}"))?;
    drop(doubts);
    names_thread(config, &routes.routes)
        .start(shards.clone(), control.clone())
        .map_err(|error| format!("cannot start a thread: {error}"))?;
    if let Some(topology) = topology {
        let listeners = Listeners { shards, control: control.clone(), doubts: heard_doubts };
        topology.start(listeners).map_err(|error| format!("cannot start a thread: {error}"))?;
    }
    if let (Some(replicas), Storage::Cluster { credentials, .. }) = (replicas, &config.storage) {
        let credentials = credentials.as_ref().map(Credentials::pair);
        replicas.start(credentials.as_ref()).map_err(|error| format!("cannot start a thread: {error}"))?;
    }
    versions.start(control.clone()).map_err(|error| format!("cannot start a thread: {error}"))?;
    store_info
        .start(store_info_letters, control.clone())
        .map_err(|error| format!("cannot start a thread: {error}"))?;
    executors.wait_until_started()?;
    log::line(&format!("version {} is ready", env!("CARGO_PKG_VERSION")));
    let succession = begin_succession(takeover, predecessor, (&told_to_end, &owns_files), &control)?;
    manager.ready();
    if let Some(warning) = exposure(opened.admin, token) {
        log::line(&warning);
    }
    // Control keeps a version of the quotas, so that the last reader of it is never a shard.
    drop(quotas);
    executors.join()?;
    let keeps_files = keeps_files(&owns_files, succession.as_ref());
    if let Some(file) = opened.file.filter(|_| keeps_files) {
        file.remove();
    }
    log::line("stopped");
    Ok(())
}

/// Checks that the kernel lets this process use `io_uring`, before there are any executors. The error is a
/// message for the operator, with advice.
fn probe_ring() -> Result<(), String> {
    let (_, _, bell) = Mailbox::<()>::for_ring().map_err(|error| executor::ring_advice(&error))?;
    Ring::new(bell).map(drop).map_err(|error| executor::ring_advice(&error))
}

/// Checks that the number of connections over which the keys are spread (shards times backends times
/// connections) fits in 16 bits, since a request may be split into one part for each and parts are counted in
/// 16 bits. The error is a message for the operator.
fn check_places(config: &Config, shards: usize) -> Result<(), String> {
    let backends = config.storage.backends_max();
    let places = shards * backends * usize::from(config.backend_connections);
    if places < usize::from(u16::MAX) {
        return Ok(());
    }
    Err(format!(
        "{shards} shards, {backends} stores and --backend-connections {} may make {places} connections: fewer than {} \
         are expected",
        config.backend_connections,
        u16::MAX
    ))
}

fn load_quotas(config: &Config) -> Result<Quotas, String> {
    let Some(path) = config.quotas.as_deref() else { return Ok(Quotas::trusting()) };
    Quotas::load(path).map_err(|problem| format!("--quotas {problem}"))
}

fn load_token(config: &Config) -> Result<Option<AdminToken>, String> {
    let token = config.admin_token.as_ref().map(TokenSource::load).transpose();
    token.map_err(|error| error.to_string())
}

/// Returns the warning for an admin port (at this address, with this token, if any) that other machines can
/// reach and no token protects; `None` if no warning is needed.
fn exposure(admin: Option<SocketAddr>, token: Option<AdminToken>) -> Option<String> {
    let address = admin?;
    (Guard { token, address }).is_open_to_strangers().then(|| {
        format!(
            "the admin port {address} is not on a loopback address: POST /config/quotas is refused without \
             --admin-token or --admin-token-file"
        )
    })
}

/// Returns the CPU that each shard is bound to, one entry per shard; `None` for a shard that the kernel may
/// move. The error is a message for the operator.
fn placement(config: &Config) -> Result<Vec<Option<usize>>, String> {
    let usable = usable_cpus();
    // Unlike the CPUs that threads may run on, this number respects a quota of the cgroup, as containers
    // have.
    let allowed = std::thread::available_parallelism().map_or(usable.len(), NonZero::get);
    config.placement(&usable, allowed).map_err(|error| error.to_string())
}

/// Returns the numbers of the CPUs that this process may use, in ascending order.
fn usable_cpus() -> Vec<usize> {
    let Ok(set) = rustix::thread::sched_getaffinity(None) else { return vec![0] };
    (0..rustix::thread::CpuSet::MAX_CPU).filter(|cpu| set.is_set(*cpu)).collect()
}

/// Logs the addresses that weir listens on, the CPUs that its shards run on (`cpus`, by shard), its storage,
/// and its limits. `slots` is the map of the cluster, if the stores are one.
fn report_start(
    config: &Config,
    opened: &Opened,
    cpus: &[Option<usize>],
    (backends, slots): (&[BackendSettings], Option<&Map>),
    quotas: &Quotas,
) {
    opened.lines.iter().for_each(|line| log::line(line));
    // Either all shards are bound to CPUs or none is.
    let bound: Vec<String> = cpus.iter().flatten().map(ToString::to_string).collect();
    let places =
        if bound.is_empty() { "pinned to no CPU".to_owned() } else { format!("on CPUs {}", bound.join(",")) };
    log::line(&format!("{} shards {places}", cpus.len()));
    let names: Vec<String> =
        backend_names(backends, slots).into_iter().filter(|name| !name.is_empty()).collect();
    let bound = match config.storage {
        Storage::Embedded => format!(", at most {}", Size(config.embedded_bytes_max as u64)),
        Storage::Cluster { .. } => {
            let owned =
                slots.map_or(0, |slots| (0..SLOTS).filter(|slot| slots.owner(*slot).is_some()).count());
            format!(": a cluster with {owned} of {SLOTS} slots owned")
        }
        _ => String::new(),
    };
    log::line(&format!("storage: {}{bound}", names.join(", ")));
    log::line(&tenants_line(config, quotas));
    if let Some(beyond) = quotas.beyond(config.quota_bounds()) {
        log::line(&format!("quotas: {beyond}"));
    }
    if let Some(fleet) = &config.fleet {
        let FleetTerms { store, namespace, users_max } = fleet;
        let users = if *users_max > 0 { "quotas, users' too," } else { "quotas" };
        log::line(&format!(
            "fleet: {users} are shared with all weirs that count as '{namespace}' at {store}"
        ));
        if let Some(beside) = fleet.beside(&config.storage) {
            log::line(&format!("fleet: {beside}"));
        }
    }
    log::line(&format!(
        "limits: {} clients that hold {} together, requests of {}, replies of {}, {} waiting per client",
        config.clients_max,
        Size(config.clients_bytes_max as u64),
        Size(config.request_bytes_max as u64),
        Size(config.reply_bytes_max as u64),
        Size(config.output_bytes_max as u64)
    ));
}

fn tenants_line(config: &Config, quotas: &Quotas) -> String {
    match &config.quotas {
        None => "quotas: none, every client may use weir without a limit (--quotas)".to_owned(),
        Some(path) => format!("quotas: {} tenants from {}", quotas.len(), path.display()),
    }
}

/// Resolves the address of each backend (`None` where the host name has no address now), and makes its
/// settings (name and credentials). Empty for an embedded engine and for a cluster. The error is a message
/// for the operator.
fn resolve(config: &Config) -> Result<Vec<(Option<Spot>, BackendSettings)>, String> {
    match &config.storage {
        // Addresses of a cluster's nodes come from its map.
        Storage::Embedded | Storage::Cluster { .. } => Ok(Vec::new()),
        Storage::Unix(path) => {
            let address = socket2::SockAddr::unix(path)
                .map_err(|error| format!("--storage unix:{}: {error}", path.display()))?;
            Ok(vec![(
                Some(Spot { address, host: String::new() }),
                BackendSettings { name: format!("unix:{}", path.display()), credentials: None },
            )])
        }
        Storage::Servers { servers, credentials, .. } => servers
            .iter()
            .map(|server| {
                let spot = match addresses_of(server) {
                    Ok(found) => Some(Spot::new(found[0], server)),
                    Err(why) => {
                        let unknown = format!("--storage: the server '{server}' cannot be found: {why}");
                        if config.names_interval.is_zero() {
                            return Err(unknown);
                        }
                        // The name service may be away like any server, which is no reason for weir to be
                        // away too.
                        log::line(&format!("{unknown}; weir will look it up again"));
                        None
                    }
                };
                let credentials = credentials.as_ref().map(Credentials::pair);
                Ok((spot, BackendSettings { name: server.to_string(), credentials }))
            })
            .collect(),
    }
}

/// Prepares the thread that waits for a successor process, which takes over from this one, and its mailbox.
/// `None` without `--takeover`. `before` is the process that this one takes over from, if there is one; `shards`
/// and `control` are the mailboxes that are told of a takeover, `manager` has the settings of the service
/// manager and `notify` notifies it, and `owns_files` is true while the socket files are this process's to
/// remove. The error is a message for the operator.
fn incumbent(
    config: &Config,
    opened: &mut Opened,
    before: &mut Option<Predecessor>,
    (shards, control): (&[Mailbox<ToShard>], &Mailbox<ToControl>),
    (manager, notify): (Manager, Notify),
    (owns_files, clock): (&Arc<AtomicBool>, Clock),
) -> Result<Option<(Incumbent, Mailbox<ToTakeover>)>, String> {
    let Some(path) = config.takeover.clone() else { return Ok(None) };
    let (listener, file) = listeners::open_takeover(&path, before)?;
    let (mailbox, letters, bell) =
        Mailbox::for_executor().map_err(|error| format!("cannot make an eventfd: {error}"))?;
    let incumbent = Incumbent {
        path,
        listener,
        file,
        offers: std::mem::take(&mut opened.offers),
        manager,
        control: control.clone(),
        shards: shards.to_vec(),
        letters,
        bell,
        owns_files: Arc::clone(owns_files),
        notify,
        clock,
    };
    Ok(Some((incumbent, mailbox)))
}

/// Informs the previous process (`before`), if there is one, that this one is ready, so that it hands its
/// clients over. Then lets the takeover thread begin, which receives these clients and waits for a later
/// process to take over from this one. Neither is done if there is a previous process and a signal has told
/// this one to end (`told_to_end`): the previous process goes on. `owns_files` becomes true once this process
/// has to remove the socket files. Returns a receiver that is disconnected once the thread has ended; `None`
/// without `--takeover`. The error is a message for the operator: the previous process goes on, and this one
/// must not serve.
fn begin_succession(
    takeover: Option<(Incumbent, Mailbox<ToTakeover>)>,
    mut before: Option<Predecessor>,
    (told_to_end, owns_files): (&AtomicBool, &AtomicBool),
    control: &Mailbox<ToControl>,
) -> Result<Option<Receiver<()>>, String> {
    let Some((incumbent, _)) = takeover else { return Ok(None) };
    // The thread exists before the previous process gives anything up, as there may be too many threads.
    let (begin, ended) = incumbent.start().map_err(|error| format!("cannot start a thread: {error}"))?;
    if let Some(predecessor) = &mut before {
        let (pid, version) = (predecessor.pid(), predecessor.version.clone());
        let line = match predecessor.tell_ready(told_to_end)? {
            Succession::Begun => {
                format!("from process {pid} (version {version}): its sockets are here, its clients follow")
            }
            Succession::Orphaned(error) => {
                format!("from process {pid}, which ended meanwhile: its sockets are here ({error})")
            }
            Succession::Renounced => {
                log::line(&format!("told to stop before the takeover: process {pid} goes on"));
                return Ok(Some(ended));
            }
        };
        control.post(ToControl::Takeover(Takeover::Line(line)));
    }
    owns_files.store(true, Ordering::Release);
    // The thread waits for this message, so it cannot fail.
    let _ = begin.send(before);
    Ok(Some(ended))
}

/// True if this process, and not a successor, has to remove the socket files at its end. Waits until the thread
/// for takeovers has decided that and ended, which disconnects `succession`. False also if the thread is still
/// busy after a second (`SUCCESSION_PATIENCE`).
fn keeps_files(owns_files: &AtomicBool, succession: Option<&Receiver<()>>) -> bool {
    let is_decided = || {
        succession.is_none_or(|ended| {
            ended.recv_timeout(SUCCESSION_PATIENCE) == Err(RecvTimeoutError::Disconnected)
        })
    };
    owns_files.load(Ordering::Acquire) && is_decided() && owns_files.load(Ordering::Acquire)
}

fn mailbox<Message>() -> Result<(Mailbox<Message>, Receiver<Message>, OwnedFd), String> {
    Mailbox::for_ring().map_err(|error| format!("cannot make a socket pair: {error}"))
}

/// Returns the ways to connect to all backends. Starts the embedded engine if that is the storage, adds its
/// executor to `executors`, and returns its mailbox. The mailbox is `None` with any other storage. The error is
/// a message for the operator.
fn start_storage(
    config: &Config,
    clock: Clock,
    executors: &mut Executors,
) -> Result<(Backends, Option<Mailbox<ToStorage>>), String> {
    if let Storage::Cluster { credentials, .. } = &config.storage {
        let credentials = credentials.as_ref().map(Credentials::pair);
        let node = |number| {
            let settings =
                BackendSettings { name: format!("node {number}"), credentials: credentials.clone() };
            (Route::Server(Place::default()), settings)
        };
        return Ok(((0..CLUSTER_NODES_MAX).map(node).collect(), None));
    }
    if config.storage != Storage::Embedded {
        let servers = resolve(config)?;
        let route = |(spot, named)| (Route::Server(Arc::new(Mutex::new(spot))), named);
        return Ok((servers.into_iter().map(route).collect(), None));
    }
    let (mailbox, letters, bell) = mailbox::<ToStorage>()?;
    let memory = EngineLimits::with_memory(config.embedded_bytes_max as u64);
    let limits = EngineLimits { reply_bytes_max: config.reply_bytes_max, ..memory };
    let request_bytes_max = config.request_bytes_max;
    let service = move || {
        let engine = Engine::new(limits, random_seed()).with_clock(move || clock.now().monotonic);
        Service::new(engine, request_bytes_max)
    };
    start_engine(service, Vec::new(), (letters, bell), clock, executors)?;
    let named = BackendSettings { name: "embedded".to_owned(), credentials: None };
    Ok((vec![(Route::Embedded(mailbox.clone()), named)], Some(mailbox)))
}

fn start_engine<S: StoreService + 'static>(
    service: impl FnOnce() -> S + Send + 'static,
    listeners: Vec<OwnedFd>,
    (letters, bell): Letters<ToStorage>,
    clock: Clock,
    executors: &mut Executors,
) -> Result<(), String> {
    let listeners = listeners.into_iter().map(|listener| (listener, Entrance::Resp)).collect();
    executors.spawn("weir-storage", (None, Tasks::One), move |lifeline: Lifeline| async move {
        let service = service();
        let mut driver = Driver::new(Ring::new(bell)?, listeners);
        driver.listen();
        lifeline.note_started();
        storage_thread::serve(service, driver, letters, clock).await
    })
}

/// The settings, sockets and channels that a shard's thread starts with.
struct Parts {
    settings: ShardSettings,
    quotas: Arc<Quotas>,
    listeners: Doors,
    /// True if the shard accepts clients from the start; false if it waits for `ToShard::Listen`, until the
    /// process that this one takes over from has stopped accepting.
    listens: bool,
    mesh: Mesh,
    routes: Routes,
    control: Mailbox<ToControl>,
    door: Door,
    clock: Clock,
    busy_poll: Duration,
    tally: Option<Arc<Tally>>,
    store_version: StoreVersion,
    /// The first map of the cluster, and the channel on which a shard reports that its map may be wrong; none
    /// without a cluster.
    cluster: Option<(Arc<Map>, Sender<Doubt>)>,
}

fn start_shard(
    cpu: Option<usize>,
    parts: Parts,
    (letters, bell): Letters<ToShard>,
    executors: &mut Executors,
) -> Result<(), String> {
    let name = format!("weir-{}", parts.settings.id.0);
    let task = move |lifeline: Lifeline| async move {
        let Parts {
            settings,
            quotas,
            listeners,
            listens,
            mesh,
            routes,
            control,
            door,
            clock,
            busy_poll,
            tally,
            store_version,
            cluster,
        } = parts;
        let mut driver = Driver::new(Ring::new(bell)?, listeners);
        if listens {
            driver.listen();
        }
        let mut shard = Shard::new(settings, quotas);
        shard.handle_store_version(store_version);
        let doubts = cluster.map(|(slots, doubts)| {
            shard.handle_slots(slots, clock.now());
            doubts
        });
        let thread = ShardThread {
            shard,
            driver,
            mesh,
            connector: routes,
            letters,
            control,
            doubts,
            door,
            clock,
            busy_poll,
            tally,
            lifeline,
        };
        // Boxed, because spawning would copy a task of this size.
        Box::pin(thread.run()).await
    };
    executors.spawn(&name, (cpu, Tasks::One), task)
}

fn shard_settings(
    config: &Config,
    (index, shards): (usize, usize),
    backends: &Arc<[BackendSettings]>,
    admission: &AdmissionSettings,
    clients: &ClientLimits,
    (overload, hot): (OverloadSettings, HotSettings),
) -> ShardSettings {
    ShardSettings {
        id: ShardId(index as u16),
        topology: Topology::new(shards as u16, backends.len() as u16),
        backends: Arc::clone(backends),
        links_per_backend: config.backend_connections,
        heavy_links: config.heavy_connections,
        private_links_max: config.private_links.div_ceil(shards),
        databases: config.databases_served(),
        heavy_from: config.heavy_from,
        request_bytes_max: config.request_bytes_max,
        reply_bytes_max: config.reply_bytes_max,
        output_bytes_max: config.output_bytes_max,
        idle_timeout: config.idle_timeout,
        send_timeout: config.send_timeout,
        reply_timeout: config.reply_timeout,
        connect_timeout: config.connect_timeout,
        seed: random_seed(),
        admission: admission.clone(),
        clients: clients.clone(),
        overload,
        hot,
        replicas: before_a_cluster(config, Layer::Replicas),
        retries: before_a_cluster(config, Layer::Retries),
    }
}

/// Returns the mode in which a layer of the traffic management runs: off (`--disable`), deciding without effect
/// (`--shadow`), or on.
fn mode_of(config: &Config, layer: Layer) -> Mode {
    if config.disabled.contains(&layer) {
        Mode::Off
    } else if config.shadowed.contains(&layer) {
        Mode::Shadow
    } else {
        Mode::On
    }
}

/// Returns the mode (off, deciding without effect, or on) of a layer of the traffic management that exists only
/// in front of a cluster; off with other storage.
fn before_a_cluster(config: &Config, layer: Layer) -> Mode {
    match config.storage {
        Storage::Cluster { .. } => mode_of(config, layer),
        _ => Mode::Off,
    }
}

fn overload_settings(config: &Config, shards: usize, backends: usize) -> OverloadSettings {
    let limits = config.overload;
    OverloadSettings {
        window: mode_of(config, Layer::Window),
        queue: mode_of(config, Layer::Queue),
        shed: mode_of(config, Layer::Shed),
        breaker: mode_of(config, Layer::Breaker),
        window_bounds: Bounds { least: limits.window_least, most: limits.window_most },
        heavy_yields: mode_of(config, Layer::Yields) == Mode::On,
        queue_limit: Held { requests: limits.queue_requests, bytes: limits.queue_bytes },
        queue_patience: Patience { target: limits.queue_target, interval: limits.queue_interval },
        shed_levels: limits.shed_levels,
        ..OverloadSettings::new(shards as u16, backends as u16)
    }
}

fn hot_settings(config: &Config, backends: usize) -> HotSettings {
    let limits = config.hot;
    let settings = HotSettings::new(backends as u16);
    HotSettings {
        mode: mode_of(config, Layer::Hot),
        detection: Detection {
            least_per_second: limits.rate,
            least_share_per_mille: limits.share_per_mille,
            ..settings.detection
        },
        ttl: limits.ttl,
        tracked_ttl: (!config.disabled.contains(&Layer::Tracking)).then_some(limits.tracked_ttl),
        entries_max: limits.entries,
        bytes_max: limits.bytes,
        copied_from: [limits.copy_rate, limits.copy_rate / 10],
        write_rate: limits.write_rate,
        scripts: limits.scripts,
        seed: random_seed(),
        ..settings
    }
}

fn admission_settings(config: &Config) -> AdmissionSettings {
    let limiter = match config.limiter {
        _ if config.disabled.contains(&Layer::Rate) => Limiter::Off,
        LimiterKind::Static => Limiter::Static(FixedWindows::default()),
        LimiterKind::Buckets if config.shadowed.contains(&Layer::Rate) => Limiter::Shadow,
        LimiterKind::Buckets => Limiter::Buckets,
    };
    let shared = config.fleet.as_ref().and_then(FleetTerms::secret);
    let secret = shared.unwrap_or_else(|| [random_seed(), random_seed()]);
    AdmissionSettings {
        limiter,
        weights: config.weights,
        period: config.reconcile,
        scan_count_max: config.scan_count_max,
        secret,
    }
}

fn start_control(
    settings: ControlSettings,
    (letters, bell): Letters<ToControl>,
    (admin, listens): (Option<(OwnedFd, Vec<String>)>, bool),
    executors: &mut Executors,
) -> Result<(), String> {
    let task = move |lifeline: Lifeline| async move {
        let control = Rc::new(RefCell::new(Control::new(settings)));
        if let Some((socket, hosts)) = admin {
            control.borrow_mut().note_admin(socket, hosts);
        }
        if listens {
            control_thread::open_admin(&control);
        }
        control_thread::keep_to_fleet(&control);
        control_thread::keep_telling(&control);
        control_thread::keep_history(&control);
        lifeline.note_started();
        control_thread::run(control, letters, bell).await
    };
    executors.spawn("weir-control", (None, Tasks::Several), task)
}

/// Starts the thread that communicates with the fleet's store (Redis server with the counters of shared quotas),
/// and makes the state of the shared quotas; returns that state and the channel to the thread. `None` without
/// `--fleet`. `secret` is the key with which names of users are hashed. The error is a message for the operator.
fn join_fleet(
    config: &Config,
    quotas: &Quotas,
    secret: [u64; 2],
    (tls, control): (Option<StoreTls>, Mailbox<ToControl>),
    clock: Clock,
) -> Result<Option<(FleetQuotas, Sender<ToFleet>)>, String> {
    let Some(FleetTerms { store, namespace, users_max }) = &config.fleet else { return Ok(None) };
    let settings = FleetSettings {
        store: store.to_string(),
        namespace: namespace.clone(),
        host: HostId(random_seed()),
        secret,
        users_max: *users_max,
    };
    // The channel holds one exchange and none behind it: an exchange that waits for long is of no use.
    let (sender, questions) = crossbeam_channel::bounded(1);
    let tls = tls.filter(|_| store.secure);
    FleetThread { store: store.clone(), tls, control, questions, clock }
        .start()
        .map_err(|error| format!("cannot start a thread: {error}"))?;
    Ok(Some((FleetQuotas::new(settings, quotas), sender)))
}

/// The TLS certificates and keys as read at the start of the process, and the watches that notice changes of
/// their files.
struct Certificates {
    clients: Option<(TlsFiles, Vec<FileWatch>, Arc<Terms>, Rates)>,
    stores: Option<(StoreTls, Vec<FileWatch>)>,
}

impl Certificates {
    fn load(config: &Config, tally: &Arc<Tally>, clock: Clock) -> Result<Self, String> {
        // The watch begins before the files are read, so that no change is missed between the two.
        let clients = |settings: &TlsSettings| {
            let files = TlsFiles::of(settings);
            let watches = files.paths().map(|path| FileWatch::new(path, clock)).collect();
            let rates =
                Rates { timeout: settings.handshake_timeout, per_second: settings.handshakes_per_second };
            files.load().map(|terms| (files, watches, terms, rates))
        };
        let stores = |settings: &StoreTlsSettings| {
            let watches = StoreTls::paths(settings).map(|path| FileWatch::new(path, clock)).collect();
            StoreTls::load(settings, tally).map(|stores| (stores, watches))
        };
        Ok(Self {
            clients: config.tls.as_ref().map(clients).transpose()?,
            stores: config.store_tls.as_ref().map(stores).transpose()?,
        })
    }

    /// Returns the TLS settings for connections to stores; `None` if those are not encrypted.
    fn store_tls(&self) -> Option<StoreTls> {
        self.stores.as_ref().map(|(stores, _)| stores.clone())
    }

    /// Starts the thread that does TLS handshakes with clients on `listeners`, and the one that watches the
    /// certificate files. Returns their mailboxes; `None` without TLS. Clients are accepted at once if
    /// `listens`, else when the thread is told. `shards` and `control` are the mailboxes that the threads report
    /// to. The error is a message for the operator.
    fn start(
        self,
        (listeners, listens): (Doors, bool),
        (shards, control): (Vec<Mailbox<ToShard>>, Mailbox<ToControl>),
        tally: &Arc<Tally>,
        clock: Clock,
    ) -> Result<Option<TlsMailboxes>, String> {
        let failed = |error: io::Error| format!("cannot start a thread: {error}");
        let mut watched: Vec<Watched> =
            self.stores.map(|(stores, watches)| Watched::Stores(watches, stores)).into_iter().collect();
        let mut handshakes = None;
        if let Some((files, watches, terms, rates)) = self.clients {
            let (mailbox, letters, bell) = Mailbox::for_executor().map_err(failed)?;
            watched.push(Watched::Clients(watches, files, mailbox.clone()));
            handshakes = Some(mailbox);
            let (control, tally) = (control.clone(), Arc::clone(tally));
            let thread = HandshakesThread {
                listeners,
                listens,
                terms,
                rates,
                shards,
                control,
                tally,
                letters,
                bell,
                clock,
            };
            thread.start().map_err(failed)?;
        }
        if watched.is_empty() {
            return Ok(None);
        }
        let (certificates, letters, bell) = Mailbox::for_executor().map_err(failed)?;
        CertificatesThread { watched, control, tally: Arc::clone(tally), letters, bell }
            .start()
            .map_err(failed)?;
        Ok(Some(TlsMailboxes { handshakes, certificates }))
    }
}

/// Starts the thread that turns signals into messages to the control executor. The returned flag becomes true as
/// soon as a signal tells the process to end. `may_be_succeeded` (there is a `--takeover`) says that SIGUSR2
/// starts a successor process; else it only logs that none can be started.
fn listen_to_signals(control: Mailbox<ToControl>, may_be_succeeded: bool) -> Result<Arc<AtomicBool>, String> {
    let failed = |error: io::Error| format!("cannot listen to signals: {error}");
    let told_to_end = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        signal_hook::flag::register(signal, Arc::clone(&told_to_end)).map_err(failed)?;
    }
    let mut signals =
        signal_hook::iterator::Signals::new([SIGHUP, SIGINT, SIGTERM, SIGUSR2]).map_err(failed)?;
    std::thread::Builder::new()
        .name("weir-signals".to_owned())
        .spawn(move || {
            for signal in signals.forever() {
                if signal == SIGUSR2 {
                    if may_be_succeeded {
                        takeover::start_successor(control.clone());
                    } else {
                        let line = "SIGUSR2: no successor can be started without --takeover".to_owned();
                        control.post(ToControl::Takeover(Takeover::Line(line)));
                    }
                    continue;
                }
                let meaning = if signal == SIGHUP { Signal::Reload } else { Signal::Terminate };
                control.post(ToControl::Signal(meaning));
            }
        })
        .map(|_| told_to_end)
        .map_err(|error| format!("cannot start a thread: {error}"))
}

/// Makes the state of the thread that asks stores for their versions. The embedded engine is left out, since
/// its version is known.
fn ask_versions(backends: &Backends, tls: Option<StoreTls>, clock: Clock) -> VersionsThread {
    let stores = backends.iter().filter(|(route, _)| route.place().is_some());
    VersionsThread::new(
        stores.map(|(route, settings)| (route.clone(), settings.credentials.as_ref())),
        tls,
        clock,
    )
}

/// Makes the state of the thread that asks stores for their `INFO`.
fn ask_for_info(backends: &Backends, tls: Option<StoreTls>, clock: Clock) -> StoreInfoThread {
    let stores = backends.iter().map(|(route, settings)| (route.clone(), settings.credentials.as_ref()));
    StoreInfoThread::new(stores, tls, clock)
}

/// Makes the state of the thread that looks up the host names of stores again; `routes` has the address of
/// each backend that the thread updates.
fn names_thread(config: &Config, routes: &[Route]) -> NamesThread {
    let servers: &[ServerAddress] = match &config.storage {
        Storage::Servers { servers, .. } => servers,
        // The names of nodes of a cluster are looked up with each map of the cluster.
        Storage::Embedded | Storage::Unix(_) | Storage::Cluster { .. } => &[],
    };
    let places = routes.iter().map(|route| route.place().cloned());
    NamesThread::new(servers.iter().zip(places), config.names_interval)
}

/// Makes the state of the thread that asks a cluster's nodes which node owns which slot; `None` with other
/// storage.
fn topology_thread(
    config: &Config,
    backends: &Backends,
    tls: Option<StoreTls>,
    clock: Clock,
) -> Option<TopologyThread> {
    let Storage::Cluster { seeds, credentials, .. } = &config.storage else { return None };
    let credentials = credentials.as_ref().map(Credentials::pair);
    let places = backends.iter().filter_map(|(route, _)| route.place().cloned());
    let random = Random::new(random_seed());
    let asked = (credentials.as_ref(), config.databases);
    Some(TopologyThread::new(seeds.clone(), asked, places.collect(), tls, (clock, random)))
}

/// Makes the state of the thread that asks a cluster's replicas for their replication lag, and the channel to
/// it. `None` without a cluster, or if reads from replicas are switched off. `shards` and `control` are the
/// mailboxes to which lag is reported; `map` is the first map of the cluster, and `is_wanted` is true if some
/// tenant reads from replicas.
fn replicas_thread(
    config: &Config,
    (shards, control): (Vec<Mailbox<ToShard>>, Mailbox<ToControl>),
    (map, is_wanted): (Option<&Arc<Map>>, bool),
    tls: Option<StoreTls>,
    clock: Clock,
) -> Option<(Sender<ToReplicas>, ReplicasThread)> {
    let map = Arc::clone(map.filter(|_| mode_of(config, Layer::Replicas) == Mode::On)?);
    let (sender, letters) = crossbeam_channel::unbounded();
    Some((sender, ReplicasThread { shards, control, letters, map, is_wanted, tls, clock }))
}

/// Returns the names of all backends in order of backend number; if `slots`, the map of a cluster, is given,
/// the names of the nodes in it.
fn backend_names(backends: &[BackendSettings], slots: Option<&Map>) -> Vec<String> {
    match slots {
        None => backends.iter().map(|backend| backend.name.clone()).collect(),
        Some(slots) => control::node_names(slots),
    }
}

/// Makes a random run ID of forty hexadecimal digits, as Redis has.
fn run_id() -> String {
    let (left, right) = (random_seed(), random_seed());
    format!("{left:016x}{right:016x}{:08x}", random_seed() >> 32)
}

/// Makes an unguessable seed for hashing keys, so that nobody outside can choose keys whose hashes collide.
fn random_seed() -> u64 {
    RandomState::new().hash_one(std::process::id())
}

/// Runs a store that listens at `listen_on` until a signal ends it: the binary `weir-storage`. `service` is
/// called on the thread that serves, with the clock by which it serves. The error is a message for the operator.
pub fn run_storage<S: StoreService + 'static>(
    listen_on: SocketAddr,
    service: impl FnOnce(Clock) -> S + Send + 'static,
) -> Result<(), String> {
    if let Some(warning) = executor::raise_limits(STORAGE_FILES, "clients")? {
        log::line(&warning);
    }
    probe_ring()?;
    let (mailbox, letters, bell) = mailbox::<ToStorage>()?;
    let (sockets, bound) = listen::tcp(listen_on, 1)
        .map_err(|error| format!("cannot listen on {listen_on} (--listen): {error}"))?;
    let mut executors = Executors::new();
    let clock = Clock::start();
    start_engine(move || service(clock), sockets, (letters, bell), clock, &mut executors)?;
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
    executors.wait_until_started()?;
    log::line(&format!("storage listening on {bound}"));
    executors.join()
}
