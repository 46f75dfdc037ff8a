//! The versions of the quotas: those in force, those in force before, and their sources.

use std::sync::Arc;

use crate::config::{FormerTenants, QuotaError, QuotaText, Quotas, TextDigest};
use crate::values::TenantId;

/// The event because of which quotas were read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QuotaSource {
    /// Quotas that the process started with: those of its quota file, or those that hold without one.
    Start,
    /// The quota file was found changed, so it was read again.
    Change,
    /// SIGHUP ordered to read the quota file, whether it changed or not.
    Signal,
    /// Quotas were posted to `/config/quotas`.
    Post,
    /// Quotas that were posted to the process before, and that this one takes over with its clients.
    Takeover,
}

impl QuotaSource {
    /// All events because of which quotas are read, in the order of their numbers.
    pub const ALL: [Self; 5] = [Self::Start, Self::Change, Self::Signal, Self::Post, Self::Takeover];

    /// The word in metrics and pages for this event because of which quotas were read.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Start => "start",
            Self::Change => "change",
            Self::Signal => "signal",
            Self::Post => "post",
            Self::Takeover => "takeover",
        }
    }

    /// True if the quotas are those of the quota file, or those that hold without one.
    const fn is_file(self) -> bool {
        matches!(self, Self::Start | Self::Change | Self::Signal)
    }
}

/// Counts of how often quotas were put in force or refused in this process, the last refusal, and facts about
/// the quotas in force.
#[derive(Clone, Debug, Default)]
pub struct QuotaHistory {
    /// The number of times that quotas were put in force, by the event because of which they were read.
    taken: [u64; QuotaSource::ALL.len()],
    /// The number of times that quotas had a mistake and were not put in force, by the event because of which
    /// they were read.
    refused: [u64; QuotaSource::ALL.len()],
    /// The last refusal of quotas with a mistake, unless other quotas were put in force since.
    pub last_refusal: Option<QuotaRefusal>,
    /// The version number of the quotas in force.
    pub version: u64,
    /// The number of tenants in the quotas in force.
    pub tenants: usize,
}

/// A refusal of a quota file, or posted quotas, that had a mistake.
#[derive(Clone, Debug)]
pub struct QuotaRefusal {
    /// The time of the refusal, in milliseconds since 1970.
    pub unix_ms: u64,
    /// The reason why the quotas were read.
    pub source: QuotaSource,
    /// The description of the mistake in the quotas.
    pub problem: QuotaError,
}

impl QuotaHistory {
    /// The number of times that quotas read because of `source` were put in force.
    pub fn taken(&self, source: QuotaSource) -> u64 {
        self.taken[source as usize]
    }

    /// The number of times that quotas read because of `source` were refused because of a mistake.
    pub fn refused(&self, source: QuotaSource) -> u64 {
        self.refused[source as usize]
    }

    /// The number of times that quotas were put in force, whatever event they were read for.
    pub fn taken_in_all(&self) -> u64 {
        self.taken.iter().sum()
    }

    /// Number of times that quotas were refused because of a mistake, whatever event they were read for.
    pub fn refused_in_all(&self) -> u64 {
        self.refused.iter().sum()
    }
}

/// The quotas in force, and those before them, whose tenant ids shards still use for a moment.
///
/// Both are kept here so that a shard is never the last to drop the old ones: freeing thousands of tenants
/// would take a shard too long.
#[derive(Clone, Debug)]
pub struct Versions {
    current: Arc<Quotas>,
    before: Option<Arc<Quotas>>,
    former: FormerTenants,
    source: QuotaSource,
    since_unix_ms: u64,
    file: Option<String>,
    /// The digest of the quota file as it was put in force last; None without a file.
    file_digest: Option<TextDigest>,
    /// The text of the quotas in force, if they were posted, here or to a process before; None if they are those of the
    /// file.
    posted: Option<QuotaText>,
    history: QuotaHistory,
}

impl Versions {
    /// Creates the record of quotas with those that the process starts with. `file` is the name of its quota
    /// file, if it has one. `unix_ms` is the time of the start in milliseconds since 1970.
    pub fn new(quotas: Arc<Quotas>, file: Option<String>, unix_ms: u64) -> Self {
        let mut history =
            QuotaHistory { version: quotas.version(), tenants: quotas.len(), ..Default::default() };
        history.taken[QuotaSource::Start as usize] = u64::from(file.is_some());
        Self {
            file_digest: quotas.text_digest(),
            posted: None,
            current: quotas,
            before: None,
            former: FormerTenants::default(),
            source: QuotaSource::Start,
            since_unix_ms: unix_ms,
            file,
            history,
        }
    }

    /// Puts quotas in force, under the next version number, and returns them. `source` is the event because
    /// of which they were read, and `unix_ms` the present time in milliseconds since 1970.
    pub fn take(&mut self, quotas: Quotas, source: QuotaSource, unix_ms: u64) -> Arc<Quotas> {
        let next = Arc::new(quotas.with_version(self.current.version() + 1));
        self.former.handle_quotas(&self.current, &next);
        self.before = Some(std::mem::replace(&mut self.current, Arc::clone(&next)));
        (self.source, self.since_unix_ms) = (source, unix_ms);
        self.posted = None;
        if source.is_file() {
            self.file_digest = next.text_digest();
        }
        self.history.taken[source as usize] += 1;
        self.history.last_refusal = None;
        (self.history.version, self.history.tenants) = (next.version(), next.len());
        next
    }

