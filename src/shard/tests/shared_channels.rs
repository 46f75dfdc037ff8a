//! Tests of channels for which clients of several cores share one subscription at the store.

use super::subscriptions::{asked, greet, message, said};
use super::*;

/// Returns a test rig (shards with scripted stores and clients) whose clients share subscriptions: weir
/// subscribes once to each channel for all of them.
fn sharing(shards: u16, backends: u16, change: impl Fn(&mut ShardSettings)) -> Rig {
    let mut rig = Rig::with(shards, backends, |settings| {
        settings.private_links_max = 20;
        change(settings);
    });
    let terms = quotas("[default]\nadmin = true\npubsub = \"shared\"");
    for shard in &mut rig.shards {
        shard.handle_quotas(Arc::clone(&terms), rig.now);
    }
    rig
}

/// Subscribes a client to a channel, and answers weir's own SUBSCRIBE, which has to be the only request at
/// stores. Returns that request, which names its connection.
fn subscribe(rig: &mut Rig, client: usize, name: &str) -> Sent {
    rig.send(client, &[&["SUBSCRIBE", name]]);
    greet(rig);
    let over = rig.frames(name)[0].clone();
    rig.answer_first(name, &said("subscribe", name, 1));
    assert_eq!(rig.told(client), said("subscribe", name, 1));
    over
}

fn in_resp3(text: &str) -> String {
    format!(">{}", &text[1..])
}

#[test]
fn clients_of_two_cores_share_a_subscription_and_each_has_its_dialect() {
    let mut rig = sharing(2, 1, |_| {});
    let [one, two, publisher] = [rig.client(0), rig.client(1), rig.client(0)];
    let name = rig.key(1, 0);
    rig.send(two, &[&["HELLO", "3"]]);
    rig.told(two);
    let over = subscribe(&mut rig, one, &name);
    assert_eq!(over.shard, 1, "the home core of the name");
    rig.bytes(&over, message(&name, "first").as_bytes());
    rig.send(two, &[&["SUBSCRIBE", &name], &["PING"]]);
    assert_eq!(asked(&rig), [format!("0 subscribe {name}")]);
    rig.bytes(&over, message(&name, "second").as_bytes());
    assert_eq!(rig.told(two), "", "nothing before the acknowledgement");
    rig.answer_first(&name, &said("subscribe", &name, 1));
    rig.bytes(&over, message(&name, "third").as_bytes());
    let heard = ["first", "second", "third"].map(|text| message(&name, text)).concat();
    assert_eq!(rig.told(one), heard);
    let acknowledged = in_resp3(&said("subscribe", &name, 1));
    assert_eq!(rig.told(two), acknowledged + "+PONG\r\n" + &in_resp3(&message(&name, "third")));

    rig.send(publisher, &[&["PUBLISH", &name, "x"], &["PUBSUB", "NUMSUB", &name, "none"]]);
    rig.answer_first("PUBLISH", ":3\r\n");
    let told = |count: u32| format!("*4\r\n${}\r\n{name}\r\n:{count}\r\n$4\r\nnone\r\n:0\r\n", name.len());
    rig.answer_first("NUMSUB", &told(1));
    assert_eq!(rig.told(publisher), ":4\r\n".to_owned() + &told(2));
    assert_eq!(rig.shards[1].shared_channels(), [1, 0]);

    // The last client that leaves ends the subscription.
    rig.send(one, &[&["UNSUBSCRIBE"]]);
    assert_eq!(rig.told(one), said("unsubscribe", &name, 0));
    assert_eq!(asked(&rig), [""; 0]);
    let id = rig.id(two);
    rig.shards[1].handle_client_lost(id);
    rig.turns();
    assert_eq!(asked(&rig), [format!("0 unsubscribe {name}")]);
    rig.answer_next(&said("unsubscribe", &name, 0));
    assert_eq!(rig.shards[1].shared_channels(), [0, 0]);
    rig.send(publisher, &[&["PUBLISH", &name, "x"]]);
    rig.answer_first("PUBLISH", ":1\r\n");
    assert_eq!(rig.told(publisher), ":1\r\n", "the one of somebody else");
}

