//! Monitors (`MONITOR`): each request is shown where it is carried out, and only there: `carry_out.rs` calls
//! [`Shard::show_request`]. So a request is shown once, after it was permitted and admitted, whether it is forwarded,
//! answered from memory or answered by weir. Requests of a transaction are shown when `EXEC` is carried out, before
//! it.

use super::Shard;
use super::destination::Destination;
use crate::protocol::Arguments;
use crate::protocol::command::{self, Command, LocalCommand};
use crate::protocol::monitor::{Heading, is_shown, write_line};
use crate::shard::monitor_board::Sender;
use crate::shard::peers::Batch;
use crate::values::limits::{MONITOR_TRANSACTION_MAX, SHARDS_MAX};
use crate::values::time::Now;
use crate::values::{ClientId, Database};

impl Shard {
    /// Shows a request that is about to be carried out to the monitors (clients of any core that have sent `MONITOR`)
    /// that may see it; before an `EXEC`, the requests of its transaction. Commands for administrators, and those of
    /// modules that ask for it, are not shown.
    #[cold]
    #[inline(never)]
    pub(super) fn show_request(
        &mut self,
        id: ClientId,
        command: Option<&'static Command>,
        destination: Destination,
        arguments: &Arguments<'_>,
        now: Now,
    ) {
        match destination {
            Destination::Weir(LocalCommand::Exec) => {
                let database = self.show_transaction(id, now);
                return self.show_in(id, database, command, arguments, now);
            }
            // A client that sends `RESET` is no monitor once it is done, and Redis shows a request only then.
            Destination::Weir(LocalCommand::Reset) if self.clients.client(id).is_monitor() => return,
            // Redis shows a request when it is done, so `SELECT`, as an `EXEC` behind one, is shown with the new
            // database.
            Destination::Weir(LocalCommand::Select) => {
                let database = self.database_named(arguments).ok();
                return self.show_in(id, database, command, arguments, now);
            }
            _ => {}
        }
        self.show_in(id, None, command, arguments, now);
    }

    /// Shows monitors (clients that sent `MONITOR`) the requests of a client's transaction, which `EXEC` is
    /// about to carry out; of a long transaction only the first 1,024 requests, and the others count as left
    /// out. Returns the database that the transaction selects; None if it selects no other than the client's. Shows
    /// nothing, and returns None, if `EXEC` is to fail.
    fn show_transaction(&mut self, id: ClientId, now: Now) -> Option<Database> {
        let client = self.clients.client(id);
        let fails = client.is_watch_broken();
        let transaction = client.take_transaction()?;
        let mut database = None;
        if !transaction.is_poisoned() && !fails {
            let mut selected = None;
            transaction.for_each_request(MONITOR_TRANSACTION_MAX, |arguments| {
                let command = command::recognise(arguments).ok();
                if command.is_some_and(|command| command.name == "select") {
                    selected = self.database_named(arguments).ok().or(selected);
                }
                self.show_in(id, selected, command, arguments, now);
            });
            let more = transaction.len().saturating_sub(MONITOR_TRANSACTION_MAX) as u32;
            let sender = self.sender_of(id);
            self.monitors.leave_out_for(&self.env.settings.clients.monitors, sender, more);
            database = transaction.database();
        }
        self.clients.client(id).put_back_transaction(transaction);
        database
    }

    /// Returns the tenant of a client, which decides which monitors may see the client's requests, with the
    /// version of the quotas that the tenant's id belongs to.
    fn sender_of(&mut self, id: ClientId) -> Sender {
        let tenant = self.clients.client(id).identity().tenant_id();
        Sender { tenant, version: self.env.quotas.version() }
    }

    /// Shows one request of a client to the monitors (clients that sent `MONITOR`) that may see it, as made
    /// in `database` if given, else in the client's. `command` is None if weir does not know it.
    fn show_in(
        &mut self,
        id: ClientId,
        database: Option<Database>,
        command: Option<&'static Command>,
        arguments: &Arguments<'_>,
        now: Now,
    ) {
        if !is_shown(command, arguments) {
            return;
        }
        let sender = self.sender_of(id);
        let client = self.clients.client(id);
        let board = &self.env.settings.clients.monitors;
        let readers = self.monitors.readers(board, sender, now.monotonic);
        if readers.is_empty() {
            return;
        }
        let unix_micros = self.monitors.unix_micros(now);
        let database = database.unwrap_or_else(|| client.database());
        let address = client.address_in_monitor();
        let heading = Heading { unix_micros, database, address: &address };
        let mut line = self.env.pool.take();
        write_line(&mut line, &heading, command, arguments);
        self.monitors.handle_written(line.len());
        let mut is_told = [false; SHARDS_MAX];
        for place in readers.iter() {
            let shard = self.env.settings.clients.monitors.shard_of(place);
            if std::mem::replace(&mut is_told[usize::from(shard.0)], true) {
                continue;
            }
            if shard == self.env.settings.id {
                self.show_here(sender, &line, now);
            } else if !self.peers.push_line(shard, sender, &line) {
                let board = &self.env.settings.clients.monitors;
                let missing = readers.filter(|place| board.shard_of(place) == shard);
                self.monitors.leave_out(missing, 1);
            }
        }
        self.env.pool.give(line);
    }

    /// Passes a line that shows a request of `sender` to the monitors (clients that sent `MONITOR`) of this
    /// core that may see it; if this core has passed them too many bytes lately, only counts it as missed.
    fn show_here(&mut self, sender: Sender, line: &[u8], now: Now) {
        let line = Some(line).filter(|_| self.monitors.may_deliver(now.monotonic));
        let bytes = self.clients.show(&mut self.env, sender, line);
        self.monitors.handle_delivered(bytes);
    }

    /// Takes from a batch the lines, each showing a request, that another core has sent to the monitors
    /// (clients that sent `MONITOR`) of this core.
    pub(super) fn hear_of_lines(&mut self, batch: &Batch, now: Now) {
        for (sender, line) in batch.lines() {
            self.show_here(sender, line, now);
        }
    }

    /// Ends a turn (pass of the shard's loop) for monitors (clients that sent `MONITOR`): tells the cores that have
    /// them how many lines were left out, charges the tenants of this core's monitors for the lines sent to them, and
    /// removes the monitors that have ended.
    #[cold]
    pub(super) fn end_turn_of_monitors(&mut self, now: Now) {
        self.monitors.handle_turn_end(&self.env.settings.clients.monitors, &mut self.env.counters);
        if self.clients.has_monitors() {
            // Charges come first, because the next call forgets monitors that have ended.
            while let Some((id, bytes)) = self.clients.take_uncharged() {
                self.charge_for_bytes(id, bytes, now);
            }
            let unix_micros = self.monitors.unix_micros(now);
            self.clients.look_after_monitors(&mut self.env, unix_micros);
        }
    }

    /// Tells each monitor of this core (client that sent `MONITOR`) that has room in its buffer how many
    /// lines it has missed.
    pub(super) fn tell_monitors(&mut self, now: Now) {
        if self.clients.has_monitors() {
            let unix_micros = self.monitors.unix_micros(now);
            self.clients.tell_all_left_out(&mut self.env, unix_micros);
        }
    }
}
