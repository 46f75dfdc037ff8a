//! The control executor: a thread of its own that handles no data of clients. It answers questions that need
//! all shards, puts quotas in force, and conducts draining and takeover. It communicates with the shards over
//! channels only.

use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use crossbeam_channel::{Receiver, Sender};
use glommio::Task;
use glommio::channels::local_channel::{self, LocalSender};
use rustix::param::page_size;

use super::admin;
use super::clock::Clock;
use super::log;
use super::messages::{
    Mailbox, QuotasMoved, QuotasRead, Signal, Takeover, ToControl, ToFleet, ToQuotas, ToReplicas, ToShard,
    ToStoreInfo, ToTakeover,
};
use super::notify::Notify;
use super::park::Parking;
use super::storage_thread::ToStorage;
use super::tls::{Tally, ToHandshakes};
use crate::config::QuotaBounds;
use crate::control::client_rounds::ClientRounds;
use crate::control::explain_page::{self, ExplainQuery};
use crate::control::http::{Head, Response, Status};
use crate::control::quota_page::{self, Guard};
use crate::control::reconciliation::Reconciliation;
use crate::control::tenants::Tenants;
use crate::control::{
    self, FLEET_PERIOD, FleetQuotas, HISTORY_PERIOD, Looks, Meter, ProcessFacts, ShardReport, StoresTold,
    Totals, Versions, View,
};
use crate::protocol::{Protocol, encode};
use crate::routing::cluster::Map;
use crate::shard::{ClientsAsked, Explained, Pauses, Question, ReplyTo, StoreView};
use crate::store::EngineStatistics;
use crate::values::allowance::Report;
use crate::values::{ShardId, Timestamp};

/// The settings, mailboxes and channels that the control executor starts with.
pub(super) struct ControlSettings {
    pub shards: Vec<Mailbox<ToShard>>,
    pub storage: Option<Mailbox<ToStorage>>,
    /// The channel to the thread that asks stores for their `INFO` on behalf of clients.
    pub store_info: Sender<ToStoreInfo>,
    /// The control executor's own mailbox: the storage executor reports to it, and timers of the control
    /// executor post to it when shards' counters are to be collected again, or when the time for draining is
    /// over.
    pub own: Mailbox<ToControl>,
    /// The mailbox of the thread that reads and checks quotas.
    pub quotas: Mailbox<ToQuotas>,
    pub versions: Versions,
    /// The limits of the process above which settings of tenants have no effect.
    pub quota_bounds: QuotaBounds,
    /// True if the admin token comes from a file, which is read again on SIGHUP.
    pub has_token_file: bool,
    /// The access check for quotas posted to the admin port; none where there is no admin port.
    pub guard: Option<Guard>,
    pub facts: ProcessFacts,
    pub drain_timeout: Duration,
    /// The connection to the service manager (systemd) that is notified of the state of the process.
    pub manager: Notify,
    /// The pools: of each token bucket of a quota, the part that no core holds, from which cores are granted
    /// amounts.
    pub pools: Reconciliation,
    /// The quotas shared with a fleet of weir processes, and the channel to the thread that asks the fleet's
    /// store (a Redis server); none without `--fleet`.
    pub fleet: Option<(FleetQuotas, Sender<ToFleet>)>,
    /// The channel to the thread that asks the replicas of a cluster for their replication lag; none unless
    /// replicas may answer reads.
    pub replicas: Option<Sender<ToReplicas>>,
    /// The mailbox of the thread that communicates with a process that takes over; none without `--takeover`.
    pub takeover: Option<Mailbox<ToTakeover>>,
    /// The mailboxes of the TLS threads; none without TLS.
    pub tls: Option<TlsMailboxes>,
    /// The counters of TLS handshakes; none without TLS.
    pub tally: Option<Arc<Tally>>,
    pub clock: Clock,
}

/// The mailboxes of the threads for TLS handshakes and for certificates.
pub(super) struct TlsMailboxes {
    /// The mailbox of the thread that does TLS handshakes with clients; none unless weir listens for clients
    /// with TLS.
    pub handshakes: Option<Mailbox<ToHandshakes>>,
    /// The mailbox of the thread that reads certificate files; each message makes it read them again.
    pub certificates: Mailbox<()>,
}

/// A client's request (`INFO` or `QOS HOTKEYS`) whose reply needs the counters of all shards.
enum Wanted {
    Info { sections: Vec<String>, view: StoreView, protocol: Protocol },
    HotKeys { asker: String, count: usize, protocol: Protocol },
}

/// A client or an admin page that waits until all shards have reported their counters.
enum Waiter {
    Client(ReplyTo, Wanted),
    Page(LocalSender<Totals>),
}

/// A client's request (`INFO`, `QOS LIMITS` and the like, passed on by its shard) that the control executor
/// has not answered yet. Admin pages are answered elsewhere.
enum Due {
    Asked(ReplyTo, Question),
    /// A request whose reply needs the counters of all shards, which have reported them: `Totals` has them.
    Figures(ReplyTo, Wanted, Rc<Totals>),
    /// An `INFO` request for which the stores have been asked as well, with their replies.
    Told(InfoAsked, Rc<StoresTold>),
}

/// An `INFO` request of a client, with the counters of all shards, that waits for the stores' own `INFO`.
struct InfoAsked {
    to: ReplyTo,
    wanted: Wanted,
    totals: Rc<Totals>,
    /// True if the `INFO` request names sections that stores leave out by default, so that the stores have to
    /// be asked for all their sections.
    needs_everything: bool,
}

