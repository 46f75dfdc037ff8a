"""Whether all was as it must be, and the report."""

from __future__ import annotations

from collections import Counter

from harness import metrics
from harness.processes import Weir
from harness.resp import Connection, Reply
from harness.waiting import until

from .clients import Dying, Tally
from .disturbances import Disturbance, Ground
from .watch import Watch, generations, growth, thinned

# Resident memory may grow by so much in the time that is looked at.
GROWTH_MAX = 1.05
# A shorter run says nothing of memory: pools and caches are still filling.
MEMORY_MINUTES = 5
# Gauges of a weir that nobody asks anything.
IDLE = (
    "weir_clients_open", "weir_backend_replies_owed", "weir_backend_in_flight", "weir_queue_depth", "weir_queue_bytes",
    "weir_hot_fetches_in_flight", "weir_hot_waiters",
)  # fmt: skip
LENT = ("waiting", "watching", "subscribed", "tracking")
# What remains when clients are gone: connections to stores, which come and go with need.
TO_STORES = ("weir_backend_connections_open", "weir_private_links", "weir_hot_trackers")
BATCHES = ("weir_mesh_batches_sent_total", "weir_mesh_batches_received_total")


def settle(weir: Weir) -> list[str]:
    """Waits until a weir whose clients have left has nothing to do; complains about what it still counts."""

    def busy() -> dict[str, float]:
        page = metrics.parse(weir.admin("/metrics")[1])
        found = {name: sum(page[name].values()) for name in IDLE}
        for use in LENT:
            found[use] = sum(value for labels, value in page["weir_private_links"].items() if f'"{use}"' in labels)
        sent, received = (sum(page[name].values()) for name in BATCHES)
        found["batches under way"] = sent - received
        return {name: value for name, value in found.items() if value}

    try:
        until(lambda: not busy(), "weir has nothing to do", seconds=30)
    except AssertionError:
        return [f"nobody asks anything, and there is still {busy()}"] if busy() else []
    return []


def own_descriptors(weir: Weir) -> int:
    """Descriptors that are no connections to stores."""
    page = metrics.parse(weir.admin("/metrics")[1])
    return weir.descriptors() - int(sum(sum(page[name].values()) for name in TO_STORES))


def descriptors_kept(weir: Weir, before: int) -> tuple[int, list[str]]:
    """Waits until no more descriptors are open than before; complains, with their names, if some stay."""
    try:
        until(lambda: own_descriptors(weir) <= before, "descriptors are closed", seconds=30)
    except AssertionError:
        after = own_descriptors(weir)
        kinds = ", ".join(f"{count} {kind}" for kind, count in weir.descriptor_kinds().most_common())
        return after, [f"{after} descriptors where there were {before}; all of them: {kinds}"] if after > before else []
    return own_descriptors(weir), []


def counters(ground: Ground, name: str, tallies: list[Tally]) -> list[str]:
    """What stands in the stores, against what was acknowledged."""
    wrong = []
    with ground.log_in(ground.weirs[name]) as client:
        for tally in tallies:
            for key, sure in tally.sure.items():
                stored, most = int(asked(client, "GET", key) or 0), sure + tally.unsure.get(key, 0) + tally.unanswered
                if not sure <= stored <= most:
                    wrong.append(f"{name}: {key} is {stored}; {sure} were acknowledged, and at most {most} can have happened")
        wrong += [f"{name}: {text}" for text in queues(client, tallies)]
    return wrong


def asked(client: Connection, *words):
    """A value; what was done last may be refused for a moment still."""

    def served() -> Reply | None:
        reply = client.call(*words)
        return None if reply.is_error else reply

    return until(served, f"{words} is answered").plain()


def queues(client: Connection, tallies: list[Tally]) -> list[str]:
    """Every element that was pushed was popped once, or is still there, but for what a popper that was closed had been sent."""
    popped = Counter(name for tally in tallies for name in tally.popped)
    pushed = {name for tally in tallies for name in tally.pushed}
    perhaps = {name for tally in tallies for name in tally.pushed_perhaps}
    labels = {name.rsplit(":", 1)[0] for name in pushed}
    there = Counter(text.decode() for label in labels for text in asked(client, "LRANGE", f"queue:{label}", 0, -1))
    missing = len(pushed - popped.keys() - there.keys())
    most = sum(len(tally.closes) + tally.popped_perhaps for tally in tallies if tally.kind == "pops")
    wrong = [f"{name} was popped {count} times" for name, count in popped.items() if count > 1]
    wrong += [f"{name} is there {count} times" for name, count in there.items() if count > 1][:5]
    wrong += [f"{name} was popped, and is still there" for name in popped.keys() & there.keys()][:5]
    wrong += [f"{name} is there, and nobody pushed it" for name in there.keys() - pushed - perhaps][:5]
    wrong += [f"{name} was popped, and nobody pushed it" for name in popped.keys() - pushed - perhaps][:5]
    if missing > most:
        wrong.append(f"{missing} elements of {len(pushed)} are gone; {most} calls of poppers ended without saying what they took")
    return wrong


def unexplained(name: str, tallies: list[Tally], done: list[Disturbance], began: float) -> list[str]:
    """Closes at times when nothing was done that closes."""
    mine = [disturbance for disturbance in done if disturbance.to == name]
    return [
        f"{name}: {tally.kind}: closed at {moment - began:.1f} s, when nothing was done"
        for tally in tallies
        for moment in tally.closes
        if not any(disturbance.explains(moment) for disturbance in mine)
    ]


