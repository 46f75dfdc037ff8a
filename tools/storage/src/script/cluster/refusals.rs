//! Scripted errors for requests on chosen slots, whatever the node's view says.

use std::ops::RangeInclusive;

use super::super::fault::FaultKind;
use super::nodes::slot_number;
use weir::values::limits::SLOTS;

/// Maximum number of scripted errors for slots at the same time; a further one cannot be added.
const REFUSALS_MAX: usize = 64;
pub(crate) const WANTED: &str =
    "MOVED|ASK HOST:PORT, or a kind of error, then [SLOTS FROM[-TO]] [SKIP N] [TIMES N]";

/// A scripted error for requests on some slots.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Refusal {
    what: What,
    slots: RangeInclusive<u16>,
    /// The number of requests that are still let through before the scripted error begins; `times` is the
    /// number of requests that still get it after those.
    skip: u64,
    times: u64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum What {
    Redirection(&'static str, String),
    Error(FaultKind),
}

/// All scripted errors for requests on some slots, in the order in which they were added.
#[derive(Clone, Debug, Default)]
pub(crate) struct Refusals(Vec<Refusal>);

impl Refusals {
    pub(crate) fn push(&mut self, refusal: Refusal) -> Result<(), String> {
        if self.0.len() == REFUSALS_MAX {
            return Err(format!("{REFUSALS_MAX} refusals are the most: CLUSTER REFUSE OFF ends all"));
        }
        self.0.push(refusal);
        Ok(())
    }

    pub(crate) fn clear(&mut self) {
        self.0.clear();
    }

    /// Returns the error line for a request on this slot, from the first scripted error that applies; `None`
    /// if none does. `writes` is true for a request that writes. Each earlier scripted error counts the
    /// request among those that it lets through; later ones do not.
    pub(super) fn of(&mut self, slot: u16, writes: bool) -> Option<String> {
        let line = self.0.iter_mut().find_map(|refusal| refusal.of(slot, writes));
        self.0.retain(|refusal| refusal.times > 0);
        line
    }
}

impl Refusal {
    fn of(&mut self, slot: u16, writes: bool) -> Option<String> {
        let is_meant = self.slots.contains(&slot) && (writes || !self.what.is_for_writes_only());
        if !is_meant {
            return None;
        }
        if self.skip > 0 {
            self.skip -= 1;
            return None;
        }
        self.times = self.times.checked_sub(1)?;
        Some(match &self.what {
            What::Redirection(word, target) => format!("{word} {slot} {target}"),
            What::Error(kind) => kind.line().to_owned(),
        })
    }
}

impl What {
    fn is_for_writes_only(&self) -> bool {
        matches!(self, Self::Error(kind) if kind.line().starts_with("READONLY "))
    }
}

/// Parses the words after `STORAGE CLUSTER REFUSE` into a scripted error. The error is a text for the
/// client.
pub(crate) fn refusal(words: &[&str]) -> Result<Refusal, String> {
    let wanted = || format!("'{}': {WANTED} is expected", words.join(" "));
    let (what, mut rest) = match words {
        [word, target, rest @ ..] if word.eq_ignore_ascii_case("moved") => {
            (What::Redirection("MOVED", (*target).to_owned()), rest)
        }
        [word, target, rest @ ..] if word.eq_ignore_ascii_case("ask") => {
            (What::Redirection("ASK", (*target).to_owned()), rest)
        }
        [kind, rest @ ..] => (What::Error(kind.parse()?), rest),
        [] => return Err(wanted()),
    };
    let mut refusal = Refusal { what, slots: 0..=SLOTS - 1, skip: 0, times: u64::MAX };
    while let [option, value, others @ ..] = rest {
        match option.to_ascii_uppercase().as_str() {
            "SLOTS" => {
                let (first, last) = value.split_once('-').unwrap_or((value, value));
                let range = slot_number(first).zip(slot_number(last)).filter(|(first, last)| first <= last);
                let (first, last) = range.ok_or_else(wanted)?;
                refusal.slots = first..=last;
            }
            "SKIP" => refusal.skip = value.parse().map_err(|_| wanted())?,
            "TIMES" => refusal.times = value.parse().ok().filter(|times| *times > 0).ok_or_else(wanted)?,
            _ => return Err(wanted()),
        }
        rest = others;
    }
    if rest.is_empty() { Ok(refusal) } else { Err(wanted()) }
}
