use proptest::prelude::*;

use super::*;

/// The result of an HTTP conversation with a store whose replies a test makes up.
#[derive(Default)]
struct Talk {
    /// The commands that the store got, each as a line of words.
    commands: Vec<String>,
    responses: String,
}

/// Returns an HTTP response as a RESP bulk string, the form in which the shard passes in responses that need
/// no command.
fn bulk(response: &[u8]) -> String {
    let text = String::from_utf8_lossy(response);
    format!("${}\r\n{text}\r\n", text.len())
}

fn words(frame: &[u8]) -> String {
    let text = String::from_utf8_lossy(frame);
    text.split("\r\n").skip(2).step_by(2).collect::<Vec<_>>().join(" ")
}

/// Runs a conversation whose input arrives in pieces of `pieces` bytes; `reply` gives the store's reply to
/// each command.
fn talk(bytes: &[u8], pieces: usize, reply: impl Fn(&str) -> String) -> Talk {
    let mut http = Conversation::new(1_000);
    let mut talk = Talk::default();
    let mut replies = String::new();
    for piece in bytes.chunks(pieces.max(1)) {
        http.receive(piece);
        loop {
            if !http.frames().is_empty() {
                let (mut decoder, mut consumed) = (crate::protocol::RequestDecoder::default(), 0);
                let limits = crate::protocol::RequestLimits::trusted(1 << 20);
                decoder.next(http.frames(), &mut consumed, &limits).expect("well formed").expect("whole");
                let command = words(&http.frames()[..consumed]);
                http.take(consumed);
                replies.push_str(&reply(&command));
                talk.commands.push(command);
                continue;
            }
            let step = match http.go_on() {
                Step::Begins(who) if who.as_deref() == Some(b"Bearer wrong") => {
                    Step::Told(http.refuse("WRONGPASS no", false))
                }
                Step::Begins(_) => http.admit(Authority::Token, 100),
                step => step,
            };
            match step {
                Step::Wait => break,
                Step::Told(response) | Step::Refused { response, .. } => replies.push_str(&bulk(&response)),
                Step::Commands | Step::Begins(_) => {}
            }
        }
        // Replies arrive in pieces, too.
        for piece in std::mem::take(&mut replies).as_bytes().chunks(3) {
            http.hear(piece);
        }
        if let Some(out) = http.take_output(Vec::new()) {
            talk.responses.push_str(std::str::from_utf8(&out.bytes()).expect("text"));
        }
    }
    talk
}

/// Splits a series of responses into their status codes and bodies.
fn parts(responses: &str) -> Vec<(u16, String)> {
    let (mut rest, mut parts) = (responses, Vec::new());
    while !rest.is_empty() {
        let (head, body) = rest.split_once("\r\n\r\n").expect("a head");
        let code = head.split(' ').nth(1).and_then(|code| code.parse().ok()).expect("a status");
        let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
        let length = length.map_or(0, |length| length.parse().expect("a number"));
        // The response to HEAD states the length of a body that it does not have.
        let length = if body.is_empty() || body.starts_with("HTTP/1.1 ") { 0 } else { length };
        parts.push((code, body[..length].to_owned()));
        rest = &body[length..];
    }
    parts
}

fn store(command: &str) -> String {
    match command.split(' ').next().unwrap_or_default() {
        "GET" if command.ends_with("none") => "$-1\r\n".to_owned(),
        "GET" if command.ends_with("list") => "-WRONGTYPE no\r\n".to_owned(),
        "GET" if command.ends_with("busy") => {
            ")THROTTLED scope=user name=a/b limit=10 remaining=0 retry_after_ms=1\r\n".to_owned()
        }
        "GET" => "$2\r\nhi\r\n".to_owned(),
        "SET" | "MULTI" => "+OK\r\n".to_owned(),
        "DEL" if command.ends_with("none") => ":0\r\n".to_owned(),
        "DEL" | "INCR" => ":1\r\n".to_owned(),
        "QUEUED" => "+QUEUED\r\n".to_owned(),
        "BAD" => "-ERR bad\r\n".to_owned(),
        "LONG" => format!("$600\r\n{}\r\n", "x".repeat(600)),
        "EXEC" => "*2\r\n:1\r\n-ERR late\r\n".to_owned(),
        _ => "*0\r\n".to_owned(),
    }
}

