//! weir's replies about commands: `COMMAND`, its subcommands, and `HELP` of every container command.

use super::since::since;
use super::specs::{self, Access, write_words};
use super::{
    Arguments, COMMANDS, Command, FanOut, Flags, Group, Handling, KeyError, Unrecognised, all, learned,
    lookup, recognise,
};
use crate::protocol::encode::{self, Protocol};
use crate::values::limits::DESCRIPTION_BYTES_MAX;

/// Writes the reply to `COMMAND` or one of its subcommands, or an error if the subcommand is unknown or its
/// arguments are wrong, or if the reply would be longer than 1 MiB.
pub fn answer(out: &mut Vec<u8>, protocol: Protocol, arguments: &Arguments<'_>) {
    let subcommand = arguments.get(1).map(<[u8]>::to_ascii_lowercase);
    // No client needs to name more commands than there are.
    let names: Vec<&[u8]> = arguments.iter().skip(2).take(COMMANDS + 1).collect();
    let before = out.len();
    match subcommand.as_deref() {
        Some(b"info" | b"docs" | b"list") if names.len() > COMMANDS => {
            encode::error(out, &format!("ERR at most {COMMANDS} command names are allowed"));
        }
        None => write_infos(out, protocol, &[]),
        Some(b"info") => write_infos(out, protocol, &names),
        Some(b"docs") => write_all_docs(out, protocol, &names),
        Some(b"count") => encode::integer(out, commands().count() as i64),
        Some(b"list") => write_list(out, protocol, &names),
        Some(b"getkeys") => write_keys(out, arguments, |out, key, _| encode::bulk(out, key)),
        Some(b"getkeysandflags") => write_keys(out, arguments, |out, key, access| {
            encode::array(out, 2);
            encode::bulk(out, key);
            write_words(out, protocol, access.words());
        }),
        Some(other) => encode::error(out, &unknown_subcommand(other)),
    }
    // A client may name one command many times.
    if out.len() - before > DESCRIPTION_BYTES_MAX {
        out.truncate(before);
        too_long(out);
    }
}

fn too_long(out: &mut Vec<u8>) {
    encode::error(
        out,
        &format!("ERR the reply would be longer than {DESCRIPTION_BYTES_MAX} bytes: name fewer commands"),
    );
}

/// Writes the reply to `HELP` of a container command (such as `OBJECT`): a list of its subcommands. `command`
/// is the container's subcommand `HELP`.
pub fn help(out: &mut Vec<u8>, command: &Command) {
    let container = command.name.split('|').next().unwrap_or(command.name).to_ascii_uppercase();
    let names: Vec<_> = subcommands(&container.to_ascii_lowercase()).map(|each| each.name).collect();
    encode::array(out, names.len() + 1);
    encode::simple(out, &format!("{container} <subcommand> [<arg> [value] [opt] ...]. Subcommands are:"));
    for name in names {
        encode::simple(out, &name[container.len() + 1..].to_ascii_uppercase());
    }
}

/// Returns the access categories of a command, such as `@read`, by the rules of Redis.
pub fn categories(command: &Command) -> impl Iterator<Item = &'static str> {
    let flagged = |flag, category| command.flags.contains(flag).then_some(category);
    let scripted = command.group == Group::Scripting;
    let sorts = matches!(command.name, "sort" | "sort_ro");
    let family = match command.group {
        // Access cannot be given to a container that cannot stand alone.
        _ if command.flags.contains(Flags::CONTAINER) && !command.arity_fits(1) => None,
        Group::Generic if sorts => None,
        group => group.category(),
    };
    let dangerous = command.flags.contains(Flags::ADMIN) || command.flags.contains(Flags::DANGEROUS);
    [
        flagged(Flags::WRITE, "@write"),
        flagged(Flags::READONLY, "@read").filter(|_| !scripted),
        flagged(Flags::ADMIN, "@admin"),
        flagged(Flags::PUBSUB, "@pubsub"),
        flagged(Flags::BLOCKING, "@blocking"),
        dangerous.then_some("@dangerous"),
        Some(if command.flags.contains(Flags::FAST) { "@fast" } else { "@slow" }),
        family,
    ]
    .into_iter()
    .flatten()
    .chain(sorts.then_some(["@set", "@sortedset", "@list"]).into_iter().flatten())
}

