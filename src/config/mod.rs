//! Configuration: flags and quota file become one checked, immutable value.

pub mod address;
pub mod cores;
pub mod flags;
pub mod fleet;
pub mod hot;
pub mod layers;
pub mod overload;
pub mod quotas;
pub mod storage;
pub mod tls;
pub mod token;
mod top;

use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use address::addresses_of;
pub use cores::Cores;
pub use flags::{Command, Flags};
pub use fleet::FleetTerms;
pub use hot::{HotLimits, HotScripts};
pub use layers::{Layer, LimiterKind};
pub use overload::OverloadLimits;
pub use quotas::{Bounds as QuotaBounds, FormerTenants, QuotaError, QuotaText, Quotas, Tenant, TextDigest};
pub use storage::{Credentials, FleetStore, ServerAddress, Storage};
pub use tls::{OwnCertificate, StoreTlsSettings, TlsSettings};
pub use token::AdminToken;
pub use top::{TopFlags, TopSort};
pub use units::Size;

pub use crate::values::units;
pub use crate::values::{TenantId, Tier};

use crate::values::limits::{
    CLIENTS_LINGERING_MAX, ENGINE_DATABASES, REPLY_BYTES_CEILING, REQUEST_BYTES_CEILING, TLS_HANDSHAKES_MAX,
    TLS_IN_TRANSIT_MAX,
};
use crate::values::{MicroUnits, Weights};

/// Default memory limit of the embedded store.
const EMBEDDED_BYTES_DEFAULT: Size = Size::mebibytes(256);
/// Default of `--subscriber-slow-limit`, unless `--subscriber-limit` is less.
const SUBSCRIBER_SLOW_BYTES_DEFAULT: Size = Size::mebibytes(8);
/// Least value of `--embedded-max-bytes`, the memory limit of the embedded store.
const EMBEDDED_BYTES_MIN: Size = Size::mebibytes(1);
/// Least limit on the bytes of a request or a reply: connection handshakes must fit.
const MESSAGE_BYTES_MIN: Size = Size(1024);
/// Least value of `--max-clients-bytes`: with less, not even a few clients would have room for their
/// requests.
const CLIENTS_BYTES_MIN: Size = Size::mebibytes(16);
/// Maximum number of bytes of a Unix socket's path, which must fit the kernel's address structure.
const UNIX_PATH_BYTES_MAX: usize = 107;
/// Number of file descriptors that each shard needs besides those of connections: rings, eventfds, listeners.
const SHARD_FILES: usize = 16;
/// Number of file descriptors that the process needs besides those of shards and connections: for files, for
/// the admin port, for connections that ask stores about themselves.
const FILES_SPARE: usize = 256;
/// Divisor that gives the part (a quarter) of the limit of open files that is left to clients and private links at
/// least, even where all other files then do not fit.
const FILES_LEFT_PARTS: usize = 4;
/// Longest timeout that a flag may set; a longer one is taken for a mistake.
const TIMEOUT_MAX: Duration = Duration::from_secs(30 * 24 * 60 * 60);

