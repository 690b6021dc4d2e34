"""Who caused a change of hidden memory. One change is judged at a time; the books are kept elsewhere."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from typing import Final, NamedTuple

from otel_gpu.attribution.hidden_accounts import Account, CandidateId, Shares, equally, normal, strongest

_MIB: Final = 1 << 20
DEAD_BAND_BYTES: Final = 32 * _MIB
CONTEXT_BYTES: Final = 1024 * _MIB
"""More than a process that the driver measures holds beyond its figure, for its context."""

_MAPPING_COVERS: Final = 0.25
"""Mappings explain a change if they moved its way by at least this part of it."""
MAPPING_DOUBT: Final = 0.25
"""Variance of a split by mappings, of that of a split by nothing: how far they can be trusted is not known."""
_TYPICAL_RATIO: Final = 0.85
"""Resident bytes per mapped byte, where nothing better is known."""
_CLEAR: Final = 0.6
"""A cause with better odds than this gets all of a rise; otherwise the rise is shared by the odds."""
_FIRST_ALLOCATION_S: Final = 4.0
"""How long a process typically runs before it allocates."""
_SAME_PACE: Final = 0.1
"""Growth has slowed down by somebody's pace if it has by that much, give or take this part."""
_YOUNG_S: Final = 180.0
_AGEING_S: Final = 60.0


class Moment(NamedTuple):
    """A cycle: its number and time, the time since the one before, and what else happened in between."""

    cycle: int
    now_s: float
    since_s: float
    visible_arrivals: int
    visible_departures: int


class Cause(NamedTuple):
    """To whom a rise goes, and with what odds; to nobody if empty. ``telling``: they were chosen for a reason."""

    weights: Shares
    odds: Shares
    telling: bool = True


# ---------------------------------------------------------------------------- mappings


def first_sight(accounts: Mapping[CandidateId, Account]) -> tuple[Shares, float]:
    """Shares of bytes that were there before anybody looked, and their doubt: by mappings, else equally."""
    sizes = {id_: account.candidate.mapping_bytes for id_, account in accounts.items()}
    known = [size for size in sizes.values() if size is not None]
    if sum(known) == 0:
        return equally(accounts), 1.0
    mean = sum(known) / len(known)
    return normal({id_: mean if size is None else size for id_, size in sizes.items()}), MAPPING_DOUBT


class MappingMoves(NamedTuple):
    """Bytes that mappings explain. What is ``doubtful`` may be anyone's by ``odds``; ``ratio`` if one was learned."""

    parts: Shares
    doubtful: float
    odds: Shares
    ratio: tuple[CandidateId, float] | None


def mapping_moves(accounts: Mapping[CandidateId, Account], gap: float) -> MappingMoves | None:
    """Divide a change by whose mapping moved, with the ratios learned so far; ``None`` if mappings do not tell."""
    moves = {
        id_: float(account.candidate.mapping_bytes - account.mapped)
        for id_, account in accounts.items()
        if account.candidate.mapping_bytes is not None and account.mapped is not None
    }
    moves = {id_: move for id_, move in moves.items() if move}
    ups = sum(move for move in moves.values() if move > 0)
    downs = -sum(move for move in moves.values() if move < 0)
    along, against = (ups, downs) if gap >= 0 else (downs, ups)
    if along < _MAPPING_COVERS * abs(gap) or max(abs(gap), min(along, against)) <= DEAD_BAND_BYTES:
        return None
    parts = {id_: ratio * move for id_, move in moves.items() if (ratio := accounts[id_].ratio) is not None}
    new = {id_: move for id_, move in moves.items() if id_ not in parts}
    ratio = _common_ratio(new.values(), gap - sum(parts.values()))
    parts |= {id_: ratio * move for id_, move in new.items()}
    rest = gap - sum(parts.values())
    open_ = new or moves
    odds = normal({id_: abs(move) for id_, move in open_.items()})
    for id_, share in odds.items():
        parts[id_] += share * rest
    doubtful = sum(abs(parts[id_]) for id_ in new) if new else abs(rest)
    return MappingMoves(parts, doubtful, odds, _learned(open_, parts))


def _common_ratio(moves: Collection[float], explained: float) -> float:
    """Resident bytes per mapped byte if it is the same for all of these; the typical one where they cancel out."""
    net = sum(moves)
    if abs(net) < _MAPPING_COVERS * sum(map(abs, moves)):
        return _TYPICAL_RATIO
    return min(1.0, max(0.0, explained / net)) if net else 0.0


