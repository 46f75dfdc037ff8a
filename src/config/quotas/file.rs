//! Reader of quota files: the keys that one may contain, and their meaning.

use std::collections::BTreeMap;
use std::time::Duration;

use super::document::{Document, Found, QuotaError, Section};
use super::{DEFAULT_TENANT, Limit, PasswordDigest, Quotas, Tenant, UserTerms, user_name};
use crate::values::limits::{
    BURST_SECONDS_MAX, CLIENTS_MAX, DEADLINE_MS_MAX, NAMED_USERS_MAX, PASSWORD_BYTES_MAX, PREFIX_BYTES_MAX,
    PREFIXES_MAX, PRIVATE_LINKS_MAX, RU_PER_SECOND_MAX, STALE_ON_ERROR_MAX, TENANT_NAME_BYTES_MAX,
    TENANTS_MAX, USER_NAME_BYTES_MAX,
};
use crate::values::{Database, TenantId, Tier};

/// The least and the longest burst, in seconds of the quota's rate. With less than a millisecond's income even
/// the cheapest requests of a high rate would pass one by one.
const BURST_SECONDS: (f64, u32) = (0.001, BURST_SECONDS_MAX);
const GLOBAL_KEYS: [&str; 2] = ["ru_per_second", "burst_seconds"];
const DEFAULT_KEYS: [&str; 15] = [
    "ru_per_second",
    "burst_seconds",
    "user_ru_per_second",
    "tier",
    "deadline_ms",
    "stale_on_error",
    "max_clients",
    "private_links",
    "pubsub",
    "give_back",
    "stale_reads",
    "keys",
    "channels",
    "databases",
    "admin",
];
const TENANT_KEYS: [&str; 18] = [
    "password",
    "password_sha256",
    "ru_per_second",
    "burst_seconds",
    "user_ru_per_second",
    "tier",
    "deadline_ms",
    "stale_on_error",
    "max_clients",
    "private_links",
    "pubsub",
    "give_back",
    "stale_reads",
    "keys",
    "channels",
    "databases",
    "admin",
    "users",
];
const USER_KEYS: [&str; 2] = ["ru_per_second", "tier"];

pub(super) fn read(file: &str, text: &str) -> Result<Quotas, QuotaError> {
    let document = Document { file, text };
    let table = document.parse()?;
    let root = Section::root(document, &table);
    root.has_only(&["global", "default", "tenants"])?;
    let global = root.section("global")?.map(|section| global(&section)).transpose()?.flatten();
    let default = root.section("default")?.map(|section| default(&section)).transpose()?;
    let strangers = default.is_some().then_some(TenantId(0));
    let mut tenants: Vec<Tenant> = default.into_iter().collect();
    if let Some(section) = root.section("tenants")? {
        read_tenants(&section, &mut tenants)?;
    }
    if tenants.is_empty() {
        let problem = "no client could use weir: at least one [tenants.NAME], or a [default], is expected";
        return Err(document.error(0..0, problem.to_owned()));
    }
    Ok(Quotas::of(tenants, strangers, global))
}

fn global(section: &Section<'_>) -> Result<Option<Limit>, QuotaError> {
    section.has_only(&GLOBAL_KEYS)?;
    let limit = limit(section, "ru_per_second", burst(section)?)?;
    if limit.is_none() {
        refuse_burst(section, "ru_per_second")?;
    }
    Ok(limit)
}

fn default(section: &Section<'_>) -> Result<Tenant, QuotaError> {
    section.has_only(&DEFAULT_KEYS)?;
    with_rate(section, terms(section, DEFAULT_TENANT)?)
}

