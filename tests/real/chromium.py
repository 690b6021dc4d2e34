"""Debian's Chromium, headless, controlled by the DevTools protocol over a pair of pipes."""

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

from tests.real.programs import require_program

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
    """A browser that runs one command at a time and keeps the events that it sends. Messages end with a NUL."""

    def __init__(self, profile: Path) -> None:
        program = require_program("chromium", "apt install chromium")
        self.events: list[Message] = []
        self._number = 0
        self._rest = b""
        read_end, self._to = os.pipe()
        self._from, write_end = os.pipe()
        # Well above 3 and 4, so that the shell below can redirect both without a clash.
        child_in, child_out = (fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 10) for end in (read_end, write_end))
        words = [str(program), *_FLAGS, f"--user-data-dir={profile}", "about:blank"]
        # The protocol uses descriptors 3 and 4: a shell redirects them to the pipes and executes the browser.
        redirect = f'exec 3<&{child_in} 4>&{child_out} {child_in}<&- {child_out}>&-; exec "$@"'
        try:
            self.process = subprocess.Popen(
                ["/bin/bash", "-c", redirect, "chromium", *words],
                pass_fds=(child_in, child_out),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
        finally:
            for end in (read_end, write_end, child_in, child_out):
                os.close(end)

    def command(self, method: str, session: str | None = None, **parameters: Any) -> Message:
        """Send a command and return its result."""
        self._number += 1
        message: Message = {"id": self._number, "method": method, "params": parameters}
        if session is not None:
            message["sessionId"] = session
        os.write(self._to, json.dumps(message).encode() + b"\0")
        deadline_s = time.monotonic() + PATIENCE_S
        while True:
            answer = self._read(deadline_s)
            if answer is None:
                raise AssertionError(f"no answer to {method}")
            if answer.get("id") == self._number:
                assert "error" not in answer, f"{method}: {answer['error']}"
                result: Message = answer["result"]
                return result
            self.events.append(answer)

    def listen(self) -> None:
        """Read the events sent so far."""
        while (message := self._read(time.monotonic())) is not None:
            self.events.append(message)

    def _read(self, deadline_s: float) -> Message | None:
        """The next message; ``None`` if none arrives before the deadline."""
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
        """End the browser and its processes."""
        os.close(self._to)  # the browser exits when its pipe is closed
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, 9)
            self.process.wait()
        os.close(self._from)


class Tab:
    """A page, its console and its requests."""

    def __init__(self, browser: Browser, *, scripts: bool = True) -> None:
        self._browser = browser
        context = browser.command("Target.createBrowserContext")["browserContextId"]  # with separate storage
        target = browser.command("Target.createTarget", url="about:blank", browserContextId=context)["targetId"]
        self._session = browser.command("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.command(f"{domain}.enable")
        self.command("Emulation.setScriptExecutionDisabled", value=not scripts)
        self.command("Emulation.setTimezoneOverride", timezoneId="UTC")
        self.command("Emulation.setLocaleOverride", locale="en-GB")

    def command(self, method: str, **parameters: Any) -> Message:
        """Send a command for this page."""
        return self._browser.command(method, self._session, **parameters)

    def open(self, url: str) -> None:
        """Navigate to a URL."""
        self.command("Page.navigate", url=url)

    def emulate(self, *, width: int, dark: bool, height: int = 900) -> None:
        """Emulate a screen of this size, and the system's colour scheme."""
        self.command(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 500
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.command("Emulation.setEmulatedMedia", features=[scheme])

    def value(self, expression: str) -> Any:
        """The value of a JavaScript expression, as JSON."""
        result = self.command("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in result, result["exceptionDetails"]
        return result["result"].get("value")

    def until(self, expression: str) -> Any:
        """Wait until an expression is true, and return its value."""
        deadline_s = time.monotonic() + PATIENCE_S
        while not (found := self.value(expression)):
            assert time.monotonic() < deadline_s, f"timeout: {expression}; {self.console_errors}"
            time.sleep(0.05)
        return found

    def press(self, key: str, code: int, *, text: str | None = None) -> None:
        """Press and release a key."""
        keys: Message = {"key": key, "windowsVirtualKeyCode": code}
        self.command("Input.dispatchKeyEvent", type="keyDown", **keys, **({} if text is None else {"text": text}))
        self.command("Input.dispatchKeyEvent", type="keyUp", **keys)

    def insert_text(self, text: str) -> None:
        """Insert text into the focused element."""
        self.command("Input.insertText", text=text)

    def screenshot(self, path: Path, scale: float = 1.0) -> bytes:
        """Write the whole page as PNG to a file, and return it."""
        size = self.command("Page.getLayoutMetrics")["cssContentSize"]
        clip = {"x": 0, "y": 0, "width": size["width"], "height": size["height"], "scale": scale}
        captured = self.command("Page.captureScreenshot", captureBeyondViewport=True, clip=clip)
        content = base64.b64decode(captured["data"])
        path.write_bytes(content)
        return content

    @property
    def console_errors(self) -> list[str]:
        """Errors and warnings in the console, which include policy violations, and uncaught exceptions."""
        found: list[str] = []
        for event in self._events():
            parameters = event["params"]
            match event["method"]:
                case "Log.entryAdded" if parameters["entry"]["level"] in ("error", "warning"):
                    found.append(f"{parameters['entry']['text']} {parameters['entry'].get('url', '')}")
                case "Runtime.consoleAPICalled" if parameters["type"] in ("error", "warning", "assert"):
                    found.append(str(parameters["args"]))
                case "Runtime.exceptionThrown":
                    found.append(str(parameters["exceptionDetails"]))
        return found

    @property
    def requests(self) -> list[str]:
        """The URLs of all its requests."""
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
    """Start a browser with a temporary profile."""
    with tempfile.TemporaryDirectory(prefix="otel-gpu-chromium-", ignore_cleanup_errors=True) as profile:
        browser = Browser(Path(profile))
        try:
            yield browser
        finally:
            browser.close()
