//! Version of a store, by which clients choose their commands.

use std::fmt;

/// Maximum number of bytes of a version's text, what follows its numbers (`-rc1`) included; a longer text counts as no
/// version.
const TEXT_BYTES_MAX: usize = 64;

/// Version of a store: three numbers, compared from the left.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct StoreVersion([u16; 3]);

impl StoreVersion {
    /// The version that weir and its embedded store are compatible with, which weir tells clients while no
    /// store has told its own.
    pub const COMPATIBLE: Self = Self([7, 2, 4]);

    /// The first version whose `WAIT` counts the replicas that have the last write of its connection; before, those
    /// that have its last request of any kind.
    pub const WAIT_COUNTS_WRITES: Self = Self([7, 2, 0]);

    /// Reads a store's version such as `7.0.15`; also `7.4` and `8.0.0-rc1`, of which only the numbers count.
    /// None for any other text.
    pub fn parse(text: &[u8]) -> Option<Self> {
        let text = std::str::from_utf8(text).ok().filter(|text| text.len() <= TEXT_BYTES_MAX)?;
        let mut parts = text.splitn(3, '.');
        let (major, minor) = (whole(parts.next()?)?, parts.next()?);
        let Some(patch) = parts.next() else { return Some(Self([major, leading(minor)?, 0])) };
        Some(Self([major, whole(minor)?, leading(patch)?]))
    }

    /// Returns the store's version in the text of its reply to `INFO`; None if there is none.
    pub fn in_info(text: &[u8]) -> Option<Self> {
        let told = text.split(|byte| *byte == b'\n').find_map(|line| line.strip_prefix(b"redis_version:"))?;
        Self::parse(told.trim_ascii())
    }
}

impl Default for StoreVersion {
    fn default() -> Self {
        Self::COMPATIBLE
    }
}

impl fmt::Display for StoreVersion {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [major, minor, patch] = self.0;
        write!(out, "{major}.{minor}.{patch}")
    }
}

/// Reads a number that fills the whole text; None for any other text.
fn whole(text: &str) -> Option<u16> {
    text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok()).flatten()
}

/// Reads the number with which a text begins; None if it begins with none.
fn leading(text: &str) -> Option<u16> {
    let end = text.bytes().position(|byte| !byte.is_ascii_digit()).unwrap_or(text.len());
    whole(&text[..end])
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn versions_are_read_and_compared_by_their_numbers() {
        let told = |text: &str| StoreVersion::parse(text.as_bytes()).expect("a version");
        for (text, shown) in [
            ("7.2.4", "7.2.4"),
            ("7.0.15", "7.0.15"),
            ("8.0.0", "8.0.0"),
            ("6.2", "6.2.0"),
            ("7.4-rc1", "7.4.0"),
            ("7.4.0-rc1", "7.4.0"),
            ("7.2.4.1", "7.2.4"),
            ("255.255.255", "255.255.255"),
        ] {
            assert_eq!(told(text).to_string(), shown);
        }
        assert!(told("7.0.15") < told("7.2.4") && told("7.2.4") < told("8.0.0"));
        assert!(told("7.2.4") < told("7.2.10") && told("9.9.9") < told("10.0.0"));
        assert_eq!(StoreVersion::default().to_string(), "7.2.4");
    }

    #[test]
    fn what_is_no_version_is_none() {
        let long = format!("7.0.1{}", "-".repeat(TEXT_BYTES_MAX));
        for text in [
            "",
            "7",
            ".",
            "..",
            "7.",
            "7..1",
            "7.0.",
            "+7.0.1",
            "-7.0.1",
            "7.x.1",
            "v7.0.1",
            "70000.0.1",
            &long,
        ] {
            assert_eq!(StoreVersion::parse(text.as_bytes()), None, "{text}");
        }
        assert_eq!(StoreVersion::parse(b"\xff.0.1"), None);
    }

    #[test]
    fn it_is_found_in_info() {
        let info = b"# Server\r\nvalkey_version:8.0.1\r\nredis_version:7.2.4\r\nos:linux\r\n";
        assert_eq!(StoreVersion::in_info(info), Some(StoreVersion::COMPATIBLE));
        assert_eq!(StoreVersion::in_info(b"redis_version:7.0.15"), StoreVersion::parse(b"7.0.15"));
        for none in
            [&b""[..], b"loading:0\r\n", b"redis_version:\r\n", b"redis_version", b"x_redis_version:7.0.1"]
        {
            assert_eq!(StoreVersion::in_info(none), None);
        }
    }

    proptest! {
        #[test]
        fn nothing_that_a_store_sends_panics(text in proptest::collection::vec(any::<u8>(), 0..80)) {
            let _ = StoreVersion::parse(&text);
            let _ = StoreVersion::in_info(&[b"redis_version:", text.as_slice()].concat());
        }
    }
}
