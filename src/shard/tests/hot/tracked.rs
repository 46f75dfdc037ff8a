//! Tests of hot keys whose stores report changes (CLIENT TRACKING).

use super::*;

const TRACKED_TTL: Duration = Duration::from_secs(2);

/// Returns a test rig (shards with scripted stores and clients) with one core, two clients, a hot key whose
/// changes its store reports (`CLIENT TRACKING`), and the connection on which it does. The value `kept` is
/// cached.
fn with_tracked_key() -> (Rig, [usize; 2], String, Sent) {
    let mut rig = eager(1, |settings| settings.hot.tracked_ttl = Some(TRACKED_TTL));
    let clients = [rig.client(0), rig.client(0)];
    let key = rig.key(0, 0);
    let tracker = rig.make_tracked(clients[0], &key);
    (rig, clients, key, tracker)
}

fn changed(keys: &[&str]) -> String {
    let listed: String = keys.iter().map(|key| bulk(key)).collect();
    format!(">2\r\n$10\r\ninvalidate\r\n*{}\r\n{listed}", keys.len())
}

impl Rig {
    /// Reads a key until it is hot and its store reports changes of it (`CLIENT TRACKING`). Returns the
    /// connection on which it does.
    fn make_tracked(&mut self, client: usize, key: &str) -> Sent {
        let mut tracker = None;
        for _ in 0..60 {
            self.send(client, &[&["GET", key]]);
            tracker = tracker.or_else(|| self.frames("TRACKING").first().map(|sent| (*sent).clone()));
            self.serve(":-1\r\n", &bulk("kept"));
            self.told(client);
            self.pass(10 * MILLISECOND);
        }
        assert_eq!(self.tracked_keys(), 1);
        assert!(self.knows(client, key, "kept"));
        tracker.expect("a tracker was opened")
    }

    /// Lets time pass, and answers the PINGs that weir sends meanwhile on the connections on which stores
    /// report changes of keys.
    fn pass(&mut self, duration: Duration) {
        let end = self.now.monotonic.after(duration);
        while self.now.monotonic < end {
            self.wait((10 * MILLISECOND).min(end.since(self.now.monotonic)));
            while !self.frames("PING").is_empty() {
                self.answer_first("PING", "+PONG\r\n");
            }
        }
    }

    /// Returns the number of hot keys whose next change stores will report (`CLIENT TRACKING`).
    fn tracked_keys(&self) -> usize {
        self.figures().tracking.iter().map(|own| own.tracked).sum()
    }

    /// Sends a read of hash fields and answers the requests at stores: HPTTL with `left`, and the read with a
    /// value. Returns the names of the commands at the store, separated by spaces.
    fn ask_fields(&mut self, client: usize, words: &[&str], left: &str) -> String {
        self.send(client, &[words]);
        let mut asked = Vec::new();
        while let Some(word) = self.words_at_stores().first().map(|word| (*word).to_owned()) {
            let reply = match word.as_str() {
                "PTTL" => ":-1\r\n",
                "HPTTL" => left,
                _ => "$1\r\nv\r\n",
            };
            self.answer_next(reply);
            asked.push(word);
        }
        assert_eq!(self.told(client), "$1\r\nv\r\n");
        asked.join(" ")
    }

    fn wake(&mut self) {
        self.wait(MILLISECOND);
    }
}

#[test]
fn what_is_kept_lasts_longer_and_ends_when_the_store_tells_of_a_change() {
    let (mut rig, [client, other], key, tracker) = with_tracked_key();
    rig.pass(5 * TTL);
    assert!(rig.knows(client, &key, "kept"), "beyond the time for which nothing may be kept untold");
    rig.bytes(&tracker, changed(&["another", &key]).as_bytes());
    assert_eq!((rig.counted(Counter::HotChanges), rig.tracked_keys()), (1, 0));
    rig.send(client, &[&["GET", &key]]);
    rig.send(other, &[&["GET", &key]]);
    assert_eq!(rig.frames("GET").len(), 1);
    rig.serve(":-1\r\n", &bulk("new"));
    assert_eq!((rig.told(client), rig.told(other)), (bulk("new"), bulk("new")));
}

