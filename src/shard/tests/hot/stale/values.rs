//! Tests of `stale_on_error` for MGET of several keys, while stores are away.

use super::*;

/// Returns a test rig (shards with scripted stores and clients), two clients of a tenant that accepts expired
/// replies while stores are away, and two hot keys whose cached replies have expired.
fn keen_of_two() -> (Rig, [usize; 2], [String; 2]) {
    let (mut rig, clients, key) = with_hot_key();
    let other = format!("{{{key}}}2");
    rig.make_hot(clients[0], &other);
    rig.put_in_force_as(KEEN, 0);
    rig.keep(clients[0], &key, "v");
    rig.keep(clients[0], &other, "w");
    rig.wait(TTL);
    (rig, clients, [key, other])
}

#[test]
fn values_that_are_kept_are_told_together_and_no_longer_than_each() {
    let (mut rig, [client, other], [key, second]) = keen_of_two();
    let read_at = rig.now.monotonic;
    assert_eq!(rig.goes_away(client, &key), bulk("v"));
    let mut last = read_at;
    loop {
        let told = rig.asked(other, &["MGET", &second, &key]);
        if told != both("w", "v") {
            assert!(told.starts_with("-UNAVAILABLE backend=store0 reason=connect-failed"), "{told}");
            break;
        }
        last = rig.now.monotonic;
        // No other request reads the keys, so their heat stays as it is.
        rig.wait(10 * MILLISECOND);
    }
    let longest = last.since(read_at);
    assert!(longest < LONGER && longest + 40 * MILLISECOND > LONGER, "{longest:?}");
    assert!(rig.counted(Counter::HotStaleOnError) > 2 * 100);
    assert!(rig.shards[0].hot_keys().iter().all(|key| key.state == "stale" && key.hit_ratio <= 1.0));
    assert_eq!(rig.figures().writes_under_way, 0);
}

#[test]
fn values_are_told_where_the_store_is_away_and_where_it_answers_its_answer_counts() {
    for (reply, is_away) in [
        ("-LOADING Redis is loading the dataset in memory\r\n", true),
        ("-UNAVAILABLE backend=behind reason=connect-failed retry_after_ms=50\r\n", true),
        ("-OVERLOADED reason=queue backend=behind retry_after_ms=50\r\n", false),
        ("-BUSY Redis is busy\r\n", false),
        ("*2\r\n$1\r\nv\r\n$3\r\nnew\r\n", false),
    ] {
        let (mut rig, [client, _], [key, second]) = keen_of_two();
        let told = rig.ask(client, &["MGET", &key, &second], "", reply).0;
        assert_eq!(told, if is_away { both("v", "w") } else { reply.to_owned() }, "{reply}");
        assert_eq!(rig.counted(Counter::HotStaleOnError), if is_away { 2 } else { 0 });
    }
}

#[test]
fn values_are_told_of_a_store_that_stands_still() {
    let (mut rig, [client, other], key) = keen_where_stalls_are_seen();
    rig.send(client, &[&["MGET", &key, &key], &["GET", &key]]);
    let second = format!("{{{key}}}2");
    rig.send(other, &[&["MGET", &key, &second]]);
    rig.wait(Duration::from_millis(1_100));
    // An MGET that names a key twice, or a key that is not cached, gets no cached values.
    let told = rig.told(client);
    assert!(told.starts_with("-OVERLOADED reason=stalled"), "{told}");
    let told = rig.told(other);
    assert!(told.starts_with("-OVERLOADED reason=stalled"), "{told}");
    assert_eq!(rig.asked(other, &["MGET", &key]), format!("*1\r\n{}", bulk("v")));
    assert_eq!(rig.asked(client, &["MGET", &key]), format!("*1\r\n{}", bulk("v")));
}

#[test]
fn a_part_whose_store_is_away_is_told_from_memory_beside_one_that_answers() {
    let mut rig = eager_before(1, 2, |_| {});
    let client = rig.client(0);
    let keys = [rig.key(0, 0), rig.key(0, 1)];
    rig.make_hot(client, &keys[0]);
    rig.put_in_force_as(KEEN, 0);
    rig.keep(client, &keys[0], "v");
    rig.wait(TTL);
    rig.send(client, &[&["MGET", &keys[1], &keys[0], &keys[1]]]);
    rig.connecting = Connecting::Fails;
    rig.lose(&keys[0]);
    assert_eq!(rig.told(client), "");
    rig.answer_next("*2\r\n$1\r\nx\r\n$1\r\ny\r\n");
    assert_eq!(rig.told(client), format!("*3\r\n{}{}{}", bulk("x"), bulk("v"), bulk("y")));
    // A key that is not cached gets an error in its own part, which does not affect the other parts.
    let cold = format!("{{{}}}cold", keys[0]);
    rig.send(client, &[&["MGET", &keys[1], &keys[0], &cold]]);
    rig.answer_next("*1\r\n$1\r\nx\r\n");
    let told = rig.told(client);
    assert!(told.starts_with(&format!("*3\r\n{}-UNAVAILABLE", bulk("x"))), "{told}");
}

