//! Command line of weir. Every flag has an environment twin: `--max-clients` is `WEIR_MAX_CLIENTS`.

use std::path::PathBuf;
use std::time::Duration;

use clap::builder::BoolishValueParser;
use clap::{ArgAction, Parser, Subcommand};

use super::address::ListenAddress;
use super::cores::Cores;
use super::hot::{HotScripts, Share};
use super::layers::{Layer, LimiterKind};
use super::overload::ShedLevels;
use super::storage::{AddressParser, FleetStore, Storage};
use super::token::Secret;
use super::top::TopFlags;
use super::units::{Size, duration, number, positive_duration, request_units};
use crate::values::limits::{CLIENTS_MAX, FLEET_KEYS_MAX, FLEET_NAMESPACE_BYTES_MAX, SHARDS_MAX};

const CLIENTS: &str = "Clients";
const TLS: &str = "TLS";
const CORES: &str = "Cores";
const STORAGE: &str = "Storage";
const QUOTAS: &str = "Quotas";
const LAYERS: &str = "Layers";
const OVERLOAD: &str = "Overload";
const HOT_KEYS: &str = "Hot keys";
const LIMITS: &str = "Limits";
const TIMEOUTS: &str = "Timeouts";

const EXAMPLES: &str = "\
Durations are written 500us, 10ms, 1s, 5m or 2h; sizes 65536, 64KiB (or 64k), 16MiB, 1GiB.

Examples:
  weir                                              serve an embedded store at 127.0.0.1:7379
  weir --storage redis://10.0.0.1:6379,10.0.0.2:6379
                                                    spread the keys over two servers
  weir --listen 0.0.0.0:7379 --quotas quotas.toml --check
                                                    check flags and quota file, and exit
  weir top --sort tenant                            look at the weir whose admin port is at 127.0.0.1:7381";

/// Largest `--queue-limit`. Each waiting request takes some hundred bytes more than its message.
const QUEUE_REQUESTS_MAX: u64 = 1_000_000;
/// Largest `--window-max`: the most that one connection to a server can have in flight.
const WINDOW_MAX: u64 = u16::MAX as u64;

/// Traffic management between Redis-protocol clients and a shared key-value store.
///
/// With no flags weir serves an embedded store at once.
#[derive(Clone, Debug, Parser)]
#[command(name = "weir", version, after_help = EXAMPLES, max_term_width = 110, allow_negative_numbers = true)]
#[command(args_conflicts_with_subcommands = true, disable_help_subcommand = true)]
pub struct Flags {
    /// Address where clients connect; may be given several times. Port 0 takes any free port
    #[arg(long, env = "WEIR_LISTEN", value_name = "ADDRESS", help_heading = CLIENTS)]
    #[arg(value_delimiter = ',', default_value = "127.0.0.1:7379")]
    pub listen: Vec<ListenAddress>,

    /// Unix socket where clients connect too. `--listen off` leaves only this one
    #[arg(long, env = "WEIR_UNIX", value_name = "PATH", help_heading = CLIENTS)]
    pub unix: Option<PathBuf>,

    /// Address where the same keys are served over HTTP; may be given several times. None by default
    #[arg(long, env = "WEIR_HTTP", value_name = "ADDRESS", help_heading = CLIENTS)]
    #[arg(value_delimiter = ',')]
    pub http: Vec<ListenAddress>,

    /// Origin, such as `https://app.example`, whose web pages may ask over HTTP (CORS); may be given several
    /// times. Requests of all other pages are refused, whatever they bring along
    #[arg(long, env = "WEIR_HTTP_ALLOW_ORIGIN", value_name = "ORIGIN", help_heading = CLIENTS)]
    #[arg(value_delimiter = ',', value_parser = web_origin)]
    pub http_allow_origin: Vec<String>,

    /// Name by which keys may be asked for over HTTP without a token, besides addresses and localhost: a web
    /// page could otherwise have its own name lead here and read them; may be given several times. With
    /// Authorization any name will do
    #[arg(long, env = "WEIR_HTTP_ALLOW_HOST", value_name = "NAME", help_heading = CLIENTS)]
    #[arg(value_delimiter = ',', value_parser = host_name)]
    pub http_allow_host: Vec<String>,

