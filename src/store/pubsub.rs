//! Commands on channels: SUBSCRIBE, PUBLISH, PUBSUB and their variants.

use bytes::Bytes;

use super::call::{Call, Command, Done, Effect, command};
use super::channels::Space;
use super::effort::{Effort, FIND, INSERT};
use super::glob;
use super::post::{Delivery, Post};
use super::refusal::{Refusal, quoted};
use super::reply::Reply;
use crate::protocol::{Protocol, encode};

pub(super) const COMMANDS: &[Command] = &[
    command("subscribe", -2, Effect::Read, subscribe),
    command("psubscribe", -2, Effect::Read, psubscribe),
    command("ssubscribe", -2, Effect::Read, ssubscribe),
    command("unsubscribe", -1, Effect::Read, unsubscribe),
    command("punsubscribe", -1, Effect::Read, punsubscribe),
    command("sunsubscribe", -1, Effect::Read, sunsubscribe),
    command("publish", 3, Effect::Read, publish),
    command("spublish", 3, Effect::Read, spublish),
    command("pubsub", -2, Effect::Read, pubsub),
];

/// The names of the commands that a connection with RESP2 may send while it is subscribed.
pub(super) const FOR_SUBSCRIBERS: &[&str] = &[
    "ping",
    "subscribe",
    "psubscribe",
    "ssubscribe",
    "unsubscribe",
    "punsubscribe",
    "sunsubscribe",
    "quit",
    "reset",
];

/// Returns the refusal of a command (`name`, with its `subcommand` if it has one) that a connection with
/// RESP2 may not send while it is subscribed.
pub(super) fn refusal_to_subscriber(name: &str, subcommand: Option<&[u8]>) -> Refusal {
    const CONTAINERS: &[&str] =
        &["acl", "client", "command", "config", "memory", "object", "pubsub", "xgroup", "xinfo"];
    let subcommand = subcommand.filter(|_| CONTAINERS.contains(&name));
    let subcommand =
        subcommand.map_or(String::new(), |word| format!("|{}", quoted(word).to_ascii_lowercase()));
    Refusal::Quoting(format!(
        "ERR Can't execute '{name}{subcommand}': only (P|S)SUBSCRIBE / (P|S)UNSUBSCRIBE / PING / QUIT / RESET are \
         allowed in this context"
    ))
}

fn subscribe(call: &mut Call<'_>) -> Done {
    add(call, Space::Channels, "subscribe")
}

fn psubscribe(call: &mut Call<'_>) -> Done {
    add(call, Space::Patterns, "psubscribe")
}

fn ssubscribe(call: &mut Call<'_>) -> Done {
    if !call.may_wait {
        return Err(Refusal::Words("ERR SSUBSCRIBE isn't allowed for a DENY BLOCKING client"));
    }
    add(call, Space::Shards, "ssubscribe")
}

fn unsubscribe(call: &mut Call<'_>) -> Done {
    remove(call, Space::Channels, "unsubscribe")
}

fn punsubscribe(call: &mut Call<'_>) -> Done {
    remove(call, Space::Patterns, "punsubscribe")
}

fn sunsubscribe(call: &mut Call<'_>) -> Done {
    remove(call, Space::Shards, "sunsubscribe")
}

/// Returns the number of the connection's subscriptions that the acknowledgement of a (un)subscription
/// states: channels and patterns together, or sharded channels alone, by the kind (`space`) of the name.
fn told_count(call: &Call<'_>, space: Space) -> usize {
    let count = |space| call.post.channels.count_of(call.session.id, space);
    match space {
        Space::Channels | Space::Patterns => count(Space::Channels) + count(Space::Patterns),
        Space::Shards => count(Space::Shards),
    }
}

fn update_session(call: &mut Call<'_>) {
    let spaces = [Space::Channels, Space::Patterns, Space::Shards];
    let count = |space| call.post.channels.count_of(call.session.id, space);
    call.session.subscribed = spaces.into_iter().any(|space| count(space) > 0);
}

fn acknowledge(call: &mut Call<'_>, space: Space, word: &str, name: Option<&[u8]>) {
    let (count, protocol) = (told_count(call, space), call.session.protocol);
    call.out.push(protocol, 3);
    call.out.bulk(word.as_bytes());
    match name {
        Some(name) => call.out.bulk(name),
        None => call.out.null(protocol),
    }
    call.out.integer(count as i64);
}

