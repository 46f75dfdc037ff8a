//! Tests of CLIENT TRACKING: stores track keys for clients.

use super::*;
use crate::shard::clients::client_filter::ClientFilter;
use crate::shard::filter_board::FilterKind;

fn tracking(backends: u16) -> (Rig, usize) {
    tracking_with(backends, &[])
}

/// Returns a test rig (shards with scripted stores and clients) of two cores in front of `backends` stores, and a
/// client of the first core that tracks keys (`CLIENT TRACKING`) with these options.
fn tracking_with(backends: u16, options: &[&str]) -> (Rig, usize) {
    tracking_under(None, backends, options)
}

/// Returns what [`tracking_with`] returns, with these quotas (the text of a quota file) in force from the beginning.
fn tracking_under(terms: Option<&str>, backends: u16, options: &[&str]) -> (Rig, usize) {
    let mut rig = Rig::with(2, backends, |settings| {
        settings.private_links_max = 20;
        settings.overload.shed = Mode::On;
    });
    if let Some(terms) = terms {
        rig.put_in_force(terms);
    }
    let client = rig.client(0);
    let words = [&["CLIENT", "TRACKING", "ON"], options].concat();
    rig.send(client, &[&["HELLO", "3"], &words]);
    rig.told(client);
    greet(&mut rig);
    for _ in 1..backends {
        rig.answer_first("TRACKING", "+OK\r\n");
        assert_eq!(rig.told(client), "", "not all stores have confirmed it");
    }
    rig.answer_first("TRACKING", "+OK\r\n");
    assert_eq!(rig.told(client), "+OK\r\n");
    (rig, client)
}

/// Answers the greetings (first requests: `HELLO`, `CLIENT ID`) of all private links (connections that one
/// client has to itself) that were opened.
pub(super) fn greet(rig: &mut Rig) {
    for (word, reply) in [("HELLO", "%0\r\n"), ("\r\nID\r\n", ":7\r\n")] {
        while rig.at_stores.iter().any(|sent| sent.frame.contains(word)) {
            rig.answer_first(word, reply);
        }
    }
}

fn links(rig: &Rig) -> (usize, usize) {
    let figures = rig.shards[0].private_links();
    (figures.tracking, figures.idle)
}

const CHANGED: &str = ">2\r\n$10\r\ninvalidate\r\n*1\r\n$1\r\nk\r\n";

#[test]
fn requests_about_keys_go_over_the_links_on_which_they_are_tracked() {
    let (mut rig, client) = tracking(2);
    // The other key's home is the other core.
    let [here, other] = [rig.key(0, 0), rig.key(1, 1)];
    rig.send(client, &[&["GET", &here], &["STRLEN", &here], &["GET", &other]]);
    let first = rig.at_stores[0].clone();
    assert_eq!(rig.at_stores.len(), 1, "one at a time, so that a message is not told before an older reply");
    rig.bytes(&first, format!("$1\r\n1\r\n{CHANGED}").as_bytes());
    rig.at_stores.remove(0);
    assert_eq!(rig.told(client), format!("$1\r\n1\r\n{CHANGED}"));
    assert_eq!(
        (rig.at_stores[0].link, rig.at_stores[0].shard),
        (first.link, 0),
        "wherever the key's home is"
    );
    rig.answer_next("$1\r\n2\r\n");
    assert_ne!(rig.at_stores[0].link, first.link, "another store");
    rig.answer_next("$1\r\n3\r\n");
    rig.send(
        client,
        &[&["MGET", &here, &here], &["MGET", &here, &other], &["MULTI"], &["GET", &here], &["EXEC"]],
    );
    assert_eq!(rig.at_stores[0].link, first.link);
    rig.answer_first("MGET", "*2\r\n$1\r\n1\r\n$1\r\n2\r\n");
    let told = rig.told(client);
    assert!(told.contains("-CROSSSLOT "), "a part that nobody tracks would be kept for ever: {told}");
    assert!(rig.at_stores.iter().all(|sent| sent.link == first.link));
    for reply in ["+OK\r\n", "+QUEUED\r\n", "*1\r\n$1\r\n1\r\n"] {
        rig.answer_next(reply);
    }
    assert_eq!((rig.told(client).as_str(), links(&rig)), ("*1\r\n$1\r\n1\r\n", (2, 0)));
}

