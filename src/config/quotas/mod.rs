//! Quotas: the tenants that may use weir, and how much of it, from the quota file; checked and immutable.
//!
//! [`Quotas::parse`] reads the file; reloading it makes a new `Quotas`, and nothing in the old one changes. A
//! [`TenantId`] is valid only for the version of `Quotas` that it came from; in the next version a tenant is
//! found by its name.

mod bounds;
mod document;
mod file;
mod former;
mod password;
mod text;

use std::collections::BTreeMap;
use std::fmt::Display;
use std::fs::File;
use std::io::{self, Read as _};
use std::ops::Bound;
use std::path::Path;
use std::time::Duration;

pub use bounds::Bounds;
pub use document::QuotaError;
pub use former::FormerTenants;
pub use password::PasswordDigest;
pub use text::{QuotaText, TextDigest};

use super::Size;
use crate::values::Database;
use crate::values::limits::{PASSWORD_BYTES_MAX, QUOTA_FILE_BYTES_MAX, USER_NAME_BYTES_MAX};
use crate::values::{TenantId, Tier};

/// Name of the tenant of clients that name no tenant: those that never authenticate, and those that send only
/// a password.
pub const DEFAULT_TENANT: &str = "default";

/// A quota: a rate in request units per second, and its burst.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limit {
    /// Request units that the quota gains per second.
    pub ru_per_second: u64,
    /// Time for which unused quota is saved up: the quota holds at most the request units of this time.
    pub burst: Duration,
}

/// Settings of one user whom the quota file names within a tenant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UserTerms {
    /// The user's own quota; the tenant's `user_limit` applies if it is `None`.
    pub limit: Option<Limit>,
    /// Tier (importance under overload) of the user's requests, never above the tenant's.
    pub tier: Tier,
}

/// One tenant of the quota file, with its quotas and rights.
#[derive(Clone, Debug)]
pub struct Tenant {
    /// Name of the tenant, with which clients authenticate.
    pub name: String,
    /// True if the tenant may run commands that affect all tenants, such as `FLUSHALL`, `KEYS` and `CONFIG`.
    pub admin: bool,
    /// Prefixes of the keys that the tenant may use; an empty list means all keys.
    pub keys: Vec<String>,
    /// Prefixes of the channels that the tenant may use; an empty list means the prefixes of its keys.
    pub channels: Vec<String>,
    /// Databases that the tenant may use; an empty list means all.
    pub databases: Vec<Database>,
    /// Tier (importance under overload) of the tenant's requests, unless they ask for a lower one.
    pub tier: Tier,
    /// Time after the arrival of a request at which its reply is of no more use, unless the client sets
    /// another; `None` for no deadline.
    pub deadline: Option<Duration>,
    /// Time beyond `--hot-ttl` for which the cache still answers reads of a hot key while the key's store is
    /// unavailable.
    pub stale_on_error: Duration,
    /// Quota of the tenant; `None` means no limit.
    pub limit: Option<Limit>,
    /// Quota of each of the tenant's users that has none of its own; `None` means no limit.
    pub user_limit: Option<Limit>,
    /// Maximum number of connections of the tenant's clients; `None` means that `--max-tenant-clients` is the
    /// maximum.
    pub clients_max: Option<u32>,
    /// Maximum number of connections to stores that clients of the tenant have to themselves (private links);
    /// `None` means four fifths of `--private-links`.
    pub private_links: Option<u32>,
    /// True if the tenant's clients share subscriptions: this process subscribes at the store once for all of
    /// them.
    pub shares_channels: bool,
    /// True if weir puts back the elements that a store pops for one of the tenant's clients after the client
    /// has disconnected.
    pub give_back: bool,
    /// True if replicas of a cluster may answer the tenant's reads, slightly out of date.
    pub stale_reads: bool,
    /// Settings of the tenant's users whom the quota file names, by user name. Other users exist as soon as a
    /// client authenticates as one.
    pub users: BTreeMap<String, UserTerms>,
    password: Option<PasswordDigest>,
}

/// Identity of a client that has authenticated.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SignedIn {
    /// The tenant that the client belongs to.
    pub tenant: TenantId,
    /// Name of the client's user within the tenant; `None` if the client named no user.
    pub user: Option<String>,
}

