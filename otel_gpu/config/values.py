"""Parsers of values: durations, addresses, choices. Each raises ValueError, or UsageError to explain more."""

from __future__ import annotations

import ipaddress
import os
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Final, TypeVar
from urllib.parse import quote, unquote_to_bytes, urlsplit

from otel_gpu.errors import UsageError

E = TypeVar("E", bound=StrEnum)

_DURATION: Final = re.compile(r"([0-9]+(?:\.[0-9]+)?)(ms|s|m|h)", re.ASCII)
_SECONDS: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
_SWITCH: Final = {"on": True, "true": True, "off": False, "false": False}


@dataclass(frozen=True, slots=True)
class Address:
    """The address of a listener."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class Endpoint:
    """The address of a server. ``scheme`` and ``path`` are empty if the text has none.

    The path includes the query, which is not printed because it may hold a secret.
    """

    scheme: str
    authority: str
    path: str

    def __str__(self) -> str:
        path, asked, _ = self.path.partition("?")
        return f"{self.scheme}{'://' if self.scheme else ''}{self.authority}{path}{'?…' if asked else ''}"


@dataclass(frozen=True, slots=True)
class Daemon:
    """The address of a container engine: a URL, and for ``unix://`` the path of its socket."""

    url: str
    socket: Path | None = None

    def __str__(self) -> str:
        return self.url


def duration_s(shortest_s: float, longest_s: float) -> Callable[[str], float]:
    """A parser of ``500ms``, ``5s``, ``5m``, ``1h`` within bounds; the value is in seconds."""

    def parse(text: str) -> float:
        match = _DURATION.fullmatch(text.strip())
        if match is None:
            raise ValueError(text)
        seconds = float(match[1]) * _SECONDS[match[2]]
        if not shortest_s <= seconds <= longest_s:
            raise ValueError(text)
        return seconds

    return parse


def duration_text(seconds: float) -> str:
    """A duration in the largest unit that makes it a whole number."""
    for unit in ("h", "m", "s"):
        if seconds >= _SECONDS[unit] and seconds % _SECONDS[unit] == 0:
            return f"{seconds / _SECONDS[unit]:.0f}{unit}"
    milliseconds = round(seconds * 1e3, 6)
    return f"{milliseconds:.0f}ms" if milliseconds.is_integer() and seconds < 1 else f"{seconds:.12g}s"


def whole_number(smallest: int, largest: int) -> Callable[[str], int]:
    """A parser of decimal whole numbers within bounds."""

    def parse(text: str) -> int:
        if not re.fullmatch(r"[0-9]{1,19}", text.strip(), re.ASCII):
            raise ValueError(text)
        number = int(text)
        if not smallest <= number <= largest:
            raise ValueError(text)
        return number

    return parse


def choice(kinds: type[E]) -> Callable[[str], E]:
    """A parser of one of an enumeration's values."""

    def parse(text: str) -> E:
        return kinds(text.strip().lower())

    return parse


def one_of(words: Iterable[str]) -> str:
    """A list of words for a message: ``a, b or c``."""
    *first, last = words
    return f"{', '.join(first)} or {last}" if first else last


def absolute_path(text: str) -> Path:
    """An absolute path."""
    path = Path(text)
    if not text or "\0" in text or not path.is_absolute():
        raise ValueError(text)
    return path


def optional_file(text: str) -> Path | None:
    """The path of a file, absolute or relative to the working directory; an empty text is ``None``."""
    if "\0" in text or text.endswith("/"):
        raise ValueError(text)
    return Path(text) if text.strip() else None


def optional_directory(text: str) -> Path | None:
    """The path of a directory, absolute or relative to the working directory; an empty text is ``None``."""
    if "\0" in text:
        raise ValueError(text)
    return Path(text) if text.strip() else None


