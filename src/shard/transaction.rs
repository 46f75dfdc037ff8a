//! `MULTI` ... `EXEC`: queued here, and sent to one backend as one block that nothing comes between.

use super::Shard;
use super::admission::Stopped;
use super::batch::Message;
use super::client::{HeldRequest, Rewrite};
use super::pricing::asked;
use super::route::{CROSS_SLOT, Placement};
use super::settlement::Settlement;
use crate::policy::price::Asked;
use crate::protocol::command::{Class, Command, Handling, LocalCommand};
use crate::protocol::{Arguments, Request, encode, reply};
use crate::values::limits::DESCRIPTION_BYTES_MAX;
use crate::values::time::Now;
use crate::values::{BackendId, ClientId};

/// What a connection has queued since `MULTI`.
#[derive(Debug, Default)]
pub(super) struct Transaction {
    frames: Vec<u8>,
    requests: usize,
    /// What they are asked to cost, together.
    asked: Asked,
    /// Those that weir answers itself.
    locals: Vec<LocalRequest>,
    /// Bytes of those.
    locals_bytes: usize,
    /// Where the keys so far live.
    backend: Option<BackendId>,
    /// A request could not be queued, so `EXEC` will refuse.
    poisoned: bool,
}

/// A queued request that weir answers itself.
#[derive(Debug)]
struct LocalRequest {
    /// Its place in the transaction.
    position: usize,
    local: LocalCommand,
    command: &'static Command,
    request: HeldRequest,
}

/// What weir answers itself in a transaction whose other replies are to come, each with its place.
#[derive(Debug, Default)]
pub(super) struct Splice {
    replies: Vec<(usize, Vec<u8>)>,
    bytes: usize,
}

impl Splice {
    pub fn memory_bytes(&self) -> usize {
        self.bytes
    }

    /// The reply to `EXEC` with these in their places. What is no array is for nobody to add to.
    pub fn put_into(&self, reply: &[u8]) -> Vec<u8> {
        let Some(elements) = reply::elements(reply) else { return reply.to_vec() };
        let mut out = Vec::with_capacity(reply.len() + self.bytes + 16);
        encode::array(&mut out, elements.left() + self.replies.len());
        let mut own = self.replies.iter().peekable();
        let mut position = 0;
        for element in elements {
            while let Some((_, reply)) = own.next_if(|(place, _)| *place == position) {
                out.extend_from_slice(reply);
                position += 1;
            }
            out.extend_from_slice(element);
            position += 1;
        }
        own.for_each(|(_, reply)| out.extend_from_slice(reply));
        out
    }
}

impl Transaction {
    pub fn memory_bytes(&self) -> usize {
        size_of::<Self>() + self.frames.capacity() + self.locals_bytes
    }

    /// Requests that were queued, whoever answers them.
    pub fn len(&self) -> usize {
        self.requests + self.locals.len()
    }

