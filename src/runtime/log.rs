//! What people read: one line on standard error per event that matters. Nothing on the request path is logged.

use std::io::Write as _;

/// Writes a line. A standard error that is closed is no reason to stop.
pub(super) fn line(text: &str) {
    let _ = writeln!(std::io::stderr(), "weir: {text}");
}
