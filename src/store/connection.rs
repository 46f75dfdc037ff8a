//! Commands about the connection itself: HELLO, AUTH, CLIENT, SELECT, QUIT and so on. The store has one user,
//! `default`, who needs no password.

use super::call::{Call, Command, Done, Effect, command};
use super::channels::Space;
use super::numbers;
use super::refusal::Refusal;
use super::refusal::quoted;
use super::session::Disposition;
use super::session::Session;
use crate::protocol::Protocol;

/// The Redis version that clients are told. Some choose by it which commands they send when they connect.
pub(super) const REDIS_VERSION: &str = "7.2.4";

/// Maximum number of bytes of a client's name or library name, since these are stored as long as the
/// connection lasts. A longer one is refused.
const NAME_BYTES_MAX: usize = 1024;

/// The address that is shown for every client, since the engine does not know the real one.
pub(super) const ADDRESS: &str = "127.0.0.1:0";

pub(super) const COMMANDS: &[Command] = &[
    command("ping", -1, Effect::Read, ping),
    command("echo", 2, Effect::Read, echo),
    command("auth", -2, Effect::Read, auth),
    command("hello", -1, Effect::Read, hello),
    command("select", 2, Effect::Read, select),
    command("client", -2, Effect::Read, client),
    command("reset", 1, Effect::Control, reset),
    command("quit", -1, Effect::Control, quit),
];

fn ping(call: &mut Call<'_>) -> Done {
    if call.session.subscribed && call.protocol() == Protocol::Resp2 && call.count() <= 2 {
        call.out.array(2);
        call.out.bulk(b"pong");
        return call.bulk(call.arguments.get(1).unwrap_or_default());
    }
    match call.count() {
        1 => call.out.simple("PONG"),
        2 => return call.bulk(call.at(1)),
        _ => return Err(Refusal::WrongArity("ping")),
    }
    Ok(())
}

fn echo(call: &mut Call<'_>) -> Done {
    call.bulk(call.at(1))
}

fn auth(call: &mut Call<'_>) -> Done {
    match call.count() {
        2 => Err(Refusal::Words(
            "ERR AUTH <password> called without any password configured for the default user. Are you sure \
             your configuration is correct?",
        )),
        3 => {
            authenticate(call.at(1))?;
            call.ok()
        }
        _ => Err(Refusal::Syntax),
    }
}

fn authenticate(user: &[u8]) -> Result<(), Refusal> {
    if user != b"default" {
        return Err(Refusal::Words("WRONGPASS invalid username-password pair or user is disabled."));
    }
    Ok(())
}

fn hello(call: &mut Call<'_>) -> Done {
    let mut protocol = call.protocol();
    if let Some(version) = call.arguments.get(1) {
        protocol = match numbers::integer(version) {
            Some(2) => Protocol::Resp2,
            Some(3) => Protocol::Resp3,
            Some(_) => return Err(Refusal::Words("NOPROTO unsupported protocol version")),
            None => {
                return Err(Refusal::Words("ERR Protocol version is not an integer or out of range"));
            }
        };
    }
    let mut name = None;
    let mut index = 2;
    while index < call.count() {
        if call.is(index, "auth") && index + 2 < call.count() {
            authenticate(call.at(index + 1))?;
            index += 3;
        } else if call.is(index, "setname") && index + 1 < call.count() {
            name = Some(checked_name(call.at(index + 1))?);
            index += 2;
        } else {
            let option = quoted(call.at(index));
            return Err(Refusal::Quoting(format!("ERR Syntax error in HELLO option '{option}'")));
        }
    }
    if let Some(name) = name {
        call.session.name = name;
    }
    call.session.protocol = protocol;
    call.post.channels.set_protocol(call.session.id, protocol);
    call.keyspace.interest.tracking.set_protocol(call.session.id, protocol);
    greet(call);
    Ok(())
}

fn greet(call: &mut Call<'_>) {
    let (protocol, id) = (call.protocol(), call.session.id);
    let out = &mut call.out;
    out.map(protocol, 7);
    for (field, text) in [("server", "redis"), ("version", REDIS_VERSION)] {
        out.bulk(field.as_bytes());
        out.bulk(text.as_bytes());
    }
    out.bulk(b"proto");
    out.integer(if protocol == Protocol::Resp3 { 3 } else { 2 });
    out.bulk(b"id");
    out.integer(id as i64);
    for (field, text) in [("mode", "standalone"), ("role", "master")] {
        out.bulk(field.as_bytes());
        out.bulk(text.as_bytes());
    }
    out.bulk(b"modules");
    out.array(0);
}