    /// Address where metrics, health and quotas are served over HTTP, or off
    #[arg(long, env = "WEIR_ADMIN", value_name = "ADDRESS", help_heading = CLIENTS)]
    #[arg(default_value = "127.0.0.1:7381")]
    pub admin: ListenAddress,

    /// Token that `POST /config/quotas` must bring along, as `Authorization: Bearer TOKEN`. Without it the
    /// admin port takes quotas on a loopback address only. Better given in the environment or a file, where
    /// others do not see it
    #[arg(long, env = "WEIR_ADMIN_TOKEN", value_name = "TOKEN", help_heading = CLIENTS)]
    #[arg(hide_env_values = true, conflicts_with = "admin_token_file")]
    pub admin_token: Option<Secret>,

    /// Name by which the admin port may be asked, besides addresses and localhost: a web page could otherwise
    /// read it through the browser of somebody who reaches it; may be given several times
    #[arg(long, env = "WEIR_ADMIN_HOST", value_name = "NAME", help_heading = CLIENTS)]
    #[arg(value_delimiter = ',')]
    pub admin_host: Vec<String>,

    /// File with the token of --admin-token in it; read again on SIGHUP
    #[arg(long, env = "WEIR_ADMIN_TOKEN_FILE", value_name = "FILE", help_heading = CLIENTS)]
    pub admin_token_file: Option<PathBuf>,

    /// Quota file, which says who may use weir, and how much of it; read again when it changes and on SIGHUP.
    /// Without it everybody may do everything
    #[arg(long, env = "WEIR_QUOTAS", value_name = "FILE", help_heading = CLIENTS)]
    pub quotas: Option<PathBuf>,

    /// Address where clients connect with TLS (1.2 or 1.3); may be given several times. None by default
    #[arg(long, env = "WEIR_TLS_LISTEN", value_name = "ADDRESS", help_heading = TLS)]
    #[arg(value_delimiter = ',')]
    pub tls_listen: Vec<ListenAddress>,

    /// Address where the same keys are served over HTTP with TLS; may be given several times. None by default
    #[arg(long, env = "WEIR_TLS_HTTP", value_name = "ADDRESS", help_heading = TLS)]
    #[arg(value_delimiter = ',')]
    pub tls_http: Vec<ListenAddress>,

    /// File with weir's certificate for clients (PEM), and behind it the chain up to the certificate that
    /// clients trust. All files of TLS, also those for stores, are read again when one of them changes and on
    /// SIGHUP; a file that is wrong then is reported, and not put in force
    #[arg(long, env = "WEIR_TLS_CERT", value_name = "FILE", help_heading = TLS)]
    pub tls_cert: Option<PathBuf>,

    /// File with the key of --tls-cert (PEM)
    #[arg(long, env = "WEIR_TLS_KEY", value_name = "FILE", help_heading = TLS)]
    pub tls_key: Option<PathBuf>,

    /// File with the authorities that sign certificates of clients (PEM): with this flag each client needs
    /// one, and is logged in where its common name, or the first DNS name in it, is a tenant's
    #[arg(long, env = "WEIR_TLS_CLIENT_CA", value_name = "FILE", help_heading = TLS)]
    pub tls_client_ca: Option<PathBuf>,

    /// File with revocation lists, of certificates of clients that are not to be trusted any more (PEM): one
    /// list of each authority between --tls-client-ca and a client, or the client is refused. A list that is
    /// out of date holds all the same
    #[arg(long, env = "WEIR_TLS_CLIENT_CRL", value_name = "FILE", help_heading = TLS)]
    pub tls_client_crl: Option<PathBuf>,

    /// Time after which a handshake with a client is given up
    #[arg(long, env = "WEIR_TLS_HANDSHAKE_TIMEOUT", value_name = "DURATION", help_heading = TLS)]
    #[arg(value_parser = positive_duration, default_value = "10s")]
    pub tls_handshake_timeout: Duration,

    /// Handshakes with clients that are carried out in a second, at most; further ones wait
    #[arg(long, env = "WEIR_TLS_HANDSHAKE_RATE", value_name = "N", help_heading = TLS)]
    #[arg(value_parser = number(1, 1_000_000), default_value = "500")]
    pub tls_handshake_rate: u64,

