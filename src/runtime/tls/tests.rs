//! Tests of TLS sessions with each other and with hostile bytes, and of invalid files. `samples/` has a
//! certificate for `localhost`, its key, and another key; they protect nothing.

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use proptest::prelude::*;
use rustls::pki_types::ServerName;
use rustls::version::{TLS12, TLS13};
use rustls::{ClientConfig, ClientConnection, HandshakeKind, ServerConnection};

use super::files::{Terms, TlsFiles, certificates, private_key, provider, roots};
use super::handshake::{Shaking, Step};
use super::line::{Line, is_interruption};
use super::session::{Heard, Session};
use super::stores::StoreTls;
use super::tally::Tally;
use crate::config::StoreTlsSettings;
use crate::control::Handshake;
use crate::protocol::Segment;
use crate::runtime::driver::Entrance;
use crate::values::Timestamp;
use crate::values::limits::{TLS_CLIENT_BYTES, TLS_FILE_BYTES_MAX, TLS_SEND_BYTES_MAX};

fn sample(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("src/runtime/tls/samples").join(name)
}

fn files() -> TlsFiles {
    TlsFiles {
        certificate: sample("localhost.crt"),
        key: sample("localhost.key"),
        client_ca: None,
        client_crl: None,
    }
}

fn terms() -> Arc<Terms> {
    files().load().expect("they are right")
}

fn store_tls(tally: &Arc<Tally>) -> StoreTls {
    let settings = StoreTlsSettings { ca: sample("localhost.crt"), name: None, own: None };
    StoreTls::load(&settings, tally).expect("it is right")
}

/// Both ends of a TLS connection: weir as a client of a store, and as a server of a client.
struct Pair {
    near: Session,
    far: Session,
    tally: Arc<Tally>,
}

impl Pair {
    fn new() -> Self {
        let tally = Arc::default();
        let mut near = store_tls(&tally).session("localhost").expect("a name");
        let far = shaken(&mut near, &terms()).expect("hands are shaken");
        let far = Session::of_client(far, None, &tally);
        Self { near, far, tally }
    }
}

/// Completes a handshake between a session of weir's (`near`) and a server that plays a store. Returns the
/// server's side.
fn shaken(near: &mut Session, terms: &Arc<Terms>) -> Result<ServerConnection, rustls::Error> {
    let mut far = ServerConnection::new(Arc::clone(&terms.config))?;
    let mut plain = Vec::new();
    loop {
        let Some(said) = near.encrypt() else { return Ok(far) };
        far.read_tls(&mut &said[..]).expect("in memory");
        far.process_new_packets()?;
        let mut answer = Vec::new();
        while far.wants_write() {
            far.write_tls(&mut answer).expect("in memory");
        }
        near.receive(&answer, &mut plain)?;
    }
}

/// Completes a handshake between a client with this configuration and a server with these terms, and passes on
/// what the server sends after it. Returns the kind of the handshake.
fn kind_of_handshake(client: &Arc<ClientConfig>, terms: &Arc<Terms>) -> HandshakeKind {
    let name = ServerName::try_from("localhost").expect("a name");
    let mut near = ClientConnection::new(Arc::clone(client), name).expect("it is right");
    let mut far = ServerConnection::new(Arc::clone(&terms.config)).expect("it is right");
    while near.wants_write() || far.wants_write() {
        let (mut said, mut answer) = (Vec::new(), Vec::new());
        while near.wants_write() {
            near.write_tls(&mut said).expect("in memory");
        }
        far.read_tls(&mut &said[..]).expect("in memory");
        far.process_new_packets().expect("the client is right");
        while far.wants_write() {
            far.write_tls(&mut answer).expect("in memory");
        }
        near.read_tls(&mut &answer[..]).expect("in memory");
        near.process_new_packets().expect("the server is right");
    }
    assert!(!near.is_handshaking() && !far.is_handshaking());
    assert_eq!(far.peer_certificates().is_some(), terms.verifier.is_some());
    far.handshake_kind().expect("the handshake is over")
}

