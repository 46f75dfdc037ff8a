//! One core's share of everything: six stages, each a room with state of its own, and the way of a request through them.
//!
//! ```text
//!                     front                        gate                   hot             back
//!   clients ══bytes══> decoding, whose turn ──┐  prices, accounts    cache, fetches    links, fences ══> stores
//!                                            v        │                    │             ^
//!                              composer: permitted? ──> admitted? ──> at home here? ─────┤
//!                                                                                        │ on another core
//!   clients <══ answers in the order asked <── settled <────────────────────── post <────┘
//! ```
//!
//! | room | what it has | what it never sees |
//! |---|---|---|
//! | `env.rs` | settings, quotas in force, buffers, counters, actions: lent to the others | |
//! | `front/` | clients, their turns, what they wait for, the order of their answers | stores |
//! | `gate/` | prices, accounts, who waits for a pool | connections of either kind |
//! | `hot/` | which keys are hot, what is kept of them, who waits for a fetch | clients, accounts, connections |
//! | `back/` | connections to stores, what is in flight on them, fences | clients, accounts |
//! | `post/` | batches for other cores | clients, accounts, stores |
//! | `composer/` | nothing but these; the way of a request | |
//!
//! | what all of them may know | file |
//! |---|---|
//! | what a core is told once | `settings.rs` |
//! | what is counted | `counters.rs` |
//! | what cores tell each other of what stands before backends, without a lock | `board.rs` |
//! | the same of their health: what is counted of failures, and whose requests are refused | `health.rs` |
//! | how strained backends are by that: what is dearer, or refused | `strain.rs` |
//! | what travels with a request, and its bytes, on their way or waiting | `request.rs`, `message.rs`, `stored.rs` |
//! | the keys of a message that names several | `reach.rs` |
//! | a request that goes on key by key, because its slot is half moved | `pieces.rs` |
//! | what became of it, why it went no further, and what its client's core is told besides | `outcome.rs`, `refusal.rs`, `note.rs` |
//! | what was written since when, and told last, as all cores see it, and what one lends another of hot keys | `versions.rs`, `last_told.rs`, `copy.rs` |
//! | what is left of a connection that was given up | `fence.rs` |
//! | what only the control executor knows | `question.rs` |

mod back;
mod board;
mod composer;
mod copy;
mod counters;
mod env;
mod fence;
mod front;
mod gate;
mod health;
mod hot;
mod last_told;
mod message;
mod note;
mod outcome;
mod pieces;
mod post;
mod question;
mod reach;
mod refusal;
mod request;
mod settings;
mod stored;
mod strain;
mod versions;

pub use back::{BreakerStage, BulkheadFigures, Doubt, ReaderFigures, ServiceTimes};
pub use board::Noticeboard;
pub use composer::Shard;
pub use composer::explain::Explained;
pub use counters::{COUNTERS, Counter, Counters, Pressure, Pressures};
pub use front::client_filter::{ClientsAsked, ClientsTold};
pub use front::{Address, Identity, Readiness, Session};
pub use gate::{
    Accounts, Bill, Charge, Decision, Outlook, Payer, Scope, Settlement, Tab, UserAccount, UserFigures,
    asked, bucket_of, capacity_of,
};
pub use hot::{HotFigures, HotKey};
pub use message::Message;
pub use outcome::Outcome;
pub use post::Batch;
pub use question::{Question, ScopeLimit};
pub use refusal::{Refusal, Stage};
pub use request::{Asker, Envelope, Nature, Overdue, ReplyTo, Route, Touches, Track};
pub use settings::{
    AdmissionSettings, BULKHEADS, BackendSettings, ClientLimits, HotSettings, Limiter, Mode,
    OverloadSettings, ShardSettings,
};

#[cfg(test)]
mod tests;
