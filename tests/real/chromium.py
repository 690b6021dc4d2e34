"""Debian's Chromium without a window, driven over its DevTools protocol through a pair of pipes."""

from __future__ import annotations

import base64
import fcntl
import json
import os
import select
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from tests.real.parts import needed_program

PATIENCE_S: Final = 60.0
_FLAGS: Final = (
    "--headless",
    "--no-sandbox",  # tests run as root
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--hide-scrollbars",
    "--remote-debugging-pipe",
)
Message = dict[str, Any]


class Browser:
    """A browser that answers one command at a time, and keeps what it says unasked. Messages end with a NUL."""

    def __init__(self, profile: Path) -> None:
        program = needed_program("chromium", "apt install chromium")
        self.events: list[Message] = []
        self._number = 0
        self._rest = b""
        read_end, self._to = os.pipe()
        self._from, write_end = os.pipe()
        # Well above 3 and 4, which are to become these.
        its_in, its_out = (fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 10) for end in (read_end, write_end))
        words = [str(program), *_FLAGS, f"--user-data-dir={profile}", "about:blank"]
        # The protocol is spoken on descriptors 3 and 4; a shell puts the pipes there and becomes the browser.
        into_place = f'exec 3<&{its_in} 4>&{its_out} {its_in}<&- {its_out}>&-; exec "$@"'
        try:
            self.process = subprocess.Popen(
                ["/bin/bash", "-c", into_place, "chromium", *words],
                pass_fds=(its_in, its_out),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
        finally:
            for end in (read_end, write_end, its_in, its_out):
                os.close(end)

    def command(self, method: str, session: str | None = None, **parameters: Any) -> Message:
        """Do something; what came of it."""
        self._number += 1
        message: Message = {"id": self._number, "method": method, "params": parameters}
        if session is not None:
            message["sessionId"] = session
        os.write(self._to, json.dumps(message).encode() + b"\0")
        deadline_s = time.monotonic() + PATIENCE_S
        while True:
            answer = self._read(deadline_s)
            if answer is None:
                raise AssertionError(f"{method} had no answer")
            if answer.get("id") == self._number:
                assert "error" not in answer, f"{method}: {answer['error']}"
                result: Message = answer["result"]
                return result
            self.events.append(answer)

    def listen(self) -> None:
        """Take in what was said unasked until now."""
        while (message := self._read(time.monotonic())) is not None:
            self.events.append(message)

    def _read(self, deadline_s: float) -> Message | None:
        """The next message, if one comes in time."""
        while b"\0" not in self._rest:
            ready, _, _ = select.select([self._from], [], [], max(0.0, deadline_s - time.monotonic()))
            if not ready:
                return None
            chunk = os.read(self._from, 1 << 16)
            assert chunk, "the browser has ended"
            self._rest += chunk
        text, _, self._rest = self._rest.partition(b"\0")
        message: Message = json.loads(text)
        return message

    def close(self) -> None:
        """End it and all it has started."""
        os.close(self._to)  # it ends when its pipe does
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, 9)
            self.process.wait()
        os.close(self._from)


class Tab:
    """One page, what it logged, and what it asked for."""

    def __init__(self, browser: Browser, *, scripts: bool = True) -> None:
        self._browser = browser
        context = browser.command("Target.createBrowserContext")["browserContextId"]  # its storage is its own
        target = browser.command("Target.createTarget", url="about:blank", browserContextId=context)["targetId"]
        self._session = browser.command("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.command(f"{domain}.enable")
        self.command("Emulation.setScriptExecutionDisabled", value=not scripts)
        self.command("Emulation.setTimezoneOverride", timezoneId="UTC")
        self.command("Emulation.setLocaleOverride", locale="en-GB")

    def command(self, method: str, **parameters: Any) -> Message:
        """Do something in this page."""
        return self._browser.command(method, self._session, **parameters)

    def open(self, url: str) -> None:
        """Go there."""
        self.command("Page.navigate", url=url)

    def look(self, *, width: int, dark: bool, height: int = 900) -> None:
        """As if on a screen of this width, in a system that is dark or light."""
        self.command(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 500
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.command("Emulation.setEmulatedMedia", features=[scheme])

    def value(self, expression: str) -> Any:
        """What a JavaScript expression comes to, as JSON has it."""
        result = self.command("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in result, result["exceptionDetails"]
        return result["result"].get("value")

    def until(self, expression: str) -> Any:
        """Wait until it comes to something true."""
        deadline_s = time.monotonic() + PATIENCE_S
        while not (found := self.value(expression)):
            assert time.monotonic() < deadline_s, f"waited in vain for {expression}; {self.complaints}"
            time.sleep(0.05)
        return found

    def press(self, key: str, code: int, *, text: str | None = None) -> None:
        """A key, down and up."""
        keys: Message = {"key": key, "windowsVirtualKeyCode": code}
        self.command("Input.dispatchKeyEvent", type="keyDown", **keys, **({} if text is None else {"text": text}))
        self.command("Input.dispatchKeyEvent", type="keyUp", **keys)

    def write(self, text: str) -> None:
        """Text into what has the focus."""
        self.command("Input.insertText", text=text)

    def picture(self, path: Path, scale: float = 1.0) -> bytes:
        """The whole page as it looks, as PNG, also in this file."""
        size = self.command("Page.getLayoutMetrics")["cssContentSize"]
        clip = {"x": 0, "y": 0, "width": size["width"], "height": size["height"], "scale": scale}
        shot = self.command("Page.captureScreenshot", captureBeyondViewport=True, clip=clip)
        content = base64.b64decode(shot["data"])
        path.write_bytes(content)
        return content

    @property
    def complaints(self) -> list[str]:
        """Errors and warnings of the console, violations of the policy included, and what was thrown."""
        found: list[str] = []
        for event in self._events():
            what = event["params"]
            match event["method"]:
                case "Log.entryAdded" if what["entry"]["level"] in ("error", "warning"):
                    found.append(f"{what['entry']['text']} {what['entry'].get('url', '')}")
                case "Runtime.consoleAPICalled" if what["type"] in ("error", "warning", "assert"):
                    found.append(str(what["args"]))
                case "Runtime.exceptionThrown":
                    found.append(str(what["exceptionDetails"]))
        return found

    @property
    def requests(self) -> list[str]:
        """Every address it asked for."""
        return [
            event["params"]["request"]["url"]
            for event in self._events()
            if event["method"] == "Network.requestWillBeSent"
        ]

    def _events(self) -> list[Message]:
        self._browser.listen()
        return [event for event in self._browser.events if event.get("sessionId") == self._session]


@contextmanager
def chromium() -> Iterator[Browser]:
    """A browser with a profile of its own, which is gone afterwards."""
    with tempfile.TemporaryDirectory(prefix="otel-gpu-chromium-", ignore_cleanup_errors=True) as profile:
        browser = Browser(Path(profile))
        try:
            yield browser
        finally:
            browser.close()
