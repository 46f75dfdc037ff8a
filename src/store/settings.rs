//! The settings of CONFIG GET and CONFIG SET: values are checked as Redis checks them, stored, and shown again.
//!
//! ```text
//!     CONFIG SET name value ── ROWS: name ─> Kind::check ─> Settings: the text, and what the store reads of it
//! ```
//!
//! Most settings have no effect here: they are stored because programs set them and read them back. A setting that
//! would promise what the store does not do (a password, say) accepts no value other than its own.

mod table;

use super::limits::EngineLimits;
use super::log::NodeSize;
use super::numbers;
use super::shapes::{Shapes, Size};
pub(super) use table::ROWS;

/// Maximum number of bytes of a value that CONFIG SET gives; a longer one is refused.
const VALUE_BYTES_MAX: usize = 1_024;

/// The kind of a setting, which decides the values that it accepts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// The setting is `yes` or `no`.
    Switch,
    /// The setting is an integer in this range, both ends included.
    Number(i64, i64),
    /// The setting is a number of bytes, with or without a unit such as `mb`, of at least this many bytes.
    Memory(i64),
    /// The setting is a number of bytes, or a percentage of the memory such as `5%`.
    MemoryOrShare,
    /// The setting is exactly one of these words.
    Choice(&'static [&'static str]),
    /// The setting is one or more of these words, separated by spaces.
    Choices(&'static [&'static str]),
    /// The setting is a list of pairs of numbers, seconds and changes, as in `save`.
    Saves,
    /// The setting is a list of limits on replies that clients have not taken yet: for each class of clients its
    /// name, a hard and a soft limit in bytes, and the seconds for which the soft one may be exceeded.
    BufferLimits,
    /// The setting is a list of numbers between 0 and 100 (percentiles).
    Shares,
    /// The setting is any UTF-8 text of at most 1,024 bytes.
    Text,
    /// The setting accepts only its present value; the error for any other one gives this reason.
    Only(&'static str),
    /// The setting accepts no value: it cannot change while the server runs.
    Immutable,
    /// The setting accepts no value: Redis changes it only if the configuration file permits that.
    Protected,
    /// The setting has a value that another part of the store checks, keeps and shows.
    Own,
}

/// The reason why CONFIG SET refuses a value, in Redis's words.
type Reason = String;

impl Kind {
    /// Checks a value for a setting of this kind, and returns it in the form that CONFIG GET shows; an error
    /// with the reason if it is refused. `present` is the setting's present value.
    fn check(self, value: &[u8], present: &str) -> Result<String, Reason> {
        let text = std::str::from_utf8(value).ok().filter(|text| text.len() <= VALUE_BYTES_MAX);
        let text =
            text.ok_or_else(|| format!("argument must be a text of at most {VALUE_BYTES_MAX} bytes"))?;
        match self {
            Self::Switch => {
                let known = ["yes", "no"].into_iter().find(|word| word.eq_ignore_ascii_case(text));
                known.map(str::to_owned).ok_or_else(|| "argument must be 'yes' or 'no'".to_owned())
            }
            Self::Number(least, most) => Ok(number_between(value, least, most)?.to_string()),
            Self::Memory(least) => {
                let bytes = memory(value).ok_or_else(|| "argument must be a memory value".to_owned())?;
                if i64::try_from(bytes).map_or(true, |bytes| bytes < least) {
                    return Err(format!("argument must be between {least} and {} inclusive", i64::MAX));
                }
                Ok(bytes.to_string())
            }
            Self::MemoryOrShare => memory_or_share(text),
            Self::Choice(words) => {
                let known = words.iter().find(|word| word.eq_ignore_ascii_case(text));
                known.map(|word| (*word).to_owned()).ok_or_else(|| one_of(words))
            }
            Self::Choices(words) => {
                let mut chosen = Vec::new();
                for word in text.split_ascii_whitespace() {
                    chosen.push(
                        *words
                            .iter()
                            .find(|known| known.eq_ignore_ascii_case(word))
                            .ok_or_else(|| one_of(words))?,
                    );
                }
                if chosen.is_empty() { Err(one_of(words)) } else { Ok(chosen.join(" ")) }
            }
            Self::Saves => saves(text),
            Self::BufferLimits => buffer_limits(text, present),
            Self::Shares => {
                Ok(shares_text(&shares(text).ok_or("Invalid latency-tracking-info-percentiles parameters")?))
            }
            Self::Text | Self::Own => Ok(text.to_owned()),
            Self::Only(reason) => Err(reason.to_owned()),
            Self::Immutable => Err("can't set immutable config".to_owned()),
            Self::Protected => Err("can't set protected config".to_owned()),
        }
    }
}