def socket_path(text: str) -> Path | None:
    """The path of a socket, alone or as ``unix:///path``; an empty text is ``None``."""
    text = text.strip()
    return absolute_path(text.removeprefix("unix://")) if text else None


def daemon(text: str) -> Daemon | None:
    """The address of a container engine: ``unix:///path``, or ``tcp://``, ``http://``, ``https://`` with a host.

    An empty text is ``None``. Docker's ``npipe://`` is for Windows, and ``ssh://`` would run another program.
    """
    text = text.strip()
    scheme, separator, rest = text.partition("://")
    if not text:
        return None
    if scheme == "unix" or not separator:
        socket = absolute_path(rest if separator else text)
        return Daemon(f"unix://{socket}", socket)
    if scheme not in ("tcp", "http", "https"):
        raise ValueError(text)
    found = endpoint(f"http://{rest}")
    if found is None or "?" in found.path:
        raise ValueError(text)
    return Daemon(f"{scheme}://{found.authority}{found.path.rstrip('/')}")


def address(text: str) -> Address:
    """``host:port``; an IPv6 host in brackets."""
    host, separator, port = text.strip().rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        raise ValueError(text)
    if not separator or not host or any(character.isspace() for character in host):
        raise ValueError(text)
    return Address(host, whole_number(0, 65535)(port))


def endpoint(text: str) -> Endpoint | None:
    """``http(s)://host:port/path`` or ``host:port``; an empty text is ``None``. A path of ``/.`` is the root."""
    text = text.strip()
    if not text:
        return None
    parts = urlsplit(text if "://" in text else f"//{text}")
    if any(character.isspace() or not character.isprintable() for character in text):
        raise ValueError(text)
    if parts.scheme not in ("", "http", "https") or not parts.hostname or "@" in parts.netloc or parts.fragment:
        raise ValueError(text)
    if parts.port is None and not parts.scheme:  # a word alone is not an address; .port raises for a bad port
        raise ValueError(text)
    path = "" if parts.path == "/" else "/" if parts.path == "/." else parts.path
    path = f"{path or '/'}?{parts.query}" if parts.query else path
    return Endpoint(parts.scheme, parts.netloc, path)


def key_values(text: str) -> dict[str, str]:
    """``key=value`` pairs separated by commas, percent-encoded, as OpenTelemetry writes attributes."""
    found: dict[str, str] = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        key, separator, value = (_decoded(piece.strip()) for piece in part.partition("="))
        if not separator or not key or key in found:
            raise ValueError(text)
        found[key] = value
    return found


def key_values_text(pairs: Mapping[str, str]) -> str:
    """``key=value`` pairs separated by commas, percent-encoded where needed."""
    return ",".join(f"{_encoded(key)}={_encoded(value)}" for key, value in pairs.items())


def headers(text: str) -> dict[str, str]:
    """``key=value`` pairs of HTTP headers: names in lower case, values in printable ASCII."""
    found = {key.lower(): value for key, value in key_values(text).items()}
    for key, value in found.items():
        if not re.fullmatch(r"[-!#$%&'*+.^_`|~0-9a-z]+", key) or not re.fullmatch(r"[ -~]*", value):
            raise ValueError(text)
    return found


def switch(text: str) -> bool:
    """``on``, ``off``, ``true`` or ``false``."""
    word = text.strip().lower()
    if word not in _SWITCH:
        raise ValueError(text)
    return _SWITCH[word]


def switch_text(is_on: bool) -> str:  # noqa: FBT001 - the text of a value, as every other here
    """``on`` or ``off``."""
    return "on" if is_on else "off"


def optional_switch(text: str) -> bool | None:
    """On or off; an empty text is ``None``."""
    return switch(text) if text.strip() else None


def price(text: str) -> float | None:
    """An amount of money of 0 or more; an empty text is ``None``."""
    return _amount(text) if text.strip() else None


