//! Which quotas are in force, where they came from, and which were in force before them.

use std::sync::Arc;

use crate::config::{QuotaError, Quotas};
use crate::values::TenantId;

/// Why quotas were read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QuotaSource {
    /// The process started.
    Start,
    /// The quota file changed.
    Change,
    /// SIGHUP: the quota file, whether it changed or not.
    Signal,
    /// `POST /config/quotas`.
    Post,
}

impl QuotaSource {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Start, Self::Change, Self::Signal, Self::Post];

    /// The word for it in metrics and pages.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Start => "start",
            Self::Change => "change",
            Self::Signal => "signal",
            Self::Post => "post",
        }
    }
}

/// What became of the quotas that this process was given.
#[derive(Clone, Debug, Default)]
pub struct QuotaHistory {
    /// How often quotas were put in force, by source.
    taken: [u64; QuotaSource::ALL.len()],
    /// How often they were wrong and changed nothing, by source.
    refused: [u64; QuotaSource::ALL.len()],
    /// What was wrong with the last that were, unless others were taken since.
    pub last_refusal: Option<QuotaRefusal>,
    /// The version in force.
    pub version: u64,
    /// How many tenants it has.
    pub tenants: usize,
}

/// Quotas that were wrong.
#[derive(Clone, Debug)]
pub struct QuotaRefusal {
    /// When they came, in milliseconds since 1970.
    pub unix_ms: u64,
    /// Why they were read.
    pub source: QuotaSource,
    /// What is wrong with them.
    pub problem: QuotaError,
}

impl QuotaHistory {
    /// How often quotas of that source were put in force.
    pub fn taken(&self, source: QuotaSource) -> u64 {
        self.taken[source as usize]
    }

    /// How often quotas of that source were wrong.
    pub fn refused(&self, source: QuotaSource) -> u64 {
        self.refused[source as usize]
    }

    /// From all sources.
    pub fn taken_in_all(&self) -> u64 {
        self.taken.iter().sum()
    }

    /// From all sources.
    pub fn refused_in_all(&self) -> u64 {
        self.refused.iter().sum()
    }
}

/// The quotas in force, and those before them: for a moment some shards still speak of these.
///
/// Both are kept here, so that a shard that lets the old ones go never is the last to do so: taking apart what says who
/// thousands of tenants are is no work for a shard.
#[derive(Clone, Debug)]
pub struct Versions {
    current: Arc<Quotas>,
    before: Option<Arc<Quotas>>,
    source: QuotaSource,
    since_unix_ms: u64,
    file: Option<String>,
    history: QuotaHistory,
}

impl Versions {
    /// What a process starts with. `file` is the name of its quota file, if it has one.
    pub fn new(quotas: Arc<Quotas>, file: Option<String>, unix_ms: u64) -> Self {
        let mut history =
            QuotaHistory { version: quotas.version(), tenants: quotas.len(), ..Default::default() };
        history.taken[QuotaSource::Start as usize] = u64::from(file.is_some());
        Self {
            current: quotas,
            before: None,
            source: QuotaSource::Start,
            since_unix_ms: unix_ms,
            file,
            history,
        }
    }

    /// Puts quotas in force, under the next number.
    pub fn take(&mut self, quotas: Quotas, source: QuotaSource, unix_ms: u64) -> Arc<Quotas> {
        let next = Arc::new(quotas.with_version(self.current.version() + 1));
        self.before = Some(std::mem::replace(&mut self.current, Arc::clone(&next)));
        (self.source, self.since_unix_ms) = (source, unix_ms);
        self.history.taken[source as usize] += 1;
        self.history.last_refusal = None;
        (self.history.version, self.history.tenants) = (next.version(), next.len());
        next
    }

    /// Notes quotas that were wrong. Those in force stay.
    pub fn refuse(&mut self, problem: QuotaError, source: QuotaSource, unix_ms: u64) {
        self.history.refused[source as usize] += 1;
        self.history.last_refusal = Some(QuotaRefusal { unix_ms, source, problem });
    }

    /// The quotas in force.
    pub fn current(&self) -> &Arc<Quotas> {
        &self.current
    }

    /// The quotas of a version, if it is the one in force or the one before it.
    pub fn find(&self, version: u64) -> Option<&Arc<Quotas>> {
        [Some(&self.current), self.before.as_ref()]
            .into_iter()
            .flatten()
            .find(|quotas| quotas.version() == version)
    }

    /// What a tenant of a version is in the one in force. None of those long gone: nobody knows any more whom they mean.
    pub fn now_called(&self, version: u64, tenant: TenantId) -> Option<TenantId> {
        let spoken = self.find(version)?;
        if spoken.version() == self.current.version() {
            return Some(tenant);
        }
        if usize::from(tenant.0) >= spoken.len() {
            return None;
        }
        self.current.find(&spoken.tenant(tenant).name)
    }

    /// Why those in force were read.
    pub fn source(&self) -> QuotaSource {
        self.source
    }

    /// Since when they are in force, in milliseconds since 1970.
    pub fn since_unix_ms(&self) -> u64 {
        self.since_unix_ms
    }

    /// The quota file's name.
    pub fn file(&self) -> Option<&str> {
        self.file.as_deref()
    }

    /// What became of all that were given.
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
        let known: Vec<bool> = (0..4).map(|version| versions.find(version).is_some()).collect();
        assert_eq!(known, [false, true, true, false]);
        assert!(versions.find(1).is_some_and(|before| before.find("b").is_some()));
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
}