def _learned(moves: Shares, parts: Shares) -> tuple[CandidateId, float] | None:
    """What a single mapping of unknown ratio teaches about it. No more can be resident than is mapped."""
    if len(moves) != 1:
        return None
    ((id_, move),) = moves.items()
    ratio = parts[id_] / move
    return (id_, min(1.0, ratio)) if abs(move) > DEAD_BAND_BYTES and 0.0 < ratio <= 1.05 else None


# ---------------------------------------------------------------------------- rises without mappings


def find_cause(accounts: Mapping[CandidateId, Account], rise: float, total: float, moment: Moment) -> Cause:
    """Who caused a rise that no mapping explains: the first rule that applies to anybody."""
    just_s, lately_s = max(10.0, 1.5 * moment.since_s), max(60.0, 4.0 * moment.since_s)
    fresh = {id_: account for id_, account in accounts.items() if account.fresh}
    arriving = {id_: account for id_, account in fresh.items() if moment.now_s - account.seen_s <= just_s}
    if not any(account.seen_s >= moment.now_s for account in arriving.values()) and (
        rise < CONTEXT_BYTES * moment.visible_arrivals
    ):
        return Cause({}, {})
    growing = {id_: account for id_, account in accounts.items() if account.grew_at >= moment.cycle - 2}
    starting = {id_: account for id_, account in growing.items() if not account.pace}
    waiting = {id_: account for id_, account in fresh.items() if moment.now_s - account.seen_s <= lately_s}
    if arriving:
        return _first_to_allocate(arriving, moment)
    if starting:
        return _shared(starting)
    if waiting:
        return _first_to_allocate(waiting, moment)
    if growing:
        return _shared(growing)
    return _without_reason(strongest(accounts), rise, total)


def _shared(accounts: Mapping[CandidateId, Account]) -> Cause:
    shares = equally(accounts)
    return Cause(shares, shares)


def _first_to_allocate(fresh: Mapping[CandidateId, Account], moment: Moment) -> Cause:
    """Of several that arrived, the one whose time it is to allocate; those who began together share equally.

    A process a moment old can hardly have allocated yet; one that has been waiting for long may never do.
    """
    fresh = strongest(fresh)
    shares = equally(fresh)
    patience_s = max(20.0, 2.0 * moment.since_s)
    ready = {}
    for id_, account in fresh.items():
        ran_s, waited_s = min(account.candidate.age_s, moment.since_s), max(0.0, moment.now_s - account.seen_s)
        ready[id_] = 1e-9 - math.expm1(-ran_s / _FIRST_ALLOCATION_S) * math.exp(-waited_s / patience_s)
    chances = {}
    for id_, account in fresh.items():
        peers = [peer for peer, other in fresh.items() if _began_together(account, other)]
        chances[id_] = shares[id_] * sum(ready[peer] for peer in peers) / len(peers)
    return _likeliest(normal(chances))


def _began_together(one: Account, other: Account) -> bool:
    return one.seen_s == other.seen_s


def _likeliest(odds: Shares) -> Cause:
    """All to one whose odds are clear, else by the odds."""
    best = max(odds, key=lambda id_: odds[id_])
    return Cause({best: 1.0} if odds[best] > _CLEAR else odds, odds)


def _without_reason(accounts: Mapping[CandidateId, Account], rise: float, total: float) -> Cause:
    """The youngest, if the rise is large and anybody is young; else everybody, by what they hold and a little more."""
    young = {id_: a.candidate.age_s for id_, a in accounts.items() if a.candidate.age_s < _YOUNG_S}
    if young and rise >= max(256 * _MIB, 0.02 * total):
        cause = _likeliest(normal({id_: math.exp(-age_s / _AGEING_S) + 0.01 for id_, age_s in young.items()}))
        return cause._replace(telling=len(cause.weights) == 1)
    mean = math.fsum(account.held for account in accounts.values()) / len(accounts)
    held = normal({id_: account.held + 0.1 * mean for id_, account in accounts.items()})
    shares = held if mean > 0 else equally(accounts)
    return Cause(shares, shares, telling=False)


# ---------------------------------------------------------------------------- who no longer grows


def who_stopped(paces: Shares, drop: float) -> CandidateId | None:
    """Whose pace it is by which a rise has slowed down; nobody's if none is near it. Bytes per cycle."""
    best = min(paces, key=lambda id_: abs(paces[id_] - drop))
    return best if abs(paces[best] - drop) <= max(_SAME_PACE * drop, DEAD_BAND_BYTES / 16) else None