/// Maximum number of client requests that the control executor answers in a row; the rest wait until it has
/// handled other messages (quotas, say).
const ANSWERS_AT_ONCE: usize = 4;
/// The least time between the starts of two collections in which all shards report their counters, however
/// many requests need them, because each costs every shard some time.
const ROUND_PAUSE: Duration = Duration::from_millis(10);

/// A collection of counters in progress, in which each shard reports once: the reports that have come so far,
/// and the clients and requests to the admin port that wait for all of them.
struct Round {
    reports: Vec<Option<ShardReport>>,
    engine: Option<EngineStatistics>,
    engine_missing: bool,
    waiters: Vec<Waiter>,
}

/// The state of the admin port's listening socket.
pub(super) enum AdminPort {
    /// Absence of a listening socket: there is no admin port, or the successor process has the socket.
    Closed,
    /// A listening socket and the host names that it serves, not accepting yet, because the process that this
    /// one takes over from still accepts there.
    Waits(OwnedFd, Vec<String>),
    /// The task that accepts connections at the admin port, until it is dropped.
    Open { _accepting: Task<()> },
}

/// The pause before the admin port opens after a takeover, in which the previous process stops accepting
/// there. If both accepted at once, the kernel could wake the wrong one for a new connection, and nobody
/// would accept it.
const ADMIN_PAUSE: Duration = Duration::from_millis(50);

/// The time that handing clients over to a successor may take even if `--drain-timeout` is shorter, since even
/// clients without requests in flight take time to be handed over.
const HAND_OVER_AT_LEAST: Duration = Duration::from_secs(1);

pub(super) struct Control {
    settings: ControlSettings,
    round: Option<Round>,
    /// Clients and admin pages that wait for the next collection of all shards' counters, because they arrived
    /// during a collection, or less than 10 ms after the start of one.
    next: Vec<Waiter>,
    round_started: Option<Timestamp>,
    round_planned: bool,
    /// Requests of clients (`INFO`, `QOS LIMITS` and the like) that are still to be answered, in order; at most
    /// as many as all shards together may have unanswered (64 each).
    due: VecDeque<Due>,
    /// Clients' `INFO` requests on whose behalf stores are being asked for their own `INFO` now; empty while
    /// no store is being asked.
    asked_of_stores: Vec<InfoAsked>,
    /// Clients' `INFO` requests that arrived while stores were being asked for their own `INFO`, and for
    /// which they will be asked next.
    next_for_stores: Vec<InfoAsked>,
    /// Admin connections that posted quotas and wait for the result of the check, by the ticket number given
    /// to the post.
    posted: BTreeMap<u64, LocalSender<Response>>,
    posts: u64,
    /// Admin connections that wait for a shard's explanation of how weir would treat a command, by the ticket
    /// number of the query.
    explaining: BTreeMap<u64, LocalSender<Result<Explained, String>>>,
    explanations: u64,
    meter: Meter,
    client_rounds: ClientRounds,
    /// The pauses (`CLIENT PAUSE`) in force on all shards, to be passed on to a process that takes over.
    pauses: Pauses,
    log: log::Log,
    /// Limiter of the log lines about connections to the admin port that could not be accepted for want of
    /// resources (open files, memory).
    want: log::WantComplaints,
    looks: Looks,
    admin: AdminPort,
    /// The number of shards that have stopped accepting clients because another process takes over.
    deaf: usize,
    /// The process ID of the process that is taking over, once it is ready; None before.
    successor: Option<i32>,
    drained: Vec<bool>,
    /// True once the process was told by a signal to stop; a second signal stops it at once.
    told_to_stop: bool,
    finished: bool,
}

/// Runs the control executor until the process is to end. `letters` are the messages to it, and `bell` is the
/// eventfd that is signalled for each.
pub(super) async fn run(
    control: Rc<RefCell<Control>>,
    letters: Receiver<ToControl>,
    bell: OwnedFd,
) -> io::Result<()> {
    let mut parking = {
        use std::os::fd::AsFd as _;
        Parking::new(bell.as_fd())?
    };
    loop {
        while let Ok(letter) = letters.try_recv() {
            handle(&control, letter);
        }
        if control.borrow().finished {
            return Ok(());
        }
        if control.borrow_mut().answer_some() {
            glommio::yield_if_needed().await;
            continue;
        }
        parking.sleep().await;
    }
}