/// Returns a sentence for people that says how weir handles a command.
pub fn summary(command: &Command) -> String {
    let text = match command.handling {
        _ if command.flags.contains(Flags::CONTAINER) && !command.arity_fits(1) => {
            "A name for its subcommands."
        }
        Handling::Forward | Handling::BetweenDatabases => "Goes to the store that has its keys.",
        Handling::Split(_) => "Split by key, and the replies are merged.",
        Handling::FanOut(FanOut::One) => "Goes to one of the stores.",
        Handling::FanOut(FanOut::Scan) => "Goes to one store after the other.",
        Handling::FanOut(FanOut::ByStore) => "Goes to every store, and the replies are listed by store.",
        Handling::FanOut(_) => "Goes to every store, and the replies are merged.",
        Handling::Local(_) => "Answered by weir itself.",
        Handling::Private(_) => "Goes to the store over a connection that its client has to itself.",
        Handling::Refused(refusal) => return format!("Not supported by weir: it {}.", refusal.reason()),
    };
    if command.admin { format!("{text} Only for tenants that are admin.") } else { text.to_owned() }
}

/// Returns all commands of weir's table, subcommands included, and those learned from stores.
fn every_command() -> impl Iterator<Item = &'static Command> + Clone {
    all().iter().chain(learned::all())
}

/// Returns all commands that weir knows, without subcommands.
fn commands() -> impl Iterator<Item = &'static Command> + Clone {
    every_command().filter(|command| !command.flags.contains(Flags::SUBCOMMAND))
}

fn subcommands(container: &str) -> impl Iterator<Item = &'static Command> + Clone {
    every_command()
        .filter(move |command| command.name.strip_prefix(container).is_some_and(|rest| rest.starts_with('|')))
}

/// Returns the subcommands of a command; none unless it is a container (such as `OBJECT`).
fn subcommands_of(command: &Command) -> impl Iterator<Item = &'static Command> + Clone {
    command.flags.contains(Flags::CONTAINER).then(|| subcommands(command.name)).into_iter().flatten()
}

fn unknown_subcommand(given: &[u8]) -> String {
    let container = super::find(b"command").expect("the table has it");
    Unrecognised::Subcommand { container, given }.to_string()
}

fn write_infos(out: &mut Vec<u8>, protocol: Protocol, names: &[&[u8]]) {
    if names.is_empty() {
        encode::array(out, commands().count());
        commands().for_each(|command| write_info(out, protocol, command));
        return;
    }
    let before = out.len();
    encode::array(out, names.len());
    for name in names {
        match lookup::find_entry(name) {
            // The caller replaces a reply that is too long by an error.
            _ if out.len() - before > DESCRIPTION_BYTES_MAX => return,
            Some(command) => write_info(out, protocol, command),
            None => encode::null(out, protocol),
        }
    }
}

fn write_info(out: &mut Vec<u8>, protocol: Protocol, command: &Command) {
    let (first, last, step) = command.keys.positions();
    encode::array(out, 10);
    encode::bulk(out, command.name.as_bytes());
    encode::integer(out, i64::from(command.arity));
    write_words(out, protocol, &command.flags.names().collect::<Vec<_>>());
    encode::integer(out, first);
    encode::integer(out, last);
    encode::integer(out, step);
    write_words(out, protocol, &categories(command).collect::<Vec<_>>());
    // Hints for clients that spread requests over a cluster: weir does that for them.
    write_words(out, protocol, &[]);
    let specs = specs::of(command);
    encode::set(out, protocol, specs.len());
    for spec in specs {
        spec.write(out, protocol);
    }
    let subcommands = subcommands_of(command);
    match subcommands.clone().count() {
        // Redis writes an empty set but an array otherwise, and clients know both.
        0 => encode::set(out, protocol, 0),
        count => encode::array(out, count),
    }
    subcommands.for_each(|subcommand| write_info(out, protocol, subcommand));
}

