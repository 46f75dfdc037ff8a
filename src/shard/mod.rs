//! Shard: everything that one core does, in rooms (modules) whose state no other room can name, and the way of a
//! request through them.
//!
//! ```text
//!                     clients                   admission             hot_keys         upstream
//!   clients ══bytes══> decoding, whose turn ──┐  prices, accounts    cache, fetches    links, ... ══> stores
//!                                            v        │                    │             ^
//!                              pipeline: permitted? ──> admitted? ──> at home here? ─────┤
//!                                                                                        │ on another core
//!   clients <══ answers in the order asked <── settled <───────────────────── peers <────┘
//! ```
//!
//! | folder | what it has | what it never sees |
//! |---|---|---|
//! | `env.rs` | settings, quotas in force, buffers, counters, actions: lent to the others | |
//! | `clients/` | clients, their turns, what they wait for, the order of their answers | stores |
//! | `admission/` | prices, accounts, requests that wait for a grant of a quota | connections of either kind |
//! | `hot_keys/` | which keys are hot, what is kept of them, who waits for a fetch | clients, accounts, connections |
//! | `upstream/` | the four rooms below, and the order in which they are asked | clients, accounts |
//! | `cluster/` | slots on the move, redirected requests, replicas that answer reads, retries | connections, windows |
//! | `breaker/` | health of each backend, whether it is ejected | connections, windows |
//! | `overload/` | window and queue before each backend, its response times | connections |
//! | `links/` | connections to stores, the replies that they owe, fences | windows, clients, accounts |
//! | `private/` | connections to stores that one client has to itself | clients, accounts |
//! | `shared_channels/` | channels and patterns at home on this core, with one subscription for all clients | clients, connections |
//! | `monitors/` | lines that monitors (`MONITOR`) are sent, and what may be spent on them | clients, stores |
//! | `peers/` | batches for other cores | clients, accounts, stores |
//! | `pipeline/` | only the other rooms; the way of a request | |
//!
//! | what all rooms may know | file |
//! |---|---|
//! | what a core is told once | `settings.rs` |
//! | what is counted, and how long things take | `counters.rs`, `durations.rs` |
//! | loads, latencies and levels of the bulkheads before backends, shared by cores without a lock | `board.rs` |
//! | time in which a backend answers nothing, and who shares it | `quiet.rs` |
//! | health of the stores, shared likewise: counts of failures, and whose requests are refused | `health.rs` |
//! | the monitors of all cores, and what each may see | `monitor_board.rs` |
//! | subscriptions of all cores that stores have yet to acknowledge | `subscription_board.rs` |
//! | numbers of patterns and key prefixes that clients of all cores have at stores | `filter_board.rs` |
//! | hash slots with hot keys, for the cores that split requests for several keys | `hot_slots.rs` |
//! | scripts that declare that they write nothing, by their digests | `script_board.rs` |
//! | shared channels: what home cores and those with subscribers tell each other, and numbers of subscribers | `shared_channel.rs`, `shared_numbers.rs` |
//! | clients that take the invalidation messages of others: what their cores tell each other | `tracking_redirect.rs` |
//! | shed level of each backend, as agreed from the board: which requests cost more, or are refused | `backend_levels.rs` |
//! | what travels with a request, and its bytes, on their way or waiting | `request.rs`, `message.rs`, `stored.rs` |
//! | a request in flight on a backend connection | `pending.rs` |
//! | the keys of a message that names several | `reach.rs` |
//! | the keys that became hot and that a queued request for several names | `searched.rs` |
//! | the parts of a request that is split by key | `partition.rs` |
//! | a request that goes on as one per key, because its slot is half moved | `pieces.rs` |
//! | the replies to the parts of one request, joined into one | `gather.rs` |
//! | replies on their way to whom they are for | `replies.rs` |
//! | what became of a request, why it went no further, and what its client's core is told besides | `outcome.rs`, `refusal.rs`, `note.rs` |
//! | counts of writes and the replies given last, as all cores see them, and replies of hot keys that one core lends another | `versions.rs`, `last_told.rs`, `copy.rs` |
//! | what is left of a backend connection that was given up | `fence.rs` |
//! | large replies that are being received, and the room that they share | `large_replies.rs` |

mod admission;
mod backend_levels;
mod board;
mod breaker;
mod clients;
mod cluster;
mod copy;
mod counters;
mod durations;
mod env;
mod fence;
mod filter_board;
mod gather;
mod health;
mod hot_keys;
mod hot_slots;
mod large_replies;
mod last_told;
mod links;
mod message;
mod monitor_board;
mod monitors;
mod note;
mod outcome;
mod overload;
mod partition;
mod peers;
mod pending;
mod pieces;
mod pipeline;
mod private;
mod quiet;
mod reach;
mod refusal;
mod replies;
mod request;
mod script_board;
mod searched;
mod settings;
mod shared_channel;
mod shared_channels;
mod shared_numbers;
mod stored;
mod subscription_board;
mod tracking_redirect;
mod upstream;
mod versions;

pub use crate::policy::breaker::Stage as BreakerStage;
pub use admission::{
    Accounts, Bill, Charge, Decision, Outlook, Payer, Scope, Tab, UserAccount, UserFigures, asked, bucket_of,
    capacity_of,
};
pub use board::Noticeboard;
pub use clients::client_filter::{ClientsAsked, ClientsTold};
pub use clients::pause::{Pause, Paused, Pauses};
pub use clients::{Address, Identity, Question, Readiness, ScopeLimit, Session, StoreView};
pub use cluster::{Doubt, ReaderFigures};
pub use counters::{COUNTERS, Counter, Counters, Pressure, Pressures};
pub use durations::Durations;
pub use filter_board::{FilterBoard, FilterKind};
pub use hot_keys::{HotFigures, HotKey, TrackingFigures};
pub use message::Message;
pub use monitor_board::MonitorBoard;
pub use outcome::{Outcome, Settlement};
pub use overload::BulkheadFigures;
pub use peers::Batch;
pub use pipeline::Shard;
pub use pipeline::explain::Explained;
pub use private::PrivateFigures;
pub use refusal::{Refusal, Stage};
pub use request::{Asker, Envelope, Nature, Overdue, ReplyTo, Route, Touches, Track};
pub use script_board::ScriptBoard;
pub use settings::{
    AdmissionSettings, BULKHEADS, BackendSettings, ClientLimits, HotSettings, Limiter, Mode,
    OverloadSettings, ShardSettings,
};
pub use subscription_board::SubscriptionBoard;

#[cfg(test)]
mod tests;