#[test]
fn what_is_asked_about_caching_goes_with_the_next_request() {
    let (mut rig, client) = tracking_with(1, &["OPTIN"]);
    rig.send(client, &[&["CLIENT", "CACHING", "yes"], &["GET", "k"], &["GET", "k"]]);
    assert_eq!(rig.words_at_stores(), ["CLIENT", "GET"]);
    rig.answer_next("+OK\r\n");
    rig.answer_next("$1\r\n1\r\n");
    assert_eq!(rig.words_at_stores(), ["GET"]);
    rig.answer_next("$1\r\n1\r\n");
    assert_eq!(rig.told(client), "+OK\r\n$1\r\n1\r\n$1\r\n1\r\n");
}

#[test]
fn what_is_asked_about_caching_in_a_transaction_goes_before_it() {
    let (mut rig, client) = tracking_with(1, &["OPTIN"]);
    rig.send(client, &[&["MULTI"], &["CLIENT", "CACHING", "YES"], &["GET", "k"], &["EXEC"]]);
    assert_eq!(rig.words_at_stores(), ["CLIENT", "MULTI", "GET", "EXEC"]);
    for reply in ["+OK\r\n", "+OK\r\n", "+QUEUED\r\n", "*1\r\n$1\r\n1\r\n"] {
        rig.answer_next(reply);
    }
    assert_eq!(rig.told(client), "+OK\r\n+QUEUED\r\n+QUEUED\r\n*2\r\n+OK\r\n$1\r\n1\r\n");
    // Without requests for the store it is used up all the same.
    rig.send(client, &[&["MULTI"], &["CLIENT", "CACHING", "YES"], &["EXEC"], &["GET", "k"]]);
    assert_eq!(rig.told(client), "+OK\r\n+QUEUED\r\n*1\r\n+OK\r\n");
    assert_eq!(rig.words_at_stores(), ["GET"]);
    rig.answer_next("$1\r\n1\r\n");
    rig.told(client);
    // `NO` would also hold for what the block has read before.
    rig.send(client, &[&["MULTI"], &["GET", "k"], &["CLIENT", "CACHING", "NO"], &["EXEC"]]);
    assert!(rig.told(client).contains("-ERR CLIENT CACHING cannot stand in a transaction"));
}

#[test]
fn what_is_asked_about_caching_ends_with_the_next_command_that_is_not_about_clients() {
    for (between, lasts) in [(&["PING"][..], false), (&["CLIENT", "ID"], true)] {
        let (mut rig, client) = tracking_with(1, &["OPTOUT"]);
        rig.send(client, &[&["CLIENT", "CACHING", "no"], between, &["GET", "k"]]);
        let at_store: &[&str] = if lasts { &["CLIENT", "GET"] } else { &["GET"] };
        assert_eq!(rig.words_at_stores(), at_store, "{between:?}");
    }
}

#[test]
fn what_is_asked_about_caching_goes_with_the_transaction_of_a_client_that_watches_keys() {
    for is_within in [false, true] {
        let (mut rig, client) = tracking_with(1, &["OPTIN"]);
        rig.send(client, &[&["WATCH", "k"]]);
        rig.answer_first("WATCH", "+OK\r\n");
        rig.told(client);
        let (caching, multi): (&[&str], &[&str]) = (&["CLIENT", "CACHING", "YES"], &["MULTI"]);
        let [first, second] = if is_within { [multi, caching] } else { [caching, multi] };
        rig.send(client, &[first, second, &["GET", "k"], &["EXEC"]]);
        assert_eq!(rig.words_at_stores(), ["CLIENT", "MULTI", "GET", "EXEC"]);
        for reply in ["+OK\r\n", "+OK\r\n", "+QUEUED\r\n", "*1\r\n$1\r\n1\r\n"] {
            rig.answer_next(reply);
        }
        let (queued, executed) = if is_within { ("+QUEUED", "*2\r\n+OK") } else { ("+OK", "*1") };
        let told = format!("+OK\r\n{queued}\r\n+QUEUED\r\n{executed}\r\n$1\r\n1\r\n");
        assert_eq!(rig.told(client), told);
        rig.send(client, &[&["GET", "k"]]);
        assert_eq!(rig.words_at_stores(), ["GET"], "it is used up");
    }
}

