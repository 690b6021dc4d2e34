"""Fuzz targets and their inputs: valid examples with small or large changes, and random bytes."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

from otel_gpu.sources.names.untrusted import MAX_NAME_BYTES

Input = TypeVar("Input", bytes, str)


@dataclass(frozen=True, slots=True)
class Target(Generic[Input]):
    """Makes an input from a random generator, and returns the violation of its result. An exception is one, too."""

    name: str
    make: Callable[[random.Random], Input]
    violation: Callable[[Input], str | None]


ODD_BYTES: Final = (
    b"\0", b"\n", b"\r", b"\r\n", b"\r\n\r\n", b" ", b"\t", b":", b"=", b",", b"/", b"..", b"%", b"\\", b'"', b"'",
    b"\xff", b"\xfe\xff", b"\xc0\x80", b"\xed\xa0\x80", "\u202e".encode(), "\u2028".encode(), b"\x1b[2J", b"<script>",
    b"-1", b"0", b"9" * 20, b"9" * 400, b"1e999", b"0x10", b"1_0", "٣".encode(), b"null", b"NaN", b"{", b"[", b"]",
    b"}", b"A" * 300,
)  # fmt: skip


def random_bytes(rng: random.Random, most: int = 200) -> bytes:
    """Bytes of all values, or only of those that texts are made of."""
    raw = rng.randbytes(rng.randrange(most))
    return raw if rng.random() < 0.5 else bytes(32 + byte % 95 for byte in raw)


def mutated(rng: random.Random, examples: Sequence[bytes], pieces: Sequence[bytes] = ODD_BYTES) -> bytes:
    """One of the examples, changed in up to five places; now and then random bytes instead."""
    if rng.random() < 0.05:
        return random_bytes(rng)
    data = rng.choice(examples)
    for _ in range(rng.randrange(6)):
        at = rng.randrange(len(data) + 1)
        length = min(rng.randrange(1, 12), len(data) - at) if rng.random() < 0.8 else len(data) - at
        match rng.randrange(7):
            case 0:
                data = data[:at] + data[at + length :]
            case 1:
                data = data[:at] + rng.choice(pieces) + data[at:]
            case 2:
                data = data[:at] + rng.choice(pieces) + data[at + length :]
            case 3:
                data = data[:at] + bytes([rng.randrange(256)]) + data[at + 1 :]
            case 4:
                data = data[:at] + data[at : at + length] * rng.choice((2, 3, 50)) + data[at + length :]
            case 5:
                data = data[:at]
            case _:
                other = rng.choice(examples)
                data = data[:at] + other[rng.randrange(len(other) + 1) :]
    return data


ODD_VALUES: Final[tuple[Any, ...]] = (
    None, True, False, 0, -1, 1, 2**31, 2**63, -(2**63), 10**40, 0.5, 1e308, float("nan"), float("inf"), "", " ", "0",
    "all", "none", "\ud800", "\0", "\n", "\x1b[2J", "\u202e", "x" * 3000, "é" * 1025, [], {}, [[]], [None], [1, "a"],
    {"": ""}, {"a": {"b": []}}, "9" * 400, "-1", "0001-01-01T00:00:00Z", "9999-12-31T23:59:59.999999999-23:59",
    "2026-02-30T00:00:00Z", "f" * 64,
)  # fmt: skip


def mutated_json(rng: random.Random, examples: Sequence[Any]) -> bytes:
    """JSON of one of the examples with values replaced, removed or added; now and then broken as text too."""
    document = json.loads(json.dumps(rng.choice(examples)))
    for _ in range(rng.randrange(5)):
        document = _changed(rng, document)
    data = json.dumps(document).encode()
    return mutated(rng, [data]) if rng.random() < 0.25 else data


def _odd(rng: random.Random) -> Any:
    return copy.deepcopy(rng.choice(ODD_VALUES))


def _changed(rng: random.Random, value: Any) -> Any:
    """The value with something in it, or all of it, replaced."""
    if isinstance(value, dict) and value and rng.random() < 0.9:
        key = rng.choice(list(value))
        match rng.randrange(8):
            case 0:
                del value[key]
            case 1:
                value[rng.choice(("", "Id", "name", "\ud800", key + "x"))] = _odd(rng)
            case _:
                value[key] = _changed(rng, value[key])
        return value
    if isinstance(value, list) and value and rng.random() < 0.9:
        at = rng.randrange(len(value))
        if rng.random() < 0.2:
            value.append(_odd(rng))
        else:
            value[at] = _changed(rng, value[at])
        return value
    return _odd(rng)


def unfit(text: str | None, longest: int = MAX_NAME_BYTES) -> str | None:
    """The defect of a name that will be exported; ``None`` without one."""
    if text is None:
        return None
    if not text:
        return "an empty name is exported"
    try:
        size_bytes = len(text.encode("utf-8"))
    except UnicodeEncodeError:
        return f"a name that no exporter can encode is exported: {text!a}"
    if size_bytes > longest:
        return f"a name of {size_bytes} bytes is exported"
    return None
