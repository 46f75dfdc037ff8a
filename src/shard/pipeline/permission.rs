//! Permissions: whether a client may run a command on the keys and databases that it names.

use super::Shard;
use super::channel_permission::{self, literal_prefix, quoted_prefixes};
use crate::config::Tenant;
use crate::protocol::Arguments;
use crate::protocol::command::{Class, Command, FanOut, Group, Handling, LocalCommand, quoted};
use crate::shard::partition::{Partition, Permission};
use crate::values::{ClientId, Database};

impl Shard {
    /// Returns the tenant that a client is logged in as; None before it has logged in.
    pub(super) fn tenant_of(&mut self, id: ClientId) -> Option<&Tenant> {
        self.clients.client(id).identity().tenant(&self.env.quotas)
    }

    /// True if the client's tenant is an administrator (`admin = true`), who may run commands that concern
    /// all tenants.
    pub(super) fn is_admin(&mut self, id: ClientId) -> bool {
        self.tenant_of(id).is_some_and(|tenant| tenant.admin)
    }

    /// Checks whether a client may run a command: before the login only `AUTH`, `HELLO`, `QUIT` and `RESET`, then by
    /// its tenant's rights (`admin`, databases, channels, key prefixes). The error is the text of the reply
    /// (`NOAUTH`, `NOPERM`), without `-` and line end. `handling` says how weir handles the command.
    pub(super) fn permit(
        &mut self,
        id: ClientId,
        command: &'static Command,
        handling: Handling,
        arguments: &Arguments<'_>,
    ) -> Result<(), String> {
        let client = self.clients.client(id);
        let Some(tenant) = client.identity().tenant(&self.env.quotas) else {
            use LocalCommand::{Auth, Hello, Quit, Reset};
            let opens_the_door = matches!(handling, Handling::Local(Auth | Hello | Quit | Reset));
            return if opens_the_door { Ok(()) } else { Err(self.clients.not_logged_in(&self.env, id)) };
        };
        let database = client.database_of_next();
        permit_tenant(tenant, database, (command, handling), arguments, || {
            let partition = self.clients.partition(&self.env, arguments);
            partition.map_or(Permission::Unknown, Partition::permission)
        })
    }

    /// Checks whether a client may run a command that weir does not know. Only an administrator that is not
    /// confined to prefixes of keys or channels may, because the command could use any key or channel. The
    /// error is the text of the reply.
    pub(super) fn permit_unknown(&mut self, id: ClientId, arguments: &Arguments<'_>) -> Result<(), String> {
        match self.tenant_of(id) {
            None => Err(self.clients.not_logged_in(&self.env, id)),
            Some(tenant) if tenant.admin && tenant.keys.is_empty() && tenant.channels.is_empty() => Ok(()),
            Some(_) => Err(crate::protocol::command::Unrecognised::Command(*arguments).to_string()),
        }
    }
}