fn handle(control: &Rc<RefCell<Control>>, letter: ToControl) {
    let mut this = control.borrow_mut();
    match letter {
        ToControl::Report(shard, report) => {
            if let Some(round) = &mut this.round {
                round.reports[usize::from(shard.0)] = Some(*report);
            }
            this.finish_round();
        }
        ToControl::Engine(statistics) => {
            if let Some(round) = &mut this.round {
                round.engine = Some(statistics);
                round.engine_missing = false;
            }
            this.finish_round();
        }
        ToControl::Clients(shard, told) => {
            if let Some((to, reply)) = this.client_rounds.handle_told(shard, told) {
                this.answer(to, reply);
                let next = this.client_rounds.begin();
                this.ask_about_clients(next);
            }
        }
        ToControl::Explained { ticket, told } => {
            if let Some(sender) = this.explaining.remove(&ticket) {
                // The asking thread may have ended, which is no error.
                drop(sender.try_send(told));
            }
        }
        ToControl::StoresTold(told) => {
            let told = Rc::new(told);
            let asked = std::mem::take(&mut this.asked_of_stores);
            this.due.extend(asked.into_iter().map(|asked| Due::Told(asked, Rc::clone(&told))));
            this.ask_stores();
        }
        ToControl::Ask(to, question) => this.due.push_back(Due::Asked(to, question)),
        ToControl::RoundDue => {
            this.round_planned = false;
            this.start_round();
        }
        ToControl::Spent(report) => this.reconcile(&report),
        ToControl::StoreMoved(line) => this.say(log::Kind::Moved, &line),
        ToControl::Line(line) => this.say(log::Kind::Level, &line),
        ToControl::Said(kind, line) => this.say(kind, &line),
        ToControl::Drained(shard) => {
            this.drained[usize::from(shard.0)] = true;
            let all = this.drained.iter().all(|drained| *drained);
            if all && this.successor.is_some() {
                this.tell_successor(ToTakeover::AllMoved);
            } else if all {
                this.say(log::Kind::Life, "drained: every accepted request was answered");
                this.stop_everything();
            }
        }
        ToControl::DrainOver => {
            this.say(log::Kind::Life, "the time for the drain is over (--drain-timeout, or 1 s to hand clients over): the remaining clients are closed");
            this.stop_everything();
        }
        ToControl::Deaf => {
            this.deaf += 1;
            if this.deaf == this.settings.shards.len() {
                if let Some((fleet, _)) = &this.settings.fleet {
                    let parts = fleet.heritage(this.settings.clock.now().monotonic);
                    this.tell_successor(ToTakeover::Parts(parts));
                }
                this.tell_successor(ToTakeover::Deaf);
            }
        }
        ToControl::Takeover(Takeover::Parts(parts)) => {
            let Control { settings, .. } = &mut *this;
            if let Some((fleet, _)) = &mut settings.fleet {
                fleet.inherit(&parts, &mut settings.pools, settings.clock.now().monotonic);
            }
        }
        ToControl::Takeover(Takeover::Quotas { read, file, taken }) => {
            this.inherit_quotas(*read, file.as_deref());
            drop(taken);
        }
        ToControl::Takeover(Takeover::Pause(asked)) => {
            let now = this.settings.clock.now().monotonic;
            asked.change_pauses(&mut this.pauses, now);
        }
        ToControl::Takeover(Takeover::Listen) => {
            this.tell_handshakes(ToHandshakes::Listen);
            let control = Rc::clone(control);
            glommio::spawn_local(async move {
                glommio::timer::sleep(ADMIN_PAUSE).await;
                open_admin(&control);
            })
            .detach();
        }
        ToControl::Moved(moved) => this.tell_successor(ToTakeover::Moved(moved)),
        ToControl::Takeover(Takeover::Line(line)) => {
            this.say(log::Kind::Takeover, &format!("takeover: {line}"));
        }
        // Weir was told to stop before the successor was ready: the sockets are the successor's, and the
        // clients are closed here.
        ToControl::Takeover(Takeover::Ready { .. }) if this.settings.facts.draining => {}
        ToControl::Takeover(Takeover::Ready { pid, version }) => {
            let timeout = this.settings.drain_timeout.max(HAND_OVER_AT_LEAST);
            this.settings.facts.draining = true;
            this.successor = Some(pid);
            this.say(
                log::Kind::Takeover,
                &format!(
                    "takeover: process {pid} (version {version}) serves; clients move to it within {timeout:?}"
                ),
            );
            this.admin = AdminPort::Closed;
            this.tell_handshakes(ToHandshakes::Stop);
            this.tell_of_posted_quotas();
            this.tell_of_pauses();
            this.settings.shards.iter().for_each(|shard| shard.post(ToShard::HandOver));
            drop(this);
            stop_after(Rc::clone(control), timeout);
        }
        ToControl::Takeover(Takeover::Done { clients }) => {
            let pid = this.successor.unwrap_or_default();
            this.say(log::Kind::Takeover, &format!("takeover: {clients} clients moved to process {pid}"));
            this.stop_everything();
        }
        ToControl::Signal(Signal::Reload) => this.reload(),
        ToControl::Quotas(read) => this.take_quotas(*read),
        ToControl::StoreVersion(version) => {
            this.settings.facts.store_version = version;
            this.settings.shards.iter().for_each(|shard| shard.post(ToShard::StoreVersion(version)));
        }
        ToControl::Slots(map, why) => {
            let line = control::slots_line(&map, &why);
            this.settings.facts.backends = control::node_names(&map);
            this.tell_of_replicas(ToReplicas::Map(Arc::clone(&map)));
            this.settings.facts.cluster = Some(map);
            this.say(log::Kind::Cluster, &line);
        }
        ToControl::Replicas(states) => this.settings.facts.replicas.states = states,
        ToControl::Fleet { number, answer } => this.take_fleet_answer(number, &answer),
        ToControl::Token(Ok(token)) => {
            this.say(log::Kind::Token, "the file of the admin token was read again");
            if let Some(guard) = &mut this.settings.guard {
                guard.token = Some(token);
            }
        }
        ToControl::Token(Err(problem)) => {
            this.say(log::Kind::Refused, &format!("{problem}; the token is unchanged"));
        }
        ToControl::Signal(Signal::Terminate) if this.told_to_stop => {
            this.say(log::Kind::Life, "second signal to stop: stopping at once");
            this.stop_everything();
        }
        ToControl::Signal(Signal::Terminate) => {
            this.told_to_stop = true;
            if let Some(pid) = this.successor {
                let line = format!(
                    "signal to stop while clients move to process {pid}: \
                     this one stops when they have moved, or at a second signal"
                );
                return this.say(log::Kind::Life, &line);
            }
            let timeout = this.begin_to_drain();
            drop(this);
            stop_after(Rc::clone(control), timeout);
        }
    }
}

