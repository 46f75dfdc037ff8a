//! `ACL LIST`, `ACL USERS` and `ACL GETUSER`: the tenants of the quota file and their rights, in the form that Redis
//! gives its users. An administrator is shown all tenants, any other client its own. Passwords and their digests are
//! never shown.

use std::collections::BTreeMap;

use super::Shard;
use super::permission::is_closed_to;
use crate::config::quotas::user_name;
use crate::config::{Quotas, Tenant};
use crate::protocol::command::{self, LocalCommand};
use crate::protocol::{Arguments, Protocol, encode};
use crate::shard::admission::Charge;
use crate::shard::request::NOBODY;
use crate::values::limits::DESCRIPTION_BYTES_MAX;
use crate::values::time::Now;
use crate::values::{ClientId, TenantId};

/// Pattern for the right to use all keys, as Redis writes it in access control lists.
const ALL_KEYS: &str = "~*";
/// Pattern for the right to use all channels, as Redis writes it in access control lists.
const ALL_CHANNELS: &str = "&*";

impl Shard {
    /// Answers a client's `ACL LIST`, `ACL USERS` or `ACL GETUSER`, as `local` says. `charge` is the price taken
    /// for the request (None if it has none), which is corrected here to the real price.
    pub(super) fn describe_users(
        &mut self,
        id: ClientId,
        local: LocalCommand,
        arguments: &Arguments<'_>,
        charge: Option<Charge>,
        now: Now,
    ) {
        let quotas = self.env.quotas.clone();
        let own = self.clients.client(id).identity().tenant_id();
        let shown = Shown { quotas: &quotas, only: (!self.is_admin(id)).then_some(own) };
        self.answer_priced(id, charge, now, |out, protocol| match local {
            LocalCommand::AclGetUser => shown.write_user(out, protocol, arguments.at(2)),
            LocalCommand::AclList => shown.write_lines(out),
            _ => shown.write_names(out),
        });
    }
}

/// The tenants that `ACL LIST`, `ACL USERS` and `ACL GETUSER` show to a client.
struct Shown<'a> {
    quotas: &'a Quotas,
    /// The only tenant that is shown; None for all tenants, which administrators are shown.
    only: Option<TenantId>,
}

impl<'a> Shown<'a> {
    /// Returns the tenants that the client is shown, in the order of their names.
    fn tenants(&self) -> impl Iterator<Item = (TenantId, &'a Tenant)> {
        let only = self.only.filter(|only| *only != NOBODY).map(|only| (only, self.quotas.tenant(only)));
        let all = self.only.is_none().then(|| self.quotas.tenants_after(""));
        only.into_iter().chain(all.into_iter().flatten())
    }

    /// Returns the name of a tenant and those of its users in the quota file, which `AUTH` accepts as user
    /// names.
    fn names_of(tenant: &Tenant) -> impl Iterator<Item = String> {
        let users = tenant.users.keys().map(|user| format!("{}/{user}", tenant.name));
        std::iter::once(tenant.name.clone()).chain(users)
    }

    fn write_names(&self, out: &mut Vec<u8>) {
        write_list(out, self.tenants().flat_map(|(_, tenant)| Self::names_of(tenant)));
    }

    fn write_lines(&self, out: &mut Vec<u8>) {
        let mut commands = Commands::default();
        let lines = self.tenants().flat_map(|(id, tenant)| {
            let flags = self.flags_of(id).join(" ");
            let (keys, channels) = (keys_of(tenant), channels_of(tenant));
            // Redis takes back the channels that a new user may use before it names others.
            let reset = if channels == ALL_CHANNELS { "" } else { "resetchannels " };
            let rights = format!("{flags} {keys} {reset}{channels} {}", commands.of(tenant));
            Self::names_of(tenant).map(move |name| format!("user {name} {rights}"))
        });
        write_list(out, lines);
    }

