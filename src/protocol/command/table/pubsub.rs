//! Commands of publish and subscribe. Publishing a message is a request like any other; a subscriber needs a
//! connection that no other client uses.

use super::super::{Class, Command, FanOut, Flags, PrivateUse, Subscription};
use super::build::{ANY_TIME, NOT_SCRIPTED, container, help, plain};

pub(super) const COMMANDS: &[Command] = &[
    plain("psubscribe", -2).privately(PrivateUse::Subscribes(Subscription::Patterns)).flags(SUBSCRIBES),
    plain("publish", 3).multiplies().fast().flags(TALKS).to_all(FanOut::Channel).class(Class::Point),
    container("pubsub"),
    plain("pubsub|channels", -2).multiplies().to_all(FanOut::Union).hides_work().flags(TALKS),
    help("pubsub|help"),
    plain("pubsub|numpat", 2).to_all(FanOut::Patterns).flags(TALKS),
    plain("pubsub|numsub", -2).multiplies().to_all(FanOut::SumEach).flags(TALKS),
    plain("pubsub|shardchannels", -2).multiplies().to_all(FanOut::Union).hides_work().flags(TALKS),
    plain("pubsub|shardnumsub", -2).multiplies().to_all(FanOut::SumEach).flags(TALKS),
    plain("punsubscribe", -1).privately(PrivateUse::Unsubscribes(Subscription::Patterns)).flags(SUBSCRIBES),
    // A shard's channel lives where a key of the same name would.
    plain("spublish", 3).multiplies().keys(1, 1, 1).fast().flags(TALKS).class(Class::Point),
    plain("ssubscribe", -2)
        .privately(PrivateUse::Subscribes(Subscription::Sharded))
        .flags(SUBSCRIBES)
        .keys(1, -1, 1),
    plain("subscribe", -2).privately(PrivateUse::Subscribes(Subscription::Channels)).flags(SUBSCRIBES),
    plain("sunsubscribe", -1)
        .privately(PrivateUse::Unsubscribes(Subscription::Sharded))
        .flags(SUBSCRIBES)
        .keys(1, -1, 1),
    plain("unsubscribe", -1).privately(PrivateUse::Unsubscribes(Subscription::Channels)).flags(SUBSCRIBES),
];

const TALKS: Flags = Flags::PUBSUB.and(ANY_TIME);
const SUBSCRIBES: Flags = Flags::PUBSUB.and(NOT_SCRIPTED);
