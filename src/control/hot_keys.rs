//! The hottest keys of all cores: the reply to `QOS HOTKEYS`, and the page `/hotkeys`.

use serde::ser::{Serialize, SerializeMap, Serializer};

use super::Totals;
use super::http::{Response, Status};
use super::json::as_shown;
use crate::config::{Quotas, Tenant};
use crate::protocol::{Protocol, encode};
use crate::shard::HotKey;
use crate::values::limits::{HOT_KEYS_SHOWN, HOT_KEYS_SHOWN_BYTES_MAX, HOT_KEYS_SHOWN_MAX};
use crate::values::time::{Now, rfc3339};
use crate::values::{Database, escaped};

/// A key with many requests, as the reply to `QOS HOTKEYS` and the pages show it, with the core that it
/// belongs to.
pub(super) struct Told<'a> {
    /// Index of the core that the key belongs to, through which all requests for it pass.
    pub home: usize,
    pub key: &'a HotKey,
    /// The name of the tenant that requested the key last; None if the client that gets the reply may not
    /// know it, or there is none.
    tenant: Option<&'a str>,
}

/// Returns the keys with the most requests for which `is_shown` is true, the hottest first: at most `count`,
/// with at most `HOT_KEYS_SHOWN_BYTES_MAX` bytes of names together. Returns also the number of keys left out.
pub(super) fn hottest<'a>(
    totals: &'a Totals,
    count: usize,
    is_shown: impl Fn(&HotKey) -> bool,
) -> (Vec<Told<'a>>, usize) {
    let of_shards = totals.shards.iter().enumerate();
    let all = of_shards.flat_map(|(home, report)| report.hot_keys.iter().map(move |key| (home, key)));
    let mut keys: Vec<Told<'a>> = all
        .filter(|(_, key)| is_shown(key))
        .map(|(home, key)| Told { home, key, tenant: key.tenant.as_deref() })
        .collect();
    // The reads include those that other cores answered.
    let rate = |told: &Told<'_>| told.key.reads + told.key.writes;
    keys.sort_by(|one, other| {
        rate(other).total_cmp(&rate(one)).then_with(|| one.key.key.cmp(&other.key.key))
    });
    let mut room = HOT_KEYS_SHOWN_BYTES_MAX;
    let fits = |told: &&Told<'_>| {
        let left = room.checked_sub(told.key.key.len());
        room = left.unwrap_or(0);
        left.is_some()
    };
    let shown = keys.iter().take(count).take_while(fits).count();
    let left_out = keys.len() - shown;
    keys.truncate(shown);
    (keys, left_out)
}

/// Writes the reply to `QOS HOTKEYS`, an array of maps, one for each of at most `count` keys. `asker` is the
/// name of the tenant that asked. A tenant with key prefixes sees only keys with these, one with databases
/// only those in them, and only administrators see which other tenants requested a key. Empty if the asker is
/// no longer a tenant.
pub fn write_hot_keys(
    out: &mut Vec<u8>,
    protocol: Protocol,
    totals: &Totals,
    (quotas, asker, count): (&Quotas, &str, usize),
) {
    let Some(asker) = quotas.find(asker).map(|id| quotas.tenant(id)) else {
        return encode::array(out, 0);
    };
    let (keys, _) = hottest(totals, count, |key| is_for(asker, key));
    encode::array(out, keys.len());
    for mut told in keys {
        told.tenant = told.tenant.filter(|name| asker.admin || *name == asker.name);
        told.write(out, protocol);
    }
}

fn is_for(asker: &Tenant, key: &HotKey) -> bool {
    let is_own = |prefix: &String| key.key.starts_with(prefix.as_bytes());
    asker.may_use(key.database) && (asker.keys.is_empty() || asker.keys.iter().any(is_own))
}

/// Makes the admin page `/hotkeys`, which shows the hottest keys of all tenants. `query` is the query string,
/// which may say how many (`count=N`); any other query gets status 400.
pub(super) fn hot_keys_page(totals: &Totals, query: &str, now: Now) -> Response {
    let count = match count_in(query) {
        Ok(count) => count,
        Err(problem) => return Response::problem(Status::BadRequest, &problem, None),
    };
    let (keys, left_out) = hottest(totals, count, |_| true);
    Response::json(Status::Ok, &Page { at: rfc3339(now.unix_ms), keys, left_out })
}

