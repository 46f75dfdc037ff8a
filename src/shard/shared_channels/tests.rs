//! Tests of shared channels: random interleavings of joins, leaves, losses and messages between cores, a home
//! core and stores. The reference model gives each client a subscription of its own at a store.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use super::*;
use crate::values::Random;

const STORES: [BackendId; 2] = [BackendId(0), BackendId(1)];
const CORES: u16 = 2;
const NAMES: [(Subscription, &str); 3] =
    [(Subscription::Channels, "a"), (Subscription::Channels, "b"), (Subscription::Patterns, "*")];

/// The subscribers of one channel or pattern as their own core knows them: the number of the set (its
/// generation), and the clients, each with true once its subscription was acknowledged.
type Known = (u32, BTreeMap<ClientId, bool>);

/// A model of a core with subscribers to shared channels, which follows the rules of `clients/listeners.rs`.
#[derive(Default)]
struct Core {
    last_generation: u32,
    names: BTreeMap<usize, Known>,
    to_home: VecDeque<ToHome>,
    from_home: VecDeque<FromHome>,
    /// The messages that each client has heard.
    heard: BTreeMap<ClientId, Vec<u32>>,
    /// The clients that were closed because the subscription to one of their channels or patterns was lost.
    closed: BTreeSet<ClientId>,
    refused: usize,
}

/// A model of a store with one connection: requests that it has received, replies and messages that it has
/// sent, and its subscriptions.
#[derive(Default)]
struct Store {
    requests: VecDeque<Vec<u8>>,
    replies: VecDeque<Vec<u8>>,
    subscribed: BTreeSet<(Vec<u8>, Vec<u8>)>,
}

fn bulk(out: &mut Vec<u8>, words: &[&[u8]]) {
    encode::array(out, words.len());
    words.iter().for_each(|word| encode::bulk(out, word));
}

impl Store {
    /// Carries out the next (P)SUBSCRIBE or (P)UNSUBSCRIBE as a server does; if `refuses`, a subscription
    /// gets an error.
    fn work(&mut self, refuses: bool) {
        let Some(frame) = self.requests.pop_front() else { return };
        let (word, name) =
            (word_of(&frame, 0).expect("a word").to_vec(), word_of(&frame, 1).expect("a name").to_vec());
        let kind = if word.starts_with(b"p") { b"p".to_vec() } else { Vec::new() };
        let begins = !word.windows(5).any(|part| part == b"unsub");
        if begins && refuses {
            return self.replies.push_back(b"-NOPERM no\r\n".to_vec());
        }
        if begins {
            self.subscribed.insert((kind, name.clone()));
        } else {
            self.subscribed.remove(&(kind, name.clone()));
        }
        let mut answer = Vec::new();
        encode::array(&mut answer, 3);
        encode::bulk(&mut answer, &word);
        encode::bulk(&mut answer, &name);
        encode::integer(&mut answer, self.subscribed.len() as i64);
        self.replies.push_back(answer);
    }

    fn publish(&mut self, channel: &str, number: u32) {
        let text = number.to_string();
        let mut out = Vec::new();
        if self.subscribed.contains(&(Vec::new(), channel.into())) {
            bulk(&mut out, &[b"message", channel.as_bytes(), text.as_bytes()]);
            self.replies.push_back(std::mem::take(&mut out));
        }
        if self.subscribed.contains(&(b"p".to_vec(), b"*".to_vec())) {
            bulk(&mut out, &[b"pmessage", b"*", channel.as_bytes(), text.as_bytes()]);
            self.replies.push_back(out);
        }
    }
}

impl Core {
    fn join(&mut self, index: usize, client: ClientId) {
        let (kind, text) = NAMES[index];
        let known = self.names.entry(index).or_insert_with(|| {
            self.last_generation += 1;
            (self.last_generation, BTreeMap::new())
        });
        known.1.insert(client, false);
        let name = SharedName { kind, name: text.into(), generation: known.0 };
        self.to_home.push_back(ToHome::Join { name, client, tenant: TenantId(0) });
    }

