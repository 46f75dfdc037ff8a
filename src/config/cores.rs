//! The flag `--cores`: the CPUs that the shards run on.

use std::fmt;
use std::str::FromStr;

use super::ConfigError;
use crate::values::limits::SHARDS_MAX;

/// Number of CPUs that the kernel's interface for binding threads to CPUs can name: CPU numbers are below it.
const CPUS_MAX: usize = 1024;

/// The CPUs that `--cores` asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Cores {
    /// The first CPUs that the process may use, as many as this number.
    Count(usize),
    /// The shards run on exactly these CPUs, in this order.
    These(Vec<usize>),
}

impl FromStr for Cores {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if let Ok(count) = text.parse() {
            return match count {
                1..=SHARDS_MAX => Ok(Self::Count(count)),
                _ => Err(format!(
                    "a count from 1 to {SHARDS_MAX} is expected; CPU {count} alone is {count}-{count}"
                )),
            };
        }
        let mut cpus = Vec::new();
        for part in text.split(',') {
            cpus.extend(range(part.trim())?);
            if cpus.len() > SHARDS_MAX {
                return Err(format!("at most {SHARDS_MAX} CPUs are expected"));
            }
        }
        match (1..cpus.len()).find(|index| cpus[..*index].contains(&cpus[*index])) {
            Some(index) => Err(format!("CPU {} is given twice", cpus[index])),
            None => Ok(Self::These(cpus)),
        }
    }
}

/// Reads a range of CPU numbers, such as `3` or `0-3`. The error is a text for the operator.
fn range(text: &str) -> Result<std::ops::RangeInclusive<usize>, String> {
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    let wanted = || "CPUs such as 0-3,5 or a count such as 4 are expected".to_owned();
    let first: usize = first.parse().map_err(|_| wanted())?;
    let last: usize = last.parse().map_err(|_| wanted())?;
    if first > last {
        return Err(format!("{first}-{last} runs backwards: {last}-{first} is expected"));
    }
    if last >= CPUS_MAX {
        return Err(format!("CPU {last} cannot be: the highest possible is {}", CPUS_MAX - 1));
    }
    Ok(first..=last)
}

impl fmt::Display for Cores {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Count(count) => write!(out, "{count}"),
            Self::These(cpus) => out.write_str(&shown(cpus)),
        }
    }
}

/// Returns the CPU that each shard is bound to: one entry per shard, `None` for a shard that the kernel may
/// move. `cores` and `shards` are the values of the flags of those names; without either there are as many
/// shards as usable CPUs or, if that is less, as `allowed` says. `usable` are the CPUs that this process may
/// run on, in ascending order, and `allowed` is the number of CPUs whose time it may use, which a quota (a
/// container's CPU limit) may make smaller. Fails if `cores` asks for CPUs that are not in `usable`, or
/// `shards` for more shards than `cores` has CPUs.
///
/// Shards are bound to CPUs only if `cores` chose them or there is one for each usable CPU. Fewer shards are
/// left to the kernel, because each process on the machine would choose the same CPUs; more are, because the
/// kernel balances several shards on one CPU better than a guess would.
pub fn placement(
    cores: Option<&Cores>,
    shards: Option<usize>,
    usable: &[usize],
    allowed: usize,
) -> Result<Vec<Option<usize>>, ConfigError> {
    let Some(cores) = cores else {
        let count = shards.unwrap_or(usable.len().min(allowed.max(1)).min(SHARDS_MAX));
        if count == usable.len() {
            return Ok(usable.iter().copied().map(Some).collect());
        }
        return Ok(vec![None; count]);
    };
    let chosen = chosen(cores, usable)?;
    if let Some(shards) = shards.filter(|shards| *shards > chosen.len()) {
        let most = chosen.len();
        return Err(ConfigError::new(format!(
            "--shards {shards}: --cores {cores} runs one shard on each CPU, so at most {most} is expected; without --cores \
             there may be more shards than CPUs"
        )));
    }
    let count = shards.unwrap_or(SHARDS_MAX);
    Ok(chosen.into_iter().take(count).map(Some).collect())
}

/// Returns the CPUs that `--cores` names, in the order in which shards run on them. Fails if they are not all
/// in `usable`, the CPUs that this process may run on.
fn chosen(cores: &Cores, usable: &[usize]) -> Result<Vec<usize>, ConfigError> {
    match cores {
        Cores::Count(count) if *count > usable.len() => {
            let usable = shown(usable);
            Err(ConfigError::new(format!(
                "--cores {count}: this process may use only CPUs {usable}; --shards {count} runs more shards than CPUs"
            )))
        }
        Cores::Count(count) => Ok(usable[..*count].to_vec()),
        Cores::These(cpus) => match cpus.iter().find(|cpu| !usable.contains(cpu)) {
            Some(cpu) => {
                let usable = shown(usable);
                let problem =
                    format!("--cores {cores}: CPU {cpu} is not one of {usable}, which this process may use");
                Err(ConfigError::new(problem))
            }
            None => Ok(cpus.clone()),
        },
    }
}

