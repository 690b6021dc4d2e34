"""A state directory in use: every cycle is appended to a journal, and now and then the books are saved whole.

Only one agent uses a directory. Files are removed in an order such that what is left over, should the agent be killed
meanwhile, is either all that counts or nothing that is trusted.
"""

from __future__ import annotations

import logging
import os
import threading
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

from otel_gpu.attribution.options import AttributionOptions
from otel_gpu.errors import Unavailable
from otel_gpu.footprint import give_back
from otel_gpu.model import Snapshot, SourceState
from otel_gpu.state.cycle_text import CycleText
from otel_gpu.state.files import PrivateDirectory, write_all
from otel_gpu.state.journal import JOURNAL_FORMAT, JournalHead, head_line, line
from otel_gpu.state.recovery import (
    LARGEST_JOURNALS_BYTES,
    LOCK,
    STATE,
    NotTrusted,
    Recovered,
    journal_name,
    journal_names,
    number_text,
    recover,
)
from otel_gpu.state.saved import STATE_FORMAT, Kept, SavedHead, saved_text

log = logging.getLogger(__name__)

_NEW_STATE: Final = "state.new"
MOST_JOURNALLED_BYTES: Final = LARGEST_JOURNALS_BYTES // 2
"""Of what is not saved whole: a thousand cycles of a host with 4 GPUs and 17 processes. A start has to tell them again
in its 10 s, of which each MiB takes one. It reads more than that: versions that wrote every line in full left it."""

MOST_JOURNALS: Final = 8
"""So many at a start, and what they tell is saved whole first: who dies young, time and again, would never save."""


class InUse(Unavailable):
    """Another agent has the directory now; it can be had when that one ends."""


@dataclass(frozen=True, slots=True)
class Run:
    """Whose books are kept: what all files of a run say."""

    epoch_ns: int
    driver_version: str | None
    options: AttributionOptions