/// True if a client's `CLIENT CACHING NO` holds for its next request.
fn leaves_out_next(rig: &mut Rig, client: usize) -> bool {
    rig.send(client, &[&["CLIENT", "TRACKINGINFO"]]);
    rig.told(client).contains("caching-no")
}

#[test]
fn what_is_asked_about_caching_ends_with_a_command_that_is_refused() {
    let terms = "[default]\nadmin = true\nkeys = ['key-']\n";
    let (mut rig, client) = tracking_under(Some(terms), 2, &["OPTOUT"]);
    let [here, other] = [rig.key(0, 0), rig.key(1, 1)];
    let refused: [&[&[&str]]; 6] = [
        &[&["GET"]],
        &[&["FROB", &here]],
        &[&["GET", "k"]],
        &[&["MGET", &here, &other]],
        &[&["MULTI"], &["GET"], &["EXEC"]],
        &[&["EXEC", "now"]],
    ];
    for requests in refused {
        rig.send(client, &[&["CLIENT", "CACHING", "NO"]]);
        assert!(leaves_out_next(&mut rig, client));
        rig.send(client, requests);
        assert!(rig.told(client).contains('-') && rig.at_stores.is_empty(), "{requests:?}");
        assert!(!leaves_out_next(&mut rig, client), "{requests:?}");
    }
    // A transaction of a client whose watched keys are elsewhere goes nowhere either.
    rig.send(client, &[&["WATCH", &here]]);
    rig.answer_first("WATCH", "+OK\r\n");
    rig.send(client, &[&["CLIENT", "CACHING", "NO"], &["MULTI"], &["GET", &other], &["EXEC"]]);
    assert!(rig.told(client).contains("-EXECABORT Transaction discarded because of: CROSSSLOT "));
    assert!(!leaves_out_next(&mut rig, client));
}

#[test]
fn what_is_asked_about_caching_ends_with_a_throttled_request_and_goes_with_one_that_waits() {
    let terms = "[default]\nadmin = true\nru_per_second = 10\n";
    let (mut rig, client) = tracking_under(Some(terms), 1, &["OPTOUT"]);
    rig.pools = (0, true);
    // The quota is spent first.
    for _ in 0..2_000 {
        rig.send(client, &[&["GET", "k"]]);
        if rig.told(client).contains("-THROTTLED") {
            break;
        }
        while !rig.at_stores.is_empty() {
            rig.answer_next("$-1\r\n");
        }
    }
    rig.told(client);
    let throttled: [&[&[&str]]; 2] = [&[&["GET", "k"]], &[&["MULTI"], &["GET", "k"], &["EXEC"]]];
    for requests in throttled {
        rig.send(client, &[&["CLIENT", "CACHING", "NO"]]);
        rig.send(client, requests);
        assert!(rig.told(client).contains("-THROTTLED scope=tenant "), "{requests:?}");
        assert!(!leaves_out_next(&mut rig, client), "{requests:?}");
    }
    rig.pools = (100 * UNIT as i64, false);
    rig.now.monotonic = rig.now.monotonic.after(Duration::from_millis(500));
    rig.send(client, &[&["CLIENT", "CACHING", "NO"], &["QOS", "CALL", "TIER", "batch", "GET", "k"]]);
    assert_eq!(rig.words_at_stores(), ["CLIENT", "GET"]);
}

