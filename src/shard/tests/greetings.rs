//! Tests of private links (connections lent to one client) whose stores refuse a part of the greeting, the first requests
//! of a connection.

use super::private::{BUSY, greet, lending, links};
use super::*;

#[test]
fn a_link_whose_store_could_not_tell_its_number_is_lent_no_more() {
    for refusal in [BUSY, "-NOAUTH Authentication required.\r\n"] {
        let mut rig = lending(1, 1, 10);
        let client = rig.client(0);
        rig.send(client, &[&["MULTI"], &["SELECT", "5"], &["GET", "k"], &["EXEC"]]);
        rig.answer_first("\r\nID\r\n", refusal);
        for step in ["MULTI", "SELECT", "GET"] {
            rig.answer_first(step, "+QUEUED\r\n");
        }
        assert_eq!(links(&rig), (1, 1));
        rig.answer_first("EXEC", "*2\r\n+OK\r\n$-1\r\n");
        assert!(rig.told(client).ends_with("*2\r\n+OK\r\n$-1\r\n"));
        assert_eq!(links(&rig), (0, 0), "{refusal}");
        // A spare one was not lent yet.
        let mut rig = lending(1, 1, 100);
        let client = rig.client(0);
        rig.send(client, &[&["BLPOP", "q", "0"]]);
        greet(&mut rig);
        assert_eq!(links(&rig), (1, 2));
        rig.answer_first("\r\nID\r\n", refusal);
        assert_eq!(links(&rig), (1, 1), "{refusal}");
    }
}

#[test]
fn no_call_waits_on_a_link_whose_store_was_too_busy_to_tell_its_number() {
    for (words, reply) in [(&["BLPOP", "q", "0"][..], "*-1\r\n"), (&["WATCH", "k"], "+OK\r\n")] {
        let mut rig = lending(1, 1, 10);
        let client = rig.client(0);
        rig.send(client, &[words]);
        rig.answer_first("\r\nID\r\n", BUSY);
        let refusal = "-UNAVAILABLE backend=store0 reason=not-ready retry_after_ms=50\r\n";
        assert_eq!((rig.told(client).as_str(), rig.at_stores.len(), links(&rig)), (refusal, 0, (0, 0)));
        rig.send(client, &[words]);
        greet(&mut rig);
        rig.answer_first(words[0], reply);
        assert_eq!(rig.told(client), reply);
    }
}

#[test]
fn a_link_whose_login_a_store_refuses_is_given_up_with_the_reason_named() {
    for (reply, reason) in [
        ("-NOPROTO unsupported protocol version\r\n", "login-refused"),
        ("-LOADING Redis is loading the dataset in memory\r\n", "not-ready"),
    ] {
        let mut rig = lending(1, 1, 10);
        let client = rig.client(0);
        rig.send(client, &[&["HELLO", "3"], &["BLPOP", "q", "0"]]);
        rig.told(client);
        rig.answer_first("HELLO", reply);
        let refusal = format!("-UNAVAILABLE backend=store0 reason={reason} retry_after_ms=50\r\n");
        assert_eq!((rig.told(client), rig.at_stores.len()), (refusal, 0));
    }
}

#[test]
fn a_store_that_is_busy_before_it_is_asked_for_a_sign_is_found_out_too() {
    let overload = OverloadSettings::new(1, 1);
    let mut rig = Rig::with(1, 1, |settings| {
        settings.private_links_max = 10;
        settings.overload = overload.clone();
    });
    let [busy, other] = [rig.client(0), rig.client(0)];
    rig.send(busy, &[&["EVAL", "while true do end", "1", "k"]]);
    rig.wait(Duration::from_millis(200));
    rig.answer_first("\r\nID\r\n", BUSY);
    rig.answer_first("PING", BUSY);
    let is_closed = |(_, action): &(usize, Action)| matches!(action, Action::Reset(Owner::Link(..)));
    assert!(rig.actions.iter().any(is_closed), "the link has no number");
    rig.wait(Duration::from_millis(1));
    rig.send(other, &[&["PING"]]);
    assert!(rig.told(other).starts_with("-BUSY backend=store0 "));
}
