//! Command line of weir. Every flag has an environment twin: `--max-clients` is `WEIR_MAX_CLIENTS`.

use std::path::PathBuf;
use std::time::Duration;

use clap::builder::BoolishValueParser;
use clap::{ArgAction, CommandFactory, Parser, Subcommand};

use super::address::ListenAddress;
use super::cores::Cores;
use super::hot::{HotScripts, Share};
use super::layers::{Layer, LimiterKind};
use super::overload::ShedLevels;
use super::storage::{AddressParser, FleetStore, Storage};
use super::token::Secret;
use super::top::TopFlags;
use super::units::{Size, duration, number, positive_duration, request_units};
use crate::values::limits::{
    CLIENTS_MAX, FLEET_KEYS_MAX, FLEET_NAMESPACE_BYTES_MAX, MONITORS_MAX, PRIVATE_LINKS_MAX, SHARDS_MAX,
    SHARED_CHANNELS_MAX,
};

const LISTENING: &str = "Listening";
const STORAGE: &str = "Stores";
const QUOTAS: &str = "Quotas";
const FLEET: &str = "Fleet";
const OVERLOAD: &str = "Overload";
const HOT_KEYS: &str = "Hot keys";
const TLS: &str = "TLS";
const HTTP: &str = "HTTP";
const LIMITS: &str = "Limits";
const CORES: &str = "CPUs";

const EXAMPLES: &str = "\
Durations are written 500us, 10ms, 1s, 5m or 2h; sizes 65536, 64KiB (or 64k), 16MiB, 1GiB.
--help-all also lists the flags that are rarely needed.

Examples:
  weir                                              serve an embedded store at 127.0.0.1:7379
  weir --storage redis://10.0.0.1:6379,10.0.0.2:6379
                                                    spread the keys over two servers
  weir --listen 0.0.0.0:7379 --quotas quotas.toml --check
                                                    check flags and quota file, and exit
  weir top --sort tenant                            show the state of the weir with admin port 127.0.0.1:7381";

/// Largest value of `--queue-limit`, in requests. Each request in a queue takes some hundred bytes besides
/// its own bytes.
const QUEUE_REQUESTS_MAX: u64 = 1_000_000;
/// Largest value of `--window-max`: the most requests that one connection to a server can have in flight.
const WINDOW_MAX: u64 = u16::MAX as u64;

/// Traffic management between Redis-protocol clients and a shared key-value store.
///
/// With no flags weir serves an embedded store at once.
#[derive(Clone, Debug, Parser)]
#[command(name = "weir", version, after_help = EXAMPLES, max_term_width = 110, allow_negative_numbers = true)]
#[command(args_conflicts_with_subcommands = true, disable_help_subcommand = true)]
pub struct Flags {
    /// Address where clients connect; may be given several times. Port 0 takes any free port, off none
    #[arg(long, env = "WEIR_LISTEN", value_name = "ADDRESS", help_heading = LISTENING)]
    #[arg(value_delimiter = ',', default_value = "127.0.0.1:7379")]
    pub listen: Vec<ListenAddress>,

    /// Unix socket where clients connect too. With `--listen off` it is the only one
    #[arg(long, env = "WEIR_UNIX", value_name = "PATH", help_heading = LISTENING)]
    pub unix: Option<PathBuf>,

    /// Address of the admin port, which serves metrics, health and quotas over HTTP; or off
    #[arg(long, env = "WEIR_ADMIN", value_name = "ADDRESS", help_heading = LISTENING)]
    #[arg(default_value = "127.0.0.1:7381")]
    pub admin: ListenAddress,

    /// Name by which the admin port may be requested, besides IP addresses and localhost; may be given
    /// several times. All other names are refused, because a web page could read the port through a name of
    /// its own (DNS rebinding)
    #[arg(long, env = "WEIR_ADMIN_HOST", value_name = "NAME", help_heading = LISTENING)]
    #[arg(value_delimiter = ',', value_parser = host_name)]
    pub admin_host: Vec<String>,

    /// Token that `POST /config/quotas` requires, as `Authorization: Bearer TOKEN`. Without a token weir
    /// accepts quotas only if the admin port is on a loopback address. Set it in the environment or in a
    /// file, because other users can read command lines
    #[arg(long, env = "WEIR_ADMIN_TOKEN", value_name = "TOKEN", help_heading = LISTENING)]
    #[arg(hide_env_values = true, conflicts_with = "admin_token_file")]
    pub admin_token: Option<Secret>,

    /// File that holds the token of --admin-token; read again on SIGHUP
    #[arg(long, env = "WEIR_ADMIN_TOKEN_FILE", value_name = "FILE", help_heading = LISTENING)]
    pub admin_token_file: Option<PathBuf>,

    /// Unix socket for upgrades without closed connections. If another weir listens there, this process takes
    /// over its listening sockets and its clients, and the other process exits. Otherwise this process starts
    /// as usual and listens there. SIGUSR2 makes it start its successor
    #[arg(long, env = "WEIR_TAKEOVER", value_name = "PATH", help_heading = LISTENING)]
    pub takeover: Option<PathBuf>,