/// Starts accepting at the admin port, if its listening socket is open and not accepting yet.
pub(super) fn open_admin(control: &Rc<RefCell<Control>>) {
    let port = std::mem::replace(&mut control.borrow_mut().admin, AdminPort::Closed);
    let port = match port {
        AdminPort::Waits(socket, hosts) => {
            AdminPort::Open { _accepting: admin::serve(Rc::clone(control), socket, hosts) }
        }
        other => other,
    };
    control.borrow_mut().admin = port;
}

fn stop_after(control: Rc<RefCell<Control>>, timeout: Duration) {
    glommio::spawn_local(async move {
        glommio::timer::sleep(timeout).await;
        control.borrow().settings.own.post(ToControl::DrainOver);
    })
    .detach();
}

/// Starts the task that tells the fleet's store (Redis server with the counters of shared quotas) this host's
/// demand and asks for that of all hosts, once per second at a moment that differs between hosts. Seconds
/// that were missed are skipped. Does nothing without a fleet.
pub(super) fn keep_to_fleet(control: &Rc<RefCell<Control>>) {
    let Some(phase) = control.borrow().settings.fleet.as_ref().map(|(fleet, _)| fleet.phase()) else {
        return;
    };
    let control = Rc::clone(control);
    glommio::spawn_local(async move {
        let mut due = control.borrow().settings.clock.now().monotonic.after(phase);
        loop {
            let now = control.borrow().settings.clock.now().monotonic;
            glommio::timer::sleep(due.since(now)).await;
            let mut this = control.borrow_mut();
            if this.finished {
                return;
            }
            let now = this.settings.clock.now().monotonic;
            this.ask_fleet(now);
            // The timer may fire a little early, so the next time is counted from the one due, not from now.
            due = due.after(FLEET_PERIOD);
            while due <= now {
                due = due.after(FLEET_PERIOD);
            }
        }
    })
    .detach();
}

impl Control {
    pub fn new(mut settings: ControlSettings) -> Self {
        let shards = settings.shards.len();
        if let Some((fleet, _)) = &mut settings.fleet {
            fleet.start(&mut settings.pools, settings.clock.now().monotonic);
        }
        Self {
            meter: Meter::new(settings.versions.current()),
            settings,
            client_rounds: ClientRounds::default(),
            pauses: Pauses::default(),
            log: log::Log::default(),
            want: log::WantComplaints::default(),
            looks: Looks::default(),
            round: None,
            next: Vec::new(),
            round_started: None,
            round_planned: false,
            due: VecDeque::new(),
            asked_of_stores: Vec::new(),
            next_for_stores: Vec::new(),
            posted: BTreeMap::new(),
            posts: 0,
            explaining: BTreeMap::new(),
            explanations: 0,
            admin: AdminPort::Closed,
            deaf: 0,
            successor: None,
            drained: vec![false; shards],
            told_to_stop: false,
            finished: false,
        }
    }

    /// Returns facts about the process as of now: uptime, memory, token buckets, quotas in force, TLS counters.
    pub fn facts(&self) -> ProcessFacts {
        let mut facts = self.settings.facts.clone();
        facts.uptime = Duration::from_nanos(self.settings.clock.now().monotonic.as_nanos());
        facts.resident_bytes = resident_bytes();
        facts.quota_pools = self.settings.pools.pools();
        facts.forgiven = self.settings.pools.forgiven();
        facts.quotas = self.settings.versions.history().clone();
        facts.tls = self.settings.tally.as_ref().map(|tally| tally.figures());
        facts
    }

    /// Builds the page of the admin port that the request asks for. `totals` has the counters of all shards;
    /// `None` if the page needs none, or a shard or the embedded store did not report: a page that needs them is
    /// a 503 then.
    pub fn page(&mut self, head: &Head, totals: Option<&Totals>) -> Response {
        let facts = self.facts();
        let (view, looks) = self.view(&facts, totals);
        control::page(head.route, &head.query, view, looks)
    }

    fn note_figures(&mut self, totals: &Totals) {
        let facts = self.facts();
        let (view, looks) = self.view(&facts, Some(totals));
        looks.note(view, totals);
    }

