//! The stores' own `INFO`: its sections and fields, and how the answers of several stores become one.

use std::borrow::Cow;

/// Maximum number of lines of a store's `INFO` that are read; further ones are left out, since joining the
/// `INFO` of several stores searches for each field at every store.
const LINES_MAX: usize = 8_192;
/// Maximum number of parts of a field (`calls=1,usec=2`) that are read; further ones are left out.
const PARTS_MAX: usize = 64;

/// A section of `INFO`: its title as the store writes it, and its fields in the store's order. A field's name
/// may occur more than once (`module`).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StoreSection {
    /// The section's title in the store's `INFO`, such as `Memory`.
    pub title: String,
    /// The names and values of the section's fields.
    pub fields: Vec<(String, String)>,
}

impl StoreSection {
    fn value(&self, name: &str) -> Option<&str> {
        self.fields.iter().find(|(own, _)| own == name).map(|(_, value)| value.as_str())
    }

    fn is(&self, title: &str) -> bool {
        self.title.eq_ignore_ascii_case(title)
    }
}

/// The sections of the `INFO` of a store, or of several stores as if they were one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StoreInfo {
    sections: Vec<StoreSection>,
}

impl StoreInfo {
    /// Reads the text of a store's `INFO`. Lines that are neither a section's title nor a field are left out;
    /// `None` if the text has no section.
    pub fn parse(text: &[u8]) -> Option<Self> {
        let mut sections: Vec<StoreSection> = Vec::new();
        for line in String::from_utf8_lossy(text).lines().take(LINES_MAX) {
            if let Some(title) = line.strip_prefix("# ") {
                sections.push(StoreSection { title: title.trim().to_owned(), fields: Vec::new() });
            } else if let (Some(section), Some((name, value))) = (sections.last_mut(), line.split_once(':')) {
                section.fields.push((name.to_owned(), value.to_owned()));
            }
        }
        (!sections.is_empty()).then_some(Self { sections })
    }

    /// Joins the `INFO` of several stores into one, with the sections of the first store. A field is in it if
    /// there is one value that is true for all stores together: a sum, for instance, or the value that all of
    /// them have. None if there are no stores.
    pub fn join(mut infos: Vec<Self>) -> Option<Self> {
        if infos.len() < 2 {
            return infos.pop();
        }
        let (first, others) = infos.split_first()?;
        let join_section = |section: &StoreSection| {
            let all: Vec<Cow<'_, StoreSection>> = std::iter::once(Cow::Borrowed(section))
                .chain(
                    others
                        .iter()
                        .map(|info| info.section(&section.title).map_or_else(Cow::default, Cow::Borrowed)),
                )
                .collect();
            join_sections(&section.title, &all)
        };
        Some(Self { sections: first.sections.iter().map(join_section).collect() })
    }

    /// Returns the section of the store's `INFO` with this title, whether in upper or lower case; None if
    /// there is none.
    pub fn section(&self, title: &str) -> Option<&StoreSection> {
        self.sections.iter().find(|section| section.is(title))
    }

    /// Returns all sections of the store's `INFO`, in the store's order.
    pub fn sections(&self) -> impl Iterator<Item = &StoreSection> {
        self.sections.iter()
    }
}

/// Way in which the values of an `INFO` field at several stores become one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Rule {
    /// The joined value is the sum of the stores' integers.
    Sum,
    /// The joined value is the sum of the stores' numbers, which have a fraction.
    SumOfFractions,
    /// The joined value is the stores' sum in the form that people read (such as `1.50M`), made from the
    /// field of the same name without `_human`.
    Human,
    /// The joined value is the sum of integers; 0, which stands for no limit, if one of them is 0.
    SumOfLimits,
    /// The joined value is the largest integer: for flags, 1 if it is 1 at any store.
    Largest,
    /// The joined value is the smallest of the stores' integers.
    Smallest,
    /// The joined value is `ok` if all stores have that value, else the first other value.
    AllOk,
    /// The joined value is the value that all stores have; none if they differ.
    Agreed,
}