    /// Stores behind weir: embedded, redis://HOST:PORT[,HOST:PORT...], cluster://HOST:PORT[,HOST:PORT...]
    /// (some nodes of a cluster) or unix:PATH; with TLS rediss:// and clusters://. For stores that require a
    /// login write redis://USER:PASSWORD@HOST:PORT, and set it in the environment, because other users can
    /// read command lines
    #[arg(long, env = "WEIR_STORAGE", value_name = "STORAGE", help_heading = STORAGE)]
    #[arg(value_parser = AddressParser::<Storage>::new(), hide_env_values = true, default_value = "embedded")]
    pub storage: Storage,

    /// Memory that the embedded store may hold before it refuses writes [default: 256MiB]
    #[arg(long, env = "WEIR_EMBEDDED_MAX_BYTES", value_name = "SIZE", help_heading = STORAGE)]
    pub embedded_max_bytes: Option<Size>,

    /// Connections to stores that clients may have to themselves, over all shards in equal parts, rounded up:
    /// one for each blocking command that waits and each client that watches keys, one per store for each
    /// client that subscribes or tracks keys. A tenant may hold four of five. With 0 such commands are
    /// refused
    #[arg(long, env = "WEIR_PRIVATE_LINKS", value_name = "N", help_heading = STORAGE)]
    #[arg(value_parser = number(0, PRIVATE_LINKS_MAX), default_value = "1000")]
    pub private_links: u64,

    /// Number of databases that clients may select, 1 to 256. weir opens connections to a database when a client
    /// first uses it; the store must have as many. A Redis Cluster has one, a Valkey Cluster as many as its setting
    /// cluster-databases says, the embedded store 16
    #[arg(long, env = "WEIR_DATABASES", value_name = "N", help_heading = STORAGE, hide = true)]
    #[arg(value_parser = number(1, 256), default_value = "16")]
    pub databases: u64,

    /// Longest time without a byte from a store that owes a reply. Then weir closes the connection, and all
    /// requests on it fail
    #[arg(long, env = "WEIR_BACKEND_TIMEOUT", value_name = "DURATION", help_heading = STORAGE)]
    #[arg(value_parser = positive_duration, default_value = "5s")]
    pub backend_timeout: Duration,

    /// Longest time that weir takes to connect to a store
    #[arg(long, env = "WEIR_BACKEND_CONNECT_TIMEOUT", value_name = "DURATION", help_heading = STORAGE, hide = true)]
    #[arg(value_parser = positive_duration, default_value = "1s")]
    pub backend_connect_timeout: Duration,

    /// Time between lookups of the stores' names. weir connects to the new address when it changes; 0 looks
    /// names up only at the start
    #[arg(long, env = "WEIR_STORAGE_LOOKUP", value_name = "DURATION", help_heading = STORAGE, hide = true)]
    #[arg(value_parser = duration, default_value = "5s")]
    pub storage_lookup: Duration,

    /// Connections of each shard to each store, for each protocol version (RESP2, RESP3) that clients use
    #[arg(long, env = "WEIR_BACKEND_CONNECTIONS", value_name = "N", help_heading = STORAGE, hide = true)]
    #[arg(value_parser = number(1, 64), default_value = "1")]
    pub backend_connections: u64,

    /// Further connections of each shard to each store for expensive requests. Replies of one connection come
    /// in order, so requests behind an expensive one wait for it (head-of-line blocking). 0 sends expensive
    /// requests on the connections of all others
    #[arg(long, env = "WEIR_HEAVY_CONNECTIONS", value_name = "N", help_heading = STORAGE, hide = true)]
    #[arg(value_parser = number(0, 64), default_value = "1")]
    pub heavy_connections: u64,

    /// Estimated price, in request units, from which a request is expensive (--heavy-connections)
    #[arg(long, env = "WEIR_HEAVY_RU", value_name = "RU", help_heading = STORAGE, hide = true)]
    #[arg(value_parser = request_units, default_value = "20")]
    pub heavy_ru: u64,

    /// Quota file: tenants, their passwords and their quotas; read again when it changes and on SIGHUP.
    /// Without it every client may use weir without a limit
    #[arg(long, env = "WEIR_QUOTAS", value_name = "FILE", help_heading = QUOTAS)]
    pub quotas: Option<PathBuf>,

    /// Price of any request, in request units; weir-calibrate measures prices that fit a store
    #[arg(long, env = "WEIR_RU_BASE", value_name = "RU", help_heading = QUOTAS, hide = true)]
    #[arg(value_parser = request_units, default_value = "1")]
    pub ru_base: u64,

    /// Price of a read of a hot key that is answered from memory, instead of --ru-base, in request units.
    /// Such a read costs the store nothing, but about as much of weir's own CPU as any other: set 1 where
    /// weir's CPU is the bottleneck
    #[arg(long, env = "WEIR_RU_HIT", value_name = "RU", help_heading = QUOTAS, hide = true)]
    #[arg(value_parser = request_units, default_value = "0.1")]
    pub ru_hit: u64,

    /// Price of 1KiB of a request, in request units
    #[arg(long, env = "WEIR_RU_KIB_IN", value_name = "RU", help_heading = QUOTAS, hide = true)]
    #[arg(value_parser = request_units, default_value = "1")]
    pub ru_kib_in: u64,

    /// Price of 1KiB of a reply, in request units
    #[arg(long, env = "WEIR_RU_KIB_OUT", value_name = "RU", help_heading = QUOTAS, hide = true)]
    #[arg(value_parser = request_units, default_value = "0.25")]
    pub ru_kib_out: u64,

