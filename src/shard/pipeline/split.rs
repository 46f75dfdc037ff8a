//! Splitting of requests: commands such as `MGET` are split by key, commands such as `DBSIZE` go to every
//! backend.

use super::Shard;
use super::destination::step_of;
use crate::protocol::Arguments;
use crate::protocol::command::{Command, FanOut, Gather};
use crate::shard::admission::Charge;
use crate::shard::counters::Counter;
use crate::shard::gather::{Join, Receivers};
use crate::shard::message::Message;
use crate::shard::outcome::Outcome;
use crate::shard::partition::Partition;
use crate::shard::request::PRIMARY;
use crate::shard::request::{Envelope, Nature, ReplyTo, Route, Touches};
use crate::values::limits::COPY_BYTES_MAX;
use crate::values::time::Now;
use crate::values::{BackendId, ClientId};

impl Shard {
    /// Splits a request by key, and sends each part to the home core (the core through which a key's requests
    /// pass) of its keys. `gather` says how the replies are merged, and `charge` is the price taken for the
    /// request (None if it has none), which is corrected to the real price with the merged reply.
    pub(super) fn split(
        &mut self,
        id: ClientId,
        command: &'static Command,
        gather: Gather,
        charge: Option<Charge>,
        arguments: &Arguments<'_>,
        now: Now,
    ) {
        self.env.counters.add(Counter::RequestsSplit, 1);
        let partition = self.clients.take_partition(&self.env, arguments);
        let hot = (gather == Gather::Values).then(|| self.hot_keys.slots());
        let partition =
            partition.unwrap_or_else(|| Partition::whole(&mut self.env, step_of(command), arguments, hot));
        let (parts, order) = partition.into_parts();
        let join = match gather {
            Gather::Values => Join::Values(order),
            Gather::AllOk => Join::AllOk,
            Gather::Sum => Join::Sum,
        };
        let terms = (Nature::of(Some(command)), Touches::KEYS);
        let whole = self.envelope_of_parts(id, join, parts.len(), charge, terms);
        for (index, (part, frame)) in parts.enumerate() {
            let backend = self.env.backend_of(part.slot);
            let mut envelope = whole.of_part(index as u16, part.slot, backend);
            // A read of a single key may be answered with the kept reply of a hot key, whichever command
            // named it.
            if part.keys == 1 && matches!(gather, Gather::Values) {
                envelope.touches = Touches::key(command, part.place_of_key(&frame));
            }
            if frame.len() > COPY_BYTES_MAX {
                self.dispatch(part.home, &envelope, Message::Shared(&frame.into()), now);
            } else {
                self.dispatch(part.home, &envelope, Message::Small(&frame), now);
                self.env.pool.give(frame);
            }
        }
    }