#[test]
fn a_client_that_would_miss_changes_is_closed() {
    for is_late in [false, true] {
        let (mut rig, client) = tracking(1);
        rig.send(client, &[&["QOS", "SET", "DEADLINE", "200"], &["GET", "k"]]);
        if is_late {
            rig.wait(Duration::from_millis(300));
            assert!(rig.told(client).contains("-DEADLINE "));
            assert_eq!(rig.shards[0].private_links().waiting, 1, "the reply shows what the request costs");
            rig.answer_first("GET", "$1\r\n1\r\n");
        } else {
            rig.lose("GET");
        }
        assert_eq!((rig.shards[0].clients_open(), links(&rig)), (0, (0, 0)));
    }
}

#[test]
fn a_store_that_refuses_leaves_nothing_on() {
    let mut rig = Rig::with(1, 2, |settings| settings.private_links_max = 20);
    let client = rig.client(0);
    rig.send(client, &[&["HELLO", "3"], &["CLIENT", "TRACKING", "ON", "NOLOOP"], &["GET", "k"]]);
    rig.told(client);
    greet(&mut rig);
    rig.answer_first("TRACKING", "+OK\r\n");
    rig.answer_first("TRACKING", "-ERR unknown subcommand\r\n");
    assert_eq!(rig.told(client), "-ERR unknown subcommand\r\n");
    rig.answer_first("OFF", "+OK\r\n");
    assert_eq!(rig.words_at_stores(), ["HELLO"], "the next request opens a shared connection");
    assert_eq!(links(&rig), (0, 1), "the link of the store that refuses is lent no more");
}

#[test]
fn prefixes_that_overlap_go_to_no_store() {
    let mut rig = Rig::with(1, 1, |settings| settings.private_links_max = 20);
    let client = rig.client(0);
    rig.send(client, &[&["HELLO", "3"]]);
    rig.told(client);
    let rest = "Prefixes for a single client must not overlap.\r\n";
    let on = ["CLIENT", "TRACKING", "ON", "BCAST"];
    // Redis 7.0 gives two replies to this.
    rig.send(client, &[&[&on[..], &["PREFIX", "z", "PREFIX", "a", "PREFIX", "ab"]].concat()]);
    let told = rig.told(client);
    assert_eq!(told, format!("-ERR Prefix 'a' overlaps with another provided prefix 'ab'. {rest}"));
    assert_eq!((rig.at_stores.len(), links(&rig), rig.shards[0].filters()), (0, (0, 0), [0, 0]));
    rig.send(client, &[&[&on[..], &["PREFIX", "z"]].concat()]);
    greet(&mut rig);
    rig.answer_first("TRACKING", "+OK\r\n");
    assert_eq!(rig.told(client), "+OK\r\n");
    rig.send(client, &[&[&on[..], &["PREFIX", "zz"]].concat()]);
    assert_eq!(rig.told(client), format!("-ERR Prefix 'zz' overlaps with an existing prefix 'z'. {rest}"));
    assert_eq!((rig.at_stores.len(), links(&rig), rig.shards[0].filters()), (0, (1, 0), [0, 1]));
}

#[test]
fn a_link_on_which_a_store_may_go_on_tracking_is_lent_no_more() {
    for end in [&["RESET"][..], &["CLIENT", "TRACKING", "OFF"]] {
        for (reply, idle) in [("+OK\r\n", 1), ("-BUSY Redis is busy running a script.\r\n", 0), (":1\r\n", 0)]
        {
            let (mut rig, client) = tracking(1);
            rig.send(client, &[end]);
            rig.answer_first("OFF", reply);
            assert_eq!(links(&rig), (0, idle), "{end:?} {reply}");
        }
    }
    // A message shows that the store goes on.
    let (mut rig, client) = tracking(1);
    rig.send(client, &[&["CLIENT", "TRACKING", "OFF"]]);
    rig.answer_first("OFF", &format!("{CHANGED}+OK\r\n"));
    assert_eq!(links(&rig), (0, 1), "that was sent before");
    rig.more(CHANGED);
    assert_eq!(links(&rig), (0, 0));
}

