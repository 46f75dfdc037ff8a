//! One process of weir takes over from another: its listening sockets, and then its clients with them, so that nobody notices.
//!
//! ```text
//!   successor                              incumbent, which listens at --takeover PATH
//!      │ Hello ────────────────────────────> │ of the same user? nobody else under way?
//!      │ <──────────────────────── Welcome   │
//!      │ <── Listener, with its sockets ...  │ both have them now; their queues live as long as either does
//!      │ <──────────────────────── Started   │
//!      │ starts its shards, which accept     │ goes on as if nothing were
//!      │ Ready ────────────────────────────> │ accepts no more
//!      │ <──── Client, with its socket ...   │ each as soon as nothing of it is under way
//!      │ <─────────────────────────── Done   │ ends
//!      │ listens at PATH for its own
//! ```
//!
//! Until `Ready` the incumbent has lost nothing: a successor that dies before is forgotten.
//!
//! | what | file |
//! |---|---|
//! | messages, and the socket that they and descriptors go over | `wire.rs` |
//! | who takes over | `successor.rs` |
//! | who is taken over from, and starts a successor when told to | `incumbent.rs` |

mod incumbent;
mod successor;
mod wire;

pub(super) use incumbent::{Incumbent, start_successor};
pub(super) use successor::{Predecessor, copies};
pub(super) use wire::{Manager, Offer, bind};
