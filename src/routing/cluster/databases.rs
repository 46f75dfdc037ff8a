//! Databases of a cluster's nodes. Redis Cluster has database 0 alone; Valkey 9 has as many as its setting
//! `cluster-databases` says. A node is asked for that setting, and, if it does not permit `CONFIG`, to
//! `SELECT` each database.

use super::refusal::NodeRefusal;
use crate::protocol::reply;

/// Error text with which a cluster node that has only database 0 replies to `SELECT` of another one, without
/// the `-` and the line end.
pub const NOT_IN_CLUSTER: &str = "ERR SELECT is not allowed in cluster mode";

/// The databases that clients may select at a cluster node, or at weir. Ordered by their number: one value is
/// less than another if it has fewer; `OnlyFirst` is less than all others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Databases {
    /// Database 0 alone: the node is a server that has no others in a cluster, and replies so
    /// ([`NOT_IN_CLUSTER`]).
    OnlyFirst,
    /// The node has this many databases, numbered from 0; a `SELECT` of this number or a larger one is out of
    /// range.
    Numbered(u16),
}

impl Databases {
    /// Returns the number of databases that clients may select.
    pub const fn count(self) -> u16 {
        match self {
            Self::OnlyFirst => 1,
            Self::Numbered(count) => count,
        }
    }

    /// Reads a node's reply (`told`, in RESP2) to `CONFIG GET cluster-databases`; a node without that setting
    /// has database 0 alone. None for an error, such as that the node does not permit `CONFIG`.
    pub fn in_config(told: &[u8]) -> Option<Self> {
        let mut elements = reply::elements(told)?;
        let Some(_name) = elements.next() else { return Some(Self::OnlyFirst) };
        let count = std::str::from_utf8(reply::text(elements.next()?)?).ok()?.parse::<u64>().ok()?;
        (count > 0).then(|| Self::Numbered(count.min(u64::from(u16::MAX)) as u16))
    }

    /// Reads a node's replies (`told`) to `SELECT 1`, `SELECT 2` and so on: the databases reach up to the
    /// last that could be selected. `None` if the node cannot select any database now, because it is busy
    /// with a script for example.
    pub fn in_selects(told: &[Vec<u8>]) -> Option<Self> {
        let is_for_now =
            |told: &Vec<u8>| NodeRefusal::parse(told).and_then(NodeRefusal::unavailability).is_some();
        if told.iter().any(is_for_now) {
            return None;
        }
        // A user whose permissions skip a database may have a later one.
        let last = told.iter().rposition(|told| told.starts_with(b"+"));
        let is_out_of_range = |told: &Vec<u8>| told.starts_with(b"-ERR DB index is out of range");
        match last {
            Some(last) => Some(Self::Numbered(last as u16 + 2)),
            None if told.iter().any(is_out_of_range) => Some(Self::Numbered(1)),
            None => Some(Self::OnlyFirst),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_setting_says_how_many_databases_a_node_has() {
        let read = |told: &str| Databases::in_config(told.as_bytes());
        let setting =
            |count: &str| format!("*2\r\n$17\r\ncluster-databases\r\n${}\r\n{count}\r\n", count.len());
        assert_eq!(read("*0\r\n"), Some(Databases::OnlyFirst), "Redis has no such setting");
        assert_eq!(read(&setting("1")), Some(Databases::Numbered(1)));
        assert_eq!(read(&setting("16")), Some(Databases::Numbered(16)));
        assert_eq!(read(&setting("2147483647")), Some(Databases::Numbered(u16::MAX)));
        for nonsense in [
            "-NOPERM no\r\n",
            "-ERR unknown command\r\n",
            "+OK\r\n",
            "*1\r\n$1\r\nx\r\n",
            "$-1\r\n",
            "*-1\r\n",
        ] {
            assert_eq!(read(nonsense), None, "{nonsense}");
        }
        for count in ["0", "-1", "many", ""] {
            assert_eq!(read(&setting(count)), None, "{count}");
        }
    }

    #[test]
    fn a_node_that_does_not_permit_config_is_asked_to_select_each_database() {
        const OK: &str = "+OK\r\n";
        const OUT_OF_RANGE: &str = "-ERR DB index is out of range\r\n";
        const NOT_HERE: &str = "-ERR SELECT is not allowed in cluster mode\r\n";
        const NOT_PERMITTED: &str = "-NOPERM No permissions to access database\r\n";
        let read = |told: &[&str]| {
            let told: Vec<Vec<u8>> = told.iter().map(|told| told.as_bytes().to_vec()).collect();
            Databases::in_selects(&told)
        };
        assert_eq!(read(&[NOT_HERE, NOT_HERE, NOT_HERE]), Some(Databases::OnlyFirst));
        assert_eq!(read(&[OUT_OF_RANGE, OUT_OF_RANGE]), Some(Databases::Numbered(1)));
        assert_eq!(read(&[OK, OK, OUT_OF_RANGE]), Some(Databases::Numbered(3)));
        assert_eq!(read(&[OK, OK, OK]), Some(Databases::Numbered(4)));
        assert_eq!(read(&[NOT_PERMITTED, OK, NOT_PERMITTED]), Some(Databases::Numbered(3)));
        assert_eq!(read(&[NOT_PERMITTED, NOT_PERMITTED]), Some(Databases::OnlyFirst));
        assert_eq!(read(&["-BUSY a script\r\n", OK]), None);
        assert_eq!(read(&["-LOADING data\r\n"]), None);
        assert_eq!(read(&[]), Some(Databases::OnlyFirst), "weir has one database");
    }

    #[test]
    fn fewer_databases_are_less() {
        assert!(Databases::OnlyFirst < Databases::Numbered(1));
        assert!(Databases::Numbered(1) < Databases::Numbered(16));
    }
}
