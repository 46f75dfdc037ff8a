//! Quiet time of backends: time in which a backend answered nothing although requests whose work does not
//! show (such as scripts, or intersections of sets) were in flight. A store carries out one request after
//! another, so they have kept it busy, and share the time as part of their prices.

use std::time::Duration;

use super::pending::{InFlight, Pending};
use crate::values::Timestamp;

/// Time for which a backend may answer nothing before that counts as quiet (1 ms), since the network and the
/// scheduler may delay any reply by so much.
const USUAL: Duration = Duration::from_millis(1);

/// The most that one silence of a backend counts as quiet time (1 s). A store that is stopped or cut off is silent for
/// longer, and requests that wait for it are its victims; few requests take as long.
const LONGEST: Duration = Duration::from_secs(1);

/// The quiet time of one backend, as one core sees it: time in which it answers nothing although requests whose work
/// does not show (such as scripts) are in flight.
#[derive(Clone, Copy, Debug, Default)]
pub struct Quiet {
    heard_at: Timestamp,
    /// The sum over all quiet times so far of their length divided by the number of requests whose work does not show
    /// (such as scripts) and which were in flight then, in microseconds; it begins again from zero after 71 minutes.
    /// The difference of two readings is the share of such a request that was in flight between them.
    shared_micros: u32,
    /// True if requests whose work does not show (such as scripts: neither request nor reply tells how much
    /// work they are) may be in flight on connections that clients share.
    may_be_shared: bool,
    /// The number of requests whose work does not show (such as scripts) that are in flight on private links
    /// (connections that one client has to itself).
    on_private_links: u32,
    /// Time since which requests whose work does not show (such as scripts) have been in flight on private
    /// links (connections that one client has to itself), if there are any.
    private_since: Timestamp,
}

/// The requests in flight at one backend on the connections that clients share.
#[derive(Clone, Copy, Debug, Default)]
pub struct OnShared {
    /// The number of requests whose work does not show (such as scripts), and which share the backend's quiet
    /// time.
    pub hiding: u32,
    /// The time at which the oldest of all unanswered requests was sent; None if there is none.
    pub oldest: Option<Timestamp>,
}

impl OnShared {
    /// Adds the unanswered requests of one connection (`owed`), the oldest first.
    pub fn add<'a>(&mut self, owed: impl IntoIterator<Item = &'a Pending>) {
        let mut owed = owed.into_iter().peekable();
        self.oldest = Timestamp::earliest([self.oldest, owed.peek().map(|oldest| oldest.sent_at())]);
        let hides = |request: &&InFlight| request.envelope.nature.hides_work();
        self.hiding += owed.filter_map(Pending::request).filter(hides).count() as u32;
    }
}

impl Quiet {
    /// Records that the backend was heard: it sent a reply or a part of one. `late` is the delay of this core
    /// itself, for which no request pays; `see` returns the requests in flight on shared connections.
    #[inline]
    pub fn handle_heard(&mut self, late: Duration, see: impl FnOnce() -> OnShared, now: Timestamp) {
        let before = std::mem::replace(&mut self.heard_at, now);
        if (self.may_be_shared || self.on_private_links > 0) && now.since(before) > USUAL {
            self.share(before, late, see(), now);
        }
    }

    #[cold]
    fn share(&mut self, heard_at: Timestamp, late: Duration, on_shared: OnShared, now: Timestamp) {
        self.may_be_shared = on_shared.hiding > 0;
        let private_since = (self.on_private_links > 0).then_some(self.private_since);
        // The backend was not quiet while nothing was asked of it.
        let asked_since = Timestamp::earliest([on_shared.oldest, private_since]).unwrap_or(now);
        let silent = now.since(heard_at.max(asked_since)).saturating_sub(late);
        let micros = silent.saturating_sub(USUAL).min(LONGEST).as_micros() as u32;
        let requests = on_shared.hiding.saturating_add(self.on_private_links);
        self.shared_micros = self.shared_micros.wrapping_add(micros.checked_div(requests).unwrap_or(0));
    }

