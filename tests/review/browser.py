"""Opens a page in a headless Chromium, and asks what it did: through WebDriver, with no library."""

from __future__ import annotations

import json
import shutil
import subprocess
import tarfile
import time
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

AXE = "axe-core@4.11.0"
"""What looks for what keeps people out; from the npm registry when the test runs."""


def chromium() -> tuple[str, str]:
    """Chromium and its driver; without them a test is skipped with that reason."""
    found = shutil.which("chromium"), shutil.which("chromedriver")
    if found[0] is None or found[1] is None:
        pytest.skip("no Chromium here: apt-get install chromium chromium-driver")
    return found[0], found[1]


def axe_source(folder: Path) -> str:
    """The script of axe-core; where npm gives none, a test is skipped with that reason."""
    npm = shutil.which("npm")
    if npm is None:
        pytest.skip("no npm here, so no axe-core")
    done = subprocess.run(
        [npm, "pack", AXE, "--silent", "--cache", str(folder / "cache")],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    if done.returncode:
        pytest.skip(f"npm gives no {AXE}: {done.stderr.strip()[-200:]}")
    with tarfile.open(folder / done.stdout.split()[-1]) as packed:
        script = packed.extractfile("package/axe.min.js")
        assert script is not None
        return script.read().decode("utf-8")


class Browser:
    """One session of a browser."""

    def __init__(self, address: str, chromium: str) -> None:
        self._address = address
        options = {"binary": chromium, "args": ["--headless=new", "--no-sandbox", "--disable-gpu"]}
        wanted = {
            "browserName": "chrome",
            "goog:chromeOptions": options,
            "timeouts": {"script": 110_000},
            "goog:loggingPrefs": {"browser": "ALL", "performance": "ALL"},
        }
        made = self._post("/session", {"capabilities": {"alwaysMatch": wanted}})
        self._session = f"/session/{made['sessionId']}"

    def close(self) -> None:
        """End the browser."""
        request = urllib.request.Request(self._address + self._session, method="DELETE")
        with urllib.request.urlopen(request, timeout=60):
            pass

    def size(self, width: int, height: int = 900) -> None:
        """Be a screen of that size."""
        params = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self.cdp("Emulation.setDeviceMetricsOverride", params)

    def scheme(self, name: str) -> None:
        """Prefer light or dark."""
        features = [{"name": "prefers-color-scheme", "value": name}]
        self.cdp("Emulation.setEmulatedMedia", {"features": features})

    def open(self, page: Path) -> None:
        """Open a file."""
        self._post(f"{self._session}/url", {"url": page.absolute().as_uri()})

    def run(self, script: str) -> Any:
        """The value of a script's ``return``, awaited."""
        body = {"script": script, "args": []}
        return self._post(f"{self._session}/execute/sync", body)

    def cdp(self, command: str, params: Mapping[str, Any]) -> Any:
        """A command of the DevTools protocol."""
        body = {"cmd": command, "params": params}
        return self._post(f"{self._session}/goog/cdp/execute", body)

    def console(self) -> list[str]:
        """What the page complained of since it was last asked."""
        return [entry["message"] for entry in self._log("browser")]

    def requests(self) -> list[str]:
        """What the page asked for since it was last asked, itself and embedded data apart."""
        events = [json.loads(entry["message"])["message"] for entry in self._log("performance")]
        asked = [
            event["params"]["request"]["url"]
            for event in events
            if event["method"] == "Network.requestWillBeSent"
        ]
        return [url for url in asked if not url.startswith(("file:", "data:"))]

    def _log(self, kind: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self._post(f"{self._session}/se/log", {"type": kind})
        return found

    def _post(self, path: str, body: Mapping[str, Any]) -> Any:
        request = urllib.request.Request(
            self._address + path,
            data=json.dumps(body).encode(),
            headers={"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=120) as answer:
            return json.loads(answer.read())["value"]


@contextmanager
def browser(folder: Path) -> Iterator[Browser]:
    """A browser while the context lasts; its driver's port is one that the system chose."""
    binary, driver = chromium()
    log = folder / "driver.log"
    with log.open("wb") as output:
        process = subprocess.Popen([driver, "--port=0"], stdout=output, stderr=output)
    try:
        opened = Browser(f"http://127.0.0.1:{_port(log)}", binary)
        try:
            yield opened
        finally:
            opened.close()
    finally:
        process.terminate()
        process.wait(30)


def _port(log: Path) -> int:
    until = time.monotonic() + 60
    while time.monotonic() < until:
        _, found, rest = log.read_text(encoding="utf-8").partition("successfully on port ")
        if found and "." in rest:
            return int(rest.split(".")[0])
        time.sleep(0.1)
    raise AssertionError(f"chromedriver did not start: {log.read_text(encoding='utf-8')}")
