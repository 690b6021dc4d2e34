"""From a state directory back to the books: those saved, and then every cycle since, by the rules that told of it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from otel_gpu.attribution.attributor import Attributor
from otel_gpu.attribution.cost import Prices
from otel_gpu.attribution.options import AttributionOptions
from otel_gpu.state.files import PrivateDirectory
from otel_gpu.state.journal import Journal, JournalHead, parse_journal
from otel_gpu.state.saved import Saved, Shown, parse_saved
from otel_gpu.state.xids import XidTotals

STATE: Final = "state"
LOCK: Final = "lock"
"""Of the agent that uses the directory. In it stands the number of the last cycle that may have been told: a journal
that was cut between two lines looks whole."""

_NUMBER_BYTES: Final = 8
LARGEST_JOURNALS_BYTES: Final = 8 << 20
"""All of them: they are read in the memory that the agent is given, and told again in the 10 s that a start has."""

_JOURNAL: Final = re.compile(r"journal-([0-9]{6}|[1-9][0-9]{6,})", re.ASCII)


@dataclass(frozen=True, slots=True)
class Recovered:
    """An earlier run's books after its last cycle, with what they may be taken up under.

    Beside them whom /proc showed then, and the GPUs' errors until then.
    """

    attributor: Attributor
    shown: Shown
    xids: XidTotals
    number: int
    driver_version: str | None
    prices: Prices | None


class _Later(NamedTuple):
    """A journal with cycles that the state file does not know of."""

    name: str
    journal: Journal
    head: JournalHead


class NotTrusted(ValueError):
    """What was saved cannot be gone on from. ``file`` is the one that is damaged, if any is."""

    def __init__(self, reason: str, file: str | None = None) -> None:
        super().__init__(reason)
        self.file = file


def journal_name(index: int) -> str:
    """The name of a run's files in the order they are written in."""
    return f"journal-{index:06}"


def journal_names(directory: PrivateDirectory) -> dict[int, str]:
    """All journals there are, in their order."""
    found = {int(match[1]): name for name in directory.names() if (match := _JOURNAL.fullmatch(name))}
    return dict(sorted(found.items()))


def number_text(number: int) -> bytes:
    """How the number of a cycle is noted."""
    return number.to_bytes(_NUMBER_BYTES, "big")


def _told_number(directory: PrivateDirectory) -> int:
    """The number that is noted; 0 where none is, as by earlier versions."""
    try:
        noted = directory.read(LOCK)
    except (OSError, ValueError):
        return 0
    return int.from_bytes(noted, "big") if len(noted) == _NUMBER_BYTES else 0


def resumed(
    attributor: Attributor, options: AttributionOptions, now_ns: int, *, new_driver: bool = False
) -> Attributor:
    """The same books, as of ``now_ns`` (monotonic): nobody has looked since their last cycle.

    A ``new_driver`` counts from 0, as after a reboot.
    """
    books = json.loads(json.dumps(attributor.to_state()))
    return Attributor.from_state(options, books, now_ns=now_ns, same_boot=not new_driver)


def recover(directory: PrivateDirectory, *, agent: str, boot_id: str, options: AttributionOptions) -> Recovered | None:
    """What an earlier run of this boot left; ``None`` if there is nothing. NotTrusted if it is not to be gone on from.

    ``options`` count where no cycle has to be told again: those are told by their own.
    """
    saved = _read_saved(directory)
    if saved is not None and saved.head.boot_id != boot_id:
        raise NotTrusted("it is of another boot")
    number = 0 if saved is None else saved.head.number
    later = [_checked(name, journal, agent, boot_id) for name, journal in _read_later(directory, saved)]
    if saved is None and not later:
        return None
    _check_chain(saved, later)
    if later:
        options = later[0].head.options
    try:
        attributor = _from_saved(saved, options)
    except Exception as error:  # whatever is wrong with it must not keep the agent from starting, time and again
        raise NotTrusted(f"these are no books: {error}", STATE) from error
    driver_version = None if saved is None else saved.head.driver_version
    shown, xids = (Shown(), XidTotals()) if saved is None else (saved.kept.shown, saved.kept.xids)
    for each in later:
        try:
            attributor, found, seen, xids = _told_again(attributor, each, number, xids)
        except Exception as error:  # likewise
            raise NotTrusted(f"a cycle in it cannot be told again: {error}", each.name) from error
        number, options = each.journal.last, each.head.options
        driver_version, shown = found or driver_version, seen or shown
    if number < _told_number(directory):
        raise NotTrusted("cycles were told that it does not have", later[-1].name if later else STATE)
    prices = options.prices if later or saved is None else saved.head.prices
    return Recovered(attributor, shown, xids, number, driver_version, prices)


