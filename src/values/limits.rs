//! Limits of weir in one place, tied together by assertions that the compiler checks.

use std::time::Duration;

/// Number of hash slots of the Redis Cluster key space.
pub const SLOTS: u16 = 16_384;
/// Maximum number of arguments of one request, as in Redis; a request with more is a protocol error, which
/// closes the connection.
pub const ARGUMENTS_MAX: usize = 1_048_576;
/// Maximum number of arguments of one request of a client that has yet to authenticate, as in Redis; a
/// request with more is a protocol error, which closes the connection.
pub const ARGUMENTS_MAX_UNAUTHENTICATED: usize = 10;
/// Maximum number of bytes of one argument of a client that has yet to authenticate, as in Redis; a longer
/// one is a protocol error, which closes the connection.
pub const ARGUMENT_BYTES_MAX_UNAUTHENTICATED: usize = 16 * 1024;
/// Maximum number of bytes of an inline request (words on a line, without lengths), as in Redis; a longer one
/// is a protocol error, which closes the connection.
pub const INLINE_BYTES_MAX: usize = 64 * 1024;
/// Maximum number of bytes of an incomplete request that are handed over with its client to another process.
/// A client with a longer incomplete request is handed over only once the rest of it has come.
pub const MOVED_BYTES_MAX: usize = 16 * 1024;
/// Size above which the bytes of a request or reply are shared by reference count instead of copied.
pub const COPY_BYTES_MAX: usize = 16 * 1024;
/// Maximum number of parsed requests of one connection that wait for replies; with as many, weir stops
/// reading from the connection.
pub const PIPELINE_MAX: usize = 1024;
/// Maximum number of requests for the control executor (such as `INFO` or `QOS`) that one shard has in flight
/// to it; further ones wait on the shard.
pub const QUESTIONS_UNDER_WAY_MAX: usize = 64;
/// Maximum number of unanswered requests on one connection to a backend; further ones are refused, or wait in
/// the queue.
pub const LINK_PENDING_MAX: usize = 65_536;
/// Maximum number of unsent bytes on one connection to a backend; with more, further requests are refused, or
/// wait in the queue.
pub const LINK_OUTPUT_BYTES_MAX: usize = 64 * 1024 * 1024;
/// Maximum number of bytes of unanswered requests on one connection to a node of a cluster; with as many, no
/// more are sent on it. weir keeps these requests, since it may have to send them again.
pub const LINK_UNANSWERED_BYTES_MAX: usize = 64 * 1024 * 1024;
/// Maximum number of bytes of requests and replies that wait for another core before requests for it are
/// refused.
pub const BATCH_BYTES_MAX: usize = 64 * 1024 * 1024;
/// Maximum number of words of a `HELLO` (the version, a user and password, and a name); one with more gets an
/// error.
pub const HELLO_WORDS_MAX: usize = 8;
/// Maximum number of options (user, tier, deadline and so on, each with a value) of one `QOS` request that
/// sets them; a request with more gets an error.
pub const OPTIONS_MAX: usize = 16;
/// Maximum number of key prefixes of a tenant that are named in the refusal of a request for another key;
/// others are only counted there.
pub const PREFIXES_NAMED_MAX: usize = 3;
/// Number of buffers of one core that the kernel fills with bytes from sockets.
pub const RECEIVE_BUFFERS: u16 = 256;
/// Size of one receive buffer, and so the most bytes that one socket receives at once. A value of 16 KiB fits
/// with the bytes around it.
pub const RECEIVE_BUFFER_BYTES: usize = 20 * 1024;
/// Maximum number of shards of one process; `--shards` or `--cores` with more is an error.
pub const SHARDS_MAX: usize = 256;
/// Maximum number of backends (servers that `--storage` names) of one process; with more, weir does not
/// start.
pub const BACKENDS_MAX: usize = 1024;
/// Maximum number of nodes of a cluster, replicas included; a node's view of the cluster that has more is not
/// used.
pub const CLUSTER_NODES_MAX: usize = 128;
/// Maximum number of bytes of one node's reply about its cluster; a larger one is not used. Every slot as a
/// range of its own, with a replica each, fits.
pub const CLUSTER_REPLY_BYTES_MAX: usize = 8 * 1024 * 1024;
/// Maximum number of nodes that are asked for their view of the cluster at the same time.
pub const CLUSTER_VIEWS_MAX: usize = 3;
/// Shortest silence on a connection to a store that owes a reply after which the connection is examined: whether the
/// store's machine still acknowledges what was sent.
pub const SILENCE_EXAMINED: Duration = Duration::from_millis(500);
/// Longest replication lag with which a replica answers reads; a replica of unknown lag answers none.
pub const REPLICA_LAG_MAX: Duration = Duration::from_secs(3);
/// Maximum number of bytes of a node's id; Redis has 40 hexadecimal digits. A node's reply with a longer one
/// is not used.
pub const NODE_ID_BYTES_MAX: usize = 64;
/// Maximum number of bytes of a host's name, as in the DNS; longer ones in replies of a cluster's nodes are
/// not used.
pub const HOST_BYTES_MAX: usize = 255;
/// Maximum number of bytes of a quota file; a larger one is refused.
pub const QUOTA_FILE_BYTES_MAX: u64 = 64 * 1024 * 1024;
/// Maximum number of bytes of a quota file that comes over HTTP; a larger one is refused. It is held in
/// memory; the most tenants fit with about 250 bytes each.
pub const QUOTA_POST_BYTES_MAX: usize = 8 * 1024 * 1024;
/// Maximum number of bytes of all quota files that come over HTTP at once; a further one is refused.
pub const QUOTA_POSTS_BYTES_MAX: usize = 4 * QUOTA_POST_BYTES_MAX;
/// Maximum number of bytes of the admin port's token, which with its header fits a request's head; with a
/// longer one, weir does not start.
pub const ADMIN_TOKEN_BYTES_MAX: usize = 1024;
/// Maximum number of tenants of one quota file; a file with more is refused.
pub const TENANTS_MAX: usize = 32_768;
/// Maximum number of minutes for which tenants' usage is kept by the minute; fewer if there would be more entries than
/// [`METERED_ENTRIES_MAX`].
pub const METERED_MINUTES_MAX: u64 = 24 * 60;
/// Maximum number of entries of usage, each of one tenant in one minute, 40 bytes each. Full days of some 1,400 tenants
/// that never rest fit, and an hour of the most tenants there can be, which suggestions of quotas need; with more
/// activity the oldest minutes are dropped first.
pub const METERED_ENTRIES_MAX: usize = 61 * TENANTS_MAX;
/// Maximum number of tenants with figures of their own among the metrics. With four outcomes each that is some
/// 500 lines, about a tenth of what one scrape usually bears, from each process of a fleet (weir processes
/// that share quotas); the tenants beyond them are summed up as one.
pub const TENANT_SERIES_MAX: usize = 100;
/// Maximum number of tenants on one page or in one reply, since it is written in one go while shards wait for
/// the control executor. Further tenants are asked for by the name of the last one.
pub const TENANTS_SHOWN_MAX: usize = 1_000;
/// Maximum number of users that a quota file names within one tenant; a file with more is refused.
pub const NAMED_USERS_MAX: usize = 65_536;
/// Maximum number of bytes of a tenant's name, which is a label of metrics and a word of refusals; a quota
/// file with a longer one is refused.
pub const TENANT_NAME_BYTES_MAX: usize = 64;
/// Largest value of `--max-clients`, the number of clients connected at once over all shards, and of a
/// tenant's `max_clients`.
pub const CLIENTS_MAX: u64 = 1_000_000;
/// Largest value of `--private-links`, the number of connections to stores that clients may have to
/// themselves over all shards, and of a tenant's `private_links`.
pub const PRIVATE_LINKS_MAX: u64 = 100_000;
/// Maximum number of bytes of a password, as in Redis: each attempt to log in makes a digest of it. A login
/// with a longer one fails.
pub const PASSWORD_BYTES_MAX: usize = 512;
/// Number of failed attempts to log in (over HTTP, of requests with a wrong token in a row) after which a connection is
/// closed, to slow down the guessing of passwords.
pub const LOGINS_FAILED_MAX: u8 = 10;
/// Maximum number of bytes of a client's name (`CLIENT SETNAME`), and of its library's name; longer ones are
/// refused.
pub const CLIENT_NAME_BYTES_MAX: usize = 512;
/// Maximum number of bytes of a store's error text that weir repeats in its error reply to `EXEC`, where the
/// store refused a queued request of the transaction; the rest is left out.
pub const STEP_ERROR_BYTES_MAX: usize = 512;
/// Longest time for which weir holds a request to a cluster because a node has refused it or because its slot
/// moves, even if its deadline leaves more; then the client gets an error.
pub const SLOT_HELD_MAX: Duration = Duration::from_secs(1);
/// Maximum number of bytes of the error reply by which a cluster's node that is down refuses a request. After
/// a longer one weir does not hold the request to send it again, since the error is kept until the client is
/// answered.
pub const REFUSAL_KEPT_BYTES_MAX: usize = 512;
/// Size of an answer about commands (`COMMAND`), in bytes, above which the client gets an error in its place.
pub const DESCRIPTION_BYTES_MAX: usize = 1024 * 1024;
/// Maximum number of words of a request that `QOS EXPLAIN` explains, since it does so in one turn (pass of
/// the shard's loop); for a request with more it gives an error.
pub const EXPLAINED_WORDS_MAX: usize = 65_536;
/// Maximum number of requests of one transaction that weir answers itself: it does so in one turn (pass of
/// the shard's loop); a transaction with more is refused.
pub const TRANSACTION_OWN_MAX: usize = 4_096;
/// Maximum number of bytes of a reply to `CLIENT LIST`. If a shard's part of the reply is longer than an equal share of
/// it, the client gets an error.
pub const CLIENT_LIST_BYTES_MAX: usize = 16 * 1024 * 1024;
/// Maximum number of client ids in one `CLIENT LIST` or `CLIENT KILL`; a request with more is refused.
pub const CLIENT_IDS_MAX: usize = 1_024;
/// Longest `CLIENT PAUSE`, in milliseconds (a day); a longer one is refused.
pub const CLIENT_PAUSE_MS_MAX: u64 = 24 * 60 * 60 * 1_000;
/// Largest value of `--monitors`, the number of clients that may be monitors (`MONITOR`) at once over all
/// shards: a bit of a 64-bit word stands for each.
pub const MONITORS_MAX: u64 = 64;
/// Maximum number of words of a request that `MONITOR` shows; further ones are left out.
pub const MONITOR_ARGUMENTS_MAX: usize = 128;
/// Maximum number of bytes of a word that `MONITOR` shows; the rest is left out.
pub const MONITOR_ARGUMENT_BYTES_MAX: usize = 1024;
/// Maximum number of bytes of a request's words that `MONITOR` shows; the rest is left out. Quoted they may
/// take four times as many.
pub const MONITOR_REQUEST_BYTES_MAX: usize = 8 * 1024;
/// Maximum number of requests of one transaction that `MONITOR` shows; further ones are left out.
pub const MONITOR_TRANSACTION_MAX: usize = 1_024;
/// Maximum number of bytes that may wait for a client that watches requests (`MONITOR`): 256 KiB, or half of
/// `--output-limit` if that is less. Lines beyond it are left out.
pub const MONITOR_OUTPUT_BYTES_MAX: usize = 256 * 1024;
/// Bytes of lines for clients that watch requests (`MONITOR`) that may wait for one other core; lines beyond
/// it are left out.
pub const MONITOR_BATCH_BYTES_MAX: usize = 1024 * 1024;
/// Maximum number of bytes (32 MiB) of published messages that wait on one core for their delivery, or for
/// another core. Counts messages of channels to which weir has one subscription for all its clients. Beyond
/// that, messages of the channels with the most bytes are dropped, and the connections of these channels'
/// subscribers on that core are closed.
pub const SHARED_MESSAGES_BYTES_MAX: usize = 32 * 1024 * 1024;
/// Maximum number of deliveries (one message to one client) per core and turn (pass of the shard's loop),
/// from channels to which weir has one subscription for all its clients; further ones wait for the next turn.
pub const SHARED_DELIVERIES_PER_TURN: usize = 8_192;
/// Largest value of `--shared-channels`: the number of channels, over all cores together, to each of which weir may
/// have one subscription that all its clients share. The same number limits such patterns, as far as it is below 1,024.
pub const SHARED_CHANNELS_MAX: u64 = 1_000_000;
/// Maximum number of patterns, over all cores together, to each of which weir has one subscription that all
/// its clients share; subscriptions to further ones are refused. The channel of each `PUBLISH` is compared
/// with all of them.
pub const SHARED_PATTERNS_MAX: usize = 1_024;
/// Part of a limit of the whole process that one tenant's clients may take up, as numerator and denominator:
/// four of five. The limits are on connections to stores that clients have to themselves, and on patterns and
/// prefixes that clients have at stores.
pub const TENANT_PART: (usize, usize) = (4, 5);
/// Maximum number of places for patterns of channels (`PSUBSCRIBE`) to which clients are subscribed at stores
/// over connections of their own, over all cores together; a pattern takes one place, or several if it is
/// slow to compare. Further ones are refused. A store compares each message with each pattern, in about 30
/// ns.
pub const FILTER_PATTERNS_MAX: usize = 4_096;
/// Maximum number of places for key prefixes (`CLIENT TRACKING` with `BCAST`) that clients track at stores,
/// over all cores together; a long prefix takes several, and further ones are refused. A store compares the
/// key of each write with each prefix, in about 20 ns, and sends messages about changes of keys that have
/// one.
pub const FILTER_PREFIXES_MAX: usize = 1_024;
/// Maximum number of keys that one client may watch (`WATCH`) at a time; more are refused. Redis compares each
/// further key with all of them: 1,024 keys take it 6 ms, 50,000 keys 15 s.
pub const WATCHED_KEYS_MAX: usize = 1_024;
/// Maximum number of elements that one request may pick at random where the same element may come several
/// times; a request for more is refused.
pub const RANDOM_ELEMENTS_MAX: usize = 16_384;
/// Maximum number of times that one request for values (`MGET`) may repeat keys or fields which it has named
/// before; a request with more is refused. For each repetition, the store copies the value once more.
pub const REPEATED_VALUES_MAX: usize = 1_024;
/// Maximum number of times that one request which combines whole collections (`SINTER`) may repeat keys that
/// it has named before; a request with more is refused. For each repetition, the store goes through the
/// collection once more.
pub const REPEATED_KEYS_MAX: usize = 16;
/// Maximum number of words of a request whose keys or fields weir compares with each other, or for each of whose words
/// (`SCRIPT EXISTS`, `PUBSUB NUMSUB`) weir joins the stores' replies; one with more is refused. weir handles such a
/// request without doing other work in between, which takes about 2 ms.
pub const COMBINED_WORDS_MAX: usize = 65_536;
/// Maximum number of keys at which one client may wait (`BLPOP`); a request with more is refused. A store keeps
/// about 230 bytes for each, and goes through all of them when the client leaves.
pub const AWAITED_KEYS_MAX: usize = 1_024;
/// Maximum number of patterns of keys that one `SORT` may read for each element; a request with more is
/// refused.
pub const SORT_PATTERNS_MAX: usize = 64;
/// Bytes of the longest pattern that a store compares with the names of many keys, fields or channels; a request with
/// a longer one is refused. Each byte of a name may be compared with each byte of the pattern.
pub const PATTERN_BYTES_MAX: usize = 1_024;
/// Bytes of the longest channel of a published message, which a store compares with the patterns of all subscribers;
/// a message to a longer one is refused. 4,096 bytes take up to 18 us for a pattern.
pub const CHANNEL_BYTES_MAX: usize = 4_096;
/// Bytes of the longest name of a channel or pattern for which weir has one subscription for all its clients.
/// Subscriptions to longer ones have connections of their own.
pub const SHARED_NAME_BYTES_MAX: usize = 1_024;
/// Maximum number of requests (to subscribe or unsubscribe) about channels with one subscription for all clients that
/// one store has yet to acknowledge to a core; while there are as many, clients' subscriptions to such channels are
/// refused.
pub const SHARED_OWED_MAX: usize = 262_144;
/// Maximum number of steps for comparing the channel of one `PUBLISH` with all patterns for which weir has
/// one subscription for all its clients; patterns left then count as not matching.
pub const PATTERN_STEPS_MAX: usize = 262_144;
/// Maximum number of sections that one `INFO` may name; further names are ignored.
pub const INFO_SECTIONS_MAX: usize = 64;
/// Maximum number of requests of one connection that are started in a turn (pass of the shard's loop) before other
/// connections have theirs; a request of many words, or with a long reply by weir itself, counts as several.
pub const REQUESTS_PER_TURN: u32 = 256;
/// Maximum number of requests of all connections of a core that are started in a turn (pass of the shard's
/// loop), so that other work is done in time; half of it is kept for connections that had to wait.
pub const REQUESTS_PER_TURN_OF_ALL: u32 = 2_048;
/// Number of words for which a request counts as one request more against the limit of requests started in a
/// turn (pass of the shard's loop).
pub const WORDS_PER_REQUEST: usize = 64;
/// Maximum number of keys of one request that a core splits by key, or whose values it joins, without doing other
/// work in between: some tenths of a millisecond.
pub const KEYS_PER_TURN: usize = 4_096;
/// Maximum number of bytes of a message, such as a transaction, that weir searches for the keys that it
/// changes, which takes up to a millisecond. A longer message counts as a change of all keys of its store.
pub const MESSAGE_READ_BYTES_MAX: usize = 256 * 1024;
/// Bytes of a reply by weir itself that count as one more request against the limit of requests started in a
/// turn (pass of the shard's loop).
pub const ANSWER_BYTES_PER_REQUEST: usize = 256;
/// Maximum number of bytes of a user's name within a tenant; a login, a request or a quota file with a longer
/// one is refused.
pub const USER_NAME_BYTES_MAX: usize = 256;
/// Maximum number of prefixes of one tenant's keys, and of its channels; a quota file with more is refused.
pub const PREFIXES_MAX: usize = 256;
/// Maximum number of bytes of a prefix of a tenant's keys or channels; a quota file with a longer one is
/// refused.
pub const PREFIX_BYTES_MAX: usize = 1024;
/// The largest quota, in request units per second; a quota file with a larger one is refused. In millionths
/// it still leaves room for a burst of an hour in 64 bits.
pub const RU_PER_SECOND_MAX: u64 = 1_000_000_000;
/// The longest burst, in seconds of quota; a quota file with a longer one is refused.
pub const BURST_SECONDS_MAX: u32 = 3_600;
/// Highest price of one request, in millionths of a request unit: a second of the largest quota. So a price
/// is never below zero as a signed number, and neither is the sum of the prices of all that one client has in
/// flight.
pub const PRICE_MAX: u64 = RU_PER_SECOND_MAX * 1_000_000;
/// Largest debt of a bucket, in millionths of a request unit: more would never be paid off, so the debt grows
/// no further.
pub const DEBT_MAX: u64 = i64::MAX as u64 / 4;
/// Maximum number of keys that are hot on one core at a time; a setting may lower it. A further key becomes
/// hot only in place of one with less than half its load.
pub const HOT_KEYS_MAX: usize = 256;
/// Number of keys of queued requests that a core examines every 5 ms at most, to find requests about keys that have
/// become hot; the rest of a request that exceeds it is examined too. Takes about 0.5 ms.
pub const HOT_QUEUED_KEYS_EXAMINED_MAX: usize = 8_192;
/// Maximum number of newly hot keys whose requests (those for one key) a core takes out of the queues in front of
/// stores at a time, every 5 ms at most; other keys wait for the next time.
pub const HOT_KEYS_NOTICED_MAX: usize = 16;
/// Maximum number of bytes of a hot key that weir keeps in full. Of longer keys only the beginning is kept, for
/// reports; replies to reads of them are never cached.
pub const HOT_NAME_BYTES_MAX: usize = 1024;
/// Number of bytes kept of a hot key that is too long to be kept whole.
pub const HOT_NAME_BYTES_SHOWN: usize = 128;
/// Maximum number of hot keys in one reply or on one page, if the request gives no number.
pub const HOT_KEYS_SHOWN: usize = 100;
/// Largest number of hot keys that a request may ask for in one reply or on one page; a request for more gets
/// an error.
pub const HOT_KEYS_SHOWN_MAX: usize = 1_000;
/// Maximum number of bytes of the names of hot keys in one reply or on one page; the least hot keys are left
/// out.
pub const HOT_KEYS_SHOWN_BYTES_MAX: usize = 256 * 1024;
/// Maximum number of hot keys with figures of their own among the metrics, since each is a time series where
/// they are scraped; less hot ones have none.
pub const HOT_KEY_SERIES_MAX: usize = 20;
/// Maximum number of bytes of a hot key's name among the metrics; the rest of the name is left out.
pub const HOT_KEY_LABEL_BYTES_MAX: usize = 64;
/// Maximum number of lines of its log that weir keeps for the admin port's page; the oldest are dropped.
pub const JOURNAL_LINES_MAX: usize = 100;
/// Maximum number of characters of a log line that weir keeps; `...` takes the place of the rest.
pub const JOURNAL_LINE_CHARS_MAX: usize = 400;
/// Maximum number of stores in `/state.json`; those in trouble come first, and others are counted.
pub const STATE_STORES_MAX: usize = 64;
/// Maximum number of tenants in `/state.json`; those that were refused most come first, and others are
/// counted.
pub const STATE_TENANTS_MAX: usize = 100;
/// Maximum number of tenants at one point of time in `/history.json` (figures every 5 s), and over all its points. At
/// one point, those that were refused most come first; over all points, those of the latest ones. Others are left out.
pub const HISTORY_TENANTS_MAX: usize = 32;
/// Maximum number of hot keys in `/state.json`; the hottest come first, and others are counted.
pub const STATE_HOT_KEYS_MAX: usize = 20;
/// Maximum number of bytes of a request whose reply is kept in the hot-key cache; replies to longer ones are
/// not kept.
pub const HOT_FRAME_BYTES_MAX: usize = 1024;
/// Maximum number of bytes of an `MGET` for keys of one core and store that is counted as a read of each of its
/// keys. A longer one makes no key hot, because a core reads all of its keys in one go.
pub const HOT_COUNTED_BYTES_MAX: usize = 8 * 1024;
/// Maximum number of keys of an `MGET` that is split so that each hot key has a request of its own. A request for
/// one key takes more of weir's CPU than one more key takes of a store's.
pub const HOT_SPLIT_KEYS_MAX: usize = 16;
/// Maximum number of bytes of a reply that is kept in the hot-key cache; larger ones are not kept.
pub const HOT_REPLY_BYTES_MAX: usize = 64 * 1024;
/// Maximum number of requests whose replies are kept for one hot key, in both dialects (RESP2, RESP3)
/// together. One more takes the place of the reply that was unused longest, if that is 250 ms or more;
/// otherwise its reads go to the store one by one.
pub const HOT_ANSWERS_MAX: usize = 16;
/// Maximum number of copies of replies that one core keeps of hot keys whose requests pass through other
/// cores, which lend it the copies; further ones are not kept.
pub const HOT_COPIES_MAX: usize = 256;
/// Maximum number of bytes of requests for hot keys that one core holds back so that they do not overtake earlier ones.
/// A further request is not held back: it is sent at once, after those of its connection that were.
pub const HOT_HELD_BYTES_MAX: usize = 16 << 20;
/// Maximum number of reads that wait for one fetch of a hot key; further ones are refused.
pub const HOT_WAITERS_PER_FLIGHT_MAX: usize = 16_384;
/// Maximum number of reads that wait for fetches of hot keys on one core; further ones are refused. Also the maximum
/// number of requests that the core holds back so that they do not overtake earlier ones; a further one is sent at
/// once, after those of its connection that were held back.
pub const HOT_WAITERS_MAX: usize = 65_536;
/// The longest deadline that a client, or a tenant's quotas, may set for requests: a day, in milliseconds. A
/// longer one is refused.
pub const DEADLINE_MS_MAX: u64 = 24 * 60 * 60 * 1_000;
/// Longest time beyond `--hot-ttl` for which a tenant may have cached replies while their store is
/// unavailable; a quota file with a longer one is refused.
pub const STALE_ON_ERROR_MAX: std::time::Duration = std::time::Duration::from_secs(3_600);
/// Number of classes of commands that prices are learnt for.
pub const COMMAND_CLASSES: usize = 6;
/// Maximum number of users of whose quotas one shard keeps an account, over all tenants. A tenant may have as many as
/// there is room left for others. For a further user, an idle one of the 16 oldest is forgotten; if there is none, the
/// request is refused.
pub const USERS_MAX: usize = 1_048_576;
/// Maximum number of token buckets of quotas that the control executor (which divides quotas among shards) keeps, for
/// all shards together: those that are not full. A further bucket takes the place of one that has filled up; if there
/// is none among the 16 oldest, nothing is granted for it.
pub const POOLS_MAX: usize = 4 * USERS_MAX;
/// Maximum number of bytes of one reply of the embedded engine, by default; a larger one is replaced by an
/// error.
pub const ENGINE_REPLY_BYTES_MAX: usize = 64 * 1024 * 1024;
/// Maximum effort (steps of work) of one request to the embedded engine, about 1 for each element it looks
/// at: some tenths of a second. A request that takes more gets an error.
pub const ENGINE_EFFORT_MAX: u64 = 8_000_000;
/// Maximum effort (steps of work) of one connection to the embedded engine before the next connection's turn:
/// some tenths of a millisecond.
pub const ENGINE_EFFORT_PER_TURN: u64 = 8_000;
/// Number of bytes of replies waiting to be sent on one connection to the embedded engine from which on no
/// more requests of that connection are carried out.
pub const ENGINE_OUTPUT_BYTES_HELD: usize = 1024 * 1024;
/// Number of bytes of requests waiting for their turn on one connection to the embedded engine above which
/// the engine stops reading from that connection.
pub const ENGINE_INPUT_BYTES_HELD: usize = 256 * 1024;
/// Number of databases of the embedded engine, as in Redis by default.
pub const ENGINE_DATABASES: u8 = 16;
/// Maximum number of bytes of all blocking commands that wait in the embedded engine, about 500 for a command
/// with one short key; further ones get an error.
pub const ENGINE_WAITING_BYTES_MAX: usize = 64 * 1024 * 1024;
/// Maximum number of bytes of all watches of keys (`WATCH`) in the embedded engine, about 200 for one of a
/// short key; further ones get an error.
pub const ENGINE_WATCHED_BYTES_MAX: usize = 64 * 1024 * 1024;
/// Maximum number of bytes of the embedded engine's table of tracked keys (`CLIENT TRACKING`), about 150 for
/// a short key. Above that, clients are sent messages about keys that have not changed.
pub const ENGINE_TRACKED_BYTES_MAX: usize = 64 * 1024 * 1024;
/// Maximum number of bytes of all subscriptions to channels of the embedded engine, about 250 for one with a
/// short name; further ones get an error.
pub const ENGINE_CHANNELS_BYTES_MAX: usize = 64 * 1024 * 1024;
/// Maximum number of bytes that a script of the embedded engine may use in the interpreter; a script that
/// needs more ends with an error.
pub const ENGINE_SCRIPT_BYTES_MAX: usize = 64 * 1024 * 1024;
/// Maximum time of a script of the embedded engine, in milliseconds, where the engine has a clock. The limit
/// on its effort ends it earlier, unless its instructions take long, as comparisons of long texts do.
pub const ENGINE_SCRIPT_MS_MAX: u64 = 2_000;
/// Maximum number of bytes of all scripts that the embedded engine knows by their digests, about nine for each
/// byte of source. For a further one, the oldest that were not loaded by `SCRIPT LOAD` are forgotten.
pub const ENGINE_SCRIPTS_BYTES_MAX: usize = 64 * 1024 * 1024;
/// Maximum number of bytes of all libraries of functions of the embedded engine, about nine for each byte of
/// source; a further one gets an error.
pub const ENGINE_LIBRARIES_BYTES_MAX: usize = 64 * 1024 * 1024;
/// Maximum number of bytes that all functions of the embedded engine may use in their interpreter, with the
/// data that they keep from one call to the next; a function that needs more ends with an error.
pub const ENGINE_FUNCTIONS_BYTES_MAX: usize = 128 * 1024 * 1024;
/// Maximum number of bytes of the messages that one request to the embedded engine may send, and of its replies to
/// calls that wait for entries of streams; a request that would send more gets an error. Messages to several
/// subscribers of one channel count once.
pub const ENGINE_MESSAGES_BYTES_MAX: usize = 128 * 1024 * 1024;
/// Maximum number of bytes of the events of keys that one request to the embedded engine, or one sweep of expired
/// keys, may queue, and a second such limit for the messages about them. Events beyond it are dropped and counted,
/// and the request goes on.
pub const ENGINE_EVENTS_BYTES_MAX: usize = 64 * 1024 * 1024;
/// Maximum number of slow requests that the embedded engine keeps (SLOWLOG), at most 5 KiB each; the oldest
/// are dropped.
pub const ENGINE_SLOW_REQUESTS_MAX: usize = 1024;
/// Unsent bytes of messages behind the last reply beyond which a connection to the embedded engine is closed, as a
/// subscriber is in Redis.
pub const ENGINE_SUBSCRIBER_BYTES_MAX: usize = 32 * 1024 * 1024;
/// Largest value of `--max-request-bytes`: a bulk string may be as large as in Redis. Also the largest size of a string
/// in the embedded engine.
pub const REQUEST_BYTES_CEILING: usize = 512 * 1024 * 1024;
/// Largest value of `--max-reply-bytes`, the most bytes of a store's reply, which may hold several of the largest
/// values.
pub const REPLY_BYTES_CEILING: usize = 2 * 1024 * 1024 * 1024;
/// Maximum number of hosts that share one quota; a list of more hosts from the fleet's store is not used.
pub const FLEET_HOSTS_MAX: usize = 4_096;
/// Maximum number of quotas of tenants that one host asks the fleet's store (Redis server with the counters
/// of shared quotas) about in one period, and as many of users. Those with the highest demand are chosen; the
/// host gives out fixed parts of the others.
pub const FLEET_KEYS_MAX: usize = 1_000;
/// Maximum number of users that one host looks at in one period to find those with the highest demand;
/// further ones are not considered.
pub const FLEET_CANDIDATES_MAX: usize = 8 * FLEET_KEYS_MAX;
/// Maximum number of hosts, gone for long, whose entries in the fleet's store (Redis server with the counters
/// of shared quotas) one host removes in one period.
pub const FLEET_FORGOTTEN_AT_ONCE: usize = 64;
/// Maximum number of bytes of the replies of the fleet's store (Redis server with the counters of shared
/// quotas) to one exchange: enough for the most hosts and quotas. The exchange fails if there are more.
pub const FLEET_ANSWER_BYTES_MAX: usize = 1024 * 1024;
/// Maximum number of bytes of a fleet's name, with which the names of its keys in the Redis server begin; a
/// longer one is an error at the start.
pub const FLEET_NAMESPACE_BYTES_MAX: usize = 64;

