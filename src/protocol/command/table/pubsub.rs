//! Commands of publish and subscribe. Publishing passes, because a message is a request like any other.

use super::super::{Class, Command, FanOut, Flags, Refusal};
use super::build::{ANY_TIME, NOT_SCRIPTED, container, help, plain, refused};

pub(super) const COMMANDS: &[Command] = &[
    refused("psubscribe", -2, Refusal::Subscribes).flags(SUBSCRIBES),
    // A message goes to all stores, since its subscribers may sit at any.
    plain("publish", 3).fast().flags(TALKS).to_all(FanOut::Sum).class(Class::Point),
    container("pubsub"),
    plain("pubsub|channels", -2).to_all(FanOut::Union).admin_only().flags(TALKS),
    help("pubsub|help"),
    plain("pubsub|numpat", 2).to_all(FanOut::Sum).admin_only().flags(TALKS),
    plain("pubsub|numsub", -2).to_all(FanOut::SumEach).admin_only().flags(TALKS),
    plain("pubsub|shardchannels", -2).to_all(FanOut::Union).admin_only().flags(TALKS),
    plain("pubsub|shardnumsub", -2).to_all(FanOut::SumEach).admin_only().flags(TALKS),
    refused("punsubscribe", -1, Refusal::Subscribes).flags(SUBSCRIBES),
    // A shard's channel lives where a key of the same name would.
    plain("spublish", 3).keys(1, 1, 1).fast().flags(TALKS).class(Class::Point),
    refused("ssubscribe", -2, Refusal::Subscribes).flags(SUBSCRIBES).keys(1, -1, 1),
    refused("subscribe", -2, Refusal::Subscribes).flags(SUBSCRIBES),
    refused("sunsubscribe", -1, Refusal::Subscribes).flags(SUBSCRIBES).keys(1, -1, 1),
    refused("unsubscribe", -1, Refusal::Subscribes).flags(SUBSCRIBES),
];

const TALKS: Flags = Flags::PUBSUB.and(ANY_TIME);
const SUBSCRIBES: Flags = Flags::PUBSUB.and(NOT_SCRIPTED);