    fn leave(&mut self, index: usize, client: ClientId) {
        let (kind, text) = NAMES[index];
        let Some(known) = self.names.get_mut(&index) else { return };
        if known.1.remove(&client).is_none() {
            return;
        }
        let name = SharedName { kind, name: text.into(), generation: known.0 };
        self.to_home.push_back(ToHome::Leave { name, client });
        self.names.retain(|_, known| !known.1.is_empty());
    }

    fn hear(&mut self) {
        let Some(told) = self.from_home.pop_front() else { return };
        let find = |name: &SharedName| {
            NAMES.iter().position(|(kind, text)| *kind == name.kind && text.as_bytes() == name.name)
        };
        let index = |name: &SharedName| find(name).expect("a known name");
        match told {
            FromHome::Joined { name, client } => {
                if let Some(known) =
                    self.names.get_mut(&index(&name)).filter(|known| known.0 == name.generation)
                    && let Some(is_acknowledged) = known.1.get_mut(&client)
                {
                    assert!(!*is_acknowledged, "once");
                    *is_acknowledged = true;
                }
            }
            FromHome::Refused { name, client, .. } => {
                if let Some(known) =
                    self.names.get_mut(&index(&name)).filter(|known| known.0 == name.generation)
                {
                    self.refused += usize::from(known.1.remove(&client).is_some());
                }
                self.names.retain(|_, known| !known.1.is_empty());
            }
            FromHome::Lost { name, .. } => {
                let at = index(&name);
                if self.names.get(&at).is_some_and(|known| known.0 == name.generation)
                    && let Some((_, clients)) = self.names.remove(&at)
                {
                    self.closed
                        .extend(clients.iter().filter(|(_, heard)| **heard).map(|(client, _)| *client));
                    self.to_home.push_back(ToHome::Forget { name });
                }
            }
            FromHome::Message { name, message } => {
                let number = word_of(&message, if name.kind == Subscription::Patterns { 3 } else { 2 });
                let number = std::str::from_utf8(number.expect("a text"))
                    .expect("a number")
                    .parse()
                    .expect("a number");
                if let Some(known) = self.names.get(&index(&name)).filter(|known| known.0 == name.generation)
                {
                    for (client, _) in known.1.iter().filter(|(_, is_acknowledged)| **is_acknowledged) {
                        self.heard.entry(*client).or_default().push(number);
                    }
                }
            }
            FromHome::Missed { .. } | FromHome::Numbers { .. } => {}
        }
    }
}

/// The shared channels under test on their home core (which subscribes at the stores for all cores), and models of the
/// cores with subscribers and of the stores; messages between them are delivered step by step.
struct World {
    home: SharedChannels,
    cores: Vec<Core>,
    stores: Vec<Store>,
    numbers: BTreeMap<(bool, Bytes), OwnNumbers>,
}

impl World {
    fn new(limits: HomeLimits) -> Self {
        Self {
            home: SharedChannels::new(limits),
            cores: (0..CORES).map(|_| Core::default()).collect(),
            stores: STORES.iter().map(|_| Store::default()).collect(),
            numbers: BTreeMap::new(),
        }
    }

    fn drain(&mut self) {
        while let Some((store, frame)) = self.home.poll_request() {
            self.stores[usize::from(store.0)].requests.push_back(frame);
        }
        while let Some(told) = self.home.poll_changed() {
            if let FromHome::Numbers { kind, name, own } = told {
                self.numbers.insert((kind == Subscription::Patterns, name), own);
            }
        }
        while let Some((shard, told)) = self.home.poll_told() {
            self.cores[usize::from(shard.0)].from_home.push_back(told);
        }
    }