    /// File with the authorities that sign the certificates of stores with TLS (PEM): rediss://... and
    /// clusters://..., of --storage and --fleet
    #[arg(long, env = "WEIR_STORAGE_TLS_CA", value_name = "FILE", help_heading = TLS)]
    pub storage_tls_ca: Option<PathBuf>,

    /// Name that stands in the certificates of --storage [default: each server's host]
    #[arg(long, env = "WEIR_STORAGE_TLS_NAME", value_name = "NAME", help_heading = TLS)]
    pub storage_tls_name: Option<String>,

    /// File with weir's certificate for stores that require one of their clients (PEM), with the chain up to
    /// the certificate that they trust
    #[arg(long, env = "WEIR_STORAGE_TLS_CERT", value_name = "FILE", help_heading = TLS)]
    pub storage_tls_cert: Option<PathBuf>,

    /// File with the key of --storage-tls-cert (PEM)
    #[arg(long, env = "WEIR_STORAGE_TLS_KEY", value_name = "FILE", help_heading = TLS)]
    pub storage_tls_key: Option<PathBuf>,

    /// CPUs to run on, one shard on each: a list such as 0-3,5, or how many [default: all]
    #[arg(long, env = "WEIR_CORES", value_name = "CPUS", help_heading = CORES)]
    pub cores: Option<Cores>,

    /// Number of shards to run; more than there are CPUs are not bound to any [default: one per CPU]
    #[arg(long, env = "WEIR_SHARDS", value_name = "N", help_heading = CORES)]
    #[arg(value_parser = number(1, SHARDS_MAX as u64))]
    pub shards: Option<u64>,

    /// Microseconds for which an idle core looks for work before it sleeps. Saves the time to wake up, and
    /// burns the CPU: only for CPUs that nobody else needs
    #[arg(long, env = "WEIR_BUSY_POLL_US", value_name = "N", help_heading = CORES)]
    #[arg(value_parser = number(0, 1_000_000), default_value = "0")]
    pub busy_poll_us: u64,

    /// Stores behind weir: embedded, redis://HOST:PORT[,HOST:PORT...], cluster://HOST:PORT[,HOST:PORT...]
    /// (some nodes of a cluster) or unix:PATH; with TLS rediss:// and clusters://. Servers that require it
    /// get redis://USER:PASSWORD@HOST:PORT; better given in the environment, where others do not see it
    #[arg(long, env = "WEIR_STORAGE", value_name = "STORAGE", help_heading = STORAGE)]
    #[arg(value_parser = AddressParser::<Storage>::new(), hide_env_values = true, default_value = "embedded")]
    pub storage: Storage,

    /// Memory that the embedded store may hold before it refuses writes [default: 256MiB]
    #[arg(long, env = "WEIR_EMBEDDED_MAX_BYTES", value_name = "SIZE", help_heading = STORAGE)]
    pub embedded_max_bytes: Option<Size>,

    /// Connection pool: connections of each core to each server that it sends to, for each dialect that
    /// clients speak
    #[arg(long, env = "WEIR_BACKEND_CONNECTIONS", value_name = "N", help_heading = STORAGE)]
    #[arg(value_parser = number(1, 64), default_value = "1")]
    pub backend_connections: u64,

    /// Further connections of each core to each server for costly requests, against head-of-line blocking:
    /// replies of one connection come in order, so requests behind a costly one wait for it. 0 sends costly
    /// requests among all others
    #[arg(long, env = "WEIR_HEAVY_CONNECTIONS", value_name = "N", help_heading = STORAGE)]
    #[arg(value_parser = number(0, 64), default_value = "1")]
    pub heavy_connections: u64,

    /// Request units from which on a request is costly, by its estimate (--heavy-connections)
    #[arg(long, env = "WEIR_HEAVY_RU", value_name = "RU", help_heading = STORAGE)]
    #[arg(value_parser = request_units, default_value = "20")]
    pub heavy_ru: u64,

    /// Connections to servers that clients may have to themselves, over all cores: one for each blocking
    /// command that waits, each client that watches keys, and each subscriber. A tenant may hold four of five.
    /// 0 refuses such commands, as does the embedded store
    #[arg(long, env = "WEIR_PRIVATE_LINKS", value_name = "N", help_heading = STORAGE)]
    #[arg(value_parser = number(0, 100_000), default_value = "1000")]
    pub private_links: u64,

