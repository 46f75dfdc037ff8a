//! The versions of all stores, and the one that clients are told: the lowest, whose commands every store has.

use crate::values::StoreVersion;

/// What is known of each store. One that is away keeps the version it told last: it may come back.
#[derive(Clone, Debug)]
pub struct StoreVersions(Vec<Option<StoreVersion>>);

impl StoreVersions {
    /// So many stores, of which nothing is known.
    pub fn unknown(stores: usize) -> Self {
        Self(vec![None; stores])
    }

    /// A store has told its version.
    pub fn take(&mut self, store: usize, version: StoreVersion) {
        self.0[store] = Some(version);
    }

    /// There is no such store any more.
    pub fn forget(&mut self, store: usize) {
        self.0[store] = None;
    }

    /// What clients are told.
    pub fn lowest(&self) -> StoreVersion {
        self.0.iter().flatten().min().copied().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lowest_of_those_that_told_theirs() {
        let version = |text: &str| StoreVersion::parse(text.as_bytes()).expect("a version");
        let mut versions = StoreVersions::unknown(3);
        assert_eq!(versions.lowest(), StoreVersion::COMPATIBLE);
        versions.take(1, version("8.0.0"));
        assert_eq!(versions.lowest(), version("8.0.0"));
        versions.take(2, version("7.2.4"));
        versions.take(0, version("7.0.15"));
        assert_eq!(versions.lowest(), version("7.0.15"));
        versions.take(0, version("7.4.0"));
        assert_eq!(versions.lowest(), version("7.2.4"));
        versions.forget(1);
        versions.forget(2);
        assert_eq!(versions.lowest(), version("7.4.0"));
        assert_eq!(StoreVersions::unknown(0).lowest(), StoreVersion::COMPATIBLE);
    }
}