    /// Delivers one message that waits, of the kind `way`: 0 to the home core, 1 to a store, 2 from a store,
    /// else to a core with subscribers. The home core then sends its own messages in two of three cases.
    fn step(&mut self, way: u64, random: &mut Random) {
        let (core, store) = (random.below(2) as usize, random.below(2) as usize);
        match way {
            0 => {
                let Some(message) = self.cores[core].to_home.pop_front() else { return };
                let from = ShardId(core as u16);
                let stores = match &message {
                    ToHome::Join { name, .. } if name.kind == Subscription::Channels => &STORES[..1],
                    _ => &STORES[..],
                };
                if let Err(refusal) = self.home.handle(from, &message, stores) {
                    assert_eq!(refusal, JoinRefusal::Channels);
                    let ToHome::Join { name, client, .. } = message else { panic!("only joins are refused") };
                    self.home.refuse(from, name, client, Bytes::from_static(b"-OVERLOADED\r\n"));
                }
            }
            1 => self.stores[store].work(random.below(20) == 0),
            2 => {
                let Some(said) = self.stores[store].replies.pop_front() else { return };
                assert_ne!(self.home.hear(STORES[store], said.into()), Heard::Violation);
            }
            _ => self.cores[core].hear(),
        }
        if random.below(3) > 0 {
            self.drain();
        }
    }

    fn lose(&mut self, store: usize) {
        self.stores[store] = Store::default();
        self.home.handle_lost(STORES[store], &Bytes::from_static(b"-UNAVAILABLE\r\n"));
    }

    fn is_quiet(&self) -> bool {
        !self.home.has_output()
            && self.cores.iter().all(|core| core.to_home.is_empty() && core.from_home.is_empty())
            && self.stores.iter().all(|store| store.requests.is_empty() && store.replies.is_empty())
    }

    fn settle(&mut self, random: &mut Random) {
        while !self.is_quiet() {
            let way = random.below(4);
            self.step(way, random);
        }
    }

    /// Checks that all sides agree on the subscribers, once no message is under way.
    fn check(&self) {
        for (index, (kind, text)) in NAMES.iter().enumerate() {
            let sets = self.cores.iter().filter_map(|core| core.names.get(&index));
            let clients: usize = sets.clone().map(|known| known.1.len()).sum();
            assert!(
                sets.clone().flat_map(|known| known.1.values()).all(|heard| *heard),
                "all are acknowledged"
            );
            let is_pattern = *kind == Subscription::Patterns;
            let prefix = if is_pattern { b"p".to_vec() } else { Vec::new() };
            let at = |store: &Store| store.subscribed.contains(&(prefix.clone(), text.as_bytes().to_vec()));
            let stores = if is_pattern { &self.stores[..] } else { &self.stores[..1] };
            assert!(stores.iter().all(|store| at(store) == (clients > 0)), "{text}: {clients} clients");
            let own = self.numbers.get(&(is_pattern, (*text).into())).copied().unwrap_or_default();
            let links = u32::from(clients > 0);
            assert_eq!(own, OwnNumbers { links, subscribers: clients as u32 }, "{text}");
            assert_eq!(self.home.names[*kind as usize].contains_key(text.as_bytes()), clients > 0);
        }
        assert!(self.home.joins.is_empty() && self.home.owed.values().all(VecDeque::is_empty));
        let held: usize = self.home.held.values().flatten().sum();
        assert_eq!(held, self.home.counts().iter().sum::<usize>());
    }
}

#[test]
fn whatever_comes_between_nobody_misses_a_message_and_nothing_is_left_behind() {
    let (mut losses, mut refused, mut heard_in_all) = (0, 0, 0);
    for seed in 0..300 {
        let mut random = Random::new(seed);
        let mut world = World::new([if seed % 3 == 0 { 1 } else { 10 }, 10]);
        let (mut next_client, mut number) = (0, 0);
        for _ in 0..40 {
            for _ in 0..random.below(60) {
                let core = random.below(2) as usize;
                let index = random.below(3) as usize;
                match random.below(12) {
                    0..3 => {
                        next_client += 1;
                        world.cores[core].join(index, ClientId { index: next_client, generation: 1 });
                    }
                    3..5 => {
                        let known = world.cores[core].names.get(&index);
                        let clients: Vec<ClientId> =
                            known.map_or_else(Vec::new, |known| known.1.keys().copied().collect());
                        if !clients.is_empty() {
                            let client = *random.pick(&clients);
                            world.cores[core].leave(index, client);
                        }
                    }
                    5 => {
                        number += 1;
                        world.stores[0].publish("a", number);
                    }
                    6 if random.below(15) == 0 => {
                        losses += 1;
                        world.lose(random.below(2) as usize);
                    }
                    _ => {}
                }
                for _ in 0..random.below(4) {
                    let way = random.below(4);
                    world.step(way, &mut random);
                }
            }
            world.settle(&mut random);
            world.check();
            // A message that is published now reaches each subscribed client exactly once.
            number += 1;
            world.stores[0].publish("a", number);
            world.settle(&mut random);
            for core in &world.cores {
                for index in [0, 2] {
                    for client in core.names.get(&index).iter().flat_map(|known| known.1.keys()) {
                        let heard = &core.heard[client];
                        assert_eq!(heard.iter().filter(|heard| **heard == number).count(), 1, "seed {seed}");
                    }
                }
                for heard in core.heard.values() {
                    assert!(heard.is_sorted_by(|one, next| one < next), "in order, and none twice");
                    heard_in_all += heard.len();
                }
            }
        }
        refused += world.cores.iter().map(|core| core.refused).sum::<usize>();
    }
    assert!(losses > 100 && refused > 100 && heard_in_all > 10_000, "{losses} {refused} {heard_in_all}");
}