    /// Price of an element of a reply, or of a key of a request that reads several keys, in request units
    #[arg(long, env = "WEIR_RU_ROW", value_name = "RU", help_heading = QUOTAS, hide = true)]
    #[arg(value_parser = request_units, default_value = "0.02")]
    pub ru_row: u64,

    /// Price of a key of a request that writes several keys, in request units
    #[arg(long, env = "WEIR_RU_KEY", value_name = "RU", help_heading = QUOTAS, hide = true)]
    #[arg(value_parser = request_units, default_value = "0.06")]
    pub ru_key: u64,

    /// Price of a millisecond of latency above the usual latency of the same kind of request, in request
    /// units
    #[arg(long, env = "WEIR_RU_LATENCY_MS", value_name = "RU", help_heading = QUOTAS, hide = true)]
    #[arg(value_parser = request_units, default_value = "0.5")]
    pub ru_latency_ms: u64,

    /// Price of a millisecond for which a request keeps its store busy, in request units, if neither the
    /// request nor its reply shows how much work it is; 0 = off
    #[arg(long, env = "WEIR_RU_BUSY_MS", value_name = "RU", help_heading = QUOTAS, hide = true)]
    #[arg(value_parser = request_units, default_value = "20")]
    pub ru_busy_ms: u64,

    /// Algorithm that enforces quotas
    #[arg(long, env = "WEIR_LIMITER", value_name = "LIMITER", help_heading = QUOTAS, hide = true)]
    #[arg(value_enum, default_value = "buckets")]
    pub limiter: LimiterKind,

    /// Time between reconciliations, in which shards report what they spent of quotas, from 1ms to 1s
    #[arg(long, env = "WEIR_RECONCILE", value_name = "DURATION", help_heading = QUOTAS, hide = true)]
    #[arg(value_parser = positive_duration, default_value = "10ms")]
    pub reconcile: Duration,

    /// Redis in which several weirs count their demand, so that they share quotas: redis://HOST:PORT, or
    /// redis://USER:PASSWORD@HOST:PORT, which belongs in the environment; rediss:// with TLS. Each weir
    /// enforces its share, in proportion to its demand. No request waits for this Redis [default: quotas
    /// apply to this process alone]
    #[arg(long, env = "WEIR_FLEET", value_name = "STORE", help_heading = FLEET)]
    #[arg(value_parser = AddressParser::<FleetStore>::new(), hide_env_values = true)]
    pub fleet: Option<FleetStore>,

    /// Name of the fleet: weirs with the same name in one --fleet store share quotas. Its keys in the store
    /// begin with {weir:NAME}
    #[arg(long, env = "WEIR_FLEET_NAMESPACE", value_name = "NAME", help_heading = FLEET)]
    #[arg(value_parser = namespace, default_value = "weir")]
    pub fleet_namespace: String,

    /// Maximum number of users whose demand is counted in --fleet too, from 0 to 1000: those with the highest
    /// demand on this host. Other users may spend an equal part of their quota on each host. With 0 each weir
    /// enforces users' quotas for itself
    #[arg(long, env = "WEIR_FLEET_USERS", value_name = "N", help_heading = FLEET)]
    #[arg(value_parser = number(0, FLEET_KEYS_MAX as u64), default_value = "0")]
    pub fleet_users: u64,

    /// Layers to switch off.
    #[arg(long, env = "WEIR_DISABLE", value_name = "LAYER,...", help_heading = OVERLOAD)]
    #[arg(value_delimiter = ',', help = Layer::help_of_disable())]
    pub disable: Vec<Layer>,

    /// Layers in dry run.
    #[arg(long, env = "WEIR_SHADOW", value_name = "LAYER,...", help_heading = OVERLOAD)]
    #[arg(value_delimiter = ',', help = Layer::help_of_shadow())]
    pub shadow: Vec<Layer>,

    /// Maximum number of requests that wait for each store, on each shard. When so many wait, further
    /// requests are refused until a quarter of the queue is gone
    #[arg(long, env = "WEIR_QUEUE_LIMIT", value_name = "N", help_heading = OVERLOAD, hide = true)]
    #[arg(value_parser = number(1, QUEUE_REQUESTS_MAX), default_value = "8192")]
    pub queue_limit: u64,

    /// Maximum number of bytes of requests that wait on each shard. Stores have equal parts of it, at least
    /// 1MiB each
    #[arg(long, env = "WEIR_QUEUE_BYTES", value_name = "SIZE", help_heading = OVERLOAD, hide = true)]
    #[arg(default_value = "64MiB")]
    pub queue_bytes: Size,

    /// Longest time that a request waits in an overload, which means that clients ask for more than a store
    /// can do. The newest requests are then served first
    #[arg(long, env = "WEIR_QUEUE_TARGET", value_name = "DURATION", help_heading = OVERLOAD, hide = true)]
    #[arg(value_parser = positive_duration, default_value = "5ms")]
    pub queue_target: Duration,