#[test]
fn nothing_is_kept_until_the_store_has_confirmed_that_it_will_tell() {
    let (mut rig, [client, other], key, tracker) = with_tracked_key();
    rig.bytes(&tracker, changed(&[&key]).as_bytes());
    rig.send(client, &[&["GET", &key]]);
    let own = |rig: &Rig| rig.at_stores.iter().filter(|sent| sent.link == tracker.link).count();
    assert_eq!((rig.words_at_stores().len(), own(&rig)), (3, 1), "the fetch, and the registration");
    rig.answer_first("GET", "");
    let at = rig.at_stores.iter().position(|sent| sent.link == tracker.link).expect("the registration");
    let registration = rig.at_stores.remove(at);
    let fetch = rig.answered.clone().expect("the fetch");
    rig.at_stores.clear();
    rig.bytes(&fetch, format!(":-1\r\n{}", bulk("unsure")).as_bytes());
    assert_eq!(rig.told(client), bulk("unsure"));
    assert!(
        !rig.knows(other, &key, "unsure"),
        "a change between the fetch and the registration would go untold"
    );
    rig.bytes(&registration, b":-1\r\n");
    assert_eq!(rig.serve(":-1\r\n", &bulk("unsure")), ["PTTL", "GET"], "that was sent too early as well");
    assert_eq!(rig.told(other), bulk("unsure"));
    rig.send(other, &[&["GET", &key]]);
    assert_eq!(rig.serve(":-1\r\n", &bulk("sure")), ["PTTL", "GET"]);
    rig.told(other);
    assert!(rig.knows(client, &key, "sure"));
}

#[test]
fn what_was_fetched_before_a_store_began_to_tell_is_not_kept() {
    let mut rig = eager(1, |settings| settings.hot.tracked_ttl = Some(TRACKED_TTL));
    let [client, other] = [rig.client(0), rig.client(0)];
    let key = rig.key(0, 0);
    // A fetch is in flight when the tracker link opens.
    let mut tracker = None;
    while tracker.is_none() {
        rig.send(client, &[&["GET", &key]]);
        tracker = rig.frames("TRACKING").first().map(|sent| (*sent).clone());
        if tracker.is_none() {
            rig.serve(":-1\r\n", &bulk("old"));
            rig.told(client);
            rig.wait(10 * MILLISECOND);
        }
    }
    let tracker = tracker.expect("it was opened");
    while let Some(at) = rig.at_stores.iter().position(|sent| sent.link == tracker.link) {
        let sent = rig.at_stores.remove(at);
        let reply = match &sent.frame {
            hello if hello.contains("HELLO") => "%0\r\n",
            tracking if tracking.contains("TRACKING") => "+OK\r\n",
            _ => ":1\r\n",
        };
        rig.bytes(&sent, reply.as_bytes());
    }
    rig.serve(":-1\r\n", &bulk("old"));
    assert_eq!(rig.told(client), bulk("old"));
    assert!(!rig.knows(other, &key, "old"), "a change since the fetch was told to nobody");
}

#[test]
fn a_change_told_before_the_reply_comes_makes_that_worthless() {
    let (mut rig, [client, other], key, tracker) = with_tracked_key();
    rig.send(client, &[&["SET", &key, "own"]]);
    rig.serve("", "+OK\r\n");
    rig.told(client);
    rig.send(client, &[&["GET", &key]]);
    assert_eq!(rig.words_at_stores(), ["PTTL", "GET"], "it is still registered");
    rig.bytes(&tracker, changed(&[&key]).as_bytes());
    rig.serve(":-1\r\n", &bulk("old"));
    assert_eq!(rig.told(client), bulk("old"), "it was read after the request came");
    assert!(!rig.knows(other, &key, "old"));
    assert_eq!(rig.counted(Counter::HotPoisoned), 1);
    rig.bytes(&tracker, b">2\r\n$10\r\ninvalidate\r\n_\r\n");
    assert_eq!(
        rig.counted(Counter::HotPoisoned),
        1,
        "the fetch in flight was sent before it was registered anew"
    );
}

#[test]
fn a_lost_tracker_ends_what_was_kept_because_of_it_on_all_cores() {
    let mut rig = eager(2, |settings| {
        settings.hot.tracked_ttl = Some(TRACKED_TTL);
        settings.hot.copied_from = [100, 10];
    });
    let key = rig.key(0, 0);
    let [here, there] = [rig.client(0), rig.client(1)];
    let tracker = rig.make_tracked(here, &key);
    for _ in 0..200 {
        rig.send(there, &[&["GET", &key]]);
        rig.serve(":-1\r\n", &bulk("kept"));
        rig.told(there);
        rig.wake();
        rig.pass(Duration::ZERO);
    }
    assert!(rig.counted(Counter::HotHitsCopied) > 50);
    assert!(rig.knows(there, &key, "kept") && rig.knows(here, &key, "kept"));
    rig.shards[0].handle_link_lost(tracker.link, tracker.generation, Loss::ByPeer, rig.now);
    rig.turns();
    assert_eq!((rig.counted(Counter::HotTrackersLost), rig.tracked_keys()), (1, 0));
    assert!(!rig.knows(there, &key, "kept"));
    assert_eq!(rig.serve(":-1\r\n", &bulk("new")), ["PTTL", "GET"], "no other tracker so soon");
    assert_eq!(rig.told(there), bulk("new"));
    assert!(rig.knows(here, &key, "new"), "as without trackers");
    rig.wait(TTL);
    assert!(!rig.knows(here, &key, "new"));
}

