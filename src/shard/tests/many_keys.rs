//! Tests of requests with very many keys, which are split and joined over several turns.

use super::key_tracking::greet;
use super::neighbours::TWO_TENANTS;
use super::*;
use crate::shard::clients::Client;
use crate::values::limits::KEYS_PER_TURN;
use crate::values::random::Random;

/// The number of bytes that one read of a client's socket returns in these tests.
const CHUNK_BYTES: usize = 16 * 1024;
const MANY: usize = 3 * KEYS_PER_TURN;

impl Rig {
    /// Hands over bytes of a client as they come from a socket, in pieces of 16 KiB, without ending the turn
    /// (pass of the shard's loop).
    fn pour(&mut self, client: usize, bytes: &[u8]) {
        let (shard, id) = self.clients[client];
        for chunk in bytes.chunks(CHUNK_BYTES) {
            self.shards[shard].handle_client_bytes(id, chunk, self.now);
        }
    }

    /// Ends a turn (pass of the loop) of the first core, carries out the actions that it asked for, and takes
    /// its output.
    fn one_turn(&mut self) {
        self.shards[0].handle_turn_end(self.now);
        self.shards[0].handle_quiet();
        while let Some(action) = self.shards[0].poll_action() {
            self.act(0, action);
        }
        while let Some((owner, segment)) = self.shards[0].poll_transmit() {
            self.transmit(0, owner, segment, 0);
        }
    }

    /// Answers all unanswered requests at stores; `reply` makes each reply from the request's words and its
    /// backend.
    fn answer_each(&mut self, reply: impl Fn(&[String], BackendId) -> String) {
        while !self.at_stores.is_empty() {
            let sent = self.at_stores.remove(0);
            let words = words_of(&sent.frame);
            self.bytes(&sent, reply(&words, sent.backend).as_bytes());
        }
    }

    /// Answers the oldest unanswered request that contains `word`, without ending the turn (pass of the
    /// shard's loop). Without `reply`, the reply is that of a store which has values for two of three keys.
    fn reply_quietly(&mut self, word: &str, reply: Option<&str>) {
        let at = self.at_stores.iter().position(|sent| sent.frame.contains(word)).expect("it was sent");
        let Sent { shard, link, generation, frame, .. } = self.at_stores.remove(at);
        let reply = reply.map_or_else(|| reply_of_store(&words_of(&frame)), str::to_owned);
        self.shards[shard].handle_link_bytes(link, generation, reply.as_bytes(), self.now);
    }

    /// Runs turns (passes of the loop) of the first core until `has_ended`, and checks that another client
    /// (`neighbour`) gets a reply in each of them: a request with very many keys must not hold others up.
    /// Returns the number of turns.
    fn turns_with_neighbour(&mut self, neighbour: usize, has_ended: impl Fn(&mut Self) -> bool) -> usize {
        for turn in 0..1_000 {
            if has_ended(self) {
                return turn;
            }
            self.pour(neighbour, b"PING\r\n");
            self.one_turn();
            assert_eq!(self.told(neighbour), "+PONG\r\n");
        }
        panic!("it goes on for ever");
    }
}

fn words_of(frame: &str) -> Vec<String> {
    frame.split("\r\n").skip(2).step_by(2).map(str::to_owned).collect()
}

fn value_of(key: &str) -> String {
    match key.len() % 3 {
        0 => "$-1\r\n".to_owned(),
        _ => format!("${}\r\nv{key}\r\n", key.len() + 1),
    }
}

/// Returns the reply to a request with these words of a store that has a value for two of three keys, by
/// their lengths.
fn reply_of_store(words: &[String]) -> String {
    match words[0].as_str() {
        "MGET" => {
            let values: String = words[1..].iter().map(|key| value_of(key)).collect();
            format!("*{}\r\n{values}", words.len() - 1)
        }
        "MSET" => "+OK\r\n".to_owned(),
        _ => format!(":{}\r\n", words[1..].iter().filter(|key| key.len() % 3 > 0).count()),
    }
}