    /// Interval over which an overload is detected, from 10ms to 1s: a queue that was not empty for one and a
    /// half intervals, and hardly became shorter, means overload. Without overload a request waits one
    /// interval at most
    #[arg(long, env = "WEIR_QUEUE_INTERVAL", value_name = "DURATION", help_heading = OVERLOAD, hide = true)]
    #[arg(value_parser = positive_duration, default_value = "100ms")]
    pub queue_interval: Duration,

    /// Smallest window: requests that each shard may have in flight at each store, however slow the store is
    #[arg(long, env = "WEIR_WINDOW_MIN", value_name = "N", help_heading = OVERLOAD, hide = true)]
    #[arg(value_parser = number(1, WINDOW_MAX), default_value = "1")]
    pub window_min: u64,

    /// Largest window: requests that each shard may have in flight at each store, however fast the store is.
    /// weir finds the smallest window that keeps the store busy, between --window-min and --window-max
    #[arg(long, env = "WEIR_WINDOW_MAX", value_name = "N", help_heading = OVERLOAD, hide = true)]
    #[arg(value_parser = number(1, WINDOW_MAX), default_value = "4096")]
    pub window_max: u64,

    /// Three latency ratios (usual latency divided by the present one). Below the first, sheddable requests
    /// cost more; below the second, batch requests too; below the third, sheddable requests are refused
    #[arg(long, env = "WEIR_SHED_LEVELS", value_name = "RATIO,RATIO,RATIO", help_heading = OVERLOAD, hide = true)]
    #[arg(default_value = "0.7,0.5,0.3")]
    pub shed_levels: ShedLevels,

    /// Longest time that a reply to a read of a hot key is kept, counted from its request, from 10ms to 60s.
    /// Writes that do not pass through this weir become visible after that time at the latest
    #[arg(long, env = "WEIR_HOT_TTL", value_name = "DURATION", help_heading = HOT_KEYS)]
    #[arg(value_parser = positive_duration, default_value = "1s")]
    pub hot_ttl: Duration,

    /// Longest time that a reply to a read of a hot key is kept while the store tells of each write of the key,
    /// wherever it is made. Clusters, whole hashes whose fields may expire, and stores without CLIENT TRACKING have
    /// --hot-ttl
    #[arg(long, env = "WEIR_HOT_TTL_TRACKED", value_name = "DURATION", help_heading = HOT_KEYS)]
    #[arg(value_parser = positive_duration, default_value = "10s")]
    pub hot_ttl_tracked: Duration,

    /// Maximum number of bytes of replies to reads of hot keys that each shard keeps; copies of other shards'
    /// replies may take as many again
    #[arg(long, env = "WEIR_HOT_BYTES", value_name = "SIZE", help_heading = HOT_KEYS, default_value = "16MiB")]
    pub hot_bytes: Size,

    /// Keys that a script may write: any key of its store, or only the keys that its caller names
    #[arg(long, env = "WEIR_HOT_SCRIPTS", value_name = "TRUST", help_heading = HOT_KEYS)]
    #[arg(value_enum, default_value_t = HotScripts::Strict)]
    pub hot_scripts: HotScripts,

    /// Maximum number of writes of one hot key per second; further ones are refused [default: no limit]
    #[arg(long, env = "WEIR_HOT_WRITE_RATE", value_name = "N", help_heading = HOT_KEYS)]
    #[arg(value_parser = number(1, 1_000_000_000))]
    pub hot_write_rate: Option<u64>,

    /// Requests for one key per second that make it hot, if --hot-share is reached too. Replies to reads of
    /// hot keys are kept for --hot-ttl
    #[arg(long, env = "WEIR_HOT_RATE", value_name = "N", help_heading = HOT_KEYS, hide = true)]
    #[arg(value_parser = number(1, 1_000_000_000), default_value = "500")]
    pub hot_rate: u64,

    /// Share of a shard's requests that makes a key hot, if --hot-rate is reached too
    #[arg(long, env = "WEIR_HOT_SHARE", value_name = "PERCENT", help_heading = HOT_KEYS, hide = true, default_value = "2%")]
    pub hot_share: Share,

    /// Maximum number of replies to reads of hot keys that each shard keeps
    #[arg(long, env = "WEIR_HOT_ENTRIES", value_name = "N", help_heading = HOT_KEYS, hide = true)]
    #[arg(value_parser = number(1, 1_000_000), default_value = "1024")]
    pub hot_entries: u64,

    /// Reads of one hot key per second, answered for other shards, from which on every shard with a tenth of
    /// them gets a copy of the reply
    #[arg(long, env = "WEIR_HOT_COPY_RATE", value_name = "N", help_heading = HOT_KEYS, hide = true)]
    #[arg(value_parser = number(1, 1_000_000_000), default_value = "20000")]
    pub hot_copy_rate: u64,

    /// Address where clients connect with TLS (1.2 or 1.3); may be given several times. None by default
    #[arg(long, env = "WEIR_TLS_LISTEN", value_name = "ADDRESS", help_heading = TLS)]
    #[arg(value_delimiter = ',')]
    pub tls_listen: Vec<ListenAddress>,

    /// File with weir's certificate for clients (PEM), followed by its chain up to the certificate that
    /// clients trust. All TLS files, also those for stores, are read again when one of them changes and on
    /// SIGHUP. If a file is then invalid, weir logs the error and keeps the old certificates
    #[arg(long, env = "WEIR_TLS_CERT", value_name = "FILE", help_heading = TLS)]
    pub tls_cert: Option<PathBuf>,

