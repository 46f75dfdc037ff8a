//! Stage 5: where a request goes. One key: to its home core. Several on one backend: together, from here, and alone.

use super::Shard;
use super::accounts::Charge;
use super::batch::{Message, ReplyTo, Route, Terms};
use super::client::{Client, Rewrite};
use super::counters::Counter;
use super::forward::Refused;
use super::pricing::class_of;
use crate::protocol::command::{Command, KeyError, Keys, Unrecognised};
use crate::protocol::{Arguments, Request, encode};
use crate::routing::slot_of;
use crate::values::time::Now;
use crate::values::{BackendId, ClientId, ShardId};

/// Where the keys of a request live.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Placement {
    /// There are no keys.
    Nowhere,
    /// All on one core and one backend, over one connection.
    Together { slot: u16, backend: BackendId, home: ShardId },
    /// On one backend, but at home on several cores, or over several connections.
    OneBackend { slot: u16, backend: BackendId },
    /// On several backends.
    Apart,
}

/// The error for keys that no single store has.
pub(super) const CROSS_SLOT: &str =
    "CROSSSLOT Keys in request live on different stores; a common {tag} in their names keeps them together";

impl Shard {
    pub(super) fn route(&mut self, id: ClientId, command: &'static Command, request: Request<'_>, now: Now) {
        match self.placement(command, &request.arguments) {
            Err(error) => self.answer_now(id, |out, _| encode::error(out, &error.to_string())),
            Ok(Placement::Together { slot, backend, home }) => {
                let Ok(charge) = self.admit(id, Some(command), &request.arguments, now) else { return };
                let shard = self.settings.id;
                // Every request comes by here: its client is looked up once.
                let client = self.clients.at(id);
                let (route, terms) =
                    (client.route_to(slot, backend), client.identity.terms(command.class, now));
                let sequence = client.expect_reply(Rewrite::AsItCame, charge);
                let to = id.reply_to(shard, sequence);
                let message = Message::new(request.arguments.frame(), request.shared);
                self.dispatch(home, to, route, terms, message, now);
            }
            Ok(Placement::OneBackend { slot, backend }) => {
                self.forward_alone(id, Some(command), slot, backend, request, now);
            }
            Ok(Placement::Nowhere) => self.forward_alone(id, Some(command), 0, BackendId(0), request, now),
            Ok(Placement::Apart) => self.answer_now(id, |out, _| encode::error(out, CROSS_SLOT)),
        }
    }

    /// A command that weir does not know goes where its first argument lives: most modules keep to that.
    pub(super) fn handle_unknown(&mut self, id: ClientId, request: Request<'_>, now: Now) {
        // Before anything else, whoever asks: what follows may be the body of somebody's page, and must not be carried out.
        if speaks_http(request.arguments.name()) {
            self.counters.add(Counter::ProtocolErrors, 1);
            self.answer_now(id, |out, _| {
                encode::error(out, "ERR Protocol error: this is HTTP, and RESP is spoken here");
            });
            return self.stop_listening(id);
        }
        if let Err(refusal) = self.permit_unknown(id, &request.arguments) {
            self.counters.add(Counter::RefusedPermission, 1);
            self.poison_transaction(id);
            return self.answer_now(id, |out, _| encode::error(out, &refusal));
        }
        // In a transaction the store would say so only at the end.
        if self.clients.at(id).transaction.is_some() {
            self.poison_transaction(id);
            let text = Unrecognised::Command(request.arguments).to_string();
            return self.answer_now(id, |out, _| encode::error(out, &text));
        }
        let slot = request.arguments.get(1).map_or(0, slot_of);
        let backend = self.settings.topology.backend_of(slot);
        self.forward_alone(id, None, slot, backend, request, now);
    }

