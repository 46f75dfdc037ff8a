"""Compares a redis-server with weir in front of one: the same commands give the same bytes.

The shapes are in shapes/; each runs in RESP2 and RESP3, with one backend and with two (all keys of a shape share a hash tag).
"""

from __future__ import annotations

import pytest

from harness import shapes
from harness.processes import Redis, Weir
from harness.resp import Closed, Reply
from harness.shapes import Shape, Step

SHAPES = shapes.load()
COMMANDS_MIN = 200


@pytest.fixture(scope="module")
def reference(module_servers) -> Redis:
    return module_servers.redis()


@pytest.fixture(scope="module", params=[2, 3], ids=["resp2", "resp3"])
def protocol(request: pytest.FixtureRequest) -> int:
    return request.param


def test_there_are_enough_shapes():
    commands = {step.text.upper() for shape in SHAPES for step in shape.steps if step.mark != "!"}
    assert len(commands) >= COMMANDS_MIN
    assert len({shape.name for shape in SHAPES}) == len(SHAPES), "two shapes have the same name"


@pytest.mark.parametrize("shape", SHAPES, ids=[shape.name for shape in SHAPES])
def test_replies_are_the_same_bytes(shape: Shape, protocol: int, reference: Redis, weir_over_redis: Weir):
    tag = f"{len(weir_over_redis.backends)}-{protocol}-{shape.family}-{shape.steps[0].line}".encode()
    differences = []
    with reference.connect(protocol=protocol) as direct, weir_over_redis.connect(protocol=protocol) as through:
        for step in shape.steps:
            if step.mark == "!":
                prepare([reference, *weir_over_redis.backends, *stand_in(weir_over_redis)], step, tag)
                continue
            expected, found = answer(direct, step, tag), answer(through, step, tag)
            if same(expected, found, step.mark):
                continue
            differences.append(f"line {step.line}: {step.mark} {step.text}\n    redis: {expected}\n    weir:  {found}")
    assert not differences, f"{shape.family}.shapes\n" + "\n".join(differences)


@pytest.mark.parametrize("shape", SHAPES, ids=[shape.name for shape in SHAPES])
def test_replies_are_the_same_bytes_when_sent_at_once(
    shape: Shape, protocol: int, reference: Redis, weir_over_redis: Weir
):
    tag = f"once-{len(weir_over_redis.backends)}-{protocol}-{shape.family}-{shape.steps[0].line}".encode()
    for step in shape.steps:
        if step.mark == "!":
            prepare([reference, *weir_over_redis.backends, *stand_in(weir_over_redis)], step, tag)
    steps = [step for step in shape.steps if step.mark != "!"]
    with reference.connect(protocol=protocol) as direct, weir_over_redis.connect(protocol=protocol) as through:
        for connection in (direct, through):
            connection.send_raw(b"".join(step.request(tag) for step in steps))
        for step in steps:
            expected, found = direct.read(), through.read()
            assert same(expected, found, step.mark), (
                f"{shape.family}.shapes line {step.line}: {step.mark} {step.text}\n    redis: {expected}\n    weir:  {found}"
            )


# Requests whose keys weir cannot read.
WITHOUT_KEYS = [
    "EVAL code x a", "EVAL code -1 a", "EVAL code 2 a", "EVALSHA sha 5 a", "FCALL f 3 a", "FCALL_RO f x", "ZUNION 0 a", "ZUNIONSTORE d x a", "ZINTER 2 a", "ZDIFFSTORE d 3 a", "SINTERCARD 0 a", "SINTERCARD 2 a",
    "LMPOP x a LEFT", "BLMPOP 0 3 a LEFT", "ZMPOP 3 a MIN", "MSET a 1 b", "MSETNX a 1 b", "XREAD COUNT 1 a b", "XREAD COUNT 1 STREAMS",
]  # fmt: skip


@pytest.mark.parametrize("storage", ["redis", "embedded"])
def test_the_only_store_refuses_at_exec_what_has_no_keys(storage: str, reference: Redis, module_servers):
    weir = module_servers.weir(*([module_servers.redis()] if storage == "redis" else []))
    with reference.connect() as direct, weir.connect() as through:
        for line in WITHOUT_KEYS:
            requests = [["MULTI"], ["SET", "a", "v"], line.split(), ["GET", "a"], ["EXEC"], ["DEL", "a"]]
            expected, found = ([connection.call(*words) for words in requests] for connection in (direct, through))
            assert [reply.raw for reply in found] == [reply.raw for reply in expected], line


def answer(connection, step: Step, tag: bytes) -> Reply | str:
    try:
        connection.send_raw(step.request(tag))
        return connection.read()
    except (Closed, TimeoutError) as error:
        return f"{type(error).__name__}: {error}"


def same(expected: Reply | str, found: Reply | str, mark: str) -> bool:
    if isinstance(expected, str) or isinstance(found, str):
        return False
    return shapes.agree(expected, found, mark)


def prepare(stores: list[Redis], step: Step, tag: bytes) -> None:
    for store in stores:
        with store.connect() as connection:
            connection.ok(*step.words(tag))


def stand_in(weir: Weir) -> list[Redis]:
    return [weir] if isinstance(weir, Redis) else []
