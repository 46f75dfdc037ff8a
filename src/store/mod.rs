//! The embedded engine: a small, bounded, single-threaded Redis-compatible store.
//!
//! ```text
//!     Arguments ─> Engine::execute ─> Directory: name ─> Command
//!                  │ arity, memory, MULTI      │ one function per command, one file per family:
//!                  │                           │ strings subsequences bits bit_fields distinct_counts keys dumps sort
//!                  │                           │ lifetimes hashes field_lifetimes lists sets sorted_sets
//!                  │                           │ sorted_ranges sorted_combinations places streams stream_groups stream_info
//!                  v                           v blocking connection server configuration administration
//!                  │                           │ slow_log latency transactions pubsub scripts
//!                reply <── appended to `out` ─ Call ── reads and changes ─> Keyspace
//!                                                                             │ 256 segments, by hash
//!                                                                             v
//!                                                      Table<Entry { key, value, expiry }>, in hash order
//! ```
//!
//! ```text
//!     Value: Integer | Text | Buffer | Fields (hash) | Items (list) | Members (set) | Ranking (sorted set) | Stream
//! ```
//!
//! The engine is pure: time and the seed are arguments, nothing waits, nothing is shared. So each core may
//! own one, and a simulation may own hundreds.
//!
//! * Memory is counted per key, value and element; at `bytes_max` each command that may need more is refused.
//! * A scan (SCAN and its variants) goes in hash order, so its cursor is a hash: see `table.rs`.
//! * Expired keys and fields are never seen; [`Engine::expire_some`] frees those that nobody asks for.
//! * Replies are those of Redis 7.0, byte for byte, except cursors and the order of unordered elements.
//! * `tools/storage` makes the engine slow, stalled, faulty or unreachable for tests; none of that is here.
//! * There are 16 databases, of which the keyspace has one selected, and one user. Nothing persists.
//! * The keyspace reports each change to `interest`: to `watches` (WATCH), to `tracking` (CLIENT TRACKING), and to
//!   `waits`, whose calls `serving` serves after the command or transaction. Bytes for other connections that result,
//!   and messages of `channels`, are polled ([`Engine::poll_delivery`]). All of it is bounded in bytes.
//! * `settings` holds the values of CONFIG SET, and `shapes` those that collections read; `stats` counts commands and
//!   errors.
//! * While a script runs for a long time, `attend` lets the service answer other connections (`service/busy.rs`).
//! * Commands announce keyspace events to `events`, which publishes them where they are wanted.

#![expect(clippy::unnecessary_wraps, reason = "every command has the same signature")]

mod administration;
mod attend;
#[cfg(test)]
mod bench;
mod bit_fields;
mod bits;
mod blocking;
#[cfg(test)]
mod bounds;
mod call;
mod channels;
mod commands;
mod configuration;
mod connection;
mod connections;
mod counters;
mod directory;
mod distinct;
mod distinct_counts;
mod dumps;
mod effort;
mod engine;
mod events;
mod expiries;
mod field_lifetimes;
mod fields;
mod glob;
mod globe;
mod hashes;
mod hexadecimal;
mod interest;
mod items;
mod keys;
mod keyspace;
mod latency;
mod lifetimes;
mod limits;
mod lists;
mod log;
mod long_double;
mod members;
mod numbers;
mod packed;
mod places;
mod post;
mod pubsub;
mod ranking;
mod rdb;
mod refusal;
mod reply;
mod scan;
#[cfg(feature = "scripts")]
mod scripts;
mod server;
mod service;
mod serving;
mod session;
mod sets;
mod settings;
mod shapes;
mod slow_log;
mod sort;
mod sorted_combinations;
mod sorted_ranges;
mod sorted_sets;
mod stats;
mod stream;
mod stream_groups;
mod stream_info;
mod stream_nodes;
mod streams;
mod strings;
mod subsequences;
mod sums;
mod sweeper;
mod table;
mod text;
mod tracking;
mod transactions;
mod value;
mod waits;
mod watches;

pub use connections::{Connection, Connections};
pub use engine::{Engine, EngineStatistics};
pub use keyspace::Swept;
pub use limits::EngineLimits;
pub use post::Delivery;
pub use service::{Service, Sockets, StoreClients, StoreService};
pub use session::{Disposition, Session};
pub use sweeper::Sweeper;