/// The checked configuration of weir, from its flags.
#[derive(Clone, Debug)]
pub struct Config {
    /// Addresses where clients connect without TLS.
    pub listen: Vec<SocketAddr>,
    /// Addresses where clients read and write the stores' keys over HTTP without TLS.
    pub http: Vec<SocketAddr>,
    /// Origins of web pages whose HTTP requests are accepted.
    pub http_origins: Vec<String>,
    /// Host names by which HTTP requests without an `Authorization` header may address weir, besides IP addresses and
    /// localhost.
    pub http_hosts: Vec<String>,
    /// Addresses and certificates for clients that connect with TLS; none without such clients.
    pub tls: Option<TlsSettings>,
    /// The Unix socket where clients connect; none without `--unix`.
    pub unix: Option<PathBuf>,
    /// Unix socket by which a new process takes over listening sockets and clients from the running one;
    /// `None` without `--takeover`.
    pub takeover: Option<PathBuf>,
    /// Address of the admin port, where metrics, health and quotas are served; `None` if it is off.
    pub admin: Option<SocketAddr>,
    /// Host names by which the admin port may be addressed, besides IP addresses and localhost.
    pub admin_hosts: Vec<String>,
    /// Source of the token that the admin port requires for a change of quotas; `None` if it has no token.
    pub admin_token: Option<TokenSource>,
    /// Path of the quota file; `None` if every client may use weir without a limit.
    pub quotas: Option<PathBuf>,
    /// CPUs that the shards run on, as `--cores` asks for them; `None` for all that the process may use.
    pub cores: Option<Cores>,
    /// Number of shards to run; `None` for one per CPU that the process may use, or fewer if its CPU limit (as of a
    /// container) is lower.
    pub shards: Option<usize>,
    /// Time for which an idle core polls for work before it sleeps; zero if it sleeps at once.
    pub busy_poll: Duration,
    /// The stores behind weir, as `--storage` names them.
    pub storage: Storage,
    /// Settings of TLS for connections to stores: the authorities to trust, and weir's own certificate if it
    /// shows one; `None` if weir connects to stores without TLS.
    pub store_tls: Option<StoreTlsSettings>,
    /// Maximum number of bytes that the embedded store may hold.
    pub embedded_bytes_max: usize,
    /// Number of connections of each shard to each backend that it sends to, for each RESP version (RESP2,
    /// RESP3) that clients use.
    pub backend_connections: u16,
    /// Number of further connections of each shard to each backend, for costly requests, for each RESP
    /// version.
    pub heavy_connections: u16,
    /// Maximum number of connections to backends that clients have to themselves (private links), over all
    /// shards; commands that need one are refused when all are taken.
    pub private_links: usize,
    /// Maximum number of clients that run `MONITOR` at once, over all shards; it is refused to further ones.
    pub monitors: usize,
    /// Longest time that PUBLISH waits until stores have acknowledged its tenant's earlier subscriptions to
    /// the channel; zero if it does not wait.
    pub publish_wait: Duration,
    /// Maximum number of channels, over all shards, to which weir has one subscription at the store that all subscribed
    /// clients share; subscriptions to further ones are refused. Also the maximum number of such patterns, if it is
    /// below 1,024.
    pub shared_channels: usize,
    /// Maximum number of bytes of messages that may wait for one subscriber; above it, the subscriber's
    /// connection is closed.
    pub subscriber_bytes_max: usize,
    /// Number of bytes of messages that may wait for one subscriber without a time limit; above it for
    /// `subscriber_slow_time`, the subscriber's connection is closed.
    pub subscriber_slow_bytes: usize,
    /// Longest time that more than `subscriber_slow_bytes` may wait for one subscriber before its connection
    /// is closed.
    pub subscriber_slow_time: Duration,
    /// Number of databases of each backend that clients may select.
    pub databases: u16,
    /// Estimated price, in millionths of a request unit, at which a request counts as costly and uses the
    /// connections for such requests.
    pub heavy_from: MicroUnits,
    /// Time after which weir gives up connecting to a backend.
    pub connect_timeout: Duration,
    /// Time after which weir closes a connection whose backend owes a reply and sends nothing.
    pub reply_timeout: Duration,
    /// Time between two lookups of the stores' host names; zero means only at the start.
    pub names_interval: Duration,
    /// Maximum number of clients connected at once, over all shards.
    pub clients_max: usize,
    /// Maximum number of clients of one tenant that are connected at once, if there are several tenants and
    /// the quota file has no `max_clients` for this one.
    pub tenant_clients_max: usize,
    /// Maximum number of bytes that weir holds for all clients together (incomplete requests and unread
    /// replies). Above it, the largest clients of the tenant that holds most are closed.
    pub clients_bytes_max: usize,
    /// Time after which clients that must authenticate and have not are closed; `None` for never.
    pub login_timeout: Option<Duration>,
    /// Algorithm by which quotas are enforced: token buckets of request units, or a mere count of requests.
    pub limiter: LimiterKind,
    /// Time between two reconciliations, in which cores report the quota that they spent and receive grants
    /// (amounts that they may spend).
    pub reconcile: Duration,
    /// The fleet of weir processes with which quotas are shared; `None` if quotas apply to this process
    /// alone.
    pub fleet: Option<FleetTerms>,
    /// Prices of the parts of a request (a base, bytes, rows, keys, and others), which add up to the
    /// request's price in request units.
    pub weights: Weights,
    /// Maximum number of elements that one `SCAN`, `HSCAN`, `SSCAN` or `ZSCAN` request may examine; a larger
    /// `COUNT` is lowered to this number.
    pub scan_count_max: u32,
    /// Layers of traffic management that are switched off.
    pub disabled: Vec<Layer>,
    /// Layers of traffic management in dry run: they decide and count, without effect.
    pub shadowed: Vec<Layer>,
    /// Limits of the window (limit on requests in flight) and the queue before each backend.
    pub overload: OverloadLimits,
    /// Limits of the hot-key cache of each core.
    pub hot: HotLimits,
    /// Maximum number of bytes of a request.
    pub request_bytes_max: usize,
    /// Maximum number of bytes of a reply of a backend; the client gets an error in place of a larger one.
    pub reply_bytes_max: usize,
    /// Maximum number of bytes of output that may wait for one client, before it is closed.
    pub output_bytes_max: usize,
    /// Time after which clients that send nothing are closed, except subscribers, monitors (`MONITOR`) and clients that
    /// wait for a reply; `None` for never.
    pub idle_timeout: Option<Duration>,
    /// Time within which a client must read at least 1 MiB of the replies that wait for it, or else is
    /// closed.
    pub send_timeout: Duration,
    /// Longest time that weir waits for requests in flight after SIGTERM before it ends.
    pub drain_timeout: Duration,
}

/// Source of the admin port's token, without which it accepts no change of quotas.
#[derive(Clone, Debug)]
pub enum TokenSource {
    /// The admin port's token itself, given by a flag or the environment.
    Given(AdminToken),
    /// Path of the file with the admin port's token, which is read at the start and again on SIGHUP.
    File(PathBuf),
}

