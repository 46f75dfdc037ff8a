//! Commands on scripts and functions. All stores hold the same scripts, so that a script can run wherever its
//! keys live.

use super::super::{Command, FanOut, Flags, KeyCount, Refusal};
use super::build::{container, help, plain, read, refused, write};

pub(super) const COMMANDS: &[Command] = &[
    plain("eval", -3).runs_code(KeyCount::Script),
    read("eval_ro", -3).runs_code(KeyCount::Script),
    plain("evalsha", -3).runs_code(KeyCount::Script),
    read("evalsha_ro", -3).runs_code(KeyCount::Script),
    plain("fcall", -3).runs_code(KeyCount::Function),
    read("fcall_ro", -3).runs_code(KeyCount::Function),
    container("function"),
    write("function|delete", 3).flags(Flags::NOSCRIPT).to_all(FanOut::AllOk).admin_only(),
    plain("function|dump", 2).flags(Flags::NOSCRIPT).to_all(FanOut::One),
    write("function|flush", -2).flags(Flags::NOSCRIPT).to_all(FanOut::AllOk).admin_only(),
    help("function|help"),
    plain("function|kill", 2).flags(STOPS).to_all(FanOut::AnyOk).admin_only(),
    plain("function|list", -2).flags(Flags::NOSCRIPT).to_all(FanOut::One),
    write("function|load", -3).needs_memory().flags(Flags::NOSCRIPT).to_all(FanOut::Same).admin_only(),
    write("function|restore", -3).needs_memory().flags(Flags::NOSCRIPT).to_all(FanOut::AllOk).admin_only(),
    plain("function|stats", 2).to_all(FanOut::ByStore).admin_only().flags(STOPS),
    container("script"),
    refused("script|debug", 3, Refusal::Debugs).flags(Flags::NOSCRIPT),
    plain("script|exists", -3).multiplies().flags(Flags::NOSCRIPT).to_all(FanOut::Every),
    plain("script|flush", -2).flags(Flags::NOSCRIPT).to_all(FanOut::AllOk).admin_only(),
    help("script|help"),
    plain("script|kill", 2).flags(STOPS).to_all(FanOut::AnyOk).admin_only(),
    plain("script|load", 3).flags(Flags::NOSCRIPT.and(Flags::STALE)).to_all(FanOut::Same),
    // Exists since Valkey 8.
    plain("script|show", 3).flags(Flags::NOSCRIPT).to_all(FanOut::One),
];

const STOPS: Flags = Flags::NOSCRIPT.and(Flags::ALLOW_BUSY);