#[test]
fn messages_that_a_link_is_not_for_reach_nobody_and_end_with_its_use() {
    let mut rig = Rig::with(1, 1, |settings| settings.private_links_max = 20);
    let client = rig.client(0);
    rig.send(client, &[&["HELLO", "3"], &["BLPOP", "q", "0"]]);
    rig.told(client);
    greet(&mut rig);
    let popped = "*2\r\n$1\r\nq\r\n$1\r\nx\r\n";
    rig.answer_first("BLPOP", &format!("{CHANGED}{popped}"));
    assert_eq!((rig.told(client).as_str(), links(&rig)), (popped, (0, 0)));
}

#[test]
fn a_command_that_weir_does_not_know_goes_over_the_link_on_which_its_key_is_tracked() {
    let (mut rig, client) = tracking(1);
    rig.send(client, &[&["GET", "k"]]);
    let link = rig.at_stores[0].link;
    rig.answer_next("$-1\r\n");
    rig.send(client, &[&["FROB", "k"]]);
    assert_eq!((rig.words_at_stores(), rig.at_stores[0].link), (vec!["FROB"], link));
    rig.answer_next("+FINE\r\n");
    assert_eq!((rig.told(client).as_str(), links(&rig)), ("$-1\r\n+FINE\r\n", (1, 0)));
    rig.send(client, &[&["CLIENT", "TRACKING", "OFF"]]);
    assert_eq!((rig.at_stores.len(), links(&rig)), (0, (0, 0)), "nobody knows what it has left behind");
}

#[test]
fn a_link_on_which_keys_were_tracked_tracks_none_for_another_client() {
    let mut rig = Rig::with(1, 1, |settings| settings.private_links_max = 20);
    let track = |rig: &mut Rig, client: usize| {
        rig.send(client, &[&["HELLO", "3"], &["CLIENT", "TRACKING", "ON"]]);
        greet(rig);
        let link = rig.frames("TRACKING")[0].link;
        rig.answer_first("TRACKING", "+OK\r\n");
        rig.send(client, &[&["CLIENT", "TRACKING", "OFF"]]);
        rig.answer_first("OFF", "+OK\r\n");
        link
    };
    let [one, other] = [rig.client(0), rig.client(0)];
    let first = track(&mut rig, one);
    assert_eq!(track(&mut rig, one), first, "the client may be told of keys that it has read before");
    let second = track(&mut rig, other);
    assert!(first != second, "the store may still know which keys were read over it");
    let waiting = rig.client(0);
    rig.send(waiting, &[&["HELLO", "3"], &["BLPOP", "q", "0"]]);
    let link = rig.frames("BLPOP")[0].link;
    assert!([first, second].contains(&link), "it serves for other requests");
}

#[test]
fn without_enough_links_nothing_is_tracked() {
    let mut rig = Rig::with(1, 3, |settings| settings.private_links_max = 2);
    let client = rig.client(0);
    rig.send(client, &[&["HELLO", "3"], &["CLIENT", "TRACKING", "ON"], &["CLIENT", "GETREDIR"]]);
    let told = rig.told(client);
    assert!(told.contains("-OVERLOADED reason=links ") && told.ends_with(":-1\r\n"), "{told}");
    assert_eq!(links(&rig), (0, 0));
}