fn read_tenants(section: &Section<'_>, tenants: &mut Vec<Tenant>) -> Result<(), QuotaError> {
    for name in section.names() {
        let Some(own) = section.section(name)? else { continue };
        if !is_tenant_name(name) {
            return Err(own.error(format_args!(
                "a tenant's name is 1 to {TENANT_NAME_BYTES_MAX} letters, digits, '-', '_' or '.'"
            )));
        }
        // TOML has no name twice, so only the default, which is the first, can have the same name.
        if tenants.first().is_some_and(|default| default.name == name) {
            return Err(own.error("[default] is given too, and both are for clients that name no tenant"));
        }
        if tenants.len() == TENANTS_MAX {
            return Err(own.error(format_args!("{TENANTS_MAX} tenants are the most")));
        }
        tenants.push(tenant(&own, name)?);
    }
    Ok(())
}

fn tenant(section: &Section<'_>, name: &str) -> Result<Tenant, QuotaError> {
    section.has_only(&TENANT_KEYS)?;
    let password = password(section)?;
    let terms = terms(section, name)?;
    let users = match section.section("users")? {
        Some(users) => read_users(&users, burst(section)?, terms.tier)?,
        None => BTreeMap::new(),
    };
    with_rate(section, Tenant { password: Some(password), users, ..terms })
}

/// Returns `tenant`, which was read from this section of the quota file. Fails if the section has a burst
/// although neither the tenant nor any of its users has a rate.
fn with_rate(section: &Section<'_>, tenant: Tenant) -> Result<Tenant, QuotaError> {
    let mut of_users = tenant.users.values().map(|user| user.limit);
    if tenant.limit.or(tenant.user_limit).is_none() && of_users.all(|limit| limit.is_none()) {
        refuse_burst(section, "ru_per_second or user_ru_per_second")?;
    }
    Ok(tenant)
}

/// Fails if this section of the quota file has a burst, since it has no rate whose income could be saved up.
/// `rates` names the keys of the rates that are missing, for the error.
fn refuse_burst(section: &Section<'_>, rates: &str) -> Result<(), QuotaError> {
    match section.fraction("burst_seconds", BURST_SECONDS)? {
        Some(burst) => {
            Err(burst.error(format_args!("there is no rate to save up: {rates} is expected with it")))
        }
        None => Ok(()),
    }
}

fn password(section: &Section<'_>) -> Result<PasswordDigest, QuotaError> {
    let wanted = format!("text of 1 to {PASSWORD_BYTES_MAX} bytes, in quotes, is expected");
    let plain = section.secret("password", &wanted, |text| {
        (1..=PASSWORD_BYTES_MAX).contains(&text.len()).then(|| PasswordDigest::of(text))
    })?;
    let digest = section.secret(
        "password_sha256",
        "64 hexadecimal digits, in quotes, are expected, as printed by: printf %s PASSWORD | sha256sum",
        PasswordDigest::from_hex,
    )?;
    match (plain, digest) {
        (Some(plain), None) => Ok(plain.value),
        (None, Some(digest)) => Ok(digest.value),
        (Some(_), Some(digest)) => Err(digest.error("password is given too; give one of the two")),
        (None, None) => Err(section.error(
            "without a password nobody can be this tenant: password = \"...\" or password_sha256 = \"...\" is expected",
        )),
    }
}

/// Reads the settings that the table of a named tenant and that of the default tenant have in common, into a
/// tenant of this name without password and users.
fn terms(section: &Section<'_>, name: &str) -> Result<Tenant, QuotaError> {
    let burst = burst(section)?;
    Ok(Tenant {
        admin: section.boolean("admin")?.is_some_and(|admin| admin.value),
        keys: prefixes(section, "keys", "key")?,
        channels: prefixes(section, "channels", "channel")?,
        databases: databases(section)?,
        tier: tier(section)?.map_or(Tier::default(), |tier| tier.value),
        deadline: section
            .number("deadline_ms", 1, DEADLINE_MS_MAX)?
            .map(|deadline| Duration::from_millis(deadline.value)),
        stale_on_error: section
            .duration("stale_on_error", STALE_ON_ERROR_MAX)?
            .map_or(Duration::ZERO, |stale| stale.value),
        limit: limit(section, "ru_per_second", burst)?,
        user_limit: limit(section, "user_ru_per_second", burst)?,
        clients_max: section.number("max_clients", 1, CLIENTS_MAX)?.map(|most| most.value as u32),
        private_links: section.number("private_links", 0, PRIVATE_LINKS_MAX)?.map(|most| most.value as u32),
        shares_channels: shares_channels(section)?,
        give_back: section.boolean("give_back")?.is_some_and(|gives| gives.value),
        stale_reads: section.boolean("stale_reads")?.is_some_and(|may| may.value),
        ..Tenant::unlimited(name)
    })
}

