//! One request, many places: `MGET` and its kin go apart by key, `DBSIZE` and its kin go to every backend.

use super::Shard;
use super::accounts::Charge;
use super::batch::{Message, ReplyTo, Terms};
use super::client::Rewrite;
use super::counters::Counter;
use super::gather::Join;
use super::route::Placement;
use super::settlement::Settlement;
use crate::protocol::command::{Command, FanOut, Gather, Keys};
use crate::protocol::{Arguments, Request, encode};
use crate::routing::slot_of;
use crate::values::time::Now;
use crate::values::{BackendId, ClientId, ShardId};

/// One place that some keys of a request live in, and the connection that leads there.
#[derive(Clone, Copy, Debug)]
struct Part {
    home: ShardId,
    backend: BackendId,
    slot: u16,
    keys: u32,
}

impl Shard {
    pub(super) fn split(
        &mut self,
        id: ClientId,
        command: &'static Command,
        gather: Gather,
        request: Request<'_>,
        now: Now,
    ) {
        let arguments = request.arguments;
        let step = match command.keys {
            Keys::Range { step, .. } => usize::from(step),
            _ => unreachable!("a command that is split has its keys in a range"),
        };
        if !(arguments.len() - 1).is_multiple_of(step) {
            let text = format!("ERR wrong number of arguments for '{}' command", command.name);
            return self.answer_now(id, |out, _| encode::error(out, &text));
        }
        let together = self.placement(command, &arguments).expect("keys in a range are always found");
        if matches!(together, Placement::Together { .. }) {
            return self.route(id, command, request, now);
        }
        let Ok(charge) = self.admit(id, Some(command), &arguments, now) else { return };
        self.counters.add(Counter::RequestsSplit, 1);
        let (parts, order) = self.parts_of(&arguments, step);
        let join = match gather {
            Gather::Values => Join::Values(order.clone()),
            Gather::AllOk => Join::AllOk,
            Gather::Sum => Join::Sum,
        };
        let to = self.expect_gather(id, join, parts.len(), charge);
        let terms = self.terms_of(id, command.class, now);
        self.send_parts(id, &arguments, step, &parts, &order, to, terms, now);
    }

    /// The places the keys live in, and for each key in order, in which of them.
    fn parts_of(&self, arguments: &Arguments<'_>, step: usize) -> (Vec<Part>, Vec<u16>) {
        let topology = self.settings.topology;
        let (backends, lanes) =
            (usize::from(topology.backends()), usize::from(self.settings.links_per_backend));
        let places = usize::from(topology.shards()) * backends * lanes;
        let mut part_at = vec![u16::MAX; places];
        let mut parts: Vec<Part> = Vec::new();
        let order = (1..arguments.len())
            .step_by(step)
            .map(|index| {
                let slot = slot_of(arguments.at(index));
                let (home, backend) = (topology.home_of(slot), topology.backend_of(slot));
                // A part goes over one connection, so keys that use different ones are different parts: else a key
                // could be reached over two, and its requests overtake each other.
                let place = (usize::from(home.0) * backends + usize::from(backend.0)) * lanes
                    + usize::from(self.lane_of(slot));
                if part_at[place] == u16::MAX {
                    part_at[place] = parts.len() as u16;
                    parts.push(Part { home, backend, slot, keys: 0 });
                }
                let part = part_at[place];
                parts[usize::from(part)].keys += 1;
                part
            })
            .collect();
        (parts, order)
    }