fn join_sections(title: &str, all: &[Cow<'_, StoreSection>]) -> StoreSection {
    let title_of = |other: &str| title.eq_ignore_ascii_case(other);
    let mut joined = StoreSection { title: title.to_owned(), fields: Vec::new() };
    if ["commandstats", "errorstats", "keyspace"].into_iter().any(title_of) {
        joined.fields = join_lists(all);
        return joined;
    }
    // Quantiles of different stores have no sum.
    if title_of("latencystats") {
        return joined;
    }
    for (name, value) in &all[0].fields {
        let Some(values) = all.iter().map(|section| section.value(name)).collect::<Option<Vec<&str>>>()
        else {
            continue;
        };
        let value = match rule_of(title, name) {
            // Several fields may have one name, so the lines are compared.
            Rule::Agreed => {
                let line = (name.clone(), value.clone());
                all.iter().all(|section| section.fields.contains(&line)).then_some(line.1)
            }
            Rule::Human => name.strip_suffix("_human").and_then(|bytes| {
                let values: Option<Vec<&str>> = all.iter().map(|section| section.value(bytes)).collect();
                let sum = join_values(rule_of(title, bytes), &values?)?;
                Some(human(sum.parse().ok()?))
            }),
            rule => join_values(rule, &values),
        };
        joined.fields.extend(value.map(|value| (name.clone(), value)));
    }
    joined
}

fn rule_of(title: &str, name: &str) -> Rule {
    match title.to_ascii_lowercase().as_str() {
        "memory" => match name {
            "maxmemory" => Rule::SumOfLimits,
            "used_memory_human"
            | "used_memory_rss_human"
            | "maxmemory_human"
            | "used_memory_lua_human"
            | "used_memory_vm_total_human"
            | "used_memory_scripts_human" => Rule::Human,
            // The stores' peaks need not have been at one time, and stores may share a host.
            "used_memory_peak" | "total_system_memory" => Rule::Agreed,
            _ if name.ends_with("_peak") || name.ends_with("_ratio") || name.ends_with("_perc") => {
                Rule::Agreed
            }
            _ if ["used_memory", "mem_", "allocator_", "lazyfree", "number_of_"]
                .iter()
                .any(|start| name.starts_with(start))
                && name != "mem_allocator" =>
            {
                Rule::Sum
            }
            _ => Rule::Agreed,
        },
        "stats" => match name {
            // Each store has the patterns of all clients.
            "pubsub_patterns"
            | "expired_stale_perc"
            | "expire_cycle_cpu_milliseconds"
            | "instantaneous_eventloop_duration_usec" => Rule::Agreed,
            // Each store has the prefixes of all clients.
            "latest_fork_usec" | "tracking_total_prefixes" => Rule::Largest,
            _ if name.ends_with("_kbps") => Rule::SumOfFractions,
            _ => Rule::Sum,
        },
        "persistence" => match name {
            "rdb_changes_since_last_save" | "rdb_saves" | "current_save_keys_processed" => Rule::Sum,
            "rdb_last_save_time" => Rule::Smallest,
            _ if name == "loading" || name.ends_with("_in_progress") || name.ends_with("_loading") => {
                Rule::Largest
            }
            _ if name.ends_with("_status") => Rule::AllOk,
            _ => Rule::Agreed,
        },
        "cpu" => Rule::SumOfFractions,
        _ => Rule::Agreed,
    }
}

fn join_values(rule: Rule, values: &[&str]) -> Option<String> {
    let integers = || values.iter().map(|value| value.parse::<i64>().ok().map(i128::from));
    match rule {
        Rule::Sum => integers().sum::<Option<i128>>().map(|sum| sum.to_string()),
        Rule::SumOfLimits => {
            let has_none = integers().any(|value| value == Some(0));
            if has_none { Some("0".to_owned()) } else { join_values(Rule::Sum, values) }
        }
        Rule::Largest => Some(integers().collect::<Option<Vec<i128>>>()?.into_iter().max()?.to_string()),
        Rule::Smallest => Some(integers().collect::<Option<Vec<i128>>>()?.into_iter().min()?.to_string()),
        Rule::SumOfFractions => {
            let places = values.first()?.split_once('.').map_or(0, |(_, places)| places.len().min(9));
            let sum: f64 = values.iter().map(|value| value.parse::<f64>().ok()).sum::<Option<f64>>()?;
            Some(format!("{sum:.places$}"))
        }
        Rule::AllOk => {
            let other = values.iter().find(|value| **value != "ok");
            Some((*other.unwrap_or(&"ok")).to_owned())
        }
        Rule::Agreed | Rule::Human => None,
    }
}

/// Joins the same section of several stores' `INFO`, whose fields are lists of numbers (`calls=2,usec=9`),
/// and may be absent where there is nothing to count. Numbers with the same name are added up, and quotients
/// of others are computed again. Returns names and values of the joined fields.
fn join_lists(all: &[Cow<'_, StoreSection>]) -> Vec<(String, String)> {
    let mut names: Vec<&str> = Vec::new();
    let mut lines: std::collections::HashMap<&str, Vec<(&str, f64)>> = std::collections::HashMap::new();
    for (name, value) in all.iter().flat_map(|section| &section.fields) {
        let sums = lines.entry(name).or_insert_with(|| {
            names.push(name);
            Vec::new()
        });
        let numbers: Vec<(&str, f64)> = value
            .split(',')
            .take(PARTS_MAX)
            .filter_map(|part| part.split_once('='))
            .filter_map(|(part, number)| Some((part, number.parse().ok()?)))
            .collect();
        let expiring = numbers.iter().find(|(part, _)| *part == "expires").map_or(0.0, |(_, number)| *number);
        for (part, number) in numbers {
            let number = if part == "avg_ttl" { number * expiring } else { number };
            match sums.iter_mut().find(|(own, _)| *own == part) {
                Some((_, sum)) => *sum += number,
                None => sums.push((part, number)),
            }
        }
    }
    let line_of = |name: &str| {
        let sums = &lines[name];
        let sum_of = |part: &str| sums.iter().find(|(own, _)| *own == part).map_or(0.0, |(_, sum)| *sum);
        let parts: Vec<String> = sums
            .iter()
            .map(|(part, sum)| match *part {
                "usec_per_call" => format!("{part}={:.2}", sum_of("usec") / sum_of("calls").max(1.0)),
                "avg_ttl" => format!("{part}={:.0}", (sum / sum_of("expires").max(1.0)).floor()),
                _ => format!("{part}={sum:.0}"),
            })
            .collect();
        (name.to_owned(), parts.join(","))
    };
    names.into_iter().map(line_of).collect()
}

/// Returns a number of bytes in the form that Redis shows to people: `1.50M`.
pub fn human(bytes: u64) -> String {
    const UNITS: [(u64, char); 4] = [(1 << 40, 'T'), (1 << 30, 'G'), (1 << 20, 'M'), (1 << 10, 'K')];
    match UNITS.into_iter().find(|(unit, _)| bytes >= *unit) {
        Some((unit, letter)) => format!("{:.2}{letter}", bytes as f64 / unit as f64),
        None => format!("{bytes}B"),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const ONE: &str = "# Memory\r\nused_memory:1048576\r\nused_memory_human:1.00M\r\nmaxmemory:2000\r\n\
        maxmemory_policy:noeviction\r\nmem_fragmentation_ratio:1.20\r\nused_memory_peak:5\r\nmem_allocator:libc\r\n\r\n\
        # Persistence\r\nloading:0\r\nrdb_changes_since_last_save:3\r\nrdb_last_bgsave_status:ok\r\nrdb_last_save_time:70\r\n\r\n\
        # Stats\r\nexpired_keys:2\r\ninstantaneous_input_kbps:0.25\r\npubsub_patterns:1\r\n\r\n\
        # CPU\r\nused_cpu_sys:1.250000\r\n\r\n# Modules\r\nmodule:name=a\r\nmodule:name=b\r\n\r\n\
        # Commandstats\r\ncmdstat_get:calls=2,usec=10,usec_per_call=5.00,rejected_calls=0,failed_calls=1\r\n\r\n\
        # Latencystats\r\nlatency_percentiles_usec_get:p50=1.003\r\n\r\n\
        # Errorstats\r\nerrorstat_ERR:count=1\r\n\r\n# Keyspace\r\ndb0:keys=3,expires=1,avg_ttl=900\r\n";
    const OTHER: &str = "# Memory\r\nused_memory:1572864\r\nused_memory_human:1.50M\r\nmaxmemory:0\r\n\
        maxmemory_policy:noeviction\r\nmem_fragmentation_ratio:1.30\r\nused_memory_peak:6\r\nmem_allocator:libc\r\n\r\n\
        # Persistence\r\nloading:1\r\nrdb_changes_since_last_save:4\r\nrdb_last_bgsave_status:err\r\nrdb_last_save_time:60\r\n\r\n\
        # Stats\r\nexpired_keys:5\r\ninstantaneous_input_kbps:0.50\r\npubsub_patterns:1\r\n\r\n\
        # CPU\r\nused_cpu_sys:0.500000\r\n\r\n# Modules\r\nmodule:name=b\r\n\r\n\
        # Commandstats\r\ncmdstat_set:calls=1,usec=4,usec_per_call=4.00,rejected_calls=0,failed_calls=0\r\n\
        cmdstat_get:calls=2,usec=50,usec_per_call=25.00,rejected_calls=0,failed_calls=0\r\n\r\n\
        # Latencystats\r\nlatency_percentiles_usec_get:p50=1.003\r\n\r\n\
        # Errorstats\r\nerrorstat_WRONGTYPE:count=7\r\n\r\n# Keyspace\r\ndb0:keys=1,expires=2,avg_ttl=300\r\ndb9:keys=1,expires=0,avg_ttl=0\r\n";

    fn of(text: &str) -> StoreInfo {
        StoreInfo::parse(text.as_bytes()).expect("it has sections")
    }

    fn shown(info: &StoreInfo, title: &str) -> String {
        let section = info.section(title).expect("it has the section");
        let lines: Vec<String> =
            section.fields.iter().map(|(name, value)| format!("{name}:{value} ")).collect();
        lines.concat()
    }

    #[test]
    fn one_store_is_passed_on_as_it_is() {
        assert_eq!(StoreInfo::join(vec![of(ONE)]), Some(of(ONE)));
        assert_eq!(StoreInfo::join(Vec::new()), None);
        assert_eq!(shown(&of(ONE), "modules"), "module:name=a module:name=b ");
    }

    #[test]
    fn several_stores_are_summed_where_a_sum_is_true() {
        let both = StoreInfo::join(vec![of(ONE), of(OTHER)]).expect("there are two");
        let memory = "used_memory:2621440 used_memory_human:2.50M maxmemory:0 maxmemory_policy:noeviction mem_allocator:libc ";
        assert_eq!(shown(&both, "memory"), memory);
        let persistence =
            "loading:1 rdb_changes_since_last_save:7 rdb_last_bgsave_status:err rdb_last_save_time:60 ";
        assert_eq!(shown(&both, "persistence"), persistence);
        assert_eq!(shown(&both, "stats"), "expired_keys:7 instantaneous_input_kbps:0.75 pubsub_patterns:1 ");
        assert_eq!(shown(&both, "cpu"), "used_cpu_sys:1.750000 ");
        assert_eq!(shown(&both, "modules"), "module:name=b ");
        let commands = "cmdstat_get:calls=4,usec=60,usec_per_call=15.00,rejected_calls=0,failed_calls=1 \
            cmdstat_set:calls=1,usec=4,usec_per_call=4.00,rejected_calls=0,failed_calls=0 ";
        assert_eq!(shown(&both, "commandstats"), commands);
        assert_eq!(shown(&both, "latencystats"), "");
        assert_eq!(shown(&both, "errorstats"), "errorstat_ERR:count=1 errorstat_WRONGTYPE:count=7 ");
        assert_eq!(
            shown(&both, "keyspace"),
            "db0:keys=4,expires=3,avg_ttl=500 db9:keys=1,expires=0,avg_ttl=0 "
        );
    }

    #[test]
    fn stores_that_differ_have_no_policy() {
        let other = OTHER.replace("noeviction", "allkeys-lru");
        let both = StoreInfo::join(vec![of(ONE), of(&other)]).expect("there are two");
        assert!(!shown(&both, "memory").contains("maxmemory_policy"));
    }

    #[test]
    fn nonsense_is_left_out() {
        assert_eq!(StoreInfo::parse(b"ERR no such thing"), None);
        assert_eq!(shown(&of("a:1\r\n# Stats\r\nnothing\r\nb:2:3\r\n"), "stats"), "b:2:3 ");
        let sums = [of("# Stats\r\nx:9\r\n"), of("# Stats\r\nx:many\r\n")];
        assert_eq!(shown(&StoreInfo::join(sums.to_vec()).expect("two"), "stats"), "");
    }

    proptest! {
        #[test]
        fn no_text_panics(texts in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..200), 0..4)) {
            let _ = StoreInfo::join(texts.iter().filter_map(|text| StoreInfo::parse(text)).collect());
        }

        #[test]
        fn no_figures_panic(texts in proptest::collection::vec("(# (Memory|Stats|Keyspace|CPU)\r\n|(used_memory|a|db0):(-?[0-9]{1,40}|calls=[0-9]{1,40})\r\n){0,8}", 2..4)) {
            let _ = StoreInfo::join(texts.iter().filter_map(|text| StoreInfo::parse(text.as_bytes())).collect());
        }
    }
}
