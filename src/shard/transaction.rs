//! `MULTI` ... `EXEC`: queued here, and sent to one backend as one block that nothing comes between.

use super::Shard;
use super::admission::Stopped;
use super::batch::Message;
use super::client::Rewrite;
use super::pricing::asked;
use super::route::{CROSS_SLOT, Placement};
use crate::policy::price::Asked;
use crate::protocol::command::{Class, Command, Handling, LocalCommand};
use crate::protocol::{Arguments, encode};
use crate::values::time::Now;
use crate::values::{BackendId, ClientId};

/// What a connection has queued since `MULTI`.
#[derive(Debug, Default)]
pub(super) struct Transaction {
    frames: Vec<u8>,
    requests: usize,
    /// What they are asked to cost, together.
    asked: Asked,
    /// Where the keys so far live.
    backend: Option<BackendId>,
    /// A request could not be queued, so `EXEC` will refuse.
    poisoned: bool,
}

impl Transaction {
    pub fn memory_bytes(&self) -> usize {
        size_of::<Self>() + self.frames.capacity()
    }

    /// `EXEC` will refuse it.
    pub fn poison(&mut self) {
        self.poisoned = true;
    }
}

impl Shard {
    pub(super) fn begin_transaction(&mut self, id: ClientId) {
        let client = self.clients.at(id);
        if client.transaction.is_some() {
            return self.answer_now(id, |out, _| encode::error(out, "ERR MULTI calls can not be nested"));
        }
        client.transaction = Some(Box::default());
        self.answer_now(id, |out, _| encode::simple(out, "OK"));
    }

    pub(super) fn discard_transaction(&mut self, id: ClientId) {
        match self.clients.at(id).transaction.take() {
            Some(_) => self.answer_now(id, |out, _| encode::simple(out, "OK")),
            None => self.answer_now(id, |out, _| encode::error(out, "ERR DISCARD without MULTI")),
        }
    }

    pub(super) fn execute_transaction(&mut self, id: ClientId, arguments: &Arguments<'_>, now: Now) {
        let Some(transaction) = &self.clients.at(id).transaction else {
            return self.answer_now(id, |out, _| encode::error(out, "ERR EXEC without MULTI"));
        };
        let mut charge = None;
        if !transaction.poisoned && transaction.requests > 0 {
            // All of it or nothing: a transaction that was throttled half way would be none.
            let asked = transaction.asked;
            match self.admit_asked(id, &asked, Class::Multi, arguments, now) {
                Ok(taken) => charge = taken,
                Err(stopped) => return self.discard_if_refused(id, stopped),
            }
        }
        let mut transaction = self.clients.at(id).transaction.take().expect("seen just now");
        if transaction.poisoned {
            let text = "EXECABORT Transaction discarded because of previous errors.";
            return self.answer_now(id, |out, _| encode::error(out, text));
        }
        if transaction.requests == 0 {
            return self.answer_now(id, |out, _| encode::array(out, 0));
        }
        let backend = transaction.backend.unwrap_or(BackendId(0));
        let route = self.route_to(id, 0, backend);
        let to = self.expect_reply(id, Rewrite::AsItCame, charge);
        let terms = self.terms_of(id, Class::Multi, now);
        self.hold_back_later(id);
        encode::request(&mut transaction.frames, [b"EXEC".as_slice()].into_iter());
        // One reply to MULTI, one per queued request, and the one that counts.
        let requests = transaction.requests + 2;
        self.forward_block(to, route, terms, Message::Shared(&transaction.frames.into()), requests, now);
    }

    /// A transaction that was refused is over; one that waits is still there when it is tried again.
    fn discard_if_refused(&mut self, id: ClientId, _stopped: Stopped) {
        if let Some(client) = self.clients.get(id)
            && !client.waits_for_quota
        {
            client.transaction = None;
        }
    }

    /// A request that cannot be queued spoils the transaction it stands in, if any.
    pub(super) fn poison_transaction(&mut self, id: ClientId) {
        if let Some(transaction) = self.clients.get(id).and_then(|client| client.transaction.as_mut()) {
            transaction.poison();
        }
    }

    pub(super) fn queue_in_transaction(
        &mut self,
        id: ClientId,
        command: &'static Command,
        handling: Handling,
        arguments: &Arguments<'_>,
    ) {
        let single = self.settings.topology.backends() == 1;
        let passes = match handling {
            Handling::Forward | Handling::Split(_) => true,
            Handling::FanOut(_) => single,
            Handling::Local(local) => {
                matches!(local, LocalCommand::Ping | LocalCommand::Echo | LocalCommand::Time)
            }
            Handling::Refused(refusal) => {
                self.poison_transaction(id);
                return self.answer_now(id, |out, _| encode::error(out, &refusal.of(command).to_string()));
            }
        };
        if !passes {
            self.poison_transaction(id);
            let text = format!(
                "ERR {} cannot stand in a transaction that passes through weir",
                command.spoken_name()
            );
            return self.answer_now(id, |out, _| encode::error(out, &text));
        }
        match self.placement(command, arguments) {
            Err(error) => {
                self.poison_transaction(id);
                self.answer_now(id, |out, _| encode::error(out, &error.to_string()));
            }
            Ok(Placement::Nowhere) => self.queue(id, Some(command), None, arguments),
            Ok(Placement::Together { backend, .. } | Placement::OneBackend { backend, .. }) => {
                self.queue(id, Some(command), Some(backend), arguments);
            }
            Ok(Placement::Apart) => self.refuse_apart(id),
        }
    }

    pub(super) fn queue_for_backend(&mut self, id: ClientId, backend: BackendId, arguments: &Arguments<'_>) {
        self.queue(id, None, Some(backend), arguments);
    }

    fn queue(
        &mut self,
        id: ClientId,
        command: Option<&'static Command>,
        backend: Option<BackendId>,
        arguments: &Arguments<'_>,
    ) {
        let weights = self.settings.admission.weights;
        let asked = asked(command, arguments);
        let bytes_max = self.settings.request_bytes_max;
        let transaction = self.clients.at(id).transaction.as_mut().expect("only called inside a transaction");
        if let (Some(one), Some(other)) = (transaction.backend, backend)
            && one != other
        {
            return self.refuse_apart(id);
        }
        if transaction.frames.len() + arguments.frame().len() > bytes_max {
            transaction.poisoned = true;
            let text = format!("ERR the transaction is larger than {bytes_max} bytes (--max-request-bytes)");
            return self.answer_now(id, |out, _| encode::error(out, &text));
        }
        transaction.backend = transaction.backend.or(backend);
        if transaction.requests == 0 {
            encode::request(&mut transaction.frames, [b"MULTI".as_slice()].into_iter());
        }
        transaction.frames.extend_from_slice(arguments.frame());
        transaction.requests += 1;
        transaction.asked.add(&asked, &weights);
        self.answer_now(id, |out, _| encode::simple(out, "QUEUED"));
    }

    fn refuse_apart(&mut self, id: ClientId) {
        self.poison_transaction(id);
        self.answer_now(id, |out, _| encode::error(out, CROSS_SLOT));
    }
}
