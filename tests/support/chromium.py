"""A headless Chromium driven over its DevTools pipe: no package, no port, no network."""

import base64
import json
import os
import select
import shutil
import subprocess
import time
from pathlib import Path

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome", "headless_shell")
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--hide-scrollbars",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-extensions",
    "--remote-debugging-pipe",
)


def find() -> str | None:
    """The browser, if this machine has one."""
    return next((path for name in NAMES if (path := shutil.which(name))), None)


class Chromium:
    """One browser with one page."""

    def __init__(self, program: str, profile: Path, *, width: int = 1280, height: int = 900):
        ours_in, theirs_out = os.pipe()
        theirs_in, ours_out = os.pipe()
        # DevTools reads descriptor 3 and writes descriptor 4
        shell = f'exec "$0" "$@" 3<&{theirs_in} 4>&{theirs_out}'
        self._process = subprocess.Popen(
            [
                "bash",
                "-c",
                shell,
                program,
                *FLAGS,
                f"--user-data-dir={profile}",
                f"--window-size={width},{height}",
                "about:blank",
            ],
            pass_fds=(theirs_in, theirs_out),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(theirs_in)
        os.close(theirs_out)
        self._in, self._out, self._buffer, self._n = ours_in, ours_out, b"", 0
        self.events: list[dict] = []
        targets = self._call("Target.getTargets", session=None)["targetInfos"]
        page = next(one for one in targets if one["type"] == "page")["targetId"]
        attached = self._call("Target.attachToTarget", session=None, targetId=page, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self._call(f"{domain}.enable")

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        os.close(self._in)
        os.close(self._out)

    def open(self, url: str) -> float:
        """Go there; seconds until the page says it is ready."""
        self.events.clear()
        self._call("Page.navigate", url="about:blank")
        self.events.clear()
        started = time.monotonic()
        self._call("Page.navigate", url=url)
        self.wait("document.documentElement?.dataset.ready === 'true'")
        return time.monotonic() - started

    def run(self, expression: str):
        """The value of a JavaScript expression."""
        answer = self._call(
            "Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True
        )
        if "exceptionDetails" in answer:
            raise AssertionError(answer["exceptionDetails"])
        return answer["result"].get("value")

    def wait(self, condition: str, seconds: float = 20) -> None:
        end = time.monotonic() + seconds
        while not self.run(f"Boolean({condition})"):
            assert time.monotonic() < end, f"never: {condition}"
            time.sleep(0.02)

    def click(self, selector: str, dx: float = 0.5, dy: float = 0.5) -> None:
        """A real click at a place inside an element."""
        x, y = self._place(selector, dx, dy)
        for kind in ("mouseMoved", "mousePressed", "mouseReleased"):
            self._call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def hover(self, selector: str, dx: float = 0.5, dy: float = 0.5) -> None:
        x, y = self._place(selector, dx, dy)
        self._call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)

    def press(self, key: str, *, shift: bool = False) -> None:
        """A real key: `Enter`, `ArrowDown`, or a letter."""
        codes = {"Enter": 13, "ArrowDown": 40, "ArrowRight": 39, "Tab": 9, " ": 32}
        text = {"Enter": "\r"}.get(key, key if len(key) == 1 else "")
        named = {"key": key, "windowsVirtualKeyCode": codes.get(key, ord(key[0].upper()))}
        named |= {"modifiers": 8 if shift else 0}
        self._call("Input.dispatchKeyEvent", type="keyDown", text=text, **named)
        self._call("Input.dispatchKeyEvent", type="keyUp", **named)

    def type(self, selector: str, text: str) -> None:
        self.run(f"document.querySelector({json.dumps(selector)}).focus()")
        for letter in text:
            self.press(letter)

    def media(self, *, scheme: str = "light", medium: str = "") -> None:
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self._call("Emulation.setEmulatedMedia", media=medium, features=features)

    def size(self, width: int, height: int = 900) -> None:
        """The window as wide as a phone, or as wide as one likes."""
        self._call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=False,
        )

    def picture(self, path: Path, selector: str | None = None, *, scale: float = 1) -> None:
        """A PNG of the whole page, or of one element."""
        query = f"document.querySelector({json.dumps(selector or 'html')}).getBoundingClientRect()"
        box = self.run(f"(b => [b.x + scrollX, b.y + scrollY, b.width, b.height])({query})")
        clip = dict(zip(("x", "y", "width", "height"), box, strict=True)) | {"scale": scale}
        shot = self._call("Page.captureScreenshot", clip=clip, captureBeyondViewport=True)
        path.write_bytes(base64.b64decode(shot["data"]))

    def heard(self, *methods: str) -> list[dict]:
        """What happened since the page was opened."""
        self.run("1")
        return [one["params"] for one in self.events if one["method"] in methods]

    def _place(self, selector: str, dx: float, dy: float) -> tuple[float, float]:
        x, y = self.run(
            f"(e => {{ e.scrollIntoView({{block: 'center', behavior: 'instant'}}); "
            f"const b = e.getBoundingClientRect(); "
            f"return [b.x + b.width * {dx}, b.y + b.height * {dy}]; }})"
            f"(document.querySelector({json.dumps(selector)}))"
        )
        return x, y

    def _call(self, method: str, *, session: str | None = "", **params):
        self._n += 1
        message = {"id": self._n, "method": method, "params": params}
        if session is not None:
            message["sessionId"] = self._session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("id") == self._n:
                assert "error" not in answer, answer
                return answer["result"]
            self.events.append(answer)

    def _next(self) -> dict:
        while b"\0" not in self._buffer:
            assert select.select([self._in], [], [], 60)[0], "the browser does not answer"
            part = os.read(self._in, 1 << 20)
            assert part, "the browser ended"
            self._buffer += part
        line, _, self._buffer = self._buffer.partition(b"\0")
        return json.loads(line)
