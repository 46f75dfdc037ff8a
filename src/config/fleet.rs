//! How quotas are shared with other weirs: `--fleet` and what goes with it.

use sha2::{Digest as _, Sha256};

use super::{ConfigError, Credentials, Flags, FleetStore};

/// The fleet that this weir is of.
#[derive(Clone, Debug)]
pub struct FleetTerms {
    /// Where it counts.
    pub store: FleetStore,
    /// Its name there.
    pub namespace: String,
    /// So many of the users who ask this host for most are counted there; zero if users' quotas are each host's own.
    pub users_max: usize,
}

impl FleetTerms {
    /// None without `--fleet`.
    pub(super) fn from_flags(flags: &Flags) -> Result<Option<Self>, ConfigError> {
        let users_max = flags.fleet_users as usize;
        let Some(store) = flags.fleet.clone() else {
            return match users_max {
                0 => Ok(None),
                _ => Err(ConfigError::new("--fleet-users is for --fleet, which says where they are counted")),
            };
        };
        if users_max > 0 && store.credentials.is_none() {
            return Err(ConfigError::new(
                "--fleet-users: names of users are hashed with the password in --fleet, and there is none: \
                 redis://:PASSWORD@HOST:PORT is wanted, the same for all weirs",
            ));
        }
        Ok(Some(Self { store, namespace: flags.fleet_namespace.clone(), users_max }))
    }

    /// What names of users become buckets with, where those are the same on all hosts: nobody who does not know the password finds two
    /// names that are one bucket.
    pub fn secret(&self) -> Option<[u64; 2]> {
        let Credentials { password, .. } = self.store.credentials.as_ref().filter(|_| self.users_max > 0)?;
        // No name has this byte in it.
        let digest = Sha256::new().chain_update(&self.namespace).chain_update([0xff]).chain_update(password);
        let digest = digest.finalize();
        let half = |at: usize| u64::from_le_bytes(std::array::from_fn(|byte| digest[at + byte]));
        Some([half(0), half(8)])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn secret(store: &str, namespace: &str, users_max: usize) -> Option<[u64; 2]> {
        let store = store.parse().expect("well formed");
        FleetTerms { store, namespace: namespace.to_owned(), users_max }.secret()
    }

    #[test]
    fn hosts_have_the_same_secret_by_password_and_name() {
        let known = secret("redis://ann:sesame@a", "shop", 10);
        assert!(known.is_some());
        assert_eq!(known, secret("rediss://bob:sesame@b:7000", "shop", 1_000));
        assert_ne!(known, secret("redis://ann:poppy@a", "shop", 10));
        assert_ne!(known, secret("redis://ann:sesame@a", "shops", 10));
        assert_eq!(secret("redis://ann:sesame@a", "shop", 0), None, "it is drawn");
    }
}
