//! `weir top`: polls an admin port and shows its state in a terminal.

mod ask;
mod terminal;

use std::io::{self, Write as _};
use std::time::Duration;

use serde_json::Value;

use super::clock::Clock;
use crate::config::{TopFlags, TopSort};
use crate::control::top::{Colour, Window, top};
use terminal::{Key, Terminal};

/// The interval at which `weir top` fetches the state from the admin port.
const PERIOD: Duration = Duration::from_secs(1);

/// Runs `weir top` until a key or signal ends it or, if the flags say so, prints the state once. The error is
/// a message for the user.
pub fn run(flags: &TopFlags) -> Result<(), String> {
    if flags.once || flags.json {
        return once(flags);
    }
    let Some(mut terminal) = Terminal::take()? else {
        return Err("the output is not a terminal: use --once for plain text, --json for programs".to_owned());
    };
    let clock = Clock::start();
    let mut sort = flags.sort;
    let mut told = look(flags);
    let mut due = clock.now().monotonic.after(PERIOD);
    loop {
        terminal.show(&lines(&told, flags, window(terminal.size(), sort, flags)))?;
        match terminal.key_within(due.since(clock.now().monotonic))? {
            Some(Key::Quit) => return Ok(()),
            Some(Key::Letter(b's')) => sort = TopSort::Store,
            Some(Key::Letter(b't')) => sort = TopSort::Tenant,
            Some(Key::Letter(b'k')) => sort = TopSort::Key,
            None if clock.now().monotonic >= due => {
                due = clock.now().monotonic.after(PERIOD);
                told = look(flags);
            }
            // The size of the window may have changed, so it is drawn again.
            Some(Key::Letter(_)) | None => {}
        }
    }
}

/// Prints weir's state once. Figures of the last second are differences, so the admin port is polled twice, a
/// second apart. The error is a message for the user.
fn once(flags: &TopFlags) -> Result<(), String> {
    look(flags)?;
    terminal::pause(PERIOD);
    let document = ask::get(&flags.admin, "/state.json")?;
    let text = if flags.json {
        document
    } else {
        let window = Window { sort: flags.sort, columns: usize::MAX, rows: usize::MAX, colour: Colour::None };
        lines(&read(&document), flags, window).join("\n") + "\n"
    };
    match io::stdout().lock().write_all(text.as_bytes()) {
        // A closed pipe is no error: its reader wants no more.
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(error.to_string()),
        _ => Ok(()),
    }
}

fn look(flags: &TopFlags) -> Result<Value, String> {
    read(&ask::get(&flags.admin, "/state.json")?)
}

fn read(document: &str) -> Result<Value, String> {
    serde_json::from_str(document)
        .map_err(|error| format!("the admin port sent a state that is not valid: {error}"))
}

fn window((columns, rows): (usize, usize), sort: TopSort, flags: &TopFlags) -> Window {
    let colour = if flags.no_color { Colour::None } else { Colour::Ansi };
    Window { sort, columns, rows: rows.saturating_sub(1), colour }
}

fn lines(told: &Result<Value, String>, flags: &TopFlags, window: Window) -> Vec<String> {
    match told {
        Ok(state) => top(state, &flags.admin, window),
        Err(problem) => vec![format!("■ {problem}")],
    }
}
