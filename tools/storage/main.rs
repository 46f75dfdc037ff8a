//! `weir-storage`: the embedded engine as a server of its own, for tests and load runs that need a store behind weir.

use std::net::SocketAddr;
use std::process::ExitCode;

use clap::Parser;
use weir::config::Size;
use weir::runtime;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// A Redis-compatible store in memory: weir's embedded engine, standing alone.
#[derive(Debug, Parser)]
#[command(name = "weir-storage", version)]
struct StorageFlags {
    /// Where clients connect. Port 0 takes any free port
    #[arg(long, env = "WEIR_STORAGE_LISTEN", value_name = "ADDRESS", default_value = "127.0.0.1:7380")]
    listen: SocketAddr,
    /// What it may hold before it refuses writes
    #[arg(long, env = "WEIR_STORAGE_MAX_BYTES", value_name = "SIZE", default_value = "1GiB")]
    max_bytes: Size,
    /// The largest request
    #[arg(long, env = "WEIR_STORAGE_MAX_REQUEST_BYTES", value_name = "SIZE", default_value = "16MiB")]
    max_request_bytes: Size,
}

fn main() -> ExitCode {
    let flags = StorageFlags::parse();
    match runtime::run_storage(flags.listen, flags.max_bytes.0, flags.max_request_bytes.bytes()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(text) => {
            eprintln!("weir-storage: {text}");
            ExitCode::FAILURE
        }
    }
}