/// Checks whether a tenant may run a command in a database of its stores: by its admin right, databases,
/// channels and key prefixes. `known` returns what earlier turns (passes of the shard's loop) found about the keys
/// of a very large request. The error is the text of the reply (`NOPERM`). `handling` says how weir handles the
/// command.
pub(super) fn permit_tenant(
    tenant: &Tenant,
    database: Database,
    (command, handling): (&'static Command, Handling),
    arguments: &Arguments<'_>,
    known: impl FnOnce() -> Permission,
) -> Result<(), String> {
    if command.admin && !tenant.admin {
        return Err(format!(
            "NOPERM tenant '{}' may not run {}: it affects all tenants (admin = true allows it)",
            tenant.name,
            command.spoken_name()
        ));
    }
    if !tenant.databases.is_empty() && !matches!(handling, Handling::Local(_)) {
        permit_databases(tenant, database, (command, handling), arguments)?;
    }
    if !tenant.channels.is_empty() && command.class == Class::Script {
        let who = format!("NOPERM tenant '{}' has only channels", tenant.name);
        let own = quoted_prefixes(&tenant.channels);
        return Err(format!("{who} that begin with {own}, and {} could name any", code_of(command)));
    }
    if channel_permission::has_only_some(tenant)
        && channel_permission::permit(tenant, (command, handling), arguments)?
    {
        return Ok(());
    }
    if tenant.keys.is_empty() {
        return Ok(());
    }
    permit_confined(tenant, (command, handling), known(), arguments)
}

/// True if a tenant may not run a command, whatever arguments it gives, so that [`Shard::permit`] always
/// refuses it.
pub(super) fn is_closed_to(tenant: &Tenant, command: &Command) -> bool {
    let is_confined = !(tenant.keys.is_empty() && tenant.channels.is_empty() && tenant.databases.is_empty());
    let affects_all_keys = match command.handling {
        // `SCAN` with a pattern of its own keys, and what names only channels, are open to any tenant.
        Handling::FanOut(FanOut::Scan | FanOut::Channel) => false,
        Handling::FanOut(_) => !command.name.ends_with("channels") && !command.name.ends_with("numsub"),
        _ => false,
    };
    (command.admin && !tenant.admin)
        || (command.class == Class::Script && is_confined)
        || (affects_all_keys && !tenant.keys.is_empty() && !tenant.admin)
        || (command.name == "flushall" && !tenant.databases.is_empty())
}

/// Checks a command of a tenant that may use only certain databases. `database` is the one that the client
/// has selected, and `handling` says how weir handles the command. The error is the text of the reply.
fn permit_databases(
    tenant: &Tenant,
    database: Database,
    (command, handling): (&'static Command, Handling),
    arguments: &Arguments<'_>,
) -> Result<(), String> {
    if command.class == Class::Script {
        return Err(format!("{}: {} could select any database", tenant.refusal_of_all(), code_of(command)));
    }
    match handling {
        Handling::BetweenDatabases => {
            // `MOVE key database`, or `COPY ... DB database`. The store answers a word that is no number.
            let named = (2..arguments.len()).filter(|index| {
                command.name == "move" || arguments.at(index - 1).eq_ignore_ascii_case(b"db")
            });
            named.map(|index| arguments.at(index)).try_for_each(|word| permit_named(tenant, word))?;
        }
        Handling::FanOut(_) if command.name == "swapdb" => {
            arguments.iter().skip(1).try_for_each(|word| permit_named(tenant, word))?;
        }
        Handling::FanOut(_) if command.name == "flushall" => {
            return Err(format!(
                "{}: {} affects all databases",
                tenant.refusal_of_all(),
                command.spoken_name()
            ));
        }
        _ => {}
    }
    if tenant.may_use(database) { Ok(()) } else { Err(tenant.refusal_of(database.0)) }
}

/// Returns the words by which an error names the code that a command of class [`Class::Script`] runs in the store:
/// the command's name if it comes from a Redis module, else "a script".
fn code_of(command: &Command) -> String {
    if command.group == Group::Module { command.spoken_name() } else { "a script".to_owned() }
}

/// Checks that a tenant may use the database whose number a request names (`word`). A word that is no number
/// passes, since the store refuses it. The error is the text of the reply.
fn permit_named(tenant: &Tenant, word: &[u8]) -> Result<(), String> {
    let Some(number) = std::str::from_utf8(word).ok().and_then(|word| word.parse::<i64>().ok()) else {
        return Ok(());
    };
    let is_own = u8::try_from(number).is_ok_and(|number| tenant.may_use(Database(number)));
    if is_own { Ok(()) } else { Err(tenant.refusal_of(number)) }
}

/// Checks a command of a tenant that has only keys with certain prefixes. `known` is the result of the check of
/// the keys, if the request is so large that earlier turns (passes of the shard's loop) have made it. The error
/// is the text of the reply. `handling` says how weir handles the command.
fn permit_confined(
    tenant: &Tenant,
    (command, handling): (&'static Command, Handling),
    known: Permission,
    arguments: &Arguments<'_>,
) -> Result<(), String> {
    let confined = || {
        format!(
            "NOPERM tenant '{}' has only keys that begin with {}",
            tenant.name,
            quoted_prefixes(&tenant.keys)
        )
    };
    if command.class == Class::Script {
        return Err(format!("{}, and {} could access any key", confined(), code_of(command)));
    }
    match handling {
        Handling::FanOut(FanOut::Scan) => {
            let walk = command.walk(arguments);
            let pattern = walk.and_then(|walk| walk.pattern(arguments)).unwrap_or(b"*");
            let literal = literal_prefix(pattern);
            let inside = tenant.keys.iter().any(|prefix| literal.starts_with(prefix.as_bytes()));
            return if inside {
                Ok(())
            } else {
                Err(format!("{}, so SCAN needs a MATCH pattern that begins so", confined()))
            };
        }
        Handling::FanOut(_) if !tenant.admin => {
            return Err(format!("{}, and {} affects all keys", confined(), command.spoken_name()));
        }
        _ => {}
    }
    if command.has_key_patterns(arguments) {
        return Err(format!("{}, and BY and GET patterns could access any key", confined()));
    }
    let not_own = |key| Err(format!("{}, not '{}'", confined(), quoted(key)));
    match known {
        Permission::Granted => return Ok(()),
        Permission::Foreign(index) => return not_own(arguments.at(index)),
        Permission::Unknown => {}
    }
    let mut foreign = None;
    let found = command.for_each_key(arguments, &mut |index| {
        let key = arguments.at(index);
        if foreign.is_none() && !tenant.keys.iter().any(|prefix| key.starts_with(prefix.as_bytes())) {
            foreign = Some(key);
        }
    });
    match (found, foreign) {
        // A malformed request is refused later, when its destination is found.
        (Err(_), _) | (Ok(()), None) => Ok(()),
        (Ok(()), Some(key)) => not_own(key),
    }
}
