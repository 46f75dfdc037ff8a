//! Transactions (`MULTI` ... `EXEC`): queued in weir and sent to one backend as one block, so that no other
//! request comes between their requests.

use super::Shard;
use super::destination::{CROSS_SLOT, Placement, asks_for_events};
use crate::protocol::command::{Command, FanOut, Flags, Handling, LocalCommand, PrivateUse};
use crate::protocol::{Arguments, Request, encode};
use crate::shard::admission::{Charge, asked};
use crate::shard::clients::{LocalRequest, NotQueued, Question, Replies, Rewrite, Splice, Transaction};
use crate::shard::gather::names_no_secret;
use crate::shard::message::Message;
use crate::shard::outcome::Settlement;
use crate::shard::refusal::abort_because_of;
use crate::shard::request::Nature;
use crate::values::limits::{DESCRIPTION_BYTES_MAX, TRANSACTION_OWN_MAX};
use crate::values::time::Now;
use crate::values::{BackendId, ClientId, Database};

/// An encoded transaction without requests: `MULTI`, `EXEC`.
const EMPTY_TRANSACTION: &[u8] = b"*1\r\n$5\r\nMULTI\r\n*1\r\n$4\r\nEXEC\r\n";

impl Shard {
    pub(super) fn begin_transaction(&mut self, id: ClientId) {
        let begins = self.clients.client(id).begin_transaction();
        self.clients.answer_now(&mut self.env, id, |out, _| {
            if begins {
                encode::simple(out, "OK");
            } else {
                encode::error(out, "ERR MULTI calls can not be nested");
            }
        });
    }

    pub(super) fn discard_transaction(&mut self, id: ClientId, now: Now) {
        let discarded = self.clients.discard_transaction(id);
        if discarded {
            self.end_watch(id, now);
        }
        self.clients.answer_now(&mut self.env, id, |out, _| {
            if discarded {
                encode::simple(out, "OK");
            } else {
                encode::error(out, "ERR DISCARD without MULTI");
            }
        });
    }

    /// Discards a client's transaction, because its `EXEC` is malformed, and ends the client's watch of keys. The
    /// client pays for the bytes of the queued requests.
    pub(super) fn discard_unpaid(&mut self, id: ClientId) {
        self.clients.discard_transaction(id);
        self.end_watch(id, self.turn);
    }

    /// Discards a client's transaction, because its `EXEC` is refused for want of quota or by an overload, and ends
    /// the client's watch of keys. The queued requests cost nothing. Does nothing if the client is in no
    /// transaction.
    pub(super) fn discard_refused(&mut self, id: ClientId) {
        if self.clients.client(id).take_transaction().is_some() {
            self.end_watch(id, self.turn);
        }
    }

    /// Carries out a client's admitted transaction at `EXEC`: answers what weir answers itself, and sends the rest to
    /// its store. `charge` is the price that was taken for it (None if it has none); it is corrected to the real price
    /// with the reply to `EXEC`, or given back if the transaction is aborted here.
    pub(super) fn execute_transaction(&mut self, id: ClientId, charge: Option<Charge>, now: Now) {
        let Some(mut transaction) = self.clients.client(id).take_transaction() else {
            return self.answer_error(id, "ERR EXEC without MULTI");
        };
        if let Some(error) = self.only_store_is_busy() {
            self.settle(charge, &Settlement::default(), now);
            self.end_watch(id, now);
            return self.answer_error(id, &abort_because_of(&error));
        }
        if transaction.is_poisoned() {
            self.settle(charge, &Settlement::default(), now);
            self.clients.note_discarded(id, &transaction);
            self.end_watch(id, now);
            let text = "EXECABORT Transaction discarded because of previous errors.";
            return self.answer_error(id, text);
        }
        if let Some(question) = self.next_collected(id, &mut transaction, now) {
            return self.clients.ask_before_exec(&self.env, id, (transaction, charge), question);
        }
        let Some(splice) = self.answer_locals(id, transaction.locals(), now) else {
            self.settle(charge, &Settlement::default(), now);
            self.clients.note_discarded(id, &transaction);
            self.end_watch(id, now);
            let text = format!(
                "EXECABORT Transaction discarded because weir's own answers in it are longer than {DESCRIPTION_BYTES_MAX} bytes."
            );
            return self.answer_error(id, &text);
        };
        let place = transaction.place();
        let selects = transaction.take_selects();
        let nature = Nature::of_transaction(transaction.hides_work());
        let backend = place.map_or_else(|| self.first_place().1, |(_, backend)| backend);
        self.clients.client(id).note_write(nature, Some(backend));
        if self.watches(id) {
            // An empty transaction must reach the store too, because it fails if a watched key has changed.
            let (block, replies) =
                transaction.into_block().unwrap_or_else(|| (EMPTY_TRANSACTION.to_vec(), 2));
            return self.execute_watched(
                id,
                place,
                (nature, &block, replies),
                (splice, selects),
                charge,
                now,
            );
        }
        let place = place.unwrap_or_else(|| self.first_place());
        let Some((block, replies)) = transaction.into_block() else {
            return self.answer_priced(id, charge, now, |out, _| out.extend(splice.put_into(b"*0\r\n")));
        };
        let tracking = match self.link_for_tracking(id, place.1, now) {
            Ok(tracking) => tracking,
            Err(why) => {
                self.settle(charge, &Settlement::default(), now);
                return self.answer_not_sent(id, place.1, why);
            }
        };
        // A shared connection must not change its database, and tracked keys need a link of the client.
        if !selects.is_empty() || tracking.is_some() {
            return self.execute_apart(id, place.1, (nature, block, replies), (splice, selects), charge, now);
        }
        let rewrite = self.keep_splice(id, splice);
        let envelope = self.envelope_alone(id, place, (rewrite, charge), nature);
        self.send_from_here(&envelope, Message::Shared(&block.into()), replies, now);
    }