    /// File with the private key of --tls-cert (PEM)
    #[arg(long, env = "WEIR_TLS_KEY", value_name = "FILE", help_heading = TLS)]
    pub tls_key: Option<PathBuf>,

    /// File with the authorities that sign certificates of clients (PEM). With this flag each client needs a
    /// certificate, and is logged in as the tenant that the certificate's common name or first DNS name
    /// states, if there is such a tenant
    #[arg(long, env = "WEIR_TLS_CLIENT_CA", value_name = "FILE", help_heading = TLS)]
    pub tls_client_ca: Option<PathBuf>,

    /// File with the revocation lists for certificates of clients (PEM): one list of each authority between
    /// --tls-client-ca and the client, or the client is refused. A list past its date still holds
    #[arg(long, env = "WEIR_TLS_CLIENT_CRL", value_name = "FILE", help_heading = TLS)]
    pub tls_client_crl: Option<PathBuf>,

    /// File with the authorities that sign the certificates of stores (PEM): for rediss:// and clusters:// in
    /// --storage and --fleet
    #[arg(long, env = "WEIR_STORAGE_TLS_CA", value_name = "FILE", help_heading = TLS)]
    pub storage_tls_ca: Option<PathBuf>,

    /// Name in the certificates of the stores of --storage [default: each store's host]
    #[arg(long, env = "WEIR_STORAGE_TLS_NAME", value_name = "NAME", help_heading = TLS)]
    pub storage_tls_name: Option<String>,

    /// File with weir's certificate for stores that require client certificates (PEM), followed by its chain
    /// up to the certificate that the stores trust
    #[arg(long, env = "WEIR_STORAGE_TLS_CERT", value_name = "FILE", help_heading = TLS)]
    pub storage_tls_cert: Option<PathBuf>,

    /// File with the private key of --storage-tls-cert (PEM)
    #[arg(long, env = "WEIR_STORAGE_TLS_KEY", value_name = "FILE", help_heading = TLS)]
    pub storage_tls_key: Option<PathBuf>,

    /// Longest time that a handshake with a client takes, before the connection is closed
    #[arg(long, env = "WEIR_TLS_HANDSHAKE_TIMEOUT", value_name = "DURATION", help_heading = TLS, hide = true)]
    #[arg(value_parser = positive_duration, default_value = "10s")]
    pub tls_handshake_timeout: Duration,

    /// Maximum number of handshakes with clients per second; further ones wait
    #[arg(long, env = "WEIR_TLS_HANDSHAKE_RATE", value_name = "N", help_heading = TLS, hide = true)]
    #[arg(value_parser = number(1, 1_000_000), default_value = "500")]
    pub tls_handshake_rate: u64,

    /// Address where the same keys are served over HTTP; may be given several times. None by default
    #[arg(long, env = "WEIR_HTTP", value_name = "ADDRESS", help_heading = HTTP)]
    #[arg(value_delimiter = ',')]
    pub http: Vec<ListenAddress>,

    /// Address where the same keys are served over HTTP with TLS; may be given several times. None by default
    #[arg(long, env = "WEIR_TLS_HTTP", value_name = "ADDRESS", help_heading = HTTP)]
    #[arg(value_delimiter = ',')]
    pub tls_http: Vec<ListenAddress>,

    /// Origin, such as `https://app.example`, whose web pages may send HTTP requests (CORS); may be given
    /// several times. Requests of web pages of other origins are refused
    #[arg(long, env = "WEIR_HTTP_ALLOW_ORIGIN", value_name = "ORIGIN", help_heading = HTTP)]
    #[arg(value_delimiter = ',', value_parser = web_origin)]
    pub http_allow_origin: Vec<String>,

    /// Name by which HTTP requests without an Authorization header may reach weir, besides IP addresses and
    /// localhost; may be given several times. All other names are refused, because a web page could read keys
    /// through a name of its own (DNS rebinding)
    #[arg(long, env = "WEIR_HTTP_ALLOW_HOST", value_name = "NAME", help_heading = HTTP)]
    #[arg(value_delimiter = ',', value_parser = host_name)]
    pub http_allow_host: Vec<String>,

    /// Maximum number of clients that are connected at once, over all shards
    #[arg(long, env = "WEIR_MAX_CLIENTS", value_name = "N", help_heading = LIMITS)]
    #[arg(value_parser = number(1, CLIENTS_MAX), default_value = "10000")]
    pub max_clients: u64,

    /// Maximum number of clients of one tenant that are connected at once, if the quota file names several
    /// tenants and has no `max_clients` for this one [default: four fifths of --max-clients]
    #[arg(long, env = "WEIR_MAX_TENANT_CLIENTS", value_name = "N", help_heading = LIMITS)]
    #[arg(value_parser = number(1, CLIENTS_MAX))]
    pub max_tenant_clients: Option<u64>,

    /// Maximum number of bytes that weir holds for all clients together: requests that are not complete,
    /// replies that are not read. Above it weir closes the largest clients of the tenant that holds most. At least 16MiB
    #[arg(long, env = "WEIR_MAX_CLIENTS_BYTES", value_name = "SIZE", help_heading = LIMITS)]
    #[arg(default_value = "1GiB")]
    pub max_clients_bytes: Size,