#[test]
fn no_session_is_resumed_in_which_a_client_has_shown_a_certificate() {
    let authority = sample("localhost.crt");
    let with_certificates = TlsFiles { client_ca: Some(authority.clone()), ..files() };
    for version in [&TLS12, &TLS13] {
        for (files, again) in
            [(files(), HandshakeKind::Resumed), (with_certificates.clone(), HandshakeKind::Full)]
        {
            let terms = files.load().expect("they are right");
            let own = certificates("", &authority).expect("a certificate");
            let key = private_key("", &sample("localhost.key")).expect("a key");
            let client = ClientConfig::builder_with_provider(provider())
                .with_protocol_versions(&[version])
                .expect("it is supported")
                .with_root_certificates(roots("", &authority).expect("an authority"))
                .with_client_auth_cert(own, key)
                .expect("they belong together");
            let client = Arc::new(client);
            assert_eq!(kind_of_handshake(&client, &terms), HandshakeKind::Full);
            assert_eq!(kind_of_handshake(&client, &terms), again, "{:?}", version.version);
        }
    }
}

/// Sends a segment from one session to the other in pieces of `piece` bytes, and returns the bytes that
/// arrive.
fn carry(from: &mut Session, to: &mut Session, segment: Segment, piece: usize) -> Vec<u8> {
    let mut plain = Vec::new();
    from.begin_sending(segment);
    loop {
        let bytes = from.encrypt().expect("there is something to send");
        assert!(bytes.len() <= TLS_SEND_BYTES_MAX + 4096, "{}", bytes.len());
        for piece in bytes.chunks(piece) {
            let before = plain.len();
            to.receive(piece, &mut plain).expect("it is right");
            assert!(
                plain.len() - before <= piece.len() + TLS_CLIENT_BYTES,
                "no more becomes plain than came"
            );
        }
        if from.handle_sent(bytes.len()).0.is_some() {
            return plain;
        }
    }
}

#[test]
fn what_is_sent_arrives_in_order_whatever_its_pieces() {
    let mut pair = Pair::new();
    let large: Vec<u8> = (0..300_000_u32).map(|number| (number / 7) as u8).collect();
    for piece in [1_000, 16_384, 1_000_000] {
        let segment = Segment::Several(vec![
            Segment::Gathered(b"small".to_vec()),
            Segment::Shared(large.clone().into()),
            Segment::Gathered(b"end".to_vec()),
        ]);
        let wanted = segment.bytes().into_owned();
        assert!(carry(&mut pair.near, &mut pair.far, segment, piece) == wanted);
        let back = Segment::Shared(large.clone().into());
        assert!(carry(&mut pair.far, &mut pair.near, back, piece) == large);
    }
    let figures = pair.tally.figures();
    assert_eq!((figures.stores[Handshake::Done as usize], figures.open, figures.broken), (1, 1, 0));
    drop(pair.far);
    assert_eq!(pair.tally.figures().open, 0);
}

#[test]
fn progress_is_told_as_seldom_as_of_a_plain_socket() {
    let mut pair = Pair::new();
    pair.near.begin_sending(Segment::Gathered(vec![b'x'; 3 << 20]));
    let mut told = 0;
    loop {
        let sent = pair.near.encrypt().expect("something is left").len();
        let (done, tell) = pair.near.handle_sent(sent);
        told += usize::from(tell);
        if done.is_some() {
            break;
        }
    }
    assert_eq!(told, 2, "after each mebibyte but the last one");
}

