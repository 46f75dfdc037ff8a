//! Counters of a shard. This file is the only place that names them: the name here is the metric's name.

use crate::values::Tier;

/// Declares the counters: for each its name in the code, the metric's name, a label (empty, or
/// `name="value"`), and the metric's help text.
macro_rules! counters {
    ($(($counter:ident, $metric:literal, $label:literal, $help:expr $(,)?),)*) => {
        /// The events that a shard counts, or the microseconds where the metric is in seconds. Every counter only
        /// grows.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(usize)]
        #[expect(missing_docs, reason = "the help texts say what each is")]
        pub enum Counter {
            $($counter,)*
        }

        /// Rows of the metrics page, one for each counter: counter, metric name, label, help text.
        pub const COUNTERS: [(Counter, &str, &str, &str); [$(Counter::$counter),*].len()] =
            [$((Counter::$counter, $metric, $label, $help),)*];
    };
}

counters! {
    (ClientsOpened, "weir_clients_opened_total", "", "Client connections accepted."),
    (ClientsRefused, "weir_clients_refused_total", "", "Client connections over --max-clients."),
    (ClientsClosed, "weir_clients_closed_total", "", "Client connections that ended, for any reason."),
    (ClientsClosedUnread, "weir_clients_expelled_total", "reason=\"unread\"", EXPELLED),
    (ClientsClosedIdle, "weir_clients_expelled_total", "reason=\"idle\"", EXPELLED),
    (ClientsClosedLogin, "weir_clients_expelled_total", "reason=\"login\"", EXPELLED),
    (ClientsClosedSlow, "weir_clients_expelled_total", "reason=\"slow\"", EXPELLED),
    (ClientsClosedMemory, "weir_clients_expelled_total", "reason=\"memory\"", EXPELLED),
    (ClientsClosedKilled, "weir_clients_expelled_total", "reason=\"killed\"", EXPELLED),
    (ClientsClosedRevoked, "weir_clients_expelled_total", "reason=\"revoked\"", EXPELLED),
    (ClientsClosedSubscriber, "weir_clients_expelled_total", "reason=\"slow-subscriber\"", EXPELLED),
    (ClientsClosedMissed, "weir_clients_expelled_total", "reason=\"missed-messages\"", EXPELLED),
    (
        ClientBacklogs,
        "weir_client_backlogs_total",
        "",
        "Times that more than 256 KiB of replies were to wait for a client that read nothing while it sent requests.",
    ),
    (Requests, "weir_requests_total", "", "Requests decoded."),
    (
        RequestsForwarded,
        "weir_requests_forwarded_total",
        "",
        "Requests sent to backends; each part of a split request counts as one.",
    ),
    (
        RequestsHeavy,
        "weir_requests_heavy_total",
        "",
        "Requests sent to backends on the connections for expensive requests (--heavy-connections).",
    ),
    (RequestsHandedOver, "weir_requests_handed_over_total", "", "Requests handed to the key's home core."),
    (
        RequestsSplit,
        "weir_requests_split_total",
        "",
        "Requests that were split by key or sent to every backend.",
    ),
    (
        RequestsHeld,
        "weir_requests_held_total",
        "",
        "Requests that waited for all earlier ones of their connection.",
    ),
    (
        RequestsInSteps,
        "weir_requests_in_steps_total",
        "",
        "Requests with so many keys that they were split over several turns of their core.",
    ),
    (AnsweredHere, "weir_requests_answered_here_total", "", "Requests that weir answered itself."),
    (AnswerBytes, "weir_answer_bytes_total", "", "Bytes of replies that weir made itself."),
    (RequestsQueued, "weir_requests_queued_total", "", "Requests that waited in the queue of their backend."),
    (
        RequestsExpired,
        "weir_requests_expired_total",
        "",
        "Requests that waited in the queue of their backend and were then refused, because they waited too long or their deadline passed.",
    ),
    (
        RequestsAbandoned,
        "weir_requests_abandoned_total",
        "",
        "Requests in flight that weir answered before their backend did, because their deadline passed or the backend stalled.",
    ),
    (
        DeadlinesPassedOn,
        "weir_deadlines_passed_on_total",
        "",
        "Requests sent to another weir with their remaining deadline.",
    ),
    (
        WaitedInShadow,
        "weir_shadow_waits_total",
        "layer=\"window\"",
        "Requests that would have waited or been refused without --shadow.",
    ),
    (
        HeavyYielded,
        "weir_heavy_yielded_total",
        "",
        "Times that a shard allowed fewer expensive requests in flight at a backend, because replies to cheap ones came late.",
    ),
    (LevelChanges, "weir_level_changes_total", "", "Times a shard changed the shedding level of a backend."),
    (RefusedUnavailable, "weir_refusals_total", "reason=\"unavailable\"", REFUSALS),
    (RefusedOverloaded, "weir_refusals_total", "reason=\"overloaded\"", REFUSALS),
    (RefusedThrottled, "weir_refusals_total", "reason=\"throttled\"", REFUSALS),
    (RefusedDeadline, "weir_refusals_total", "reason=\"deadline\"", REFUSALS),
    (RefusedPermission, "weir_refusals_total", "reason=\"permission\"", REFUSALS),
    (RefusedExcess, "weir_refusals_total", "reason=\"excess\"", REFUSALS),
    (
        RefusedEjected,
        "weir_ejected_refusals_total",
        "",
        "Requests refused because their backend was ejected; also counted in weir_refusals_total{reason=\"unavailable\"}.",
    ),
    (LoginsFailed, "weir_logins_failed_total", "", "Logins with a wrong name or password."),
    (
        ThrottledInShadow,
        "weir_shadow_refusals_total",
        "reason=\"throttled\"",
        "Requests that would have been refused without --shadow.",
    ),
    (
        ExpiredInShadow,
        "weir_shadow_refusals_total",
        "reason=\"overloaded\"",
        "Requests that would have been refused without --shadow.",
    ),
    (
        LateInShadow,
        "weir_shadow_refusals_total",
        "reason=\"deadline\"",
        "Requests that would have been refused without --shadow.",
    ),
    (
        AdmissionsWaited,
        "weir_admissions_waited_total",
        "",
        "Requests that waited for a grant of a quota's pool.",
    ),
    (
        AdmissionsHeld,
        "weir_admissions_held_total",
        "",
        "Requests that waited until earlier requests of their tenant had replies, because the real price of those could exceed the rest of a quota.",
    ),
    (
        QuotaPoolsSilent,
        "weir_quota_pools_silent_total",
        "",
        "Times a shard admitted requests without a grant of a quota's pool, by its last share, because the pool did not answer.",
    ),
    (ProtocolErrors, "weir_protocol_errors_total", "", "Connections closed for malformed requests."),
    (ClientBytesReceived, "weir_client_bytes_received_total", "", "Bytes received from clients."),
    (BackendBytesReceived, "weir_backend_bytes_received_total", "", "Bytes received from backends."),
    (RepliesReceived, "weir_backend_replies_total", "", "Replies received from backends."),
    (
        RepliesOversized,
        "weir_backend_replies_oversized_total",
        "",
        "Replies of backends larger than --max-reply-bytes.",
    ),
    (
        LargeRepliesPaused,
        "weir_large_replies_paused_total",
        "",
        "Large replies of backends that weir did not read on with, because others took the room for them (a quarter of --max-clients-bytes, at least one of --max-reply-bytes on each core).",
    ),
    (LinksOpened, "weir_backend_connections_opened_total", "", "Connections to backends opened."),
    (
        LinksLost,
        "weir_backend_connections_lost_total",
        "",
        "Connections to backends that were lost or could not be opened.",
    ),
    (
        LinksRenewed,
        "weir_backend_connections_renewed_total",
        "",
        "Connections to backends opened anew because the backend refused a write as a replica (READONLY).",
    ),
    (
        PrivateLinksLent,
        "weir_private_links_lent_total",
        "",
        "Times that a client was lent a connection to a store for itself.",
    ),
    (
        WatchesBroken,
        "weir_watches_broken_total",
        "",
        "Transactions that failed as if a watched key had changed, because the connection with the watch was lost or the \
         watch was held for more than 30 seconds.",
    ),
    (
        WaitsTakenOver,
        "weir_waits_taken_over_total",
        "",
        "Blocking commands that the process before this one handed over unanswered, to go on here.",
    ),
    (OrphansLost, "weir_blocked_orphans_total", "outcome=\"lost\"", ORPHANS),
    (OrphansPutBack, "weir_blocked_orphans_total", "outcome=\"put-back\"", ORPHANS),
    (
        MessagesDelivered,
        "weir_messages_delivered_total",
        "",
        "Published messages that subscribers were sent.",
    ),
    (
        SharedMessages,
        "weir_shared_messages_total",
        "",
        "Published messages that came once for all subscribers of a shared channel or pattern (pubsub = \"shared\").",
    ),
    (
        InvalidationsPassed,
        "weir_invalidations_passed_total",
        "",
        "Messages about changed keys that clients with CLIENT TRACKING were sent.",
    ),
    (
        PublicationsHeld,
        "weir_publish_waits_total",
        "",
        "PUBLISH requests that waited for subscriptions that came before (--publish-wait).",
    ),
    (
        PublicationsHeldForCores,
        "weir_publish_core_waits_total",
        "",
        "PUBLISH requests that waited until other cores had handled what arrived before them (--publish-wait).",
    ),
    (
        MonitorLinesLeftOut,
        "weir_monitor_lines_left_out_total",
        "",
        "Lines that monitors (MONITOR) were not sent, because they read too slowly or a shard had written too many.",
    ),
    (
        StoresMoved,
        "weir_backend_moves_total",
        "",
        "Times a shard connected to a new address of a backend because its name resolved to another one.",
    ),
    (BatchesSent, "weir_mesh_batches_sent_total", "", "Batches handed to other shards."),
    (BatchesReceived, "weir_mesh_batches_received_total", "", "Batches taken from other shards."),
    (
        BatchBytesReceived,
        "weir_mesh_bytes_received_total",
        "",
        "Bytes of requests and replies in batches taken from other shards.",
    ),
    (SendsToClients, "weir_sends_total", "to=\"client\"", SENDS),
    (SendsToBackends, "weir_sends_total", "to=\"backend\"", SENDS),
    (HotHits, "weir_hot_hits_total", "place=\"home\"", HITS),
    (HotHitsCopied, "weir_hot_hits_total", "place=\"copy\"", HITS),
    (
        HotJoins,
        "weir_hot_joins_total",
        "",
        "Reads of hot keys that waited for a fetch, with the read that started it. A prefetch has none.",
    ),
    (HotFetched, "weir_hot_fetches_total", "outcome=\"kept\"", FETCHES),
    (HotDiscarded, "weir_hot_fetches_total", "outcome=\"discarded\"", FETCHES),
    (HotBypassedWarming, "weir_hot_bypass_total", "reason=\"warming\"", BYPASSES),
    (HotBypassedOrder, "weir_hot_bypass_total", "reason=\"order\"", BYPASSES),
    (HotBypassedFull, "weir_hot_bypass_total", "reason=\"full\"", BYPASSES),
    (HotBypassedLarge, "weir_hot_bypass_total", "reason=\"large\"", BYPASSES),
    (HotBypassedOther, "weir_hot_bypass_total", "reason=\"other\"", BYPASSES),
    (
        BusyMicros,
        "weir_unshown_work_seconds_total",
        "",
        "Time for which requests kept stores busy that do not show how much work they are, such as scripts.",
    ),
    (HotMatches, "weir_hot_compared_total", "outcome=\"same\"", COMPARISONS),
    (HotMismatches, "weir_hot_compared_total", "outcome=\"different\"", COMPARISONS),
    (
        HotWrittenPast,
        "weir_hot_written_past_total",
        "",
        "Replies that differed from the kept reply although nothing was written through weir, which means a write around weir. All kept replies of the key are dropped.",
    ),
    (HotChanges, "weir_hot_changes_told_total", "of=\"key\"", CHANGES_TOLD),
    (HotChangesOfAll, "weir_hot_changes_told_total", "of=\"all\"", CHANGES_TOLD),
    (
        HotPoisoned,
        "weir_hot_fetches_poisoned_total",
        "",
        "Fetches of hot keys in flight whose replies were not kept, because the store told of a change meanwhile.",
    ),
    (HotTrackersLost, "weir_hot_trackers_lost_total", "reason=\"lost\"", TRACKERS_LOST),
    (HotTrackersSilent, "weir_hot_trackers_lost_total", "reason=\"silent\"", TRACKERS_LOST),
    (
        HotStaleOnError,
        "weir_hot_stale_on_error_total",
        "",
        "Reads of hot keys that were answered from memory after --hot-ttl, because the store was unavailable and their tenant has stale_on_error.",
    ),
    (
        Redirections,
        "weir_cluster_redirections_total",
        "",
        "Redirects (MOVED, ASK) in replies of cluster nodes.",
    ),
    (RefusedTryAgain, "weir_cluster_asked_again_total", "reason=\"tryagain\"", ASKED_AGAIN),
    (RefusedClusterDown, "weir_cluster_asked_again_total", "reason=\"clusterdown\"", ASKED_AGAIN),
    (
        SlotsHeld,
        "weir_cluster_requests_held_total",
        "",
        "Requests that waited until the new owner of their slot was known.",
    ),
    (ReplicaReadsEmpty, "weir_replica_reads_sent_on_total", "reason=\"empty\"", SENT_ON),
    (ReplicaReadsRefused, "weir_replica_reads_sent_on_total", "reason=\"refused\"", SENT_ON),
    (ReplicaReadsLost, "weir_replica_reads_sent_on_total", "reason=\"lost\"", SENT_ON),
    (RetriesSent, "weir_backend_retries_total", "outcome=\"sent\"", RETRIES),
    (RetriesOverBudget, "weir_backend_retries_total", "outcome=\"over_budget\"", RETRIES),
    (RetriesInShadow, "weir_backend_retries_total", "outcome=\"shadow\"", RETRIES),
    (HotPromoted, "weir_hot_keys_total", "change=\"promoted\"", HOT_KEYS),
    (HotDemoted, "weir_hot_keys_total", "change=\"demoted\"", HOT_KEYS),
}

