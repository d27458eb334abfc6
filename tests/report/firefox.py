"""A headless Firefox driven over Marionette, which it brings: a socket, no package, no network."""

import contextlib
import json
import shutil
import socket
import subprocess
import time
from pathlib import Path

NAMES = ("firefox-esr", "firefox")
PREFERENCES = {
    "marionette.port": 0,
    "browser.shell.checkDefaultBrowser": False,
    "datareporting.policy.dataSubmissionEnabled": False,
    "app.update.enabled": False,
    "network.captive-portal-service.enabled": False,
    "network.connectivity-service.enabled": False,
}
STARTS_IN = 60
"""Seconds until it must listen."""


def find() -> str | None:
    """The browser, if this machine has one."""
    return next((path for name in NAMES if (path := shutil.which(name))), None)


class Firefox:
    """One browser with one page, in a frame as narrow as one likes: its windows are 450 px wide."""

    def __init__(self, program: str, profile: Path):
        profile.mkdir(parents=True, exist_ok=True)
        said = "".join(f"user_pref({json.dumps([k, v])[1:-1]});\n" for k, v in PREFERENCES.items())
        (profile / "user.js").write_text(said)
        self._process = subprocess.Popen(
            [program, "--headless", "--marionette", "--no-remote", "--profile", str(profile)],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            self._socket = self._connect(profile / "MarionetteActivePort")
            self._buffer, self._n = b"", 0
            self._read()  # what it says of itself
            self._call("WebDriver:NewSession", capabilities={})
        except BaseException:
            self._process.kill()
            raise
        self._frame = profile / "frame.html"

    def _connect(self, port: Path) -> socket.socket:
        end = time.monotonic() + STARTS_IN
        while not (port.exists() and port.read_text()):
            assert time.monotonic() < end, "the browser does not listen"
            assert self._process.poll() is None, "the browser ended"
            time.sleep(0.1)
        return socket.create_connection(("127.0.0.1", int(port.read_text())), timeout=STARTS_IN)

    def close(self) -> None:
        with contextlib.suppress(OSError, AssertionError):
            self._call("Marionette:Quit", flags=["eForceQuit"])
        self._socket.close()
        self._process.kill()
        self._process.wait()

    def open(self, url: str, *, width: int, height: int = 900) -> None:
        """Go there, in a frame of this size, and wait until the page says that it is ready."""
        self._frame.write_text(
            f'<!doctype html><body style="margin:0"><iframe src="{url.replace("&", "&amp;")}"'
            f' style="border:0;display:block" width="{width}" height="{height}"></iframe>'
        )
        self._call("WebDriver:SetWindowRect", width=max(width, 500), height=height)
        self._call("WebDriver:Navigate", url=self._frame.as_uri())
        self._call("WebDriver:SwitchToFrame", id=0)
        end = time.monotonic() + 20
        while not self.run("document.documentElement.dataset.ready === 'true'"):
            assert time.monotonic() < end, "the page is never ready"
            time.sleep(0.05)

    def run(self, expression: str):
        """The value of a JavaScript expression."""
        script = f"return ({expression.strip()})"
        return self._call("WebDriver:ExecuteScript", script=script, args=[])["value"]

    def _call(self, name: str, **given):
        self._n += 1
        message = json.dumps([0, self._n, name, given]).encode()
        self._socket.sendall(b"%d:%s" % (len(message), message))
        _, n, error, result = self._read()
        assert n == self._n
        assert error is None, error
        return result

    def _read(self):
        while b":" not in self._buffer:
            self._receive()
        size, _, self._buffer = self._buffer.partition(b":")
        while len(self._buffer) < int(size):
            self._receive()
        message, self._buffer = self._buffer[: int(size)], self._buffer[int(size) :]
        return json.loads(message)

    def _receive(self) -> None:
        part = self._socket.recv(1 << 20)
        assert part, "the browser ended"
        self._buffer += part