fn one_of(words: &[&str]) -> Reason {
    format!("argument(s) must be one of the following: {}", words.join(", "))
}

/// Parses an integer; an error if it is not between `least` and `most`, both included.
pub(super) fn number_between(value: &[u8], least: i64, most: i64) -> Result<i64, Reason> {
    let number = numbers::integer(value).ok_or("argument couldn't be parsed into an integer")?;
    if !(least..=most).contains(&number) {
        return Err(format!("argument must be between {least} and {most} inclusive"));
    }
    Ok(number)
}

/// Parses a number of bytes with an optional unit, such as `100mb`; `None` for any other text.
pub(super) fn memory(value: &[u8]) -> Option<u64> {
    let digits = value.iter().take_while(|byte| byte.is_ascii_digit()).count();
    let (number, unit) = value.split_at(digits);
    let factor: u64 = match unit.to_ascii_lowercase().as_slice() {
        b"" | b"b" => 1,
        b"k" => 1_000,
        b"kb" => 1 << 10,
        b"m" => 1_000_000,
        b"mb" => 1 << 20,
        b"g" => 1_000_000_000,
        b"gb" => 1 << 30,
        _ => return None,
    };
    std::str::from_utf8(number).ok()?.parse::<u64>().ok()?.checked_mul(factor)
}

fn memory_or_share(text: &str) -> Result<String, Reason> {
    if let Some(bytes) = memory(text.as_bytes()) {
        return Ok(bytes.to_string());
    }
    let share = text.strip_suffix('%').and_then(|share| share.parse::<u32>().ok());
    let share = share.ok_or("argument must be a memory or percent value")?;
    if share > 100 {
        return Err("percentage argument must be less or equal to 100".to_owned());
    }
    Ok(format!("{share}%"))
}

fn saves(text: &str) -> Result<String, Reason> {
    let words: Vec<&str> = text.split_ascii_whitespace().collect();
    let fits = |pair: &[&str]| match pair {
        [seconds, changes] => {
            seconds.parse::<i64>().is_ok_and(|seconds| seconds >= 1)
                && changes.parse::<i64>().is_ok_and(|changes| changes >= 0)
        }
        _ => false,
    };
    if words.chunks(2).all(fits) { Ok(words.join(" ")) } else { Err("Invalid save parameters".to_owned()) }
}

/// Returns the value `present` of a setting that limits unread replies by class of clients, with the limits
/// in `text` in place of those of the same classes. The error is the reason why `text` is refused.
fn buffer_limits(text: &str, present: &str) -> Result<String, Reason> {
    let words = |text| str::split(text, ' ').collect::<Vec<_>>();
    let mut limits = words(present);
    let given = if text.is_empty() { Vec::new() } else { words(text) };
    let (given, rest) = given.as_chunks::<4>();
    if !rest.is_empty() {
        return Err("Wrong number of arguments in buffer limit configuration.".to_owned());
    }
    let mut spelled = Vec::new();
    for [class, hard, soft, seconds] in given {
        let class = class.to_ascii_lowercase();
        let class = if class == "replica" { "slave" } else { class.as_str() };
        let at = limits.chunks(4).position(|limit| limit[0] == class);
        let at = at.ok_or("Invalid client class specified in buffer limit configuration.")?;
        let [hard, soft] = [hard, soft].map(|bytes| memory(bytes.as_bytes()));
        let seconds = seconds.parse::<u64>().ok().filter(|seconds| i32::try_from(*seconds).is_ok());
        let ((Some(hard), Some(soft)), Some(seconds)) = ((hard, soft), seconds) else {
            let reason = "Error in hard, soft or soft_seconds setting in buffer limit configuration.";
            return Err(reason.to_owned());
        };
        spelled.push((at, [hard, soft, seconds].map(|number| number.to_string())));
    }
    for (at, numbers) in &spelled {
        limits.iter_mut().skip(at * 4 + 1).zip(numbers).for_each(|(limit, number)| *limit = number);
    }
    Ok(limits.join(" "))
}

/// Parses the value of a setting that is a list of percentages separated by spaces, each between 0 and 100;
/// `None` for any other text.
fn shares(text: &str) -> Option<Vec<f64>> {
    let share = |word: &str| word.parse::<f64>().ok().filter(|share| (0.0..=100.0).contains(share));
    text.split_ascii_whitespace().map(share).collect()
}

fn shares_text(shares: &[f64]) -> String {
    shares.iter().map(f64::to_string).collect::<Vec<_>>().join(" ")
}