const ASKED_AGAIN: &str = "Replies TRYAGAIN and CLUSTERDOWN of cluster nodes, after which weir holds the request and sends it again.";
const EXPELLED: &str = "Client connections that weir closed, by reason.";
const HITS: &str =
    "Reads of hot keys answered from memory: on their home core, or from a copy on another core.";
const FETCHES: &str =
    "Replies fetched for hot keys, by outcome: kept, or discarded because of a write or of their size.";
const BYPASSES: &str = "Reads of hot keys that were sent to the store without the cache, by reason.";
const CHANGES_TOLD: &str = "Messages of stores that a hot key, or all keys, have changed. Nothing that was kept of them is used after it.";
const ORPHANS: &str = "Elements that a store took for a blocking command whose client had left, by outcome: lost, or put back because of give_back.";
const TRACKERS_LOST: &str =
    "Connections on which a store told of changes of hot keys, and that were lost or fell silent.";
const COMPARISONS: &str = "Replies of the store compared with the kept reply (--shadow hot), by outcome.";
const SENT_ON: &str = "Reads that were sent to a primary after a replica, because the replica had no value, refused, was lost or was silent.";
const RETRIES: &str = "Reads that were lost with a connection to a cluster node, by outcome: sent again, over the retry budget, or not sent again because of --shadow retries.";
const HOT_KEYS: &str = "Times a key became hot (promoted) or stopped being hot (demoted).";
const SENDS: &str = "Sends completed, by receiver.";
const REFUSALS: &str = "Requests that weir refused, by reason.";

