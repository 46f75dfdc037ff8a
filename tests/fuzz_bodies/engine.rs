//! Any requests for the embedded store, from two connections.

use weir::protocol::{Arguments, ReplyScanner, RequestDecoder, RequestLimits};
use weir::store::{Disposition, Engine, EngineLimits, Session};
use weir::values::Timestamp;
use weir::values::time::Now;

/// Name of a made-up request, after which requests come from the other of the two connections.
const OTHER: &[u8] = b"OTHER";
/// Name of a made-up request that lets a second pass.
const LATER: &[u8] = b"LATER";

const LIMITS: EngineLimits =
    EngineLimits { bytes_max: 1 << 20, reply_bytes_max: 1 << 20, effort_max: 20_000 };
/// Bytes by which the memory may exceed its limit: a command that was admitted below the limit is carried out.
const SPARE_BYTES: u64 = 64 << 10;
/// Number of keys that are looked at in one search for expired keys.
const SWEPT: usize = 100;

/// Carries out any requests in the embedded store. Checks that replies are whole, that the memory stays within its
/// limit, and that none of it is in use once all keys are deleted.
pub fn engine(bytes: &[u8]) {
    let mut house = House::new();
    let (mut decoder, mut consumed) = (RequestDecoder::default(), 0);
    let limits = RequestLimits::trusted(100_000);
    while let Ok(Some(request)) = decoder.next(bytes, &mut consumed, &limits) {
        match request.arguments.name() {
            OTHER => house.asking = 1 - house.asking,
            LATER => house.pass_a_second(),
            _ => house.ask(request.arguments),
        }
    }
    house.end();
}

struct House {
    engine: Engine,
    sessions: [Session; 2],
    /// True for a connection that waits for the reply of a blocking call.
    waits: [bool; 2],
    closed: [bool; 2],
    /// The index of the connection that requests come from at present.
    asking: usize,
    now: Now,
}

impl House {
    fn new() -> Self {
        Self {
            engine: Engine::new(LIMITS, 7),
            sessions: [Session::new(0), Session::new(1)],
            waits: [false; 2],
            closed: [false; 2],
            asking: 0,
            now: Now { monotonic: Timestamp::from_millis(1), unix_ms: 1_700_000_000_000 },
        }
    }

    fn ask(&mut self, arguments: Arguments<'_>) {
        let asking = self.asking;
        if self.waits[asking] || self.closed[asking] {
            return;
        }
        let mut out = Vec::new();
        let disposition = self.engine.execute(&mut self.sessions[asking], arguments, self.now, &mut out);
        let name = arguments.name().escape_ascii();
        assert_whole(&out, &name);
        match disposition {
            Disposition::Continue => assert!(!out.is_empty(), "{name} was not answered"),
            Disposition::Wait => self.waits[asking] = true,
            Disposition::Close => self.close(asking),
        }
        let used = self.engine.statistics().bytes_used;
        let allowed = LIMITS.bytes_max + SPARE_BYTES;
        assert!(used <= allowed, "{used} bytes are used after {name}, more than {allowed}");
        self.deliver();
    }

    fn pass_a_second(&mut self) {
        self.now.unix_ms += 1_000;
        self.now.monotonic = Timestamp::from_millis(self.now.monotonic.as_nanos() / 1_000_000 + 1_000);
        self.engine.expire_waits(self.now);
        let _ = self.engine.expire_some(self.now, SWEPT);
        self.deliver();
    }

    fn deliver(&mut self) {
        while let Some(delivery) = self.engine.poll_delivery() {
            assert_whole(&delivery.bytes, &"a delivery");
            let to = delivery.session as usize;
            assert!(!self.closed[to], "a message for a connection that is closed");
            assert!(!delivery.ends_wait || self.waits[to], "a reply that nobody waits for");
            self.waits[to] &= !delivery.ends_wait;
        }
        while let Some(killed) = self.engine.poll_killed() {
            if let Some(killed) = usize::try_from(killed).ok().filter(|killed| *killed < self.closed.len()) {
                self.close(killed);
            }
        }
    }

    fn close(&mut self, session: usize) {
        if !self.closed[session] {
            self.engine.cancel_wait(&self.sessions[session]);
            self.engine.forget(&self.sessions[session]);
        }
        (self.closed[session], self.waits[session]) = (true, false);
    }

    /// Closes both connections and deletes all keys and functions. Checks that no memory is left in use.
    fn end(mut self) {
        self.close(0);
        self.close(1);
        let mut last = Session::new(2);
        for request in [b"*1\r\n$8\r\nFLUSHALL\r\n".as_slice(), b"*2\r\n$8\r\nFUNCTION\r\n$5\r\nFLUSH\r\n"] {
            let (mut decoder, mut consumed, mut out) = (RequestDecoder::default(), 0, Vec::new());
            let request = decoder.next(request, &mut consumed, &RequestLimits::trusted(1_000));
            let request = request.expect("well formed").expect("whole");
            self.engine.execute(&mut last, request.arguments, self.now, &mut out);
        }
        let left = self.engine.statistics();
        assert_eq!((left.keys, left.bytes_used), (0, 0), "keys and bytes after all were deleted");
    }
}

/// Panics if the bytes are anything but whole replies and push messages.
fn assert_whole(out: &[u8], of: &dyn std::fmt::Display) {
    let (mut scanner, mut end) = (ReplyScanner::with_pushes(), 0);
    while let Ok(Some(scanned)) = scanner.scan(&out[end..]) {
        end += scanned.end;
        if end == out.len() {
            break;
        }
    }
    assert_eq!(end, out.len(), "{of}: {}", out.escape_ascii());
}