#[test]
fn prefixes_beyond_the_limit_are_refused_until_others_end() {
    let mut rig = Rig::with(1, 1, |settings| settings.private_links_max = 20);
    let most = FilterKind::Prefix.tenant_limit();
    let [client, other] = [rig.client(0), rig.client(0)];
    let track = |rig: &mut Rig, client, from: usize, count: usize| {
        let names: Vec<String> = (from..from + count).map(|number| format!("{number:05}")).collect();
        let words = names.iter().flat_map(|name| ["PREFIX", name.as_str()]);
        let words: Vec<&str> = ["CLIENT", "TRACKING", "ON", "BCAST"].into_iter().chain(words).collect();
        rig.send(client, &[&["HELLO", "3"]]);
        rig.told(client);
        rig.send(client, &[&words]);
        greet(rig);
        if !rig.frames("TRACKING").is_empty() {
            rig.answer_first("TRACKING", "+OK\r\n");
        }
        rig.told(client)
    };
    assert_eq!(track(&mut rig, client, 0, most), "+OK\r\n");
    assert_eq!(track(&mut rig, other, 0, 2), "+OK\r\n", "equal prefixes count once");
    let refused = track(&mut rig, other, 2, most);
    assert!(
        refused.starts_with(&format!("-ERR too many prefixes: the clients of a tenant may have {most}, "))
    );
    assert_eq!(rig.shards[0].filters(), [0, most]);
    let repeated = track(&mut rig, other, 1, 1);
    assert!(
        repeated.starts_with("-ERR Prefix '00001' overlaps with an existing prefix '00001'."),
        "{repeated}"
    );
    rig.send(client, &[&["CLIENT", "TRACKING", "OFF"]]);
    rig.answer_first("TRACKING", "+OK\r\n");
    assert_eq!(rig.shards[0].filters(), [0, 2]);
    assert_eq!(track(&mut rig, other, 2, 0), "+OK\r\n");
    assert_eq!(rig.shards[0].filters(), [0, 3], "no prefix means the empty one");
    let id = rig.id(other);
    rig.shards[0].handle_client_lost(id);
    rig.turns();
    assert_eq!(rig.shards[0].filters(), [0, 0]);
}

#[test]
fn a_watch_over_such_a_link_leaves_it_with_the_client() {
    let (mut rig, client) = tracking(1);
    rig.send(client, &[&["WATCH", "k"]]);
    rig.answer_first("WATCH", "+OK\r\n");
    rig.send(client, &[&["UNWATCH"], &["GET", "k"]]);
    assert_eq!(rig.words_at_stores(), ["UNWATCH", "GET"]);
    rig.answer_next("+OK\r\n");
    rig.answer_next("$-1\r\n");
    assert_eq!((rig.told(client).as_str(), links(&rig)), ("+OK\r\n+OK\r\n$-1\r\n", (1, 0)));
}

#[test]
fn a_call_that_waits_goes_over_the_link_so_that_its_reply_comes_before_messages_about_it() {
    let (mut rig, client) = tracking(1);
    for _ in 0..2 {
        rig.send(client, &[&["BLMOVE", "q", "k", "LEFT", "LEFT", "0"]]);
        let waits = rig.at_stores[0].clone();
        rig.bytes(&waits, CHANGED.as_bytes());
        assert_eq!(rig.told(client), CHANGED, "others change keys meanwhile");
        let id = rig.id(client);
        let filter = ClientsAsked::Unblock(ClientFilter::default(), false);
        assert_eq!(rig.shards[0].handle_clients_asked(&filter, rig.now), ClientsTold::Counted(1), "{id:?}");
        rig.turns();
        greet(&mut rig);
        rig.answer_first("UNBLOCK", ":1\r\n");
        rig.bytes(&waits, format!("_\r\n{CHANGED}").as_bytes());
        rig.at_stores.retain(|sent| !sent.frame.contains("BLMOVE"));
        assert_eq!((rig.told(client), links(&rig)), (format!("_\r\n{CHANGED}"), (1, 1)));
    }
}

#[test]
fn a_client_that_leaves_while_it_waits_leaves_no_link() {
    let (mut rig, client) = tracking(1);
    rig.send(client, &[&["BLPOP", "q", "0"]]);
    let id = rig.id(client);
    rig.shards[0].handle_client_lost(id);
    rig.turns();
    greet(&mut rig);
    rig.answer_first("UNBLOCK", ":1\r\n");
    rig.answer_first("BLPOP", "*2\r\n$1\r\nq\r\n$1\r\n1\r\n");
    assert_eq!(rig.shards[0].counters().get(Counter::OrphansLost), 1, "the store had popped an element");
    assert_eq!(links(&rig).0, 0);
}

