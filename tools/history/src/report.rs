//! The report: counts of the run, and the violations.

use std::collections::BTreeMap;
use std::time::Duration;

use super::asked::Tally;
use super::judge::Verdict;
use super::operation::{Fate, Found, Operation};

/// Maximum number of violations, over all keys, that the report explains.
const EXPLAINED_MAX: usize = 20;

/// Formats a table of the numbers of commands by name: carried out, without effect, refused, and of unknown
/// success.
pub fn commands(tally: &BTreeMap<&'static str, Tally>) -> String {
    let line = |name: &str, cells: [String; 4]| {
        let [done, in_vain, refused, unknown] = cells;
        format!("{name:<18} {done:>10} {in_vain:>10} {refused:>10} {unknown:>10}\n")
    };
    let mut text = line("", ["done", "in vain", "refused", "unknown"].map(str::to_owned));
    let mut sum = [0; 4];
    for (name, tally) in tally {
        let counts = [tally.done, tally.in_vain, tally.refused, tally.unknown];
        sum.iter_mut().zip(counts).for_each(|(sum, count)| *sum += count);
        text.push_str(&line(name, counts.map(|count| count.to_string())));
    }
    text + &line("all", sum.map(|count| count.to_string()))
}

/// Formats a line about one key: its name, and the numbers of reads, writes, operations of unknown success
/// and violations.
pub fn key(name: &str, operations: &[Operation], verdict: &Verdict) -> String {
    let reads = operations.iter().filter(|operation| operation.reads().is_some()).count();
    let nils = operations.iter().filter(|operation| operation.reads() == Some(Found::Nil)).count();
    let done = operations.iter().filter(|operation| operation.fate == Fate::Done).count();
    let unknown = operations.iter().filter(|operation| operation.fate == Fate::Unknown).count();
    format!(
        "{name:<18} {reads} reads ({nils} of nothing), {} writes, {unknown} unknown: {} violations\n",
        done - reads,
        verdict.violations
    )
}

/// Formats the number of all violations, and explanations of the first ones. `verdicts` has the violations by
/// key; each description in `broken`, of bytes that cannot be a reply to their command, counts as one more.
pub fn violations(verdicts: &[(String, Verdict)], broken: &[String]) -> String {
    let explained =
        verdicts.iter().flat_map(|(name, verdict)| verdict.explained.iter().map(move |told| (name, told)));
    let explained = explained.map(|(name, told)| format!("{name}: {told}\n"));
    let broken_lines = broken.iter().map(|told| format!("broken: {told}\n"));
    let lines: Vec<String> = broken_lines.chain(explained).take(EXPLAINED_MAX).collect();
    let count = count(verdicts, broken);
    lines.concat() + &format!("violations: {count}\n")
}

/// Returns the number of violations on all keys and of the descriptions in `broken` together.
pub fn count(verdicts: &[(String, Verdict)], broken: &[String]) -> u64 {
    verdicts.iter().map(|(_, verdict)| verdict.violations).sum::<u64>() + broken.len() as u64
}

pub fn headline(operations: u64, took: Duration) -> String {
    let seconds = took.as_secs_f64();
    format!("{operations} operations in {seconds:.1} s\n")
}