fn count_in(query: &str) -> Result<usize, String> {
    let mut count = HOT_KEYS_SHOWN;
    for pair in query.split('&').filter(|pair| !pair.is_empty()) {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        if name != "count" {
            return Err(format!("{name} is not known here: count= is expected"));
        }
        let wanted = value.parse().ok().filter(|count| (1..=HOT_KEYS_SHOWN_MAX).contains(count));
        count = wanted.ok_or_else(|| {
            format!("count={value}: a whole number from 1 to {HOT_KEYS_SHOWN_MAX} is expected")
        })?;
    }
    Ok(count)
}

/// The JSON of `/hotkeys`; names and their order are a contract.
#[derive(serde::Serialize)]
struct Page<'a> {
    at: String,
    keys: Vec<Told<'a>>,
    left_out: usize,
}

/// A property of a hot key, in the forms that RESP replies and JSON documents have.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Field<'a> {
    Whole(usize),
    Real(f64),
    Text(&'a str),
    None,
}

impl Told<'_> {
    /// Returns the properties of the hot key, by name, in the order in which they are shown. The database is
    /// left out for a key of database 0.
    fn fields(&self) -> impl ExactSizeIterator<Item = (&'static str, Field<'_>)> {
        let key = self.key;
        let per_second = |rate: f64| Field::Real(rounded(rate, 10.0));
        let part = |part: f64| Field::Real(rounded(part, 10_000.0));
        let all = [
            ("length", Field::Whole(key.length)),
            ("slot", Field::Whole(usize::from(key.slot))),
            ("home", Field::Whole(self.home)),
            ("tenant", self.tenant.map_or(Field::None, Field::Text)),
            ("reads", per_second(key.reads)),
            ("writes", per_second(key.writes)),
            ("ru", per_second(key.request_units)),
            ("error", per_second(key.error)),
            ("share", part(key.share)),
            (
                "since",
                key.hot_for.map_or(Field::None, |since| Field::Real(rounded(since.as_secs_f64(), 10.0))),
            ),
            ("hits", part(key.hit_ratio)),
            ("state", Field::Text(key.state)),
            ("copies", Field::Whole(key.copies)),
            ("tracked", Field::Whole(usize::from(key.is_tracked))),
            ("database", Field::Whole(usize::from(key.database.0))),
        ];
        let shown = if key.database == Database::FIRST { all.len() - 1 } else { all.len() };
        all.into_iter().take(shown)
    }

    fn write(&self, out: &mut Vec<u8>, protocol: Protocol) {
        let fields = self.fields();
        encode::map(out, protocol, 1 + fields.len());
        encode::bulk(out, b"key");
        encode::bulk(out, &self.key.key);
        for (name, field) in fields {
            encode::bulk(out, name.as_bytes());
            match field {
                Field::Whole(number) => encode::integer(out, number as i64),
                Field::Real(number) => encode::double(out, protocol, &number.to_string()),
                Field::Text(text) => encode::bulk(out, text.as_bytes()),
                Field::None => encode::null(out, protocol),
            }
        }
    }
}

impl Serialize for Told<'_> {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let fields = self.fields();
        let mut map = to.serialize_map(Some(1 + fields.len()))?;
        map.serialize_entry("key", &escaped(&self.key.key))?;
        for (name, field) in fields {
            map.serialize_entry(name, &field)?;
        }
        map.end()
    }
}

impl Serialize for Field<'_> {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Whole(number) => to.serialize_u64(*number as u64),
            Self::Real(number) => as_shown(number, to),
            Self::Text(text) => to.serialize_str(text),
            Self::None => to.serialize_none(),
        }
    }
}

/// Rounds a number to the nearest multiple of 1 / `parts`. Infinity and NaN become 0, since JSON has neither.
fn rounded(number: f64, parts: f64) -> f64 {
    if number.is_finite() { (number * parts).round() / parts } else { 0.0 }
}

#[cfg(test)]
pub(super) mod tests {
    use std::time::Duration;

    use super::*;
    use crate::control::ShardReport;