const ALL: &str = "GET /v1/keys/a HTTP/1.1\r\nHost: x\r\n\r\n\
    GET /v1/keys/none HTTP/1.1\r\nHost: x\r\n\r\n\
    PUT /v1/keys/a?ttl=5 HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n\r\nabc\
    PUT /v1/keys/b HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nx\r\n2\r\nyz\r\n0\r\n\r\n\
    DELETE /v1/keys/a HTTP/1.1\r\nHost: x\r\n\r\n\
    DELETE /v1/keys/none HTTP/1.1\r\nHost: x\r\n\r\n\
    HEAD /v1/keys/none HTTP/1.1\r\nHost: x\r\n\r\n\
    GET /v1/keys/list HTTP/1.1\r\nHost: x\r\n\r\n\
    POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 11\r\n\r\n[\"GET\",\"a\"]\
    POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 7\r\n\r\n[\"BAD\"]\
    POST /pipeline HTTP/1.1\r\nHost: x\r\nContent-Length: 29\r\n\r\n[[\"GET\",\"a\"],[\"BAD\"],[\"NIX\"]]\
    POST /multi-exec HTTP/1.1\r\nHost: x\r\nContent-Length: 23\r\n\r\n[[\"QUEUED\"],[\"QUEUED\"]]\
    POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r\n\r\nnull\
    GET /v1/keys/a HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer wrong\r\n\r\n\
    GET /v1/keys/busy HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n\
    GET /v1/keys/never HTTP/1.1\r\nHost: x\r\n\r\n";

#[test]
fn requests_become_commands_and_replies_responses_in_whatever_pieces_they_come() {
    for pieces in [1, 2, 7, 64, ALL.len()] {
        let Talk { commands, responses } = talk(ALL.as_bytes(), pieces, store);
        let expected = [
            "GET a",
            "GET none",
            "SET a abc PX 5000",
            "SET b xyz",
            "DEL a",
            "DEL none",
            "GET none",
            "GET list",
            "GET a",
            "BAD",
            "GET a",
            "BAD",
            "NIX",
            "MULTI",
            "QUEUED",
            "QUEUED",
            "EXEC",
            "GET busy",
        ];
        assert_eq!(commands, expected, "{pieces}");
        let parts = parts(&responses);
        let codes: Vec<u16> = parts.iter().map(|(code, _)| *code).collect();
        assert_eq!(codes, [200, 404, 204, 204, 204, 404, 404, 409, 200, 400, 200, 200, 400, 401, 429]);
        let body = |number: usize| parts[number].1.as_str();
        assert_eq!((body(0), body(8)), ("hi", "{\"result\":\"hi\"}"));
        assert_eq!(body(10), "[{\"result\":\"hi\"},{\"error\":\"ERR bad\"},{\"result\":[]}]");
        assert_eq!(body(11), "[{\"result\":1},{\"error\":\"ERR late\"}]");
        assert!(body(9).contains("\"error\":\"ERR bad\""), "{}", body(9));
    }
}

#[test]
fn a_transaction_that_is_refused_says_why() {
    let request = "POST /multi-exec HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n[[\"BAD\"]]";
    let refuse = |command: &str| {
        if command == "EXEC" { "-EXECABORT discarded\r\n".to_owned() } else { store(command) }
    };
    let parts = parts(&talk(request.as_bytes(), 100, refuse).responses);
    assert!(parts.len() == 1 && parts[0].0 == 400 && parts[0].1.contains("ERR bad"), "{parts:?}");
}

