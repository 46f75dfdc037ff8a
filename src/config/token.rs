//! Token of the admin port, without which it accepts no change of quotas. Only a digest of the token is kept.

use std::convert::Infallible;
use std::fmt;
use std::fs::File;
use std::io::Read as _;
use std::path::Path;
use std::str::FromStr;

use super::quotas::PasswordDigest;
use crate::values::limits::ADMIN_TOKEN_BYTES_MAX;

/// A secret text as given, not checked yet. It is a type of its own, so that errors and logs do not show it.
#[derive(Clone)]
pub struct Secret(String);

impl FromStr for Secret {
    type Err = Infallible;

    fn from_str(text: &str) -> Result<Self, Infallible> {
        Ok(Self(text.to_owned()))
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("(hidden)")
    }
}

/// The token that changes over the admin port require; only a digest of it is kept.
#[derive(Clone, Debug)]
pub struct AdminToken(PasswordDigest);

impl AdminToken {
    /// Checks a token from a flag or the environment, and keeps its digest. The error is a text for the
    /// operator.
    pub fn new(secret: &Secret) -> Result<Self, String> {
        let fits = |text: &str| {
            (1..=ADMIN_TOKEN_BYTES_MAX).contains(&text.len())
                && text.bytes().all(|byte| byte.is_ascii_graphic())
        };
        if fits(&secret.0) {
            Ok(Self(PasswordDigest::of(&secret.0)))
        } else {
            // The token is not in the error, since it may be nearly right.
            Err(format!("a token is 1 to {ADMIN_TOKEN_BYTES_MAX} visible ASCII letters without spaces"))
        }
    }

    /// Reads the token from a file that contains nothing else but white space around it. The error is a text
    /// for the operator.
    pub fn load(path: &Path) -> Result<Self, String> {
        let mut text = String::new();
        // A little more than a token with its line end: whatever is longer is none.
        let read = File::open(path)
            .and_then(|file| file.take(2 * ADMIN_TOKEN_BYTES_MAX as u64).read_to_string(&mut text));
        let token = match read {
            Ok(_) => Self::new(&Secret(text.trim().to_owned())),
            Err(error) => Err(error.to_string()),
        };
        token.map_err(|problem| format!("{}: {problem}", path.display()))
    }

    /// True if `given` is the token. Compares in constant time, so that the time does not reveal correct
    /// bytes.
    pub fn is(&self, given: &[u8]) -> bool {
        self.0.is_of(given)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn token(text: &str) -> Result<AdminToken, String> {
        AdminToken::new(&text.parse().expect("any text is a secret"))
    }

    #[test]
    fn only_the_token_is_the_token() {
        let token = token("open-sesame").expect("well formed");
        assert!(token.is(b"open-sesame"));
        for other in [&b""[..], b"open-sesam", b"open-sesame ", b"OPEN-SESAME"] {
            assert!(!token.is(other), "{other:?}");
        }
    }

    #[test]
    fn what_is_no_token_is_not_shown() {
        for text in ["", "two words", "line\nend", "grün", &"x".repeat(ADMIN_TOKEN_BYTES_MAX + 1)] {
            let told = token(text).expect_err("it is none");
            assert_eq!(told, "a token is 1 to 1024 visible ASCII letters without spaces");
        }
        assert_eq!(format!("{:?}", "secret".parse::<Secret>()), "Ok((hidden))");
        assert!(!format!("{:?}", token("secret")).contains("secret"));
    }

    #[test]
    fn a_file_that_cannot_be_read_is_named() {
        let told = AdminToken::load(Path::new("/nowhere/token")).expect_err("it is not there");
        assert!(told.starts_with("/nowhere/token: No such file"), "{told}");
    }
}
