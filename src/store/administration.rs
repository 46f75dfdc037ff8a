//! Commands that operators and test suites send first: ACL, MODULE, ROLE and saving (SAVE, BGSAVE,
//! BGREWRITEAOF). The embedded store has one user without a password, no modules, no replicas, and saves
//! nothing to disk: replies say so, and requests to change any of that are refused.

use super::call::{Call, Command, Done, Effect, command};
use super::effort::FIND;
use super::refusal::{Refusal, quoted};
use crate::protocol::command::{self, describe};

pub(super) const COMMANDS: &[Command] = &[
    command("acl", -2, Effect::Read, acl),
    command("module", -2, Effect::Read, module),
    command("role", 1, Effect::Read, role),
    command("save", 1, Effect::Read, save),
    command("bgsave", -1, Effect::Read, save),
    command("bgrewriteaof", 1, Effect::Read, save),
];

/// The store's only user, in the format of ACL LIST.
const USER: &str = "user default on nopass sanitize-payload ~* &* +@all";

/// The command categories that ACL CAT lists, in the order of Redis.
const CATEGORIES: [&str; 21] = [
    "keyspace",
    "read",
    "write",
    "set",
    "sortedset",
    "list",
    "hash",
    "string",
    "bitmap",
    "hyperloglog",
    "geo",
    "stream",
    "pubsub",
    "admin",
    "fast",
    "slow",
    "blocking",
    "dangerous",
    "connection",
    "transaction",
    "scripting",
];

/// A subcommand of a command such as ACL: its name in lower case, the least and the most words of a request
/// (the command's name and the subcommand included), and the function that carries it out.
pub(super) type Subcommand = (&'static str, usize, usize, fn(&mut Call<'_>) -> Done);

/// Carries out the subcommand that word 1 of the request names (word 0 is the command). `name` is the
/// command's name, for error texts. Refuses a subcommand that is not among `subcommands`, and a request with
/// too few or too many words for its subcommand.
pub(super) fn carry_out(call: &mut Call<'_>, name: &str, subcommands: &[Subcommand]) -> Done {
    let Some((subcommand, least, most, run)) = subcommands.iter().find(|(word, ..)| call.is(1, word)) else {
        return Err(call.unknown_subcommand());
    };
    if !(*least..=*most).contains(&call.count()) {
        return Err(Refusal::Quoting(format!(
            "ERR wrong number of arguments for '{name}|{subcommand}' command"
        )));
    }
    run(call)
}

fn acl(call: &mut Call<'_>) -> Done {
    const MANY: usize = usize::MAX;
    let subcommands: &[Subcommand] = &[
        ("cat", 2, 3, acl_cat),
        ("deluser", 3, MANY, acl_refused),
        ("genpass", 2, 3, acl_genpass),
        ("getuser", 3, 3, acl_getuser),
        ("list", 2, 2, acl_list),
        ("load", 2, 2, acl_refused),
        ("log", 2, 3, acl_log),
        ("save", 2, 2, acl_refused),
        ("setuser", 3, MANY, acl_refused),
        ("users", 2, 2, acl_users),
        ("whoami", 2, 2, acl_whoami),
    ];
    carry_out(call, "acl", subcommands)
}

fn acl_cat(call: &mut Call<'_>) -> Done {
    if call.count() == 2 {
        call.out.array(CATEGORIES.len());
        CATEGORIES.iter().for_each(|name| call.out.bulk(name.as_bytes()));
        return Ok(());
    }
    let Some(category) = CATEGORIES.iter().find(|name| call.is(2, name)) else {
        return Err(Refusal::Quoting(format!("ERR Unknown category '{}'", quoted(call.at(2)))));
    };
    let all = command::all();
    call.effort.spend(all.len(), FIND)?;
    let mut listed = 0;
    for known in all {
        let parent = known.name.split('|').next().unwrap_or_default();
        let belongs = describe::categories(known).any(|name| name.strip_prefix('@') == Some(category));
        // A command with subcommands (CLIENT) is left out: ACL CAT lists its subcommands (`client|list`)
        // instead.
        let is_container = all
            .iter()
            .any(|other| other.name.strip_prefix(known.name).is_some_and(|rest| rest.starts_with('|')));
        if belongs && !is_container && call.directory.find(parent.as_bytes()).is_some() {
            call.out.bulk(known.name.as_bytes());
            listed += 1;
        }
    }
    call.out.insert(0, |out| out.array(listed));
    Ok(())
}

