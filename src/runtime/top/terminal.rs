//! The terminal of `weir top`: its size, its keys, and the alternate screen, which is left at the end.

use std::io::{self, IsTerminal as _, Stdout, Write as _};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::termios::{LocalModes, OptionalActions, Termios, tcgetattr, tcgetwinsize, tcsetattr};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGWINCH};

use crate::runtime::clock::timespec;

/// The escape sequence that switches to the alternate screen and hides the cursor.
const ENTER: &str = "\u{1b}[?1049h\u{1b}[?25l";
const LEAVE: &str = "\u{1b}[?25h\u{1b}[?1049l";
/// The number of columns assumed if the terminal does not report its size.
const COLUMNS: usize = 80;
/// The number of rows assumed if the terminal does not report its size.
const ROWS: usize = 24;

/// A key that the user of `weir top` has pressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Key {
    /// The end of the program was asked for: by `q`, Ctrl-C, Ctrl-D, a signal, or the closing of the input.
    Quit,
    /// Any other key, in lower case.
    Letter(u8),
}

/// The terminal, in raw mode and on its alternate screen as long as this value lives.
pub(super) struct Terminal {
    out: Stdout,
    before: Termios,
    told_to_end: Arc<AtomicBool>,
}

impl Terminal {
    /// Puts the terminal into raw mode and switches to its alternate screen, until the value is dropped. `None`
    /// if input or output is not a terminal; the error is a message for the user.
    pub fn take() -> Result<Option<Self>, String> {
        if !io::stdin().is_terminal() || !io::stdout().is_terminal() {
            return Ok(None);
        }
        let taken = || -> io::Result<Self> {
            let told_to_end = Arc::new(AtomicBool::new(false));
            for signal in [SIGINT, SIGTERM, SIGHUP] {
                signal_hook::flag::register(signal, Arc::clone(&told_to_end))?;
            }
            // SIGWINCH is handled only so that it interrupts waiting when the size changes.
            signal_hook::flag::register(SIGWINCH, Arc::default())?;
            let before = tcgetattr(io::stdin())?;
            let mut own = before.clone();
            own.local_modes.remove(LocalModes::ICANON | LocalModes::ECHO | LocalModes::ISIG);
            tcsetattr(io::stdin(), OptionalActions::Now, &own)?;
            Ok(Self { out: io::stdout(), before, told_to_end })
        };
        let mut terminal = taken().map_err(|error| format!("the terminal: {error}"))?;
        terminal.write(ENTER)?;
        Ok(Some(terminal))
    }

    /// Returns the number of columns and rows of the terminal; 80 and 24 if it does not report its size.
    pub fn size(&self) -> (usize, usize) {
        match tcgetwinsize(&self.out) {
            Ok(size) if size.ws_col > 0 && size.ws_row > 0 => {
                (usize::from(size.ws_col), usize::from(size.ws_row))
            }
            _ => (COLUMNS, ROWS),
        }
    }

    /// Draws these lines from the top of the screen, and below them a line that explains the keys. Old
    /// content is overwritten rather than erased first, which avoids flicker. The caller leaves a row for the
    /// line of keys.
    pub fn show(&mut self, lines: &[String]) -> Result<(), String> {
        let mut screen = "\u{1b}[H".to_owned();
        for line in lines {
            screen.extend([line.as_str(), "\u{1b}[K\r\n"]);
        }
        screen.push_str("q quits; s, t, k: stores, tenants or keys first\u{1b}[K\u{1b}[J");
        self.write(&screen)
    }

    /// Waits for a key, for at most `time`. `None` if no key came, or a signal, such as a change of size,
    /// interrupted the wait; the error is a message for the user.
    pub fn key_within(&mut self, time: Duration) -> Result<Option<Key>, String> {
        let stdin = io::stdin();
        let ready = {
            let mut waiting = [PollFd::new(&stdin, PollFlags::IN)];
            poll(&mut waiting, Some(&timespec(time))).unwrap_or_default()
        };
        if self.told_to_end.load(Ordering::Relaxed) {
            return Ok(Some(Key::Quit));
        }
        if ready == 0 {
            return Ok(None);
        }
        let mut pressed = [0];
        match rustix::io::read(&stdin, &mut pressed) {
            // The terminal is closed.
            Ok(0) => Ok(Some(Key::Quit)),
            Ok(_) if matches!(pressed[0], b'q' | b'Q' | 3 | 4) => Ok(Some(Key::Quit)),
            Ok(_) => Ok(Some(Key::Letter(pressed[0].to_ascii_lowercase()))),
            Err(rustix::io::Errno::INTR) => Ok(None),
            Err(error) => Err(format!("the terminal: {error}")),
        }
    }

    fn write(&mut self, text: &str) -> Result<(), String> {
        let mut out = self.out.lock();
        out.write_all(text.as_bytes())
            .and_then(|()| out.flush())
            .map_err(|error| format!("the terminal: {error}"))
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        // A terminal that is gone needs nothing restored.
        let _ = tcsetattr(io::stdin(), OptionalActions::Now, &self.before);
        let _ = self.write(LEAVE);
    }
}

/// Sleeps for this time, or until a signal arrives if that is sooner.
pub(super) fn pause(time: Duration) {
    // The poll waits for no descriptor, so only the time, or a signal, ends it.
    let _ = poll(&mut [], Some(&timespec(time)));
}