def prices(text: str) -> dict[str, float]:
    """``2.5`` for every GPU, ``A100=2.5, H100=4`` by words of the GPU's name, or both."""
    found: dict[str, float] = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        word, separator, amount = part.rpartition("=")
        word = word.strip()
        if (separator and not word) or word in found:
            raise ValueError(text)
        found[word] = _amount(amount)
    return found


def price_text(amount: float) -> str:
    """An amount of money without zeros at its end."""
    text = repr(amount)
    return f"{amount:.12f}".rstrip("0") if "e" in text else text.removesuffix(".0")


def prices_text(found: Mapping[str, float]) -> str:
    """Amounts by words of the GPU's name."""
    return ",".join(f"{word}{'=' if word else ''}{price_text(amount)}" for word, amount in found.items())


def currency(text: str) -> str:
    """An ISO 4217 currency code."""
    if not re.fullmatch(r"[A-Z]{3}", text.strip()):
        raise ValueError(text)
    return text.strip()


def _decoded(text: str) -> str:
    """Percent-decode; UnicodeDecodeError, which is a ValueError, if the result is not UTF-8."""
    if re.search(r"%(?![0-9a-fA-F]{2})", text):
        raise ValueError(text)
    return unquote_to_bytes(text).decode()


def _encoded(text: str) -> str:
    return "".join(quote(each, safe="") if each in "%,=" or each.isspace() else each for each in text)


def _amount(text: str) -> float:
    if not re.fullmatch(r"[0-9]{1,12}(?:\.[0-9]{1,12})?", text.strip(), re.ASCII):
        raise ValueError(text)
    return float(text)


# ---------------------------------------------------------------------------- labels, and texts without secrets

_LONGEST_LABEL_KEY: Final = 253 + 1 + 63
"""Kubernetes: a prefix, a slash, a name. Docker has no limit."""


def words_text(words: Iterable[object]) -> str:
    """Words separated by commas."""
    return ",".join(map(str, words))


def label_keys(text: str) -> tuple[str, ...]:
    """Label keys separated by commas, each once. UsageError for two that are the same label in Prometheus."""
    keys = tuple(dict.fromkeys(filter(None, (part.strip() for part in text.split(",")))))
    if not keys:
        return ()
    # Imported here: it loads the catalogue of metrics, which most commands do not need before they start.
    from otel_gpu.metrics.names import label_name  # noqa: PLC0415

    by_label: dict[str, str] = {}
    for key in keys:
        if len(key) > _LONGEST_LABEL_KEY or not key.isprintable() or " " in key:
            raise ValueError(text)
        other = by_label.setdefault(label_name(key), key)
        if other != key:
            raise UsageError(f"{other!r} and {key!r} are the same label in Prometheus; use one of them")
    return keys


_HOST_NAME: Final = re.compile(r"\*|[a-z0-9_]([a-z0-9_.-]*[a-z0-9_])?\.?", re.IGNORECASE | re.ASCII)


def host_names(text: str) -> tuple[str, ...]:
    """Host names and IP addresses without ports, separated by commas, each once; ``*`` for any."""
    names = tuple(dict.fromkeys(filter(None, (part.strip() for part in text.split(",")))))
    for name in names:
        if not _HOST_NAME.fullmatch(name):
            ipaddress.ip_address(name.removeprefix("[").removesuffix("]"))
    return tuple(name.removeprefix("[").removesuffix("]") for name in names)


def keys_only(text: str) -> str:
    """``key=value`` pairs without the values, which are secret."""
    return ",".join(f"{part.partition('=')[0].strip()}=…" if "=" in part else "…" for part in text.split(",") if part)


def without_secrets(text: str) -> str:
    """A URL without user name, password and query."""
    return re.sub(r"\?.*", "?…", re.sub(r"[^/]*@", "…@", text))


# ---------------------------------------------------------------------------- state directory and control socket

