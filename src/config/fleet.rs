//! Settings of a fleet, a set of weir processes that share quotas: `--fleet` and related flags.

use sha2::{Digest as _, Sha256};

use super::{ConfigError, Credentials, Flags, FleetStore, Storage};

/// Settings of the fleet of weir processes that share quotas with this one.
#[derive(Clone, Debug)]
pub struct FleetTerms {
    /// The Redis server in which all hosts of the fleet (weir processes that share quotas) count their
    /// demand.
    pub store: FleetStore,
    /// Name of the fleet (weir processes that share quotas), with which the names of its keys in the Redis
    /// server begin.
    pub namespace: String,
    /// Number of users whose demand is counted in the fleet (over all processes that share quotas), those
    /// with the highest demand on this host; 0 if each host enforces users' quotas by itself.
    pub users_max: usize,
}

impl FleetTerms {
    /// Reads the settings of the fleet (weir processes that share quotas) from the flags; `None` without
    /// `--fleet`.
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
                 redis://:PASSWORD@HOST:PORT is expected, the same for all weirs",
            ));
        }
        Ok(Some(Self { store, namespace: flags.fleet_namespace.clone(), users_max }))
    }

    /// Returns a warning for the operator if the fleet's server is one of the stores in `storage`, where
    /// tenants can write the fleet's keys; `None` if the named servers are others.
    pub fn beside(&self, storage: &Storage) -> Option<String> {
        let server = &self.store.server;
        storage.servers().contains(server).then(|| {
            format!(
                "{server} is a store for tenants too: one that writes keys beginning with '{{weir:{}}}' there changes \
                 how quotas are shared; --fleet should name a server that tenants do not reach",
                self.namespace
            )
        })
    }

    /// Returns the secret key (two halves of a 128-bit key) with which names of users are hashed to the ids
    /// of their token buckets; equal on all hosts of the fleet. `None` if demand of users is not counted in
    /// the fleet. Somebody without the fleet's password cannot find two names whose ids are equal.
    pub fn secret(&self) -> Option<[u64; 2]> {
        let Credentials { password, .. } = self.store.credentials.as_ref().filter(|_| self.users_max > 0)?;
        // No name contains this byte, so a namespace and a password cannot run into each other.
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
    fn a_fleet_that_counts_in_a_store_of_tenants_is_warned_of() {
        let store = "redis://:p@a".parse().expect("well formed");
        let terms = FleetTerms { store, namespace: "shop".to_owned(), users_max: 0 };
        let beside = |storage: &str| terms.beside(&storage.parse().expect("well formed"));
        for storage in ["redis://b,a:6379", "cluster://a"] {
            let told = beside(storage).expect("the server is among them");
            assert!(told.starts_with("a:6379 is a store") && told.contains("'{weir:shop}'"), "{told}");
        }
        for storage in ["redis://b,a:6380", "embedded", "unix:/a"] {
            assert_eq!(beside(storage), None, "{storage}");
        }
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
