//! A takeover: a new process of weir takes the listening sockets of a running one, and then its clients, so
//! that no client notices.
//!
//! ```text
//!   successor                              incumbent, which listens at --takeover PATH
//!      │ Hello ────────────────────────────> │ of the same user? nobody else under way?
//!      │ <──────────────────────── Welcome   │
//!      │ <── Listener, with its sockets ...  │ both have them now; their queues live as long as either does
//!      │ <──────────────────────── Started   │
//!      │ starts its shards                   │ goes on as if nothing were
//!      │ Ready ────────────────────────────> │
//!      │ <── Quotas, if they were posted ... │
//!      │ <── Pause, of each in force ...     │
//!      │ <── Parts, of a fleet's quotas ──   │ accepts no more
//!      │ <─────────────────────────── Deaf   │
//!      │ accepts                             │
//!      │ <──── Client, with its socket ...   │ each as soon as nothing of it is under way
//!      │ <─────────────────────────── Done   │ ends
//!      │ listens at PATH for its own
//! ```
//!
//! The incumbent has given up nothing until `Ready`: a successor that dies before that is forgotten, and one
//! that is not ready in time gets `Refused` and ends, as its `Ready` fails. The two processes never accept at
//! the same time: for a new connection the kernel wakes one of the processes that wait on a socket, and the one
//! that is about to leave would not accept it.
//!
//! | subject | file |
//! |---|---|
//! | messages, and the socket that they and descriptors go over | `wire.rs` |
//! | the process that takes over | `successor.rs` |
//! | the process that is taken over from, and starts a successor when ordered to | `incumbent.rs` |

mod incumbent;
mod successor;
mod wire;

pub(super) use incumbent::{Incumbent, start_successor};
pub(super) use successor::{Predecessor, Succession};
pub(super) use wire::{Manager, Offer, bind};