fn read_users(
    section: &Section<'_>,
    burst: Duration,
    highest: Tier,
) -> Result<BTreeMap<String, UserTerms>, QuotaError> {
    let mut users = BTreeMap::new();
    for name in section.names() {
        let Some(own) = section.section(name)? else { continue };
        own.has_only(&USER_KEYS)?;
        if user_name(name.as_bytes()).is_none() {
            return Err(own.error(format_args!(
                "a user's name is 1 to {USER_NAME_BYTES_MAX} bytes without spaces or '/'"
            )));
        }
        if users.len() == NAMED_USERS_MAX {
            return Err(
                own.error(format_args!("{NAMED_USERS_MAX} users with names are the most for a tenant"))
            );
        }
        users.insert(name.to_owned(), user(&own, burst, highest)?);
    }
    Ok(users)
}

fn user(section: &Section<'_>, burst: Duration, highest: Tier) -> Result<UserTerms, QuotaError> {
    let tier = match tier(section)? {
        Some(tier) if tier.value < highest => {
            let problem = format!("'{}' is above '{highest}', which is the tenant's", tier.value);
            return Err(tier.error(problem));
        }
        Some(tier) => tier.value,
        None => highest,
    };
    Ok(UserTerms { limit: limit(section, "ru_per_second", burst)?, tier })
}

fn limit(section: &Section<'_>, key: &str, burst: Duration) -> Result<Option<Limit>, QuotaError> {
    let rate = section.number(key, 1, RU_PER_SECOND_MAX)?;
    Ok(rate.map(|rate| Limit { ru_per_second: rate.value, burst }))
}

fn burst(section: &Section<'_>) -> Result<Duration, QuotaError> {
    let seconds = section.fraction("burst_seconds", BURST_SECONDS)?;
    Ok(seconds.map_or(Duration::from_secs(1), |seconds| Duration::from_secs_f64(seconds.value)))
}

fn tier<'a>(section: &'a Section<'a>) -> Result<Option<Found<'a, Tier>>, QuotaError> {
    section.text("tier", "critical, standard, batch or sheddable is expected", |word| word.parse().ok())
}

/// Reads the key `pubsub`: true if the tenant's clients share one subscription per channel, false if each
/// client has its own.
fn shares_channels(section: &Section<'_>) -> Result<bool, QuotaError> {
    let mode = section.text("pubsub", "exact or shared is expected", |word| match word {
        "exact" => Some(false),
        "shared" => Some(true),
        _ => None,
    })?;
    Ok(mode.is_some_and(|mode| mode.value))
}

