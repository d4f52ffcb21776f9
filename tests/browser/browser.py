"""Chromium without a window, driven over its DevTools pipe: JSON and a NUL on descriptors 3 and 4."""

from __future__ import annotations

import base64
import itertools
import json
import os
import select
import shutil
import subprocess
import tempfile
import time
from pathlib import Path

KEYS = {"Enter": 13, "Escape": 27, "ArrowLeft": 37, "ArrowUp": 38, "ArrowRight": 39, "ArrowDown": 40}  # fmt: skip

READY = "document.readyState === 'complete' && document.body.dataset.ready === 'yes'"


def find_chromium() -> str:
    if path := shutil.which("chromium"):
        return path
    raise FileNotFoundError("there is no chromium; Debian: apt-get install chromium")


class Navigated(RuntimeError):
    """The page went away before it could answer."""


class Browser:
    """One process with an empty profile. Everything a page says or asks for is kept."""

    def __init__(self, language: str = "en-US"):
        self.profile = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        to_read, self.write_to = os.pipe()
        self.read_from, to_write = os.pipe()
        command = [
            find_chromium(), "--headless=new", "--no-sandbox", "--disable-gpu", "--no-first-run",
            "--disable-dev-shm-usage", "--remote-debugging-pipe", f"--lang={language}",
            f"--accept-lang={language}", f"--user-data-dir={self.profile.name}",
        ]  # fmt: skip

        def as_3_and_4():
            # Both may be 3 or 4 already: out of the way first.
            read, write = os.dup2(to_read, 100), os.dup2(to_write, 101)
            os.dup2(read, 3), os.dup2(write, 4)

        self.process = subprocess.Popen(
            command, preexec_fn=as_3_and_4, close_fds=False, stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        os.close(to_read)
        os.close(to_write)
        self.numbers = itertools.count(1)
        self.unread = b""
        self.events = []

    def close(self):
        self.process.kill()
        self.process.wait()
        os.close(self.write_to)
        os.close(self.read_from)
        self.profile.cleanup()

    def _next(self, timeout: float) -> dict | None:
        end = time.monotonic() + timeout
        while b"\0" not in self.unread:
            left = end - time.monotonic()
            if left <= 0 or not select.select([self.read_from], [], [], left)[0]:
                return None
            part = os.read(self.read_from, 1 << 20)
            if not part:
                raise RuntimeError("chromium has ended")
            self.unread += part
        message, _, self.unread = self.unread.partition(b"\0")
        return json.loads(message)

    def call(self, method: str, session: str | None = None, **parameters):
        number = next(self.numbers)
        message = {"id": number, "method": method, "params": parameters}
        if session:
            message["sessionId"] = session
        os.write(self.write_to, json.dumps(message).encode() + b"\0")
        while (answer := self._next(60)) is not None:
            if answer.get("id") == number:
                if "error" in answer:
                    kind = Navigated if "navigated" in answer["error"]["message"] else RuntimeError
                    raise kind(f"{method}: {answer['error']}")
                return answer["result"]
            self.events.append(answer)
        raise TimeoutError(method)

    def open(self, path: Path | str, **options) -> Page:
        return Page(self, path, **options)


class Page:
    """A file of this machine, or an address, in a tab of its own, loaded."""

    def __init__(
        self,
        browser: Browser,
        path: Path | str,
        dark=False,
        language=None,
        size=(1280, 900),
        frames=False,
        ready=READY,
    ):
        target = browser.call("Target.createTarget", url="about:blank")["targetId"]
        attached = browser.call("Target.attachToTarget", targetId=target, flatten=True)
        self._attach(browser, attached["sessionId"])
        if frames:  # which have processes of their own
            self.call("Target.setAutoAttach", autoAttach=True, waitForDebuggerOnStart=True, flatten=True)  # fmt: skip
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])
        width, height = size
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=False,
        )
        if language:
            agent = self.evaluate("navigator.userAgent")
            self.call("Emulation.setUserAgentOverride", userAgent=agent, acceptLanguage=language)
        self.url = path if isinstance(path, str) else path.resolve().as_uri()
        self.call("Page.navigate", url=self.url)
        self.wait(ready)

    def _attach(self, browser: Browser, session: str):
        self.browser, self.session = browser, session
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(f"{domain}.enable")

    def frame(self) -> Page:
        """The one iframe of a page that was opened with `frames`."""
        end = time.monotonic() + 60
        while not (found := self._of("Target.attachedToTarget")):
            assert time.monotonic() < end, "no frame"
            self.evaluate("0")
        (one,) = found
        frame = Page.__new__(Page)
        frame.url = "about:srcdoc"
        frame._attach(self.browser, one["sessionId"])
        frame.call("Runtime.runIfWaitingForDebugger")
        return frame

    def call(self, method: str, **parameters):
        return self.browser.call(method, self.session, **parameters)

    def evaluate(self, expression: str):
        answer = self.call(
            "Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True
        )
        if "exceptionDetails" in answer:
            raise RuntimeError(json.dumps(answer["exceptionDetails"]))
        return answer["result"].get("value")

    def wait(self, condition: str, timeout: float = 60):
        end = time.monotonic() + timeout
        while not self._holds(condition):
            if time.monotonic() > end:
                raise TimeoutError(f"{condition}; {self.said()}")
            time.sleep(0.02)

    def _holds(self, condition: str) -> bool:
        try:
            return bool(self.evaluate(condition))
        except Navigated:  # a click or a reload takes the page away while it is asked
            return False

    def text(self, selector: str = "body") -> str:
        return self.evaluate(f"document.querySelector({json.dumps(selector)}).innerText")

    def count(self, selector: str) -> int:
        return self.evaluate(f"document.querySelectorAll({json.dumps(selector)}).length")

    def _of(self, kind: str) -> list[dict]:
        ours = [one for one in self.browser.events if one.get("sessionId") == self.session]
        return [one["params"] for one in ours if one["method"] == kind]

    def said(self) -> list:
        """What stands in the console, exceptions and what the browser itself complains of included."""
        return (
            self._of("Runtime.exceptionThrown")
            + self._of("Runtime.consoleAPICalled")
            + [one for one in self._of("Log.entryAdded") if one["entry"]["level"] != "verbose"]
        )

    def requested(self) -> list[str]:
        """Addresses that were asked for, but for the page itself."""
        urls = [one["request"]["url"] for one in self._of("Network.requestWillBeSent")]
        return [url for url in urls if url != self.url]

    def mouse(self, kind: str, x: float, y: float, **more):
        self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, **more)

    def click(self, x: float, y: float):
        self.mouse("mouseMoved", x, y)
        for kind in ("mousePressed", "mouseReleased"):
            self.mouse(kind, x, y, button="left", clickCount=1)

    def box(self, selector: str) -> tuple[float, float, float, float]:
        """Left, top, width, height in the window, after it was scrolled to."""
        expression = f"""(() => {{
          const one = document.querySelector({json.dumps(selector)});
          one.scrollIntoView({{block: "center"}});
          const box = one.getBoundingClientRect();
          return [box.left, box.top, box.width, box.height];
        }})()"""
        return tuple(self.evaluate(expression))

    def press(self, key: str):
        code = KEYS.get(key, ord(key[0].upper()))
        text = {"text": key} if len(key) == 1 else {}
        self.call(
            "Input.dispatchKeyEvent", type="keyDown", key=key, windowsVirtualKeyCode=code, **text
        )
        self.call("Input.dispatchKeyEvent", type="keyUp", key=key, windowsVirtualKeyCode=code)

    def type(self, text: str):
        self.call("Input.insertText", text=text)

    def picture(self, path: Path, whole: bool = False):
        more = {"captureBeyondViewport": True} if whole else {}
        if whole:
            size = self.call("Page.getLayoutMetrics")["cssContentSize"]
            more["clip"] = {
                "x": 0,
                "y": 0,
                "width": size["width"],
                "height": size["height"],
                "scale": 1,
            }
        data = self.call("Page.captureScreenshot", format="png", **more)["data"]
        path.write_bytes(base64.b64decode(data))

    def print(self) -> bytes:
        return base64.b64decode(self.call("Page.printToPDF", printBackground=True)["data"])