fn many(name: &str, keys: usize, random: &mut Random) -> Vec<String> {
    let mut words = vec![name.to_owned()];
    for number in 0..keys {
        // Some keys occur several times.
        words.push(format!("{}-{}", "k".repeat(random.below(9) as usize), random.below(keys as u64)));
        if name == "MSET" {
            words.push(format!("value-{number}"));
        }
    }
    words
}

fn frame_of(words: &[String]) -> Vec<u8> {
    request(&words.iter().map(String::as_str).collect::<Vec<_>>())
}

#[test]
fn over_several_turns_the_same_is_sent_and_answered_as_in_one() {
    let mut random = Random::new(7);
    for (shards, backends, lanes) in [(1, 1, 1), (1, 3, 1), (2, 2, 2), (1, 1, 3)] {
        for name in ["MGET", "MSET", "DEL", "EXISTS", "UNLINK", "TOUCH"] {
            let keys = KEYS_PER_TURN + random.below(MANY as u64) as usize;
            let words = many(name, keys, &mut random);
            let make = || Rig::with(shards, backends, |settings| settings.links_per_backend = lanes);
            let mut rigs = [make(), make()];
            let clients = rigs.each_mut().map(|rig| rig.client(0));
            // A request that arrives in one piece is split in one turn.
            rigs[0].raw(clients[0], &frame_of(&words));
            rigs[1].pour(clients[1], &frame_of(&words));
            rigs[1].turns();
            assert_eq!(rigs.each_ref().map(|rig| rig.counted(Counter::RequestsInSteps)), [0, 1]);
            let sent = rigs.each_ref().map(|rig| {
                let sent = rig.at_stores.iter().map(|sent| (sent.shard, sent.link, &sent.frame));
                sent.collect::<Vec<_>>()
            });
            assert!(sent[0] == sent[1], "{name} with {shards} cores, {backends} stores, {lanes} lanes");
            let whole = reply_of_store(&words);
            for (rig, client) in rigs.iter_mut().zip(clients) {
                rig.answer_each(|words, _| reply_of_store(words));
                assert!(rig.told(client) == whole, "{name}: the reply of one store that has all keys");
                assert_eq!((rig.shards[0].gathers_open(), rig.shards[0].is_busy()), (0, false));
            }
        }
    }
}

#[test]
fn a_part_that_failed_fails_only_its_own_keys_of_very_many() {
    let mut random = Random::new(8);
    for failure in ["-ERR no\r\n", "+strange\r\n", "*1\r\n$5\r\nfirst\r\n"] {
        let mut rig = Rig::new(1, 3);
        let client = rig.client(0);
        let words = many("MGET", MANY, &mut random);
        rig.pour(client, &frame_of(&words));
        rig.turns();
        rig.answer_each(
            |words, backend| if backend.0 == 1 { failure.to_owned() } else { reply_of_store(words) },
        );
        let mut is_first = true;
        let expected: String = words[1..]
            .iter()
            .map(|key| {
                if rig.topology.backend_of(slot_of(key.as_bytes())).0 != 1 {
                    return value_of(key);
                }
                match failure.as_bytes()[0] {
                    b'-' => failure.to_owned(),
                    b'*' if std::mem::take(&mut is_first) => "$5\r\nfirst\r\n".to_owned(),
                    _ => "-ERR the store returned fewer values than requested\r\n".to_owned(),
                }
            })
            .collect();
        assert!(rig.told(client) == format!("*{MANY}\r\n{expected}"), "{failure}");
    }
}

#[test]
fn a_joined_reply_above_the_limit_is_an_error_and_the_client_stays() {
    let mut rig = Rig::with(1, 2, |settings| settings.output_bytes_max = 600_000);
    let client = rig.client(0);
    rig.pour(client, &frame_of(&many("MGET", MANY, &mut Random::new(9))));
    rig.turns();
    // Each part's reply is below the limit, and both together are above it.
    rig.answer_each(|words, _| {
        format!(
            "*{0}\r\n{1}",
            words.len() - 1,
            format!("$60\r\n{}\r\n", "x".repeat(60)).repeat(words.len() - 1)
        )
    });
    assert!(rig.told(client).starts_with("-ERR the reply is larger than the limit"));
    assert!(rig.is_open(client));
}