impl TokenSource {
    /// Returns the admin port's token, reading its file if it comes from one. Fails if the file cannot be
    /// read or has no valid token.
    pub fn load(&self) -> Result<AdminToken, ConfigError> {
        match self {
            Self::Given(token) => Ok(token.clone()),
            Self::File(path) => AdminToken::load(path)
                .map_err(|problem| ConfigError::new(format!("--admin-token-file {problem}"))),
        }
    }
}

/// Error about flags that are invalid or contradict each other, worded for the operator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigError(String);

impl ConfigError {
    fn new(problem: impl Into<String>) -> Self {
        Self(problem.into())
    }
}

impl fmt::Display for ConfigError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.0)
    }
}

impl std::error::Error for ConfigError {}

impl Config {
    /// Makes the configuration from the flags, and checks that the flags agree with each other.
    pub fn from_flags(flags: Flags) -> Result<Self, ConfigError> {
        check_sizes(&flags)?;
        check_timeouts(&flags)?;
        check_layers(&flags)?;
        let admin = flags.admin.address();
        let listen = listen_addresses(&flags)?;
        check_unix_path(&flags)?;
        check_unused(&flags)?;
        let admin_token = token_source(&flags)?;
        let overload = OverloadLimits::from_flags(&flags)?;
        let hot = HotLimits::from_flags(&flags)?;
        let fleet = FleetTerms::from_flags(&flags)?;
        Ok(Self {
            http: http_addresses(&flags, &listen)?,
            http_origins: flags.http_allow_origin.clone(),
            http_hosts: flags.http_allow_host.clone(),
            tls: tls_settings(&flags, &listen)?,
            store_tls: StoreTlsSettings::from_flags(&flags)?,
            listen,
            admin,
            admin_hosts: flags.admin_host,
            admin_token,
            unix: flags.unix,
            takeover: flags.takeover,
            quotas: flags.quotas,
            cores: flags.cores,
            shards: flags.shards.map(|shards| shards as usize),
            busy_poll: Duration::from_micros(flags.busy_poll_us),
            storage: flags.storage,
            embedded_bytes_max: flags.embedded_max_bytes.unwrap_or(EMBEDDED_BYTES_DEFAULT).bytes(),
            backend_connections: flags.backend_connections as u16,
            heavy_connections: flags.heavy_connections as u16,
            private_links: flags.private_links as usize,
            monitors: flags.monitors as usize,
            publish_wait: flags.publish_wait,
            shared_channels: flags.shared_channels as usize,
            subscriber_bytes_max: flags.subscriber_limit.bytes(),
            subscriber_slow_bytes: flags
                .subscriber_slow_limit
                .unwrap_or(SUBSCRIBER_SLOW_BYTES_DEFAULT.min(flags.subscriber_limit))
                .bytes(),
            subscriber_slow_time: flags.subscriber_slow_time,
            databases: flags.databases as u16,
            heavy_from: flags.heavy_ru,
            connect_timeout: flags.backend_connect_timeout,
            reply_timeout: flags.backend_timeout,
            names_interval: flags.storage_lookup,
            clients_max: flags.max_clients as usize,
            tenant_clients_max: flags.max_tenant_clients.unwrap_or((flags.max_clients * 4 / 5).max(1))
                as usize,
            clients_bytes_max: flags.max_clients_bytes.bytes(),
            login_timeout: (!flags.login_timeout.is_zero()).then_some(flags.login_timeout),
            limiter: flags.limiter,
            reconcile: flags.reconcile,
            fleet,
            weights: Weights {
                base: flags.ru_base,
                hit: flags.ru_hit,
                kib_in: flags.ru_kib_in,
                kib_out: flags.ru_kib_out,
                row: flags.ru_row,
                key: flags.ru_key,
                latency_ms: flags.ru_latency_ms,
                busy_ms: flags.ru_busy_ms,
            },
            scan_count_max: flags.scan_count_max as u32,
            overload,
            hot,
            disabled: flags.disable,
            shadowed: flags.shadow,
            request_bytes_max: flags.max_request_bytes.bytes(),
            reply_bytes_max: flags.max_reply_bytes.bytes(),
            output_bytes_max: flags.output_limit.bytes(),
            idle_timeout: (!flags.idle_timeout.is_zero()).then_some(flags.idle_timeout),
            send_timeout: flags.send_timeout,
            drain_timeout: flags.drain_timeout,
        })
    }

    /// Returns the CPU that each shard is bound to: one entry per shard, `None` for a shard that the kernel
    /// may move. `usable` are the CPUs that this process may run on, and `allowed` is the number of CPUs
    /// whose time it may use, which a quota (a container's CPU limit) may make smaller. Fails if `--cores`
    /// asks for CPUs that are not usable, or `--shards` for more shards than it has CPUs.
    pub fn placement(&self, usable: &[usize], allowed: usize) -> Result<Vec<Option<usize>>, ConfigError> {
        cores::placement(self.cores.as_ref(), self.shards, usable, allowed)
    }