    /// Time after which weir gives up connecting to a server
    #[arg(long, env = "WEIR_BACKEND_CONNECT_TIMEOUT", value_name = "DURATION", help_heading = STORAGE)]
    #[arg(value_parser = positive_duration, default_value = "1s")]
    pub backend_connect_timeout: Duration,

    /// Time after which weir gives up a connection, and all requests on it, if its server owes a reply and
    /// says nothing
    #[arg(long, env = "WEIR_BACKEND_TIMEOUT", value_name = "DURATION", help_heading = STORAGE)]
    #[arg(value_parser = positive_duration, default_value = "5s")]
    pub backend_timeout: Duration,

    /// Time between lookups of the names of stores: a store that has another address is connected to there; 0
    /// looks up only at the start
    #[arg(long, env = "WEIR_STORAGE_LOOKUP", value_name = "DURATION", help_heading = STORAGE)]
    #[arg(value_parser = duration, default_value = "5s")]
    pub storage_lookup: Duration,

    /// Way in which quotas are enforced
    #[arg(long, env = "WEIR_LIMITER", value_name = "LIMITER", help_heading = QUOTAS)]
    #[arg(value_enum, default_value = "buckets")]
    pub limiter: LimiterKind,

    /// Time between reconciliations, in which cores report what they spent of quotas, from 1ms to 1s
    #[arg(long, env = "WEIR_RECONCILE", value_name = "DURATION", help_heading = QUOTAS)]
    #[arg(value_parser = positive_duration, default_value = "10ms")]
    pub reconcile: Duration,

    /// Redis in which several weirs count what they are asked for, so that their quotas are one:
    /// redis://HOST:PORT, or redis://USER:PASSWORD@HOST:PORT, better given in the environment; rediss:// with
    /// TLS. Each weir gives out its share, by demand. No request waits for it [default: quotas are this
    /// process's own]
    #[arg(long, env = "WEIR_FLEET", value_name = "STORE", help_heading = QUOTAS)]
    #[arg(value_parser = AddressParser::<FleetStore>::new(), hide_env_values = true)]
    pub fleet: Option<FleetStore>,

    /// Name of the fleet: weirs with the same name in one --fleet store share quotas. Its keys there begin
    /// with {weir:NAME}
    #[arg(long, env = "WEIR_FLEET_NAMESPACE", value_name = "NAME", help_heading = QUOTAS)]
    #[arg(value_parser = namespace, default_value = "weir")]
    pub fleet_namespace: String,

    /// Number of users, those with the highest demand on this host, whose demand is counted in --fleet too,
    /// up to 1000: other users may have an even part of their quotas here. With 0, users' quotas are each
    /// weir's own
    #[arg(long, env = "WEIR_FLEET_USERS", value_name = "N", help_heading = QUOTAS)]
    #[arg(value_parser = number(0, FLEET_KEYS_MAX as u64), default_value = "0")]
    pub fleet_users: u64,

    /// Price of any request, in request units; `weir-calibrate` finds prices that fit a store
    #[arg(long, env = "WEIR_RU_BASE", value_name = "RU", help_heading = QUOTAS)]
    #[arg(value_parser = request_units, default_value = "1")]
    pub ru_base: u64,

    /// Price of a read of a hot key that is answered from memory, instead of --ru-base, in request units. No
    /// store sees it, but it takes about as much of weir's own CPU as any read: use 1 where that is what runs
    /// out first
    #[arg(long, env = "WEIR_RU_HIT", value_name = "RU", help_heading = QUOTAS)]
    #[arg(value_parser = request_units, default_value = "0.1")]
    pub ru_hit: u64,

    /// Price of 1KiB of a request, in request units
    #[arg(long, env = "WEIR_RU_KIB_IN", value_name = "RU", help_heading = QUOTAS)]
    #[arg(value_parser = request_units, default_value = "1")]
    pub ru_kib_in: u64,