fn write_all_docs(out: &mut Vec<u8>, protocol: Protocol, names: &[&[u8]]) {
    let documented: Vec<&Command> = if names.is_empty() {
        commands().collect()
    } else {
        names.iter().filter_map(|name| lookup::find_entry(name)).collect()
    };
    let before = out.len();
    encode::map(out, protocol, documented.len());
    for command in documented {
        // The caller replaces a reply that is too long by an error.
        if out.len() - before > DESCRIPTION_BYTES_MAX {
            return;
        }
        write_docs(out, protocol, command);
    }
}

fn write_docs(out: &mut Vec<u8>, protocol: Protocol, command: &Command) {
    let subcommands = subcommands_of(command);
    let count = subcommands.clone().count();
    encode::bulk(out, command.name.as_bytes());
    let since = since(command.name);
    encode::map(out, protocol, 2 + usize::from(since.is_some()) + usize::from(count > 0));
    encode::bulk(out, b"summary");
    encode::bulk(out, summary(command).as_bytes());
    if let Some(version) = since {
        encode::bulk(out, b"since");
        encode::bulk(out, version.as_bytes());
    }
    encode::bulk(out, b"group");
    encode::bulk(out, command.group.name().as_bytes());
    if count > 0 {
        encode::bulk(out, b"subcommands");
        encode::map(out, protocol, count);
        subcommands.for_each(|subcommand| write_docs(out, protocol, subcommand));
    }
}

/// Maximum number of bytes of the operand of `COMMAND LIST FILTERBY`: no name of a command, category or
/// module is nearly as long. A longer one is a syntax error.
const OPERAND_BYTES_MAX: usize = 128;

fn write_list(out: &mut Vec<u8>, protocol: Protocol, filter: &[&[u8]]) {
    let listed: Vec<&Command> = match filter {
        [] => every_command().collect(),
        [filter_by, kind, operand]
            if filter_by.eq_ignore_ascii_case(b"filterby") && operand.len() <= OPERAND_BYTES_MAX =>
        {
            let pattern = operand.to_ascii_lowercase();
            match kind.to_ascii_lowercase().as_slice() {
                b"module" => Vec::new(),
                b"aclcat" => every_command().filter(|command| is_in_category(command, &pattern)).collect(),
                b"pattern" => {
                    every_command().filter(|command| matches(&pattern, command.name.as_bytes())).collect()
                }
                _ => return encode::error(out, &KeyError::Syntax.to_string()),
            }
        }
        _ => return encode::error(out, &KeyError::Syntax.to_string()),
    };
    encode::set(out, protocol, listed.len());
    for command in listed {
        encode::bulk(out, command.name.as_bytes());
    }
}

fn is_in_category(command: &Command, category: &[u8]) -> bool {
    categories(command).any(|name| name.strip_prefix('@').is_some_and(|name| name.as_bytes() == category))
}

/// True if all of `text` matches a pattern of letters, `?` and `*`, which is enough for names of commands.
fn matches(pattern: &[u8], text: &[u8]) -> bool {
    let (mut rest, mut left) = (pattern, text);
    // Position to go on from when the last star has to take one byte more.
    let mut retry: Option<(&[u8], &[u8])> = None;
    loop {
        match (rest, left) {
            ([], []) => return true,
            ([b'*', after @ ..], _) => {
                retry = left.split_first().map(|(_, others)| (rest, others));
                rest = after;
            }
            ([wanted, after @ ..], [letter, others @ ..]) if matches!(wanted, b'?') || wanted == letter => {
                (rest, left) = (after, others);
            }
            _ => match retry.take() {
                Some(earlier) => (rest, left) = earlier,
                None => return false,
            },
        }
    }
}