/// All tenants and their quotas, in one version of the quota file.
#[derive(Clone, Debug)]
pub struct Quotas {
    tenants: Vec<Tenant>,
    by_name: BTreeMap<String, TenantId>,
    strangers: Option<TenantId>,
    global: Option<Limit>,
    /// The longest time for which any tenant accepts expired replies while a store is unavailable
    /// (`stale_on_error`).
    stale_on_error_max: Duration,
    /// True if the clients of any tenant share subscriptions to channels: this process subscribes once for
    /// all of them.
    shares_channels: bool,
    /// The digest of the text that the quotas were read from; `None` if there was none.
    text_digest: Option<TextDigest>,
    version: u64,
}

impl Quotas {
    /// Returns the quotas that apply without a quota file: one tenant for all clients, which may do
    /// everything without limit.
    pub fn trusting() -> Self {
        let everybody = Tenant { admin: true, ..Tenant::unlimited(DEFAULT_TENANT) };
        Self::of(vec![everybody], Some(TenantId(0)), None)
    }

    /// Reads the text of a quota file. `file` is the file's name, for errors.
    pub fn parse(file: &str, text: &str) -> Result<Self, QuotaError> {
        let quotas = file::read(file, text)?;
        Ok(Self { text_digest: Some(TextDigest::of(text.as_bytes())), ..quotas })
    }

    /// Reads the bytes of a quota file, which must be UTF-8. `file` is the file's name, for errors.
    pub fn parse_bytes(file: &str, bytes: &[u8]) -> Result<Self, QuotaError> {
        match std::str::from_utf8(bytes) {
            Ok(text) => Self::parse(file, text),
            Err(error) => {
                let problem = "this is not UTF-8, as TOML must be".to_owned();
                Err(QuotaError::at(file, bytes, error.valid_up_to(), problem))
            }
        }
    }

    /// Reads a quota file from disk. An error if it is larger than 64 MiB.
    pub fn load(path: &Path) -> Result<Self, QuotaError> {
        let file = path.display().to_string();
        let bytes = read_bounded(path).map_err(|problem| QuotaError::of_file(&file, problem.to_string()))?;
        Self::parse_bytes(&file, &bytes)
    }

    /// Returns these quotas with another version number, under which they are put in force.
    #[must_use]
    pub fn with_version(self, version: u64) -> Self {
        Self { version, ..self }
    }

    /// Returns the digest of the text that the quotas were read from; `None` for the quotas that apply without a quota
    /// file.
    pub fn text_digest(&self) -> Option<TextDigest> {
        self.text_digest
    }

    /// Returns the version number of these quotas within this process: 0 at its start, and one more for each
    /// reload. A [`TenantId`] is valid only together with it.
    pub fn version(&self) -> u64 {
        self.version
    }

    /// Creates tenants of these names with default terms, for tests.
    #[cfg(test)]
    pub(crate) fn with_tenants(names: impl Iterator<Item = String>) -> Self {
        let mut text = String::new();
        names.for_each(|name| text.extend(["[tenants.", &name, "]\npassword = 'x'\n"]));
        Self::parse("quotas.toml", &text).expect("well formed")
    }

    fn of(tenants: Vec<Tenant>, strangers: Option<TenantId>, global: Option<Limit>) -> Self {
        let ids = (0..).map(TenantId);
        let by_name = tenants.iter().map(|tenant| tenant.name.clone()).zip(ids).collect();
        let stale_on_error_max = tenants.iter().map(|tenant| tenant.stale_on_error).max().unwrap_or_default();
        let shares_channels = tenants.iter().any(|tenant| tenant.shares_channels);
        Self {
            tenants,
            by_name,
            strangers,
            global,
            stale_on_error_max,
            shares_channels,
            text_digest: None,
            version: 0,
        }
    }

    /// Returns the tenant of clients that do not authenticate; `None` if clients have to authenticate before any other
    /// request.
    pub fn strangers(&self) -> Option<TenantId> {
        self.strangers
    }

    /// Returns the quota of all tenants together; `None` means no limit.
    pub fn global(&self) -> Option<Limit> {
        self.global
    }

