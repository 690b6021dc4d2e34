"""Recovery: the attribution state that an earlier run left, from its checkpoint and a replay of its journals."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from otel_gpu.attribution.attributor import Attributor
from otel_gpu.attribution.cost import Prices
from otel_gpu.attribution.options import AttributionOptions
from otel_gpu.model import NO_PROCESSES, ProcessFacts
from otel_gpu.state.checkpoint import Checkpoint, XidTotals, parse_checkpoint
from otel_gpu.state.files import PrivateDirectory
from otel_gpu.state.journal import Journal, JournalHead, parse_journal

STATE: Final = "state"
LOCK: Final = "lock"
"""Locked by the agent that uses the directory. It holds the number of the last cycle that may have been exported: a
journal that was cut between two lines looks complete."""

_NUMBER_BYTES: Final = 8
LARGEST_JOURNALS_BYTES: Final = 32 << 20
"""All journals together. They are read into memory."""

_JOURNAL: Final = re.compile(r"journal-([0-9]{6}|[1-9][0-9]{6,})", re.ASCII)


@dataclass(frozen=True, slots=True)
class RecoveredState:
    """The state of an earlier run after its last cycle. ``driver_version`` and ``prices`` decide whether it is resumed.

    ``processes`` are those of the last cycle, by pid.
    """

    attributor: Attributor
    processes: Mapping[int, ProcessFacts]
    xids: XidTotals
    number: int
    driver_version: str | None
    prices: Prices | None


class _NewerJournal(NamedTuple):
    """A journal with cycles that the checkpoint does not have."""

    name: str
    journal: Journal
    head: JournalHead


class UntrustedState(ValueError):
    """The saved state cannot be used. ``file`` is the damaged file, if one is damaged."""

    def __init__(self, reason: str, file: str | None = None) -> None:
        super().__init__(reason)
        self.file = file


def journal_name(index: int) -> str:
    """The file name of a journal. Indices increase in the order of writing."""
    return f"journal-{index:06}"


def journal_names(directory: PrivateDirectory) -> dict[int, str]:
    """All journals by index, oldest first."""
    found = {int(match[1]): name for name in directory.names() if (match := _JOURNAL.fullmatch(name))}
    return dict(sorted(found.items()))


def number_text(number: int) -> bytes:
    """The number of a cycle as the lock file holds it."""
    return number.to_bytes(_NUMBER_BYTES, "big")


def _last_exported_number(directory: PrivateDirectory) -> int:
    """The number in the lock file; 0 where there is none, as in directories of early versions."""
    try:
        content = directory.read(LOCK)
    except (OSError, ValueError):
        return 0
    return int.from_bytes(content, "big") if len(content) == _NUMBER_BYTES else 0


def resume(attributor: Attributor, options: AttributionOptions, now_ns: int, *, new_driver: bool = False) -> Attributor:
    """A copy of an attributor, resumed at ``now_ns`` (monotonic) after a time without an agent.

    With a ``new_driver`` hardware counters start at 0, as after a reboot.
    """
    state = json.loads(json.dumps(attributor.to_state()))
    return Attributor.from_state(options, state, now_ns=now_ns, same_boot=not new_driver)


def recover(
    directory: PrivateDirectory, *, agent: str, boot_id: str, options: AttributionOptions
) -> RecoveredState | None:
    """Recover the state of an earlier run of this boot; ``None`` if there is none, UntrustedState if it is unusable.

    Cycles are replayed with the options in their journals. ``options`` count if the journals have no cycle.
    """
    checkpoint = _read_checkpoint(directory)
    if checkpoint is not None and checkpoint.head.boot_id != boot_id:
        raise UntrustedState("it is of another boot")
    number = 0 if checkpoint is None else checkpoint.head.number
    newer = [_checked(name, journal, agent, boot_id) for name, journal in _read_newer(directory, checkpoint)]
    if checkpoint is None and not newer:
        _check_end(directory, 0, next(reversed(journal_names(directory).values()), None))
        return None
    _check_chain(checkpoint, newer)
    if newer:
        options = newer[0].head.options
    try:
        attributor = _load(checkpoint, options)
    except Exception as error:  # damage of any kind must not keep the agent from starting
        raise UntrustedState(f"it has no valid attribution state: {error}", STATE) from error
    driver_version = None if checkpoint is None else checkpoint.head.driver_version
    processes = NO_PROCESSES if checkpoint is None else checkpoint.data.processes
    recovered = RecoveredState(
        attributor,
        processes,
        XidTotals() if checkpoint is None else checkpoint.data.xids,
        number,
        driver_version,
        options.prices if newer or checkpoint is None else checkpoint.head.prices,
    )
    for each in newer:
        try:
            recovered = _replay(recovered, each)
        except Exception as error:  # likewise
            raise UntrustedState(f"a cycle in it cannot be replayed: {error}", each.name) from error
    _check_end(directory, recovered.number, newer[-1].name if newer else STATE)
    return recovered


def _check_end(directory: PrivateDirectory, number: int, file: str | None) -> None:
    """Raise UntrustedState if cycles after ``number``, the last one that is saved, were exported."""
    exported = _last_exported_number(directory)
    if number < exported:
        raise UntrustedState(f"it has {number} of the {exported} cycles that were exported", file)


def _replay(recovered: RecoveredState, newer: _NewerJournal) -> RecoveredState:
    """The state after the cycles of a journal."""
    head, journal = newer.head, newer.journal
    attributor, processes, xids = recovered.attributor, recovered.processes, recovered.xids
    driver_version = recovered.driver_version
    if head.resumed_ns is not None and journal.base == recovered.number:  # else the checkpoint is of after that
        attributor = resume(attributor, head.options, head.resumed_ns, new_driver=head.new_driver)
    for snapshot in journal.snapshots(recovered.number):
        attributor.observe(snapshot)
        if snapshot.driver is not None:
            driver_version = snapshot.driver.driver_version or driver_version
        processes, xids = snapshot.processes, xids.after(snapshot.gpus)
    return RecoveredState(attributor, processes, xids, journal.last, driver_version, head.options.prices)


def _load(checkpoint: Checkpoint | None, options: AttributionOptions) -> Attributor:
    if checkpoint is None:
        return Attributor(options)
    # At the time of its last cycle: the time without an agent begins after the replay.
    state = checkpoint.data.attribution
    attributor = Attributor.from_state(options, state, now_ns=state["at_ns"], same_boot=True)
    if state["ledger"]["epoch_ns"] != checkpoint.head.epoch_ns:
        raise ValueError("it is not that of its head")
    return attributor


def _check_chain(checkpoint: Checkpoint | None, newer: Sequence[_NewerJournal]) -> None:
    """No cycle may be missing, only the last line of a run may be torn, and all files must be of the same ledger."""
    number = 0 if checkpoint is None else checkpoint.head.number
    epoch_ns = checkpoint.head.epoch_ns if checkpoint is not None else newer[0].head.epoch_ns
    torn = False
    for place, (name, journal, head) in enumerate(newer):
        follows = journal.base <= number if place == 0 else journal.base == number
        resumes_nothing = checkpoint is None and place == 0 and head.resumed_ns is not None
        if not follows or head.epoch_ns != epoch_ns or resumes_nothing:
            raise UntrustedState("it does not continue from the file before it", name)
        if torn and head.resumed_ns is None:
            raise UntrustedState("a cycle before it is torn", name)
        number, torn = journal.last, journal.torn


def _read_checkpoint(directory: PrivateDirectory) -> Checkpoint | None:
    try:
        return parse_checkpoint(directory.read(STATE))
    except FileNotFoundError:
        return None
    except OSError as error:
        raise UntrustedState(error.strerror or str(error), STATE) from error
    except ValueError as error:
        raise UntrustedState(str(error), STATE) from error


def _read_newer(directory: PrivateDirectory, checkpoint: Checkpoint | None) -> list[tuple[str, Journal]]:
    """The journals with cycles that the checkpoint does not have."""
    found = dict(_read_journals(directory))
    if checkpoint is None:
        return [(name, journal) for name, journal in found.items() if journal.last > 0]
    if checkpoint.head.journal is not None and checkpoint.head.journal not in found:
        raise UntrustedState(f"{checkpoint.head.journal}, which continues from it, is missing", STATE)
    return [(name, journal) for name, journal in found.items() if journal.last > checkpoint.head.number]


def _read_journals(directory: PrivateDirectory) -> Iterator[tuple[str, Journal]]:
    left_bytes = LARGEST_JOURNALS_BYTES
    for name in journal_names(directory).values():
        try:
            content = directory.read(name, left_bytes)
            left_bytes -= len(content)
            journal = parse_journal(content)
        except OSError as error:
            raise UntrustedState(error.strerror or str(error), name) from error
        except ValueError as error:
            raise UntrustedState(str(error), name) from error
        if journal is not None:
            yield name, journal


def _checked(name: str, journal: Journal, agent: str, boot_id: str) -> _NewerJournal:
    try:
        head = journal.head()
    except ValueError as error:
        raise UntrustedState(str(error), name) from error
    if head.boot_id != boot_id:
        raise UntrustedState("it is of another boot")
    if head.agent != agent:
        raise UntrustedState(f"version {head.agent} ended before it could save its last cycles")
    return _NewerJournal(name, journal, head)