#[test]
fn values_are_not_told_that_a_write_has_or_may_have_replaced() {
    for (write, reply) in [
        ("SET KEY x", "+OK\r\n"),
        ("SET KEY2 x", "-OOM no\r\n"),
        ("SET KEY x", "LOST"),
        ("MSET KEY x KEY2 x", "+OK\r\n"),
        ("EVAL code 0", ":1\r\n"),
        ("FLUSHALL", "+OK\r\n"),
    ] {
        // The write comes from the client itself, or from another.
        for writer in 0..2 {
            let (mut rig, clients, [key, second]) = keen_of_two();
            let name = |word: &str| word.replace("KEY2", &second).replace("KEY", &key);
            let words: Vec<String> = write.split(' ').map(name).collect();
            rig.send(clients[writer], &[&words.iter().map(String::as_str).collect::<Vec<_>>()]);
            match reply {
                "LOST" => rig.lose(&words[0]),
                reply => rig.answer_next(reply),
            }
            rig.told(clients[writer]);
            rig.send(clients[0], &[&["MGET", &key, &second]]);
            rig.connecting = Connecting::Fails;
            rig.lose("MGET");
            for _ in 0..30 {
                let told = rig.told(clients[0]);
                assert!(told.starts_with("-UNAVAILABLE"), "{write}: {told}");
                rig.wait(10 * MILLISECOND);
                rig.send(clients[0], &[&["MGET", &key, &second]]);
            }
        }
    }
}

#[test]
fn values_are_told_though_somebody_tries_to_write_in_vain() {
    let (mut rig, [client, writer], [key, second]) = keen_of_two();
    assert_eq!(rig.goes_away(client, &key), bulk("v"));
    assert!(rig.asked(writer, &["SET", &key, "x"]).starts_with("-UNAVAILABLE"));
    assert_eq!(rig.asked(client, &["MGET", &key, &second]), both("v", "w"));
}

#[test]
fn nobody_is_told_a_value_that_is_older_than_one_they_have_read() {
    // A client that does not use weir writes the key, and a client that reads it sees the new value in one
    // way or another.
    for (words, reply) in [
        (&["MGET", "KEY", "KEY2"][..], "*2\r\n$3\r\nnew\r\n$1\r\nw\r\n"),
        (&["MGET", "KEY2", "cold", "KEY"], "*3\r\n$1\r\nw\r\n$-1\r\n$3\r\nnew\r\n"),
        (&["MGET", "KEY"], "*1\r\n$3\r\nnew\r\n"),
        (&["get", "KEY"], "$3\r\nnew\r\n"),
    ] {
        let (mut rig, [client, _], [key, second]) = keen_of_two();
        let name = |word: &&str| match *word {
            "cold" => format!("{{{key}}}3"),
            word => word.replace("KEY2", &second).replace("KEY", &key),
        };
        let asked: Vec<String> = words.iter().map(name).collect();
        let asked: Vec<&str> = asked.iter().map(String::as_str).collect();
        rig.send(client, &[&asked]);
        // The keys expire at once, so that no reply replaces a cached one.
        rig.serve_each(":0\r\n", |name| match name {
            name if name == key => bulk("new"),
            name if name == second => bulk("w"),
            _ => "$-1\r\n".to_owned(),
        });
        assert_eq!(rig.told(client), reply);
        rig.send(client, &[&["MGET", &key, &second], &["GET", &key], &["GET", &second]]);
        rig.connecting = Connecting::Fails;
        rig.lose("GET");
        let told = rig.told(client);
        assert_eq!(told.matches("-UNAVAILABLE").count(), 2, "{words:?}: {told}");
        assert!(told.ends_with(&bulk("w")), "{words:?}: {told}");
    }
}

#[test]
fn a_value_is_not_told_beyond_the_end_of_its_key() {
    let (mut rig, [client, other], key) = with_hot_key();
    let second = format!("{{{key}}}2");
    rig.make_hot(client, &second);
    rig.put_in_force_as(KEEN, 0);
    rig.keep(client, &second, "w");
    rig.ask(client, &["GET", &key], ":500\r\n", "$1\r\nv\r\n");
    let read_at = rig.now.monotonic;
    rig.wait(TTL);
    assert_eq!(rig.goes_away(client, &key), bulk("v"));
    while rig.asked(other, &["MGET", &key, &second]) == both("v", "w") {
        assert!(rig.now.monotonic.since(read_at) < Duration::from_millis(500));
        rig.wait(5 * MILLISECOND);
    }
    assert!(rig.now.monotonic.since(read_at) >= Duration::from_millis(490));
}

#[test]
fn only_tenants_that_want_that_are_told_old_values() {
    let (mut rig, [client, other], [key, second]) = keen_of_two();
    rig.put_in_force_as(BOTH, 1);
    assert_eq!(rig.asked(client, &["AUTH", "keen", "k"]), "+OK\r\n");
    for asker in [client, other] {
        rig.send(asker, &[&["MGET", &key, &second]]);
    }
    rig.connecting = Connecting::Fails;
    rig.lose("MGET");
    assert_eq!(rig.told(client), both("v", "w"));
    assert!(rig.told(other).starts_with("-UNAVAILABLE"));
    // For a request in flight whose tenant's quotas change meanwhile, weir does not know any more what the
    // tenant accepts.
    rig.connecting = Connecting::Works;
    rig.wait(300 * MILLISECOND);
    rig.send(client, &[&["MGET", &key, &second]]);
    rig.put_in_force_as(&BOTH.replace("2s", "0"), 2);
    rig.lose("MGET");
    assert!(rig.told(client).starts_with("-UNAVAILABLE"));
}