    fn has_room_for(&self, bytes: usize, bytes_max: usize) -> bool {
        self.frames.len() + self.locals_bytes + bytes <= bytes_max
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
        if !transaction.poisoned && transaction.len() > 0 {
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
        let Some(splice) = self.answer_locals(id, &transaction.locals, now) else {
            if let Some(charge) = charge {
                self.settle_charge(&charge, &Settlement::default(), now);
            }
            let text = format!(
                "EXECABORT Transaction discarded because weir's own answers in it are longer than {DESCRIPTION_BYTES_MAX} bytes."
            );
            return self.answer_now(id, |out, _| encode::error(out, &text));
        };
        if transaction.requests == 0 {
            return self.answer_priced(id, charge, now, |out, _| out.extend(splice.put_into(b"*0\r\n")));
        }
        let mut rewrite = Rewrite::AsItCame;
        if !splice.replies.is_empty() {
            rewrite = Rewrite::Splice;
            self.clients.at(id).splice = Some(Box::new(splice));
        }
        let backend = transaction.backend.unwrap_or(BackendId(0));
        let route = self.route_to(id, 0, backend);
        let to = self.expect_reply(id, rewrite, charge);
        let terms = self.terms_of(id, Class::Multi, now);
        self.hold_back_later(id);
        encode::request(&mut transaction.frames, [b"EXEC".as_slice()].into_iter());
        // One reply to MULTI, one per queued request, and the one that counts.
        let requests = transaction.requests + 2;
        self.forward_block(to, route, terms, Message::Shared(&transaction.frames.into()), requests, now);
    }

    /// Answers what weir answers itself in a transaction, now that it is carried out. None if that is too much.
    fn answer_locals(&mut self, id: ClientId, locals: &[LocalRequest], now: Now) -> Option<Splice> {
        let mut splice = Splice::default();
        for LocalRequest { position, local, command, request } in locals {
            let arguments = Arguments::new(&request.frame, &request.places);
            self.captured = Some(self.pool.take());
            self.answer_locally(id, command, *local, Request { arguments, shared: None }, now);
            let reply = self.captured.take().unwrap_or_default();
            splice.bytes += reply.len();
            if splice.bytes > DESCRIPTION_BYTES_MAX {
                return None;
            }
            splice.replies.push((*position, reply));
        }
        Some(splice)
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
            Handling::Local(local) if local.stands_in_transaction() => {
                return self.queue_local(id, command, local, arguments);
            }
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
            Ok(Placement::Nowhere) => self.queue(id, command, None, arguments),
            Ok(Placement::Together { backend, .. } | Placement::OneBackend { backend, .. }) => {
                self.queue(id, command, Some(backend), arguments);
            }
            Ok(Placement::Apart) => self.refuse_apart(id),
        }
    }

    fn queue_local(
        &mut self,
        id: ClientId,
        command: &'static Command,
        local: LocalCommand,
        arguments: &Arguments<'_>,
    ) {
        let weights = self.settings.admission.weights;
        let asked = asked(Some(command), arguments);
        let bytes_max = self.settings.request_bytes_max;
        let client = self.clients.at(id);
        let request = HeldRequest::new(arguments, &client.identity);
        let bytes = request.memory_bytes() + size_of::<LocalRequest>();
        let transaction = client.transaction.as_mut().expect("only called inside a transaction");
        if !transaction.has_room_for(bytes, bytes_max) {
            return self.refuse_too_large(id);
        }
        let position = transaction.len();
        transaction.locals.push(LocalRequest { position, local, command, request });
        transaction.locals_bytes += bytes;
        if local.is_priced() {
            transaction.asked.add(&asked, &weights);
        }
        self.answer_now(id, |out, _| encode::simple(out, "QUEUED"));
    }

    fn queue(
        &mut self,
        id: ClientId,
        command: &'static Command,
        backend: Option<BackendId>,
        arguments: &Arguments<'_>,
    ) {
        let weights = self.settings.admission.weights;
        let asked = asked(Some(command), arguments);
        let bytes_max = self.settings.request_bytes_max;
        let transaction = self.clients.at(id).transaction.as_mut().expect("only called inside a transaction");
        if let (Some(one), Some(other)) = (transaction.backend, backend)
            && one != other
        {
            return self.refuse_apart(id);
        }
        if !transaction.has_room_for(arguments.frame().len(), bytes_max) {
            return self.refuse_too_large(id);
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

    fn refuse_too_large(&mut self, id: ClientId) {
        self.poison_transaction(id);
        let bytes_max = self.settings.request_bytes_max;
        let text = format!("ERR the transaction is larger than {bytes_max} bytes (--max-request-bytes)");
        self.answer_now(id, |out, _| encode::error(out, &text));
    }

    fn refuse_apart(&mut self, id: ClientId) {
        self.poison_transaction(id);
        self.answer_now(id, |out, _| encode::error(out, CROSS_SLOT));
    }
}