/// Maximum number of commands in one HTTP request; a request with more is refused.
pub const HTTP_COMMANDS_MAX: usize = 1_000;
/// Maximum number of words in one HTTP request, over all its commands; a request with more is refused.
pub const HTTP_WORDS_MAX: usize = 65_536;
/// Longest time that weir's HTTP header `Retry-After` names, in seconds: a day.
pub const HTTP_RETRY_AFTER_SECONDS_MAX: u64 = 86_400;
/// Time within which an HTTP request has to arrive in full, and a second more for every 16 KiB of it that have come;
/// after that, the client gets an error and is closed.
pub const HTTP_REQUEST_TIMEOUT: Duration = Duration::from_secs(30);
/// Number of bytes of an HTTP request for which it gets one second more to arrive in full.
pub const HTTP_BODY_BYTES_PER_SECOND: u64 = 16 * 1024;

/// Maximum number of connections of one core that weir has closed on its side and whose clients have not
/// closed theirs yet; for one more, the oldest such connection is dropped.
pub const CLIENTS_LINGERING_MAX: usize = 64;
/// Maximum number of bytes that weir still reads from one client while it drains: more than a kernel's buffer
/// holds, so only clients that go on sending reach it.
pub const DRAIN_BYTES_MAX: usize = 8 * 1024 * 1024;