    /// Returns the longest time for which any tenant accepts expired replies while a store is unavailable
    /// (`stale_on_error`).
    pub fn stale_on_error_max(&self) -> Duration {
        self.stale_on_error_max
    }

    /// True if the clients of any tenant share weir's subscriptions to channels, instead of having connections
    /// of their own for them.
    pub fn shares_channels(&self) -> bool {
        self.shares_channels
    }

    /// Returns the tenant with an id of this version. Panics if there is no such tenant.
    pub fn tenant(&self, id: TenantId) -> &Tenant {
        &self.tenants[usize::from(id.0)]
    }

    /// Returns the number of tenants, which is at least 1.
    #[expect(clippy::len_without_is_empty, reason = "never empty")]
    pub fn len(&self) -> usize {
        self.tenants.len()
    }

    /// Returns all tenants, in the order of their ids.
    pub fn tenants(&self) -> impl ExactSizeIterator<Item = (TenantId, &Tenant)> {
        self.tenants.iter().enumerate().map(|(index, tenant)| (TenantId(index as u16), tenant))
    }

    /// Returns all tenants whose names come after `name` in alphabetical order, in that order.
    pub fn tenants_after(&self, name: &str) -> impl Iterator<Item = (TenantId, &Tenant)> {
        let after = (Bound::Excluded(name), Bound::Unbounded);
        self.by_name.range::<str, _>(after).map(|(_, id)| (*id, self.tenant(*id)))
    }

    /// Returns the id of the tenant of that name; `None` if there is none.
    pub fn find(&self, name: &str) -> Option<TenantId> {
        self.by_name.get(name).copied()
    }

    /// True if replicas may answer the reads of any tenant.
    pub fn have_stale_reads(&self) -> bool {
        self.tenants.iter().any(|tenant| tenant.stale_reads)
    }

    /// True if any tenant has a password, so that a client can authenticate.
    pub fn has_passwords(&self) -> bool {
        self.tenants.iter().any(|tenant| tenant.password.is_some())
    }

    /// Checks `AUTH password` and `AUTH tenant[/user] password`, and returns the identity of the client; `None` if
    /// there is no such tenant, the password is not the tenant's, or the user's name is invalid. Without a name
    /// (`username`) the password must be the default tenant's.
    pub fn sign_in(&self, username: Option<&[u8]>, password: &[u8]) -> Option<SignedIn> {
        let username = username.unwrap_or(DEFAULT_TENANT.as_bytes());
        let (name, user) = match username.iter().position(|byte| *byte == b'/') {
            Some(slash) => (&username[..slash], Some(&username[slash + 1..])),
            None => (username, None),
        };
        // The password is checked first: an impossible user name must not be answered sooner.
        let id = self.authenticate(name, password)?;
        let user = match user {
            Some(bytes) => Some(user_name(bytes)?.to_owned()),
            None => None,
        };
        Some(SignedIn { tenant: id, user })
    }

    /// Returns the name of the only tenant with that password, for a login over HTTP that gives no name;
    /// `None` if there is none, or more than one. Compares with all tenants' passwords, so that the time does
    /// not depend on which one matches.
    pub fn only_tenant_with(&self, password: &[u8]) -> Option<&str> {
        if password.len() > PASSWORD_BYTES_MAX {
            return None;
        }
        let given = PasswordDigest::of_bytes(password);
        let (mut found, mut count) = (None, 0);
        for tenant in &self.tenants {
            if tenant.password.as_ref().is_some_and(|digest| digest.is(&given)) {
                (found, count) = (Some(tenant.name.as_str()), count + 1);
            }
        }
        found.filter(|_| count == 1)
    }

    /// Returns the tenant of that name, if `password` is its own; `None` otherwise. Takes equally long
    /// whether the name or the password was wrong, and however much of the password was right. A password of
    /// more than 512 bytes is refused at once.
    pub fn authenticate(&self, name: &[u8], password: &[u8]) -> Option<TenantId> {
        if password.len() > PASSWORD_BYTES_MAX {
            return None;
        }
        let id = std::str::from_utf8(name).ok().and_then(|name| self.find(name));
        let expected = id.and_then(|id| self.tenant(id).password.as_ref());
        let right = expected.unwrap_or(&PasswordDigest::NOBODYS).is_of(password);
        id.filter(|_| right && expected.is_some())
    }
}

