//! Splitting of requests: commands such as `MGET` are split by key, commands such as `DBSIZE` go to every
//! backend.

use super::Shard;
use super::destination::step_of;
use crate::protocol::command::{Command, FanOut, Gather};
use crate::protocol::{Argument, Arguments, encode};
use crate::routing::slot_of;
use crate::shard::admission::Charge;
use crate::shard::counters::Counter;
use crate::shard::gather::Join;
use crate::shard::message::Message;
use crate::shard::outcome::Outcome;
use crate::shard::request::PRIMARY;
use crate::shard::request::{Envelope, Nature, ReplyTo, Route, Touches};
use crate::values::limits::{COPY_BYTES_MAX, SLOTS};
use crate::values::time::Now;
use crate::values::{BackendId, ClientId, ShardId};

/// Maximum number of bytes around one word of a request: `$`, the length of the word and two line ends.
const BULK_HEAD_BYTES_MAX: usize = 1 + 10 + 4;
/// Maximum number of bytes of a request before its first key, without its name.
const FRAME_HEAD_BYTES_MAX: usize = 1 + 10 + 2 + BULK_HEAD_BYTES_MAX;

/// Part of a split request: the keys that have one home core, backend and connection.
#[derive(Clone, Copy, Debug)]
struct Part {
    home: ShardId,
    backend: BackendId,
    slot: u16,
    keys: u32,
    /// Length of the part's last key, in bytes.
    key_bytes: u32,
    /// Maximum number of bytes that the part's request can have.
    frame_bytes: usize,
}

impl Part {
    /// Returns the place of the part's only key in its request, which ends with the key.
    const fn place_of_key(&self, frame: &[u8]) -> Argument {
        const END: u32 = 2;
        Argument { start: frame.len() as u32 - END - self.key_bytes, length: self.key_bytes }
    }
}

impl Shard {
    /// Splits a request by key, and sends each part to the home core of its keys.
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
        let step = step_of(command);
        let (parts, order) = self.parts_of(arguments, step);
        let frames = self.frames_of(arguments, step, &parts, &order);
        let join = match gather {
            Gather::Values => Join::Values(order),
            Gather::AllOk => Join::AllOk,
            Gather::Sum => Join::Sum,
        };
        let terms = (Nature::of(Some(command)), Touches::KEYS);
        let whole = self.envelope_of_parts(id, join, parts.len(), charge, terms);
        for (index, (part, frame)) in parts.iter().zip(frames).enumerate() {
            let mut envelope = whole.of_part(index as u16, part.slot, part.backend);
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

    /// Returns the parts of a request, and for each key in order the index of its part.
    fn parts_of(&self, arguments: &Arguments<'_>, step: usize) -> (Vec<Part>, Vec<u16>) {
        let settings = &self.env.settings;
        let topology = settings.topology;
        let (backends, lanes) = (usize::from(topology.backends()), usize::from(settings.links_per_backend));
        // A cluster node refuses a request for keys of several slots.
        let by_slot = self.env.slots.is_some();
        let places =
            if by_slot { usize::from(SLOTS) } else { usize::from(topology.shards()) * backends * lanes };
        let mut part_at = vec![u16::MAX; places];
        let mut parts: Vec<Part> = Vec::new();
        let order = (1..arguments.len())
            .step_by(step)
            .map(|index| {
                let slot = slot_of(arguments.at(index));
                let (home, backend) = (topology.home_of(slot), self.env.backend_of(slot));
                // All keys of a part use one connection. If keys of different connections were in one part, a
                // key could be reached over two connections, and its requests overtake each other.
                let place = if by_slot {
                    usize::from(slot)
                } else {
                    (usize::from(home.0) * backends + usize::from(backend.0)) * lanes
                        + usize::from(settings.lane_of(slot))
                };
                if part_at[place] == u16::MAX {
                    part_at[place] = parts.len() as u16;
                    let frame_bytes = FRAME_HEAD_BYTES_MAX + arguments.name().len();
                    parts.push(Part { home, backend, slot, keys: 0, key_bytes: 0, frame_bytes });
                }
                let part = part_at[place];
                let Part { keys, key_bytes, frame_bytes, .. } = &mut parts[usize::from(part)];
                (*keys, *key_bytes) = (*keys + 1, arguments.at(index).len() as u32);
                let words = (index..index + step).map(|word| arguments.at(word).len() + BULK_HEAD_BYTES_MAX);
                *frame_bytes += words.sum::<usize>();
                part
            })
            .collect();
        (parts, order)
    }

    /// Writes the request of each part.
    fn frames_of(
        &mut self,
        arguments: &Arguments<'_>,
        step: usize,
        parts: &[Part],
        order: &[u16],
    ) -> Vec<Vec<u8>> {
        let begin = |part: &Part| {
            let mut frame = self.env.pool.take();
            // A request of megabytes would be copied each time that it outgrows its buffer.
            frame.reserve(part.frame_bytes);
            encode::array(&mut frame, 1 + part.keys as usize * step);
            encode::bulk(&mut frame, arguments.name());
            frame
        };
        let mut frames: Vec<Vec<u8>> = parts.iter().map(begin).collect();
        for (index, part) in order.iter().enumerate() {
            for word in 0..step {
                encode::bulk(&mut frames[usize::from(*part)], arguments.at(1 + index * step + word));
            }
        }
        frames
    }

    /// Sends a request to every backend, straight from this core. Later requests of the client wait until it
    /// is answered. Backends that have carried it out in a first try are not asked again.
    pub(super) fn ask_all(
        &mut self,
        id: ClientId,
        fan_out: FanOut,
        (charge, nature): (Option<Charge>, Nature),
        message: Message<'_>,
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
            FanOut::SumEach => Join::SumEach,
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
            self.send_from_here(&whole.of_part(part as u16, slot, backend), message, 1, now);
        }
        if let Some(said) = said {
            let to = whole.of_part(count as u16, slot, BackendId(0)).reply_to;
            let (env, mut clients) = self.clients();
            clients.give(env, to, Outcome::Refused, Message::Small(&said), now);
        }
    }

    /// Takes the next place in the client's order for a request in parts, and returns the envelope of the
    /// whole. The client is not looked up again later, because sending the parts may close it.
    fn envelope_of_parts(
        &mut self,
        id: ClientId,
        join: Join,
        parts: usize,
        charge: Option<Charge>,
        (nature, touches): (Nature, Touches),
    ) -> Envelope {
        let sequence = self.clients.expect_parts(id, (join, nature.effect), parts, charge);
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
