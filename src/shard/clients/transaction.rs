//! Transactions: the requests that a connection has queued since `MULTI`, and the reply to its `EXEC`.

use super::held::{HeldRequest, Times};
use super::identity::Identity;
use super::pause::is_held_as_write;
use crate::policy::price::Asked;
use crate::protocol::command::{Command, LocalCommand};
use crate::protocol::{Arguments, RequestDecoder, RequestLimits, encode, reply};
use crate::shard::admission::FREE_BYTES;
use crate::shard::request::Selected;
use crate::shard::script_board::ScriptBoard;
use crate::values::limits::{DESCRIPTION_BYTES_MAX, TRANSACTION_OWN_MAX};
use crate::values::{BackendId, Database, Weights};

/// The requests that a connection has queued since `MULTI`, to be carried out together.
#[derive(Debug, Default)]
pub struct Transaction {
    frames: Vec<u8>,
    requests: usize,
    /// The estimated amounts of work of all queued requests together, from which the price follows.
    asked: Asked,
    /// Queued requests that weir answers itself, without the store.
    locals: Vec<LocalRequest>,
    /// The memory that `locals` takes, in bytes.
    locals_bytes: usize,
    /// Number of requests at the beginning of `locals` whose replies the control executor (the thread that collects
    /// data of all shards) has given already, or need not give.
    collected: usize,
    /// True if a queued request switches the client's replies on (`CLIENT REPLY ON`).
    switches_replies_on: bool,
    /// The slot and backend of the keys queued so far; None as long as no key was named. The slot is 0 except
    /// for a cluster, where all keys of a transaction must share one.
    place: Option<(u16, BackendId)>,
    /// The queued `SELECT` requests that the backend carries out: those from the first on that names another database
    /// than the client's.
    selects: Vec<Selected>,
    /// True if a queued request may write or is held back with writes (`PUBLISH`), so that `CLIENT PAUSE ...
    /// WRITE` holds back `EXEC`.
    may_write: bool,
    /// True if there is a queued request of which neither its words nor its reply show how much work it is for
    /// the store (a script, for instance).
    hides_work: bool,
    /// True if a request could not be queued, or the client's rights have changed since, so that `EXEC` will refuse the
    /// transaction.
    poisoned: bool,
    /// The `EXEC` of the transaction, while it waits for the control executor (the thread that collects data of all
    /// shards); None if it has not come, or waits for nothing.
    waiting_exec: Option<Box<WaitingExec>>,
    /// Number of bytes of the control executor's replies to queued requests (such as `INFO`, which need data of all
    /// shards) that are kept until `EXEC` is answered.
    answers_bytes: usize,
}

/// An `EXEC` that waits for the control executor's reply (the thread that collects data of all shards) to a queued
/// request.
#[derive(Debug)]
pub struct WaitingExec {
    /// The number of the question in the client's order of replies.
    pub sequence: u32,
    /// The identity under which the transaction is carried out: the client's own, or that of the `QOS CALL` in which
    /// `EXEC` came.
    pub identity: Identity,
    /// The times at which `EXEC` arrived and was decoded.
    pub times: Times,
}

/// A request queued in a transaction that weir answers itself: its reply is inserted into the store's reply to
/// `EXEC`.
#[derive(Debug)]
pub struct LocalRequest {
    /// The request's position among all queued requests, from 0.
    position: usize,
    /// The database that is selected when the transaction comes to the request: the last one that an earlier
    /// `SELECT` in it names, else the client's.
    pub database: Database,
    /// The command of the request, which weir answers itself.
    pub local: LocalCommand,
    /// The request's row in the table of commands.
    pub command: &'static Command,
    /// The request as it was received.
    pub request: HeldRequest,
    /// The reply to a request that needs data of all shards (such as `INFO`), once the control executor has given it;
    /// else None.
    pub answer: Option<Vec<u8>>,
}

/// Reason why a request cannot be queued in a transaction.
#[derive(Clone, Copy, Debug)]
pub enum NotQueued {
    /// The request's keys are on another backend than those of earlier requests, or in another slot of a
    /// cluster.
    Apart,
    /// The transaction would take more bytes than a request may (`--max-request-bytes`).
    TooLarge,
    /// The transaction would have more than 4,096 requests that weir answers itself.
    TooManyOwn,
}