impl Tenant {
    fn unlimited(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            admin: false,
            keys: Vec::new(),
            channels: Vec::new(),
            databases: Vec::new(),
            tier: Tier::Standard,
            deadline: None,
            stale_on_error: Duration::ZERO,
            limit: None,
            user_limit: None,
            clients_max: None,
            private_links: None,
            shares_channels: false,
            give_back: false,
            stale_reads: false,
            users: BTreeMap::new(),
            password: None,
        }
    }

    /// Returns the prefixes of the channels that the tenant may use: its list for channels or, if that is
    /// empty, the prefixes of its keys. An empty result means all channels.
    pub fn channel_prefixes(&self) -> &[String] {
        if self.channels.is_empty() { &self.keys } else { &self.channels }
    }

    /// True if the tenant has the same rights as `other`, usually itself in another version of the quotas: to
    /// administer, and to use keys, channels and databases.
    pub fn has_rights_of(&self, other: &Self) -> bool {
        self.admin == other.admin
            && self.keys == other.keys
            && self.channels == other.channels
            && self.databases == other.databases
    }

    /// True if the tenant may use this database.
    #[inline]
    pub fn may_use(&self, database: Database) -> bool {
        self.databases.is_empty() || self.databases.contains(&database)
    }

    /// Returns the error reply, without its `-`, for a request about a database that the tenant may not use.
    pub fn refusal_of(&self, database: impl Display) -> String {
        format!("{}, not {database}", self.refusal_of_all())
    }

    /// Returns the error reply, without its `-`, for a request that could affect any database, if the tenant
    /// may use only some.
    pub fn refusal_of_all(&self) -> String {
        let own: Vec<String> = self.databases.iter().map(|own| own.0.to_string()).collect();
        format!("NOPERM tenant '{}' has only the databases {}", self.name, own.join(", "))
    }

    /// Returns the highest tier (importance under overload) that requests of the tenant's user may have; that
    /// of the tenant itself if `user` is `None` or not named in the file.
    pub fn tier_of(&self, user: Option<&str>) -> Tier {
        user.and_then(|user| self.users.get(user)).map_or(self.tier, |terms| terms.tier)
    }

    /// Returns the quota of one of the tenant's users: the user's own or, without one, that of each other
    /// user; `None` means no limit.
    pub fn limit_of(&self, user: &str) -> Option<Limit> {
        self.users.get(user).and_then(|terms| terms.limit).or(self.user_limit)
    }
}

fn read_bounded(path: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    File::open(path)?.take(QUOTA_FILE_BYTES_MAX + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > QUOTA_FILE_BYTES_MAX {
        let problem = format!("a quota file of up to {} is expected", Size(QUOTA_FILE_BYTES_MAX));
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, problem));
    }
    Ok(bytes)
}