#[test]
fn the_loss_of_the_link_closes_subscribers_and_refuses_those_on_their_way() {
    let mut rig = sharing(2, 1, |_| {});
    let [subscribed, coming] = [rig.client(0), rig.client(1)];
    let name = rig.key(1, 0);
    let over = subscribe(&mut rig, subscribed, &name);
    rig.send(coming, &[&["SUBSCRIBE", &name], &["PING"]]);
    rig.lose(&name);
    assert!(rig.actions.contains(&(0, Action::Close(Owner::Client(rig.id(subscribed))))));
    let told = rig.told(coming);
    assert_eq!(told, "-UNAVAILABLE backend=store0 reason=connection-lost retry_after_ms=50\r\n+PONG\r\n");
    assert_eq!(rig.shards[1].shared_channels(), [0, 0]);
    let again = subscribe(&mut rig, coming, &name);
    assert_ne!((again.link, again.generation), (over.link, over.generation), "over another connection");
    rig.bytes(&again, message(&name, "x").as_bytes());
    assert_eq!(rig.told(coming), message(&name, "x"));
}

#[test]
fn a_subscription_that_was_not_sent_when_the_link_was_lost_does_not_end_the_next_link() {
    let mut rig = sharing(2, 1, |_| {});
    let [coming, subscribed] = [rig.client(0), rig.client(1)];
    let name = rig.key(1, 0);
    let over = subscribe(&mut rig, subscribed, &name);
    // The home core of the name is told of the next subscription, and has not asked the store when the link is lost.
    let id = rig.id(coming);
    rig.shards[0].handle_client_bytes(id, &request(&["SUBSCRIBE", &name]), rig.now);
    rig.shards[0].handle_turn_end(rig.now);
    while let Some((_, batch)) = rig.shards[0].poll_batch() {
        rig.shards[1].handle_batch(batch, rig.now);
    }
    rig.shards[1].handle_link_lost(over.link, over.generation, Loss::ByPeer, rig.now);
    rig.turns();
    let told = rig.told(coming);
    assert_eq!(told, "-UNAVAILABLE backend=store0 reason=connection-lost retry_after_ms=50\r\n");
    assert_eq!(asked(&rig), [""; 0]);
    let again = subscribe(&mut rig, coming, &name);
    rig.bytes(&again, message(&name, "x").as_bytes());
    assert_eq!(rig.told(coming), message(&name, "x"));
}

#[test]
fn a_refused_name_takes_the_others_of_its_command_along() {
    let mut rig = sharing(1, 2, |settings| settings.clients.shared_channels_max = [1, 1]);
    let client = rig.client(0);
    let [near, far] = [rig.key(0, 0), rig.key(0, 1)];
    rig.send(client, &[&["SUBSCRIBE", &near, &far]]);
    greet(&mut rig);
    assert_eq!(asked(&rig), [format!("0 subscribe {near}")]);
    assert_eq!(rig.told(client), "", "a store has not answered");
    rig.answer_first(&near, &said("subscribe", &near, 1));
    assert!(rig.told(client).starts_with("-OVERLOADED reason=channels backend=store1 "));
    assert_eq!(asked(&rig), [format!("0 unsubscribe {near}")]);
    rig.answer_next(&said("unsubscribe", &near, 0));
    rig.send(client, &[&["PSUBSCRIBE", "n*"]]);
    greet(&mut rig);
    assert_eq!(asked(&rig), ["0 psubscribe n*", "1 psubscribe n*"], "a pattern is heard from all stores");
    rig.answer_next("-NOPERM no\r\n");
    rig.answer_next(&said("psubscribe", "n*", 1));
    assert_eq!(rig.told(client), "-NOPERM no\r\n");
    assert_eq!(asked(&rig), ["0 punsubscribe n*", "1 punsubscribe n*"]);
}

