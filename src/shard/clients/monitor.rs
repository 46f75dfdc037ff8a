//! Monitors: clients that have sent `MONITOR` and are sent a line for each request that they may see.
//! [`sight_of`] decides which requests a monitor may see.
//!
//! A monitor ends with `RESET`, `QUIT` or its connection. However it ends,
//! [`ClientStage::look_after_monitors`] finds it at the end of the turn and gives its place back.

use super::ClientStage;
use super::client::{Client, Ending};
use crate::config::Quotas;
use crate::protocol::encode;
use crate::protocol::monitor::write_left_out;
use crate::shard::counters::Counter;
use crate::shard::env::Env;
use crate::shard::message::Message;
use crate::shard::monitor_board::{MonitorPlace, Reading, Sender, Sight};
use crate::values::limits::MONITOR_OUTPUT_BYTES_MAX;
use crate::values::{ClientId, TenantId};

/// The error of redis-server for a `MONITOR` within a transaction.
const IN_TRANSACTION: &str = "ERR MONITOR isn't allowed for DENY BLOCKING client";

/// A client of this shard that has sent `MONITOR`, with the lines that it was not sent or not charged for.
#[derive(Debug)]
pub(super) struct Monitor {
    id: ClientId,
    /// The monitor's place on the board of monitors, where all shards see which monitors there are.
    place: MonitorPlace,
    /// The monitor's entry on the board of monitors, which all shards read: which requests it may see, and whether
    /// lines can be sent to it now.
    entry: (Sight, Reading),
    reading: Reading,
    /// The number of lines that this shard has left out, and that the monitor has not been told of: too many bytes
    /// waited for the monitor, or this shard had sent its monitors too many bytes. Lines left out by other shards are
    /// counted on the board of monitors.
    left_out: u64,
    /// Number of bytes of lines that were sent to the monitor and that its tenant has not been charged for.
    uncharged: usize,
}

impl Monitor {
    /// Brings the monitor's entry on the board up to date: which requests it may see (`sight`), and whether lines can
    /// be sent to it now.
    fn publish(&mut self, env: &Env, sight: Sight) {
        let entry = (sight, self.reading);
        if std::mem::replace(&mut self.entry, entry) != entry {
            env.settings.clients.monitors.change(self.place, env.settings.id, sight, self.reading);
        }
    }
}

/// Returns which requests a client may see as a monitor. None for a client without a tenant.
fn sight_of(client: &Client, quotas: &Quotas) -> Option<Sight> {
    client.identity.tenant.map(|tenant| sight_within(tenant, quotas))
}

/// Returns which requests a client of a tenant may see as a monitor: an administrator those of all clients, others
/// those of their tenant.
fn sight_within(tenant: TenantId, quotas: &Quotas) -> Sight {
    if quotas.tenant(tenant).admin {
        return Sight::All;
    }
    Sight::Tenant(Sender { tenant, version: quotas.version() })
}

/// Returns the text of the error for a client that may not be a monitor: all places are taken, or its tenant has its
/// quarter of them.
pub(super) fn no_place_left(env: &Env) -> String {
    let limit = env.settings.clients.monitors.places();
    format!("OVERLOADED reason=monitors limit={limit} (--monitors) retry_after_ms=1000")
}

/// Returns the number of bytes that may wait to be sent to a monitor (client that has sent `MONITOR`); a line beyond it
/// is left out. At most half of the number at which a client is closed, so that replies have room too.
fn waiting_bytes_max(env: &Env) -> usize {
    MONITOR_OUTPUT_BYTES_MAX.min(env.settings.output_bytes_max / 2)
}

impl ClientStage {
    /// Answers `MONITOR`: from now on the client is sent a line for each request that it may see. A client without a
    /// tenant is sent none, and a monitor stays one. The answer is an error within a transaction, if all places for
    /// monitors are taken (`--monitors`), or if monitors of the client's tenant, which is no administrator's, have
    /// their quarter of them.
    pub fn begin_monitoring(&mut self, env: &mut Env, id: ClientId) {
        let answer = self.try_monitoring(env, id);
        self.answer_now(env, id, |out, _| match &answer {
            Ok(()) => encode::simple(out, "OK"),
            Err(text) => encode::error(out, text),
        });
    }

    fn try_monitoring(&mut self, env: &Env, id: ClientId) -> Result<(), String> {
        let (board, client) = (&env.settings.clients.monitors, self.clients.at(id));
        if self.captured.is_some() {
            return Err(IN_TRANSACTION.to_owned());
        }
        let sight = sight_of(client, &env.quotas).filter(|_| !client.is_monitor);
        let Some(sight) = sight else { return Ok(()) };
        // A monitor that was ended in this turn has its place until the turn's end, perhaps as another tenant's.
        if let Some(monitor) = self.monitors.iter_mut().find(|monitor| monitor.id == id) {
            if !board.has_room(sight, Some(monitor.place)) {
                return Err(no_place_left(env));
            }
            client.is_monitor = true;
            monitor.publish(env, sight);
            return Ok(());
        }
        let Some(place) = board.take(env.settings.id, sight) else { return Err(no_place_left(env)) };
        client.is_monitor = true;
        let reading = Reading::Ready;
        self.monitors.push(Monitor {
            id,
            place,
            entry: (sight, reading),
            reading,
            left_out: 0,
            uncharged: 0,
        });
        Ok(())
    }