    /// Writes, as the reply to `ACL GETUSER`, the rights of a tenant, or of a user within a tenant
    /// (`tenant/user`); null if there is none of that name, or if the client may not know of it.
    fn write_user(&self, out: &mut Vec<u8>, protocol: Protocol, name: &[u8]) {
        let Some((id, tenant)) = self.find(name) else { return encode::null(out, protocol) };
        let flags = self.flags_of(id);
        encode::map(out, protocol, 6);
        encode::bulk(out, b"flags");
        encode::set(out, protocol, flags.len());
        flags.iter().for_each(|flag| encode::bulk(out, flag.as_bytes()));
        encode::bulk(out, b"passwords");
        encode::array(out, 0);
        let commands = Commands::default().of(tenant).to_owned();
        let rights = [("commands", commands), ("keys", keys_of(tenant)), ("channels", channels_of(tenant))];
        for (field, value) in rights {
            encode::bulk(out, field.as_bytes());
            encode::bulk(out, value.as_bytes());
        }
        encode::bulk(out, b"selectors");
        encode::array(out, 0);
    }

    /// Returns the tenant of that name or, for `tenant/user`, the tenant of that user; None if there is
    /// none or it is not shown to the client. Users exist as soon as a client logs in as one, so any
    /// well-formed user name is known.
    fn find(&self, name: &[u8]) -> Option<(TenantId, &'a Tenant)> {
        let mut parts = name.splitn(2, |byte| *byte == b'/');
        let tenant = std::str::from_utf8(parts.next()?).ok()?;
        if let Some(user) = parts.next() {
            user_name(user)?;
        }
        let id = self.quotas.find(tenant)?;
        self.only.is_none_or(|only| only == id).then(|| (id, self.quotas.tenant(id)))
    }

    fn flags_of(&self, id: TenantId) -> &'static [&'static str] {
        if self.quotas.strangers() == Some(id) { &["on", "nopass"] } else { &["on"] }
    }
}

/// Writes an array of texts; an error in their place if they take more than 1 MiB.
fn write_list(out: &mut Vec<u8>, texts: impl Iterator<Item = String>) {
    let (mut list, mut count) = (Vec::new(), 0);
    for text in texts {
        encode::bulk(&mut list, text.as_bytes());
        count += 1;
        if list.len() > DESCRIPTION_BYTES_MAX {
            let text = format!(
                "ERR the list is longer than {DESCRIPTION_BYTES_MAX} bytes: ask for one user with ACL GETUSER"
            );
            return encode::error(out, &text);
        }
    }
    encode::array(out, count);
    out.extend(list);
}

/// The rights of tenants to run commands, in Redis' form. Many tenants have equal rights, whose text is made
/// only once.
#[derive(Default)]
struct Commands {
    /// The texts of rights by the four facts that decide them: whether the tenant is an administrator, and
    /// whether it may use all keys, all channels and all databases.
    known: BTreeMap<[bool; 4], String>,
}

impl Commands {
    /// Returns a tenant's rights to run commands in Redis' form: `+@all`, followed by `-name` for each command
    /// that the tenant may not run whatever arguments it gives.
    fn of(&mut self, tenant: &Tenant) -> &str {
        let kind =
            [tenant.admin, tenant.keys.is_empty(), tenant.channels.is_empty(), tenant.databases.is_empty()];
        self.known.entry(kind).or_insert_with(|| {
            let closed = command::all().iter().filter(|command| is_closed_to(tenant, command));
            closed.fold("+@all".to_owned(), |text, command| text + " -" + command.name)
        })
    }
}

fn keys_of(tenant: &Tenant) -> String {
    patterns('~', &tenant.keys).unwrap_or_else(|| ALL_KEYS.to_owned())
}

fn channels_of(tenant: &Tenant) -> String {
    patterns('&', tenant.channel_prefixes()).unwrap_or_else(|| ALL_CHANNELS.to_owned())
}

/// Returns the patterns that match all names beginning with one of these prefixes, each pattern after the
/// character `sign`, separated by spaces; None without prefixes.
fn patterns(sign: char, prefixes: &[String]) -> Option<String> {
    let patterns = prefixes.iter().map(|prefix| format!("{sign}{}*", escaped(prefix)));
    (!prefixes.is_empty()).then(|| patterns.collect::<Vec<_>>().join(" "))
}