    /// Returns the state that admin pages may show, and the state that pages keep between requests (the
    /// figures of the last ten minutes and the last lines of the log, among others). `totals` has the
    /// counters of all shards, if they were collected.
    fn view<'a>(
        &'a mut self,
        facts: &'a ProcessFacts,
        totals: Option<&'a Totals>,
    ) -> (View<'a>, &'a mut Looks) {
        let Self { settings, meter, looks, .. } = self;
        let fleet = settings.fleet.as_ref().map(|(fleet, _)| fleet);
        let now = settings.clock.now();
        (View { facts, totals, versions: &settings.versions, meter, fleet, now }, looks)
    }

    /// Checks whether an admin client may post the quotas that this request head announces. The error is the
    /// reply; replies with status 401 and 403 are counted.
    pub fn admit(&mut self, head: &Head) -> Result<(), Response> {
        let guard = self.settings.guard.as_ref().expect("there is an admin port, or nobody would ask");
        let admitted = guard.admit(head);
        if let Err(response) = &admitted
            && matches!(response.status, Status::Unauthorized | Status::Forbidden)
        {
            self.settings.facts.admin_denied += 1;
        }
        admitted
    }

    /// Handles a core's report of the quota it spent: posts new grants (amounts to spend) to that core at once,
    /// since its requests may wait for them, and adds the usage to the demand that the fleet is told, and to
    /// the tenants' usage by minute.
    fn reconcile(&mut self, report: &Report) {
        let now = self.settings.clock.now().monotonic;
        if !report.demands.is_empty() {
            let mut grants = Vec::with_capacity(report.demands.len());
            self.settings.pools.handle_report(report, now, &mut grants);
            self.settings.shards[usize::from(report.shard.0)].post(ToShard::Grants(grants));
        }
        if let Some((fleet, _)) = &mut self.settings.fleet {
            fleet.handle_usage(&self.settings.versions, report.version, &report.usage);
        }
        let minute = Meter::minute_of(now);
        self.meter.take_report(&self.settings.versions, report.version, &report.usage, minute);
    }

    fn ask_fleet(&mut self, now: Timestamp) {
        let Some((fleet, thread)) = &mut self.settings.fleet else { return };
        let exchange = fleet.begin(now, &mut self.settings.pools);
        // A thread that is still busy with the previous exchange answers neither in time, so a full channel
        // is no loss.
        let _ = thread.try_send(ToFleet { exchange, deadline: now.after(FLEET_PERIOD) });
        self.tell_of_fleet();
    }

    fn take_fleet_answer(&mut self, number: u64, answer: &Result<Vec<u8>, String>) {
        let now = self.settings.clock.now().monotonic;
        let Some((fleet, _)) = &mut self.settings.fleet else { return };
        let answer = answer.as_deref().map_err(String::as_str);
        fleet.handle_answer(number, answer, now, &mut self.settings.pools);
        self.tell_of_fleet();
    }

    fn tell_of_fleet(&mut self) {
        let now = self.settings.clock.now();
        let Some((fleet, _)) = &mut self.settings.fleet else { return };
        while let Some(line) = fleet.poll_line() {
            self.log.say(log::Kind::Fleet, &line, &mut self.looks.journal, now);
        }
    }

    /// Handles at most `ANSWERS_AT_ONCE` requests of clients that were passed on to the control executor:
    /// answers each, or begins to collect what its reply needs. False if none was waiting.
    fn answer_some(&mut self) -> bool {
        let count = self.due.len().min(ANSWERS_AT_ONCE);
        for due in self.due.drain(..count).collect::<Vec<_>>() {
            match due {
                Due::Asked(to, question) => self.ask(to, question),
                Due::Figures(to, wanted, totals) => self.take_figures(to, wanted, totals),
                Due::Told(InfoAsked { to, wanted, totals, .. }, stores) => {
                    self.tell(to, &wanted, &totals, &stores);
                }
            }
        }
        count > 0
    }

    /// Answers a client's request now that all shards have reported their counters (`totals`). An `INFO`
    /// request for sections that stores fill waits for the stores' own `INFO` instead.
    fn take_figures(&mut self, to: ReplyTo, wanted: Wanted, totals: Rc<Totals>) {
        match &wanted {
            Wanted::Info { sections, .. } if control::info_needs_stores(sections) => {
                let needs_everything = control::info_needs_everything(sections);
                self.next_for_stores.push(InfoAsked { to, wanted, totals, needs_everything });
                if self.asked_of_stores.is_empty() {
                    self.ask_stores();
                }
            }
            _ => self.tell(to, &wanted, &totals, &StoresTold::default()),
        }
    }

    /// Asks the stores for their own `INFO` on behalf of all clients whose `INFO` requests wait for it, if
    /// there are any. In a cluster only the nodes that hold keys are asked.
    fn ask_stores(&mut self) {
        self.asked_of_stores = std::mem::take(&mut self.next_for_stores);
        if self.asked_of_stores.is_empty() {
            return;
        }
        let stores_of = |map: &Arc<Map>| map.stores().map(|node| usize::from(node.key.backend.0)).collect();
        let everything = self.asked_of_stores.iter().any(|asked| asked.needs_everything);
        let letter = ToStoreInfo { everything, only: self.settings.facts.cluster.as_ref().map(stores_of) };
        // The thread ends with the process, and the clients with it.
        let _ = self.settings.store_info.send(letter);
    }

    fn tell(&self, to: ReplyTo, wanted: &Wanted, totals: &Totals, stores: &StoresTold) {
        let mut reply = Vec::new();
        match wanted {
            Wanted::Info { sections, view, protocol } => {
                let text = control::info(sections, *view, &self.facts(), totals, stores);
                encode::verbatim(&mut reply, *protocol, &text);
            }
            Wanted::HotKeys { asker, count, protocol } => {
                let quotas = self.settings.versions.current();
                control::write_hot_keys(&mut reply, *protocol, totals, (quotas, asker, *count));
            }
        }
        self.answer(to, reply);
    }

    fn ask(&mut self, to: ReplyTo, question: Question) {
        match question {
            Question::Info { sections, view, protocol } => {
                self.collect_for(Waiter::Client(to, Wanted::Info { sections, view, protocol }));
            }
            Question::HotKeys { asker, count, protocol } => {
                self.collect_for(Waiter::Client(to, Wanted::HotKeys { asker, count, protocol }));
            }
            Question::Limits { limits, protocol } => {
                let mut reply = Vec::new();
                let now = self.settings.clock.now().monotonic;
                control::write_limits(&mut reply, protocol, &limits, &self.settings.pools, now);
                self.answer(to, reply);
            }
            Question::Clients { asked, protocol } => {
                let asked = self.client_rounds.ask(to, asked, protocol, self.settings.shards.len());
                self.ask_about_clients(asked);
            }
            Question::Tenants { asker, after, protocol } => {
                let quotas = self.settings.versions.current();
                let tenants = Tenants { quotas, meter: &self.meter, now: self.settings.clock.now() };
                let mut reply = Vec::new();
                tenants.reply(&mut reply, protocol, &asker, &after);
                self.answer(to, reply);
            }
        }
    }

    /// Sends a client's command about other clients to all shards; does nothing with None. A process that is
    /// taking over is told of a pause as well, before a client that has seen the reply moves there.
    fn ask_about_clients(&mut self, asked: Option<Arc<ClientsAsked>>) {
        let Some(asked) = asked else { return };
        let is_about_pauses = asked.change_pauses(&mut self.pauses, self.settings.clock.now().monotonic);
        if is_about_pauses && self.successor.is_some() {
            self.tell_successor(ToTakeover::Pause(Arc::clone(&asked)));
        }
        self.settings.shards.iter().for_each(|shard| shard.post(ToShard::Clients(Arc::clone(&asked))));
    }

    fn collect_for(&mut self, waiter: Waiter) {
        self.next.push(waiter);
        if self.round.is_none() && !self.round_planned {
            self.plan_round();
        }
    }

    /// Starts a collection of all shards' counters now, or plans it for 10 ms (`ROUND_PAUSE`) after the start
    /// of the previous one.
    fn plan_round(&mut self) {
        let now = self.settings.clock.now().monotonic;
        let since = self.round_started.map_or(ROUND_PAUSE, |started| now.since(started));
        let Some(pause) = ROUND_PAUSE.checked_sub(since).filter(|pause| !pause.is_zero()) else {
            return self.start_round();
        };
        self.round_planned = true;
        let own = self.settings.own.clone();
        glommio::spawn_local(async move {
            glommio::timer::sleep(pause).await;
            own.post(ToControl::RoundDue);
        })
        .detach();
    }

    fn start_round(&mut self) {
        self.round_started = Some(self.settings.clock.now().monotonic);
        let waiters = std::mem::take(&mut self.next);
        let shards = self.settings.shards.len();
        let reports = std::iter::repeat_with(|| None).take(shards).collect();
        let engine_missing = self.settings.storage.is_some();
        self.round = Some(Round { reports, engine: None, engine_missing, waiters });
        self.settings.shards.iter().for_each(|shard| shard.post(ToShard::Report));
        if let Some(storage) = &self.settings.storage {
            storage.post(ToStorage::Report(self.settings.own.clone()));
        }
    }

    fn finish_round(&mut self) {
        let whole = |round: &mut Round| round.reports.iter().all(Option::is_some) && !round.engine_missing;
        let Some(round) = self.round.take_if(whole) else { return };
        let totals =
            Rc::new(Totals { shards: round.reports.into_iter().flatten().collect(), engine: round.engine });
        let now = self.settings.clock.now();
        for line in self.looks.journal.news_of_hot_keys(&totals) {
            self.log.note(log::Kind::HotKey, &line, &mut self.looks.journal, now);
        }
        for waiter in round.waiters {
            match waiter {
                Waiter::Client(to, wanted) => {
                    self.due.push_back(Due::Figures(to, wanted, Rc::clone(&totals)));
                }
                // A page whose reader has left needs no figures.
                Waiter::Page(sender) => drop(sender.try_send(Totals::clone(&totals))),
            }
        }
        if !self.next.is_empty() && !self.round_planned {
            self.plan_round();
        }
    }

    fn tell_of_replicas(&self, letter: ToReplicas) {
        if let Some(thread) = &self.settings.replicas {
            // The thread ends with the process, so a failed send does not matter.
            let _ = thread.send(letter);
        }
    }

    /// Stores the admin port's listening socket, which [`open_admin`] opens for requests later, and `hosts`, the names
    /// by which a request's `Host` header may address the port.
    pub fn note_admin(&mut self, socket: OwnedFd, hosts: Vec<String>) {
        self.admin = AdminPort::Waits(socket, hosts);
    }

    /// Logs that a connection to the admin port could not be accepted, if resources are used up.
    pub fn note_admin_not_accepted(&mut self, error: &io::Error) {
        let what = "a connection to the admin port could not be accepted";
        if let Some(line) = self.want.complain(what, error, self.settings.clock.now().monotonic) {
            self.say(log::Kind::Want, &line);
        }
    }

    /// Passes the pauses (`CLIENT PAUSE`) in force on to the process that takes over.
    fn tell_of_pauses(&mut self) {
        self.pauses.end_late(self.settings.clock.now().monotonic);
        for pause in self.pauses.iter() {
            self.tell_successor(ToTakeover::Pause(Arc::new(ClientsAsked::Pause(pause.clone()))));
        }
    }

    fn tell_successor(&self, letter: ToTakeover) {
        if let Some(takeover) = &self.settings.takeover {
            takeover.post(letter);
        }
    }

    fn answer(&self, to: ReplyTo, reply: Vec<u8>) {
        self.settings.shards[usize::from(to.shard.0)].post(ToShard::Answer(to, reply));
    }

    fn say(&mut self, kind: log::Kind, text: &str) {
        let now = self.settings.clock.now();
        self.log.say(kind, text, &mut self.looks.journal, now);
    }

    fn tell_handshakes(&self, letter: ToHandshakes) {
        if let Some(handshakes) = self.settings.tls.as_ref().and_then(|tls| tls.handshakes.as_ref()) {
            handshakes.post(letter);
        }
    }

    /// Orders all shards to drain. Returns the time after which the process stops although clients are left.
    fn begin_to_drain(&mut self) -> Duration {
        self.settings.facts.draining = true;
        // The thread for takeovers tells it instead, as it knows whether another process goes on with the
        // service.
        if self.settings.takeover.is_none() {
            self.settings.manager.stopping();
        }
        self.tell_successor(ToTakeover::Withdraw);
        let timeout = self.settings.drain_timeout;
        self.say(log::Kind::Life, &format!("draining for at most {timeout:?}"));
        self.tell_handshakes(ToHandshakes::Stop);
        self.settings.shards.iter().for_each(|shard| shard.post(ToShard::Drain));
        timeout
    }

    fn reload(&mut self) {
        if let Some(tls) = &self.settings.tls {
            tls.certificates.post(());
        } else if self.settings.versions.file().is_none() && !self.settings.has_token_file {
            let line = "SIGHUP: there is no file to read again (--quotas, --admin-token-file, --tls-cert)";
            self.say(log::Kind::Reload, line);
        }
        self.settings.quotas.post(ToQuotas::Reload);
    }

    /// Puts quotas in force on all shards if they are valid, else keeps the previous ones; replies to the
    /// admin connection that posted them, if one did.
    fn take_quotas(&mut self, read: QuotasRead) {
        let now = self.settings.clock.now();
        let versions = &mut self.settings.versions;
        let reply = match read.result {
            Ok(quotas) => {
                let before = Arc::clone(versions.current());
                let quotas = versions.take(quotas, read.source, now.unix_ms);
                read.posted.into_iter().for_each(|text| versions.keep_posted(text));
                let text = format!(
                    "quotas, version {}: {} tenants from {}",
                    quotas.version(),
                    quotas.len(),
                    quota_page::origin(versions)
                );
                self.log.say(log::Kind::Quotas, &text, &mut self.looks.journal, now);
                if let Some(beyond) = quotas.beyond(self.settings.quota_bounds) {
                    let text = format!("quotas: {beyond}");
                    self.log.say(log::Kind::Quotas, &text, &mut self.looks.journal, now);
                }
                self.meter.carry_over(&before, &quotas);
                if let Some((fleet, _)) = &mut self.settings.fleet {
                    fleet.handle_quotas(&quotas, &mut self.settings.pools, now.monotonic);
                }
                let shards = self.settings.shards.iter();
                shards.for_each(|shard| shard.post(ToShard::Quotas(Arc::clone(&quotas))));
                self.settings.facts.replicas.is_wanted = quotas.have_stale_reads();
                self.tell_of_replicas(ToReplicas::Wanted(quotas.have_stale_reads()));
                if self.successor.is_some() {
                    self.tell_of_posted_quotas();
                }
                quota_page::posted(&self.settings.versions)
            }
            Err(problem) => {
                let text = format!("{problem}; the quotas in force are unchanged");
                self.log.say(log::Kind::Refused, &text, &mut self.looks.journal, now);
                let reply = quota_page::refused(&problem);
                versions.refuse(problem, read.source, now.unix_ms);
                reply
            }
        };
        if let Some(sender) = read.ticket.and_then(|ticket| self.posted.remove(&ticket)) {
            // The client that posted the quotas may have left.
            drop(sender.try_send(reply));
        }
    }

    /// Puts quotas in force that were posted to the process before. `file` is the digest of the quota file that
    /// they have replaced there; none without a file. If this process has read another quota file, that file
    /// holds, since it is newer or meant for this process, and the posted quotas are dropped.
    fn inherit_quotas(&mut self, read: QuotasRead, file: Option<&str>) {
        let own = self.settings.versions.file_digest().map(|digest| digest.to_string());
        if own.as_deref() == file {
            return self.take_quotas(read);
        }
        let line = "takeover: the quota file is not the one that the process before has read, so it holds, and not the \
                    quotas that were posted there";
        self.say(log::Kind::Quotas, line);
    }

    /// Passes the quotas in force on to the process that takes over, if they were posted. Quotas of the quota
    /// file need not be passed on, since that process has read the file itself.
    fn tell_of_posted_quotas(&self) {
        let versions = &self.settings.versions;
        if let Some(text) = versions.posted().cloned() {
            let moved = QuotasMoved { text, file: versions.file_digest() };
            self.tell_successor(ToTakeover::Quotas(Box::new(moved)));
        }
    }

    fn stop_everything(&mut self) {
        self.finished = true;
        self.settings.shards.iter().for_each(|shard| shard.post(ToShard::Stop));
        if let Some(storage) = &self.settings.storage {
            storage.post(ToStorage::Stop);
        }
    }
}

