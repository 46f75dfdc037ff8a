//! Permissions about channels: which channels, and patterns of channels, the clients of a tenant may name. Its quotas
//! say so (`channels`); where they do not, the prefixes of its keys count for channels too. Channels with events of
//! keys (`__keyspace@0__:key`, `__keyevent@0__:set`) are as open as the keys and databases that they tell of.

use crate::config::Tenant;
use crate::protocol::Arguments;
use crate::protocol::command::{Command, FanOut, Handling, PrivateUse, Subscription, quoted};
use crate::shard::clients::INVALIDATIONS;
use crate::values::Database;
use crate::values::limits::PREFIXES_NAMED_MAX;

const OF_KEY: &[u8] = b"__keyspace@";
const OF_COMMAND: &[u8] = b"__keyevent@";

/// True if the clients of a tenant may name only certain channels in commands, because its quotas give it only
/// some channels, keys or databases.
pub(super) fn has_only_some(tenant: &Tenant) -> bool {
    !tenant.channel_prefixes().is_empty() || !tenant.databases.is_empty()
}

/// Checks that a tenant may name the channels, or patterns of channels, in a request. True if the request names
/// channels alone, so that its words need no check as keys; false if it names none. The error is the text of the
/// reply. `handling` is how weir handles the command.
pub(super) fn permit(
    tenant: &Tenant,
    (command, handling): (&'static Command, Handling),
    arguments: &Arguments<'_>,
) -> Result<bool, String> {
    let may_name = |name: &[u8], is_pattern| {
        if may_name(tenant, name, is_pattern) { Ok(true) } else { Err(refusal(tenant, name)) }
    };
    let all = |first: usize, are_patterns| {
        arguments.iter().skip(first).try_fold(true, |_, name| may_name(name, are_patterns))
    };
    match handling {
        // Weir itself sends the messages of this channel, about the tenant's own keys.
        Handling::Private(PrivateUse::Subscribes(Subscription::Channels)) => arguments
            .iter()
            .skip(1)
            .filter(|name| *name != INVALIDATIONS)
            .try_fold(true, |_, name| may_name(name, false)),
        Handling::Private(PrivateUse::Subscribes(kind)) => all(1, kind == Subscription::Patterns),
        // A client may end any subscription that it has.
        Handling::Private(PrivateUse::Unsubscribes(_)) => Ok(true),
        Handling::FanOut(FanOut::Channel) => may_name(arguments.get(1).unwrap_or_default(), false),
        // `PUBSUB CHANNELS` without a pattern lists all channels.
        Handling::FanOut(_) if command.name.ends_with("channels") => {
            may_name(arguments.get(2).unwrap_or(b"*"), true)
        }
        Handling::FanOut(_) if command.name.ends_with("numsub") => all(2, false),
        _ if command.name == "spublish" => may_name(arguments.get(1).unwrap_or_default(), false),
        _ => Ok(false),
    }
}

fn refusal(tenant: &Tenant, name: &[u8]) -> String {
    let (own, foreign) = (quoted_prefixes(tenant.channel_prefixes()), quoted(name));
    let who = format!("NOPERM tenant '{}'", tenant.name);
    match (tenant.channels.is_empty(), tenant.keys.is_empty()) {
        (false, _) => format!("{who} has only channels that begin with {own}, not '{foreign}'"),
        (true, false) => {
            format!("{who} has only keys that begin with {own}, and so must its channels, not '{foreign}'")
        }
        (true, true) => format!("{}, and '{foreign}' could tell of others", tenant.refusal_of_all()),
    }
}

fn may_name(tenant: &Tenant, name: &[u8], is_pattern: bool) -> bool {
    let literal = if is_pattern { literal_prefix(name) } else { name };
    if let Some(rest) = literal.strip_prefix(OF_KEY) {
        return may_hear_events(tenant, rest, |key| begins_with_any(&tenant.keys, key));
    }
    if let Some(rest) = literal.strip_prefix(OF_COMMAND) {
        return may_hear_events(tenant, rest, |_| tenant.keys.is_empty());
    }
    // Wildcards behind a short literal part may match the names of events.
    let may_match_events =
        literal.len() < name.len() && [OF_KEY, OF_COMMAND].iter().any(|events| events.starts_with(literal));
    (!may_match_events || has_all_keys(tenant)) && begins_with_any(tenant.channel_prefixes(), literal)
}

/// True if a tenant may hear of events of keys in a database: `rest` is the database's number, `__:`, and the key or
/// the event, as in the name of the channel. `may_hear_of` decides about the key or event. If `rest` is of another
/// form, only a tenant with all keys and databases may.
fn may_hear_events(tenant: &Tenant, rest: &[u8], may_hear_of: impl Fn(&[u8]) -> bool) -> bool {
    let digits = rest.iter().take_while(|byte| byte.is_ascii_digit()).count();
    let number = std::str::from_utf8(&rest[..digits]).ok().and_then(|digits| digits.parse().ok());
    let told_of = rest[digits..].strip_prefix(b"__:".as_slice());
    let (Some(number), Some(told_of)) = (number, told_of) else { return has_all_keys(tenant) };
    tenant.may_use(Database(number)) && may_hear_of(told_of)
}

fn has_all_keys(tenant: &Tenant) -> bool {
    tenant.keys.is_empty() && tenant.databases.is_empty()
}

/// True if a name begins with one of the prefixes, or if there are no prefixes.
fn begins_with_any(prefixes: &[String], name: &[u8]) -> bool {
    prefixes.is_empty() || prefixes.iter().any(|prefix| name.starts_with(prefix.as_bytes()))
}

/// Returns prefixes in quotes, for the text of an error; of more than three only the first three and the
/// number of the others.
pub(super) fn quoted_prefixes(prefixes: &[String]) -> String {
    let named = prefixes.iter().take(PREFIXES_NAMED_MAX);
    let mut named: Vec<String> = named.map(|prefix| format!("'{}'", quoted(prefix.as_bytes()))).collect();
    if prefixes.len() > PREFIXES_NAMED_MAX {
        named.push(format!("{} other prefixes", prefixes.len() - PREFIXES_NAMED_MAX));
    }
    named.join(" or ")
}

/// Returns the part of a pattern before its first special character (`*`, `?`, `[` or a backslash).
pub(super) fn literal_prefix(pattern: &[u8]) -> &[u8] {
    let end =
        pattern.iter().position(|byte| matches!(byte, b'*' | b'?' | b'[' | b'\\')).unwrap_or(pattern.len());
    &pattern[..end]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Quotas;
    use crate::protocol::command::recognise;
    use crate::shard::pipeline::decode::encoded;

    #[test]
    fn only_what_a_pattern_must_begin_with_counts() {
        assert_eq!(literal_prefix(b"acme:*"), b"acme:");
        assert_eq!(literal_prefix(b"ac\\me:*"), b"ac");
        assert_eq!(literal_prefix(b"[a]cme:"), b"");
        assert_eq!(literal_prefix(b"acme:1"), b"acme:1");
    }

    /// Checks, for a tenant with the quota settings `terms`, that each name of a channel in `cases`, or pattern
    /// (after a `P`), is permitted if it stands with true, and refused otherwise.
    fn check(terms: &str, cases: &[(&str, bool)]) {
        let text = format!("[tenants.t]\npassword = \"p\"\n{terms}\n");
        let quotas = Quotas::parse("quotas.toml", &text).expect("well formed");
        let tenant = quotas.tenant(quotas.find("t").expect("it is there"));
        for (case, may) in cases {
            let (name, is_pattern) =
                case.strip_prefix("P ").map_or((*case, false), |pattern| (pattern, true));
            assert_eq!(may_name(tenant, name.as_bytes(), is_pattern), *may, "{terms}: {case}");
        }
    }

    #[test]
    fn any_subscription_may_be_ended() {
        let text = "[tenants.t]\npassword = \"p\"\nkeys = [\"acme:\"]\nchannels = [\"news:\"]\n";
        let quotas = Quotas::parse("quotas.toml", text).expect("well formed");
        let tenant = quotas.tenant(quotas.find("t").expect("it is there"));
        for name in ["UNSUBSCRIBE", "PUNSUBSCRIBE", "SUNSUBSCRIBE"] {
            let (frame, places) = encoded([name.as_bytes(), b"else"].into_iter());
            let arguments = Arguments::new(&frame, &places);
            let command = recognise(&arguments).expect("a command");
            let handled = (command, command.handling_for(&arguments));
            assert_eq!(permit(tenant, handled, &arguments), Ok(true), "{name}");
        }
    }

    #[test]
    fn a_tenant_with_key_prefixes_has_channels_and_events_of_these() {
        check(
            "keys = [\"acme:\"]",
            &[
                ("acme:news", true),
                ("other", false),
                ("P acme:*", true),
                ("P *", false),
                ("P ac*", false),
                ("__keyspace@0__:acme:1", true),
                ("__keyspace@0__:other", false),
                ("P __keyspace@0__:acme:*", true),
                ("P __keyspace@*__:acme:*", false),
                ("P __key*", false),
                ("__keyevent@0__:set", false),
            ],
        );
    }

    #[test]
    fn channels_of_their_own_take_the_place_of_key_prefixes() {
        check(
            "keys = [\"acme:\"]\nchannels = [\"news:\", \"/1.celery\"]",
            &[
                ("news:1", true),
                ("acme:news", false),
                ("P /1.celery*", true),
                ("__keyspace@3__:acme:1", true),
                ("__keyspace@3__:news:1", false),
            ],
        );
        check(
            "channels = [\"news:\"]",
            &[
                ("news:1", true),
                ("other", false),
                ("P *", false),
                ("__keyspace@0__:any", true),
                ("P __keyevent@*", true),
            ],
        );
    }

    #[test]
    fn a_tenant_with_databases_hears_of_no_events_in_others() {
        check(
            "databases = [1, 3]",
            &[
                ("any", true),
                ("P any*", true),
                ("P *", false),
                ("P _[_]key*", false),
                ("__keyspace@1__:k", true),
                ("__keyspace@2__:k", false),
                ("__keyspace@256__:k", false),
                ("__keyspace@257__:k", false),
                ("P __keyspace@1*", false),
                ("P __keyspace@1_*", false),
                ("P __keyspace@1__:*", true),
                ("__keyevent@3__:set", true),
                ("__keyevent@0__:set", false),
                ("P __keyevent@*__:set", false),
            ],
        );
    }
}