    /// Price of 1KiB of a reply, in request units
    #[arg(long, env = "WEIR_RU_KIB_OUT", value_name = "RU", help_heading = QUOTAS)]
    #[arg(value_parser = request_units, default_value = "0.25")]
    pub ru_kib_out: u64,

    /// Price of an element of a reply, or of a key of a request that reads several, in request units
    #[arg(long, env = "WEIR_RU_ROW", value_name = "RU", help_heading = QUOTAS)]
    #[arg(value_parser = request_units, default_value = "0.02")]
    pub ru_row: u64,

    /// Price of a key of a request that writes several, in request units
    #[arg(long, env = "WEIR_RU_KEY", value_name = "RU", help_heading = QUOTAS)]
    #[arg(value_parser = request_units, default_value = "0.06")]
    pub ru_key: u64,

    /// Price of a millisecond beyond what such requests usually take, in request units
    #[arg(long, env = "WEIR_RU_LATENCY_MS", value_name = "RU", help_heading = QUOTAS)]
    #[arg(value_parser = request_units, default_value = "0.5")]
    pub ru_latency_ms: u64,

    /// Layers to switch off: rate (quotas), shed (deadlines, also those passed on to a weir behind, and
    /// tiers), queue, window, hot (cache of hot keys), breaker (ejects sick servers), replicas (reads from
    /// replicas of a cluster), retries (of reads that were lost with a connection to a node of a cluster)
    #[arg(long, env = "WEIR_DISABLE", value_name = "LAYER,...", help_heading = LAYERS)]
    #[arg(value_delimiter = ',')]
    pub disable: Vec<Layer>,

    /// Layers that decide and count, but are not obeyed: rate, shed, queue, window, hot, breaker, retries
    #[arg(long, env = "WEIR_SHADOW", value_name = "LAYER,...", help_heading = LAYERS)]
    #[arg(value_delimiter = ',')]
    pub shadow: Vec<Layer>,

    /// Requests that may wait for room before each server, on each core. Beyond it further ones are refused,
    /// until a quarter of the waiting ones is gone
    #[arg(long, env = "WEIR_QUEUE_LIMIT", value_name = "N", help_heading = OVERLOAD)]
    #[arg(value_parser = number(1, QUEUE_REQUESTS_MAX), default_value = "8192")]
    pub queue_limit: u64,

    /// Bytes of requests that may wait on each core. Servers share them equally, but each has at least 1MiB
    #[arg(long, env = "WEIR_QUEUE_BYTES", value_name = "SIZE", help_heading = OVERLOAD)]
    #[arg(default_value = "64MiB")]
    pub queue_bytes: Size,

    /// Time that requests may wait in an overload, while more is asked than a server can do: then the newest
    /// are served first
    #[arg(long, env = "WEIR_QUEUE_TARGET", value_name = "DURATION", help_heading = OVERLOAD)]
    #[arg(value_parser = positive_duration, default_value = "5ms")]
    pub queue_target: Duration,

    /// Interval over which an overload is judged, from 10ms to 1s: requests that waited without a break for
    /// one and a half intervals, and hardly became fewer, mean that more is asked than a server can do.
    /// Otherwise a request waits that long at most
    #[arg(long, env = "WEIR_QUEUE_INTERVAL", value_name = "DURATION", help_heading = OVERLOAD)]
    #[arg(value_parser = positive_duration, default_value = "100ms")]
    pub queue_interval: Duration,

    /// Smallest window: requests that each core may always have in flight at each server, however slow it is
    #[arg(long, env = "WEIR_WINDOW_MIN", value_name = "N", help_heading = OVERLOAD)]
    #[arg(value_parser = number(1, WINDOW_MAX), default_value = "1")]
    pub window_min: u64,

    /// Largest window: requests that each core may have in flight at each server, however quick it is.
    /// Between --window-min and this, weir finds out how many keep the server busy
    #[arg(long, env = "WEIR_WINDOW_MAX", value_name = "N", help_heading = OVERLOAD)]
    #[arg(value_parser = number(1, WINDOW_MAX), default_value = "4096")]
    pub window_max: u64,

