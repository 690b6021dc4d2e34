"""A state directory in use: a journal line per cycle, and periodic checkpoints.

Only one agent uses a directory. Files are removed in an order such that after a kill at any moment the rest is either
complete or not trusted.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple, Self

from otel_gpu.attribution.options import AttributionOptions
from otel_gpu.errors import Unavailable
from otel_gpu.model import Snapshot, SourceState
from otel_gpu.sources.workers import Pending, Worker
from otel_gpu.state.checkpoint import CHECKPOINT_FORMAT, CheckpointData, CheckpointHead, checkpoint_text
from otel_gpu.state.files import PrivateDirectory, write_all
from otel_gpu.state.journal import JOURNAL_FORMAT, JournalHead, cycle_line, head_line
from otel_gpu.state.recovery import (
    LOCK,
    STATE,
    RecoveredState,
    UntrustedState,
    journal_name,
    journal_names,
    number_text,
    recover,
)

log = logging.getLogger(__name__)

_NEW_STATE: Final = "state.new"
CHECKPOINT_AFTER_BYTES: Final = 8 << 20
"""With this much journal since the last checkpoint the next one is due early. A cycle of 8 GPUs with 8 processes each
has 35 kB, one of 16 GPUs with 200 processes each 1.7 MB."""

MOST_JOURNALLED_BYTES: Final = 24 << 20
"""The limit of journals that no checkpoint replaces. A start has to replay them within its 10 s, at 0.1 to 0.2 s per
MiB."""

MOST_JOURNALS: Final = 8
"""With more journals than this a start writes a checkpoint first: an agent killed soon after every start would never
write one."""

_UNBOUNDED_S: Final = 1e8


class InUse(Unavailable):
    """Another agent uses the directory. It becomes available when that agent ends."""


@dataclass(frozen=True, slots=True)
class Run:
    """What all files of a run have in their heads. ``epoch_ns`` (Unix time) is when the ledger began."""

    epoch_ns: int
    driver_version: str | None
    options: AttributionOptions


class _StartedCheckpoint(NamedTuple):
    """A checkpoint that is being written under a temporary name. ``None`` or the reason of its failure is the result.

    ``replaces`` are the journals that it makes obsolete; ``None`` if it must not be put in place any more.
    """

    pending: Pending[str | None]
    replaces: tuple[str, ...] | None


class _OpenJournal(NamedTuple):
    """The journal that cycles are appended to."""

    name: str
    descriptor: int


class CheckpointStore:
    """Journal and checkpoints in one directory. Used by one thread.

    Writing a checkpoint includes a sync, which may take seconds on a busy disk, and the journal continues meanwhile. So
    ``writer`` writes it under a temporary name, and the next call puts it in place.
    """

    def __init__(
        self,
        directory: PrivateDirectory,
        lock: int,
        *,
        agent: str,
        boot_id: str,
        writer: Worker,
        release_memory: Callable[[], None],
    ) -> None:
        self.path = directory.path
        self._directory = directory
        self._lock = lock
        self._agent, self._boot_id = agent, boot_id
        self._writer = writer
        self._release_memory = release_memory
        self._checkpoint: _StartedCheckpoint | None = None
        self._journal: _OpenJournal | None = None
        names = journal_names(directory)
        self._index = max(names, default=0)
        self._journals = {name: directory.size_bytes(name) for name in names.values()}
        """Bytes by name, oldest first; 0 for a journal whose cycles do not count any more."""
        self._bytes_since_checkpoint = 0
        self._invalid: str | None = None
        """Why no file in the directory may be used."""
        self._unsaved: str | None = None
        """Why the last checkpoint failed."""

    @classmethod
    def open(
        cls,
        path: Path,
        *,
        agent: str,
        boot_id: str,
        writer: Worker | None = None,
        release_memory: Callable[[], None] = lambda: None,
    ) -> Self:
        """Lock a directory for this agent; Unavailable if it cannot be used.

        ``release_memory`` is called after each checkpoint, whose text is large.
        """
        directory = PrivateDirectory.open(path)
        writer = Worker("otel-gpu-checkpoint") if writer is None else writer
        lock: int | None = None
        try:
            lock = directory.lock(LOCK)
            return cls(directory, lock, agent=agent, boot_id=boot_id, writer=writer, release_memory=release_memory)
        except OSError as error:
            if lock is not None:
                os.close(lock)
            directory.close()
            if isinstance(error, BlockingIOError):
                raise InUse(f"{path}: another otel-gpu uses it") from None
            raise Unavailable(f"{path}: {error.strerror}") from None
        except Unavailable:
            directory.close()
            raise

    @property
    def state(self) -> tuple[SourceState, str | None]:
        """Whether a restart now would lose nothing, and the reason if not."""
        if self._invalid is not None:
            return SourceState.UNAVAILABLE, f"nothing is saved: {self._invalid}"
        if self._unsaved is not None:
            return SourceState.DEGRADED, f"the journal grows: {self._unsaved}"
        return SourceState.OK, None

    @property
    def is_checkpoint_due(self) -> bool:
        """Whether the journal is large enough for a checkpoint before its time."""
        return self._checkpoint is None and self._bytes_since_checkpoint >= CHECKPOINT_AFTER_BYTES

    # -- start ----------------------------------------------------------------------

    def recover(self, options: AttributionOptions) -> RecoveredState | None:
        """The state of an earlier run. What cannot be used is removed; a damaged file is renamed."""
        try:
            found = recover(self._directory, agent=self._agent, boot_id=self._boot_id, options=options)
        except UntrustedState as error:
            if error.file is None:
                self.discard()
                log.info("state in %s is not used, counters start at 0: %s", self.path, error)
            else:
                outcome = self.discard(error.file)
                log.warning("%s is not trusted and %s, counters start at 0: %s", self.path / error.file, outcome, error)
            return None
        if len(self._journals) > MOST_JOURNALS:
            self._compact(found)
        return found

    def discard(self, damaged: str | None = None) -> str:
        """Remove all files; a ``damaged`` one is renamed. Returns what happened to that one."""
        try:
            outcome = self._remove_all(damaged)
        except OSError as error:
            self._invalid = self._reason(error)
            return f"not all files can be removed ({error.strerror})"
        self._reset_number(0)
        return outcome

    def _compact(self, found: RecoveredState | None) -> None:
        """Replace many journals by one checkpoint; if that fails, the journals stay valid."""
        try:
            if found is None:  # none of them has a cycle
                self._remove_all()
                return
            state = found.attributor.to_state()
            head = CheckpointHead(
                CHECKPOINT_FORMAT,
                self._agent,
                self._boot_id,
                found.driver_version,
                state["ledger"]["epoch_ns"],
                found.number,
                found.prices,
                None,
            )
            data = CheckpointData(state, found.processes, found.xids)
            self._directory.write(_NEW_STATE, checkpoint_text(head, data))
            self._put_in_place(tuple(self._journals))
        except OSError as error:
            self._unsaved = self._reason(error)

    def begin(self, number: int, run: Run, *, resumed_ns: int | None = None, new_driver: bool = False) -> None:
        """Start a journal after cycle ``number`` of an earlier run that is resumed, or after 0."""
        self._reset_number(number)
        if self._invalid is None:
            self._open_journal(number, run, resumed_ns, new_driver=new_driver)

    # -- every cycle ----------------------------------------------------------------

    def append(self, number: int, snapshot: Snapshot) -> bool:
        """Write a cycle to the journal; whether it is there.

        If that fails, the files no longer lead to what is exported, and are removed.
        """
        self._finish_checkpoint()
        if self._journal is None:
            return False
        try:
            self._write(self._journal, cycle_line(number, snapshot))
            self._note_number(number)
        except (OSError, TypeError, ValueError) as error:  # a cycle that cannot be encoded is still exported
            self.invalidate(self._reason(error))
            return False
        return True

    def invalidate(self, reason: str) -> None:
        """Remove all files, because cycles are exported that they lack. The next checkpoint makes them valid again."""
        self._invalid = reason
        self._bytes_since_checkpoint = 0
        self._close_journal()
        if self._checkpoint is not None:
            self._checkpoint = self._checkpoint._replace(replaces=None)
            self._finish_checkpoint()
        try:
            self._remove_all()
        except OSError as error:
            self._invalid = f"{reason}; and what was saved before cannot be removed: {error.strerror}"

    def checkpoint(self, number: int, data: CheckpointData, run: Run) -> None:
        """Start to write a checkpoint after cycle ``number``, and continue in another journal.

        Does nothing while the one before is being written.
        """
        self._finish_checkpoint()
        self._bytes_since_checkpoint = 0
        if self._checkpoint is not None:
            self._unsaved = f"{self.path}: the disk is still busy with the last checkpoint"
            return
        earlier = tuple(self._journals)
        self._reset_number(number)
        if not self._open_journal(number, run):
            return
        name = None if self._journal is None else self._journal.name
        write = partial(self._write_checkpoint, self._head(number, run, name), data)
        try:
            pending = self._writer.start(write)
        except Unavailable:  # no thread can be started: the limit of pids in a container counts threads
            pending = _run_here(write)
        self._checkpoint = _StartedCheckpoint(pending, earlier)

    def close(self, number: int, data: CheckpointData, run: Run | None, wait_s: float) -> None:
        """Write the last checkpoint, if there was a ``run``, and release the directory.

        If a checkpoint is still being written after ``wait_s``, there is no other: the journal has the rest. The lock
        is held until it is written, because another agent would write under the same name.
        """
        self._wait_for_writer(wait_s)
        self._finish_checkpoint()
        self._close_journal()
        if run is not None and self._checkpoint is None:
            self._reset_number(number)
            last = _run_here(partial(self._write_checkpoint, self._head(number, run, None), data))
            self._checkpoint = _StartedCheckpoint(last, tuple(self._journals))
        self._wait_for_writer(_UNBOUNDED_S)
        self._finish_checkpoint()
        self._writer.close()
        os.close(self._lock)
        self._directory.close()

    # -- checkpoints ----------------------------------------------------------------

    def _head(self, number: int, run: Run, journal: str | None) -> CheckpointHead:
        return CheckpointHead(
            CHECKPOINT_FORMAT,
            self._agent,
            self._boot_id,
            run.driver_version,
            run.epoch_ns,
            number,
            run.options.prices,
            journal,
        )

    def _write_checkpoint(self, head: CheckpointHead, data: CheckpointData) -> str | None:
        """Write under the temporary name; the reason if that fails. Runs on the writer."""
        try:
            self._directory.write(_NEW_STATE, checkpoint_text(head, data))
        except (OSError, TypeError, ValueError) as error:
            return self._reason(error)
        finally:
            self._release_memory()
        return None

    def _wait_for_writer(self, wait_s: float) -> None:
        if self._checkpoint is not None:
            with suppress(Unavailable):
                self._checkpoint.pending.result(time.monotonic() + wait_s)

    def _finish_checkpoint(self) -> None:
        """Put a checkpoint in place that the writer has written, or remove it if it must not be used any more."""
        started = self._checkpoint
        if started is None or not started.pending.finished:
            return
        self._checkpoint = None
        try:
            self._unsaved = started.pending.result(0.0)
            if started.replaces is None:
                self._directory.remove(_NEW_STATE)
            elif self._unsaved is None:
                self._put_in_place(started.replaces)
        except (OSError, Unavailable) as error:
            self._unsaved = self._reason(error)

    def _put_in_place(self, journals: tuple[str, ...]) -> None:
        """Give the new checkpoint its name, and remove the journals that it replaces."""
        self._directory.rename(_NEW_STATE, STATE)
        self._invalid = None
        for name in journals:
            self._directory.remove(name)
            del self._journals[name]

    # -- journals -------------------------------------------------------------------

    def _open_journal(self, number: int, run: Run, resumed_ns: int | None = None, *, new_driver: bool = False) -> bool:
        """Continue in a new journal. If that fails: false, and the one before continues, if there is one."""
        head = JournalHead(
            JOURNAL_FORMAT, self._agent, self._boot_id, run.epoch_ns, resumed_ns, new_driver, run.options
        )
        self._index += 1
        name = journal_name(self._index)
        self._journals[name] = 0
        try:
            journal = _OpenJournal(name, self._directory.create(name))
        except OSError as error:
            self._cannot_open_journal(error)
            return False
        try:
            self._write(journal, head_line(number, head))
        except (OSError, ValueError) as error:
            os.close(journal.descriptor)
            self._cannot_open_journal(error)
            return False
        self._close_journal()
        self._journal = journal
        return True

    def _cannot_open_journal(self, error: OSError | ValueError) -> None:
        if self._journal is None or isinstance(error, ValueError):
            self.invalidate(self._reason(error))
        else:
            self._unsaved = self._reason(error)

    def _write(self, journal: _OpenJournal, content: bytes) -> None:
        """Append to a journal; ValueError if a start could not replay all journals any more."""
        if sum(self._journals.values()) + len(content) > MOST_JOURNALLED_BYTES:
            raise ValueError(f"the journal is too large, because {self._unsaved or 'a checkpoint takes too long'}")
        write_all(journal.descriptor, content)
        self._journals[journal.name] += len(content)
        self._bytes_since_checkpoint += len(content)

    def _note_number(self, number: int) -> None:
        """Note in the lock file that the journal has this cycle, before it is exported."""
        os.pwrite(self._lock, number_text(number), 0)

    def _reset_number(self, number: int) -> None:
        """Replace the number of an earlier run. If that fails and it was greater, no state is recovered later."""
        with suppress(OSError):
            self._note_number(number)

    def _close_journal(self) -> None:
        if self._journal is not None:
            os.close(self._journal.descriptor)
            self._journal = None

    # -- removal --------------------------------------------------------------------

    def _remove_all(self, damaged: str | None = None) -> str:
        """Remove the checkpoint, then journals from the oldest: a later journal alone is not trusted.

        No journal counts any more, also if one cannot be removed.
        """
        outcome = "is removed"
        self._journals = dict.fromkeys(self._journals, 0)
        for name in (STATE, *self._journals):
            if name == damaged:
                outcome = self._set_aside(name)
            else:
                self._directory.remove(name)
            self._journals.pop(name, None)
        return outcome

    def _set_aside(self, name: str) -> str:
        """Rename a damaged file, or remove it where a directory has that name. Returns what happened."""
        try:
            self._directory.rename(name, _aside(name))
        except OSError as error:
            self._directory.remove(name)
            return f"is removed, because it cannot be renamed to {self.path / _aside(name)} ({error.strerror})"
        return f"is now {self.path / _aside(name)}"

    def _reason(self, error: Exception) -> str:
        return f"{self.path}: {error.strerror if isinstance(error, OSError) else error}"


def _run_here(call: Callable[[], str | None]) -> Pending[str | None]:
    pending = Pending(call)
    pending.run()
    return pending


def _aside(name: str) -> str:
    """The name of a damaged file. Only the newest one of each kind is kept."""
    return f"{name.partition('-')[0]}.rejected"