    /// Returns the number of databases that clients may select. The embedded store has no more than 16.
    pub fn databases_served(&self) -> u16 {
        match self.storage {
            Storage::Embedded => self.databases.min(u16::from(ENGINE_DATABASES)),
            _ => self.databases,
        }
    }

    /// Returns the limits of the process that no setting of a tenant in the quota file can exceed.
    pub fn quota_bounds(&self) -> QuotaBounds {
        let databases = self.databases_served();
        QuotaBounds {
            databases,
            databases_flag: if databases < self.databases { "--storage embedded" } else { "--databases" },
            clients: self.clients_max,
            private_links: self.private_links,
        }
    }

    /// Lowers the numbers of clients and of private links, where the process may not open enough files for all
    /// of them and for what else `shards` shards need: clients must not take the descriptors of connections to
    /// stores. `files` is the limit of open files. Returns a warning if anything was lowered.
    pub fn fit_files(&mut self, files: u64, shards: usize) -> Option<String> {
        let ends = self.ends_of_link();
        let wanted = self.files_besides(shards) + self.clients_max + ends * self.private_links;
        let files = usize::try_from(files).unwrap_or(usize::MAX);
        if files >= wanted {
            return None;
        }
        let left = files.saturating_sub(self.files_besides(shards)).max(files / FILES_LEFT_PARTS);
        let of_clients = (left * 3 / 4).max(left.saturating_sub(ends * self.private_links)).max(1);
        self.clients_max = self.clients_max.min(of_clients);
        self.private_links = self.private_links.min(left.saturating_sub(self.clients_max) / ends);
        self.tenant_clients_max = self.tenant_clients_max.min((self.clients_max * 4 / 5).max(1));
        Some(format!(
            "the limit of open files is {files}, and {wanted} may be needed, for connections to stores and as many \
             clients as --max-clients allows: a higher limit is expected (LimitNOFILE= in systemd, `ulimit -n`); until \
             then at most {} clients and {} private links are open at once",
            self.clients_max, self.private_links
        ))
    }

    /// Returns the number of files that the process may have open with this number of shards besides clients and
    /// private links: connections to stores (in one database, with both RESP versions in use), and its own.
    fn files_besides(&self, shards: usize) -> usize {
        let replica_connections = usize::from(matches!(self.storage, Storage::Cluster { .. }));
        let of_version = usize::from(self.backend_connections + self.heavy_connections) + replica_connections;
        let links = shards * self.storage.backends_max() * 2 * of_version;
        let handshakes = if self.tls.is_some() { TLS_HANDSHAKES_MAX + TLS_IN_TRANSIT_MAX } else { 0 };
        let of_shards = shards * (SHARD_FILES + CLIENTS_LINGERING_MAX);
        self.ends_of_link() * links + handshakes + of_shards + FILES_SPARE
    }

    /// Returns the number of files that a connection to a store takes: both ends of one to the embedded store are
    /// this process's.
    fn ends_of_link(&self) -> usize {
        if self.storage == Storage::Embedded { 2 } else { 1 }
    }
}

fn listen_addresses(flags: &Flags) -> Result<Vec<SocketAddr>, ConfigError> {
    let lists = [
        ("--listen", &flags.listen),
        ("--tls-listen", &flags.tls_listen),
        ("--http", &flags.http),
        ("--tls-http", &flags.tls_http),
    ];
    for (flag, list) in lists {
        if addresses_of(list).len() < list.len() && list.len() > 1 {
            return Err(ConfigError::new(format!("{flag} off does not go with other {flag} addresses")));
        }
    }
    let addresses = addresses_of(&flags.listen);
    if addresses.is_empty() && flags.unix.is_none() && addresses_of(&flags.tls_listen).is_empty() {
        return Err(ConfigError::new(
            "--listen off leaves no address for clients: --unix PATH or --tls-listen ADDRESS is expected with it",
        ));
    }
    for (index, address) in addresses.iter().enumerate().filter(|(_, address)| address.port() != 0) {
        if addresses[..index].contains(address) {
            return Err(ConfigError::new(format!("--listen {address} is given twice")));
        }
        if flags.admin.address() == Some(*address) {
            return Err(ConfigError::new(format!(
                "--listen and --admin are both {address}: two ports are expected"
            )));
        }
    }
    Ok(addresses)
}

fn http_addresses(flags: &Flags, listen: &[SocketAddr]) -> Result<Vec<SocketAddr>, ConfigError> {
    let addresses = addresses_of(&flags.http);
    let admin: Vec<SocketAddr> = flags.admin.address().into_iter().collect();
    distinct("--http", &addresses, &[("--listen", listen), ("--admin", &admin)])?;
    Ok(addresses)
}

fn tls_settings(flags: &Flags, listen: &[SocketAddr]) -> Result<Option<TlsSettings>, ConfigError> {
    let Some(settings) = TlsSettings::from_flags(flags)? else { return Ok(None) };
    let http = addresses_of(&flags.http);
    let admin: Vec<SocketAddr> = flags.admin.address().into_iter().collect();
    let others = [
        ("--tls-listen", &settings.listen[..]),
        ("--listen", listen),
        ("--http", &http),
        ("--admin", &admin),
    ];
    distinct("--tls-listen", &settings.listen, &others[1..])?;
    distinct("--tls-http", &settings.http, &others)?;
    Ok(Some(settings))
}