    /// Latency ratios (what replies usually take, divided by what they take now) below which sheddable
    /// requests become dearer, batch requests too, and sheddable ones are refused
    #[arg(long, env = "WEIR_SHED_LEVELS", value_name = "RATIO,RATIO,RATIO", help_heading = OVERLOAD)]
    #[arg(default_value = "0.7,0.5,0.3")]
    pub shed_levels: ShedLevels,

    /// Requests for one key per second that make it hot, if --hot-share is reached too: replies to reads of
    /// it are then kept for a while
    #[arg(long, env = "WEIR_HOT_RATE", value_name = "N", help_heading = HOT_KEYS)]
    #[arg(value_parser = number(1, 1_000_000_000), default_value = "500")]
    pub hot_rate: u64,

    /// Share of a core's requests that makes a key hot, if --hot-rate is reached too
    #[arg(long, env = "WEIR_HOT_SHARE", value_name = "PERCENT", help_heading = HOT_KEYS, default_value = "2%")]
    pub hot_share: Share,

    /// Longest time that a reply is kept, from when it was asked for, from 10ms to 60s. Writes of others
    /// around weir are seen after that
    #[arg(long, env = "WEIR_HOT_TTL", value_name = "DURATION", help_heading = HOT_KEYS)]
    #[arg(value_parser = positive_duration, default_value = "1s")]
    pub hot_ttl: Duration,

    /// Replies to reads of hot keys that each core keeps, at most
    #[arg(long, env = "WEIR_HOT_ENTRIES", value_name = "N", help_heading = HOT_KEYS)]
    #[arg(value_parser = number(1, 1_000_000), default_value = "1024")]
    pub hot_entries: u64,

    /// Bytes of replies to reads of hot keys that each core keeps, at most
    #[arg(long, env = "WEIR_HOT_BYTES", value_name = "SIZE", help_heading = HOT_KEYS, default_value = "16MiB")]
    pub hot_bytes: Size,

    /// Keys that a script may write: any of its store, or only those that its caller names
    #[arg(long, env = "WEIR_HOT_SCRIPTS", value_name = "TRUST", help_heading = HOT_KEYS)]
    #[arg(value_enum, default_value_t = HotScripts::Strict)]
    pub hot_scripts: HotScripts,

    /// Reads of one hot key per second, answered for other cores, from which on those that have a tenth of
    /// them get copies
    #[arg(long, env = "WEIR_HOT_COPY_RATE", value_name = "N", help_heading = HOT_KEYS)]
    #[arg(value_parser = number(1, 1_000_000_000), default_value = "20000")]
    pub hot_copy_rate: u64,

    /// Writes of one hot key per second beyond which further ones are refused [default: no limit]
    #[arg(long, env = "WEIR_HOT_WRITE_RATE", value_name = "N", help_heading = HOT_KEYS)]
    #[arg(value_parser = number(1, 1_000_000_000))]
    pub hot_write_rate: Option<u64>,

    /// Clients that may be connected at once, over all cores
    #[arg(long, env = "WEIR_MAX_CLIENTS", value_name = "N", help_heading = LIMITS)]
    #[arg(value_parser = number(1, CLIENTS_MAX), default_value = "10000")]
    pub max_clients: u64,

    /// Clients of one tenant that may be connected at once, where the quota file names more than one tenant
    /// and says nothing else for it: the rest is for others [default: four fifths of --max-clients]
    #[arg(long, env = "WEIR_MAX_TENANT_CLIENTS", value_name = "N", help_heading = LIMITS)]
    #[arg(value_parser = number(1, CLIENTS_MAX))]
    pub max_tenant_clients: Option<u64>,

    /// Bytes that weir may hold for all clients together: requests that are not whole, replies that are not
    /// read. Beyond it the clients that hold most are closed. From 16MiB
    #[arg(long, env = "WEIR_MAX_CLIENTS_BYTES", value_name = "SIZE", help_heading = LIMITS)]
    #[arg(default_value = "1GiB")]
    pub max_clients_bytes: Size,

    /// Largest request, from 1KiB to 512MiB
    #[arg(long, env = "WEIR_MAX_REQUEST_BYTES", value_name = "SIZE", help_heading = LIMITS)]
    #[arg(default_value = "16MiB")]
    pub max_request_bytes: Size,