/// Refuses ACL GENPASS: the engine derives its random numbers from a seed, so a password made of them could
/// be predicted.
fn acl_genpass(_: &mut Call<'_>) -> Done {
    Err(Refusal::Words("ERR ACL GENPASS is refused: the random numbers of the embedded store are no secrets"))
}

fn acl_refused(_: &mut Call<'_>) -> Done {
    Err(Refusal::Words("ERR the embedded store has one user, who cannot be changed"))
}

fn acl_getuser(call: &mut Call<'_>) -> Done {
    if call.at(2) != b"default" {
        return call.null();
    }
    let (protocol, out) = (call.session.protocol, &mut call.out);
    out.map(protocol, 6);
    out.bulk(b"flags");
    out.set(protocol, 3);
    for flag in ["on", "nopass", "sanitize-payload"] {
        out.bulk(flag.as_bytes());
    }
    out.bulk(b"passwords");
    out.array(0);
    for (field, value) in [("commands", "+@all"), ("keys", "~*"), ("channels", "&*")] {
        out.bulk(field.as_bytes());
        out.bulk(value.as_bytes());
    }
    out.bulk(b"selectors");
    out.array(0);
    Ok(())
}

fn acl_list(call: &mut Call<'_>) -> Done {
    call.out.array(1);
    call.bulk(USER.as_bytes())
}

/// Carries out ACL LOG, whose list is always empty: the store never denies anything to its only user.
fn acl_log(call: &mut Call<'_>) -> Done {
    if call.is(2, "reset") {
        return call.ok();
    }
    if call.count() == 3 {
        call.integer_at(2)?;
    }
    call.empty_array()
}

fn acl_users(call: &mut Call<'_>) -> Done {
    call.out.array(1);
    call.bulk(b"default")
}

fn acl_whoami(call: &mut Call<'_>) -> Done {
    call.bulk(b"default")
}

fn module(call: &mut Call<'_>) -> Done {
    let refused: fn(&mut Call<'_>) -> Done =
        |_| Err(Refusal::Words("ERR the embedded store cannot load modules"));
    let subcommands: &[Subcommand] = &[
        ("list", 2, 2, |call| call.empty_array()),
        ("load", 3, usize::MAX, refused),
        ("loadex", 3, usize::MAX, refused),
        ("unload", 3, 3, refused),
    ];
    carry_out(call, "module", subcommands)
}

fn role(call: &mut Call<'_>) -> Done {
    call.out.array(3);
    call.out.bulk(b"master");
    call.out.integer(0);
    call.empty_array()
}

/// Refuses SAVE, BGSAVE and BGREWRITEAOF: OK would promise that data survive the end of the process.
fn save(call: &mut Call<'_>) -> Done {
    let name = String::from_utf8_lossy(call.at(0)).to_ascii_uppercase();
    Err(Refusal::Quoting(format!("ERR {name} is refused: the embedded store keeps nothing on disk")))
}

#[cfg(test)]
mod tests {
    use crate::store::bench::Bench;

    #[test]
    fn replies_say_what_there_is() {
        Bench::new().talk(&[
            ("ACL WHOAMI", "$7|default|"),
            ("ACL LIST", "*1|$51|user default on nopass sanitize-payload ~* &* +@all|"),
            ("ACL CAT nosuch", "-ERR Unknown category 'nosuch'|"),
            ("ACL SETUSER x", "-ERR the embedded store has one user, who cannot be changed|"),
            ("ACL LOG x", "-ERR value is not an integer or out of range|"),
            ("MODULE LIST", "*0|"),
            ("ROLE", "*3|$6|master|:0|*0|"),
            ("BGSAVE", "-ERR BGSAVE is refused: the embedded store keeps nothing on disk|"),
            ("WAITAOF 0 0 0", "*2|:0|:0|"),
            ("WAITAOF 0 1 10", "+WAITS|"),
            ("WAITAOF 2 0 0", "-ERR value is out of range, value must between 0 and 1|"),
            ("WAITAOF x 0 0", "-ERR value is not an integer or out of range|"),
            ("WAITAOF 0 x 0", "-ERR value is out of range, must be positive|"),
            (
                "WAITAOF 1 0 0",
                "-ERR WAITAOF cannot be used when numlocal is set but appendonly is disabled.|",
            ),
        ]);
    }
}