    /// Largest request, from 1KiB to 512MiB
    #[arg(long, env = "WEIR_MAX_REQUEST_BYTES", value_name = "SIZE", help_heading = LIMITS)]
    #[arg(default_value = "16MiB")]
    pub max_request_bytes: Size,

    /// Largest reply of a store, from 1KiB to 2GiB and at most --output-limit. The client gets an error
    /// instead of a larger reply, and its connection stays open
    #[arg(long, env = "WEIR_MAX_REPLY_BYTES", value_name = "SIZE", help_heading = LIMITS)]
    #[arg(default_value = "64MiB")]
    pub max_reply_bytes: Size,

    /// Maximum number of bytes of replies that wait for one client that reads too slowly, before it is closed
    #[arg(long, env = "WEIR_OUTPUT_LIMIT", value_name = "SIZE", help_heading = LIMITS)]
    #[arg(default_value = "64MiB")]
    pub output_limit: Size,

    /// Clients that may watch requests with MONITOR at once, over all shards. A tenant that is no administrator may
    /// have a quarter of them. With 0 MONITOR is refused
    #[arg(long, env = "WEIR_MONITORS", value_name = "N", help_heading = LIMITS)]
    #[arg(value_parser = number(0, MONITORS_MAX), default_value = "16")]
    pub monitors: u64,

    /// Longest time that PUBLISH waits for subscriptions of its tenant to the same channel, or to any pattern, that
    /// came before and that other cores have yet to read, or stores to acknowledge. With 0 it may overtake them
    #[arg(long, env = "WEIR_PUBLISH_WAIT", value_name = "DURATION", help_heading = LIMITS, hide = true)]
    #[arg(value_parser = duration, default_value = "100ms")]
    pub publish_wait: Duration,

    /// Maximum number of bytes of messages that wait for one subscriber that reads too slowly, before it is closed; at
    /// most --output-limit counts
    #[arg(long, env = "WEIR_SUBSCRIBER_LIMIT", value_name = "SIZE", help_heading = LIMITS)]
    #[arg(default_value = "32MiB")]
    pub subscriber_limit: Size,

    /// Bytes of messages that may wait for one subscriber for at most --subscriber-slow-time [default: 8MiB,
    /// or --subscriber-limit if that is less]
    #[arg(long, env = "WEIR_SUBSCRIBER_SLOW_LIMIT", value_name = "SIZE", help_heading = LIMITS, hide = true)]
    pub subscriber_slow_limit: Option<Size>,

    /// Longest time that more than --subscriber-slow-limit may wait for one subscriber, before it is closed
    #[arg(long, env = "WEIR_SUBSCRIBER_SLOW_TIME", value_name = "DURATION", help_heading = LIMITS, hide = true)]
    #[arg(value_parser = duration, default_value = "60s")]
    pub subscriber_slow_time: Duration,

    /// Channels and patterns with one subscription for all clients of this process (pubsub = "shared" in the
    /// quota file), over all shards in equal parts, rounded up; and as many patterns, at most 1,024. A tenant
    /// may have four of five. Beyond that SUBSCRIBE is refused
    #[arg(long, env = "WEIR_SHARED_CHANNELS", value_name = "N", help_heading = LIMITS)]
    #[arg(value_parser = number(1, SHARED_CHANNELS_MAX), default_value = "65536")]
    pub shared_channels: u64,

    /// Maximum number of elements per step of SCAN, HSCAN, SSCAN and ZSCAN; a larger COUNT is lowered to this
    #[arg(long, env = "WEIR_SCAN_COUNT_MAX", value_name = "N", help_heading = LIMITS, hide = true)]
    #[arg(value_parser = number(1, 1_000_000_000), default_value = "10000")]
    pub scan_count_max: u64,

    /// Time after which clients that send nothing are closed; 0 for never
    #[arg(long, env = "WEIR_IDLE_TIMEOUT", value_name = "DURATION", help_heading = LIMITS)]
    #[arg(value_parser = duration, default_value = "0")]
    pub idle_timeout: Duration,

    /// Longest time that weir waits for requests in flight after SIGTERM
    #[arg(long, env = "WEIR_DRAIN_TIMEOUT", value_name = "DURATION", help_heading = LIMITS)]
    #[arg(value_parser = duration, default_value = "10s")]
    pub drain_timeout: Duration,

    /// Time after which clients that must log in, and have not, are closed; 0 for never
    #[arg(long, env = "WEIR_LOGIN_TIMEOUT", value_name = "DURATION", help_heading = LIMITS, hide = true)]
    #[arg(value_parser = duration, default_value = "10s")]
    pub login_timeout: Duration,

    /// Time in which clients must read at least 1 MiB of the replies that wait for them, or are closed
    #[arg(long, env = "WEIR_SEND_TIMEOUT", value_name = "DURATION", help_heading = LIMITS, hide = true)]
    #[arg(value_parser = positive_duration, default_value = "30s")]
    pub send_timeout: Duration,

    /// CPUs to run on, one shard pinned to each: a list such as 0-3,5, or a number [default: all]
    #[arg(long, env = "WEIR_CORES", value_name = "CPUS", help_heading = CORES)]
    pub cores: Option<Cores>,