#[test]
fn a_subscriber_that_does_not_read_is_closed_and_no_other_waits_for_it() {
    for slow_bytes in [5_000, 100_000] {
        let mut rig = sharing(1, 1, |settings| {
            settings.clients.subscriber_bytes_max = 10_000;
            settings.clients.subscriber_slow_bytes = slow_bytes;
            settings.clients.subscriber_slow_time = Duration::from_secs(2);
        });
        let client = rig.client(0);
        let over = subscribe(&mut rig, client, "news");
        rig.reading = Reading::Never;
        let text = "x".repeat(1_000);
        for _ in 0..8 {
            rig.bytes(&over, message("news", &text).as_bytes());
        }
        assert_eq!(rig.shards[0].clients_open(), 1, "one is with the socket, seven wait");
        if slow_bytes == 5_000 {
            for _ in 0..4 {
                rig.wait(Duration::from_secs(1));
            }
        } else {
            for _ in 0..4 {
                rig.bytes(&over, message("news", &text).as_bytes());
            }
        }
        assert_eq!(rig.shards[0].clients_open(), 0);
        assert_eq!(rig.counted(Counter::ClientsClosedSubscriber), 1);
        assert_eq!(asked(&rig), ["0 unsubscribe news"]);
    }
}

#[test]
fn names_of_events_and_long_names_have_links_of_their_own() {
    let mut rig = sharing(1, 1, |_| {});
    let client = rig.client(0);
    let long = "n".repeat(2_000);
    for (index, name) in ["__keyevent@0__:set", &long, "news"].into_iter().enumerate() {
        rig.send(client, &[&["SUBSCRIBE", name]]);
        greet(&mut rig);
        rig.answer_first(name, &said("subscribe", name, 1));
        assert_eq!(rig.told(client), said("subscribe", name, index + 1));
    }
    let figures = rig.shards[0].private_links();
    assert_eq!((figures.subscribed, figures.shared, rig.shards[0].subscribers()), (1, 1, 1));
    rig.send(client, &[&["RESET"]]);
    assert_eq!(rig.told(client), "+RESET\r\n");
    assert_eq!(asked(&rig), ["0 unsubscribe news"], "the other link is closed");
}

#[test]
fn a_flood_closes_the_subscribers_of_its_own_channel_only() {
    let mut rig = sharing(2, 1, |_| {});
    let [near, far, other] = [rig.client(0), rig.client(1), rig.client(1)];
    let [name, quiet] = [rig.key(0, 0), "quiet".to_owned()];
    let over = subscribe(&mut rig, near, &name);
    subscribe(&mut rig, far, &name);
    let calm = subscribe(&mut rig, other, &quiet);
    let flood = message(&name, &"x".repeat(1_000_000));
    for _ in 0..=limits::SHARED_MESSAGES_BYTES_MAX / flood.len() {
        rig.shards[0].handle_link_bytes(over.link, over.generation, flood.as_bytes(), rig.now);
    }
    rig.turns();
    assert_eq!(rig.counted(Counter::ClientsClosedMissed), 2, "one on each core");
    assert_eq!(asked(&rig), [format!("0 unsubscribe {name}")]);
    rig.bytes(&calm, message(&quiet, "still").as_bytes());
    assert_eq!(rig.told(other), message(&quiet, "still"));
}

#[test]
fn a_turn_delivers_a_bounded_number_of_messages_and_the_next_goes_on() {
    let mut rig = sharing(1, 1, |_| {});
    let client = rig.client(0);
    let over = subscribe(&mut rig, client, "news");
    let count = limits::SHARED_DELIVERIES_PER_TURN + 10;
    let all: String = (0..count).map(|number| message("news", &number.to_string())).collect();
    rig.shards[0].handle_link_bytes(over.link, over.generation, all.as_bytes(), rig.now);
    rig.shards[0].handle_turn_end(rig.now);
    assert_eq!(rig.counted(Counter::MessagesDelivered), limits::SHARED_DELIVERIES_PER_TURN as u64);
    assert!(rig.shards[0].is_busy());
    rig.turns();
    assert_eq!(rig.told(client), all);
}