#[test]
fn who_waits_for_leave_to_send_a_body_is_given_it_once() {
    let mut http = Conversation::new(1_000);
    http.receive(b"PUT /v1/keys/a HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\nExpect: 100-continue\r\n\r\n");
    assert_eq!(http.go_on(), Step::Begins(None));
    assert_eq!(http.admit(Authority::Token, 3), Step::Told(response::GO_ON.to_vec()));
    http.hear(bulk(response::GO_ON).as_bytes());
    assert_eq!(http.take_output(Vec::new()).expect("a response").bytes(), response::GO_ON);
    assert_eq!(http.go_on(), Step::Wait);
    http.receive(b"abc");
    assert_eq!(http.go_on(), Step::Commands);
    assert!(http.frames().ends_with(b"abc\r\n") && !http.is_midway());
}

#[test]
fn what_is_too_much_is_told_so() {
    let put = "PUT /v1/keys/a HTTP/1.1\r\nHost: x\r\nContent-Length: 101\r\n\r\n";
    assert_eq!(parts(&talk(put.as_bytes(), 10, store).responses)[0].0, 413);
    let chunks = "PUT /v1/keys/a HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n65\r\n";
    assert_eq!(parts(&talk(chunks.as_bytes(), 10, store).responses)[0].0, 413);
    let long = "POST /pipeline HTTP/1.1\r\nHost: x\r\nContent-Length: 19\r\n\r\n[[\"LONG\"],[\"LONG\"]]\
                GET /v1/keys/a HTTP/1.1\r\nHost: x\r\n\r\n";
    let parts = parts(&talk(long.as_bytes(), 1_000, store).responses);
    assert_eq!(parts.len(), 2);
    assert!(parts[0].1.contains("larger than 1000 bytes") && parts[1].1 == "hi", "{parts:?}");
}

#[test]
fn a_request_that_takes_too_long_is_told_so_behind_what_came_before() {
    let mut http = Conversation::new(1_000);
    http.receive(b"GET /v1/keys/a HTTP/1.1\r\nHost: x\r\n\r\nGET /v1");
    assert_eq!(http.go_on(), Step::Begins(None));
    assert_eq!(http.admit(Authority::Token, 3), Step::Commands);
    let frames = http.frames().len();
    http.take(frames);
    assert_eq!(http.go_on(), Step::Wait);
    assert!(http.is_midway());
    let late = http.time_out();
    assert!(http.is_over() && !http.is_midway());
    http.hear(b"$2\r\nhi\r\n");
    http.hear(bulk(&late).as_bytes());
    let out = http.take_output(Vec::new()).expect("two responses");
    let parts = parts(std::str::from_utf8(&out.bytes()).expect("text"));
    assert_eq!((parts[0].0, parts[1].0), (200, 408));
}

#[test]
fn an_empty_line_before_a_request_is_no_part_of_one() {
    let get = "GET /v1/keys/a HTTP/1.1\r\nHost: x\r\n\r\n";
    for bytes in [format!("{get}\r\n"), format!("\r\n{get}\r\n")] {
        let mut http = Conversation::new(1_000);
        http.receive(bytes.as_bytes());
        assert_eq!(http.go_on(), Step::Begins(None));
        assert_eq!(http.admit(Authority::Token, 3), Step::Commands);
        let frames = http.frames().len();
        http.take(frames);
        assert_eq!(http.go_on(), Step::Wait);
        assert!(!http.is_midway(), "{bytes:?}");
    }
    for (bytes, is_midway) in [("\r\n", false), ("\r\nG", true), ("G", true), ("\r\n\r\n", true)] {
        let mut http = Conversation::new(1_000);
        http.receive(bytes.as_bytes());
        assert_eq!((http.go_on(), http.is_midway()), (Step::Wait, is_midway), "{bytes:?}");
    }
}

/// Returns status and body of the responses to `request`, whose every command is answered with `reply`.
fn answered(request: &str, reply: &str) -> Vec<(u16, String)> {
    parts(&talk(request.as_bytes(), 1_000, |_| reply.to_owned()).responses)
}