fn add(call: &mut Call<'_>, space: Space, word: &str) -> Done {
    call.effort.charge(call.count() as u64 * INSERT);
    let (session, protocol) = (call.session.id, call.session.protocol);
    let (mut done, mut begun) = (Ok(()), Vec::new());
    for name in call.rest(1) {
        match call.post.channels.subscribe(session, protocol, space, name) {
            Ok(is_new) => {
                begun.extend(is_new.then_some(name));
                acknowledge(call, space, word, Some(name));
            }
            Err(refusal) => {
                done = Err(refusal);
                break;
            }
        }
    }
    let done = done.and_then(|()| call.out.check());
    if done.is_err() {
        // The error replaces all acknowledgements, so nothing of the request may stay.
        begun.into_iter().for_each(|name| call.post.channels.unsubscribe(session, space, name));
    }
    update_session(call);
    done
}

fn remove(call: &mut Call<'_>, space: Space, word: &str) -> Done {
    let session = call.session.id;
    let names: Vec<Box<[u8]>> = match call.count() {
        1 => call.post.channels.names_of(session, space),
        _ => call.rest(1).map(Box::from).collect(),
    };
    call.effort.charge(names.len() as u64 * INSERT);
    if names.is_empty() {
        acknowledge(call, space, word, None);
    }
    for name in names {
        call.post.channels.unsubscribe(session, space, &name);
        acknowledge(call, space, word, Some(&name));
    }
    update_session(call);
    Ok(())
}

fn publish(call: &mut Call<'_>) -> Done {
    let (channel, message) = (call.at(1), call.at(2));
    let patterns = matching(call.post, call.effort, channel)?;
    let bytes = message_bytes(call.post, &patterns, channel, message);
    call.post.spend(bytes)?;
    let receivers = send_to_all(call.post, Some(call.session.id), call.effort, &patterns, channel, message)?;
    call.number(receivers)
}

/// Returns the subscribed patterns that a channel's name matches. An error if the work would exceed what is
/// left of `effort`.
fn matching(post: &Post, effort: &Effort, channel: &[u8]) -> Result<Vec<Box<[u8]>>, Refusal> {
    effort.spend(post.channels.names(Space::Patterns).len(), FIND)?;
    let mut patterns = Vec::new();
    for pattern in post.channels.names(Space::Patterns) {
        if glob::matches(pattern, channel, effort)? {
            patterns.push(pattern.into());
        }
    }
    Ok(patterns)
}

/// Returns the bytes that publishing `message` on `channel` counts for, where `patterns` are the patterns
/// that the channel's name matches: those of channel, pattern and text, without RESP framing. They count once
/// if the channel has subscribers, and once for each pattern, however many subscribers each has.
fn message_bytes(post: &Post, patterns: &[Box<[u8]>], channel: &[u8], message: &[u8]) -> usize {
    let bytes = |pattern: &[u8]| pattern.len() + channel.len() + message.len();
    let channel_bytes = post.channels.number(Space::Channels, channel).min(1) * bytes(b"");
    channel_bytes + patterns.iter().map(|pattern| bytes(pattern)).sum::<usize>()
}

/// Sends a message to all connections that are subscribed to a channel or to one of `patterns`, which are
/// those that its name matches. Returns the number of messages sent. `actor` is the connection whose request
/// is being carried out. An error if the work would exceed what is left of `effort`; some connections may
/// have been sent the message then.
fn send_to_all(
    post: &mut Post,
    actor: Option<u64>,
    effort: &Effort,
    patterns: &[Box<[u8]>],
    channel: &[u8],
    message: &[u8],
) -> Result<usize, Refusal> {
    let words: &[&[u8]] = &[b"message", channel, message];
    let mut receivers = send(post, actor, effort, (Space::Channels, channel), words)?;
    for pattern in patterns {
        let words: &[&[u8]] = &[b"pmessage", pattern, channel, message];
        receivers += send(post, actor, effort, (Space::Patterns, pattern), words)?;
    }
    Ok(receivers)
}