    /// True if a client may log in as a client of a tenant. False only for a monitor (it has sent `MONITOR`), if other
    /// monitors of that tenant, which is no administrator's, have their quarter of all places.
    pub(super) fn may_watch_within(&self, env: &Env, id: ClientId, tenant: TenantId) -> bool {
        let monitor = self.monitors.iter().find(|monitor| monitor.id == id);
        let is_monitor = self.clients.peek(id).is_some_and(|client| client.is_monitor);
        monitor.filter(|_| is_monitor).is_none_or(|monitor| {
            let sight = sight_within(tenant, &env.quotas);
            env.settings.clients.monitors.has_room(sight, Some(monitor.place))
        })
    }

    /// Brings a client's entry on the board of monitors up to date, if it has one, after its identity has changed: the
    /// monitors of its tenant are limited in number.
    pub(super) fn note_sight(&mut self, env: &Env, id: ClientId) {
        let Some(monitor) = self.monitors.iter_mut().find(|monitor| monitor.id == id) else { return };
        let client = self.clients.get(id).filter(|client| client.is_watching());
        if let Some(sight) = client.and_then(|client| sight_of(client, &env.quotas)) {
            monitor.publish(env, sight);
        }
    }

    /// True if clients of this shard have sent `MONITOR`.
    pub fn has_monitors(&self) -> bool {
        !self.monitors.is_empty()
    }

    /// Returns the number of this shard's monitors (clients that have sent `MONITOR`).
    pub fn monitors(&self) -> usize {
        self.monitors.len()
    }

    /// Sends a line, which shows a request of `sender`, to the monitors (clients that have sent `MONITOR`) of this
    /// shard that may see it, and counts it as left out for those of them for which too many bytes wait. Returns the
    /// number of bytes sent. With None instead of a line, counts one as left out for all of them.
    pub fn show(&mut self, env: &mut Env, sender: Sender, line: Option<&[u8]>) -> usize {
        let bytes_max = waiting_bytes_max(env);
        let mut sent = 0;
        for monitor in &mut self.monitors {
            // The identity may have changed since the end of the last turn.
            let client = self.clients.get(monitor.id).filter(|client| client.is_watching());
            let Some(client) = client else { continue };
            let sees = sight_of(client, &env.quotas).is_some_and(|sight| sight.covers(sender));
            if !sees {
                continue;
            }
            match line {
                Some(line)
                    if monitor.reading == Reading::Ready
                        && client.order.waiting_bytes() + line.len() <= bytes_max =>
                {
                    client.order.push(Message::Small(line), &mut env.pool);
                    self.outbox.list(client, monitor.id);
                    monitor.uncharged += line.len();
                    sent += line.len();
                }
                _ => {
                    env.counters.add(Counter::MonitorLinesLeftOut, 1);
                    monitor.left_out += 1;
                    if line.is_some() {
                        monitor.reading = Reading::Behind;
                    }
                }
            }
        }
        sent
    }

    /// Takes, with the client, the number of bytes of lines that a monitor (client that has sent `MONITOR`)
    /// was sent and that its tenant has not been charged for; None if no monitor has any.
    pub fn take_uncharged(&mut self) -> Option<(ClientId, usize)> {
        let monitor = self.monitors.iter_mut().find(|monitor| monitor.uncharged > 0)?;
        Some((monitor.id, std::mem::take(&mut monitor.uncharged)))
    }

    /// Updates this shard's monitors (clients in MONITOR) at the end of a turn (pass of the shard's loop):
    /// monitors that have ended leave the board of monitors, and the entries of the other monitors on it are
    /// brought up to date. A monitor that has room again after lines were left out is sent their number, before
    /// further lines. `unix_micros` is the present time.
    pub fn look_after_monitors(&mut self, env: &mut Env, unix_micros: u64) {
        let bytes_max = waiting_bytes_max(env);
        let mut monitors = std::mem::take(&mut self.monitors);
        monitors.retain_mut(|monitor| {
            let board = &env.settings.clients.monitors;
            let client = self.clients.get(monitor.id).filter(|client| client.is_watching());
            let sight = client.as_ref().and_then(|client| sight_of(client, &env.quotas));
            let (Some(client), Some(sight)) = (client, sight) else {
                board.give_back(monitor.place);
                return false;
            };
            let has_room = client.order.waiting_bytes() <= bytes_max / 2;
            if monitor.reading == Reading::Behind && has_room {
                monitor.reading = Reading::Ready;
                self.tell_left_out(env, monitor, unix_micros);
            }
            monitor.publish(env, sight);
            true
        });
        self.monitors = monitors;
    }

    /// Tells the monitors of this shard (clients that have sent `MONITOR`) that have room how many lines they
    /// have missed, if any. `unix_micros` is the present time.
    pub fn tell_all_left_out(&mut self, env: &mut Env, unix_micros: u64) {
        let mut monitors = std::mem::take(&mut self.monitors);
        for monitor in monitors.iter_mut().filter(|monitor| monitor.reading == Reading::Ready) {
            self.tell_left_out(env, monitor, unix_micros);
        }
        self.monitors = monitors;
    }

    fn tell_left_out(&mut self, env: &mut Env, monitor: &mut Monitor, unix_micros: u64) {
        let elsewhere = env.settings.clients.monitors.take_left_out(monitor.place);
        let lines = std::mem::take(&mut monitor.left_out) + elsewhere;
        if lines == 0 {
            return;
        }
        let mut text = env.pool.take();
        write_left_out(&mut text, unix_micros, lines);
        self.push_message(env, monitor.id, &text);
        env.pool.give(text);
    }
}

impl Client {
    /// True while the client is a monitor that is sent lines: it has sent `MONITOR`, and its connection is not
    /// ending.
    fn is_watching(&self) -> bool {
        self.is_monitor && self.ending == Ending::Open
    }
}