/// The values of settings for CONFIG GET and CONFIG SET: the text of each, and parsed values of those that the store
/// reads here. Other parts of the store keep the values of a few ([`Kind::Own`]).
#[derive(Debug)]
pub(super) struct Settings {
    /// The text of each setting; the index is the position of its row in the table of settings. `None` for a
    /// setting that still has its default.
    texts: Vec<Option<Box<str>>>,
    /// The run time in milliseconds after which a script makes the store answer `-BUSY` to other connections
    /// (`busy-reply-threshold`).
    pub(super) busy_after_ms: u64,
    /// The duration in milliseconds from which on a command becomes a sample of LATENCY
    /// (`latency-monitor-threshold`); 0 turns samples off.
    pub(super) sampled_from_ms: u64,
    /// The memory of keys and values in bytes at which writes that need memory are refused (`maxmemory`); 0
    /// leaves only the store's own limit.
    pub(super) bytes_max: u64,
    /// The largest sparse form of a `HyperLogLog` in bytes, with its header (`hll-sparse-max-bytes`). One
    /// that would be larger is stored in the dense form.
    pub(super) sparse_bytes_max: usize,
    /// The number of entries and of bytes at which a node (a group of entries) of a stream is full
    /// (`stream-node-max-entries`, `stream-node-max-bytes`).
    pub(super) stream_nodes: NodeSize,
    /// The percentiles of command times that INFO latencystats shows (`latency-tracking-info-percentiles`).
    pub(super) percentiles: Vec<f64>,
    /// True if a histogram of times is kept for each command (`latency-tracking`).
    pub(super) counts_times: bool,
    /// Maximum number of keys whose readers are remembered, so that they are told of changes (CLIENT
    /// TRACKING; `tracking-table-max-keys`); 0 for no such limit. Beyond it keys are dropped from the table,
    /// and their readers told that they have changed.
    pub(super) tracked_keys_max: usize,
    /// The number of replicas without which writes are refused (`min-replicas-to-write`); 0 if writes need no
    /// replicas.
    replicas_min: u64,
    /// The lag in seconds up to which a replica counts for `min-replicas-to-write` (`min-replicas-max-lag`);
    /// 0 if writes need no replicas.
    replica_lag_max: u64,
}

impl Default for Settings {
    fn default() -> Self {
        let mut settings = Self {
            texts: vec![None; ROWS.len()],
            busy_after_ms: 0,
            sampled_from_ms: 0,
            bytes_max: 0,
            sparse_bytes_max: 0,
            stream_nodes: NodeSize::default(),
            percentiles: Vec::new(),
            counts_times: true,
            tracked_keys_max: 0,
            replicas_min: 0,
            replica_lag_max: 0,
        };
        (0..ROWS.len()).for_each(|position| settings.take_effect(position));
        settings
    }
}

impl Settings {
    /// Returns the memory of keys and values in bytes at which writes that need memory are refused: the
    /// smaller of `maxmemory` and the store's own limit.
    pub(super) fn bytes_max_within(&self, limits: &EngineLimits) -> u64 {
        if self.bytes_max == 0 { limits.bytes_max } else { self.bytes_max.min(limits.bytes_max) }
    }

    /// True if writes are to be refused because the settings ask for replicas: the engine has none.
    pub(super) fn lacks_replicas(&self) -> bool {
        self.replicas_min > 0 && self.replica_lag_max > 0
    }

    /// Returns the position, in the table of settings, of the setting with this name or alias, in any case of
    /// letters; `None` if there is none.
    pub(super) fn find(name: &[u8]) -> Option<usize> {
        let is_name = |known: &str| name.eq_ignore_ascii_case(known.as_bytes());
        ROWS.iter().position(|row| is_name(row.name) || row.alias.is_some_and(is_name))
    }

    /// Returns the value of the setting at `position` of the table of settings, as CONFIG GET shows it.
    pub(super) fn text(&self, position: usize) -> &str {
        self.texts[position].as_deref().unwrap_or(ROWS[position].default)
    }

    /// Checks a new value for the setting at `position` of the table of settings, and returns it as CONFIG
    /// GET will show it. An error with the reason if it is refused.
    pub(super) fn check(&self, position: usize, value: &[u8]) -> Result<String, Reason> {
        match ROWS[position].kind {
            // A program may set a value that it has read before, as programs do that restore settings.
            Kind::Only(_) if value == self.text(position).as_bytes() => Ok(self.text(position).to_owned()),
            kind => kind.check(value, self.text(position)),
        }
    }

    /// Sets the setting at `position` of the table of settings to a text that [`Self::check`] has returned.
    pub(super) fn set(&mut self, position: usize, text: String) {
        self.texts[position] = Some(text.into_boxed_str());
        self.take_effect(position);
    }