#[test]
fn other_clients_are_answered_in_every_turn_of_a_request_with_very_many_keys() {
    let mut rig = Rig::new(1, 2);
    let [greedy, neighbour] = [rig.client(0), rig.client(0)];
    let words = many("MGET", MANY, &mut Random::new(10));
    rig.pour(greedy, &frame_of(&words));
    let split_in = rig.turns_with_neighbour(neighbour, |rig| rig.at_stores.len() == 2);
    assert!(split_in >= 2 * MANY / KEYS_PER_TURN, "split in {split_in} turns");
    (0..2).for_each(|_| rig.reply_quietly("MGET", None));
    let joined_in = rig.turns_with_neighbour(neighbour, |rig| !rig.shards[0].is_busy());
    assert!(joined_in >= MANY / KEYS_PER_TURN, "joined in {joined_in} turns");
    rig.turns();
    assert!(rig.told(greedy) == reply_of_store(&words));
}

#[test]
fn very_many_keys_inside_a_call_take_several_turns_too() {
    let mut rig = Rig::new(1, 2);
    let [greedy, neighbour] = [rig.client(0), rig.client(0)];
    let words = many("MGET", MANY, &mut Random::new(17));
    let call = ["QOS", "CALL", "DEADLINE", "50"].map(str::to_owned);
    let mut bytes = frame_of(&[&call[..], &words[..]].concat());
    bytes.extend(request(&["PING"]));
    rig.pour(greedy, &bytes);
    let split_in = rig.turns_with_neighbour(neighbour, |rig| rig.at_stores.len() == 2);
    assert!(split_in >= 2 * MANY / KEYS_PER_TURN, "split in {split_in} turns");
    assert_eq!(rig.counted(Counter::RequestsInSteps), 1);
    rig.answer_each(|words, _| reply_of_store(words));
    assert!(rig.told(greedy) == reply_of_store(&words) + "+PONG\r\n");
}

#[test]
fn very_many_keys_of_which_too_many_are_the_same_are_refused_and_counted_in_turns() {
    for (repeated, is_refused) in [(1_024, false), (1_025, true)] {
        let mut rig = Rig::new(1, 2);
        let [greedy, neighbour] = [rig.client(0), rig.client(0)];
        let names = (0..MANY).map(|number| format!("k{}", number.saturating_sub(repeated)));
        let words: Vec<String> = std::iter::once("MGET".to_owned()).chain(names).collect();
        rig.pour(greedy, &frame_of(&words));
        let counted_in = rig.turns_with_neighbour(neighbour, |rig| !rig.shards[0].is_busy());
        assert!(counted_in >= MANY / KEYS_PER_TURN, "counted in {counted_in} turns");
        assert_eq!(rig.at_stores.is_empty(), is_refused);
        assert_eq!(rig.told(greedy).starts_with("-ERR MGET may name at most 1024 keys"), is_refused);
    }
}

#[test]
fn requests_behind_one_with_very_many_keys_keep_their_order() {
    let mut rig = Rig::with(1, 2, |settings| settings.heavy_links = 0);
    let client = rig.client(0);
    let words = many("MGET", MANY, &mut Random::new(11));
    let behind = [&["SET", words[1].as_str(), "1"][..], &["PING"], &["GET", &words[1]]];
    let mut bytes = request(&["GET", &words[1]]);
    bytes.extend(frame_of(&words));
    bytes.extend(behind.iter().flat_map(|words| request(words)));
    rig.pour(client, &bytes);
    assert_eq!(rig.counted(Counter::Requests), 2, "the others wait behind the large one");
    rig.turns();
    assert_eq!(rig.words_at_stores(), ["GET", "MGET", "SET", "GET", "MGET"], "each connection in its order");
    rig.answer_first("\r\nGET", "$1\r\na\r\n");
    for (word, reply) in
        [("MGET", None), ("MGET", None), ("\r\nSET", Some("+OK\r\n")), ("\r\nGET", Some("$1\r\n1\r\n"))]
    {
        rig.reply_quietly(word, reply);
    }
    assert!(rig.shards[0].is_busy(), "the values are still to be joined");
    rig.turns();
    assert!(rig.told(client) == format!("$1\r\na\r\n{}+OK\r\n+PONG\r\n$1\r\n1\r\n", reply_of_store(&words)));
}