#[test]
fn an_end_is_told_once_and_what_was_said_before_it_is_heard() {
    let mut pair = Pair::new();
    pair.near.begin_sending(Segment::Gathered(b"last".to_vec()));
    let mut bytes = pair.near.encrypt().expect("something to send");
    bytes.extend(pair.near.farewell());
    let mut plain = Vec::new();
    let heard = pair.far.receive(&bytes, &mut plain).expect("it is right");
    assert_eq!((heard, plain.as_slice()), (Heard { ready: false, ended: true }, &b"last"[..]));
    let again = pair.far.receive(b"whatever follows", &mut plain).expect("nobody listens");
    assert_eq!((again, plain.len()), (Heard::default(), 4));
    assert!(pair.far.has_ended());
    // The other direction is still open.
    let back = carry(&mut pair.far, &mut pair.near, Segment::Gathered(b"answer".to_vec()), 100);
    assert_eq!(back, b"answer");
}

#[test]
fn a_store_that_is_not_the_right_one_is_refused_and_named() {
    let tally = Arc::default();
    let mut near = store_tls(&tally).session("elsewhere").expect("a name");
    let problem = shaken(&mut near, &terms()).expect_err("another name");
    let told = near.complaint(&problem.to_string(), Handshake::Refused).expect("the first time");
    assert!(told.starts_with("store elsewhere: ") && told.contains("certificate"), "{told}");
    assert_eq!(near.complaint("again", Handshake::Left), None);
    assert_eq!(tally.figures().stores[Handshake::Certificate as usize], 1);
    // A store that does not speak TLS.
    let mut near = store_tls(&tally).session("localhost").expect("a name");
    near.receive(b"-ERR unknown command\r\n", &mut Vec::new()).expect_err("no TLS");
    assert_eq!(tally.figures().stores[Handshake::NotTls as usize], 1);
    assert!(store_tls(&tally).session("no name").is_err());
}

/// Connects a blocking line to a store played by `answer`, and reads from it, which does the handshake. Returns
/// the number of bytes read, or the error; `TimedOut` if there is neither within 10 s.
fn asked(stores: &StoreTls, answer: impl FnOnce(TcpStream) + Send + 'static) -> std::io::Result<usize> {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let socket = TcpStream::connect(listener.local_addr().expect("it is bound")).expect("it listens");
    let (far, _) = listener.accept().expect("one has come");
    let store = std::thread::spawn(move || answer(far));
    let mut line = Line::new(socket.into(), Some(stores.session("localhost").expect("a name")));
    line.set_timeout(Duration::from_millis(20)).expect("a socket");
    let heard = (0..500).find_map(|_| match line.read(&mut [0; 16]) {
        Err(error) if is_interruption(&error) => None,
        heard => Some(heard),
    });
    drop(line);
    store.join().expect("it does not fail");
    heard.unwrap_or_else(|| Err(std::io::ErrorKind::TimedOut.into()))
}

#[test]
fn a_handshake_with_a_store_is_counted_once_however_it_ends() {
    let tally = Arc::<Tally>::default();
    let stores = store_tls(&tally);
    let counted = |outcome: Handshake| tally.figures().stores[outcome as usize];
    let all = || tally.figures().stores.iter().sum::<u64>();
    // Nothing was sent yet, so the handshake has not begun.
    let mut near = stores.session("localhost").expect("a name");
    assert_eq!(near.complaint("no way there", Handshake::TimedOut).map(|_| all()), Some(0));
    drop(near);
    assert_eq!(all(), 0);
    // A connection of a shard is given up for a reason, or without one.
    let mut near = stores.session("localhost").expect("a name");
    near.encrypt().expect("the first word");
    near.complaint("it did not answer in time", Handshake::TimedOut).expect("the first time");
    drop(near);
    let mut near = stores.session("localhost").expect("a name");
    near.encrypt().expect("the first word");
    drop(near);
    assert_eq!((counted(Handshake::TimedOut), counted(Handshake::Left), all()), (1, 1, 2));
    // An error after the handshake does not count as a failed handshake.
    let mut near = stores.session("localhost").expect("a name");
    shaken(&mut near, &terms()).expect("hands are shaken");
    near.receive(&[0x17, 3, 3, 0, 1, 0], &mut Vec::new()).expect_err("no record");
    drop(near);
    assert_eq!((counted(Handshake::Done), tally.figures().broken, all()), (1, 1, 3));
    // Blocking connections to a store that completes the handshake, one that disconnects, and one that does
    // not speak TLS.
    let terms = terms();
    let read = asked(&stores, move |mut far| {
        let mut tls = ServerConnection::new(Arc::clone(&terms.config)).expect("it is right");
        tls.writer().write_all(b"+PONG\r\n").expect("in memory");
        tls.complete_io(&mut far).expect("hands are shaken");
        tls.complete_io(&mut far).expect("it was said");
    });
    assert_eq!((read.expect("its answer"), counted(Handshake::Done)), (7, 2));
    asked(&stores, drop).expect_err("it is gone");
    assert_eq!(counted(Handshake::Left), 2);
    asked(&stores, |mut far| {
        far.read_exact(&mut [0; 64]).expect("the first word");
        far.write_all(b"-ERR unknown command\r\n").expect("a socket buffer");
    })
    .expect_err("no TLS");
    assert_eq!((counted(Handshake::NotTls), all()), (1, 6));
}