/// Reads the list of name prefixes under the key `list`; empty if the file has none, which means that all
/// names are allowed. `kind` is the word for the things with these names (key or channel) in errors.
fn prefixes(section: &Section<'_>, list: &str, kind: &str) -> Result<Vec<String>, QuotaError> {
    const WANTED: &str = "a list of prefixes in quotes, as in [\"acme:\"], is expected";
    let Some(prefixes) = section.texts(list, WANTED)? else { return Ok(Vec::new()) };
    if prefixes.is_empty() {
        return Err(section.error(format_args!(
            "{list} is empty, so no {kind} could be used: leave it out for all {kind}s"
        )));
    }
    if prefixes.len() > PREFIXES_MAX {
        return Err(section.error(format_args!("{list} has more than {PREFIXES_MAX} prefixes")));
    }
    prefixes
        .into_iter()
        .map(|prefix| match prefix.value.len() {
            0 => Err(prefix.error(format_args!(
                "an empty prefix is that of every {kind}: leave {list} out for all {kind}s"
            ))),
            1..=PREFIX_BYTES_MAX => Ok(prefix.value.to_owned()),
            _ => Err(prefix.error(format_args!("a prefix of up to {PREFIX_BYTES_MAX} bytes is expected"))),
        })
        .collect()
}

fn databases(section: &Section<'_>) -> Result<Vec<Database>, QuotaError> {
    const WANTED: &str = "a list of numbers from 0 to 255, as in [0, 3], is expected";
    let Some(numbers) = section.numbers("databases", u64::from(u8::MAX), WANTED)? else {
        return Ok(Vec::new());
    };
    if numbers.is_empty() {
        return Err(
            section.error("databases is empty, so no key could be used: leave it out for all databases")
        );
    }
    let mut databases: Vec<Database> = numbers.iter().map(|number| Database(number.value as u8)).collect();
    databases.sort_unstable();
    databases.dedup();
    Ok(databases)
}