#[test]
fn a_client_that_leaves_while_its_keys_are_split_leaves_nothing_behind() {
    let mut rig = Rig::new(1, 2);
    for turns in 0..2 * MANY / KEYS_PER_TURN {
        let client = rig.client(0);
        rig.pour(client, &frame_of(&many("MGET", MANY, &mut Random::new(12))));
        (0..turns).for_each(|_| rig.one_turn());
        assert!(rig.shards[0].is_busy());
        let id = rig.id(client);
        rig.shards[0].handle_client_lost(id);
        rig.turns();
        assert!(!rig.shards[0].is_busy());
        assert_eq!((rig.shards[0].gathers_open(), rig.shards[0].requests_abandoned()), (0, 0));
        assert!(rig.at_stores.is_empty(), "nothing is sent before all is split");
        assert_eq!(rig.shards[0].clients_open(), 0);
    }
}

#[test]
fn a_client_that_sends_no_more_is_answered_before_it_is_closed() {
    let mut rig = Rig::new(1, 2);
    let client = rig.client(0);
    let words = many("EXISTS", MANY, &mut Random::new(13));
    rig.pour(client, &frame_of(&words));
    let id = rig.id(client);
    rig.shards[0].handle_client_end(id, rig.now);
    assert_eq!(rig.shards[0].readiness(id), Readiness::Owed, "a takeover waits for it");
    rig.turns();
    rig.answer_each(|words, _| reply_of_store(words));
    assert_eq!(rig.told(client), reply_of_store(&words));
    assert!(!rig.is_open(client));
}

#[test]
fn a_reply_that_nobody_waits_for_any_more_is_paid_for_once_and_not_joined() {
    let weights = Weights { base: UNIT, row: UNIT / 1_000, ..FREE };
    for leaves_in in 0..3 {
        let mut rig = Rig::with(1, 2, |settings| settings.admission.weights = weights);
        rig.put_in_force("[default]\nru_per_second = 1_000_000\n");
        let client = rig.client(0);
        let words = many("MGET", MANY, &mut Random::new(14));
        rig.pour(client, &frame_of(&words));
        rig.turns();
        (0..2).for_each(|_| rig.reply_quietly("MGET", None));
        (0..leaves_in).for_each(|_| rig.one_turn());
        assert!(rig.shards[0].is_busy());
        let id = rig.id(client);
        rig.shards[0].handle_client_lost(id);
        rig.turns();
        let shard = &rig.shards[0];
        assert_eq!((shard.is_busy(), shard.gathers_open(), shard.requests_abandoned()), (false, 0, 0));
        rig.now.monotonic = rig.now.monotonic.after(Duration::from_secs(2));
        rig.turns();
        let usage = rig.reports.iter().flat_map(|report| &report.usage);
        let metered: u64 = usage.map(|(_, usage)| usage.admitted).sum();
        assert_eq!(metered, UNIT + MANY as u64 * UNIT / 1_000);
    }
}

#[test]
fn a_request_with_very_many_keys_waits_for_earlier_ones_without_being_split_again() {
    let mut rig = Rig::new(1, 2);
    let client = rig.client(0);
    let words = many("DEL", MANY, &mut Random::new(15));
    let mut bytes = request(&["GET", "first"]);
    bytes.extend(frame_of(&words));
    rig.pour(client, &bytes);
    rig.turns();
    assert_eq!(rig.words_at_stores(), ["GET"], "so large a request has connections of its own");
    assert_eq!((rig.counted(Counter::RequestsInSteps), rig.counted(Counter::RequestsHeld)), (1, 1));
    rig.answer_first("\r\nGET", "$-1\r\n");
    assert_eq!(rig.words_at_stores(), ["DEL"; 2]);
    rig.answer_each(|words, _| reply_of_store(words));
    assert_eq!(rig.told(client), format!("$-1\r\n{}", reply_of_store(&words)));
    assert_eq!(rig.counted(Counter::RequestsInSteps), 1);
}