/// Checks that no address of a flag is given twice, or is among those of other flags (`others`).
fn distinct(
    flag: &str,
    addresses: &[SocketAddr],
    others: &[(&str, &[SocketAddr])],
) -> Result<(), ConfigError> {
    for (index, address) in addresses.iter().enumerate().filter(|(_, address)| address.port() != 0) {
        let other = others.iter().find(|(_, taken)| taken.contains(address));
        let problem = match other {
            _ if addresses[..index].contains(address) => format!("{flag} is given twice:"),
            Some((other, _)) => format!("{flag} and {other} are both"),
            None => continue,
        };
        return Err(ConfigError::new(format!("{problem} {address}: two ports are expected")));
    }
    Ok(())
}

fn token_source(flags: &Flags) -> Result<Option<TokenSource>, ConfigError> {
    match (&flags.admin_token, &flags.admin_token_file) {
        (Some(secret), _) => {
            let token = AdminToken::new(secret)
                .map_err(|problem| ConfigError::new(format!("--admin-token: {problem}")))?;
            Ok(Some(TokenSource::Given(token)))
        }
        (None, Some(path)) => Ok(Some(TokenSource::File(path.clone()))),
        (None, None) => Ok(None),
    }
}

/// Checks that every flag that has an effect only together with another flag is given together with it.
fn check_unused(flags: &Flags) -> Result<(), ConfigError> {
    let admin = [
        ("--admin-host", !flags.admin_host.is_empty()),
        ("--admin-token", flags.admin_token.is_some()),
        ("--admin-token-file", flags.admin_token_file.is_some()),
    ];
    if let Some((flag, _)) = admin.iter().find(|(_, given)| *given && flags.admin.address().is_none()) {
        return Err(ConfigError::new(format!(
            "{flag} is for the admin port, and there is none: --admin ADDRESS is expected with it"
        )));
    }
    let http = [
        ("--http-allow-origin", !flags.http_allow_origin.is_empty()),
        ("--http-allow-host", !flags.http_allow_host.is_empty()),
    ];
    let has_http = !addresses_of(&flags.http).is_empty() || !addresses_of(&flags.tls_http).is_empty();
    match http.iter().find(|(_, given)| *given && !has_http) {
        Some((flag, _)) => Err(ConfigError::new(format!(
            "{flag} is for HTTP, and there is none: --http ADDRESS or --tls-http ADDRESS is expected with it"
        ))),
        None => Ok(()),
    }
}

fn check_unix_path(flags: &Flags) -> Result<(), ConfigError> {
    let store = match &flags.storage {
        Storage::Unix(path) => Some(("--storage", path)),
        Storage::Embedded | Storage::Servers { .. } | Storage::Cluster { .. } => None,
    };
    let takeover = flags.takeover.iter().map(|path| ("--takeover", path));
    for (flag, path) in flags.unix.iter().map(|path| ("--unix", path)).chain(store).chain(takeover) {
        let length = path.as_os_str().len();
        if !(1..=UNIX_PATH_BYTES_MAX).contains(&length) {
            return Err(ConfigError::new(format!(
                "{flag}: the path of a socket has 1 to {UNIX_PATH_BYTES_MAX} bytes, and this one has {length}"
            )));
        }
    }
    if flags.takeover.is_some() && flags.storage == Storage::Embedded {
        return Err(ConfigError::new(
            "--takeover does not go with --storage embedded: what that holds would end with the process that is taken over from",
        ));
    }
    if flags.takeover.is_some() && flags.takeover == flags.unix {
        return Err(ConfigError::new("--takeover and --unix are the same path: two sockets are expected"));
    }
    if let (Some(path), Storage::Unix(store)) = (&flags.unix, &flags.storage)
        && path == store
    {
        return Err(ConfigError::new(format!("--unix and --storage are both {}", path.display())));
    }
    Ok(())
}