class Store:
    """What is kept on disk. Used by one thread; books are written by another, which never waits for the first."""

    def __init__(self, directory: PrivateDirectory, lock: int, *, agent: str, boot_id: str) -> None:
        self.path = directory.path
        self._directory = directory
        self._lock: int | None = lock
        self._ended = False
        self._agent, self._boot_id = agent, boot_id
        self._number = 0
        self._journal: int | None = None
        self._text = CycleText()
        journals = journal_names(directory)
        self._index = max(journals, default=0)
        self._journals = tuple(journals.values())
        self._journalled_bytes = sum(map(directory.size_bytes, self._journals))
        self._settled_bytes = 0
        """How many of those are in no journal any more: what they tell is saved, or nothing is."""
        self._writer: threading.Thread | None = None
        self._swap = threading.Lock()
        self._void = 0
        """How often what is on disk was given up: books that were on their way there then must not arrive."""
        self._lost: str | None = None
        self._unsaved: str | None = None

    @classmethod
    def open(cls, path: Path, *, agent: str, boot_id: str) -> Self:
        """Take a directory into use; Unavailable says why it cannot be."""
        directory = PrivateDirectory.open(path)
        try:
            return cls(directory, directory.lock(LOCK), agent=agent, boot_id=boot_id)
        except BlockingIOError:
            directory.close()
            raise InUse(f"{path}: another otel-gpu uses it") from None
        except OSError as error:
            directory.close()
            raise Unavailable(f"{path}: {error.strerror}") from None

    @property
    def state(self) -> tuple[SourceState, str | None]:
        """Whether a restart would lose nothing by now, and why not."""
        if self._lost is not None:
            return SourceState.UNAVAILABLE, f"nothing is saved: {self._lost}"
        if self._unsaved is not None:
            return SourceState.DEGRADED, f"the journal grows: {self._unsaved}"
        return SourceState.OK, None

    # -- beginning ------------------------------------------------------------------

    def recover(self, options: AttributionOptions) -> Recovered | None:
        """What an earlier run left, if it can be trusted; else it is removed, and what is damaged set aside."""
        try:
            found = recover(self._directory, agent=self._agent, boot_id=self._boot_id, options=options)
        except NotTrusted as error:
            if error.file is None:
                self.discard()
                log.info("state in %s is not taken up, counters start at 0: %s", self.path, error)
            else:
                became = self.discard(error.file)
                log.warning("%s is not trusted, %s, and counters start at 0: %s", self.path / error.file, became, error)
            return None
        if len(self._journals) > MOST_JOURNALS:
            self._make_whole(found)
        return found

    def discard(self, damaged: str | None = None) -> str:
        """Remove what was saved; a file that is ``damaged`` is set aside, in place of the last such. What it became."""
        try:
            return self._remove(damaged)
        except OSError as error:
            self._lost = self._why(error)
            return f"cannot be removed ({error.strerror})"

    def _make_whole(self, found: Recovered | None) -> None:
        """Put one file in the place of many journals; if that fails they are good as they are."""
        try:
            if found is None:  # not one of them has a cycle
                self._remove()
                return
            books = found.attributor.to_state()
            epoch_ns = books["ledger"]["epoch_ns"]
            head = SavedHead(
                STATE_FORMAT,
                self._agent,
                self._boot_id,
                found.driver_version,
                epoch_ns,
                found.number,
                found.prices,
                None,
            )
            self._directory.write(_NEW_STATE, saved_text(head, Kept(books, found.shown, found.xids)))
            self._directory.rename(_NEW_STATE, STATE)
            self._directory.sync()
            for name in self._journals:
                self._directory.remove(name)
            self._journals, self._settled_bytes = (), self._journalled_bytes
        except OSError as error:
            self._unsaved = self._why(error)

    def begin(self, number: int, run: Run, *, resumed_ns: int | None = None, new_driver: bool = False) -> None:
        """Journal from here on: after cycle ``number`` of an earlier run that is taken up, or from the first one."""
        self._number = number
        with suppress(OSError):  # an old one that is higher costs these books, and no more
            self._note_number()
        if self._lost is None:
            self._open_journal(run, resumed_ns, new_driver=new_driver)

    # -- every cycle ----------------------------------------------------------------

    def append(self, snapshot: Snapshot, missed: int = 0) -> bool:
        """Journal a cycle, so many after the last one that ``missed`` are between; whether it is journalled.

        If that fails nothing on disk is true any more, and it is removed; figures go on.
        """
        self._number += missed + 1
        if self._journal is None:
            return False
        try:
            self._write_line(self._journal, line(self._number, self._text.of(snapshot)))
            self._text.written(self._number)
            self._note_number()
        except (OSError, TypeError, ValueError) as error:  # what cannot be written down can still be told
            self.give_up(self._why(error))
            return False
        return True

    def give_up(self, reason: str) -> None:
        """Remove all that was saved: the books have gone on without it. The next time they are saved it is whole."""
        with self._swap:
            self._void += 1
            self._lost = reason
            self._settled_bytes = self._journalled_bytes
            self._close_journal()
            try:
                self._remove()
            except OSError as error:
                self._lost = f"{reason}; and what was saved before cannot be removed: {error.strerror}"

    def save(self, kept: Kept, run: Run) -> None:
        """Save the books whole, as of the last cycle appended, and journal from here on in another file.

        They are written by a thread of their own; while an earlier one is not done, nothing happens.
        """
        if self._writer is not None and self._writer.is_alive():
            self._unsaved = f"{self.path}: the disk has not taken the books for a while"
            return
        earlier, earlier_bytes = self._journals, self._journalled_bytes
        if self._open_journal(run):
            self._start_writer(kept, run, earlier, earlier_bytes)

    def close(self, kept: Kept, run: Run | None, timeout_s: float) -> None:
        """Save the books for the last time, if there are any; what takes too long is in the journal as well."""
        if self._writer is not None:
            self._writer.join(timeout_s / 2)
        if run is not None and (self._writer is None or not self._writer.is_alive()):
            self._close_journal()
            self._start_writer(kept, run, self._journals, self._journalled_bytes)
        if self._writer is not None:
            self._writer.join(timeout_s / 2)
        self._close_journal()
        self._ended = True  # from here on a writer that is not done lets go when it is
        if self._writer is None or not self._writer.is_alive():
            self._let_go()

    def _let_go(self) -> None:
        with self._swap:
            lock, self._lock = self._lock, None
        if lock is not None:
            os.close(lock)
            self._directory.close()

    # -- files ----------------------------------------------------------------------

    def _open_journal(self, run: Run, resumed_ns: int | None = None, *, new_driver: bool = False) -> bool:
        """Go on in a new journal; false if there is none, and the one before is gone on with, if there is one."""
        head = JournalHead(
            JOURNAL_FORMAT, self._agent, self._boot_id, run.epoch_ns, resumed_ns, new_driver, run.options
        )
        self._index += 1
        with self._swap:
            self._journals = (*self._journals, journal_name(self._index))
        try:
            journal = self._directory.create(journal_name(self._index))
        except OSError as error:
            self._cannot_journal(error)
            return False
        try:
            self._write_line(journal, head_line(self._number, head))
        except (OSError, ValueError) as error:
            os.close(journal)
            self._cannot_journal(error)
            return False
        self._close_journal()
        self._journal = journal
        self._text.begin_file()  # not before: the one before may have to be gone on with, and has what it has
        return True

    def _write_line(self, journal: int, content: bytes) -> None:
        """Write it, if a start could still read all that there is: ValueError if not, as where no disk takes books."""
        if self._journalled_bytes - self._settled_bytes + len(content) > MOST_JOURNALLED_BYTES:
            raise ValueError(f"the journal is too large, since {self._unsaved or 'saving takes too long'}")
        write_all(journal, content)
        self._journalled_bytes += len(content)

    def _note_number(self) -> None:
        """Note that the journal has this cycle, before anybody is told of it."""
        if self._lock is not None:
            os.pwrite(self._lock, number_text(self._number), 0)

    def _cannot_journal(self, error: OSError | ValueError) -> None:
        if self._journal is None or isinstance(error, ValueError):
            self.give_up(self._why(error))
        else:
            self._unsaved = self._why(error)

    def _why(self, error: Exception) -> str:
        return f"{self.path}: {error.strerror if isinstance(error, OSError) else error}"

    def _close_journal(self) -> None:
        if self._journal is not None:
            os.close(self._journal)
            self._journal = None

    def _start_writer(self, kept: Kept, run: Run, earlier: tuple[str, ...], earlier_bytes: int) -> None:
        head = SavedHead(
            STATE_FORMAT,
            self._agent,
            self._boot_id,
            run.driver_version,
            run.epoch_ns,
            self._number,
            run.options.prices,
            None if self._journal is None else journal_name(self._index),
        )
        self._writer = threading.Thread(
            target=self._write,
            args=(head, kept, earlier, earlier_bytes, self._void),
            name="otel-gpu-state",
            daemon=True,
        )
        try:
            self._writer.start()
        except RuntimeError:  # the container's limit of pids counts threads
            self._writer.run()
            self._writer = None

    def _write(self, head: SavedHead, kept: Kept, earlier: tuple[str, ...], earlier_bytes: int, void: int) -> None:
        try:
            self._directory.write(_NEW_STATE, saved_text(head, kept))
            with self._swap:
                if self._void != void:
                    self._directory.remove(_NEW_STATE)
                    return
                self._directory.rename(_NEW_STATE, STATE)
                self._lost = None
            self._directory.sync()
            for name in earlier:
                self._directory.remove(name)
            with self._swap:
                self._journals = tuple(name for name in self._journals if name not in earlier)
        except (OSError, TypeError, ValueError) as error:
            self._unsaved = self._why(error)
        else:
            self._unsaved, self._settled_bytes = None, max(self._settled_bytes, earlier_bytes)
        finally:
            give_back()
            if self._ended:
                self._let_go()

    def _remove(self, damaged: str | None = None) -> str:
        """In this order: without the books, then without the first journals, no later journal is trusted."""
        became = "is gone"
        for name in (STATE, *self._journals):
            if name == damaged:
                became = self._set_aside(name)
            else:
                self._directory.remove(name)
        self._journals = ()
        return became

    def _set_aside(self, name: str) -> str:
        """Give a damaged file another name, or remove it where a directory has that name; what became of it."""
        try:
            self._directory.rename(name, _aside(name))
        except OSError as error:
            self._directory.remove(name)
            return f"is removed, since it cannot be named {self.path / _aside(name)} ({error.strerror})"
        return f"is now {self.path / _aside(name)}"


def _aside(name: str) -> str:
    """One name for all damaged files of a kind: there is only the newest of them."""
    return f"{name.partition('-')[0]}.rejected"