    pub fn key(key: &[u8], reads: f64) -> HotKey {
        HotKey {
            key: key.to_vec(),
            length: key.len(),
            slot: 7,
            database: Database::FIRST,
            tenant: Some("acme".to_owned()),
            reads,
            writes: 2.0,
            elsewhere: 0.0,
            request_units: 0.25,
            error: 1.04,
            share: 0.123_456,
            hot_for: Some(Duration::from_millis(1_250)),
            hit_ratio: 0.5,
            state: "kept",
            copies: 0,
            is_tracked: false,
        }
    }

    pub fn totals(shards: Vec<Vec<HotKey>>) -> Totals {
        let report = |hot_keys| ShardReport { hot_keys, ..ShardReport::default() };
        Totals { shards: shards.into_iter().map(report).collect(), engine: None }
    }

    fn reply(totals: &Totals, protocol: Protocol, asker: &str, count: usize) -> String {
        const FILE: &str = "[tenants.acme]\npassword = 'x'\nkeys = ['a:', 'b:']\n[tenants.free]\npassword = 'x'\n\
                            [tenants.operator]\npassword = 'x'\nadmin = true\n";
        let quotas = Quotas::parse("q", FILE).expect("well formed");
        let mut out = Vec::new();
        write_hot_keys(&mut out, protocol, totals, (&quotas, asker, count));
        String::from_utf8(out).expect("text").replace("\r\n", " ")
    }

    fn page(totals: &Totals, query: &str) -> (Status, serde_json::Value) {
        let response = hot_keys_page(totals, query, Now { unix_ms: 1_000, ..Now::default() });
        (response.status, serde_json::from_str(&response.body).expect("it is JSON"))
    }

    /// Undoes the escaping of a key on the page, as the page's readers do.
    fn unescaped(text: &str) -> Vec<u8> {
        let mut bytes = Vec::new();
        let mut rest = text.as_bytes();
        while let [first, behind @ ..] = rest {
            (bytes, rest) = match (first, behind) {
                (b'\\', [b'\\', behind @ ..]) => ([bytes, vec![b'\\']].concat(), behind),
                (b'\\', [b'x', high, low, behind @ ..]) => {
                    let digits = [*high, *low].map(char::from).iter().collect::<String>();
                    let byte = u8::from_str_radix(&digits, 16).expect("two digits");
                    ([bytes, vec![byte]].concat(), behind)
                }
                _ => ([bytes, vec![*first]].concat(), behind),
            };
        }
        bytes
    }

    #[test]
    fn a_key_is_told_in_either_dialect() {
        let totals = totals(vec![Vec::new(), vec![key(b"a:1", 1_000.06)]]);
        let tail = |null: &str, [reads, writes, ru, error, share, since, hits]: [&str; 7]| {
            format!(
                "$6 length :3 $4 slot :7 $4 home :1 $6 tenant {null} $5 reads {reads} $6 writes {writes} $2 ru {ru} \
                 $5 error {error} $5 share {share} $5 since {since} $4 hits {hits} $5 state $4 kept $6 copies :0 \
                 $7 tracked :0 "
            )
        };
        assert_eq!(
            reply(&totals, Protocol::Resp3, "acme", 100),
            "*1 %15 $3 key $3 a:1 ".to_owned()
                + &tail("$4 acme", [",1000.1", ",2", ",0.3", ",1", ",0.1235", ",1.3", ",0.5"])
        );
        assert_eq!(
            reply(&totals, Protocol::Resp2, "free", 100),
            "*1 *30 $3 key $3 a:1 ".to_owned()
                + &tail("$-1", ["$6 1000.1", "$1 2", "$3 0.3", "$1 1", "$6 0.1235", "$3 1.3", "$3 0.5"])
        );
        let cold = HotKey { hot_for: None, tenant: None, ..key(b"a:1", 1.0) };
        let cold = reply(&super::tests::totals(vec![vec![cold]]), Protocol::Resp3, "operator", 1);
        let other = HotKey { database: Database(3), ..key(b"a:1", 1.0) };
        let other = reply(&super::tests::totals(vec![vec![other]]), Protocol::Resp3, "operator", 1);
        assert!(other.starts_with("*1 %16 ") && other.ends_with("$8 database :3 "), "{other}");
        assert!(cold.contains("$6 tenant _ ") && cold.contains("$5 since _ "), "{cold}");
    }

