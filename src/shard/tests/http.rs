//! Clients that speak HTTP.

use super::*;

impl Rig {
    pub(super) fn http_client(&mut self, shard: usize) -> usize {
        let id = self.shards[shard].handle_http_client_opened(self.now);
        self.clients.push((shard, id));
        self.clients.len() - 1
    }
}

const GET: &str = "GET /v1/keys/KEY HTTP/1.1\r\nHost: x\r\n\r\n";

#[test]
fn responses_keep_the_order_of_requests_across_cores() {
    let mut rig = Rig::new(2, 1);
    let client = rig.http_client(0);
    let [here, there] = [0, 1].map(|home| rig.key(home, 0));
    let both = [
        GET.replace("KEY", &there),
        GET.replace("KEY", &here),
        "NIX / HTTP/1.1\r\nHost: x\r\n\r\n".to_owned(),
    ];
    rig.raw(client, both.concat().as_bytes());
    rig.answer_first(&here, "$1\r\n2\r\n");
    assert_eq!(rig.told(client), "", "the other one was first");
    rig.answer_first(&there, "$1\r\n1\r\n");
    let told = rig.told(client);
    let bodies: Vec<&str> = told.split("\r\n\r\n").collect();
    assert!(bodies[1].starts_with("1HTTP/1.1 200") && bodies[2].starts_with("2HTTP/1.1 405"), "{told}");
}

#[test]
fn a_request_that_does_not_come_whole_is_given_up_in_time() {
    let mut rig = Rig::new(1, 1);
    let client = rig.http_client(0);
    let key = rig.key(0, 0);
    rig.raw(client, GET.replace("KEY", &key).as_bytes());
    rig.answer_next("$-1\r\n");
    assert!(rig.told(client).starts_with("HTTP/1.1 404"));
    rig.wait(Duration::from_secs(300));
    assert_eq!(rig.told(client), "", "it is between two requests");
    // One byte now and then does not help.
    for byte in GET.bytes().take(16) {
        rig.raw(client, &[byte]);
        rig.wait(Duration::from_secs(2));
    }
    assert!(rig.told(client).starts_with("HTTP/1.1 408"));
    assert_eq!(rig.shards[0].clients_open(), 0);
    assert_eq!(rig.shards[0].counters().get(Counter::ClientsClosedSlow), 1);
}

#[test]
fn what_a_client_sends_while_it_has_to_wait_has_a_bound() {
    let mut rig = Rig::new(1, 1);
    let client = rig.http_client(0);
    let key = rig.key(0, 0);
    let many = GET.replace("KEY", &key).repeat(5_000);
    rig.reading = Reading::Never;
    rig.raw(client, many.as_bytes());
    assert!(rig.at_stores.len() <= limits::PIPELINE_MAX, "{}", rig.at_stores.len());
    assert!(rig.actions.iter().any(|(_, action)| matches!(action, Action::PauseReading(_))));
    rig.reading = Reading::Always;
    while !rig.at_stores.is_empty() {
        rig.now.monotonic = rig.now.monotonic.after(Duration::from_micros(100));
        rig.answer_next("$-1\r\n");
    }
    assert_eq!(rig.told(client).matches("HTTP/1.1 404").count(), 5_000);
}

#[test]
fn a_client_that_leaves_in_the_middle_leaves_nothing_behind() {
    let mut rig = Rig::new(1, 1);
    let client = rig.http_client(0);
    rig.raw(client, b"PUT /v1/keys/k HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\nabc");
    let id = rig.id(client);
    rig.shards[0].handle_client_end(id);
    rig.turns();
    assert_eq!(rig.shards[0].clients_open(), 0);
}