impl Transaction {
    /// Returns the bytes of memory that the transaction takes.
    pub fn memory_bytes(&self) -> usize {
        let selects = self.selects.capacity() * size_of::<Selected>();
        let waiting = self.waiting_exec.as_ref().map_or(0, |_| size_of::<WaitingExec>());
        let collected = self.answers_bytes + waiting;
        size_of::<Self>() + self.frames.capacity() + self.locals_bytes + collected + selects
    }

    /// Returns the number of queued requests, for a backend or for weir itself.
    pub fn len(&self) -> usize {
        self.requests + self.locals.len()
    }

    /// Marks the transaction so that `EXEC` refuses it: a request could not be queued, or the client's rights have
    /// changed.
    pub fn poison(&mut self) {
        self.poisoned = true;
    }

    /// True if `EXEC` will refuse the transaction, because a request could not be queued, or the client's rights have
    /// changed.
    pub fn is_poisoned(&self) -> bool {
        self.poisoned
    }

    /// True if `EXEC` will send queued requests to a backend.
    pub fn reaches_stores(&self) -> bool {
        self.requests > 0 && !self.poisoned
    }

    /// Returns the estimated amounts of work of the whole transaction; None if it is empty or will be
    /// refused.
    pub fn asked(&self) -> Option<Asked> {
        (!self.poisoned && self.len() > 0).then_some(self.asked)
    }

    /// Returns the number of bytes of those queued requests that have a price. A request that weir answers itself
    /// without a price counts too if it has more than 1 KiB.
    pub fn priced_bytes(&self) -> usize {
        self.asked.bytes_in as usize
    }

    /// Returns the slot and the backend of the transaction, or None if its requests name no keys. The slot is
    /// 0 except for a cluster, where all keys of a transaction must share one.
    pub fn place(&self) -> Option<(u16, BackendId)> {
        self.place
    }

    /// True if a queued request is one that `CLIENT PAUSE ... WRITE` holds back.
    pub fn may_write(&self) -> bool {
        self.may_write
    }

    /// True if there is a queued request of which neither its words nor its reply show how much work it is for
    /// the store.
    pub fn hides_work(&self) -> bool {
        self.hides_work
    }

    /// Records for the transaction whether `CLIENT PAUSE ... WRITE` holds back a request that is about to be
    /// queued, and whether neither its words nor its reply show how much work it is for the store. `scripts`
    /// knows the scripts that declare that they write nothing.
    pub fn note_request(&mut self, command: &Command, arguments: &Arguments<'_>, scripts: &ScriptBoard) {
        self.may_write |= is_held_as_write(command, arguments, scripts);
        self.hides_work |= command.is_work_hidden();
    }

    /// Returns the database that is selected after the requests queued so far; None if none of them selects
    /// another than the client's own.
    pub fn database(&self) -> Option<Database> {
        self.selects.last().map(|last| last.database)
    }

    /// Takes the list of queued `SELECT` requests, which the backend carries out.
    pub fn take_selects(&mut self) -> Vec<Selected> {
        std::mem::take(&mut self.selects)
    }

    /// Returns the queued requests that weir answers itself, without a backend, in their order.
    pub fn locals(&mut self) -> &mut [LocalRequest] {
        &mut self.locals
    }

    /// Returns the first queued request whose reply the control executor (the thread that collects data of all shards)
    /// has to give, such as `INFO`, and has not given. None if there is none, or if its replies to other requests of
    /// the transaction exceed 1 MiB together.
    pub fn next_uncollected(&mut self) -> Option<&mut LocalRequest> {
        let is_missing = |queued: &LocalRequest| queued.local.is_collected() && queued.answer.is_none();
        while self.locals.get(self.collected).is_some_and(|queued| !is_missing(queued)) {
            self.collected += 1;
        }
        let has_room = self.answers_bytes <= DESCRIPTION_BYTES_MAX;
        self.locals.get_mut(self.collected).filter(|_| has_room)
    }

    /// Records that `EXEC` waits for the control executor's reply to the request of [`Self::next_uncollected`].
    pub fn await_answer(&mut self, exec: WaitingExec) {
        self.waiting_exec = Some(Box::new(exec));
    }

    /// Returns the identity under which the transaction is carried out once its `EXEC` no longer waits for the control
    /// executor; None if it does not wait.
    pub fn identity_of_exec(&mut self) -> Option<&mut Identity> {
        self.waiting_exec.as_mut().map(|exec| &mut exec.identity)
    }

    /// Takes a reply of the control executor, by its number (`sequence`) in the client's order of replies, and returns
    /// the `EXEC` that waits for it. None, and the reply is not taken, if none does.
    pub fn handle_answer(&mut self, sequence: u32, reply: &[u8]) -> Option<Box<WaitingExec>> {
        let exec = self.waiting_exec.take_if(|exec| exec.sequence == sequence)?;
        self.put_answer(reply.to_vec());
        Some(exec)
    }