fn check_sizes(flags: &Flags) -> Result<(), ConfigError> {
    let ceilings = [
        ("--max-request-bytes", flags.max_request_bytes, Size(REQUEST_BYTES_CEILING as u64)),
        ("--max-reply-bytes", flags.max_reply_bytes, Size(REPLY_BYTES_CEILING as u64)),
    ];
    for (flag, given, most) in ceilings {
        if !(MESSAGE_BYTES_MIN..=most).contains(&given) {
            return Err(ConfigError::new(format!(
                "{flag} {given}: {MESSAGE_BYTES_MIN} to {most} is expected"
            )));
        }
    }
    if flags.max_clients_bytes < CLIENTS_BYTES_MIN {
        return Err(ConfigError::new(format!(
            "--max-clients-bytes {}: {CLIENTS_BYTES_MIN} or more is expected",
            flags.max_clients_bytes
        )));
    }
    if flags.output_limit < flags.max_reply_bytes {
        return Err(ConfigError::new(format!(
            "--output-limit {} is less than --max-reply-bytes {}: a client would be closed for a reply that is allowed",
            flags.output_limit, flags.max_reply_bytes
        )));
    }
    if let Some(slow) = flags.subscriber_slow_limit.filter(|slow| *slow > flags.subscriber_limit) {
        return Err(ConfigError::new(format!(
            "--subscriber-slow-limit {slow} is more than --subscriber-limit {}, at which a subscriber is closed at once: \
             at most that is expected",
            flags.subscriber_limit
        )));
    }
    match (flags.embedded_max_bytes, &flags.storage) {
        (Some(given), Storage::Embedded) if given < EMBEDDED_BYTES_MIN => Err(ConfigError::new(format!(
            "--embedded-max-bytes {given}: {EMBEDDED_BYTES_MIN} or more is expected"
        ))),
        (Some(_), storage @ (Storage::Servers { .. } | Storage::Cluster { .. } | Storage::Unix(_))) => {
            Err(ConfigError::new(format!(
                "--embedded-max-bytes is for --storage embedded, and the storage is {storage}"
            )))
        }
        _ => Ok(()),
    }
}

fn check_timeouts(flags: &Flags) -> Result<(), ConfigError> {
    let timeouts = [
        ("--backend-connect-timeout", flags.backend_connect_timeout),
        ("--backend-timeout", flags.backend_timeout),
        ("--storage-lookup", flags.storage_lookup),
        ("--login-timeout", flags.login_timeout),
        ("--tls-handshake-timeout", flags.tls_handshake_timeout),
        ("--idle-timeout", flags.idle_timeout),
        ("--send-timeout", flags.send_timeout),
        ("--drain-timeout", flags.drain_timeout),
        ("--publish-wait", flags.publish_wait),
        ("--subscriber-slow-time", flags.subscriber_slow_time),
    ];
    match timeouts.into_iter().find(|(_, timeout)| *timeout > TIMEOUT_MAX) {
        Some((flag, _)) => Err(ConfigError::new(format!("{flag}: at most 720h is expected"))),
        None => Ok(()),
    }
}

/// Range of `--reconcile`, the time between two reports of each core on the quota that it spent. Cores that
/// report more often do little else, and a grant (amount of quota to spend) is valid for five of these
/// intervals.
const RECONCILE: std::ops::RangeInclusive<Duration> = Duration::from_millis(1)..=Duration::from_secs(1);

