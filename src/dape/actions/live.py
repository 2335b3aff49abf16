"""``dape report --live``: serve a report while its runs are working. No torch here.

The server listens on 127.0.0.1 and answers two paths: ``/`` is the page, ``/state`` the progress of the runs. It never
serves a file. It reads only result files of the folder, and none that is a link to a place outside.
"""

import contextlib
import hashlib
import json
import os
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dape.actions.report import CLAIMS, MAPS, RESULTS, result_folders, section_of
from dape.actions.runs import FoundRun, find_runs
from dape.errors import UsageError
from dape.experiments.grid import RUNS
from dape.experiments.job import PROGRESS, TESTED
from dape.reading import parse_json
from dape.results.numbers import count
from dape.results.records import read_rows

if TYPE_CHECKING:
    from dape.report.page import Section
    from dape.results.records import Row

ADDRESS = "127.0.0.1"
FRESH_SECONDS = 1.0
"""Requests within this time get the same state."""
POLICY = {
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
}


def serve(folder: Path, *, port: int = 0, paper: bool = False) -> "LiveServer":
    """A server for the report of a folder; ``serve_forever`` starts it. ``port`` 0 takes any free port."""
    if not folder.is_dir():
        raise UsageError(f"{folder}: there is no such folder; give the `out` of the command that is or will be running")
    if not 0 <= port < 1 << 16:
        raise UsageError(f"`port` must lie between 0 and 65535, got {port}")
    live = Live(folder, paper)
    live.page()  # raises now if a library is missing
    try:
        return LiveServer((ADDRESS, port), live)
    except OSError as error:
        raise UsageError(f"`port` {port}: cannot be used ({error.strerror}); omit it for a free one") from error


class Live:
    """The newest page of a folder, and the newest state of its runs."""

    def __init__(self, folder: Path, paper: bool) -> None:
        self._folder, self._paper = folder, paper
        self._lock = threading.Lock()
        self._page, self._page_version = b"", ""
        self._state: dict[str, Any] = {}
        self._read_at = -FRESH_SECONDS

    def page(self) -> bytes:
        """The page, built again if the rows have changed."""
        from dape.report.page import build_page

        with self._lock:
            version = self._version()
            if version != self._page_version or not self._page:
                with contextlib.suppress(OSError, ValueError):  # a file is being written: keep the page of before
                    text = build_page(self._sections(), self._folder.resolve().name or "Results", live=True)
                    self._page, self._page_version = text.encode(), version
            return self._page

    def state(self) -> dict[str, Any]:
        with self._lock:
            if time.monotonic() - self._read_at >= FRESH_SECONDS:
                with contextlib.suppress(OSError, ValueError):
                    self._state = self._found()
                self._read_at = time.monotonic()
            return self._state

    def _found(self) -> dict[str, Any]:
        runs = find_runs(self._folder)
        done = sum(run.state == "finished" for run in runs)
        rows = sum(len(section.rows) for section in self._sections())
        said = f"{done} of {count(len(runs), 'run')} finished, {count(rows, 'row')}" if runs else "no run has begun"
        lines = [self._line(run) for run in runs if run.state != "finished"]
        return {"version": self._version(), "said": said, "runs": lines}

    def _line(self, run: FoundRun) -> dict[str, Any]:
        doing = f"step {run.step}" + (f" of {run.steps}" if run.steps else "")
        doing += "" if run.loss is None else f", loss {run.loss:.3f}"
        with contextlib.suppress(OSError, ValueError):
            doing = f"testing length {int(parse_json((run.folder / PROGRESS).read_bytes())['length'])}"
        done = min(run.step / run.steps, 1.0) if run.steps else 0.0
        name = str(run.folder.relative_to(self._folder)).replace(f"{RUNS}{os.sep}", "")
        return {"name": name, "state": run.state, "doing": doing, "done": done}

    def _sections(self) -> "list[Section]":
        from dataclasses import replace

        from dape.report.page import Section

        found = [each for each in result_folders(self._folder) if _is_inside(each, self._folder)]
        if not found:
            return [
                Section(title=self._folder.name, about=["No rows yet."], rows=self._unfinished(self._folder, set()))
            ]
        sections = []
        for each in found:
            section = section_of(each, self._folder, paper=self._paper)
            more = self._unfinished(each, {row.run for row in section.rows})
            sections.append(replace(section, rows=[*section.rows, *more]))
        return sections

    def _unfinished(self, folder: Path, delivered: set[str]) -> "list[Row]":
        """Rows of finished tests of unfinished runs."""
        rows: list[Row] = []
        for path in self._tested(folder):
            with contextlib.suppress(OSError, ValueError):
                rows += [row for row in read_rows(path, warn=lambda words: None) if row.run not in delivered]
        return rows

    def _tested(self, folder: Path) -> Iterator[Path]:
        for path in sorted(folder.glob(f"{RUNS}/*/{TESTED}")):
            if path.resolve().is_relative_to(self._folder.resolve()):
                yield path

    def _version(self) -> str:
        """A hash that changes with the files of rows."""
        paths = [each / RESULTS for each in result_folders(self._folder)] + list(self._tested(self._folder))
        facts = [f"{path} {path.stat().st_size} {path.stat().st_mtime_ns}" for path in paths if path.is_file()]
        return hashlib.sha256("\n".join(facts).encode("utf-8", "surrogateescape")).hexdigest()[:16]


def _is_inside(results: Path, top: Path) -> bool:
    """Whether no file that the page is made from is a link to a place outside ``top``."""
    names = (RESULTS, CLAIMS, *MAPS, "README.md", *(f"maps/{name}" for name in MAPS))
    return all((results / name).resolve().is_relative_to(top.resolve()) for name in names if (results / name).exists())


class LiveServer(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, address: tuple[str, int], live: Live) -> None:
        self.live = live
        super().__init__(address, _Handler)

    @property
    def url(self) -> str:
        return f"http://{ADDRESS}:{self.server_port}/"


class _Handler(BaseHTTPRequestHandler):
    server: LiveServer  # pyright: ignore[reportIncompatibleVariableOverride]
    server_version, sys_version = "dape", ""
    timeout = 10

    def do_GET(self) -> None:
        if self.headers.get("Host", "") not in self._own_hosts():  # DNS rebinding: another site's name for this address
            return self._answer(403, "text/plain", b"this page is for this machine alone\n")
        if self.path == "/":
            return self._answer(200, "text/html; charset=utf-8", self.server.live.page())
        if self.path == "/state":
            return self._answer(200, "application/json", json.dumps(self.server.live.state()).encode())
        return self._answer(404, "text/plain", b"there is nothing but /\n")

    do_HEAD = do_GET

    def _own_hosts(self) -> set[str]:
        names = {f"{name}:{self.server.server_port}" for name in (ADDRESS, "localhost")}
        return names | ({ADDRESS, "localhost"} if self.server.server_port == 80 else set())

    def _answer(self, code: int, kind: str, body: bytes) -> None:
        self.send_response(code)
        for name, value in {**POLICY, "Content-Type": kind, "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # the browser has closed the connection
                self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Print nothing; the base class prints a line per request."""