/// The time between the first two collections of counters for the admin page that shows the last ten minutes;
/// the difference of these counters is the page's first point.
const HISTORY_BEGINS: Duration = Duration::from_secs(1);

/// The longest time that an admin page waits for the counters or the explanations of shards, some of which may
/// be stuck; after that a page that needs them is a 503.
const FIGURES_TIMEOUT: Duration = Duration::from_secs(2);

/// Collects the counters of all shards, and of the embedded store if there is one. `None` if any of them does
/// not report within 2 s (`FIGURES_TIMEOUT`).
pub(super) async fn figures(control: &Rc<RefCell<Control>>) -> Option<Totals> {
    let (sender, receiver) = local_channel::new_bounded(1);
    control.borrow_mut().collect_for(Waiter::Page(sender));
    let waited = glommio::timer::timeout(FIGURES_TIMEOUT, async move { Ok(receiver.recv().await) }).await;
    waited.ok().flatten()
}

/// Replies to an admin request that asks how weir would treat a command: asks shard 0, and then the shard that
/// the command's keys belong to, if that is another. The reply is a 503 if a shard has not answered within 2 s.
pub(super) async fn explain(control: &Rc<RefCell<Control>>, head: &Head) -> Response {
    let query = match ExplainQuery::parse(&head.query) {
        Ok(query) => Arc::new(query),
        Err(refusal) => return refusal,
    };
    let mut told = explained_by(control, ShardId(0), &query).await;
    if let Some(Ok(first)) = &told
        && let Some(home) = first.home().filter(|home| *home != ShardId(0))
    {
        told = explained_by(control, home, &query).await;
    }
    told.map_or_else(
        || Response::problem(Status::ServiceUnavailable, "a shard does not answer", None),
        explain_page::explained,
    )
}