    #[test]
    fn whoever_has_only_keys_of_some_prefixes_is_told_of_those() {
        let totals =
            totals(vec![vec![key(b"a:1", 1.0), key(b"c:1", 9.0)], vec![key(b"b:1", 2.0), key(b"a", 3.0)]]);
        let told = |asker: &str| {
            let reply = reply(&totals, Protocol::Resp2, asker, 100);
            let keys = reply.split("$3 key $").skip(1).filter_map(|key| key.split(' ').nth(1));
            (reply.split("$4 acme ").count() - 1, keys.map(str::to_owned).collect::<Vec<_>>())
        };
        assert_eq!(told("acme"), (2, ["b:1", "a:1"].map(str::to_owned).into()));
        let all = ["c:1", "a", "b:1", "a:1"].map(str::to_owned);
        assert_eq!(told("free"), (0, all.clone().into()), "who asked is not theirs to know");
        assert_eq!(told("operator"), (4, all.into()));
        assert_eq!(reply(&totals, Protocol::Resp2, "nobody", 100), "*0 ");
    }

    #[test]
    fn the_hottest_come_first_and_no_more_than_fit() {
        let keys = |shard: usize| {
            (0..600).map(move |n| key(format!("{shard}:{n}").as_bytes(), (n * 2 + shard) as f64))
        };
        let all = totals(vec![keys(0).collect(), keys(1).collect()]);
        let (shown, left_out) = hottest(&all, 3, |_| true);
        let names: Vec<String> = shown.iter().map(|told| escaped(&told.key.key)).collect();
        assert_eq!((names, left_out), (["1:599", "0:599", "1:598"].map(str::to_owned).into(), 1_197));
        assert!(reply(&all, Protocol::Resp3, "free", HOT_KEYS_SHOWN_MAX).starts_with("*1000 "));
        let long = totals(vec![(0..1_000).map(|n| key(&[b'x'; 1_024], f64::from(n))).collect()]);
        let (shown, left_out) = hottest(&long, HOT_KEYS_SHOWN_MAX, |_| true);
        assert_eq!((shown.len(), left_out), (256, 744), "256 KiB of names");
        assert_eq!(hottest(&Totals::default(), 9, |_| true).0.len(), 0);
    }

    #[test]
    fn any_bytes_come_back_from_the_page() {
        let bytes: Vec<u8> = (0..=u8::MAX).chain("\\x41\\\\ {tag}<é>".bytes()).collect();
        let (status, read) = page(&totals(vec![vec![key(&bytes, 5.0)]]), "");
        assert_eq!(status, Status::Ok);
        let told = &read["keys"][0];
        assert_eq!(unescaped(told["key"].as_str().expect("a text")), bytes);
        assert_eq!((told["length"].as_u64(), told["home"].as_u64()), (Some(bytes.len() as u64), Some(0)));
        assert_eq!((told["reads"].as_f64(), told["since"].as_f64()), (Some(5.0), Some(1.3)));
        assert_eq!((told["state"].as_str(), told["tenant"].as_str()), (Some("kept"), Some("acme")));
        assert_eq!(
            (read["at"].as_str(), read["left_out"].as_u64()),
            (Some("1970-01-01T00:00:01.000Z"), Some(0))
        );
        let odd = HotKey { reads: f64::NAN, share: f64::INFINITY, ..key(b"k", 0.0) };
        assert_eq!(page(&totals(vec![vec![odd]]), "").1["keys"][0]["reads"].as_f64(), Some(0.0));
    }

    #[test]
    fn a_page_has_as_many_as_are_wanted() {
        let totals = totals(vec![(0..200).map(|n| key(format!("{n}").as_bytes(), 1.0)).collect()]);
        for (query, shown) in [("", 100), ("count=7", 7), ("count=1000&", 200)] {
            let (_, read) = page(&totals, query);
            assert_eq!(read["keys"].as_array().map(Vec::len), Some(shown), "{query}");
            assert_eq!(read["left_out"].as_u64(), Some(200 - shown as u64), "{query}");
        }
        for query in ["count=0", "count=1001", "count", "count=-1", "n=1", "count=1&x"] {
            let (status, read) = page(&totals, query);
            assert_eq!((status, read["status"].as_u64()), (Status::BadRequest, Some(400)), "{query}");
        }
    }
}