    #[expect(
        clippy::too_many_arguments,
        reason = "one step of `split`, in a function of its own to be readable"
    )]
    fn send_parts(
        &mut self,
        id: ClientId,
        arguments: &Arguments<'_>,
        step: usize,
        parts: &[Part],
        order: &[u16],
        to: ReplyTo,
        terms: Terms,
        now: Now,
    ) {
        let mut frames: Vec<Vec<u8>> = parts
            .iter()
            .map(|part| {
                let mut frame = self.pool.take();
                encode::array(&mut frame, 1 + part.keys as usize * step);
                encode::bulk(&mut frame, arguments.name());
                frame
            })
            .collect();
        for (index, part) in order.iter().enumerate() {
            for word in 0..step {
                encode::bulk(&mut frames[usize::from(*part)], arguments.at(1 + index * step + word));
            }
        }
        for (index, (part, frame)) in parts.iter().zip(frames).enumerate() {
            let to = ReplyTo { part: index as u16, ..to };
            let route = self.route_to(id, part.slot, part.backend);
            if frame.len() > crate::values::limits::COPY_BYTES_MAX {
                self.dispatch(part.home, to, route, terms, Message::Shared(&frame.into()), now);
            } else {
                self.dispatch(part.home, to, route, terms, Message::Small(&frame), now);
                self.pool.give(frame);
            }
        }
    }

    /// The same for a request that turned out only now to go to every backend.
    pub(super) fn ask_stores(
        &mut self,
        id: ClientId,
        command: &'static Command,
        fan_out: FanOut,
        request: Request<'_>,
        now: Now,
    ) {
        if self.clients.at(id).unanswered() > 0 {
            return self.hold_request(id, &request.arguments);
        }
        self.fan_out(id, command, fan_out, request, now);
    }

    /// Sends a request to every backend, from this core, alone on its connection.
    pub(super) fn fan_out(
        &mut self,
        id: ClientId,
        command: &'static Command,
        fan_out: FanOut,
        request: Request<'_>,
        now: Now,
    ) {
        let arguments = &request.arguments;
        let Ok(charge) = self.admit(id, Some(command), arguments, now) else { return };
        let terms = self.terms_of(id, command.class, now);
        let join = match fan_out {
            FanOut::Scan => return self.scan(id, arguments, charge, terms, now),
            FanOut::One => return self.ask_first_backend(id, arguments, charge, terms, now),
            FanOut::Concat => Join::Concat,
            FanOut::Sum => Join::Sum,
            FanOut::AllOk => Join::AllOk,
            FanOut::NonNull => Join::NonNull,
            FanOut::Every => Join::Every,
            FanOut::Same => Join::Same,
            FanOut::AnyOk => Join::AnyOk,
            FanOut::Union => Join::Union,
            FanOut::SumEach => Join::SumEach,
            FanOut::Settings => Join::Settings,
            FanOut::ByStore => {
                Join::ByStore(self.settings.backends.iter().map(|backend| backend.name.clone()).collect())
            }
        };
        let backends = self.settings.topology.backends();
        if backends == 1 && join != Join::Settings {
            return self.ask_first_backend(id, arguments, charge, terms, now);
        }
        self.counters.add(Counter::RequestsSplit, 1);
        let to = self.expect_gather(id, join, usize::from(backends), charge);
        self.hold_back_later(id);
        for backend in self.settings.topology.all_backends() {
            let to = ReplyTo { part: backend.0, ..to };
            let message = Message::new(request.arguments.frame(), request.shared);
            let route = self.route_to(id, 0, backend);
            self.forward_here(to, route, terms, message, now);
        }
    }

    /// `SCAN`: the cursor says which backend is to go on, and from where.
    fn scan(
        &mut self,
        id: ClientId,
        arguments: &Arguments<'_>,
        charge: Option<Charge>,
        terms: Terms,
        now: Now,
    ) {
        let cursor = std::str::from_utf8(arguments.at(1)).ok().and_then(|text| text.parse::<u64>().ok());
        let Some(cursor) = cursor else {
            if let Some(charge) = charge {
                self.settle_charge(&charge, &Settlement::default(), now);
            }
            return self.answer_now(id, |out, _| encode::error(out, "ERR invalid cursor"));
        };
        let backends = u64::from(self.settings.topology.backends());
        let backend = (cursor % backends) as u16;
        let mut frame = self.pool.take();
        encode::array(&mut frame, arguments.len());
        encode::bulk(&mut frame, arguments.name());
        encode::bulk(&mut frame, (cursor / backends).to_string().as_bytes());
        arguments.iter().skip(2).for_each(|word| encode::bulk(&mut frame, word));
        let to = self.expect_reply(id, Rewrite::Cursor { backend }, charge);
        self.send_to_backend(id, to, BackendId(backend), &frame, terms, now);
        self.pool.give(frame);
    }

    fn ask_first_backend(
        &mut self,
        id: ClientId,
        arguments: &Arguments<'_>,
        charge: Option<Charge>,
        terms: Terms,
        now: Now,
    ) {
        let to = self.expect_reply(id, Rewrite::AsItCame, charge);
        self.send_to_backend(id, to, BackendId(0), arguments.frame(), terms, now);
    }

    /// Sends from this core, alone on its connection.
    fn send_to_backend(
        &mut self,
        id: ClientId,
        to: ReplyTo,
        backend: BackendId,
        frame: &[u8],
        terms: Terms,
        now: Now,
    ) {
        let route = self.route_to(id, 0, backend);
        self.hold_back_later(id);
        self.forward_here(to, route, terms, Message::Small(frame), now);
    }

    fn expect_gather(&mut self, id: ClientId, join: Join, parts: usize, charge: Option<Charge>) -> ReplyTo {
        let protocol = self.clients.at(id).protocol;
        let (index, bytes) = self.gathers.insert(join, protocol, parts);
        self.clients.at(id).stored_bytes += bytes;
        self.expect_reply(id, Rewrite::Gather(index), charge)
    }
}