/// Bytes counted for each key in a reply to `COMMAND GETKEYSANDFLAGS` besides the key itself, including the
/// words for its use.
const KEY_FRAMING_BYTES: usize = 64;

fn write_keys(out: &mut Vec<u8>, arguments: &Arguments<'_>, write_key: impl Fn(&mut Vec<u8>, &[u8], Access)) {
    match keys_of(arguments) {
        Err(text) => encode::error(out, text),
        Ok(keys)
            if keys.iter().map(|(key, _)| KEY_FRAMING_BYTES + key.len()).sum::<usize>()
                > DESCRIPTION_BYTES_MAX =>
        {
            too_long(out);
        }
        Ok(keys) => {
            encode::array(out, keys.len());
            for (key, access) in keys {
                write_key(out, key, access);
            }
        }
    }
}

/// Returns the keys of the request that follows `COMMAND GETKEYS`, each with the command's use of it. The
/// error is the text of the reply.
fn keys_of<'a>(arguments: &Arguments<'a>) -> Result<Vec<(&'a [u8], Access)>, &'static str> {
    const INVALID: &str = "ERR Invalid arguments specified for command";
    const NO_KEYS: &str = "ERR The command has no key arguments";
    let request = arguments.skip(2).ok_or(INVALID)?;
    let command = recognise(&request).map_err(|unrecognised| match unrecognised {
        Unrecognised::Arity(command) if !specs::names_keys(command) => NO_KEYS,
        Unrecognised::Arity(_) => "ERR Invalid number of arguments specified for command",
        Unrecognised::Command(_) | Unrecognised::Subcommand { .. } => "ERR Invalid command specified",
    })?;
    if !specs::names_keys(command) {
        return Err(NO_KEYS);
    }
    let mut keys = Vec::new();
    let named = specs::for_each_access(command, &request, &mut |index, access| {
        keys.push((request.at(index), access));
    });
    match named {
        Ok(()) => Ok(keys),
        // As in Redis, a script whose number of keys is wrong has no keys.
        Err(_) if command.flags.contains(Flags::NO_MANDATORY_KEYS) => Ok(Vec::new()),
        Err(_) => Err(INVALID),
    }
}

#[cfg(test)]
mod tests {
    use super::super::find;
    use super::super::tests::with_request;
    use super::*;
    use crate::protocol::ReplyScanner;

    /// `COMMAND INFO get` of redis-server 7.0.15 after `HELLO 3`, line ends shown as spaces.
    const INFO_GET: &str = "*1 *10 $3 get :2 ~2 +readonly +fast :1 :1 :1 ~3 +@read +@string +@fast ~0 ~1 %3 $5 flags \
        ~2 +RO +access $12 begin_search %2 $4 type $5 index $4 spec %1 $5 index :1 $9 find_keys %2 $4 type $5 range \
        $4 spec %3 $7 lastkey :0 $7 keystep :1 $5 limit :0 ~0 ";

    #[test]
    fn info_has_the_form_of_redis() {
        // Sets have no order, so they are compared sorted.
        let sorted = |text: &str| {
            let mut words: Vec<_> = text.split_whitespace().map(str::to_owned).collect();
            words.sort_unstable();
            words
        };
        assert_eq!(sorted(&told(Protocol::Resp3, "COMMAND INFO get")), sorted(INFO_GET));
    }

    #[test]
    fn info_of_what_is_unknown_is_null() {
        assert_eq!(told(Protocol::Resp2, "COMMAND INFO nope"), "*1 $-1 ");
        assert_eq!(told(Protocol::Resp3, "command info nope"), "*1 _ ");
        assert!(told(Protocol::Resp2, "COMMAND INFO config|GET").starts_with("*1 *10 $10 config|get :-3 "));
    }

    #[test]
    fn all_replies_are_whole() {
        for request in
            ["COMMAND", "COMMAND DOCS", "COMMAND LIST", "COMMAND INFO get object xread migrate nope"]
        {
            for protocol in [Protocol::Resp2, Protocol::Resp3] {
                let reply = written(protocol, request);
                let scanned = ReplyScanner::default().scan(&reply).expect("well formed").expect("whole");
                assert_eq!(scanned.end, reply.len(), "{request}");
            }
        }
    }

    #[test]
    fn docs_say_what_weir_does() {
        let blpop = told(Protocol::Resp3, "COMMAND DOCS blpop");
        assert!(blpop.starts_with("%1 $5 blpop %3 $7 summary "), "{blpop}");
        assert!(blpop.contains("$5 since $5 2.0.0 "), "{blpop}");
        assert!(blpop.contains("over a connection that its client has to itself"), "{blpop}");
        let migrate = told(Protocol::Resp3, "COMMAND DOCS migrate");
        assert!(migrate.contains("Not supported by weir: it moves keys"), "{migrate}");
        assert_eq!(told(Protocol::Resp2, "COMMAND DOCS nope"), "*0 ");
        assert!(told(Protocol::Resp2, "COMMAND DOCS flushall").contains("Only for tenants that are admin."));
    }

    #[test]
    fn list_filters() {
        assert_eq!(told(Protocol::Resp2, "COMMAND LIST FILTERBY PATTERN geoh*"), "*1 $7 geohash ");
        assert_eq!(told(Protocol::Resp3, "COMMAND LIST filterby pattern GE?"), "~1 $3 get ");
        assert_eq!(told(Protocol::Resp2, "COMMAND LIST FILTERBY MODULE json"), "*0 ");
        assert!(told(Protocol::Resp2, "COMMAND LIST FILTERBY ACLCAT geo").starts_with("*10 "));
        assert_eq!(told(Protocol::Resp2, "COMMAND LIST FILTERBY"), "-ERR syntax error ");
        assert_eq!(told(Protocol::Resp2, "COMMAND LIST FILTERBY COLOUR red"), "-ERR syntax error ");
    }

    #[test]
    fn an_answer_is_bounded_whatever_is_named() {
        let repeated =
            |words: &str, name: &str, times: usize| format!("{words}{}", format!(" {name}").repeat(times));
        for request in [
            repeated("COMMAND DOCS", "client", 40_000),
            repeated("COMMAND INFO", "client", 40_000),
            repeated("COMMAND INFO", "xgroup", COMMANDS),
            repeated("COMMAND LIST", "get", 40_000),
            repeated("COMMAND GETKEYSANDFLAGS DEL", "k", 100_000),
            format!("COMMAND LIST FILTERBY PATTERN {}", "*".repeat(1_000_000)),
        ] {
            let reply = written(Protocol::Resp3, &request);
            assert!(reply.len() <= DESCRIPTION_BYTES_MAX && reply.capacity() < 8 * DESCRIPTION_BYTES_MAX);
        }
        assert!(written(Protocol::Resp2, "COMMAND DOCS").len() * 4 < DESCRIPTION_BYTES_MAX);
        assert!(told(Protocol::Resp2, &repeated("COMMAND DOCS", "get", 40_000)).starts_with("-ERR at most "));
    }

    #[test]
    fn no_further_name_is_looked_up_once_a_reply_is_too_long() {
        let names = vec![b"client".as_slice(); 10_000];
        for write in [write_infos, write_all_docs] {
            let mut out = Vec::new();
            write(&mut out, Protocol::Resp3, &names);
            assert!((DESCRIPTION_BYTES_MAX..2 * DESCRIPTION_BYTES_MAX).contains(&out.len()));
        }
    }

    #[test]
    fn many_stars_stay_cheap() {
        assert!(matches(b"*get*k*s*", b"command|getkeys"));
        assert!(!matches(&b"*a".repeat(500), &[b'a'; 400]));
    }

    #[test]
    fn keys_and_what_happens_to_them() {
        let cases = [
            ("COMMAND GETKEYS MSET a 1 b 2", "*2 $1 a $1 b "),
            ("COMMAND GETKEYS MSET a 1 b", "*2 $1 a $1 b "),
            ("COMMAND GETKEYS MSET a", "-ERR Invalid number of arguments specified for command "),
            ("COMMAND GETKEYS PFMERGE a", "-ERR Invalid arguments specified for command "),
            ("COMMAND GETKEYS SSUBSCRIBE a", "-ERR The command has no key arguments "),
            ("COMMAND GETKEYS SPUBLISH a", "-ERR The command has no key arguments "),
            ("COMMAND GETKEYS EVAL code 0", "*0 "),
            ("COMMAND GETKEYS EVAL code x", "*0 "),
            ("COMMAND GETKEYS FCALL f 2 a", "*0 "),
            ("COMMAND GETKEYS PING", "-ERR The command has no key arguments "),
            ("COMMAND GETKEYS ECHO", "-ERR The command has no key arguments "),
            ("COMMAND GETKEYS nope a", "-ERR Invalid command specified "),
            ("COMMAND GETKEYS OBJECT nope a", "-ERR Invalid command specified "),
            ("COMMAND GETKEYS GET", "-ERR Invalid number of arguments specified for command "),
            ("COMMAND GETKEYS ZMPOP 0 a MIN", "-ERR Invalid arguments specified for command "),
            ("COMMAND GETKEYSANDFLAGS GET a", "*1 *2 $1 a *2 +RO +access "),
            ("COMMAND GETKEYSANDFLAGS BITFIELD a OVERFLOW SAT GET u8 0", "*1 *2 $1 a *2 +RO +access "),
            ("COMMAND GETKEYSANDFLAGS BITFIELD a GET u8", "*1 *2 $1 a *3 +RW +access +update "),
            ("COMMAND GETKEYSANDFLAGS BITFIELD a SET u8 0 1", "*1 *2 $1 a *3 +RW +access +update "),
            ("COMMAND GETKEYSANDFLAGS MIGRATE h 1 a 0 5", "*1 *2 $1 a *3 +RW +access +delete "),
            ("COMMAND GETKEYSANDFLAGS RESTORE-ASKING a 0 x", "*1 *2 $1 a *2 +OW +update "),
            (
                "COMMAND GETKEYSANDFLAGS ZUNIONSTORE d 2 a b",
                "*3 *2 $1 d *2 +OW +update *2 $1 a *2 +RO +access *2 $1 b *2 +RO +access ",
            ),
            ("COMMAND GETKEYSANDFLAGS SORT a STORE d", "*2 *2 $1 a *2 +RO +access *2 $1 d *2 +OW +update "),
        ];
        for (request, reply) in cases {
            assert_eq!(told(Protocol::Resp2, request), reply, "{request}");
        }
    }

    #[test]
    fn help_lists_the_subcommands() {
        let command = lookup::find_entry(b"object|help").expect("in the table");
        let mut out = Vec::new();
        help(&mut out, command);
        assert_eq!(
            shown(&out),
            "*6 +OBJECT <subcommand> [<arg> [value] [opt] ...]. Subcommands are: +ENCODING +FREQ +HELP +IDLETIME \
             +REFCOUNT "
        );
    }

    #[test]
    fn every_container_has_a_help() {
        for command in all().iter().filter(|command| command.flags.contains(Flags::CONTAINER)) {
            assert!(subcommands(command.name).any(|each| each.name.ends_with("|help")), "{}", command.name);
            assert!(find(command.name.as_bytes()).is_some());
        }
    }

    fn written(protocol: Protocol, request: &str) -> Vec<u8> {
        let mut out = Vec::new();
        with_request(request, |arguments| answer(&mut out, protocol, arguments));
        out
    }

    fn told(protocol: Protocol, request: &str) -> String {
        shown(&written(protocol, request))
    }

    /// Returns a reply as text, with a space in place of each line end.
    fn shown(out: &[u8]) -> String {
        String::from_utf8_lossy(out).replace("\r\n", " ")
    }
}