fn name(text: &'static str) -> SharedName {
    SharedName { kind: Subscription::Channels, name: Bytes::from_static(text.as_bytes()), generation: 1 }
}

const fn client(index: u32) -> ClientId {
    ClientId { index, generation: 1 }
}

#[test]
fn a_tenant_has_four_of_five_channels_also_after_new_quotas() {
    let mut home = SharedChannels::new([5, 5]);
    let names = ["a", "b", "c", "d", "e"];
    let join = |home: &mut SharedChannels, text, tenant| {
        home.join(ShardId(0), (&name(text), client(1), TenantId(tenant)), &STORES[..1])
    };
    for text in &names[..4] {
        assert_eq!(join(&mut home, text, 3), Ok(()));
    }
    assert_eq!(join(&mut home, "e", 3), Err(JoinRefusal::Channels));
    home.handle_tenants(|_| TenantId(1));
    assert_eq!(join(&mut home, "e", 1), Err(JoinRefusal::Channels));
    assert_eq!(join(&mut home, "e", 3), Ok(()), "the number is another tenant's now");
    assert_eq!(join(&mut home, "f", 2), Err(JoinRefusal::Channels), "no room for anybody");
    assert_eq!(join(&mut home, "a", 2), Ok(()), "it is there already");
    assert_eq!(home.join(ShardId(0), (&name("g"), client(1), TenantId(9)), &[]), Err(JoinRefusal::NoStore));
}

#[test]
fn what_was_not_asked_for_ends_the_connection() {
    let mut home = SharedChannels::new([5, 5]);
    assert_eq!(home.join(ShardId(0), (&name("a"), client(1), TenantId(0)), &STORES[..1]), Ok(()));
    for said in
        ["-ERR x\r\n", "+OK\r\n", "*0\r\n", "*3\r\n$9\r\nsubscribe\r\n$1\r\nb\r\n:1\r\n", "$3\r\nfoo\r\n"]
    {
        assert_eq!(home.hear(STORES[1], Bytes::from_static(said.as_bytes())), Heard::Violation, "{said}");
    }
    let acknowledged = Bytes::from_static(b"*3\r\n$9\r\nsubscribe\r\n$1\r\na\r\n:1\r\n");
    assert_eq!(home.hear(STORES[0], acknowledged.clone()), Heard::Answer);
    assert_eq!(home.hear(STORES[0], acknowledged), Heard::Violation);
}