/// The counters of one shard, or the sum of several shards' ([`Counters::merge`]).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Counters([u64; COUNTERS.len()]);

impl Default for Counters {
    fn default() -> Self {
        Self([0; COUNTERS.len()])
    }
}

impl Counters {
    /// Adds an amount to a counter.
    pub fn add(&mut self, counter: Counter, amount: u64) {
        self.0[counter as usize] += amount;
    }

    /// Returns the value of a counter.
    pub fn get(&self, counter: Counter) -> u64 {
        self.0[counter as usize]
    }

    /// Adds another shard's counters to those in this record.
    pub fn merge(&mut self, other: &Self) {
        for (sum, value) in self.0.iter_mut().zip(other.0) {
            *sum += value;
        }
    }

    /// Returns the amounts counted since an earlier copy of the same counters.
    #[must_use]
    pub fn since(&self, before: &Self) -> Self {
        let mut since = self.clone();
        for (count, before) in since.0.iter_mut().zip(before.0) {
            *count = count.saturating_sub(before);
        }
        since
    }
}

/// Reason why a request was refused because of overload: its backend could not have answered it in time, or
/// at all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pressure {
    /// The window (limit on requests in flight) was full, and no queue is configured in which the request
    /// could wait.
    Window,
    /// The queue in front of the backend was full, the request waited in it for too long, or there was no room on the
    /// connection to the backend.
    Queue,
    /// The backend had stalled (it sent nothing while requests were in flight), or was busy with a script.
    Stalled,
    /// The request's deadline had passed, or the backend could not answer before it.
    Deadline,
    /// The backend had become slow, and requests of this tier (importance) are refused so that more important
    /// ones are answered.
    Latency,
}