fn check_layers(flags: &Flags) -> Result<(), ConfigError> {
    if !RECONCILE.contains(&flags.reconcile) {
        return Err(ConfigError::new(format!("--reconcile {:?}: 1ms to 1s is expected", flags.reconcile)));
    }
    if flags.fleet.is_some() && flags.limiter == LimiterKind::Static {
        return Err(ConfigError::new("--fleet is for --limiter buckets, and the limiter is static"));
    }
    if flags.fleet.is_some() && flags.disable.contains(&Layer::Rate) {
        return Err(ConfigError::new("--fleet shares quotas, and --disable rate switches them off"));
    }
    for layer in &flags.shadow {
        if flags.disable.contains(layer) {
            return Err(ConfigError::new(format!(
                "--shadow {layer} and --disable {layer}: a layer cannot be in both"
            )));
        }
        if !layer.has_shadow() {
            return Err(ConfigError::new(format!(
                "--shadow {layer}: these can only be switched off (--disable)"
            )));
        }
        if *layer == Layer::Rate && flags.limiter == LimiterKind::Static {
            return Err(ConfigError::new(
                "--shadow rate is for --limiter buckets, and the limiter is static",
            ));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::values::UNIT;

    fn config(flags: &str) -> Result<Config, String> {
        let words = std::iter::once("weir").chain(flags.split_whitespace());
        let flags = Flags::try_parse_from(words).expect("each flag is right alone");
        Config::from_flags(flags).map_err(|error| error.to_string())
    }

    #[test]
    fn no_flags_are_a_configuration() {
        let config = config("").expect("defaults go together");
        assert_eq!(config.listen, ["127.0.0.1:7379".parse().expect("an address")]);
        assert_eq!(config.admin, Some("127.0.0.1:7381".parse().expect("an address")));
        assert_eq!(config.storage, Storage::Embedded);
        assert_eq!((config.request_bytes_max, config.output_bytes_max), (16 << 20, 64 << 20));
        assert_eq!((config.idle_timeout, config.drain_timeout), (None, Duration::from_secs(10)));
        assert_eq!(config.placement(&[0, 1], 2), Ok(vec![Some(0), Some(1)]));
    }

    #[test]
    fn flags_reach_the_configuration() {
        let config = config(
            "--listen 0.0.0.0:1 --listen [::1]:2 --unix /run/weir.sock --admin 127.0.0.1:3 --quotas q.toml --cores 3 \
             --shards 3 --busy-poll-us 50 --storage redis://:x@a,b --backend-connections 2 \
             --heavy-connections 0 --heavy-ru 2.5 \
             --backend-connect-timeout 2s --backend-timeout 3s --max-clients 9 --max-request-bytes 1MiB \
             --max-reply-bytes 2MiB --output-limit 3MiB --idle-timeout 5m --send-timeout 1s --drain-timeout 0 \
             --admin-token sesame",
        )
        .expect("they go together");
        assert_eq!((config.listen.len(), config.admin.map(|address| address.port())), (2, Some(3)));
        assert_eq!((config.shards, config.busy_poll), (Some(3), Duration::from_micros(50)));
        assert_eq!(
            (config.request_bytes_max, config.reply_bytes_max, config.output_bytes_max),
            (1 << 20, 2 << 20, 3 << 20)
        );
        assert_eq!(
            (config.connect_timeout, config.reply_timeout),
            (Duration::from_secs(2), Duration::from_secs(3))
        );
        assert_eq!(
            (config.idle_timeout, config.drain_timeout),
            (Some(Duration::from_secs(300)), Duration::ZERO)
        );
        assert_eq!((config.backend_connections, config.clients_max), (2, 9));
        assert_eq!((config.heavy_connections, config.heavy_from), (0, 5 * UNIT / 2));
        assert!(matches!(&config.admin_token, Some(TokenSource::Given(token)) if token.is(b"sesame")));
        let shown = format!("{config:?}");
        assert!(!shown.contains("\"x\"") && !shown.contains("sesame"), "{shown}");
    }

    #[test]
    fn files_are_counted_for_clients_for_stores_and_for_shards() {
        let files = |flags| {
            let mut config = config(flags).expect("they go together");
            let (clients, links) = (config.clients_max, config.private_links);
            let wanted = config.files_besides(32) + clients + config.ends_of_link() * links;
            assert_eq!(config.fit_files(wanted as u64, 32), None);
            assert!(config.fit_files(wanted as u64 - 1, 32).is_some());
            assert!(config.clients_max + 1 >= clients && config.private_links + 1 >= links);
            wanted
        };
        let own = 32 * (16 + 64) + 256;
        let stores: Vec<String> = (0..16).map(|number| format!("s{number}")).collect();
        let servers = format!("--storage redis://{} --max-clients 5000 --private-links 7", stores.join(","));
        assert_eq!(files(&servers), 5_000 + 32 * 16 * 2 * 2 + 7 + own);
        assert_eq!(files("--max-clients 5000 --private-links 7"), 5_000 + 2 * (32 * 2 * 2 + 7) + own);
        let cluster = "--storage cluster://a --max-clients 5000 --private-links 7";
        assert_eq!(files(cluster), 5_000 + 32 * 128 * 2 * 3 + 7 + own);
        let tls = "--tls-listen 127.0.0.1:0 --tls-cert c --tls-key k";
        assert_eq!(files(&format!("{cluster} {tls}")), files(cluster) + 512 + 1_024);
    }

    #[test]
    fn with_few_files_clients_and_private_links_leave_room_for_connections_to_stores() {
        for files in [0, 1, 64, 256, 600, 1_024, 4_096, 12_000, u64::MAX] {
            for flags in
                ["", "--storage redis://a", "--private-links 0", "--max-clients 3 --private-links 10000"]
            {
                let mut config = config(flags).expect("they go together");
                let before = config.clone();
                let warning = config.fit_files(files, 2);
                let asked = config.clients_max + config.ends_of_link() * config.private_links;
                let left =
                    (files as usize).saturating_sub(config.files_besides(2)).max(files as usize / 4).max(1);
                assert!(asked <= left, "{asked} of {left} with {files} and {flags}");
                assert!(
                    config.clients_max >= before.clients_max.min((left / 4 * 3).max(1)),
                    "{files} {flags}"
                );
                assert!(config.tenant_clients_max <= config.clients_max && config.clients_max > 0);
                let lowered =
                    config.clients_max < before.clients_max || config.private_links < before.private_links;
                assert_eq!(warning.is_some(), lowered, "{files} {flags}: {warning:?}");
            }
        }
        let mut config = config("--storage redis://a").expect("they go together");
        let warning = config.fit_files(1_024, 2).expect("it is too low");
        let told = format!("{} clients and {} private links", config.clients_max, config.private_links);
        assert!(
            warning.contains(&told) && config.clients_max > 400 && config.private_links > 100,
            "{warning}"
        );
    }

    #[test]
    fn a_slow_subscriber_has_no_more_than_any_subscriber() {
        let slow = |flags| config(flags).expect("they go together").subscriber_slow_bytes;
        assert_eq!((slow(""), slow("--subscriber-limit 4MiB")), (8 << 20, 4 << 20));
        assert_eq!(slow("--subscriber-slow-limit 16MiB"), 16 << 20);
    }

    #[test]
    fn a_token_file_is_read_when_it_is_needed() {
        let config = config("--admin-token-file /nowhere/token").expect("the flags are right");
        let told = config.admin_token.expect("it was given").load().expect_err("it is not there").to_string();
        assert!(told.starts_with("--admin-token-file /nowhere/token: No such file"), "{told}");
    }

    #[test]
    fn one_variable_may_list_several_addresses() {
        assert_eq!(config("--listen 127.0.0.1:1,127.0.0.1:2").expect("two").listen.len(), 2);
    }

    #[test]
    fn what_does_not_go_together_is_told() {
        let long = format!("--unix /{}", "x".repeat(107));
        let cases = [
            ("--listen 127.0.0.1:1 --listen 127.0.0.1:1", "--listen 127.0.0.1:1 is given twice"),
            (
                "--listen off",
                "--listen off leaves no address for clients: --unix PATH or --tls-listen ADDRESS is expected with it",
            ),
            (
                "--listen off --listen 127.0.0.1:1 --unix /a",
                "--listen off does not go with other --listen addresses",
            ),
            (
                "--listen off --tls-listen off",
                "--listen off leaves no address for clients: --unix PATH or --tls-listen ADDRESS is expected with it",
            ),
            ("--http off --http 127.0.0.1:1", "--http off does not go with other --http addresses"),
            ("--publish-wait 721h", "--publish-wait: at most 720h is expected"),
            (
                "--listen 127.0.0.1:7381",
                "--listen and --admin are both 127.0.0.1:7381: two ports are expected",
            ),
            ("--max-request-bytes 513MiB", "--max-request-bytes 513MiB: 1KiB to 512MiB is expected"),
            ("--max-request-bytes 0", "--max-request-bytes 0: 1KiB to 512MiB is expected"),
            (
                "--max-reply-bytes 128MiB",
                "--output-limit 64MiB is less than --max-reply-bytes 128MiB: a client would be closed for a reply \
                 that is allowed",
            ),
            ("--embedded-max-bytes 1k", "--embedded-max-bytes 1KiB: 1MiB or more is expected"),
            (
                "--embedded-max-bytes 1GiB --storage redis://:secret@h",
                "--embedded-max-bytes is for --storage embedded, and the storage is redis://...@h:6379",
            ),
            (
                "--subscriber-limit 4MiB --subscriber-slow-limit 8MiB",
                "--subscriber-slow-limit 8MiB is more than --subscriber-limit 4MiB, at which a subscriber is closed at \
                 once: at most that is expected",
            ),
            ("--max-clients-bytes 1MiB", "--max-clients-bytes 1MiB: 16MiB or more is expected"),
            ("--idle-timeout 721h", "--idle-timeout: at most 720h is expected"),
            ("--reconcile 2s", "--reconcile 2s: 1ms to 1s is expected"),
            (
                "--shadow rate --disable hot,rate",
                "--shadow rate and --disable rate: a layer cannot be in both",
            ),
            ("--shadow window,replicas", "--shadow replicas: these can only be switched off (--disable)"),
            (
                "--shadow window,queue --disable queue,shed",
                "--shadow queue and --disable queue: a layer cannot be in both",
            ),
            (
                "--shadow rate --limiter static",
                "--shadow rate is for --limiter buckets, and the limiter is static",
            ),
            (
                "--fleet redis://h --limiter static",
                "--fleet is for --limiter buckets, and the limiter is static",
            ),
            ("--fleet-users 10", "--fleet-users is for --fleet, which says where they are counted"),
            (
                "--fleet redis://h --fleet-users 10",
                "--fleet-users: names of users are hashed with the password in --fleet, and there is none: \
                 redis://:PASSWORD@HOST:PORT is expected, the same for all weirs",
            ),
            (
                "--fleet redis://h --disable hot,rate",
                "--fleet shares quotas, and --disable rate switches them off",
            ),
            (
                "--admin off --admin-token-file /a",
                "--admin-token-file is for the admin port, and there is none: --admin ADDRESS is expected with it",
            ),
            (
                "--admin off --admin-host a",
                "--admin-host is for the admin port, and there is none: --admin ADDRESS is expected with it",
            ),
            (
                "--http off --http-allow-origin http://a",
                "--http-allow-origin is for HTTP, and there is none: --http ADDRESS or --tls-http ADDRESS is expected \
                 with it",
            ),
            (
                "--fleet rediss://h --storage redis://h --storage-tls-ca c --storage-tls-name h",
                "--storage-tls-name is for the stores of --storage, and they are without TLS: rediss://... or \
                 clusters://... is expected with it",
            ),
            ("--unix /a --storage unix:/a", "--unix and --storage are both /a"),
            ("--admin-token=", "--admin-token: a token is 1 to 1024 visible ASCII letters without spaces"),
            (&long, "--unix: the path of a socket has 1 to 107 bytes, and this one has 108"),
        ];
        for (flags, complaint) in cases {
            assert_eq!(config(flags).map(|_| ()), Err(complaint.to_owned()), "{flags}");
        }
        assert!(config("--listen off --unix /a").is_ok());
        assert!(config("--shadow shed,queue,window --limiter static").is_ok());
        assert!(config("--listen 127.0.0.1:0 --listen 127.0.0.1:0").is_ok());
    }
}