    /// Sends a request from this core when all earlier ones of its connection are answered, and holds back later ones.
    fn forward_alone(
        &mut self,
        id: ClientId,
        command: Option<&'static Command>,
        slot: u16,
        backend: BackendId,
        request: Request<'_>,
        now: Now,
    ) {
        if self.clients.at(id).unanswered() > 0 {
            return self.hold_request(id, &request.arguments);
        }
        let Ok(charge) = self.admit(id, command, &request.arguments, now) else { return };
        let route = self.route_to(id, slot, backend);
        let to = self.expect_reply(id, Rewrite::AsItCame, charge);
        self.hold_back_later(id);
        let terms = self.terms_of(id, class_of(command), now);
        self.forward_here(to, route, terms, Message::new(request.arguments.frame(), request.shared), now);
    }

    /// Where a request that was admitted goes.
    pub(super) fn route_to(&mut self, id: ClientId, slot: u16, backend: BackendId) -> Route {
        self.clients.at(id).route_to(slot, backend)
    }

    /// Forwards from here if this core is the key's home, else hands over.
    pub(super) fn dispatch(
        &mut self,
        home: ShardId,
        to: ReplyTo,
        route: Route,
        terms: Terms,
        message: Message<'_>,
        now: Now,
    ) {
        if home == self.settings.id {
            self.forward_here(to, route, terms, message, now);
        } else {
            let batch = self.batch_for(home);
            if batch.is_full() {
                return self.refuse(to, route.backend, &Refused::CoreFull, now);
            }
            batch.push_request(to, route, terms, message);
            self.counters.add(Counter::RequestsHandedOver, 1);
        }
    }

    /// Takes the next place in the client's order of replies.
    pub(super) fn expect_reply(&mut self, id: ClientId, rewrite: Rewrite, charge: Option<Charge>) -> ReplyTo {
        let sequence = self.clients.at(id).expect_reply(rewrite, charge);
        id.reply_to(self.settings.id, sequence)
    }

    pub(super) fn placement(
        &self,
        command: &Command,
        arguments: &Arguments<'_>,
    ) -> Result<Placement, KeyError> {
        let topology = self.settings.topology;
        if let Keys::Range { first, last, .. } = command.keys
            && i16::from(first) == i16::from(last)
        {
            let slot = slot_of(arguments.at(usize::from(first)));
            let (backend, home) = (topology.backend_of(slot), topology.home_of(slot));
            return Ok(Placement::Together { slot, backend, home });
        }
        let mut placement = Placement::Nowhere;
        command.for_each_key(arguments, &mut |index| {
            let slot = slot_of(arguments.at(index));
            let (backend, home) = (topology.backend_of(slot), topology.home_of(slot));
            placement = placement.and(slot, backend, home, |slot| self.lane_of(slot));
        })?;
        Ok(placement)
    }
}

impl Client {
    /// Where a request of this client goes that was admitted.
    #[inline]
    fn route_to(&self, slot: u16, backend: BackendId) -> Route {
        Route { slot, backend, protocol: self.protocol, track: self.tracks.current() }
    }
}

impl ClientId {
    /// Where the reply to a request of this client belongs.
    #[inline]
    fn reply_to(self, shard: ShardId, sequence: u32) -> ReplyTo {
        ReplyTo { shard, part: 0, client: self.index, generation: self.generation, sequence }
    }
}

impl Placement {
    /// The same with one more key.
    fn and(self, slot: u16, backend: BackendId, home: ShardId, lane_of: impl Fn(u16) -> u16) -> Self {
        match self {
            Self::Nowhere => Self::Together { slot, backend, home },
            Self::Together { backend: other, .. } | Self::OneBackend { backend: other, .. }
                if other != backend =>
            {
                Self::Apart
            }
            Self::Together { slot: first, home: other, .. }
                if other != home || lane_of(first) != lane_of(slot) =>
            {
                Self::OneBackend { slot: first, backend }
            }
            same => same,
        }
    }
}

/// What a browser sends when it is made to talk to a store. Redis cuts such a connection off, and ours to it is everyone's.
fn speaks_http(name: &[u8]) -> bool {
    name.eq_ignore_ascii_case(b"post") || name.eq_ignore_ascii_case(b"host:")
}
