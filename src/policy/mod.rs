//! Decisions, one per file. Each is pure: time is an argument, nothing is read and nothing is sent. None
//! imports another; `shard` composes those of one core, `control` those of all cores together.
//!
//! | question | file |
//! |---|---|
//! | what a request costs | `price.rs` |
//! | what requests of a class cost lately | `estimate.rs` |
//! | how slow is slow, for a class of commands | `baseline.rs` |
//! | how many requests are in flight at a backend | `window.rs` |
//! | how many of those may be expensive beside cheap ones | `yielding.rs` |
//! | which request gets room in a window next, and which waited for too long | `queue.rs` |
//! | is a backend slower than it used to be, and what is held back for it | `latency_ratio.rs` |
//! | is a backend sick, so that it should be ejected | `breaker.rs` |
//! | how much is left of a quota | `bucket.rs` |
//! | may this core spend some of a quota now | `slice.rs` |
//! | which entry belongs to a bucket | `bucket_table.rs` |
//! | which part of a quota may this host give out, if several share it | `fleet.rs` |
//! | which keys have much of a core's load | `hot_keys.rs` |
//! | which of several nodes with the same keys answers a read | `replica_choice.rs` |
//! | how many requests may be sent again | `retry_budget.rs` |
//! | how many connections may a tenant hold | `seats.rs` |
//! | how much of a store's time need a tenant not pay for | `leeway.rs` |
//! | how much may be spent on work that may be left undone | `byte_rate.rs` |
//! | is a count of requests per second used up (to compare with) | `fixed_window.rs` |

pub mod baseline;
pub mod breaker;
pub mod bucket;
pub mod bucket_table;
pub mod byte_rate;
pub mod estimate;
pub mod fixed_window;
pub mod fleet;
pub mod hot_keys;
pub mod latency_ratio;
pub mod leeway;
pub mod price;
pub mod queue;
pub mod replica_choice;
pub mod retry_budget;
pub mod seats;
pub mod slice;
pub mod window;
pub mod yielding;