/// Returns a client's socket, and the server's handshake with it, which has only begun.
fn connected(entrance: Entrance) -> (TcpStream, Shaking) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let client = TcpStream::connect(listener.local_addr().expect("it is bound")).expect("it listens");
    let (socket, address) = listener.accept().expect("one has come");
    socket.set_nonblocking(true).expect("a socket");
    (client, Shaking::new(socket, entrance, address.ip(), Timestamp::ZERO))
}

fn gone_on(shaking: &mut Shaking, until: impl Fn(Step) -> bool) -> Step {
    // Bytes over the loopback interface arrive within a moment, so this polls until then.
    (0..10_000_000).map(|_| shaking.go_on()).find(|step| until(*step)).expect("it goes on")
}

#[test]
fn a_handshake_waits_for_its_turn_and_no_longer_than_its_client() {
    let tally = Arc::default();
    let mut session = store_tls(&tally).session("localhost").expect("a name");
    let hello = session.encrypt().expect("the first word");
    let (mut client, mut shaking) = connected(Entrance::Resp);
    assert_eq!((shaking.go_on(), shaking.awaits_client_since()), (Step::Wait, Some(Timestamp::ZERO)));
    client.write_all(&hello[..10]).expect("a socket buffer");
    assert_eq!(shaking.go_on(), Step::Wait);
    client.write_all(&hello[10..]).expect("a socket buffer");
    assert_eq!(gone_on(&mut shaking, |step| step != Step::Wait), Step::Turn);
    assert_eq!(shaking.go_on(), Step::Turn, "nothing goes on before its turn");
    assert_eq!(shaking.awaits_client_since(), None, "the client has done what it can");
    let turn = Timestamp::from_millis(5);
    assert_eq!(shaking.answer(&terms(), turn), Step::Wait);
    assert_eq!(shaking.awaits_client_since(), Some(turn));
    // The second client disconnects while it waits.
    let (mut client, mut shaking) = connected(Entrance::Resp);
    client.write_all(&hello).expect("a socket buffer");
    assert_eq!(gone_on(&mut shaking, |step| step != Step::Wait), Step::Turn);
    socket2::SockRef::from(&client).set_linger(Some(Duration::ZERO)).expect("a socket");
    drop(client);
    assert_eq!(gone_on(&mut shaking, |step| step != Step::Turn), Step::Failed(Handshake::Left));
}

#[test]
fn what_is_no_hello_is_answered_in_its_own_words() {
    let told = |entrance: Entrance, said: &[u8]| {
        let (mut client, mut shaking) = connected(entrance);
        client.write_all(said).expect("a socket buffer");
        let step = gone_on(&mut shaking, |step| step != Step::Wait);
        assert_eq!(step, Step::Failed(Handshake::NotTls));
        drop(shaking);
        let mut told = String::new();
        client.read_to_string(&mut told).expect("the end");
        told
    };
    let resp = told(Entrance::Resp, b"*1\r\n$4\r\nPING\r\n");
    assert!(resp.starts_with("-ERR this port expects TLS"), "{resp}");
    let http = told(Entrance::Http, b"GET / HTTP/1.1\r\n\r\n");
    let (head, body) = http.split_once("\r\n\r\n").expect("a head");
    assert!(head.starts_with("HTTP/1.1 400 ") && body.contains("https://"), "{http}");
    assert!(head.contains(&format!("content-length: {}\r\n", body.len())), "{http}");
}