#[test]
fn a_client_changes_its_dialect_while_keys_are_tracked() {
    let (mut rig, client) = tracking(2);
    rig.send(client, &[&["HELLO", "2"], &["GET", "k"]]);
    assert!(rig.told(client).starts_with("*14\r\n"));
    assert_eq!(rig.words_at_stores(), ["HELLO"], "the store of the key is told");
    rig.answer_first("HELLO", "*0\r\n");
    let link = rig.frames("GET")[0].clone();
    rig.bytes(&link, format!("{CHANGED}$-1\r\n").as_bytes());
    rig.at_stores.clear();
    assert_eq!(rig.told(client), "$-1\r\n", "there are no such messages in RESP2");
    rig.send(client, &[&["HELLO", "3"]]);
    assert_eq!(rig.words_at_stores(), ["HELLO"], "in RESP2 it would not hear of changes");
    rig.told(client);
    rig.bytes(&link, format!("%0\r\n{CHANGED}").as_bytes());
    assert_eq!((rig.told(client).as_str(), links(&rig)), (CHANGED, (2, 0)));
    rig.at_stores.clear();
    rig.send(client, &[&["HELLO", "2"][..], &["HELLO", "3"]].repeat(50));
    assert!(rig.at_stores.is_empty(), "nobody pays for it");
}

#[test]
fn a_request_leaves_when_its_link_speaks_the_dialect_and_has_the_database_of_its_client() {
    let (mut rig, client) = tracking(1);
    rig.send(client, &[&["HELLO", "2"], &["SELECT", "1"], &["GET", "k"]]);
    for (word, reply) in [("HELLO", "*0\r\n"), ("SELECT", "+OK\r\n"), ("GET", "$-1\r\n")] {
        assert_eq!(rig.words_at_stores(), [word]);
        rig.answer_next(reply);
    }
    assert!(rig.told(client).ends_with("+OK\r\n$-1\r\n"));
}

#[test]
fn information_names_prefixes_and_the_exception() {
    let (mut rig, client) = tracking(1);
    rig.send(client, &[&["CLIENT", "TRACKING", "ON", "OPTOUT"], &["CLIENT", "CACHING", "NO"]]);
    rig.answer_first("TRACKING", "+OK\r\n");
    rig.told(client);
    rig.send(client, &[&["CLIENT", "TRACKINGINFO"]]);
    assert!(rig.told(client).contains("~3\r\n$2\r\non\r\n$6\r\noptout\r\n$10\r\ncaching-no\r\n"));
    for (options, prefixes) in
        [(&["PREFIX", "b"][..], "*1\r\n$1\r\nb\r\n"), (&["PREFIX", "a"], "*2\r\n$1\r\na\r\n$1\r\nb\r\n")]
    {
        if prefixes.starts_with("*1") {
            rig.send(client, &[&["CLIENT", "TRACKING", "OFF"]]);
            rig.answer_first("OFF", "+OK\r\n");
        }
        rig.send(client, &[&[&["CLIENT", "TRACKING", "ON", "BCAST"], options].concat()]);
        rig.answer_first("TRACKING", "+OK\r\n");
        rig.told(client);
        rig.send(client, &[&["CLIENT", "TRACKINGINFO"]]);
        let told = rig.told(client);
        assert!(told.ends_with(&format!("redirect\r\n:0\r\n$8\r\nprefixes\r\n{prefixes}")), "{told}");
    }
}

#[test]
fn keys_of_other_stores_are_read_while_one_is_watched() {
    let (mut rig, client) = tracking(2);
    let [here, other] = [rig.key(0, 0), rig.key(1, 1)];
    rig.send(client, &[&["WATCH", &here]]);
    rig.answer_first("WATCH", "+OK\r\n");
    rig.send(client, &[&["GET", &other], &["GET", &here]]);
    rig.answer_first(&other, "$1\r\n1\r\n");
    rig.answer_first(&here, "$1\r\n2\r\n");
    assert_eq!((rig.told(client).as_str(), links(&rig)), ("+OK\r\n$1\r\n1\r\n$1\r\n2\r\n", (2, 0)));
}
