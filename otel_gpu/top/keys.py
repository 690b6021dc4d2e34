"""What is pressed, from what a terminal sends for it: ECMA-48 control sequences, as xterm and all after it do."""

from __future__ import annotations

import codecs
import re
from typing import Final

UP, DOWN, PAGE_UP, PAGE_DOWN, FIRST, LAST = "up", "down", "page-up", "page-down", "first", "last"
ENTER, ESCAPE, BACKSPACE, CLEAR_LINE, REDRAW = "enter", "escape", "backspace", "clear-line", "redraw"

_SEQUENCE: Final = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|O[ -~])")
_BEGUN: Final = re.compile(r"\x1b(?:\[[0-?]*[ -/]*|O)?")
_LONGEST: Final = 32
"""No key sends more; what goes on for longer is noise."""

_NAMED: Final = {
    "\x1b[A": UP, "\x1bOA": UP, "\x1b[B": DOWN, "\x1bOB": DOWN,
    "\x1b[5~": PAGE_UP, "\x1b[6~": PAGE_DOWN,
    "\x1b[H": FIRST, "\x1bOH": FIRST, "\x1b[1~": FIRST, "\x1b[7~": FIRST,
    "\x1b[F": LAST, "\x1bOF": LAST, "\x1b[4~": LAST, "\x1b[8~": LAST,
    "\r": ENTER, "\n": ENTER, "\x1bOM": ENTER,
    "\x7f": BACKSPACE, "\x08": BACKSPACE, "\x15": CLEAR_LINE, "\x0c": REDRAW,
    "\x02": PAGE_UP, "\x06": PAGE_DOWN,
}  # fmt: skip


class Keys:
    """Turns bytes into keys: a name for those that have one, else the character. Unknown sequences are nothing."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._rest = ""

    @property
    def waiting(self) -> bool:
        """Whether something has begun that may be the escape key, or the beginning of more."""
        return bool(self._rest)

    def feed(self, data: bytes) -> list[str]:
        """The keys that are complete with this."""
        text = self._rest + self._decoder.decode(data)
        self._rest = ""
        keys: list[str] = []
        while text:
            found = _SEQUENCE.match(text)
            if found is not None:
                keys += [_NAMED[found[0]]] if found[0] in _NAMED else []
                text = text[found.end() :]
            elif (begun := _BEGUN.match(text)) is not None and begun.end() == len(text) <= _LONGEST:
                self._rest, text = text, ""
            elif text[0] == "\x1b":
                keys.append(ESCAPE)
                text = text[1:]
            else:
                keys += _plain(text[0])
                text = text[1:]
        return keys

    def flush(self) -> list[str]:
        """What has begun, now that nothing more came: the escape key, and nothing for the rest of a sequence."""
        rest, self._rest = self._rest, ""
        return [ESCAPE] if rest == "\x1b" else []


def _plain(character: str) -> list[str]:
    name = _NAMED.get(character)
    if name is not None:
        return [name]
    return [character] if character.isprintable() else []
