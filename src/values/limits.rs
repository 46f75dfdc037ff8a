//! Every bound in one place, tied together by assertions that the compiler checks.

use std::time::Duration;

/// Hash slots of the Redis Cluster key space.
pub const SLOTS: u16 = 16_384;
/// Arguments of one request, as in Redis.
pub const ARGUMENTS_MAX: usize = 1_048_576;
/// Arguments of one request of a client that has yet to authenticate, as in Redis.
pub const ARGUMENTS_MAX_UNAUTHENTICATED: usize = 10;
/// Bytes of one argument of a client that has yet to authenticate, as in Redis.
pub const ARGUMENT_BYTES_MAX_UNAUTHENTICATED: usize = 16 * 1024;
/// Bytes of an inline request, as in Redis.
pub const INLINE_BYTES_MAX: usize = 64 * 1024;
/// Bytes of a request that is not whole which go along when its client goes on in another process; of a longer one the rest is
/// waited for.
pub const MOVED_BYTES_MAX: usize = 16 * 1024;
/// Payloads above this travel as shared bytes instead of being copied.
pub const COPY_BYTES_MAX: usize = 16 * 1024;
/// Parsed requests of one connection that wait for replies before weir stops reading from it.
pub const PIPELINE_MAX: usize = 1024;
/// Questions of one shard (INFO, QOS) that the control executor has yet to answer; the others wait on their shard.
pub const QUESTIONS_UNDER_WAY_MAX: usize = 64;
/// Unanswered requests on one connection to a backend.
pub const LINK_PENDING_MAX: usize = 65_536;
/// Unsent bytes on one connection to a backend.
pub const LINK_OUTPUT_BYTES_MAX: usize = 64 * 1024 * 1024;
/// Bytes of requests that a node of a cluster has yet to answer, on one connection: they may have to be sent again.
pub const LINK_UNANSWERED_BYTES_MAX: usize = 64 * 1024 * 1024;
/// Bytes of requests and replies that wait for another core before requests for it are refused.
pub const BATCH_BYTES_MAX: usize = 64 * 1024 * 1024;
/// Words of a `HELLO`: the version, who it is, and a name.
pub const HELLO_WORDS_MAX: usize = 8;
/// Options of one request about connections, each with a value.
pub const OPTIONS_MAX: usize = 16;
/// Prefixes that a refusal names.
pub const PREFIXES_NAMED_MAX: usize = 3;
/// Buffers of one core that sockets are received into, and the size of each.
pub const RECEIVE_BUFFERS: u16 = 256;
/// One socket's turn: what is received at once. A value of 16 KiB fits with what is around it.
pub const RECEIVE_BUFFER_BYTES: usize = 20 * 1024;
/// Shards of one process.
pub const SHARDS_MAX: usize = 256;
/// Backends of one process.
pub const BACKENDS_MAX: usize = 1024;
/// Nodes of a cluster, replicas among them.
pub const CLUSTER_NODES_MAX: usize = 128;
/// Bytes of what one node of a cluster tells of it: every slot a range of its own, with a replica each, fits.
pub const CLUSTER_REPLY_BYTES_MAX: usize = 8 * 1024 * 1024;
/// Nodes that are asked for it together.
pub const CLUSTER_VIEWS_MAX: usize = 3;
/// A replica answers nothing if it may be further behind its primary than this, or if nobody knows.
pub const REPLICA_LAG_MAX: Duration = Duration::from_secs(3);
/// Bytes of a node's id: Redis has 40 hexadecimal digits.
pub const NODE_ID_BYTES_MAX: usize = 64;
/// Bytes of a host's name, as in the DNS.
pub const HOST_BYTES_MAX: usize = 255;
/// Bytes of a quota file.
pub const QUOTA_FILE_BYTES_MAX: u64 = 64 * 1024 * 1024;
/// Bytes of a quota file that comes over HTTP. It is held in memory: enough for the most tenants with a line or six each.
pub const QUOTA_POST_BYTES_MAX: usize = 8 * 1024 * 1024;
/// Bytes of all such files that are on their way at once.
pub const QUOTA_POSTS_BYTES_MAX: usize = 4 * QUOTA_POST_BYTES_MAX;
/// Bytes of the admin port's token: with its header it fits a request's head.
pub const ADMIN_TOKEN_BYTES_MAX: usize = 1024;
/// Tenants of one quota file.
pub const TENANTS_MAX: usize = 32_768;
/// Minutes that tenants' usage is kept for, one by one, where there is room.
pub const METERED_MINUTES_MAX: u64 = 24 * 60;
/// Minutes kept of all tenants together, 40 bytes each. Full days of some 1,400 tenants that never rest fit, and an hour
/// of the most tenants there can be, which suggestions need; with more activity the oldest minutes go first.
pub const METERED_ENTRIES_MAX: usize = 61 * TENANTS_MAX;
/// Tenants with figures of their own among the metrics. With four outcomes each that is some 500 lines, about a tenth of
/// what one scrape usually bears, from each process of a fleet; the tenants beyond them are told as one.
pub const TENANT_SERIES_MAX: usize = 100;
/// Tenants on one page or in one reply: it is written in one go, while shards wait for the control executor. Whoever wants
/// more asks for those behind the last one.
pub const TENANTS_SHOWN_MAX: usize = 1_000;
/// Users whom a quota file names, within one tenant.
pub const NAMED_USERS_MAX: usize = 65_536;
/// Bytes of a tenant's name: it is a label of metrics and a word of refusals.
pub const TENANT_NAME_BYTES_MAX: usize = 64;
/// Clients that may be connected at once, over all shards.
pub const CLIENTS_MAX: u64 = 1_000_000;
/// Bytes of a password, as in Redis: each attempt to log in makes a digest of it.
pub const PASSWORD_BYTES_MAX: usize = 512;
/// Attempts to log in that may fail on one connection before it is closed.
pub const LOGINS_FAILED_MAX: u8 = 10;
/// Bytes of what a client calls itself, and of what its library does.
pub const CLIENT_NAME_BYTES_MAX: usize = 512;
/// Bytes of a store's error to a step of a transaction that the error of `EXEC` repeats.
pub const STEP_ERROR_BYTES_MAX: usize = 512;
/// The longest that a request before a cluster is held because a node has refused it or because its slot moves, whatever its deadline
/// leaves.
pub const SLOT_HELD_MAX: Duration = Duration::from_secs(1);
/// Bytes of the error of a node that is down, if its request is to be held: the error is kept until the client is told.
pub const REFUSAL_KEPT_BYTES_MAX: usize = 512;
/// Bytes of an answer about commands, before which no further name is looked up.
pub const DESCRIPTION_BYTES_MAX: usize = 1024 * 1024;
/// Bytes of a list of clients.
pub const CLIENT_LIST_BYTES_MAX: usize = 16 * 1024 * 1024;
/// Clients that one request may name.
pub const CLIENT_IDS_MAX: usize = 1_024;
/// The longest that clients may be told to wait.
pub const CLIENT_PAUSE_MS_MAX: u64 = 60 * 60 * 1_000;
/// Sections that one `INFO` may name.
pub const INFO_SECTIONS_MAX: usize = 64;
/// Requests that one connection has taken on in a turn before others have theirs; a long answer counts as several.
pub const REQUESTS_PER_TURN: u32 = 256;
/// The same of all connections of a core together, so that others can say in time that they have enough; half of it is kept for
/// those who had to wait.
pub const REQUESTS_PER_TURN_OF_ALL: u32 = 2_048;
/// Bytes that weir answers by itself which count as one request.
pub const ANSWER_BYTES_PER_REQUEST: usize = 256;
/// Bytes of a user's name.
pub const USER_NAME_BYTES_MAX: usize = 256;
/// Prefixes that one tenant's keys may have.
pub const KEY_PREFIXES_MAX: usize = 256;
/// Bytes of such a prefix.
pub const KEY_PREFIX_BYTES_MAX: usize = 1024;
/// The largest quota: in millionths it still leaves room for a burst of some hours in 64 bits.
pub const RU_PER_SECOND_MAX: u64 = 1_000_000_000;
/// The longest burst, in seconds of quota.
pub const BURST_SECONDS_MAX: u32 = 3_600;
/// What one request costs at most, in millionths of a request unit: a second of the largest quota. So a price is never
/// below zero where it is counted with a sign, and neither is what all that one client has in flight could come to.
pub const PRICE_MAX: u64 = RU_PER_SECOND_MAX * 1_000_000;
/// What anybody may owe, in millionths of a request unit: more is never paid off.
pub const DEBT_MAX: u64 = i64::MAX as u64 / 4;
/// Hot keys of one core.
pub const HOT_KEYS_MAX: usize = 256;
/// Bytes of a hot key that is kept whole. Longer ones are reported, and never cached.
pub const HOT_NAME_BYTES_MAX: usize = 1024;
/// Bytes that are kept of those.
pub const HOT_NAME_BYTES_SHOWN: usize = 128;
/// Hot keys in one reply or on one page, if nothing is said, and at most; and bytes of their names.
pub const HOT_KEYS_SHOWN: usize = 100;
/// See there.
pub const HOT_KEYS_SHOWN_MAX: usize = 1_000;
/// See there.
pub const HOT_KEYS_SHOWN_BYTES_MAX: usize = 256 * 1024;
/// Hot keys with figures of their own among the metrics.
pub const HOT_KEY_SERIES_MAX: usize = 20;
/// Bytes of their names there.
pub const HOT_KEY_LABEL_BYTES_MAX: usize = 64;
/// Lines of its log that weir keeps for those who look at its page, and characters of one.
pub const JOURNAL_LINES_MAX: usize = 100;
/// See there.
pub const JOURNAL_LINE_CHARS_MAX: usize = 400;
/// Stores, tenants and hot keys that are shown at once to those who look; those that need it most.
pub const STATE_STORES_MAX: usize = 64;
/// See there.
pub const STATE_TENANTS_MAX: usize = 100;
/// See there.
pub const STATE_HOT_KEYS_MAX: usize = 20;
/// Bytes of a request that its reply is kept for.
pub const HOT_FRAME_BYTES_MAX: usize = 1024;
/// Bytes of a reply that is kept.
pub const HOT_REPLY_BYTES_MAX: usize = 64 * 1024;
/// Requests that replies are kept for, of one hot key, in both dialects together.
pub const HOT_ANSWERS_MAX: usize = 16;
/// Copies of replies that one core has of keys that are at home on others.
pub const HOT_COPIES_MAX: usize = 256;
/// Bytes of the requests that one core holds back behind others for hot keys.
pub const HOT_HELD_BYTES_MAX: usize = 16 << 20;
/// Requests that wait for one fetch of a hot key, and for all of them on one core.
pub const HOT_WAITERS_PER_FLIGHT_MAX: usize = 4_096;
/// See there.
pub const HOT_WAITERS_MAX: usize = 65_536;
/// The longest deadline.
pub const DEADLINE_MS_MAX: u64 = 24 * 60 * 60 * 1_000;
/// The longest that a tenant may have replies told beyond `--hot-ttl` while their store is away.
pub const STALE_ON_ERROR_MAX: std::time::Duration = std::time::Duration::from_secs(3_600);
/// Classes of commands that prices are learnt for.
pub const COMMAND_CLASSES: usize = 6;
/// Users of one shard that are remembered at once, over all tenants.
pub const USERS_MAX: usize = 1_048_576;
/// Buckets that are not full, over all shards.
pub const POOLS_MAX: usize = 4 * USERS_MAX;
/// Bytes of one reply of the embedded engine, where nothing else is said.
pub const ENGINE_REPLY_BYTES_MAX: usize = 64 * 1024 * 1024;
/// What one request to the embedded engine may take, about one for each element it looks at: some tenths of a second.
pub const ENGINE_EFFORT_MAX: u64 = 8_000_000;
/// What one connection to it may take before it is the next one's turn: some tenths of a millisecond.
pub const ENGINE_EFFORT_PER_TURN: u64 = 8_000;
/// Replies that wait for one connection to it before no more requests of that connection are carried out.
pub const ENGINE_OUTPUT_BYTES_HELD: usize = 1024 * 1024;
/// Requests of one connection to it that wait for their turn before no more are received.
pub const ENGINE_INPUT_BYTES_HELD: usize = 256 * 1024;
/// A bulk string may be as large as in Redis.
pub const REQUEST_BYTES_CEILING: usize = 512 * 1024 * 1024;
/// The largest reply that may be let through: some of the largest values.
pub const REPLY_BYTES_CEILING: usize = 2 * 1024 * 1024 * 1024;
/// Hosts that share one quota.
pub const FLEET_HOSTS_MAX: usize = 4_096;
/// Quotas of tenants that one host asks the fleet's store about in one period, and as many of users.
pub const FLEET_KEYS_MAX: usize = 1_000;
/// Users that one host looks at in one period to find those who ask for most.
pub const FLEET_CANDIDATES_MAX: usize = 8 * FLEET_KEYS_MAX;
/// Entries of hosts long gone that one host removes in one period.
pub const FLEET_FORGOTTEN_AT_ONCE: usize = 64;
/// Bytes of the store's answer: that many hosts and twice as many quotas, and room to spare.
pub const FLEET_ANSWER_BYTES_MAX: usize = 1024 * 1024;
/// Bytes of the name that a fleet's keys begin with.
pub const FLEET_NAMESPACE_BYTES_MAX: usize = 64;

