//! The code that has effects, and decides nothing: executors, clock, ring, mesh, sockets, admin port, signals.
//!
//! ```text
//!  main ── starts, then waits ──┐
//!  weir-0 .. weir-N   one glommio executor per shard: ring.rs, driver.rs, farewell.rs, mesh.rs, survey.rs,
//!                      shard_thread.rs
//!  weir-storage       the embedded engine, where it is the store: storage_thread.rs
//!  weir-control       counters, quotas in force, drain, admin port: control_thread.rs, admin.rs
//!  weir-quotas        reads and checks quotas, watches the quota file: quotas_thread.rs, watch.rs
//!  weir-versions      asks stores for their versions, once a minute: versions_thread.rs
//!  weir-store-info    asks stores for their INFO when a client asks weir: store_info_thread.rs
//!  weir-names         looks the names of stores up again: names_thread.rs
//!  weir-topology      asks nodes of a cluster which node owns which slot: topology_thread.rs
//!  weir-failover      asks a replica of a lost primary whether it has taken over: failover_probe.rs
//!  weir-replicas      asks nodes of a cluster how far its replicas are behind: replicas_thread.rs
//!  weir-tls           accepts clients that speak TLS, and does their handshakes: tls/
//!  weir-certs         reads certificates again when their files change: tls/
//!  weir-signals       turns signals into messages to weir-control
//!  weir-takeover      hands over to a successor process, and receives a predecessor's clients: takeover/
//! ```
//!
//! Tools are processes of their own: `weir-storage` serves as the embedded engine does (`run_storage`), and
//! threads of `weir-load` open connections by a shard's ring and driver (dialer.rs).

mod admin;
mod allocator;
mod asking;
mod clock;
mod connect;
mod control_thread;
mod descriptors;
mod dialer;
mod driver;
mod executor;
mod failover_probe;
mod farewell;
mod fleet_thread;
mod listen;
mod listeners;
mod log;
mod mesh;
mod messages;
mod names_thread;
mod notify;
mod park;
mod quotas_thread;
mod reception;
mod replicas_thread;
mod ring;
mod server;
mod shard_thread;
mod socket_file;
mod storage_thread;
mod store_info_thread;
mod survey;
mod takeover;
mod tls;
mod top;
mod topology_thread;
mod versions_thread;
mod watch;

pub use clock::Clock;
pub use dialer::{Dialer, Dials};
pub use executor::{raise_limits, ring_advice, stop_flag};
pub use log::line as write_log_line;
pub use server::{check, run, run_storage};
pub use top::run as run_top;