def _told_again(
    attributor: Attributor, later: _Later, number: int, xids: XidTotals
) -> tuple[Attributor, str | None, Shown | None, XidTotals]:
    """The books after the cycles of a journal that come after ``number``; what was last told beside them."""
    head, journal = later.head, later.journal
    if head.resumed_ns is not None and journal.base == number:  # else the books saved know of it
        attributor = resumed(attributor, head.options, head.resumed_ns, new_driver=head.new_driver)
    driver_version, shown = None, None
    for cycle, snapshot in journal.snapshots():
        if cycle <= number:
            continue
        attributor.observe(snapshot)
        if snapshot.driver is not None:
            driver_version = snapshot.driver.driver_version or driver_version
        shown, xids = Shown(snapshot.processes), xids.after(snapshot.gpus)
    return attributor, driver_version, shown, xids


def _from_saved(saved: Saved | None, options: AttributionOptions) -> Attributor:
    if saved is None:
        return Attributor(options)
    # As of its last cycle: that the agent was away is told where it is known until when.
    books = saved.kept.books
    restored = Attributor.from_state(options, books, now_ns=books["at_ns"], same_boot=True)
    if books["ledger"]["epoch_ns"] != saved.head.epoch_ns:
        raise ValueError("they are not those of its head")
    return restored


def _check_chain(saved: Saved | None, later: Sequence[_Later]) -> None:
    """No cycle may be missing, none be torn but the last of a run, and all must be of the same books."""
    number = 0 if saved is None else saved.head.number
    epoch_ns = saved.head.epoch_ns if saved is not None else later[0].head.epoch_ns
    torn = False
    for place, (name, journal, head) in enumerate(later):
        follows = journal.base <= number if place == 0 else journal.base == number
        if not follows or head.epoch_ns != epoch_ns or (saved is None and place == 0 and head.resumed_ns is not None):
            raise NotTrusted("it does not go on where the file before it ends", name)
        if torn and head.resumed_ns is None:
            raise NotTrusted("a cycle before it is torn", name)
        number, torn = journal.last, journal.torn


def _read_saved(directory: PrivateDirectory) -> Saved | None:
    try:
        return parse_saved(directory.read(STATE))
    except FileNotFoundError:
        return None
    except OSError as error:
        raise NotTrusted(error.strerror or str(error), STATE) from error
    except ValueError as error:
        raise NotTrusted(str(error), STATE) from error


def _read_later(directory: PrivateDirectory, saved: Saved | None) -> list[tuple[str, Journal]]:
    """The journals with cycles that the state file does not know of."""
    found = dict(_read_journals(directory))
    if saved is None:
        return [(name, journal) for name, journal in found.items() if journal.last > 0]
    if saved.head.journal is not None and saved.head.journal not in found:
        raise NotTrusted(f"{saved.head.journal}, which goes on from it, is missing", STATE)
    return [(name, journal) for name, journal in found.items() if journal.last > saved.head.number]


def _read_journals(directory: PrivateDirectory) -> Iterator[tuple[str, Journal]]:
    left_bytes = LARGEST_JOURNALS_BYTES
    for name in journal_names(directory).values():
        try:
            content = directory.read(name, left_bytes)
            left_bytes -= len(content)
            journal = parse_journal(content)
        except OSError as error:
            raise NotTrusted(error.strerror or str(error), name) from error
        except ValueError as error:
            raise NotTrusted(str(error), name) from error
        if journal is not None:
            yield name, journal


def _checked(name: str, journal: Journal, agent: str, boot_id: str) -> _Later:
    try:
        head = journal.head()
    except ValueError as error:
        raise NotTrusted(str(error), name) from error
    if head.boot_id != boot_id:
        raise NotTrusted("it is of another boot")
    if head.agent != agent:
        raise NotTrusted(f"version {head.agent} was ended before it could save its last cycles")
    return _Later(name, journal, head)
