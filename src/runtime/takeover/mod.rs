//! One process of weir takes over from another: its listening sockets, and then its clients with them, so that nobody notices.
//!
//! ```text
//!   successor                              incumbent, which listens at --takeover PATH
//!      │ Hello ────────────────────────────> │ of the same user? nobody else under way?
//!      │ <──────────────────────── Welcome   │
//!      │ <── Listener, with its sockets ...  │ both have them now; their queues live as long as either does
//!      │ <──────────────────────── Started   │
//!      │ starts its shards                   │ goes on as if nothing were
//!      │ Ready ────────────────────────────> │
//!      │ <─────────────────────────── Deaf   │ accepts no more
//!      │ accepts                             │
//!      │ <──── Client, with its socket ...   │ each as soon as nothing of it is under way
//!      │ <─────────────────────────── Done   │ ends
//!      │ listens at PATH for its own
//! ```
//!
//! Until `Ready` the incumbent has lost nothing: a successor that dies before is forgotten. They never accept both at once: for a
//! connection the kernel wakes one of those who wait on a socket, and who is about to leave would let it lie.
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