    /// Keeps weir's own replies to requests of a transaction (`splice`) until the backend's reply comes.
    /// Returns how the backend's reply is then rewritten: unchanged, or with these replies inserted.
    pub(super) fn keep_splice(&mut self, id: ClientId, splice: Splice) -> Rewrite {
        if splice.is_empty() {
            return Rewrite::AsItCame;
        }
        self.clients.client(id).keep_splice(splice);
        Rewrite::Splice
    }

    /// Returns the next question that has to be answered before a transaction is carried out, for a queued request
    /// whose reply is collected from all shards or from the stores (`INFO`, `CLIENT KILL`). None if none is left, or if
    /// the answers so far are longer than 1 MiB together, for which the transaction is discarded.
    fn next_collected(&mut self, id: ClientId, transaction: &mut Transaction, now: Now) -> Option<Question> {
        loop {
            let queued = transaction.next_uncollected()?;
            let arguments = Arguments::new(&queued.request.frame, &queued.request.places);
            if queued.local == LocalCommand::Info {
                return Some(self.asked_by_info(id, &arguments));
            }
            let protocol = self.clients.client(id).protocol();
            match self.asked_about_clients(id, queued.local, &arguments, now) {
                Ok(asked) => return Some(Question::Clients { asked, protocol }),
                Err(text) => {
                    let mut reply = Vec::new();
                    encode::error(&mut reply, &text);
                    transaction.put_answer(reply);
                }
            }
        }
    }

    /// Answers the requests of a transaction that weir carries out itself (`locals`), and returns the answers.
    /// None if they are longer than 1 MiB together (so long descriptions of commands, from `COMMAND`, are
    /// bounded as well). Of all `CLIENT PAUSE` and `CLIENT UNPAUSE` among them only the last one is carried
    /// out, which takes the place of those before it; the reply to `EXEC` waits until it is in force.
    fn answer_locals(&mut self, id: ClientId, locals: &mut [LocalRequest], now: Now) -> Option<Splice> {
        let (mut splice, mut pause) = (Splice::default(), None);
        let before = self.clients.client(id).database();
        for queued in locals {
            if let Some(reply) = queued.answer.take() {
                splice.push(queued, reply).ok()?;
                continue;
            }
            if queued.local.is_collected() {
                return None;
            }
            self.clients.client(id).select(queued.database);
            let arguments = Arguments::new(&queued.request.frame, &queued.request.places);
            self.clients.begin_capture(&mut self.env);
            if matches!(queued.local, LocalCommand::ClientPause | LocalCommand::ClientUnpause) {
                match self.asked_about_clients(id, queued.local, &arguments, now) {
                    Ok(asked) => {
                        pause = Some(asked);
                        self.clients.answer_now(&mut self.env, id, |out, _| encode::simple(out, "OK"));
                    }
                    Err(text) => self.answer_error(id, &text),
                }
            } else if queued.local == LocalCommand::Unwatch {
                // `EXEC` checks the watched keys before it carries out anything, so the watch is still needed.
                self.clients.answer_now(&mut self.env, id, |out, _| encode::simple(out, "OK"));
            } else {
                let were_off = self.clients.client(id).replies() == Replies::None;
                let request = Request { arguments, shared: None };
                self.answer_locally(id, queued.command, queued.local, None, request, now);
                if were_off && self.clients.client(id).replies() == Replies::All {
                    splice.begin_sending(queued);
                }
            }
            let reply = self.clients.end_capture();
            self.clients.client(id).select(before);
            splice.push(queued, reply).ok()?;
        }
        if let Some(asked) = pause {
            let protocol = self.clients.client(id).protocol();
            self.clients.ask_unheard(&self.env, id, None, Question::Clients { asked, protocol });
        }
        Some(splice)
    }

