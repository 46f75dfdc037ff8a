//! The versions of all stores, and the lowest of them, which weir shows to clients, since all stores have the
//! commands of that version.

use crate::values::StoreVersion;

/// The version of each store, by number; None where it is unknown. A store that is unavailable keeps the
/// version it last reported, since it may come back.
#[derive(Clone, Debug)]
pub struct StoreVersions(Vec<Option<StoreVersion>>);

impl StoreVersions {
    /// Makes a list of `stores` stores, whose versions are unknown.
    pub fn unknown(stores: usize) -> Self {
        Self(vec![None; stores])
    }

    /// Records the version that the store with this number has reported, in place of an earlier one.
    pub fn take(&mut self, store: usize, version: StoreVersion) {
        self.0[store] = Some(version);
    }

    /// Drops the version of the store with this number, which does not exist any more.
    pub fn forget(&mut self, store: usize) {
        self.0[store] = None;
    }

    /// Returns the lowest known version, which weir shows to clients; the default if none is known.
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