async fn explained_by(
    control: &Rc<RefCell<Control>>,
    shard: ShardId,
    query: &Arc<ExplainQuery>,
) -> Option<Result<Explained, String>> {
    let (sender, receiver) = local_channel::new_bounded(1);
    let ticket = {
        let this = &mut *control.borrow_mut();
        this.explanations += 1;
        let ticket = this.explanations;
        let asked = this.settings.shards.get(usize::from(shard.0))?;
        asked.post(ToShard::Explain { query: Arc::clone(query), ticket });
        this.explaining.insert(ticket, sender);
        ticket
    };
    let waited = glommio::timer::timeout(FIGURES_TIMEOUT, async move { Ok(receiver.recv().await) }).await;
    control.borrow_mut().explaining.remove(&ticket);
    waited.ok().flatten()
}

/// Starts a task that notifies the service manager's watchdog, three times per watchdog timeout, that the
/// process is alive, as long as all shards report their counters in time. Does nothing if no watchdog is set.
pub(super) fn keep_telling(control: &Rc<RefCell<Control>>) {
    let Some(period) = control.borrow().settings.manager.period() else { return };
    let control = Rc::clone(control);
    glommio::spawn_local(async move {
        while !control.borrow().finished {
            if figures(&control).await.is_some() {
                control.borrow().settings.manager.alive();
            }
            glommio::timer::sleep(period).await;
        }
    })
    .detach();
}

