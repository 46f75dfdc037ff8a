//! The text of quotas, as it passes from one process to the next in a takeover: without passwords.

use std::fmt;

use sha2::{Digest as _, Sha256};
use toml::{Table, Value};

use super::PasswordDigest;

/// The text of quotas that came over HTTP, in which digests stand in the place of passwords.
#[derive(Clone, PartialEq, Eq)]
pub struct QuotaText(String);

/// The SHA-256 digest of the bytes of a quota file, by which one text is told from another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TextDigest([u8; 32]);

impl QuotaText {
    /// Writes quotas anew with a digest (`password_sha256`) in the place of each password. `text` is the valid text of
    /// quotas; None if it is not TOML.
    pub fn without_passwords(text: &str) -> Option<Self> {
        let mut table: Table = text.parse().ok()?;
        if let Some(Value::Table(tenants)) = table.get_mut("tenants") {
            for tenant in tenants.iter_mut().filter_map(|(_, tenant)| tenant.as_table_mut()) {
                if let Some(Value::String(password)) = tenant.remove("password") {
                    let digest = PasswordDigest::of(&password).to_hex();
                    tenant.insert("password_sha256".to_owned(), Value::String(digest));
                }
            }
        }
        Some(Self(table.to_string()))
    }

    /// Takes the text of quotas that the process before this one has sent in a takeover.
    pub fn of_another_process(text: String) -> Self {
        Self(text)
    }

    /// Returns the text, in the form of a quota file, with digests in the place of passwords.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for QuotaText {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "({} bytes)", self.0.len())
    }
}

impl TextDigest {
    pub(super) fn of(bytes: &[u8]) -> Self {
        Self(Sha256::digest(bytes).into())
    }
}

impl fmt::Display for TextDigest {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(out, "{byte:02x}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Quotas;

    const POSTED: &str = r#"
        [global]
        ru_per_second = 100_000
        burst_seconds = 0.5
        [default]
        tier = "batch"
        [tenants]
        inline = {password = "in line", databases = [0x3, 1]}
        [tenants.acme]
        password = "open \"sesame\" \u00e9"
        ru_per_second = 5_000
        burst_seconds = 2
        deadline_ms = 250
        stale_on_error = "10s"
        keys = ["acme:", "a\nb"]
        [tenants.acme.users."ann@example.com"]
        ru_per_second = 10
        [tenants."0.x"]
        password_sha256 = "5cc10d9143b2cff082cf5fb373073b13d02d12c9a4d24a97d822d701404fb421"
    "#;

    #[test]
    fn quotas_mean_the_same_without_their_passwords() {
        let text = QuotaText::without_passwords(POSTED).expect("it is TOML");
        for secret in ["sesame", "in line"] {
            assert!(!text.as_str().contains(secret), "{}", text.as_str());
        }
        assert_eq!(format!("{text:?}"), format!("({} bytes)", text.as_str().len()));
        let [before, after] = [POSTED, text.as_str()].map(|text| Quotas::parse("q", text).expect("valid"));
        // Passwords do not show there.
        let told =
            |quotas: &Quotas| format!("{:?} {:?}", quotas.global(), quotas.tenants().collect::<Vec<_>>());
        assert_eq!(told(&after), told(&before));
        for (user, password) in [("acme", "open \"sesame\" é"), ("inline", "in line"), ("0.x", "zeta")] {
            let signed_in = after.sign_in(Some(user.as_bytes()), password.as_bytes());
            assert!(signed_in.is_some(), "{user}");
            assert!(after.sign_in(Some(user.as_bytes()), b"sesame").is_none());
        }
        assert_eq!(QuotaText::without_passwords(text.as_str()), Some(text), "nothing is left to be hidden");
    }

    #[test]
    fn a_file_is_told_from_another_by_its_digest() {
        let digests = ["[default]", "[default]", "[default]\n"].map(|text| {
            Quotas::parse("q", text).expect("valid").text_digest().expect("it was read from a text")
        });
        assert!(digests[0] == digests[1] && digests[1] != digests[2]);
        // The output of `printf '[default]' | sha256sum`.
        let told = "97c89b0213036ce5ac0958f2a68970b13c132c39382e86cd4060d8423c86276b";
        assert_eq!(digests[0].to_string(), told);
        assert_eq!(Quotas::trusting().text_digest(), None);
    }
}