fn select(call: &mut Call<'_>) -> Done {
    let database = super::keys::database_at(call, 1)?;
    call.session.database = database;
    call.keyspace.select(database);
    call.ok()
}

fn client(call: &mut Call<'_>) -> Done {
    let subcommand = String::from_utf8_lossy(call.at(1)).to_ascii_lowercase();
    let (fits, run): (bool, fn(&mut Call<'_>) -> Done) = match subcommand.as_str() {
        "id" => (call.count() == 2, client_id),
        "kill" => (call.count() >= 4 && call.count().is_multiple_of(2), client_kill),
        "info" => (call.count() == 2, client_info),
        "list" => (true, client_info),
        "getname" => (call.count() == 2, client_getname),
        "setname" => (call.count() == 3, client_setname),
        "setinfo" => (call.count() == 4, client_setinfo),
        "unblock" => (call.count() >= 3, super::blocking::client_unblock),
        "tracking" => (call.count() >= 3, super::tracking::client_tracking),
        "caching" => (call.count() == 3, super::tracking::client_caching),
        "getredir" => (call.count() == 2, super::tracking::client_getredir),
        "trackinginfo" => (call.count() == 2, super::tracking::client_trackinginfo),
        "no-evict" | "no-touch" => (call.count() == 3, client_switch),
        _ => return Err(call.unknown_subcommand()),
    };
    if !fits {
        return Err(Refusal::Quoting(format!(
            "ERR wrong number of arguments for 'client|{subcommand}' command"
        )));
    }
    run(call)
}

fn client_id(call: &mut Call<'_>) -> Done {
    call.integer(call.session.id as i64)
}

fn client_info(call: &mut Call<'_>) -> Done {
    let Session { id, name, library_name, library_version, protocol, database, .. } = &*call.session;
    let count = |space| call.post.channels.count_of(*id, space);
    let [sub, psub, ssub] = [Space::Channels, Space::Patterns, Space::Shards].map(count);
    let flags = if call.session.subscribed { "P" } else { "N" };
    let subcommand = String::from_utf8_lossy(call.at(1)).to_ascii_lowercase();
    let line = format!(
        "id={id} addr={ADDRESS} laddr={ADDRESS} fd=0 name={} age=0 idle=0 flags={flags} db={database} sub={sub} psub={psub} ssub={ssub} \
         multi=-1 qbuf=0 qbuf-free=0 argv-mem=0 multi-mem=0 rbs=0 rbp=0 obl=0 oll=0 omem=0 tot-mem=0 events=r \
         cmd=client|{subcommand} user=default redir=-1 resp={} lib-name={} lib-ver={}\n",
        String::from_utf8_lossy(name),
        if *protocol == Protocol::Resp3 { 3 } else { 2 },
        String::from_utf8_lossy(library_name),
        String::from_utf8_lossy(library_version),
    );
    call.out.verbatim(*protocol, &line);
    Ok(())
}

/// Carries out `CLIENT KILL ID id [ADDR address]`. The engine does not know whether the connection exists, so
/// it always replies 1, except for the caller's own id: the reply is 0 then, and nothing is closed.
fn client_kill(call: &mut Call<'_>) -> Done {
    let mut id = None;
    for index in (2..call.count()).step_by(2) {
        if call.is(index, "id") {
            id = Some(call.integer_at(index + 1)?);
        } else if !(call.is(index, "addr") && call.at(index + 1) == ADDRESS.as_bytes()) {
            return Err(Refusal::Syntax);
        }
    }
    let id = id.and_then(|id| u64::try_from(id).ok()).ok_or(Refusal::Syntax)?;
    if id == call.session.id {
        return call.integer(0);
    }
    call.tally.killed.push(id);
    call.integer(1)
}

fn client_getname(call: &mut Call<'_>) -> Done {
    let name = Some(call.session.name.as_slice()).filter(|name| !name.is_empty());
    match name {
        Some(name) => call.out.bulk(name),
        None => call.out.null(call.session.protocol),
    }
    Ok(())
}

fn client_setname(call: &mut Call<'_>) -> Done {
    call.session.name = checked_name(call.at(2))?;
    call.ok()
}

/// Checks a client name and returns it. Names are shown in lines of words, so a name with a space or a
/// control character is refused, and so is one of more than 1024 bytes.
fn checked_name(name: &[u8]) -> Result<Vec<u8>, Refusal> {
    if !name.iter().all(u8::is_ascii_graphic) {
        return Err(Refusal::Words(
            "ERR Client names cannot contain spaces, newlines or special characters.",
        ));
    }
    if name.len() > NAME_BYTES_MAX {
        return Err(Refusal::Words("ERR Client names cannot be longer than 1024 bytes."));
    }
    Ok(name.to_vec())
}

fn client_setinfo(call: &mut Call<'_>) -> Done {
    let value = call.at(3);
    if !value.iter().all(u8::is_ascii_graphic) {
        return Err(Refusal::Quoting(format!(
            "ERR {} cannot contain spaces, newlines or special characters.",
            quoted(call.at(2)).to_ascii_lowercase()
        )));
    }
    if value.len() > NAME_BYTES_MAX {
        return Err(Refusal::Words("ERR Client names cannot be longer than 1024 bytes."));
    }
    if call.is(2, "lib-name") {
        call.session.library_name = value.to_vec();
    } else if call.is(2, "lib-ver") {
        call.session.library_version = value.to_vec();
    } else {
        let option = quoted(call.at(2));
        return Err(Refusal::Quoting(format!("ERR Unrecognized option '{option}'")));
    }
    call.ok()
}

/// Carries out CLIENT NO-EVICT and CLIENT NO-TOUCH, which have no effect, since nothing is ever evicted here.
fn client_switch(call: &mut Call<'_>) -> Done {
    if call.is(2, "on") || call.is(2, "off") { call.ok() } else { Err(Refusal::Syntax) }
}

fn reset(call: &mut Call<'_>) -> Done {
    call.keyspace.interest.forget(call.session.id);
    call.post.channels.forget(call.session.id);
    *call.session = Session::new(call.session.id);
    call.out.simple("RESET");
    Ok(())
}

fn quit(call: &mut Call<'_>) -> Done {
    call.disposition = Disposition::Close;
    call.ok()
}

#[cfg(test)]
mod tests {
    use crate::store::bench::Bench;

    #[test]
    fn a_client_shakes_hands() {
        Bench::new().talk(&[
            ("PING", "+PONG|"),
            ("HELLO 4", "-NOPROTO unsupported protocol version|"),
            (
                "HELLO 2 SETNAME a",
                "*14|$6|server|$5|redis|$7|version|$5|7.2.4|$5|proto|:2|$2|id|:1|$4|mode|\
              $10|standalone|$4|role|$6|master|$7|modules|*0|",
            ),
            ("CLIENT GETNAME", "$1|a|"),
            (
                "HELLO 3 AUTH default any",
                "%7|$6|server|$5|redis|$7|version|$5|7.2.4|$5|proto|:3|$2|id|:1|\
              $4|mode|$10|standalone|$4|role|$6|master|$7|modules|*0|",
            ),
            ("GET nothing", "_|"),
            ("CLIENT SETINFO LIB-NAME x", "+OK|"),
            ("CLIENT KILL ID 1", ":0|"),
            ("CLIENT KILL ID 7 ADDR 127.0.0.1:0", ":1|"),
            ("CLIENT KILL ID 7 ADDR 127.0.0.1:1", "-ERR syntax error|"),
            ("CLIENT KILL ADDR 127.0.0.1:0", "-ERR syntax error|"),
            ("SELECT 16", "-ERR DB index is out of range|"),
            ("CONFIG GET save appendonl?", "%2|$10|appendonly|$2|no|$4|save|$0||"),
            ("AUTH other x", "-WRONGPASS invalid username-password pair or user is disabled.|"),
            ("RESET", "+RESET|"),
            ("GET nothing", "$-1|"),
            ("CLIENT GETNAME", "$-1|"),
        ]);
    }
}