#[test]
fn files_that_are_wrong_are_named_with_what_is_wrong() {
    let folder = std::env::temp_dir().join(format!("weir-tls-{}", std::process::id()));
    fs::create_dir_all(&folder).expect("a folder");
    let write = |name: &str, text: &[u8]| {
        fs::write(folder.join(name), text).expect("a file");
        folder.join(name)
    };
    let right = files();
    right.load().expect("it is right");
    let certificate = fs::read(sample("localhost.crt")).expect("it is there");
    let twice = TlsFiles { certificate: write("two", &certificate.repeat(2)), ..right.clone() };
    twice.load().expect("a chain");
    let wrong = |change: &dyn Fn(&mut TlsFiles)| {
        let mut files = right.clone();
        change(&mut files);
        files.load().expect_err("it is wrong")
    };
    let missing = wrong(&|files| files.certificate = folder.join("missing"));
    assert!(missing.starts_with("--tls-cert ") && missing.contains("No such file"), "{missing}");
    let empty = write("empty", b"");
    let told = wrong(&|files| files.certificate = empty.clone());
    assert!(told.ends_with("empty: no certificate is in it (PEM)"), "{told}");
    let told = wrong(&|files| files.key = sample("localhost.crt"));
    assert!(told.starts_with("--tls-key ") && told.contains("no key is in it"), "{told}");
    let told = wrong(&|files| files.key = sample("other.key"));
    assert!(
        told.starts_with("--tls-key ") && told.contains("not the key of the first certificate"),
        "{told}"
    );
    let damaged = write("damaged", &certificate[..certificate.len() / 2]);
    let told = wrong(&|files| files.certificate = damaged.clone());
    assert!(told.starts_with("--tls-cert ") && told.contains("no PEM"), "{told}");
    let told = wrong(&|files| files.client_ca = Some(empty.clone()));
    assert!(told.starts_with("--tls-client-ca "), "{told}");
    for (lists, complaint) in [
        (&empty, "empty: no revocation list is in it (PEM)"),
        (&sample("localhost.crt"), "no revocation list is in it"),
        (&write("crl", b"-----BEGIN X509 CRL-----\nAAAA\n-----END X509 CRL-----\n"), "revocation list"),
    ] {
        let told = wrong(&|files| {
            (files.client_ca, files.client_crl) = (Some(sample("localhost.crt")), Some(lists.clone()));
        });
        assert!(told.starts_with("--tls-client-crl ") && told.contains(complaint), "{told}");
    }
    let large = write("large", &vec![b'\n'; TLS_FILE_BYTES_MAX as usize + 1]);
    let told = wrong(&|files| files.certificate = large.clone());
    assert!(told.contains("bytes are expected"), "{told}");
    fs::remove_dir_all(&folder).expect("it is ours");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn bytes_that_are_no_records_end_the_connection_and_nothing_else(
        bytes in proptest::collection::vec(any::<u8>(), 1..30_000),
        header in any::<bool>(),
    ) {
        let mut pair = Pair::new();
        let mut plain = Vec::new();
        let record = [0x17, 3, 3, 0x40, 0];
        let bytes = if header { [&record, bytes.as_slice()].concat() } else { bytes };
        let mut failed = false;
        for piece in bytes.chunks(5_000) {
            failed |= pair.far.receive(piece, &mut plain).is_err();
        }
        prop_assert!(plain.is_empty());
        prop_assert_eq!(pair.tally.figures().broken > 0, failed);
        prop_assert!(failed || bytes.len() < 0x4000 + 5, "a whole record that cannot be decrypted is an error");
    }
}