    /// Keeps the text of the quotas in force, which were posted, for a process that takes over.
    pub fn keep_posted(&mut self, text: QuotaText) {
        debug_assert!(!self.source.is_file(), "a process that takes over reads the file itself");
        self.posted = Some(text);
    }

    /// Returns the text of the quotas in force, if they were posted; None if they are those of the file.
    pub fn posted(&self) -> Option<&QuotaText> {
        self.posted.as_ref()
    }

    /// Returns the digest of the quota file as it was put in force last; None without a file. A process that
    /// takes over posted quotas keeps them only if its file has the same digest as the file that they
    /// replaced.
    pub fn file_digest(&self) -> Option<TextDigest> {
        self.file_digest
    }

    /// Records quotas that were refused because of a mistake (`problem`). The quotas in force stay. `source`
    /// is the event because of which they were read, and `unix_ms` the present time in milliseconds since
    /// 1970.
    pub fn refuse(&mut self, problem: QuotaError, source: QuotaSource, unix_ms: u64) {
        self.history.refused[source as usize] += 1;
        self.history.last_refusal = Some(QuotaRefusal { unix_ms, source, problem });
    }

    /// Returns the quotas in force.
    pub fn current(&self) -> &Arc<Quotas> {
        &self.current
    }

    /// True if tenant ids of this version of the quotas can still be translated into present ones
    /// ([`Self::now_called`]).
    pub fn knows(&self, version: u64) -> bool {
        self.age(version).is_some_and(|age| age == 0 || self.former.since(age).is_some())
    }

    fn age(&self, version: u64) -> Option<u64> {
        self.current.version().checked_sub(version)
    }

    /// Returns the current id of a tenant that has this id in `version`. None if the tenant is gone, or the
    /// version is no longer kept.
    pub fn now_called(&self, version: u64, tenant: TenantId) -> Option<TenantId> {
        self.former.now(self.age(version)?, tenant)
    }

    /// Returns the event because of which the quotas in force were read.
    pub fn source(&self) -> QuotaSource {
        self.source
    }

    /// Returns the time at which the quotas in force were put in force, in milliseconds since 1970.
    pub fn since_unix_ms(&self) -> u64 {
        self.since_unix_ms
    }

    /// Returns the name of the quota file; None if there is none.
    pub fn file(&self) -> Option<&str> {
        self.file.as_deref()
    }

    /// Returns how often quotas were put in force or refused in this process, with the last refusal.
    pub fn history(&self) -> &QuotaHistory {
        &self.history
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn quotas(name: &str) -> Quotas {
        Quotas::parse("q", &format!("[tenants.{name}]\npassword = 'x'")).expect("well formed")
    }

    #[test]
    fn each_that_is_taken_has_the_next_number() {
        let mut versions = Versions::new(Arc::new(quotas("a")), Some("q.toml".to_owned()), 1);
        assert_eq!(versions.take(quotas("b"), QuotaSource::Post, 2).version(), 1);
        assert_eq!(versions.take(quotas("c"), QuotaSource::Change, 3).version(), 2);
        assert_eq!((versions.source(), versions.since_unix_ms()), (QuotaSource::Change, 3));
        let known: Vec<bool> = (0..4).map(|version| versions.knows(version)).collect();
        assert_eq!(known, [true, true, true, false]);
        assert_eq!(versions.history().taken_in_all(), 3);
    }

    #[test]
    fn what_is_wrong_changes_nothing_and_is_kept_until_something_is_right() {
        let mut versions = Versions::new(Arc::new(quotas("a")), None, 1);
        let problem = Quotas::parse("q", "[default]\ntier = 1").expect_err("it is wrong");
        versions.refuse(problem, QuotaSource::Signal, 2);
        assert_eq!((versions.current().version(), versions.since_unix_ms()), (0, 1));
        let history = versions.history();
        assert_eq!((history.taken_in_all(), history.refused(QuotaSource::Signal)), (0, 1));
        assert!(history.last_refusal.is_some());
        versions.take(quotas("a"), QuotaSource::Signal, 3);
        assert!(versions.history().last_refusal.is_none());
    }

    #[test]
    fn posted_quotas_are_kept_for_a_takeover_until_the_file_is_in_force_again() {
        let mut versions = Versions::new(Arc::new(quotas("a")), Some("q.toml".to_owned()), 1);
        let read = versions.file_digest();
        assert!(read.is_some() && versions.posted().is_none());
        for source in [QuotaSource::Post, QuotaSource::Takeover] {
            versions.take(quotas("b"), source, 2);
            let text = QuotaText::without_passwords("[default]").expect("it is TOML");
            versions.keep_posted(text.clone());
            assert_eq!((versions.posted(), versions.file_digest()), (Some(&text), read));
        }
        for source in [QuotaSource::Change, QuotaSource::Signal] {
            versions.take(quotas("c"), source, 3);
            assert_eq!((versions.posted(), versions.file_digest()), (None, quotas("c").text_digest()));
        }
    }
}
