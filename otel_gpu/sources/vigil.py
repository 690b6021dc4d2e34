"""Who has ended, of many processes, with one question.

A pidfd stands for one process, whoever has its pid after it, and can be read from once that has ended (pidfd_open(2)):
until then whoever has the pid is he. Asking for each of them who he is takes a file name to be looked up for each.
"""

from __future__ import annotations

import os
import resource
import select
import weakref
from collections.abc import Sequence
from typing import Final

_SHARE: Final = 4
_MOST: Final = 4096


class Vigil:
    """Processes of the agent's own pid namespace, watched until they end; at most so many, the others are not."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._poll: select.epoll | None = None
        self._pids: dict[int, int] = {}
        self._fds: dict[int, int] = {}
        weakref.finalize(self, _close, self._fds)

    def __contains__(self, pid: int) -> bool:
        """Whether whoever had this pid when it was to be watched has not ended, as of the last ``ended``."""
        return pid in self._fds

    def watch(self, pid: int) -> None:
        """Watch whoever has this pid now, if that is possible and nobody of that pid is watched."""
        if pid in self._fds or len(self._fds) >= self._most:
            return
        try:
            if self._poll is None:
                self._poll = select.epoll()
            fd = os.pidfd_open(pid)
        except OSError:  # it is gone; or an old kernel, a sandbox, too many open files
            return
        try:
            self._poll.register(fd, select.EPOLLIN)
        except OSError:
            os.close(fd)
            return
        self._fds[pid], self._pids[fd] = fd, pid

    def ended(self) -> Sequence[int]:
        """Those who have ended since the last time; they are not watched any more."""
        if self._poll is None or not self._fds:
            return ()
        ended = []
        for fd, _ in self._poll.poll(0, len(self._fds)):
            ended.append(self._pids.pop(fd))
            # Closing alone does not do where somebody was forked meanwhile, who has a copy: it would be told for ever.
            self._poll.unregister(fd)
            os.close(self._fds.pop(ended[-1]))
        return ended


def most_to_watch() -> int:
    """How many may be watched: a part of the files that the agent may have open; nobody where Python cannot."""
    if not hasattr(os, "pidfd_open"):  # it was built where the system's headers are older than Linux 5.3
        return 0
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return _MOST if limit == resource.RLIM_INFINITY else min(_MOST, limit // _SHARE)


def _close(fds: dict[int, int]) -> None:
    for fd in fds.values():
        os.close(fd)