/// Returns CPU numbers as a list such as `0-3,5`, for messages.
fn shown(cpus: &[usize]) -> String {
    let mut runs: Vec<(usize, usize)> = Vec::new();
    for cpu in cpus {
        match runs.last_mut() {
            Some((_, last)) if *last + 1 == *cpu => *last = *cpu,
            _ => runs.push((*cpu, *cpu)),
        }
    }
    let texts = runs.iter().map(|(first, last)| match last - first {
        0 if runs.len() > 1 => first.to_string(),
        _ => format!("{first}-{last}"),
    });
    texts.collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_and_counts() {
        assert_eq!("4".parse(), Ok(Cores::Count(4)));
        assert_eq!("3-3".parse(), Ok(Cores::These(vec![3])));
        assert_eq!("0-3,5".parse(), Ok(Cores::These(vec![0, 1, 2, 3, 5])));
        assert_eq!("5, 0-1".parse(), Ok(Cores::These(vec![5, 0, 1])));
        for text in ["4", "0-3,5", "3-3", "1,3"] {
            assert_eq!(text.parse::<Cores>().expect("cores").to_string(), text);
        }
    }

    #[test]
    fn what_is_none_is_told_how_it_should_be() {
        for (text, complaint) in [
            ("", "CPUs such as 0-3,5 or a count such as 4 are expected"),
            ("all", "CPUs such as 0-3,5 or a count such as 4 are expected"),
            ("0-", "CPUs such as 0-3,5 or a count such as 4 are expected"),
            ("0", "a count from 1 to 256 is expected; CPU 0 alone is 0-0"),
            ("257", "a count from 1 to 256 is expected; CPU 257 alone is 257-257"),
            ("3-0", "3-0 runs backwards: 0-3 is expected"),
            ("0-2,1", "CPU 1 is given twice"),
            ("0-1024", "CPU 1024 cannot be: the highest possible is 1023"),
            ("0-300", "at most 256 CPUs are expected"),
        ] {
            assert_eq!(text.parse::<Cores>(), Err(complaint.to_owned()), "{text}");
        }
    }

    /// Returns the CPU for each shard (None: the shard may run on any) on a machine on which this process may
    /// run on CPUs 0, 2 and 3, or the text of the error. `cores` is the value of `--cores` (empty if not
    /// given), `shards` that of `--shards`, and `allowed` the number of CPUs whose time the process may use.
    fn placed(cores: &str, shards: Option<usize>, allowed: usize) -> Result<Vec<Option<usize>>, String> {
        let cores: Option<Cores> = (!cores.is_empty()).then(|| cores.parse().expect("cores"));
        placement(cores.as_ref(), shards, &[0, 2, 3], allowed).map_err(|error| error.to_string())
    }

    #[test]
    fn shards_are_bound_to_chosen_cpus_and_to_all_of_them() {
        assert_eq!(placed("", None, 3), Ok(vec![Some(0), Some(2), Some(3)]));
        assert_eq!(placed("", Some(3), 3), Ok(vec![Some(0), Some(2), Some(3)]));
        assert_eq!(placed("", Some(2), 3), Ok(vec![None; 2]));
        assert_eq!(placed("", Some(4), 3), Ok(vec![None; 4]));
        assert_eq!(placed("2", None, 3), Ok(vec![Some(0), Some(2)]));
        assert_eq!(placed("3,2", None, 3), Ok(vec![Some(3), Some(2)]));
        assert_eq!(placed("3,2", Some(1), 3), Ok(vec![Some(3)]));
        assert_eq!(
            placed("4", None, 3),
            Err("--cores 4: this process may use only CPUs 0,2-3; --shards 4 runs more shards than CPUs"
                .to_owned())
        );
        assert_eq!(
            placed("0-2", None, 3),
            Err("--cores 0-2: CPU 1 is not one of 0,2-3, which this process may use".to_owned())
        );
    }

    #[test]
    fn a_quota_of_cpu_time_gives_fewer_shards_that_are_bound_to_no_cpu() {
        assert_eq!(placed("", None, 2), Ok(vec![None; 2]));
        assert_eq!(placed("", None, 0), Ok(vec![None]));
        assert_eq!(placed("", None, 64), placed("", None, 3));
        // Flags that are given hold whatever the quota allows.
        assert_eq!(placed("", Some(3), 1), placed("", None, 3));
        assert_eq!(placed("0,2", None, 1), Ok(vec![Some(0), Some(2)]));
    }

    #[test]
    fn more_shards_than_chosen_cpus_are_refused() {
        for (cores, most) in [("3-3", 1), ("2", 2)] {
            assert_eq!(
                placed(cores, Some(3), 3),
                Err(format!(
                    "--shards 3: --cores {cores} runs one shard on each CPU, so at most {most} is expected; without \
                     --cores there may be more shards than CPUs"
                ))
            );
        }
    }
}