/// Returns a prefix as a part of a pattern. Spaces and control characters become `?`, because Redis allows
/// none in its patterns.
fn escaped(prefix: &str) -> String {
    let mut out = String::with_capacity(prefix.len());
    for letter in prefix.chars() {
        if matches!(letter, '*' | '?' | '[' | ']' | '\\') {
            out.push('\\');
        }
        out.push(if letter.is_whitespace() || letter.is_control() { '?' } else { letter });
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: &str = r#"
        [default]
        keys = ["public:"]

        [tenants.root]
        password = "r"
        admin = true

        [tenants.acme]
        password = "sesame"
        keys = ["acme:", "a*b c:"]
        channels = ["news:"]

        [tenants.acme.users.loader]
        tier = "batch"

        [tenants.zeta]
        password_sha256 = "5cc10d9143b2cff082cf5fb373073b13d02d12c9a4d24a97d822d701404fb421"
    "#;

    fn quotas() -> Quotas {
        Quotas::parse("quotas.toml", FILE).expect("well formed")
    }

    fn written(write: impl FnOnce(&mut Vec<u8>)) -> String {
        let mut out = Vec::new();
        write(&mut out);
        String::from_utf8(out).expect("it is text").replace("\r\n", "\n")
    }

    fn lines(quotas: &Quotas, only: Option<&str>) -> Vec<String> {
        let only = only.map(|name| quotas.find(name).expect("it is there"));
        let list = written(|out| Shown { quotas, only }.write_lines(out));
        list.lines().filter(|line| line.starts_with("user ")).map(str::to_owned).collect()
    }

    #[test]
    fn without_a_file_there_is_the_user_of_redis() {
        let quotas = Quotas::trusting();
        let shown = Shown { quotas: &quotas, only: None };
        assert_eq!(written(|out| shown.write_lines(out)), "*1\n$34\nuser default on nopass ~* &* +@all\n");
        assert_eq!(written(|out| shown.write_names(out)), "*1\n$7\ndefault\n");
        assert_eq!(
            written(|out| shown.write_user(out, Protocol::Resp2, b"default")).replace('\n', " "),
            "*12 $5 flags *2 $2 on $6 nopass $9 passwords *0 $8 commands $5 +@all $4 keys $2 ~* $8 channels $2 &* $9 selectors *0 "
        );
    }

    #[test]
    fn an_administrator_is_shown_all_tenants_and_others_their_own() {
        let quotas = quotas();
        let all = Shown { quotas: &quotas, only: None };
        assert_eq!(
            written(|out| all.write_names(out)),
            "*5\n$4\nacme\n$11\nacme/loader\n$7\ndefault\n$4\nroot\n$4\nzeta\n"
        );
        let own = Shown { quotas: &quotas, only: quotas.find("acme") };
        assert_eq!(written(|out| own.write_names(out)), "*2\n$4\nacme\n$11\nacme/loader\n");
        for (name, is_known) in [
            ("acme", true),
            ("acme/loader", true),
            ("acme/anyone", true),
            ("acme/", false),
            ("acme/a/b", false),
            ("ACME", false),
            ("zeta", false),
            ("nosuch", false),
        ] {
            let told = written(|out| own.write_user(out, Protocol::Resp3, name.as_bytes()));
            assert_eq!(told != "_\n", is_known, "{name}: {told}");
        }
    }

    #[test]
    fn a_line_has_the_rights_and_no_password() {
        let quotas = quotas();
        let all = lines(&quotas, None);
        assert!(
            all[0].starts_with("user acme on ~acme:* ~a\\*b?c:* resetchannels &news:* +@all -"),
            "{}",
            all[0]
        );
        assert_eq!(all[1].replace("acme/loader", "acme"), all[0]);
        assert!(all[2].starts_with("user default on nopass ~public:* resetchannels &public:* +@all -"));
        assert_eq!(all[3], "user root on ~* &* +@all");
        assert!(all[4].starts_with("user zeta on ~* &* +@all -") && all[4].contains(" -config|set"));
        assert!(all[0].contains(" -eval ") && !all[4].contains(" -eval "));
        assert_eq!(lines(&quotas, Some("zeta")), all[4..]);
        let shown = all.concat();
        assert!(!shown.contains("sesame") && !shown.contains("5cc10d91") && !shown.contains('#'));
    }

    #[test]
    fn a_list_that_is_too_long_is_refused() {
        let many = Quotas::with_tenants((0..3_000).map(|number| format!("t{number}")));
        let list = written(|out| Shown { quotas: &many, only: None }.write_lines(out));
        assert!(list.starts_with("-ERR the list is longer than 1048576 bytes: "), "{}", &list[..80]);
        let names = written(|out| Shown { quotas: &many, only: None }.write_names(out));
        assert!(names.starts_with("*3000\n"));
    }
}