#[test]
fn a_tenant_is_refused_the_first_of_very_many_keys_that_is_not_its_own() {
    for own in [MANY - 1, KEYS_PER_TURN / 2] {
        let mut rig = Rig::new(1, 2);
        rig.put_in_force(TWO_TENANTS);
        let client = rig.signed_in("acme", "a");
        let mut words = vec!["MGET".to_owned()];
        words.extend((0..own).map(|number| format!("acme:{number}")));
        words.extend((own..MANY).map(|number| format!("other:{number}")));
        for is_changed in [false, true] {
            rig.pour(client, &frame_of(&words));
            rig.one_turn();
            if is_changed {
                // New quotas invalidate everything that was computed about the keys before.
                rig.put_in_force(&TWO_TENANTS.replace("'acme:'", &format!("'acme:', 'other:{own}'")));
            }
            rig.turns();
            let told = rig.told(client);
            let named = if is_changed { own + 1 } else { own };
            if named < MANY {
                assert!(told.ends_with(&format!(", not 'other:{named}'\r\n")), "{told}");
                assert!(rig.at_stores.is_empty());
            } else {
                assert_eq!(rig.words_at_stores(), ["MGET"; 2], "{told}");
            }
        }
        assert_eq!(rig.counted(Counter::RequestsInSteps), 2);
    }
}

#[test]
fn the_memory_of_a_request_that_is_split_is_its_clients_and_bounded() {
    let mut rig = Rig::new(1, 2);
    let client = rig.client(0);
    let held = |rig: &Rig| {
        let (shard, id) = rig.clients[client];
        rig.shards[shard].front().peek(id).map_or(0, Client::memory_bytes)
    };
    let before = held(&rig);
    let words = many("MGET", MANY, &mut Random::new(16));
    let frame = frame_of(&words);
    rig.pour(client, &frame);
    let mut most = 0;
    while rig.at_stores.is_empty() {
        most = held(&rig).max(most);
        rig.one_turn();
    }
    // The request, 8 bytes of positions per key, its parts, and the slack of growing buffers.
    assert!(most > 2 * frame.len() && most < 4 * (frame.len() + 10 * MANY), "{most} of {}", frame.len());
    rig.turns();
    let waiting = held(&rig);
    assert!(waiting < before + 3 * MANY + 50_000, "only the order of the values is left: {waiting}");
    let whole = reply_of_store(&words);
    (0..2).for_each(|_| rig.reply_quietly("MGET", None));
    let joining = held(&rig) - waiting;
    assert!(joining > whole.len() / 10 * 9, "both replies are kept until they are joined: {joining}");
    rig.turns();
    assert!(rig.told(client) == whole);
    assert!(held(&rig) < before + 50_000, "{} after {before}", held(&rig));
}

#[test]
fn a_subscription_does_not_let_very_many_keys_be_split_in_one_turn() {
    let mut rig = Rig::with(1, 2, |settings| settings.private_links_max = 20);
    let [greedy, neighbour] = [rig.client(0), rig.client(0)];
    rig.send(greedy, &[&["HELLO", "3"], &["SUBSCRIBE", "c"]]);
    greet(&mut rig);
    rig.answer_first("subscribe", ">3\r\n$9\r\nsubscribe\r\n$1\r\nc\r\n:1\r\n");
    rig.told(greedy);
    rig.pour(greedy, &frame_of(&many("DEL", MANY, &mut Random::new(18))));
    let split_in = rig.turns_with_neighbour(neighbour, |rig| rig.at_stores.len() == 2);
    assert!(split_in >= 2 * MANY / KEYS_PER_TURN, "split in {split_in} turns");
    assert_eq!(rig.counted(Counter::RequestsInSteps), 1);
}

#[test]
fn requests_with_many_words_count_as_several_of_a_turn() {
    let mut rig = Rig::new(1, 1);
    let client = rig.client(0);
    let words: Vec<String> = many("DEL", 2_000, &mut Random::new(19));
    rig.pour(client, &frame_of(&words).repeat(20));
    let (shard, _) = rig.clients[client];
    let started = rig.shards[shard].counters().get(Counter::Requests);
    assert_eq!(started, 256 / (1 + 2_001 / 64), "until the turn's are used up");
    rig.turns();
    assert_eq!(rig.shards[shard].counters().get(Counter::Requests), 20);
}