/// Commands that come in one request of HTTP, and words of each.
pub const HTTP_COMMANDS_MAX: usize = 1_000;
/// See there.
pub const HTTP_WORDS_MAX: usize = 65_536;
/// Seconds that `Retry-After` says at most: a day.
pub const HTTP_RETRY_AFTER_SECONDS_MAX: u64 = 86_400;
/// A request of HTTP has so long to come, and a second more for so many bytes.
pub const HTTP_REQUEST_TIMEOUT: Duration = Duration::from_secs(30);
/// See there.
pub const HTTP_BODY_BYTES_PER_SECOND: u64 = 16 * 1024;

/// Clients of one core that weir has closed and that have yet to end the connection too: for one more, the oldest is not waited for.
pub const CLIENTS_LINGERING_MAX: usize = 64;
/// Bytes of one client that are still read when weir drains: more than a kernel's buffer holds, so only who goes on sending
/// comes so far.
pub const DRAIN_BYTES_MAX: usize = 8 * 1024 * 1024;

/// Handshakes of TLS that are under way at once, some tens of kilobytes each: for one more, the oldest of the address that has most
/// is given up.
pub const TLS_HANDSHAKES_MAX: usize = 512;
/// Clients that have shaken hands and that their shards have yet to take over.
pub const TLS_IN_TRANSIT_MAX: usize = 1024;
/// Bytes of output that are encrypted at once, of one connection.
pub const TLS_SEND_BYTES_MAX: usize = 64 * 1024;
/// What TLS around one client holds beside that: keys, and a record that is not whole.
pub const TLS_CLIENT_BYTES: usize = 24 * 1024;
/// Bytes of a file with certificates or a key.
pub const TLS_FILE_BYTES_MAX: u64 = 4 * 1024 * 1024;