    /// Records that a request whose work does not show (such as a script) is sent on a connection that
    /// clients share. Returns the reading of the backend's quiet time that [`Self::share_since`] takes when
    /// the reply comes.
    #[inline]
    pub const fn handle_sent(&mut self) -> u32 {
        self.may_be_shared = true;
        self.shared_micros
    }

    /// Records that a request whose work does not show (such as a script) is sent on a private link
    /// (connection that one client has to itself). Returns the reading of the backend's quiet time that
    /// [`Self::share_since`] takes when the reply comes.
    pub const fn handle_sent_privately(&mut self, now: Timestamp) -> u32 {
        if self.on_private_links == 0 {
            self.private_since = now;
        }
        self.on_private_links += 1;
        self.shared_micros
    }

    /// Records that a request whose work does not show (such as a script) was answered on a private link
    /// (connection that one client has to itself), or lost with it.
    pub fn handle_over_privately(&mut self) {
        self.on_private_links = self.on_private_links.saturating_sub(1);
    }

    /// Returns a request's share of the backend's quiet time (in which it answered nothing) since the request was sent,
    /// in microseconds. `reading` is what [`Self::handle_sent`] returned then.
    pub const fn share_since(&self, reading: u32) -> u32 {
        self.shared_micros.wrapping_sub(reading)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the time that is this many microseconds after the beginning of the clock.
    fn at(micros: u64) -> Timestamp {
        Timestamp::from_nanos(micros * 1_000)
    }

    fn on_shared(hiding: u32, oldest: u64) -> OnShared {
        OnShared { hiding, oldest: Some(at(oldest)) }
    }

    #[test]
    fn requests_in_flight_share_the_time_in_which_nothing_was_answered() {
        let mut quiet = Quiet::default();
        quiet.handle_heard(Duration::ZERO, || unreachable!("nothing hides"), at(10_000));
        let first = quiet.handle_sent();
        quiet.handle_heard(Duration::ZERO, || unreachable!("it was heard just now"), at(11_000));
        let second = quiet.handle_sent();
        quiet.handle_heard(Duration::ZERO, || on_shared(2, 10_000), at(20_000));
        assert_eq!([quiet.share_since(first), quiet.share_since(second)], [4_000; 2]);
        let third = quiet.handle_sent();
        quiet.handle_heard(Duration::from_micros(500), || on_shared(1, 19_000), at(25_000));
        assert_eq!([first, third].map(|reading| quiet.share_since(reading)), [7_500, 3_500]);
    }

    #[test]
    fn a_backend_is_not_quiet_while_nothing_is_asked_of_it() {
        let mut quiet = Quiet::default();
        let reading = quiet.handle_sent();
        quiet.handle_heard(Duration::ZERO, || on_shared(1, 5_000_000), at(5_003_000));
        assert_eq!(quiet.share_since(reading), 2_000);
        quiet.handle_heard(Duration::ZERO, OnShared::default, at(7_000_000));
        assert_eq!(quiet.share_since(reading), 2_000);
        // A store that was stopped does not make those pay who waited for it.
        let reading = quiet.handle_sent();
        quiet.handle_heard(Duration::ZERO, || on_shared(2, 8_000_000), at(60_000_000));
        assert_eq!(quiet.share_since(reading), 500_000);
    }

    #[test]
    fn requests_on_private_links_have_their_share() {
        let mut quiet = Quiet::default();
        let private = quiet.handle_sent_privately(at(1_000_000));
        quiet.handle_heard(Duration::ZERO, OnShared::default, at(1_005_000));
        assert_eq!(quiet.share_since(private), 4_000);
        let shared = quiet.handle_sent();
        quiet.handle_heard(Duration::ZERO, || on_shared(1, 1_004_000), at(1_008_000));
        assert_eq!([private, shared].map(|reading| quiet.share_since(reading)), [5_000, 1_000]);
        quiet.handle_over_privately();
        quiet.handle_heard(Duration::ZERO, OnShared::default, at(1_100_000));
        assert_eq!(quiet.share_since(private), 5_000);
    }
}