#[test]
fn a_tracker_that_is_silent_is_asked_and_then_ends_what_was_kept() {
    let (mut rig, [client, _], key, tracker) = with_tracked_key();
    rig.bytes(&tracker, changed(&["another"]).as_bytes());
    rig.wait(99 * MILLISECOND);
    assert!(rig.knows(client, &key, "kept") && rig.words_at_stores().is_empty());
    rig.wait(100 * MILLISECOND);
    assert_eq!(rig.words_at_stores(), ["PING"]);
    assert!(rig.knows(client, &key, "kept"));
    rig.wait(2 * MILLISECOND);
    assert_eq!((rig.counted(Counter::HotTrackersSilent), rig.tracked_keys()), (1, 0));
    assert!(!rig.knows(client, &key, "kept"));
    rig.serve(":-1\r\n", &bulk("new"));
    assert_eq!(rig.told(client), bulk("new"));
}

#[test]
fn a_message_without_names_is_about_all_keys() {
    for null in ["_\r\n", "*-1\r\n"] {
        let (mut rig, [client, _], key, tracker) = with_tracked_key();
        rig.bytes(&tracker, format!(">2\r\n$10\r\ninvalidate\r\n{null}").as_bytes());
        assert_eq!((rig.counted(Counter::HotChangesOfAll), rig.tracked_keys()), (1, 0));
        assert!(!rig.knows(client, &key, "kept"), "{null:?}");
    }
}

/// Returns the reply of a store to a request of a tracker's greeting (`frame`): `refusal` to `CLIENT TRACKING`.
fn greeted_without_tracking<'a>(frame: &str, refusal: &'a str) -> &'a str {
    match frame {
        hello if hello.contains("HELLO") => "%0\r\n",
        tracking if tracking.contains("TRACKING") => refusal,
        _ => ":1\r\n",
    }
}

#[test]
fn a_store_that_cannot_track_for_the_moment_is_asked_again_soon() {
    for refusal in [
        "-BUSY Redis is busy running a script\r\n",
        "-LOADING Redis is loading the dataset in memory\r\n",
        "-NOAUTH Authentication required.\r\n",
    ] {
        let mut rig = eager(1, |settings| settings.hot.tracked_ttl = Some(TRACKED_TTL));
        let client = rig.client(0);
        let key = rig.key(0, 0);
        let mut refused = None;
        for _ in 0..200 {
            rig.send(client, &[&["GET", &key]]);
            if refused.is_none() {
                refused = rig.frames("TRACKING").first().map(|sent| sent.link);
                while let Some(at) = rig.at_stores.iter().position(|sent| Some(sent.link) == refused) {
                    let sent = rig.at_stores.remove(at);
                    rig.bytes(&sent, greeted_without_tracking(&sent.frame, refusal).as_bytes());
                }
                assert_eq!(rig.tracked_keys(), 0);
            }
            rig.serve(":-1\r\n", &bulk("kept"));
            rig.told(client);
            rig.pass(10 * MILLISECOND);
        }
        assert!(refused.is_some());
        assert_eq!(rig.tracked_keys(), 1, "{refusal}");
    }
}

#[test]
fn a_store_that_does_not_track_leaves_all_as_it_was() {
    let mut rig = eager(1, |settings| settings.hot.tracked_ttl = Some(TRACKED_TTL));
    let client = rig.client(0);
    let key = rig.key(0, 0);
    let mut asked = 0;
    for _ in 0..60 {
        rig.send(client, &[&["GET", &key]]);
        if let Some(tracking) = rig.frames("TRACKING").first().map(|sent| (*sent).clone()) {
            while let Some(at) = rig.at_stores.iter().position(|sent| sent.link == tracking.link) {
                let sent = rig.at_stores.remove(at);
                rig.bytes(&sent, greeted_without_tracking(&sent.frame, "-ERR unknown\r\n").as_bytes());
            }
            asked += 1;
        }
        rig.serve(":-1\r\n", &bulk("kept"));
        rig.told(client);
        rig.wait(10 * MILLISECOND);
    }
    assert_eq!((rig.tracked_keys(), asked), (0, 1));
    assert!(rig.knows(client, &key, "kept"));
    rig.wait(TTL);
    assert!(!rig.knows(client, &key, "kept"));
}