    /// Number of shards, at most one per CPU of --cores. Without --cores shards are pinned to CPUs only if
    /// there is one for each CPU [default: one per CPU, or as many as a container's CPU limit allows]
    #[arg(long, env = "WEIR_SHARDS", value_name = "N", help_heading = CORES, hide = true)]
    #[arg(value_parser = number(1, SHARDS_MAX as u64))]
    pub shards: Option<u64>,

    /// Microseconds for which an idle shard polls for work before it sleeps. Saves the time to wake up, and
    /// burns the CPU: only for CPUs that nothing else needs
    #[arg(long, env = "WEIR_BUSY_POLL_US", value_name = "N", help_heading = CORES, hide = true)]
    #[arg(value_parser = number(0, 1_000_000), default_value = "0")]
    pub busy_poll_us: u64,

    /// Checks flags and quota file, reports what is wrong, and exits
    #[arg(long, env = "WEIR_CHECK", action = ArgAction::SetTrue, value_parser = BoolishValueParser::new())]
    pub check: bool,

    /// Prints help for all flags, also for those that are rarely needed, and exits
    #[arg(long, action = ArgAction::SetTrue)]
    pub help_all: bool,

    /// Subcommand other than serving.
    #[command(subcommand)]
    pub command: Option<Command>,
}

/// Subcommands of weir besides serving.
#[derive(Clone, Debug, Subcommand)]
pub enum Command {
    /// Shows the state of a running weir in a terminal, once per second
    Top(TopFlags),
}

impl Flags {
    /// Returns the command line with no flag hidden: for `--help-all`, man pages and completions.
    pub fn with_rare_flags() -> clap::Command {
        Self::command().mut_args(|flag| flag.hide(false))
    }
}

/// Reads the value of `--fleet-namespace`, with which the names of the fleet's keys begin. The error is a
/// text for the operator.
fn namespace(text: &str) -> Result<String, String> {
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.:".contains(&byte);
    if (1..=FLEET_NAMESPACE_BYTES_MAX).contains(&text.len()) && text.bytes().all(fits) {
        return Ok(text.to_owned());
    }
    Err(format!("1 to {FLEET_NAMESPACE_BYTES_MAX} letters, digits, '-', '_', '.' or ':' are expected"))
}

/// Reads the origin of a web page, and returns it in the form that browsers send. The error is a text for the
/// operator.
fn web_origin(text: &str) -> Result<String, String> {
    let lower = text.to_ascii_lowercase();
    let parts = lower.split_once("://").filter(|(scheme, host)| {
        let fits = |byte: u8| byte.is_ascii_graphic() && !b"/?#@*\\\"".contains(&byte);
        !scheme.is_empty()
            && scheme.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"+-.".contains(&byte))
            && !host.is_empty()
            && host.bytes().all(fits)
    });
    let (scheme, host) =
        parts.ok_or("an origin is expected, such as https://app.example or http://10.0.0.5:3000")?;
    let usual = match scheme {
        "http" => ":80",
        "https" => ":443",
        _ => "",
    };
    Ok(format!("{scheme}://{}", host.strip_suffix(usual).unwrap_or(host)))
}