/// Starts a task that records figures of weir every 5 s, for the page of the admin port that shows the last
/// ten minutes, and for the rates of the page that shows the present state. Does nothing without an admin port.
pub(super) fn keep_history(control: &Rc<RefCell<Control>>) {
    if control.borrow().settings.guard.is_none() {
        return;
    }
    let control = Rc::clone(control);
    glommio::spawn_local(async move {
        let mut pause = HISTORY_BEGINS;
        while !control.borrow().finished {
            if let Some(totals) = figures(&control).await {
                control.borrow_mut().note_figures(&totals);
            }
            glommio::timer::sleep(pause).await;
            pause = HISTORY_PERIOD;
        }
    })
    .detach();
}

/// The longest time that the reply to a POST of quotas waits until the quotas have been checked; after that it
/// is a 503, and the check goes on.
const CHECK_TIMEOUT: Duration = Duration::from_secs(30);

/// Has posted quotas (`body`) checked and, if they are valid, put in force. Returns the reply for the client;
/// after 30 s (`CHECK_TIMEOUT`) that is a 503, and the check goes on.
pub(super) async fn post_quotas(control: &Rc<RefCell<Control>>, body: Vec<u8>) -> Response {
    let (sender, receiver) = local_channel::new_bounded(1);
    let ticket = {
        let this = &mut *control.borrow_mut();
        this.posts += 1;
        this.posted.insert(this.posts, sender);
        this.settings.quotas.post(ToQuotas::Check { body, ticket: this.posts });
        this.posts
    };
    let waited = glommio::timer::timeout(CHECK_TIMEOUT, async move { Ok(receiver.recv().await) }).await;
    control.borrow_mut().posted.remove(&ticket);
    waited.ok().flatten().unwrap_or_else(|| {
        let detail = "the check is still running: GET /config/quotas shows its result";
        Response::problem(Status::ServiceUnavailable, detail, None)
    })
}

fn resident_bytes() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    statm.split(' ').nth(1).and_then(|pages| pages.parse::<u64>().ok()).unwrap_or(0) * page_size() as u64
}