    pub(super) fn queue_in_transaction(
        &mut self,
        id: ClientId,
        command: &'static Command,
        handling: Handling,
        arguments: &Arguments<'_>,
        now: Now,
    ) {
        if command.flags.contains(Flags::NO_MULTI) {
            return self.refuse_in_transaction(id, "ERR Command not allowed inside a transaction");
        }
        // Of `QOS CALL` the inner request is queued; options count at `EXEC`, which sends all requests at once.
        let is_call = |word: &[u8]| word.eq_ignore_ascii_case(b"call");
        if handling == Handling::Local(LocalCommand::Qos) && arguments.get(1).is_some_and(is_call) {
            return self.qos_call(id, arguments, now);
        }
        if let Some(error) = self.only_store_is_busy() {
            return self.refuse_in_transaction(id, &error);
        }
        let single = self.has_one_store();
        let passes = match handling {
            // In a transaction a blocking command does not wait, nor does WAIT.
            Handling::Forward
            | Handling::BetweenDatabases
            | Handling::Split(_)
            | Handling::Private(PrivateUse::Waits | PrivateUse::AwaitsCopies) => true,
            Handling::Private(PrivateUse::Watches) => {
                return self.answer_error(id, "ERR WATCH inside MULTI is not allowed");
            }
            Handling::Private(_) => false,
            // All nodes of a cluster pass messages on, so a message may go wherever the keys are.
            Handling::FanOut(FanOut::Channel) if self.env.slots.is_none() => {
                let (_, backend) = self.store_of_channel(arguments.get(1).unwrap_or_default());
                return self.queue(id, command, Some((0, backend)), arguments);
            }
            Handling::FanOut(FanOut::Channel) => true,
            Handling::FanOut(_) => single,
            Handling::Local(LocalCommand::Select)
                if let Some(database) = self.other_database(id, arguments) =>
            {
                return self.queue_select(id, command, database, arguments);
            }
            // The only store answers this as outside a transaction. weir could not remove passwords from its reply, and
            // what weir answers by itself is not what an administrator asks for.
            Handling::Local(LocalCommand::ConfigGet) if single && asks_for_events(arguments) => true,
            Handling::Local(LocalCommand::ConfigGet) if self.is_admin(id) => {
                single && names_no_secret(arguments)
            }
            // `OFF` and `SKIP` would leave out a part of the reply to `EXEC`. They change nothing while replies are off,
            // if they are not switched on within the transaction.
            Handling::Local(LocalCommand::ClientReply)
                if silences(arguments.at(2)) && self.will_get_replies(id) =>
            {
                false
            }
            // `CLIENT CACHING` takes effect on the whole block, so `NO` would leave keys untracked that were read before it.
            Handling::Local(LocalCommand::ClientCaching)
                if arguments.at(2).eq_ignore_ascii_case(b"no") && !self.is_first_in_transaction(id) =>
            {
                false
            }
            Handling::Local(local) if local.stands_in_transaction() => {
                return self.queue_local(id, command, local, arguments);
            }
            Handling::Local(local) => {
                matches!(local, LocalCommand::Ping | LocalCommand::Echo | LocalCommand::Time)
            }
            Handling::Refused(refusal) => {
                return self.refuse_in_transaction(id, &refusal.of(command).to_string());
            }
        };
        if !passes {
            let text = format!(
                "ERR {} cannot stand in a transaction that passes through weir",
                command.spoken_name()
            );
            return self.refuse_in_transaction(id, &text);
        }
        match self.placement(command, arguments) {
            Err(error) if !single || self.is_confined(id) => {
                self.refuse_in_transaction(id, &error.to_string());
            }
            // The only store refuses a request whose keys cannot be read (`EVAL` with a wrong number of keys) at
            // `EXEC`, and carries out the others.
            Err(_) | Ok(Placement::Nowhere) => self.queue(id, command, None, arguments),
            Ok(Placement::Together { slot, backend, .. } | Placement::OneBackend { slot, backend }) => {
                // Only a cluster requires all keys of a transaction to be in one slot.
                let slot = if self.env.slots.is_some() { slot } else { 0 };
                self.queue(id, command, Some((slot, backend)), arguments);
            }
            Ok(Placement::Apart) => self.handle_queued(id, Err(NotQueued::Apart)),
        }
    }