/// Checks a user's name and returns it; `None` unless it has 1 to 256 bytes of UTF-8 without spaces, control
/// characters and slashes.
pub fn user_name(bytes: &[u8]) -> Option<&str> {
    let name = std::str::from_utf8(bytes).ok()?;
    let strange = |letter: char| letter.is_whitespace() || letter.is_control() || letter == '/';
    ((1..=USER_NAME_BYTES_MAX).contains(&name.len()) && !name.contains(strange)).then_some(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: &str = r#"
        [default]
        ru_per_second = 1_000

        [tenants.acme]
        password = "open sesame"
        ru_per_second = 5_000
        deadline_ms = 250
        user_ru_per_second = 100

        [tenants.acme.users.loader]
        ru_per_second = 10
        tier = "batch"

        [tenants.zeta]
        # "zeta"
        password_sha256 = "5cc10d9143b2cff082cf5fb373073b13d02d12c9a4d24a97d822d701404fb421"
    "#;

    fn quotas() -> Quotas {
        Quotas::parse("quotas.toml", FILE).expect("well formed")
    }

    fn signed_in(quotas: &Quotas, user: &str, password: &str) -> Option<String> {
        let who = quotas.sign_in(Some(user.as_bytes()), password.as_bytes())?;
        let tenant = quotas.tenant(who.tenant);
        Some(format!(
            "{} {} {}",
            tenant.name,
            who.user.as_deref().unwrap_or_default(),
            tenant.tier_of(who.user.as_deref())
        ))
    }

    #[test]
    fn a_tenant_signs_in_with_its_password_only() {
        let quotas = quotas();
        assert_eq!(signed_in(&quotas, "acme", "open sesame").as_deref(), Some("acme  standard"));
        for (user, password) in [
            ("acme", "open sesam"),
            ("acme", ""),
            ("acm", "open sesame"),
            ("", "open sesame"),
            ("zeta", "open sesame"),
            ("default", ""),
            ("default", "open sesame"),
            ("nobody", ""),
        ] {
            assert_eq!(signed_in(&quotas, user, password), None, "{user} {password}");
        }
        assert_eq!(quotas.sign_in(Some(b"\xff"), b"open sesame"), None);
    }

    #[test]
    fn a_user_signs_in_with_its_tenants_password() {
        let quotas = quotas();
        assert_eq!(signed_in(&quotas, "acme/loader", "open sesame").as_deref(), Some("acme loader batch"));
        assert_eq!(signed_in(&quotas, "acme/ann", "open sesame").as_deref(), Some("acme ann standard"));
        for user in ["acme/", "acme/a b", "acme/a/b", "acme/a\n", &format!("acme/{}", "x".repeat(257))] {
            assert_eq!(signed_in(&quotas, user, "open sesame"), None, "{user:?}");
        }
    }

    #[test]
    fn a_password_alone_is_the_default_tenants() {
        let quotas = Quotas::parse("q", "[tenants.default]\npassword = 'x'").expect("well formed");
        assert_eq!(quotas.sign_in(None, b"x").map(|who| who.tenant), Some(TenantId(0)));
        assert_eq!(quotas.sign_in(None, b"y"), None);
        // Redis clients that are given only a password name the user `default`.
        assert!(quotas.sign_in(Some(b"default"), b"x").is_some());
        assert_eq!(quotas.strangers(), None);
    }

    #[test]
    fn the_terms_of_users() {
        let quotas = quotas();
        let acme = quotas.tenant(quotas.find("acme").expect("it is there"));
        let second = Duration::from_secs(1);
        assert_eq!(acme.limit_of("loader"), Some(Limit { ru_per_second: 10, burst: second }));
        assert_eq!(acme.limit_of("anyone"), Some(Limit { ru_per_second: 100, burst: second }));
        assert_eq!(acme.deadline, Some(Duration::from_millis(250)));
    }

    #[test]
    fn without_a_file_everybody_is_trusted() {
        let quotas = Quotas::trusting();
        let tenant = quotas.tenant(quotas.strangers().expect("strangers are served"));
        assert!(tenant.admin && tenant.keys.is_empty() && tenant.limit.is_none());
        assert!(!quotas.has_passwords());
        assert_eq!(quotas.sign_in(None, b""), None);
    }

    #[test]
    fn a_file_that_cannot_be_read_is_named() {
        let told = Quotas::load(Path::new("/nowhere/quotas.toml")).expect_err("it is not there");
        assert!(told.to_string().starts_with("/nowhere/quotas.toml: No such file"), "{told}");
        assert_eq!(told.place(), None);
        let folder = Quotas::load(Path::new("/")).expect_err("it is a folder");
        assert!(folder.to_string().starts_with("/: "), "{folder}");
    }

    #[test]
    fn bytes_that_are_no_text_are_told_with_their_place() {
        let told = Quotas::parse_bytes("q.toml", b"[default]\nkeys = ['\xff']").expect_err("it is no text");
        assert_eq!(told.to_string(), "q.toml:2:10: this is not UTF-8, as TOML must be");
        assert_eq!(told.place(), Some((2, 10)));
        assert!(Quotas::parse_bytes("q.toml", b"[default]").is_ok());
    }

    #[test]
    fn a_version_is_given_when_they_are_put_in_force() {
        assert_eq!((quotas().version(), Quotas::trusting().version()), (0, 0));
        assert_eq!(quotas().with_version(7).version(), 7);
    }

    #[test]
    fn passwords_are_never_shown() {
        let shown = format!("{:?}", quotas());
        assert!(!shown.contains("sesame") && !shown.contains("5cc10d91"), "{shown}");
    }
}
