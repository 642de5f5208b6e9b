"""Chromium without a window, over its debugging pipe: for pictures of pages, and for tests."""

import base64
import fcntl
import json
import os
import select
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

CHROMIUM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--no-first-run", "--disable-dev-shm-usage",
    "--remote-debugging-pipe",
)  # fmt: skip
# The browser reads commands from descriptor 3 and answers on 4, which subprocess cannot arrange.
LAUNCH = """
import os, sys
os.dup2(int(sys.argv[1]), 3), os.dup2(int(sys.argv[2]), 4)
os.execv(sys.argv[3], sys.argv[3:])
"""
PATIENCE = 180.0
"""Seconds to wait for an answer: it comes in a moment, unless the machine is very busy."""
COMPLAINTS = (
    "Log.entryAdded", "Runtime.consoleAPICalled", "Runtime.exceptionThrown",
    "Page.javascriptDialogOpening",
)  # fmt: skip
"""What a browser says of a page, or a page to its reader, when something is wrong with it."""
PHONE = 500
"""Windows below this width are taken for a phone's."""


class Browser:
    """Chromium with one page open."""

    def __init__(self, folder: Path) -> None:
        self.downloads = folder / "downloads"
        commands, self._commands = _pipe()
        self._answers, answers = _pipe()
        self._process = subprocess.Popen(
            [sys.executable, "-c", LAUNCH, str(commands), str(answers), str(CHROMIUM), *FLAGS,
             f"--user-data-dir={folder / 'profile'}", "about:blank"],
            pass_fds=(commands, answers), stderr=subprocess.DEVNULL,
        )  # fmt: skip
        os.close(commands)
        os.close(answers)
        self._session, self._count, self._unread = None, 0, b""
        self.requests: list[str] = []
        self.complaints: list[str] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        attached = self.call("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Network", "Runtime", "Log", "Page"):
            self.call(f"{domain}.enable")
        allowed = {"behavior": "allow", "downloadPath": str(self.downloads)}
        self.call("Browser.setDownloadBehavior", **allowed)
        # They would take their width from the page's.
        self.call("Emulation.setScrollbarsHidden", hidden=True)

    def open(self, path: Path) -> None:
        """Show a page and wait until its figures are drawn."""
        self.call("Page.navigate", url=path.as_uri())
        self.wait("document.documentElement?.dataset.drawn")

    def resize(self, width: int, height: int = 800) -> None:
        """Make the window that wide: a phone's, or a screen's."""
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < PHONE}
        self.call("Emulation.setDeviceMetricsOverride", **size)
        self.settle()

    def prefer(self, scheme: str) -> None:
        """Ask for light or dark pages."""
        feature = {"name": "prefers-color-scheme", "value": scheme}
        self.call("Emulation.setEmulatedMedia", features=[feature])
        self.settle()

    def settle(self) -> None:
        """Wait until no figure has changed its size for a while: Plotly follows a moment later."""
        sizes = (
            "JSON.stringify([...document.querySelectorAll('.main-svg')].map(s => s.clientWidth))"
        )
        before = None
        while (now := self.run(sizes)) != before:
            before = now
            # By the page's clock: what it meant to do before that is then done.
            self.run("new Promise(done => setTimeout(done, 400))")

    def picture(self, height: int | None = None) -> bytes:
        """Return the page as a PNG, or its top."""
        size = self.call("Page.getLayoutMetrics")["cssContentSize"]
        clip = {"x": 0, "y": 0, "width": size["width"], "height": height or size["height"]}
        taken = self.call(
            "Page.captureScreenshot", captureBeyondViewport=True, clip=clip | {"scale": 1}
        )
        return base64.b64decode(taken["data"])

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        """Send a command and return its answer."""
        self._count += 1
        command = {"id": self._count, "method": method, "params": params}
        if self._session:
            command["sessionId"] = self._session
        os.write(self._commands, json.dumps(command).encode() + b"\0")
        while True:
            message = self._next()
            if message.get("method") == "Network.requestWillBeSent":
                self.requests.append(message["params"]["request"]["url"])
            if message.get("method") in COMPLAINTS:
                self.complaints.append(json.dumps(message))
            if message.get("id") == self._count:
                assert "error" not in message, message
                return message["result"]

    def run(self, script: str) -> Any:
        """Return what a JavaScript expression comes to."""
        answer = self.call(
            "Runtime.evaluate",
            expression=script,
            returnByValue=True,
            awaitPromise=True,
        )
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def wait(self, script: str) -> Any:
        """Wait until an expression is true."""
        over = time.monotonic() + PATIENCE
        while not (value := self.run(script)):
            assert time.monotonic() < over, f"waited in vain for {script}"
            time.sleep(0.02)
        return value

    def close(self) -> None:
        """End the browser, which it takes the end of its commands for."""
        os.close(self._commands)
        self._process.wait(PATIENCE)
        os.close(self._answers)

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self._unread:
            assert select.select([self._answers], [], [], PATIENCE)[0], "the browser is silent"
            read = os.read(self._answers, 1 << 20)
            assert read, "the browser has ended"
            self._unread += read
        message, _, self._unread = self._unread.partition(b"\0")
        return json.loads(message)


def _pipe() -> tuple[int, int]:
    """Return a pipe's ends, clear of the descriptors that the browser wants."""
    ends = os.pipe()
    high = tuple(fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 10) for end in ends)
    for end in ends:
        os.close(end)
    return high[0], high[1]