/// Reads a host name without a port. The error is a text for the operator.
fn host_name(text: &str) -> Result<String, String> {
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    let name = text.strip_suffix('.').unwrap_or(text);
    if !name.is_empty() && name.bytes().all(fits) {
        return Ok(name.to_ascii_lowercase());
    }
    Err("a name without a port is expected, such as weir.internal".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::TopSort;

    #[test]
    fn the_definition_holds_together() {
        Flags::command().debug_assert();
    }

    #[test]
    fn every_flag_has_its_environment_twin_and_its_place_in_the_help() {
        let command = Flags::command();
        for argument in command.get_arguments() {
            let Some(flag) = argument.get_long().filter(|flag| *flag != "help-all") else { continue };
            let twin = format!("WEIR_{}", flag.to_uppercase().replace('-', "_"));
            assert_eq!(argument.get_env().and_then(|name| name.to_str()), Some(twin.as_str()), "{flag}");
            assert!(argument.get_help().is_some(), "{flag}");
            assert!(flag == "check" || argument.get_help_heading().is_some(), "{flag}");
        }
    }

    #[test]
    fn top_has_flags_of_its_own() {
        let flags = Flags::try_parse_from(["weir", "top", "--sort", "key", "--once"]).expect("right");
        let Some(Command::Top(top)) = flags.command else { panic!("{:?}", flags.command) };
        assert_eq!((top.sort, top.once, top.json, top.no_color), (TopSort::Key, true, false, false));
        let flags = Flags::try_parse_from(["weir", "top", "--no-color"]).expect("right");
        assert!(matches!(flags.command, Some(Command::Top(top)) if top.no_color));
        assert!(Flags::try_parse_from(["weir"]).expect("right").command.is_none());
        for wrong in
            [&["weir", "--shards", "2", "top"][..], &["weir", "top", "--shards", "2"], &["weir", "help"]]
        {
            assert!(Flags::try_parse_from(wrong).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn a_complaint_names_the_flag_what_was_given_and_what_would_be_right() {
        let cases = [
            (
                "--max-clients=many",
                "invalid value 'many' for '--max-clients <N>': a whole number from 1 to 1000000 is expected",
            ),
            (
                "--shards=257",
                "invalid value '257' for '--shards <N>': a whole number from 1 to 256 is expected",
            ),
            (
                "--drain-timeout=10",
                "invalid value '10' for '--drain-timeout <DURATION>': a duration needs a unit, such as 500us, 10ms, \
                 1s, 5m or 2h",
            ),
            (
                "--backend-timeout=0s",
                "invalid value '0s' for '--backend-timeout <DURATION>': a duration above 0 is expected, such as 10ms \
                 or 1s",
            ),
            (
                "--max-request-bytes=lots",
                "invalid value 'lots' for '--max-request-bytes <SIZE>': a size is expected, such as 65536, 64KiB, \
                 16MiB or 1GiB",
            ),
            (
                "--listen=localhost:7379",
                "invalid value 'localhost:7379' for '--listen <ADDRESS>': an IP address and a port are expected, such \
                 as 127.0.0.1:7379, or off",
            ),
            (
                "--cores=0-",
                "invalid value '0-' for '--cores <CPUS>': CPUs such as 0-3,5 or a count such as 4 are expected",
            ),
            (
                "--storage=memory",
                "invalid value 'memory' for '--storage <STORAGE>': embedded, redis://HOST:PORT[,HOST:PORT...], \
                 cluster://HOST:PORT[,HOST:PORT...] or \
                 unix:PATH is expected",
            ),
            (
                "--storage=redis://ann:secret@a:x",
                "invalid value 'redis://...@a:x' for '--storage <STORAGE>': 'a:x' is no server: HOST, HOST:PORT or \
                 [IPV6]:PORT is expected",
            ),
            (
                "--fleet=redis://ann:secret@a,b",
                "invalid value 'redis://...@a,b' for '--fleet <STORE>': one server is expected: redis://HOST:PORT, or \
                 redis://USER:PASSWORD@HOST:PORT",
            ),
            (
                "--fleet-namespace={a}",
                "invalid value '{a}' for '--fleet-namespace <NAME>': 1 to 64 letters, digits, '-', '_', '.' or ':' are \
                 expected",
            ),
            (
                "--window-max=65536",
                "invalid value '65536' for '--window-max <N>': a whole number from 1 to 65535 is expected",
            ),
            (
                "--shed-levels=0.5,0.7,0.3",
                "invalid value '0.5,0.7,0.3' for '--shed-levels <RATIO,RATIO,RATIO>': three ratios between 1 and 0 are \
                 expected, each below the one before, such as 0.7,0.5,0.3",
            ),
            (
                "--hot-share=2",
                "invalid value '2' for '--hot-share <PERCENT>': a share from 0% to 100% in steps of 0.1% is expected, such as 2% or 0.5%",
            ),
            (
                "--http-allow-origin=*",
                "invalid value '*' for '--http-allow-origin <ORIGIN>': an origin is expected, such as https://app.example or \
                 http://10.0.0.5:3000",
            ),
            (
                "--http-allow-host=weir:7380",
                "invalid value 'weir:7380' for '--http-allow-host <NAME>': a name without a port is expected, such as \
                 weir.internal",
            ),
            ("--max-client=3", "unexpected argument '--max-client' found"),
        ];
        for (flag, complaint) in cases {
            let told = Flags::try_parse_from(["weir", flag]).expect_err("it is wrong").to_string();
            assert!(told.starts_with(&format!("error: {complaint}\n")), "{told}");
            assert!(told.contains("--help"), "{told}");
        }
        let told = Flags::try_parse_from(["weir", "--max-client=3"]).expect_err("it is wrong").to_string();
        assert!(told.contains("a similar argument exists: '--max-clients'"), "{told}");
    }

    #[test]
    fn origins_are_written_as_browsers_write_them() {
        for (given, origin) in [
            ("https://App.example", "https://app.example"),
            ("https://app.example:443", "https://app.example"),
            ("http://app.example:80", "http://app.example"),
            ("http://app.example:443", "http://app.example:443"),
            ("http://[::1]:3000", "http://[::1]:3000"),
            ("capacitor://localhost", "capacitor://localhost"),
        ] {
            assert_eq!(web_origin(given).as_deref(), Ok(origin));
        }
        for wrong in [
            "",
            "null",
            "*",
            "app.example",
            "https://",
            "https://a/",
            "https://a b",
            "https://u@a",
            "https://*.a",
            "://a",
        ] {
            assert!(web_origin(wrong).is_err(), "{wrong}");
        }
        assert_eq!(host_name("Weir.internal.").as_deref(), Ok("weir.internal"));
        for wrong in ["", ".", "a:1", "a/b", "*", "a b"] {
            assert!(host_name(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn the_help_states_defaults_and_environment_variables() {
        let in_one_line = |help: clap::builder::StyledStr| {
            help.to_string().split_whitespace().collect::<Vec<_>>().join(" ")
        };
        let usual = in_one_line(Flags::command().render_help());
        for words in ["[default: 16MiB]", "WEIR_MAX_CLIENTS", "Limits:", "Examples:", "[default: all]"] {
            assert!(usual.contains(words), "{usual}");
        }
        assert!(!usual.contains("--shards"), "{usual}");
        let all = in_one_line(Flags::with_rare_flags().render_help());
        assert!(all.contains("--shards") && all.contains("[default: one per CPU, or"), "{all}");
    }
}