    /// Largest reply that is taken from a store, from 1KiB to 2GiB and at most --output-limit: the client
    /// gets an error instead of a larger one, and its connection stays open
    #[arg(long, env = "WEIR_MAX_REPLY_BYTES", value_name = "SIZE", help_heading = LIMITS)]
    #[arg(default_value = "64MiB")]
    pub max_reply_bytes: Size,

    /// Elements that SCAN, HSCAN, SSCAN and ZSCAN may look at in one step: a larger COUNT is lowered to this
    #[arg(long, env = "WEIR_SCAN_COUNT_MAX", value_name = "N", help_heading = LIMITS)]
    #[arg(value_parser = number(1, 1_000_000_000), default_value = "10000")]
    pub scan_count_max: u64,

    /// Bytes that may wait for one client that reads too slowly, before it is closed
    #[arg(long, env = "WEIR_OUTPUT_LIMIT", value_name = "SIZE", help_heading = LIMITS)]
    #[arg(default_value = "64MiB")]
    pub output_limit: Size,

    /// Time after which clients that have to log in and have not are closed; 0 for never
    #[arg(long, env = "WEIR_LOGIN_TIMEOUT", value_name = "DURATION", help_heading = TIMEOUTS)]
    #[arg(value_parser = duration, default_value = "10s")]
    pub login_timeout: Duration,

    /// Time after which clients that say nothing are closed; 0 for never
    #[arg(long, env = "WEIR_IDLE_TIMEOUT", value_name = "DURATION", help_heading = TIMEOUTS)]
    #[arg(value_parser = duration, default_value = "0")]
    pub idle_timeout: Duration,

    /// Time in which clients must read at least 1 MiB of what waits for them, or are closed
    #[arg(long, env = "WEIR_SEND_TIMEOUT", value_name = "DURATION", help_heading = TIMEOUTS)]
    #[arg(value_parser = positive_duration, default_value = "30s")]
    pub send_timeout: Duration,

    /// Time that requests in flight may take to end after weir was told to stop
    #[arg(long, env = "WEIR_DRAIN_TIMEOUT", value_name = "DURATION", help_heading = TIMEOUTS)]
    #[arg(value_parser = duration, default_value = "10s")]
    pub drain_timeout: Duration,

    /// Unix socket by which one weir takes over from another: if one listens there, this one takes over its
    /// listening sockets and then its clients, and the other one ends. Otherwise it starts as usual. Then it
    /// listens there itself; SIGUSR2 makes it start its successor
    #[arg(long, env = "WEIR_TAKEOVER", value_name = "PATH", help_heading = CLIENTS)]
    pub takeover: Option<PathBuf>,

    /// Checks flags and quota file, says what is wrong with them, and exits
    #[arg(long, env = "WEIR_CHECK", action = ArgAction::SetTrue, value_parser = BoolishValueParser::new())]
    pub check: bool,

    /// Subcommand other than serving.
    #[command(subcommand)]
    pub command: Option<Command>,
}

/// Subcommands of weir besides serving.
#[derive(Clone, Debug, Subcommand)]
pub enum Command {
    /// Shows in a terminal, second by second, how a running weir is doing
    Top(TopFlags),
}

/// Reads a `--fleet-namespace`, with which names of keys begin.
fn namespace(text: &str) -> Result<String, String> {
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.:".contains(&byte);
    if (1..=FLEET_NAMESPACE_BYTES_MAX).contains(&text.len()) && text.bytes().all(fits) {
        return Ok(text.to_owned());
    }
    Err(format!("1 to {FLEET_NAMESPACE_BYTES_MAX} letters, digits, '-', '_', '.' or ':' are wanted"))
}

/// Reads the origin of a web page, and writes it as browsers do.
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
        parts.ok_or("an origin is wanted, such as https://app.example or http://10.0.0.5:3000")?;
    let usual = match scheme {
        "http" => ":80",
        "https" => ":443",
        _ => "",
    };
    Ok(format!("{scheme}://{}", host.strip_suffix(usual).unwrap_or(host)))
}