_SOCKET_NAME: Final = "control.sock"
_DEFAULT_SOCKET: Final = Path("/run/otel-gpu") / _SOCKET_NAME
_MAX_SOCKET_BYTES: Final = 107  # unix(7): sun_path has 108 bytes, the last of which is zero


@dataclass(frozen=True, slots=True)
class StateDir:
    """The setting ``state-dir``: a directory, none (neither), or ``auto``: the first suitable directory.

    With ``auto``, a host without a suitable directory is not worth a warning.
    """

    path: Path | None = None
    auto: bool = False

    def __str__(self) -> str:
        return "auto" if self.auto else str(self.path or "none")

    def place(self, environment: Mapping[str, str]) -> Path | None:
        """The directory that systemd created for the unit, else the user's directory for state; ``None`` for none.

        systemd.exec(5): STATE_DIRECTORY has directories separated by colons, in the order of the unit. With
        DynamicUser= it is a link to a directory below /var/lib/private, which is followed. The XDG Base Directory
        Specification ignores relative paths.
        """
        if not self.auto:
            return self.path
        of_unit = environment.get("STATE_DIRECTORY", "").split(":")[0]
        of_user, home = environment.get("XDG_STATE_HOME", ""), environment.get("HOME", "")
        if of_unit.startswith("/"):
            return Path(of_unit).resolve()
        if of_user.startswith("/"):
            return Path(of_user) / "otel-gpu"
        return Path(home) / ".local/state/otel-gpu" if home.startswith("/") else None


def state_dir(text: str) -> StateDir:
    """Parse ``auto``, ``none`` or ``off``, or an absolute path. ValueError for anything else."""
    text = text.strip()
    if text in ("auto", "none", "off"):
        return StateDir(auto=text == "auto")
    return StateDir(absolute_path(text))


@dataclass(frozen=True, slots=True)
class ControlSocket:
    """The setting ``control-socket``: a path, ``none`` (neither), or ``auto``: the first suitable path."""

    path: Path | None = None
    auto: bool = False

    def __str__(self) -> str:
        return "auto" if self.auto else str(self.path or "none")

    def agent_path(self, environment: Mapping[str, str]) -> Path | None:
        """The path at which the agent listens; ``None`` for none."""
        path = next(iter(self.client_paths(environment)), None)
        # With DynamicUser= the runtime directory is a symbolic link to /run/private (systemd.exec(5)). This link
        # belongs to systemd and is followed. No other link is.
        if path is not None and self.auto and environment.get("RUNTIME_DIRECTORY", "").startswith("/"):
            return path.parent.resolve() / path.name
        return path

    def client_paths(self, environment: Mapping[str, str]) -> tuple[Path, ...]:
        """The paths at which an agent may listen, likeliest first. A client's environment is not the agent's."""
        if not self.auto:
            return () if self.path is None else (self.path,)
        paths = []
        # systemd.exec(5): directories separated by colons, in the order of the unit file.
        runtime_directory = environment.get("RUNTIME_DIRECTORY", "").split(":")[0]
        session_directory = environment.get("XDG_RUNTIME_DIR", "")
        if runtime_directory.startswith("/"):
            paths.append(Path(runtime_directory) / _SOCKET_NAME)
        if session_directory.startswith("/"):
            paths.append(Path(session_directory) / "otel-gpu" / _SOCKET_NAME)
        paths.append(_DEFAULT_SOCKET)
        return tuple(path for path in dict.fromkeys(paths) if len(os.fsencode(path)) <= _MAX_SOCKET_BYTES)


def control_socket(text: str) -> ControlSocket:
    """Parse ``auto``, ``none`` or an absolute path. ValueError for anything else."""
    text = text.strip()
    if text in ("auto", "none"):
        return ControlSocket(auto=text == "auto")
    path = Path(text)
    if "\0" in text or text.endswith("/") or not path.is_absolute() or len(os.fsencode(path)) > _MAX_SOCKET_BYTES:
        raise ValueError(text)
    return ControlSocket(path)