/// Sends a message about a keyspace event to the subscribers of a channel and of the patterns that it
/// matches, if there are any. `actor` is the connection whose request caused the event, if any. An error, and
/// nothing sent, if the request has caused too many bytes of events. An error also if the work would exceed
/// what is left of `effort`; some subscribers may have been sent the message then.
pub(super) fn publish_event(
    post: &mut Post,
    actor: Option<u64>,
    effort: &Effort,
    channel: &[u8],
    message: &[u8],
) -> Done {
    const DELIVERY_BYTES: usize = 64;
    let patterns = matching(post, effort, channel)?;
    let number = |space, name: &[u8]| post.channels.number(space, name);
    let receivers = number(Space::Channels, channel)
        + patterns.iter().map(|pattern| number(Space::Patterns, pattern)).sum::<usize>();
    if receivers == 0 {
        return Ok(());
    }
    let bytes = message_bytes(post, &patterns, channel, message) + receivers * DELIVERY_BYTES;
    if !post.spend_on_event(bytes) {
        return Err(Refusal::Words("ERR the request would cause too many events"));
    }
    send_to_all(post, actor, effort, &patterns, channel, message).map(|_| ())
}

fn spublish(call: &mut Call<'_>) -> Done {
    let (channel, message) = (call.at(1), call.at(2));
    call.post.spend(channel.len() + message.len())?;
    let words: &[&[u8]] = &[b"smessage", channel, message];
    let receivers = send(call.post, Some(call.session.id), call.effort, (Space::Shards, channel), words)?;
    call.number(receivers)
}

/// Sends a message of the strings `words` to all connections that are subscribed to a channel, sharded
/// channel or pattern (`space` says which of them `name` is), and returns their number. The message for
/// `actor`, the connection whose request is being carried out, is kept apart, to be sent before its reply. An
/// error if the work would exceed what is left of `effort`.
fn send(
    post: &mut Post,
    actor: Option<u64>,
    effort: &Effort,
    (space, name): (Space, &[u8]),
    words: &[&[u8]],
) -> Result<usize, Refusal> {
    let receivers: Vec<(u64, Protocol)> = post.channels.subscribers(space, name).collect();
    effort.spend(receivers.len(), FIND)?;
    let mut spelled: [Option<Bytes>; 2] = [None, None];
    for (session, protocol) in &receivers {
        let bytes = spelled[usize::from(*protocol == Protocol::Resp3)].get_or_insert_with(|| {
            let mut out = Vec::new();
            encode::push(&mut out, *protocol, words.len());
            words.iter().for_each(|word| encode::bulk(&mut out, word));
            out.into()
        });
        effort.charge_bytes(bytes.len());
        if Some(*session) == actor {
            post.own.extend_from_slice(bytes);
        } else {
            let bytes = bytes.clone();
            post.deliver(Delivery { session: *session, bytes, ends_wait: false });
        }
    }
    Ok(receivers.len())
}

fn pubsub(call: &mut Call<'_>) -> Done {
    let count = call.count();
    if call.is(1, "channels") {
        return list(call, Space::Channels);
    }
    if call.is(1, "shardchannels") {
        return list(call, Space::Shards);
    }
    if call.is(1, "numsub") {
        return numbers(call, Space::Channels);
    }
    if call.is(1, "shardnumsub") {
        return numbers(call, Space::Shards);
    }
    if call.is(1, "numpat") {
        if count != 2 {
            return Err(Refusal::WrongArity("pubsub|numpat"));
        }
        let patterns = call.post.channels.names(Space::Patterns).len();
        return call.number(patterns);
    }
    Err(call.unknown_subcommand())
}

fn list(call: &mut Call<'_>, space: Space) -> Done {
    let pattern = match call.count() {
        2 => None,
        3 => Some(call.at(2)),
        _ => return Err(call.wrong_subcommand()),
    };
    let names = call.post.channels.names(space);
    call.effort.spend(names.len(), FIND)?;
    let mut listed = 0;
    for name in names {
        let matches = match pattern {
            Some(pattern) => glob::matches(pattern, name, call.effort)?,
            None => true,
        };
        if matches {
            call.out.bulk(name);
            listed += 1;
        }
    }
    call.out.insert(0, |out: &mut Reply<'_>| out.array(listed));
    Ok(())
}

fn numbers(call: &mut Call<'_>, space: Space) -> Done {
    let names = call.rest(2);
    call.effort.spend(names.len(), FIND)?;
    call.out.array(2 * names.len());
    for name in names {
        let number = call.post.channels.number(space, name);
        call.out.bulk(name);
        call.out.integer(number as i64);
    }
    Ok(())
}