    fn queue_local(
        &mut self,
        id: ClientId,
        command: &'static Command,
        local: LocalCommand,
        arguments: &Arguments<'_>,
    ) {
        let asked = asked(Some(command), arguments);
        let bytes_max = self.env.settings.request_bytes_max;
        let client = self.clients.client(id);
        let request = (client.held(arguments), client.database_of_next());
        let transaction = client.transaction().expect("only called inside a transaction");
        let price = (&asked, self.admission.weights());
        let queued = transaction.queue_local((command, local), request, price, bytes_max);
        self.handle_queued(id, queued);
    }

    /// True if a client's tenant may use only keys with certain prefixes; false also before the client has
    /// logged in.
    fn is_confined(&mut self, id: ClientId) -> bool {
        self.tenant_of(id).is_some_and(|tenant| !tenant.keys.is_empty())
    }

    /// True if no request is queued in a client's transaction yet.
    fn is_first_in_transaction(&mut self, id: ClientId) -> bool {
        self.clients.client(id).transaction().is_none_or(|transaction| transaction.len() == 0)
    }

    /// True if a client gets replies at this point of its transaction: they are not off (`CLIENT REPLY`), or a queued
    /// request switches them on.
    fn will_get_replies(&mut self, id: ClientId) -> bool {
        let client = self.clients.client(id);
        client.replies() != Replies::None
            || client.transaction().is_some_and(|transaction| transaction.switches_replies_on())
    }

    /// Queues a `SELECT` of another database in a client's transaction. Such a transaction is carried out over a
    /// connection that the client has to itself (private link). If there are none (`--private-links 0`), or the
    /// client may not use that database, it gets an error, and its `EXEC` will fail.
    fn queue_select(
        &mut self,
        id: ClientId,
        command: &'static Command,
        database: Database,
        arguments: &Arguments<'_>,
    ) {
        if let Some(tenant) = self.tenant_of(id).filter(|tenant| !tenant.may_use(database)) {
            let text = tenant.refusal_of(database.0);
            return self.refuse_in_transaction(id, &text);
        }
        if !self.private.is_on() {
            let text = "ERR SELECT of another database cannot stand in a transaction, since weir was started with --private-links 0: send it before MULTI";
            return self.refuse_in_transaction(id, text);
        }
        let asked = asked(Some(command), arguments);
        let bytes_max = self.env.settings.request_bytes_max;
        let transaction = self.clients.client(id).transaction().expect("only called inside a transaction");
        let price = (&asked, self.admission.weights());
        let queued = transaction.queue_select(database, arguments, price, bytes_max);
        self.handle_queued(id, queued);
    }

    fn queue(
        &mut self,
        id: ClientId,
        command: &'static Command,
        place: Option<(u16, BackendId)>,
        arguments: &Arguments<'_>,
    ) {
        self.note_script(command, arguments);
        let asked = asked(Some(command), arguments);
        let bytes_max = self.env.settings.request_bytes_max;
        let scripts = &self.env.settings.clients.scripts;
        let transaction = self.clients.client(id).transaction().expect("only called inside a transaction");
        if self.env.slots.is_some()
            && let Some((slot, owner)) = place
        {
            transaction.note_owner(slot, owner);
        }
        transaction.note_request(command, arguments, scripts);
        let queued = transaction.queue(place, arguments, (&asked, self.admission.weights()), bytes_max);
        self.handle_queued(id, queued);
    }

    fn handle_queued(&mut self, id: ClientId, queued: Result<(), NotQueued>) {
        match queued {
            Ok(()) => {
                // The bytes are paid for with the transaction.
                self.is_paid = true;
                self.clients.answer_now(&mut self.env, id, |out, _| encode::simple(out, "QUEUED"));
            }
            Err(NotQueued::Apart) => self.refuse_in_transaction(id, CROSS_SLOT),
            Err(NotQueued::TooManyOwn) => {
                let text = format!(
                    "ERR the transaction has more than {TRANSACTION_OWN_MAX} requests that weir answers itself"
                );
                self.refuse_in_transaction(id, &text);
            }
            Err(NotQueued::TooLarge) => {
                let bytes_max = self.env.settings.request_bytes_max;
                let text =
                    format!("ERR the transaction is larger than {bytes_max} bytes (--max-request-bytes)");
                self.refuse_in_transaction(id, &text);
            }
        }
    }
}

/// True for the word of a `CLIENT REPLY` that switches replies off: all, or the next one.
fn silences(word: &[u8]) -> bool {
    word.eq_ignore_ascii_case(b"off") || word.eq_ignore_ascii_case(b"skip")
}