    /// Copies the settings about the sizes of small collections (such as `hash-max-listpack-entries`) to
    /// `shapes`, where collections read them.
    pub(super) fn share(&self, shapes: &Shapes) {
        for (name, size) in [
            ("hash-max-listpack-entries", Size::HashFields),
            ("hash-max-listpack-value", Size::HashBytes),
            ("zset-max-listpack-entries", Size::RankingMembers),
            ("zset-max-listpack-value", Size::RankingBytes),
            ("set-max-intset-entries", Size::Integers),
            ("set-max-listpack-entries", Size::SetMembers),
            ("set-max-listpack-value", Size::SetBytes),
        ] {
            let position = Self::find(name.as_bytes());
            let value = position.and_then(|position| self.text(position).parse().ok());
            value.into_iter().for_each(|value| shapes.set(size, value));
        }
        let position = Self::find(b"list-max-listpack-size");
        let value = position.and_then(|position| self.text(position).parse().ok());
        value.into_iter().for_each(|value| shapes.set_list(value));
    }

    /// Parses the value of the setting at `position` of the table of settings into the field that the store
    /// reads, if there is one for this setting.
    fn take_effect(&mut self, position: usize) {
        let text = self.text(position).to_owned();
        let text = text.as_str();
        let number = || text.parse().unwrap_or_default();
        match ROWS[position].name {
            "busy-reply-threshold" => self.busy_after_ms = number(),
            "latency-monitor-threshold" => self.sampled_from_ms = number(),
            "hll-sparse-max-bytes" => self.sparse_bytes_max = text.parse().unwrap_or_default(),
            "stream-node-max-entries" => self.stream_nodes.entries_max = text.parse().unwrap_or_default(),
            "stream-node-max-bytes" => self.stream_nodes.bytes_max = text.parse().unwrap_or_default(),
            "min-replicas-to-write" => self.replicas_min = number(),
            "min-replicas-max-lag" => self.replica_lag_max = number(),
            "tracking-table-max-keys" => self.tracked_keys_max = text.parse().unwrap_or(usize::MAX),
            "latency-tracking" => self.counts_times = text == "yes",
            "latency-tracking-info-percentiles" => self.percentiles = shares(text).unwrap_or_default(),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_setting_takes_its_own_value_and_names_are_in_order() {
        let settings = Settings::default();
        assert!(ROWS.is_sorted_by_key(|row| row.name));
        for (position, row) in ROWS.iter().enumerate() {
            assert_eq!(Settings::find(row.name.to_uppercase().as_bytes()), Some(position));
            if let Some(alias) = row.alias {
                assert_eq!(Settings::find(alias.as_bytes()), Some(position));
            }
            if !matches!(row.kind, Kind::Immutable | Kind::Protected | Kind::Own) {
                assert_eq!(
                    settings.check(position, row.default.as_bytes()),
                    Ok(row.default.to_owned()),
                    "{}",
                    row.name
                );
            }
        }
        assert_eq!(settings.busy_after_ms, 5_000);
        assert_eq!(settings.percentiles, [50.0, 99.0, 99.9]);
    }

    #[test]
    fn limits_of_buffers_change_by_class() {
        let present = "normal 0 0 0 slave 256 64 60";
        let set = |text| buffer_limits(text, present);
        assert_eq!(set("replica 1mb 1k 7").as_deref(), Ok("normal 0 0 0 slave 1048576 1000 7"));
        assert_eq!(set("NORMAL 1 2 3 normal 4 5 6").as_deref(), Ok("normal 4 5 6 slave 256 64 60"));
        assert_eq!(set("").as_deref(), Ok(present));
        for (text, start) in [
            ("normal 0 0", "Wrong number"),
            ("normal  0 0 0", "Wrong number"),
            ("master 0 0 0", "Invalid client class"),
            ("normal x 0 0", "Error in hard, soft"),
            ("normal 0 -1 0", "Error in hard, soft"),
            ("normal 0 0 1s", "Error in hard, soft"),
            ("slave 0 0 0 normal 0 0 -1", "Error in hard, soft"),
        ] {
            assert!(set(text).is_err_and(|reason| reason.starts_with(start)), "{text}");
        }
    }

    #[test]
    fn bytes_have_units() {
        for (text, bytes) in [("1", 1), ("2k", 2_000), ("2KB", 2_048), ("3gb", 3 << 30), ("0", 0)] {
            assert_eq!(memory(text.as_bytes()), Some(bytes), "{text}");
        }
        for text in ["", "kb", "1tb", "-1", "1.5mb", "99999999999gb", "184467440737095516160"] {
            assert_eq!(memory(text.as_bytes()), None, "{text}");
        }
    }
}