const _: () = assert!(SLOTS.is_power_of_two());
const _: () = assert!(INLINE_BYTES_MAX > COPY_BYTES_MAX);
const _: () = assert!(RECEIVE_BUFFER_BYTES > COPY_BYTES_MAX, "what is copied comes whole");
const _: () =
    assert!(REQUEST_BYTES_CEILING < u32::MAX as usize, "offsets inside a request are kept in 32 bits");
const _: () = assert!(REPLY_BYTES_CEILING < u32::MAX as usize, "lengths of replies are kept in 32 bits");
const _: () = assert!(TENANTS_MAX < u16::MAX as usize);
const _: () = assert!(TENANT_SERIES_MAX < u8::MAX as usize, "places among the series are kept in 8 bits");
const _: () = assert!(QUOTA_POST_BYTES_MAX as u64 <= QUOTA_FILE_BYTES_MAX);
const _: () = assert!(
    RU_PER_SECOND_MAX * 1_000_000 * BURST_SECONDS_MAX as u64 + DEBT_MAX < i64::MAX as u64,
    "the level of a bucket, from the deepest debt to the largest burst, is counted with a sign"
);
const _: () = assert!(
    PRICE_MAX <= i64::MAX as u64 / (4 * PIPELINE_MAX as u64),
    "all that one client has in flight is counted with a sign"
);
const _: () = assert!(SHARDS_MAX <= u16::MAX as usize);
const _: () = assert!(BACKENDS_MAX <= u16::MAX as usize);
const _: () = assert!(RECEIVE_BUFFERS.is_power_of_two(), "the kernel masks with it");