/// Maximum number of TLS handshakes in progress, some tens of kilobytes each. For one more, weir gives up the
/// oldest handshake of the client address that has the most in progress.
pub const TLS_HANDSHAKES_MAX: usize = 512;
/// Maximum number of clients that have finished their TLS handshake and that their shards have not taken over
/// yet; further ones are disconnected.
pub const TLS_IN_TRANSIT_MAX: usize = 1024;
/// Maximum number of bytes of output of one connection that are encrypted at once.
pub const TLS_SEND_BYTES_MAX: usize = 64 * 1024;
/// Bytes of memory that TLS takes for one client besides its output: keys, and an incomplete record.
pub const TLS_CLIENT_BYTES: usize = 24 * 1024;
/// Maximum number of bytes of a file with certificates or a key; a larger one is refused.
pub const TLS_FILE_BYTES_MAX: u64 = 4 * 1024 * 1024;

const _: () = assert!(SLOTS.is_power_of_two());
const _: () = assert!(INLINE_BYTES_MAX > COPY_BYTES_MAX);
const _: () = assert!(RECEIVE_BUFFER_BYTES > COPY_BYTES_MAX, "what is copied comes whole");
const _: () =
    assert!(KEYS_PER_TURN > RECEIVE_BUFFER_BYTES / 6, "more words than that come in several buffers");
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