/// Reads a host name without its port.
fn host_name(text: &str) -> Result<String, String> {
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    let name = text.strip_suffix('.').unwrap_or(text);
    if !name.is_empty() && name.bytes().all(fits) {
        return Ok(name.to_ascii_lowercase());
    }
    Err("a name without a port is wanted, such as weir.internal".to_owned())
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;
    use crate::config::TopSort;

    #[test]
    fn the_definition_holds_together() {
        Flags::command().debug_assert();
    }

    #[test]
    fn every_flag_has_its_environment_twin_and_its_place_in_the_help() {
        for argument in Flags::command().get_arguments().filter(|argument| argument.get_long().is_some()) {
            let flag = argument.get_long().expect("filtered");
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
                "invalid value 'many' for '--max-clients <N>': a whole number from 1 to 1000000 is wanted",
            ),
            (
                "--shards=257",
                "invalid value '257' for '--shards <N>': a whole number from 1 to 256 is wanted",
            ),
            (
                "--drain-timeout=10",
                "invalid value '10' for '--drain-timeout <DURATION>': a duration needs a unit, such as 500us, 10ms, \
                 1s, 5m or 2h",
            ),
            (
                "--backend-timeout=0s",
                "invalid value '0s' for '--backend-timeout <DURATION>': a duration above 0 is wanted, such as 10ms \
                 or 1s",
            ),
            (
                "--max-request-bytes=lots",
                "invalid value 'lots' for '--max-request-bytes <SIZE>': a size is wanted, such as 65536, 64KiB, \
                 16MiB or 1GiB",
            ),
            (
                "--listen=localhost:7379",
                "invalid value 'localhost:7379' for '--listen <ADDRESS>': an IP address and a port are wanted, such \
                 as 127.0.0.1:7379, or off",
            ),
            (
                "--cores=0-",
                "invalid value '0-' for '--cores <CPUS>': CPUs such as 0-3,5 or a count such as 4 are wanted",
            ),
            (
                "--storage=memory",
                "invalid value 'memory' for '--storage <STORAGE>': embedded, redis://HOST:PORT[,HOST:PORT...], \
                 cluster://HOST:PORT[,HOST:PORT...] or \
                 unix:PATH is wanted",
            ),
            (
                "--storage=redis://ann:secret@a:x",
                "invalid value 'redis://...@a:x' for '--storage <STORAGE>': 'a:x' is no server: HOST, HOST:PORT or \
                 [IPV6]:PORT is wanted",
            ),
            (
                "--fleet=redis://ann:secret@a,b",
                "invalid value 'redis://...@a,b' for '--fleet <STORE>': one server is wanted: redis://HOST:PORT, or \
                 redis://USER:PASSWORD@HOST:PORT",
            ),
            (
                "--fleet-namespace={a}",
                "invalid value '{a}' for '--fleet-namespace <NAME>': 1 to 64 letters, digits, '-', '_', '.' or ':' are \
                 wanted",
            ),
            (
                "--window-max=65536",
                "invalid value '65536' for '--window-max <N>': a whole number from 1 to 65535 is wanted",
            ),
            (
                "--shed-levels=0.5,0.7,0.3",
                "invalid value '0.5,0.7,0.3' for '--shed-levels <RATIO,RATIO,RATIO>': three ratios between 1 and 0 are \
                 wanted, each below the one before, such as 0.7,0.5,0.3",
            ),
            (
                "--shadow=cold",
                "invalid value 'cold' for '--shadow <LAYER,...>': rate, shed, queue, window, hot, breaker, replicas or retries is \
                 wanted, or several of them with commas between",
            ),
            (
                "--hot-share=2",
                "invalid value '2' for '--hot-share <PERCENT>': a share from 0% to 100% is wanted, such as 2% or 0.5%",
            ),
            (
                "--http-allow-origin=*",
                "invalid value '*' for '--http-allow-origin <ORIGIN>': an origin is wanted, such as https://app.example or \
                 http://10.0.0.5:3000",
            ),
            (
                "--http-allow-host=weir:7380",
                "invalid value 'weir:7380' for '--http-allow-host <NAME>': a name without a port is wanted, such as \
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
    fn the_help_tells_defaults_and_twins() {
        let help = Flags::command().render_help().to_string();
        for words in
            ["[default: 16MiB]", "WEIR_MAX_CLIENTS", "Limits:", "Examples:", "[default: one per CPU]"]
        {
            assert!(help.contains(words), "{help}");
        }
    }
}