fn is_tenant_name(name: &str) -> bool {
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
    (1..=TENANT_NAME_BYTES_MAX).contains(&name.len()) && name.bytes().all(fits)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everything_that_may_stand_there() {
        let quotas = Quotas::parse(
            "quotas.toml",
            r#"
            [global]
            ru_per_second = 100_000
            burst_seconds = 0.5
            [default]
            ru_per_second = 1_000
            tier = "batch"
            [tenants.acme]
            password = "..."
            ru_per_second = 5_000
            burst_seconds = 2
            user_ru_per_second = 100
            tier = "critical"
            deadline_ms = 250
            stale_on_error = "10s"
            max_clients = 50
            stale_reads = true
            private_links = 20
            give_back = true
            pubsub = "shared"
            databases = [3, 0, 3]
            keys = ["acme:", "shared:"]
            channels = ["news:"]
            admin = true
            [tenants.acme.users.loader]
            ru_per_second = 10
            tier = "batch"
            [tenants.acme.users."ann@example.com"]
            "#,
        )
        .expect("well formed");
        let limit =
            |ru_per_second, millis| Some(Limit { ru_per_second, burst: Duration::from_millis(millis) });
        assert_eq!(quotas.global(), limit(100_000, 500));
        let default = quotas.tenant(quotas.strangers().expect("there is a default"));
        assert_eq!(
            (default.name.as_str(), default.tier, default.limit),
            ("default", Tier::Batch, limit(1000, 1000))
        );
        let acme = quotas.tenant(quotas.find("acme").expect("it is there"));
        assert_eq!(
            (acme.tier, acme.limit, acme.user_limit),
            (Tier::Critical, limit(5000, 2000), limit(100, 2000))
        );
        assert_eq!(acme.deadline, Some(Duration::from_millis(250)));
        assert_eq!((acme.stale_on_error, default.stale_on_error), (Duration::from_secs(10), Duration::ZERO));
        assert_eq!(quotas.stale_on_error_max(), Duration::from_secs(10));
        assert_eq!(acme.keys, ["acme:", "shared:"]);
        assert_eq!((&acme.channels[..], &default.channels[..]), (&["news:".to_owned()][..], &[][..]));
        assert_eq!((acme.clients_max, default.clients_max), (Some(50), None));
        assert_eq!((acme.private_links, default.private_links), (Some(20), None));
        assert!(acme.give_back && !default.give_back);
        assert!(acme.shares_channels && !default.shares_channels && quotas.shares_channels());
        assert!(acme.admin && !default.admin);
        assert_eq!(acme.databases, [Database(0), Database(3)]);
        assert!(default.databases.is_empty());
        assert!(acme.stale_reads && !default.stale_reads && quotas.have_stale_reads());
        assert_eq!(acme.users["loader"], UserTerms { limit: limit(10, 2000), tier: Tier::Batch });
        assert_eq!(acme.users["ann@example.com"], UserTerms { limit: None, tier: Tier::Critical });
    }

    #[test]
    fn a_complaint_says_where_what_and_how_else() {
        let long_name = format!("[tenants.{}]\npassword = 'x'", "n".repeat(65));
        let cases = [
            (
                "",
                "q.toml:1:1: no client could use weir: at least one [tenants.NAME], or a [default], is expected",
            ),
            ("[quotas]", "q.toml:1:2: quotas is not known here: global, default and tenants are expected"),
            (
                "[global]\nru_per_secnd = 1",
                "q.toml:2:1: global.ru_per_secnd is not known here: ru_per_second and burst_seconds are expected",
            ),
            (
                "[default]\nru_per_second = 0",
                "q.toml:2:17: default.ru_per_second is 0: a whole number from 1 to 1000000000 is expected",
            ),
            (
                "[default]\nru_per_second = -5",
                "q.toml:2:17: default.ru_per_second is -5: a whole number from 1 to 1000000000 is expected",
            ),
            (
                "[default]\nru_per_second = \"fast\"",
                "q.toml:2:17: default.ru_per_second is \"fast\": a whole number from 1 to 1000000000 is expected",
            ),
            (
                "[default]\nburst_seconds = 1e-300",
                "q.toml:2:17: default.burst_seconds is 1e-300: a number from 0.001 to 3600 is expected",
            ),
            (
                "[default]\nburst_seconds = 0",
                "q.toml:2:17: default.burst_seconds is 0: a number from 0.001 to 3600 is expected",
            ),
            (
                "[default]\nburst_seconds = nan",
                "q.toml:2:17: default.burst_seconds is nan: a number from 0.001 to 3600 is expected",
            ),
            (
                "[default]\nburst_seconds = 2",
                "q.toml:2:17: default.burst_seconds: there is no rate to save up: ru_per_second or user_ru_per_second \
                 is expected with it",
            ),
            (
                "[global]\nburst_seconds = 2\n[default]",
                "q.toml:2:17: global.burst_seconds: there is no rate to save up: ru_per_second is expected with it",
            ),
            (
                "[tenants.acme]\npassword = 'x'\nburst_seconds = 2\n[tenants.acme.users.ann]",
                "q.toml:3:17: tenants.acme.burst_seconds: there is no rate to save up: ru_per_second or \
                 user_ru_per_second is expected with it",
            ),
            (
                "[default]\n  tier = \"urgent\"",
                "q.toml:2:10: default.tier is \"urgent\": critical, standard, batch or sheddable is expected",
            ),
            ("[default]\nadmin = 1", "q.toml:2:9: default.admin is 1: true or false is expected"),
            (
                "[default]\nstale_reads = 'yes'",
                "q.toml:2:15: default.stale_reads is \"yes\": true or false is expected",
            ),
            (
                "[default]\ndeadline_ms = 1.5",
                "q.toml:2:15: default.deadline_ms is 1.5: a whole number from 1 to 86400000 is expected",
            ),
            (
                "[default]\nkeys = \"a:\"",
                "q.toml:2:8: default.keys is \"a:\": a list of prefixes in quotes, as in [\"acme:\"], is expected",
            ),
            (
                "[default]\nkeys = ['a', 7]",
                "q.toml:2:14: default.keys is 7: a list of prefixes in quotes, as in [\"acme:\"], is expected",
            ),
            (
                "[default]\nkeys = []",
                "q.toml:1:2: [default]: keys is empty, so no key could be used: leave it out for all keys",
            ),
            (
                "[default]\nkeys = ['a', '']",
                "q.toml:2:14: default.keys: an empty prefix is that of every key: leave keys out for all keys",
            ),
            ("tenants = 1", "q.toml:1:11: tenants is a number: a section [tenants] is expected"),
            (
                "[tenants]\nacme = 'x'",
                "q.toml:2:8: tenants.acme is a text: a section [tenants.acme] is expected",
            ),
            (
                "[tenants.acme]\nru_per_second = 1",
                "q.toml:1:10: [tenants.acme]: without a password nobody can be this tenant: password = \"...\" or \
                 password_sha256 = \"...\" is expected",
            ),
            (
                "[tenants.acme]\npassword = 'x'\npassword_sha256 = \
                 'ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad'",
                "q.toml:3:19: tenants.acme.password_sha256: password is given too; give one of the two",
            ),
            (
                "[tenants.\"a b\"]\npassword = 'x'",
                "q.toml:1:10: [tenants.\"a b\"]: a tenant's name is 1 to 64 letters, digits, '-', '_' or '.'",
            ),
            (
                "[default]\n[tenants.default]\npassword = 'x'",
                "q.toml:2:10: [tenants.default]: [default] is given too, and both are for clients that name no tenant",
            ),
            (
                "[tenants.acme]\npassword = 'x'\n[tenants.acme.users.'a/b']",
                "q.toml:3:21: [tenants.acme.users.\"a/b\"]: a user's name is 1 to 256 bytes without spaces or '/'",
            ),
            (
                "[tenants.acme]\npassword = 'x'\ntier = 'batch'\n[tenants.acme.users.ann]\ntier = 'critical'",
                "q.toml:5:8: tenants.acme.users.ann.tier: 'critical' is above 'batch', which is the tenant's",
            ),
            ("[default]\n[default]", "q.toml:2:2: this is not TOML: duplicate key"),
        ];
        for (text, complaint) in cases {
            assert_eq!(complaint_about(text), complaint, "{text}");
        }
        assert!(
            complaint_about(&long_name)
                .ends_with("a tenant's name is 1 to 64 letters, digits, '-', '_' or '.'")
        );
    }

    #[test]
    fn a_burst_is_for_any_rate_of_the_section() {
        for rate in
            ["ru_per_second = 1", "user_ru_per_second = 1", "[tenants.acme.users.ann]\nru_per_second = 1"]
        {
            let text = format!("[tenants.acme]\npassword = 'x'\nburst_seconds = 2\n{rate}");
            assert!(Quotas::parse("q.toml", &text).is_ok(), "{rate}");
        }
    }

    #[test]
    fn a_complaint_never_repeats_a_password() {
        for text in [
            "[tenants.acme]\npassword = 5555secret",
            "[tenants.acme]\npassword = \"secret",
            "[tenants.acme]\npassword = 'secret\n",
            "[tenants.acme]\npassword = secret",
            "[tenants]\nacme = 'secret'",
            "[tenants.acme]\npassword = 'x'\nusers = {ann = 'secret'}",
            "\ntenants = 'secret'",
            "\ndefault = 'secret'",
            "[tenants.acme]\npassword_sha256 = 'secret'",
            "[tenants.acme]\npassword = ['secret']",
            "[tenants.acme]\npassword = {secret = 1}",
            "[tenants.acme]\npassword = \"\\secret\"",
            "[tenants.acme]\npassword = \"secret\"\ntier = 'x'",
            "[tenants.acme]\npassword = \"secret\"\npassword = \"secret\"",
        ] {
            let complaint = complaint_about(text);
            assert!(complaint.contains("q.toml:2:") || complaint.contains("q.toml:3:"), "{complaint}");
            assert!(!complaint.contains("secret"), "{complaint}");
        }
    }

    fn complaint_about(text: &str) -> String {
        Quotas::parse("q.toml", text).expect_err("it is wrong").to_string()
    }
}