    /// Stores the reply to the first queued request that lacks it ([`Self::next_uncollected`]): the control executor's,
    /// or an error.
    pub fn put_answer(&mut self, reply: Vec<u8>) {
        let bytes = reply.len();
        if let Some(queued) = self.next_uncollected() {
            queued.answer = Some(reply);
            self.answers_bytes += bytes;
        }
    }

    /// Calls `visit` with the queued requests in their order, at most `most` of them.
    pub fn for_each_request(&self, most: usize, mut visit: impl FnMut(&Arguments<'_>)) {
        let (mut decoder, mut consumed) = (RequestDecoder::default(), 0);
        let mut locals = self.locals.iter().peekable();
        // The frames begin with `MULTI`.
        let mut is_begun = false;
        for position in 0..self.len().min(most) {
            if let Some(local) = locals.next_if(|local| local.position == position) {
                visit(&Arguments::new(&local.request.frame, &local.request.places));
                continue;
            }
            let limits = RequestLimits::assembled();
            for _ in usize::from(is_begun)..2 {
                let Ok(Some(request)) = decoder.next(&self.frames, &mut consumed, &limits) else {
                    return debug_assert!(false, "queued requests are whole");
                };
                if is_begun {
                    visit(&request.arguments);
                }
                is_begun = true;
            }
        }
    }

    /// Turns the transaction into one block of bytes for the backend, from `MULTI` to `EXEC`. Returns the
    /// block with the number of replies that it causes; None if no queued request is for a backend.
    pub fn into_block(mut self) -> Option<(Vec<u8>, usize)> {
        if self.requests == 0 {
            return None;
        }
        encode::request(&mut self.frames, [b"EXEC".as_slice()].into_iter());
        // The replies are one to MULTI, one per queued request, and the reply to EXEC.
        Some((self.frames, self.requests + 2))
    }

    /// Records which node of the cluster owns a slot now. If the transaction's keys are in that slot, it goes
    /// to that node: the owner may have changed since earlier requests were queued.
    pub fn note_owner(&mut self, slot: u16, owner: BackendId) {
        if self.place.is_some_and(|(own, _)| own == slot) {
            self.place = Some((slot, owner));
        }
    }

    /// Queues a request for the backend; `asked` is the amount of work, priced by `weights`, that it adds to the
    /// transaction. `place` is the slot (0 except for a cluster) and the backend of its keys; None if it names
    /// no keys. `bytes_max` is the most bytes that the transaction may take. After an error (the reason) the
    /// request is not queued.
    pub fn queue(
        &mut self,
        place: Option<(u16, BackendId)>,
        arguments: &Arguments<'_>,
        (asked, weights): (&Asked, &Weights),
        bytes_max: usize,
    ) -> Result<(), NotQueued> {
        if let (Some(one), Some(other)) = (self.place, place)
            && one != other
        {
            return Err(NotQueued::Apart);
        }
        if !self.has_room_for(arguments.frame().len(), bytes_max) {
            return Err(NotQueued::TooLarge);
        }
        self.place = self.place.or(place);
        self.append(arguments);
        self.asked.add(asked, weights);
        Ok(())
    }

    /// Queues a `SELECT` of another database for the backend; `asked` is the amount of work, priced by
    /// `weights`, that it adds to the transaction. `bytes_max` is the most bytes that the transaction may take;
    /// beyond it, the `SELECT` is not queued (an error).
    pub fn queue_select(
        &mut self,
        database: Database,
        arguments: &Arguments<'_>,
        price: (&Asked, &Weights),
        bytes_max: usize,
    ) -> Result<(), NotQueued> {
        let element = self.requests as u32;
        self.queue(None, arguments, price, bytes_max)?;
        self.selects.push(Selected { element, database });
        Ok(())
    }

    fn append(&mut self, arguments: &Arguments<'_>) {
        if self.requests == 0 {
            encode::request(&mut self.frames, [b"MULTI".as_slice()].into_iter());
        }
        self.frames.extend_from_slice(arguments.frame());
        self.requests += 1;
    }

    /// True if a queued request switches the client's replies on (`CLIENT REPLY ON`).
    pub fn switches_replies_on(&self) -> bool {
        self.switches_replies_on
    }

    /// Queues a request that weir answers itself. `bytes_max` is the most bytes that the transaction may take.
    /// `database` is the one selected at that point of the transaction; `asked` are the facts about the
    /// request's cost, which `weights` turn into a price. After an error (too many bytes, or too many such
    /// requests) the request is not queued.
    pub fn queue_local(
        &mut self,
        (command, local): (&'static Command, LocalCommand),
        (request, database): (HeldRequest, Database),
        (asked, weights): (&Asked, &Weights),
        bytes_max: usize,
    ) -> Result<(), NotQueued> {
        let bytes = request.memory_bytes() + size_of::<LocalRequest>();
        if !self.has_room_for(bytes, bytes_max) {
            return Err(NotQueued::TooLarge);
        }
        if self.locals.len() >= TRANSACTION_OWN_MAX {
            return Err(NotQueued::TooManyOwn);
        }
        let arguments = Arguments::new(&request.frame, &request.places);
        self.switches_replies_on |=
            local == LocalCommand::ClientReply && arguments.at(2).eq_ignore_ascii_case(b"on");
        if local.is_priced(&arguments) {
            self.asked.add(asked, weights);
        } else if request.frame.len() > FREE_BYTES {
            self.asked.add(&Asked { bytes_in: asked.bytes_in, ..Asked::default() }, weights);
        }
        let position = self.len();
        self.locals.push(LocalRequest { position, database, local, command, request, answer: None });
        self.locals_bytes += bytes;
        Ok(())
    }

    fn has_room_for(&self, bytes: usize, bytes_max: usize) -> bool {
        self.frames.len() + self.locals_bytes + bytes <= bytes_max
    }
}

/// Weir's own replies within a transaction, each with its position, kept until the backend's reply to `EXEC`
/// arrives.
#[derive(Debug, Default)]
pub struct Splice {
    replies: Vec<(usize, Vec<u8>)>,
    bytes: usize,
    /// The position from which on replies are sent, if the client had switched replies off and switches them on
    /// within the transaction (`CLIENT REPLY ON`); None if all replies are sent.
    sent_from: Option<usize>,
}

/// The error if weir's own replies within a transaction exceed 1 MiB together; the transaction is then aborted.
#[derive(Clone, Copy, Debug)]
pub struct TooLong;

impl Splice {
    /// Returns the number of bytes of weir's own replies within the transaction.
    pub fn memory_bytes(&self) -> usize {
        self.bytes
    }

    /// True if the transaction has no replies of weir's own.
    pub fn is_empty(&self) -> bool {
        self.replies.is_empty()
    }

    /// Adds weir's own reply to a request queued in the transaction; an error if these replies exceed 1 MiB
    /// together.
    pub fn push(&mut self, request: &LocalRequest, reply: Vec<u8>) -> Result<(), TooLong> {
        self.bytes += reply.len();
        if self.bytes > DESCRIPTION_BYTES_MAX {
            return Err(TooLong);
        }
        self.replies.push((request.position, reply));
        Ok(())
    }

    /// Records, while a transaction is carried out, that replies were off (`CLIENT REPLY OFF`) and that this
    /// request in it switches them on (`CLIENT REPLY ON`). As in Redis, the client then gets the replies from
    /// this request's on, without the head of the reply to `EXEC` and the replies to earlier requests.
    pub fn begin_sending(&mut self, request: &LocalRequest) {
        self.sent_from = Some(request.position);
    }

    /// Returns the backend's reply to `EXEC` with weir's own replies inserted at their positions. If replies are sent
    /// from a position on only ([`Self::begin_sending`]), the head of the array and the replies before it are left out.
    /// A reply that is not an array (an error or null) is returned unchanged.
    pub fn put_into(&self, reply: &[u8]) -> Vec<u8> {
        let Some(elements) = reply::elements(reply) else { return reply.to_vec() };
        let mut out = Vec::with_capacity(reply.len() + self.bytes + 16);
        if self.sent_from.is_none() {
            encode::array(&mut out, elements.left() + self.replies.len());
        }
        let sent_from = self.sent_from.unwrap_or(0);
        let mut own = self.replies.iter().peekable();
        let mut position = 0;
        let mut put = |position: usize, reply: &[u8]| {
            if position >= sent_from {
                out.extend_from_slice(reply);
            }
        };
        for element in elements {
            while let Some((place, reply)) = own.next_if(|(place, _)| *place == position) {
                put(*place, reply);
                position += 1;
            }
            put(position, element);
            position += 1;
        }
        own.for_each(|(place, reply)| put(*place, reply));
        out
    }
}
