//! Tests of QOS EXPLAIN for requests whose keys may be hot.

use super::*;
use crate::policy::hot_keys::HotSettings as Detection;

fn easily_hot(mode: Mode) -> Rig {
    Rig::with(2, 1, |settings| {
        settings.hot.mode = mode;
        settings.hot.detection =
            Detection { least_per_second: 10, least_share_per_mille: 0, ..Detection::default() };
    })
}

impl Rig {
    /// Answers all unanswered requests at stores, in order: PTTL as for a key without expiry, others with a
    /// value.
    fn answer_all(&mut self) {
        while let Some(sent) = self.at_stores.first() {
            let is_ahead = sent.frame.contains("PTTL");
            self.answer_next(if is_ahead { ":-1\r\n" } else { "$1\r\nv\r\n" });
        }
    }

    fn heat(&mut self, client: usize, key: &str) {
        for _ in 0..60 {
            self.wait(Duration::from_millis(10));
            self.send(client, &[&["GET", key]]);
            self.answer_all();
        }
        self.told(client);
    }

    /// Returns the part about hot keys of the reply to a client's `QOS EXPLAIN` of a request.
    fn forecast(&mut self, client: usize, words: &[&str]) -> String {
        self.send(client, &[&[&["QOS", "EXPLAIN"], words].concat()]);
        let told = self.told(client);
        let (_, behind) = told.split_once("$3\r\nhot\r\n").unwrap_or_else(|| panic!("{told}"));
        behind.split("\r\n").nth(1).expect("a text").to_owned()
    }
}

#[test]
fn what_would_become_of_a_request_is_told_and_nothing_done() {
    let mut rig = easily_hot(Mode::On);
    let [here, there] = [rig.key(0, 0), rig.key(1, 0)];
    let (one, other, elsewhere) = (rig.client(0), rig.client(0), rig.client(1));
    assert_eq!(rig.forecast(one, &["GET", &here]), "cold");
    rig.heat(one, &here);
    assert_eq!(rig.shards[0].hot_figures().kept, 1);
    let known = |rig: &Rig| {
        let shard = &rig.shards[0];
        let hot = COUNTERS.iter().filter(|row| row.1.starts_with("weir_hot"));
        let counted: Vec<u64> = hot.map(|row| shard.counters().get(row.0)).collect();
        (counted, shard.hot_figures(), shard.hot_keys()[0].hit_ratio.to_bits())
    };
    let before = known(&rig);
    let long = format!("{here}{}", "x".repeat(limits::HOT_FRAME_BYTES_MAX));
    for (words, told) in [
        (&["GET", &here][..], "hot: answered from memory"),
        (&["STRLEN", &here], "hot: would be fetched"),
        (&["TTL", &here], "hot: goes on (replies to this command are not kept)"),
        (&["SET", &here, "x"], "hot: goes on (a write: nothing that was read before it is used any more)"),
        (&["HMGET", &here, &long], "hot: goes on (the request is too long)"),
        (&["MGET", &here, &there], "several keys: goes on where one of them is not hot"),
        (&["MGET", &here, &here], "several keys: goes on where one of them is not hot"),
        (&["EXISTS", &here, &there], "several keys: goes on"),
        (&["EXISTS", &here, &here], "several keys: goes on"),
        (&["GET", &there], "core 1 decides: the key is at home there"),
        (&["EVAL", "code", "0"], "no key"),
        (&["GET", ""], "no key"),
    ] {
        assert_eq!(rig.forecast(one, words), told, "{words:?}");
    }
    assert_eq!(rig.forecast(elsewhere, &["GET", &here]), "core 0 decides: the key is at home there");
    assert_eq!(known(&rig), before);
    assert!(rig.at_stores.is_empty());

    rig.send(other, &[&["STRLEN", &here]]);
    assert_eq!(rig.forecast(one, &["STRLEN", &here]), "hot: would wait for what is being fetched");
    rig.answer_all();
    assert_eq!(rig.forecast(one, &["STRLEN", &here]), "hot: answered from memory");
    rig.send(other, &[&["SET", &here, "x"]]);
    assert_eq!(rig.forecast(one, &["GET", &here]), "hot: would be fetched", "for those who ask meanwhile");
    rig.answer_next("+OK\r\n");
    assert_eq!(rig.forecast(one, &["GET", &here]), "hot: would be fetched");
}

#[test]
fn a_layer_that_is_off_or_in_shadow_is_said_to_be() {
    let mut rig = easily_hot(Mode::Shadow);
    let (client, key) = (rig.client(0), rig.key(0, 0));
    rig.heat(client, &key);
    assert_eq!(rig.forecast(client, &["GET", &key]), "shadow: hot: answered from memory");
    let mut rig = easily_hot(Mode::Off);
    let client = rig.client(0);
    rig.heat(client, &key);
    assert_eq!(rig.forecast(client, &["GET", &key]), "off");
    assert_eq!((rig.shards[0].hot_keys().len(), rig.shards[0].hot_figures().keys), (0, 0));
}
