//! Settings of the quota file that flags of the process leave without effect.

use super::Quotas;

/// Limits of the process, set by flags, that no setting of a tenant can exceed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// Number of databases that clients may select.
    pub databases: u16,
    /// The flag that limits the number of databases: `--databases`, or `--storage embedded`, whose store has
    /// fewer.
    pub databases_flag: &'static str,
    /// Maximum number of clients that are connected at once (`--max-clients`).
    pub clients: usize,
    /// Maximum number of connections to stores that clients have to themselves (`--private-links`).
    pub private_links: usize,
}

impl Quotas {
    /// Returns a line for the log about settings of tenants that have no effect, because `bounds` are lower:
    /// names the first one, and counts the others. `None` if there are none.
    pub fn beyond(&self, bounds: Bounds) -> Option<String> {
        let mut found = self.tenants.iter().flat_map(|tenant| {
            let name = &tenant.name;
            let above = |key: &str, given: Option<u32>, flag: &str, most: usize| {
                let given = given.filter(|given| *given as usize > most)?;
                Some(format!("{key} = {given} of tenant '{name}' has no effect: {flag} is {most}"))
            };
            let database = tenant.databases.iter().find(|number| u16::from(number.0) >= bounds.databases);
            let database = database.map(|number| {
                let (number, last, flag) =
                    (number.0, bounds.databases.saturating_sub(1), bounds.databases_flag);
                format!(
                    "database {number} of tenant '{name}' cannot be selected: the last one is {last} ({flag})"
                )
            });
            let clients = above("max_clients", tenant.clients_max, "--max-clients", bounds.clients);
            let links = above("private_links", tenant.private_links, "--private-links", bounds.private_links);
            [database, clients, links].into_iter().flatten()
        });
        let first = found.next()?;
        Some(match found.count() {
            0 => first,
            others => format!("{first}; there are {others} more settings like this"),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_flags_leave_without_effect_is_named_and_counted() {
        let bounds = Bounds { databases: 16, databases_flag: "--databases", clients: 100, private_links: 10 };
        let beyond = |text: &str| Quotas::parse("q", text).expect("well formed").beyond(bounds);
        let at_most = "[default]\ndatabases = [0, 15]\nmax_clients = 100\nprivate_links = 10";
        assert_eq!(beyond(at_most), None);
        assert_eq!(
            beyond("[default]\n[tenants.acme]\npassword = 'x'\ndatabases = [3, 16, 20]").as_deref(),
            Some("database 16 of tenant 'acme' cannot be selected: the last one is 15 (--databases)")
        );
        assert_eq!(
            beyond("[default]\nprivate_links = 11").as_deref(),
            Some("private_links = 11 of tenant 'default' has no effect: --private-links is 10")
        );
        assert_eq!(
            beyond("[default]\nmax_clients = 101\nprivate_links = 11\ndatabases = [255]").as_deref(),
            Some(
                "database 255 of tenant 'default' cannot be selected: the last one is 15 (--databases); there are 2 more \
                 settings like this"
            )
        );
    }
}