impl Pressure {
    /// All reasons for which overload makes weir refuse requests, in the order of the metrics page.
    pub const ALL: [Self; 5] = [Self::Window, Self::Queue, Self::Stalled, Self::Deadline, Self::Latency];

    /// Returns the name that this reason for refusing requests has in metrics.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Window => "window",
            Self::Queue => "queue",
            Self::Stalled => "stalled",
            Self::Deadline => "deadline",
            Self::Latency => "latency",
        }
    }
}

/// Numbers of requests refused because of overload, by reason and by tier (importance).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pressures([[u64; Tier::ALL.len()]; Pressure::ALL.len()]);

impl Pressures {
    /// Counts requests of a tier (importance), refused for a reason.
    pub fn add(&mut self, pressure: Pressure, tier: Tier, requests: u64) {
        self.0[pressure as usize][tier as usize] += requests;
    }

    /// Returns the number of requests of a tier (importance) that were refused for a reason.
    pub fn get(&self, pressure: Pressure, tier: Tier) -> u64 {
        self.0[pressure as usize][tier as usize]
    }

    /// Returns the numbers of requests that were refused since `before`, an earlier copy of these numbers.
    #[must_use]
    pub fn since(&self, before: &Self) -> Self {
        let mut since = self.clone();
        for (count, before) in since.0.as_flattened_mut().iter_mut().zip(before.0.as_flattened()) {
            *count = count.saturating_sub(*before);
        }
        since
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_counter_is_shown_in_its_own_row() {
        for (index, (counter, name, _, help)) in COUNTERS.iter().enumerate() {
            assert_eq!(*counter as usize, index);
            assert!(name.starts_with("weir_") && name.ends_with("_total") && help.ends_with('.'), "{name}");
        }
    }

    /// Counters of one metric family must be neighbours, because the metrics page starts each family only
    /// once.
    #[test]
    fn counters_of_one_family_stand_side_by_side() {
        let mut families: Vec<&str> =
            COUNTERS.chunk_by(|one, other| one.1 == other.1).map(|rows| rows[0].1).collect();
        let all = families.len();
        families.sort_unstable();
        families.dedup();
        assert_eq!(families.len(), all);
    }
}