#[test]
fn a_store_that_refuses_to_end_a_subscription_is_asked_once_more() {
    let mut home = SharedChannels::new([5, 5]);
    let said = |word: &str, text: &str| {
        format!("*3\r\n${}\r\n{word}\r\n${}\r\n{text}\r\n:0\r\n", word.len(), text.len())
    };
    let join = |home: &mut SharedChannels, text| {
        assert_eq!(home.join(ShardId(0), (&name(text), client(1), TenantId(0)), &STORES[..1]), Ok(()));
    };
    // The names of the channels that the store is asked to begin or end; what it says to that.
    let told = |home: &mut SharedChannels, word: &str, text: &str, said: String| {
        let (_, frame) = home.poll_request().expect("a request");
        assert_eq!(
            [0, 1].map(|index| word_of(&frame, index)),
            [word, text].map(|word| Some(word.as_bytes()))
        );
        assert!(home.poll_request().is_none());
        assert_eq!(home.hear(STORES[0], said.into()), Heard::Answer);
    };
    let busy = "-BUSY Redis is busy running a script.\r\n";
    join(&mut home, "a");
    told(&mut home, "subscribe", "a", said("subscribe", "a"));
    home.leave(ShardId(0), &name("a"), client(1));
    told(&mut home, "unsubscribe", "a", busy.to_owned());
    assert_eq!((home.counts(), home.poll_request()), ([0, 0], None), "not at once");
    // A message of it shows that the store is ready again.
    let message = Bytes::from_static(b"*3\r\n$7\r\nmessage\r\n$1\r\na\r\n$1\r\nx\r\n");
    assert_eq!(home.hear(STORES[0], message.clone()), Heard::Message);
    told(&mut home, "unsubscribe", "a", busy.to_owned());
    // So does an acknowledgement.
    join(&mut home, "b");
    told(&mut home, "subscribe", "b", said("subscribe", "b"));
    told(&mut home, "unsubscribe", "a", said("unsubscribe", "a"));
    assert_eq!(home.hear(STORES[0], message), Heard::Message);
    assert!(home.poll_request().is_none(), "it has ended");
    // A channel that has subscribers again is left alone.
    home.leave(ShardId(0), &name("b"), client(1));
    told(&mut home, "unsubscribe", "b", busy.to_owned());
    join(&mut home, "b");
    told(&mut home, "subscribe", "b", said("subscribe", "b"));
    assert!(home.poll_request().is_none());
    // A store that refuses for ever loses the connection.
    let refuses = |number: u32| {
        let text: &'static str = ["c", "d", "e", "f", "g", "h"][number as usize];
        join(&mut home, text);
        home.poll_request();
        home.hear(STORES[0], said("subscribe", text).into());
        while home.poll_request().is_some() {
            home.hear(STORES[0], Bytes::from_static(b"-NOPERM no\r\n"));
        }
        home.leave(ShardId(0), &name(text), client(1));
        home.poll_request();
        home.hear(STORES[0], Bytes::from_static(b"-NOPERM no\r\n"))
    };
    let heard: Vec<Heard> = (0..6).map(refuses).collect();
    assert_eq!(heard, [[Heard::Answer; 5].as_slice(), &[Heard::Violation]].concat());
}

#[test]
fn what_was_to_be_sent_when_a_connection_was_lost_is_not_sent_over_the_next() {
    let mut home = SharedChannels::new([5, 5]);
    let join = |home: &mut SharedChannels, text| {
        assert_eq!(home.join(ShardId(0), (&name(text), client(1), TenantId(0)), &STORES[..1]), Ok(()));
    };
    join(&mut home, "a");
    home.handle_lost(STORES[0], &Bytes::from_static(b"-UNAVAILABLE\r\n"));
    join(&mut home, "b");
    let (store, frame) = home.poll_request().expect("that for the second channel");
    assert_eq!((store, word_of(&frame, 1)), (STORES[0], Some(&b"b"[..])));
    assert!(home.poll_request().is_none());
    let acknowledged = Bytes::from_static(b"*3\r\n$9\r\nsubscribe\r\n$1\r\nb\r\n:1\r\n");
    assert_eq!(home.hear(STORES[0], acknowledged), Heard::Answer);
}

#[test]
fn a_store_that_does_not_acknowledge_is_not_asked_for_ever() {
    let mut home = SharedChannels::new([5, 5]);
    for index in 0..SHARED_OWED_MAX as u32 {
        assert_eq!(home.join(ShardId(0), (&name("a"), client(index), TenantId(0)), &STORES[..1]), Ok(()));
        home.poll_request();
    }
    assert_eq!(
        home.join(ShardId(0), (&name("a"), client(u32::MAX), TenantId(0)), &STORES[..1]),
        Err(JoinRefusal::Owed)
    );
}