#[test]
fn words_of_a_store_that_are_no_value_are_refused_in_their_place() {
    let post = |path: &str, body: &str| {
        format!("POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {}\r\n\r\n{body}", body.len())
    };
    let one = post("/", "[\"GET\",\"a\"]");
    let bad = ":1,\"admin\":true\r\n";
    let answers = answered(&one, bad);
    assert!(answers[0].0 == 502 && answers[0].1.contains("reply is malformed"), "{answers:?}");
    assert!(!answers[0].1.contains("admin"), "{answers:?}");
    let many = post("/pipeline", "[[\"GET\",\"a\"],[\"GET\",\"b\"]]");
    let expected = "{\"error\":\"ERR the store's reply is malformed\"}";
    assert_eq!(answered(&many, bad), [(200, format!("[{expected},{expected}]"))]);
    let block = post("/multi-exec", "[[\"GET\",\"a\"]]");
    assert_eq!(answered(&block, &format!("*1\r\n{bad}"))[0].0, 502);
    for (reply, value) in
        [(",1.5\r\n", "1.5"), ("_\r\n", "null"), ("#t\r\n", "true"), ("%1\r\n+a\r\n:1\r\n", "[\"a\",1]")]
    {
        assert_eq!(answered(&one, reply), [(200, format!("{{\"result\":{value}}}"))]);
    }
    let key = "GET /v1/keys/a HTTP/1.1\r\nHost: x\r\n\r\n";
    assert_eq!(answered(key, ":1\r\n")[0].0, 502, "a value is a text");
    assert_eq!(answered(key, "*-1\r\n")[0].0, 404);
}

#[test]
fn no_reply_of_a_store_passes_for_a_refusal_of_weir() {
    let request = "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 11\r\n\r\n[\"GET\",\"a\"]";
    let refusal = "THROTTLED scope=tenant name=a limit=1 remaining=0 retry_after_ms=5000\r\n";
    let told = |reply: String| talk(request.as_bytes(), 1_000, |_| reply.clone()).responses;
    assert!(told(format!("){refusal}")).contains("ratelimit-policy: \"tenant\";q=1;"));
    for kind in ["-", "(", "+", "!", "="] {
        let responses = told(match kind {
            "!" | "=" => format!("{kind}{}\r\n{refusal}", refusal.len() - 2),
            _ => format!("{kind}{refusal}"),
        });
        assert!(responses.starts_with("HTTP/1.1 ") && !responses.contains("ratelimit"), "{responses}");
    }
    let scanned = ReplyScanner::default().scan(format!("){refusal}").as_bytes());
    assert!(scanned.is_err(), "no store can send the type of weir's own");
}

#[test]
fn a_long_error_is_shortened() {
    let request = "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 11\r\n\r\n[\"GET\",\"a\"]";
    let answers = answered(request, &format!("-{}\r\n", "\u{1}".repeat(10 * ERROR_BYTES_MAX)));
    assert_eq!(answers[0].0, 400);
    assert!(answers[0].1.len() < 13 * ERROR_BYTES_MAX, "{}", answers[0].1.len());
}

proptest! {
    /// Random changes of input never cause a panic or a command that nobody sent, and every request is
    /// answered.
    #[test]
    fn bytes_of_any_kind_are_answered_or_waited_for(
        cut in 0..ALL.len(), noise in prop::collection::vec((0..ALL.len(), any::<u8>()), 0..6), pieces in 1_usize..200,
    ) {
        let mut bytes = ALL.as_bytes().to_vec();
        for (at, byte) in noise {
            bytes[at] = byte;
        }
        bytes.truncate(cut);
        let Talk { commands, responses } = talk(&bytes, pieces, store);
        prop_assert!(commands.len() <= 20, "{commands:?}");
            prop_assert!(parts(&responses).len() <= 17, "{responses}");
    }

    #[test]
    fn a_conversation_holds_no_more_than_it_may(bytes in prop::collection::vec(any::<u8>(), 0..80_000)) {
        let mut http = Conversation::new(1_000);
        for piece in bytes.chunks(1_000) {
            http.receive(piece);
            while let Step::Begins(_) = http.go_on() {
                http.admit(Authority::Token, 100);
            }
            prop_assert!(http.held_bytes() <= HEAD_BYTES_MAX + 1_000);
        }
    }
}