def sums(tallies: list[Tally]) -> list[str]:
    """Complains about clients that ended while they still awaited a reply, as after one that is malformed.

    Requests and replies are counted by the client that reads one reply for each request, so a reply too many does not
    show here: clients look for it with ECHO at the end of their connections.
    """
    return [
        f"{tally.kind}: {tally.asked} asked, {tally.answered} answered, {tally.unanswered} on connections that were closed"
        for tally in tallies
        if tally.asked != tally.answered + tally.unanswered
    ]


def unserved(tallies: list[Tally], calm: float) -> list[str]:
    """Complains about clients that no store served in the calm at the end; dying clients read no replies at all."""
    return [
        f"{tally.kind}: not served in the calm at the end; "
        + (f"last served at {tally.last_value - tally.began:.1f} s" if tally.last_value else "never served")
        for tally in tallies
        if tally.kind != Dying.kind and tally.last_value < calm
    ]


def logs(ground: Ground) -> list[str]:
    found = []
    for weir in [*ground.generations, ground.clustered]:
        text = weir.output(1 << 24)
        found += [f"weir {weir.pid}: {line}" for line in text.splitlines() if "panicked at" in line]
    for name, weir in ground.weirs.items():
        if weir.exited():
            found.append(f"the weir before the {name} ended with {weir.process.returncode}: {weir.output(2000)}")
    return found


def by_kind(tallies: list[Tally]) -> dict[str, dict]:
    found: dict[str, dict] = {}
    for tally in tallies:
        nothing = {"asked": 0, "values": 0, "messages": 0, "errors": {}, "unanswered": 0, "closes": 0, "died": 0}
        row = found.setdefault(tally.kind, nothing)
        row["asked"] += tally.asked
        row["values"] += tally.values
        row["messages"] += tally.messages
        row["unanswered"] += tally.unanswered
        row["closes"] += len(tally.closes)
        row["died"] += tally.died
        for code, count in tally.errors.items():
            row["errors"][code] = row["errors"].get(code, 0) + count
    return found


def memory(watch: Watch, seconds: float) -> tuple[dict, list[str]]:
    found, wrong = {}, []
    for name, samples in watch.samples.items():
        grown = growth(samples, seconds)
        found[name] = {"growth": grown, "generations_mib": generations(samples, seconds / 20), "samples": thinned(samples)}
        if seconds >= MEMORY_MINUTES * 60:
            if grown is None:
                wrong.append(f"{name}: memory of one process was not seen at the end")
            elif grown["ratio"] > GROWTH_MAX:
                change = f"from {grown['begin_mib']} to {grown['end_mib']} MiB in the last {grown['minutes']:.1f} minutes"
                wrong.append(f"{name}: memory grew {change}")
    return found, wrong


def written(document: dict) -> str:
    """The report as Markdown."""
    lasted = f"{document['minutes']:.1f} minutes, seed {document['seed']}"
    lines = ["# Soak", "", f"`{document['command']}` at {document['commit']}: {lasted}.", ""]
    if document["interrupted"]:
        lines += ["The run was interrupted: this is what it had by then.", ""]
    lines += ["**" + ("All promises were kept." if not document["wrong"] else f"{len(document['wrong'])} promises were broken:") + "**", ""]
    lines += [f"* {text}" for text in document["wrong"][:40]] + [""] * bool(document["wrong"])
    for name, found in document["weirs"].items():
        lines += [f"## Before {'plain stores' if name == 'stores' else 'a cluster'}", ""]
        lines += [
            "| clients | asked | values | messages | errors | closed by weir | not answered for that |",
            "|---" * 7 + "|",
        ]
        for kind, row in found["clients"].items():
            if row["died"]:
                continue
            errors = ", ".join(f"{code} {count:,}" for code, count in sorted(row["errors"].items())) or "0"
            got = f"{row['asked']:,} | {row['values']:,} | {row['messages']:,}"
            lines.append(f"| {kind} | {got} | {errors} | {row['closes']:,} | {row['unanswered']:,} |")
        died = sum(row["died"] for row in found["clients"].values())
        kinds = Counter(each["kind"] for each in document["disturbances"] if each["to"] == name)
        happened = ", ".join(f"{kind} {count} times" for kind, count in sorted(kinds.items())) or "nothing"
        lines += ["", f"{died:,} clients left in the middle of requests. Stores and weir: {happened}.", ""]
        grown = found["memory"]["growth"]
        if grown:
            change = f"{grown['begin_mib']} MiB, then {grown['end_mib']} MiB ({grown['ratio']:.3f})"
            bar = f"the bar is {GROWTH_MAX}, in runs of {MEMORY_MINUTES} minutes or more"
            lines.append(f"* Memory in the last {grown['minutes']:.1f} minutes: {change}; {bar}.")
        if len(found["memory"]["generations_mib"]) > 1:
            sizes = ", ".join(f"{size}" for size in found["memory"]["generations_mib"])
            lines.append(f"* Memory of each process at the same age: {sizes} MiB.")
        before, after = found["descriptors"]
        lines += [f"* Descriptors without clients and stores: {before} before, {after} after.", ""]
    return "\n".join([*lines, *(f"* {name}: {value}" for name, value in document["machine"].items())]) + "\n"
