"""Bodies of responses: made once, counted while anything refers to them."""

from __future__ import annotations

import gzip
import threading
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from otel_gpu.web.bodies import UNCOUNTED_BYTES, Bodies, Body, CycleBody, Postponed, gzipped
from tests.web import PATIENCE_S

KIB = 1024


class Maker:
    """Makes a body of this size in parts of 1 KiB, and counts how often."""

    def __init__(self, size_kib: int = 10) -> None:
        self.calls = 0
        self._size_kib = size_kib

    def parts(self) -> Iterator[bytes]:
        self.calls += 1
        for _ in range(self._size_kib):
            yield bytes([self.calls]) * KIB


def test_a_body_is_made_once_per_cycle_and_key() -> None:
    bodies, maker = Bodies(), Maker()
    first = bodies.shared("a", 1, maker.parts)
    assert bodies.shared("a", 1, maker.parts) is first
    assert bodies.shared("b", 1, maker.parts) is not first
    assert bodies.shared("a", 2, maker.parts) is not first
    assert maker.calls == 3


def test_a_late_request_for_the_previous_cycle_gets_the_body_of_the_newest() -> None:
    bodies, maker = Bodies(), Maker()
    bodies.shared("a", 1, maker.parts)
    newest = bodies.shared("a", 2, maker.parts)
    assert bodies.shared("a", 1, maker.parts) is newest
    assert bodies.shared("a", 2, maker.parts) is newest
    assert maker.calls == 2


def test_a_body_of_an_old_cycle_counts_until_no_client_receives_it() -> None:
    bodies, maker = Bodies(), Maker()
    held = bodies.shared("a", 1, maker.parts)
    bodies.shared("a", 2, maker.parts)
    assert bodies.used_bytes == 20 * KIB
    assert not bodies.is_newest(held)
    del held
    assert bodies.used_bytes == 10 * KIB


def test_over_the_limit_a_body_is_postponed_and_made_once_there_is_room() -> None:
    bodies, maker = Bodies(25 * KIB), Maker()
    held: list[Body] = [bodies.shared("a", cycle, maker.parts) for cycle in (1, 2)]
    with pytest.raises(Postponed) as caught:
        bodies.shared("a", 3, maker.parts)
    assert maker.calls == 2, "its size is known from the last time: nothing is made in vain"
    assert (caught.value.needed_bytes, bodies.used_bytes) == (10 * KIB, 20 * KIB)
    assert not bodies.has_room(10 * KIB)
    held.pop()
    assert bodies.has_room(10 * KIB)
    assert bodies.shared("a", 3, maker.parts).cycle == 3


def test_a_body_of_unknown_size_is_never_larger_than_the_room() -> None:
    bodies = Bodies(25 * KIB)
    seen: list[int] = []

    def parts() -> Iterator[bytes]:
        for _ in range(1000):
            seen.append(bodies.used_bytes)
            yield bytes(KIB)

    with pytest.raises(Postponed):
        bodies.shared("a", 1, parts)
    assert max(seen) <= 25 * KIB
    assert bodies.used_bytes == 0


def test_bodies_that_no_client_receives_make_room_for_others() -> None:
    bodies = Bodies(25 * KIB)
    text, received = Maker(), Maker()
    bodies.shared("text", 1, text.parts)
    held = bodies.shared("received", 1, received.parts)
    bodies.shared("other", 1, Maker(15).parts)
    assert bodies.used_bytes == 25 * KIB
    assert bodies.shared("received", 1, received.parts) is held, "it exists, so it is shared as before"
    assert (text.calls, received.calls) == (1, 1)


def test_a_body_is_postponed_while_another_is_made_unless_the_caller_waits() -> None:
    bodies, begun, going_on = Bodies(), threading.Event(), threading.Event()

    def slow() -> Iterator[bytes]:
        begun.set()
        assert going_on.wait(PATIENCE_S)
        yield b"slow"

    made: list[Body] = []
    maker = threading.Thread(target=lambda: made.append(bodies.shared("slow", 1, slow)))
    waiter = threading.Thread(target=lambda: made.append(bodies.shared("waits", 1, Maker().parts, wait=True)))
    maker.start()
    assert begun.wait(PATIENCE_S)
    assert bodies.is_busy
    with pytest.raises(Postponed):
        bodies.shared("fast", 1, Maker().parts)
    waiter.start()
    going_on.set()
    maker.join(PATIENCE_S)
    waiter.join(PATIENCE_S)
    assert [body.data[:4] for body in made] == [b"slow", b"\1\1\1\1"]
    assert not bodies.is_busy


def test_a_failure_while_a_body_is_made_leaves_no_trace() -> None:
    bodies = Bodies()

    def broken() -> Iterator[bytes]:
        yield bytes(KIB)
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        bodies.shared("a", 1, broken)
    assert (bodies.used_bytes, bodies.is_busy) == (0, False)


def test_a_small_body_of_a_route_is_always_possible_and_a_large_one_counts() -> None:
    bodies = Bodies(25 * KIB)
    held = [bodies.adopted(bytes(20 * KIB)), bodies.adopted(bytes(UNCOUNTED_BYTES))]
    with pytest.raises(Postponed):
        bodies.adopted(bytes(20 * KIB))
    assert bodies.used_bytes == len(held[0].data)
    assert len(bodies.adopted(bytes(UNCOUNTED_BYTES)).data) == UNCOUNTED_BYTES


def test_a_compressed_body_is_made_without_the_plain_one() -> None:
    bodies, maker = Bodies(25 * KIB), Maker(1000)
    body = CycleBody(bodies, "a", 1, maker.parts)
    compressed = body.compressed()
    assert gzip.decompress(compressed.data) == bytes([1]) * 1000 * KIB
    assert body.compressed() is compressed
    assert bodies.used_bytes == len(compressed.data)
    with pytest.raises(Postponed):
        body.plain()


@given(st.lists(st.binary(max_size=200), max_size=20))
def test_parts_are_compressed_to_one_member(parts: list[bytes]) -> None:
    assert gzip.decompress(b"".join(gzipped(parts))) == b"".join(parts)
