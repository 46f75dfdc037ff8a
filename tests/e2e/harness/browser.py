"""A real browser (Debian's chromium, headless), controlled with the DevTools protocol over a pair of pipes."""

from __future__ import annotations

import base64
import fcntl
import json
import os
import select
import shutil
import subprocess
import tempfile
import time
from typing import Any

SECONDS = 60.0
KEYS = {"Tab": 9, "Enter": 13}


def path() -> str | None:
    return shutil.which("chromium") or shutil.which("chromium-browser")


class Browser:
    """One browser process; its tabs are `Page`s."""

    def __init__(self) -> None:
        self.folder = tempfile.mkdtemp(prefix="weir-e2e-chromium-")
        theirs_in, self.to = os.pipe()
        self.out, theirs_out = os.pipe()
        command = [
            path(),
            "--headless=new",
            "--remote-debugging-pipe",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-dev-shm-usage",
            "--disable-background-networking",
            "--disable-component-update",
            "--disable-sync",
            "--no-first-run",
            "--no-default-browser-check",
            f"--user-data-dir={self.folder}",
            "about:blank",
        ]
        # The protocol uses descriptors 3 and 4, so this process's own pipes are moved out of the way first.
        high = [fcntl.fcntl(descriptor, fcntl.F_DUPFD, 10) for descriptor in (theirs_in, theirs_out)]
        script = f'exec 3<&{high[0]} 4>&{high[1]}; exec "$@"'
        self.process = subprocess.Popen(
            ["bash", "-c", script, "bash", *command],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            pass_fds=high,
            process_group=0,
            env={**os.environ, "HOME": self.folder},
        )
        for descriptor in (theirs_in, theirs_out, *high):
            os.close(descriptor)
        self.received = b""
        self.number = 0
        self.events: list[dict] = []

    def call(self, method: str, session: str | None = None, **parameters: Any) -> dict:
        """Sends a command to the browser and returns its result. Events that arrive meanwhile are kept."""
        self.number += 1
        message = {"id": self.number, "method": method, "params": parameters}
        if session:
            message["sessionId"] = session
        os.write(self.to, json.dumps(message).encode() + b"\0")
        deadline = time.monotonic() + SECONDS
        while True:
            answer = self.read(deadline)
            assert answer is not None, f"no answer to {method}"
            if answer.get("id") == self.number:
                assert "error" not in answer, f"{method}: {answer['error']}"
                return answer["result"]
            self.events.append(answer)

    def read(self, deadline: float) -> dict | None:
        while b"\0" not in self.received:
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([self.out], [], [], left)[0]:
                return None
            chunk = os.read(self.out, 1 << 16)
            assert chunk, "the browser is gone"
            self.received += chunk
        message, _, self.received = self.received.partition(b"\0")
        return json.loads(message)

    def page(self, url: str) -> Page:
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        return Page(self, session, url)

    def close(self) -> None:
        os.close(self.to)
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, 9)
            self.process.wait()
        os.close(self.out)
        shutil.rmtree(self.folder, ignore_errors=True)


class Page:
    """A page (tab) of the browser, with the events that it has caused."""

    def __init__(self, browser: Browser, session: str, url: str) -> None:
        self.browser, self.session = browser, session
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(f"{domain}.enable")
        self.call("Page.navigate", url=url)

    def call(self, method: str, **parameters: Any) -> dict:
        return self.browser.call(method, self.session, **parameters)

    def run(self, expression: str) -> Any:
        """Returns the value of a JavaScript expression in the page."""
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def look(self, width: int, height: int = 900, scheme: str = "light") -> None:
        """Sets the window's size and the preferred colour scheme."""
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])

    def press(self, key: str) -> None:
        for kind in ("keyDown", "keyUp"):
            letter = {"text": "\r"} if key == "Enter" and kind == "keyDown" else {}
            self.call("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=KEYS[key], **letter)

    def picture(self) -> bytes:
        return base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"])

    def happened(self, method: str) -> list[dict]:
        """Returns the parameters of all events of this kind so far."""
        self.run("0")
        mine = [event for event in self.browser.events if event.get("sessionId") == self.session]
        return [event["params"] for event in mine if event.get("method") == method]

    def requests(self) -> list[str]:
        return [event["request"]["url"] for event in self.happened("Network.requestWillBeSent")]

    def complaints(self) -> list[Any]:
        """Returns errors in the console: exceptions, violated policies, failed requests."""
        entries = [event["entry"] for event in self.happened("Log.entryAdded")]
        said = [event for event in self.happened("Runtime.consoleAPICalled") if event["type"] in ("error", "warning")]
        return [entry for entry in entries if entry["level"] == "error"] + said + self.happened("Runtime.exceptionThrown")