    /// Sends a request to every backend that may have keys, straight from this core, and joins the replies as `fan_out`
    /// says. Later requests of the client wait until it is answered. If this is the second try, because nodes of a
    /// cluster turned out to be no primaries, nodes that carried the request out in the first are not asked again,
    /// provided that its replies only say that it was carried out. `is_for_busy` says that backends answer the request
    /// even while they are busy with a script. `receivers` are the channels whose numbers of subscribers are to be
    /// corrected in the reply, if any; `charge` is the price taken, if there is one; `nature` says whether the request
    /// writes.
    pub(super) fn ask_all(
        &mut self,
        id: ClientId,
        (fan_out, receivers): (FanOut, Option<Receivers>),
        (charge, nature): (Option<Charge>, Nature),
        (message, is_for_busy): (Message<'_>, bool),
        now: Now,
    ) {
        let mut stores = self.env.stores();
        // The replies of these commands say no more than that they were carried out, so a backend that has
        // done so need not be asked again.
        let is_told_once = matches!(fan_out, FanOut::AllOk | FanOut::Same | FanOut::AnyOk);
        let mut said = None;
        if let Some(slots) = self.env.slots.as_ref().filter(|_| is_told_once) {
            let mut asked = stores.iter().filter_map(|store| Some(slots.node(*store)?.key)).collect();
            said = self.clients.note_told(id, &mut asked);
            stores = asked.iter().map(|node| node.backend).collect();
        }
        let join = match fan_out {
            FanOut::Scan | FanOut::One | FanOut::Channel => unreachable!("they go to one backend"),
            FanOut::Concat => Join::Concat,
            FanOut::Sum | FanOut::Patterns => Join::Sum,
            FanOut::AllOk => Join::AllOk,
            // Each store draws its key from all its own keys, so the store whose key is returned is drawn as
            // well.
            FanOut::NonNull => Join::NonNull(self.env.random_byte()),
            FanOut::Every => Join::Every,
            FanOut::Same => Join::Same,
            FanOut::AnyOk => Join::AnyOk,
            FanOut::Union => Join::Union,
            FanOut::SumEach => match receivers {
                Some(receivers) => Join::Receivers(Box::new(receivers)),
                None => Join::SumEach,
            },
            FanOut::Settings => Join::Settings,
            FanOut::KeyCounts => Join::KeyCounts,
            FanOut::ByStore => {
                let names = stores.iter().map(|store| self.env.backend_name(*store).to_owned());
                Join::ByStore(names.collect())
            }
        };
        self.env.counters.add(Counter::RequestsSplit, 1);
        let slot = if self.env.slots.is_some() { PRIMARY } else { 0 };
        let parts = stores.len() + usize::from(said.is_some());
        let whole = self.envelope_of_parts(id, join, parts, charge, (nature, nature.touches()));
        self.clients.client(id).hold_back_later();
        let count = stores.len();
        for (part, backend) in stores.into_iter().enumerate() {
            let part = whole.of_part(part as u16, slot, backend);
            if !is_for_busy || !self.interrupt(id, &part, message, now) {
                self.send_from_here(&part, message, 1, now);
            }
        }
        if let Some(said) = said {
            let to = whole.of_part(count as u16, slot, BackendId(0)).reply_to;
            let (env, mut clients) = self.clients();
            clients.give(env, to, Outcome::Refused, Message::Small(&said), now);
        }
    }

    /// Sends a request such as `PUBLISH` to one backend. Its reply has a number of subscribers, in which this process's
    /// subscribed clients take the place of its connections; `receivers` is the channel. Later requests of the client
    /// wait until it is answered. `charge` is the price taken for the request, if it has one; `nature` says whether it
    /// writes.
    pub(super) fn ask_for_receivers(
        &mut self,
        id: ClientId,
        (slot, backend): (u16, BackendId),
        receivers: Receivers,
        (charge, nature): (Option<Charge>, Nature),
        message: Message<'_>,
        now: Now,
    ) {
        let join = Join::Receivers(Box::new(receivers));
        let whole = self.envelope_of_parts(id, join, 1, charge, (nature, nature.touches()));
        self.clients.client(id).hold_back_later();
        self.send_from_here(&whole.of_part(0, slot, backend), message, 1, now);
    }

    /// Takes the next place in the order of a client's replies for a request in `parts` parts, and returns the envelope
    /// (record that goes with a request's bytes) of the whole request, from which those of the parts are made without
    /// the client, as sending a part may close it. `join` says how the replies are merged, `charge` is the price taken
    /// (if there is one), which is corrected to the real price with the merged reply, `nature` says whether the request
    /// writes, and `touches` which keys it is about.
    fn envelope_of_parts(
        &mut self,
        id: ClientId,
        join: Join,
        parts: usize,
        charge: Option<Charge>,
        (nature, touches): (Nature, Touches),
    ) -> Envelope {
        let sequence = self.clients.expect_parts(id, (join, nature.effect()), parts, charge);
        let reply_to = ReplyTo::new(self.env.settings.id, id, sequence);
        let client = self.clients.client(id);
        client.envelope(reply_to, (0, BackendId(0)), (nature, touches), charge.as_ref())
    }
}

impl Envelope {
    fn of_part(&self, part: u16, slot: u16, backend: BackendId) -> Self {
        let reply_to = ReplyTo { part, ..self.reply_to };
        Self { reply_to, route: Route { slot, backend, ..self.route }, ..*self }
    }
}