#[test]
fn a_key_that_the_store_refuses_to_track_is_kept_as_without_trackers() {
    let (mut rig, [client, _], key, tracker) = with_tracked_key();
    rig.bytes(&tracker, changed(&[&key]).as_bytes());
    rig.send(client, &[&["GET", &key]]);
    let at = rig.at_stores.iter().position(|sent| sent.link == tracker.link).expect("the registration");
    let registration = rig.at_stores.remove(at);
    rig.bytes(&registration, b"-NOPERM no\r\n");
    rig.serve(":-1\r\n", &bulk("first"));
    rig.told(client);
    rig.send(client, &[&["GET", &key]]);
    rig.serve(":-1\r\n", &bulk("second"));
    rig.told(client);
    assert!(rig.knows(client, &key, "second"));
    rig.pass(TTL);
    assert!(!rig.knows(client, &key, "second"));
}

#[test]
fn replies_about_fields_are_kept_no_longer_than_untold() {
    let (mut rig, [client, _], key, _) = with_tracked_key();
    let get = ["HGET", key.as_str(), "f"];
    rig.ask(client, &get, ":-1\r\n", &bulk("field"));
    assert_eq!(rig.ask(client, &get, ":-1\r\n", "").1, [] as [String; 0], "it is kept");
    rig.pass(TTL);
    assert!(!rig.ask(client, &get, ":-1\r\n", &bulk("field")).1.is_empty());
    assert!(rig.knows(client, &key, "kept"));
}

#[test]
fn an_expiry_ends_what_is_kept_whatever_the_store_tells() {
    let (mut rig, [client, _], key, tracker) = with_tracked_key();
    rig.bytes(&tracker, changed(&[&key]).as_bytes());
    for _ in 0..2 {
        rig.ask(client, &["GET", &key], ":700\r\n", &bulk("short"));
    }
    rig.pass(600 * MILLISECOND);
    assert!(rig.knows(client, &key, "short"));
    rig.pass(100 * MILLISECOND);
    assert!(!rig.knows(client, &key, "short"));
}

#[test]
fn fields_that_expire_are_kept_until_then_and_others_as_long_as_they_are_tracked() {
    let (mut rig, [client, _], key, _) = with_tracked_key();
    let [plain, volatile] = [["HGET", &key, "plain"], ["HGET", &key, "volatile"]];
    let fields = "PTTL HPTTL HGET";
    let [never, soon] = ["*1\r\n:-1\r\n", "*1\r\n:100\r\n"];
    assert_eq!(rig.ask_fields(client, &plain, never), fields);
    assert_eq!(rig.ask_fields(client, &volatile, soon), fields);
    rig.pass(50 * MILLISECOND);
    assert_eq!(rig.ask_fields(client, &volatile, soon), "", "it is there still");
    rig.pass(50 * MILLISECOND);
    assert_eq!(rig.ask_fields(client, &volatile, soon), fields);
    rig.pass(5 * TTL);
    assert_eq!(rig.ask_fields(client, &plain, never), "", "the store tells of its change");
    let whole = ["HGETALL", &key];
    assert_eq!(rig.ask_fields(client, &whole, never), "PTTL HGETALL");
    assert_eq!(rig.ask_fields(client, &whole, never), "");
    rig.pass(TTL);
    assert_eq!(
        rig.ask_fields(client, &whole, never),
        "PTTL HGETALL",
        "nobody has said when its fields expire"
    );
}

#[test]
fn a_store_without_fields_that_expire_is_asked_once_about_them() {
    let (mut rig, [client, _], key, tracker) = with_tracked_key();
    let unknown = "-ERR unknown command 'HPTTL', with args beginning with: 'key'\r\n";
    assert_eq!(rig.ask_fields(client, &["HGET", &key, "a"], unknown), "PTTL HPTTL HGET");
    assert_eq!(rig.ask_fields(client, &["HGET", &key, "b"], unknown), "PTTL HGET");
    assert_eq!(rig.ask_fields(client, &["HGETALL", &key], unknown), "PTTL HGETALL");
    rig.pass(5 * TTL);
    for words in [&["HGET", &key, "a"] as &[&str], &["HGET", &key, "b"], &["HGETALL", &key]] {
        assert_eq!(rig.ask_fields(client, words, unknown), "", "the store tells of its change");
    }
    rig.shards[0].handle_link_lost(tracker.link, tracker.generation, Loss::ByPeer, rig.now);
    rig.turns();
    assert_eq!(
        rig.ask_fields(client, &["HGET", &key, "c"], unknown),
        "PTTL HPTTL HGET",
        "another store may have taken its place"
    );
}

#[test]
fn the_ages_of_replies_from_memory_are_counted() {
    let (mut rig, [client, _], key, _) = with_tracked_key();
    let before = rig.shards[0].hot_ages().count();
    rig.pass(5 * TTL);
    assert!(rig.knows(client, &key, "kept") && rig.knows(client, &key, "kept"));
    let ages = rig.shards[0].hot_ages();
    assert_eq!(ages.count(), before + 2);
    let within = 5 * TTL..TRACKED_TTL;
    assert!(within.contains(&ages.quantile(1.0)), "{:?}", ages.quantile(1.0));
}
