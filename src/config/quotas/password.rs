//! Passwords, of which only a digest is kept.

use std::fmt;

use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;

/// The SHA-256 digest of a password, which is kept in place of the password.
#[derive(Clone)]
pub struct PasswordDigest([u8; 32]);

impl PasswordDigest {
    /// Digest that a given password is compared with if there is no password, so that a refusal takes equally
    /// long. No known text has this digest.
    pub(super) const NOBODYS: Self = Self([0; 32]);

    pub(in crate::config) fn of(password: &str) -> Self {
        Self::of_bytes(password.as_bytes())
    }

    pub(super) fn of_bytes(password: &[u8]) -> Self {
        Self(Sha256::digest(password).into())
    }

    /// True if the digests are equal. Compares in constant time, so that the time does not reveal equal
    /// bytes.
    pub(super) fn is(&self, other: &Self) -> bool {
        self.0.ct_eq(&other.0).into()
    }

    /// Reads a digest from 64 hexadecimal digits; `None` for any other text.
    pub(super) fn from_hex(text: &str) -> Option<Self> {
        let digits: Vec<u8> =
            text.chars().map(|digit| digit.to_digit(16).map(|value| value as u8)).collect::<Option<_>>()?;
        let bytes: Vec<u8> = digits.chunks_exact(2).map(|pair| pair[0] << 4 | pair[1]).collect();
        (digits.len() == 64).then(|| bytes.try_into().map(Self).expect("64 digits are 32 bytes"))
    }

    /// Returns the digest as 64 hexadecimal digits, as it stands in a quota file.
    pub(super) fn to_hex(&self) -> String {
        let digits = self.0.iter().flat_map(|byte| [byte >> 4, byte & 15]);
        digits.map(|digit| char::from_digit(u32::from(digit), 16).expect("half a byte")).collect()
    }

    /// True if the password has this digest. The time it takes does not depend on how much of the password is
    /// right.
    pub(in crate::config) fn is_of(&self, password: &[u8]) -> bool {
        self.is(&Self::of_bytes(password))
    }
}

impl fmt::Debug for PasswordDigest {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("(hidden)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_digest_is_that_of_its_password_only() {
        // The output of `printf abc | sha256sum`.
        let hex = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        for digest in [PasswordDigest::of("abc"), PasswordDigest::from_hex(&hex.to_uppercase()).expect("hex")]
        {
            assert!(digest.is_of(b"abc"));
            assert!(!digest.is_of(b"abd"));
            assert!(!digest.is_of(b""));
        }
    }

    #[test]
    fn only_64_digits_are_a_digest() {
        for text in ["", "ab", &"g".repeat(64), &"a".repeat(63), &"a".repeat(65), &"é".repeat(32)] {
            assert!(PasswordDigest::from_hex(text).is_none(), "{text}");
        }
    }
}
