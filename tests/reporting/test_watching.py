"""A live page hears of what a run writes, and nobody else's browser is answered."""

from __future__ import annotations

import http.client
import json
import os
import re
import signal
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from lowtide.errors import DataError, UsageError
from lowtide.reporting import watching
from lowtide.reporting.reports import open_reader
from lowtide.reporting.runs import RunReader
from lowtide.reporting.settings import ReportSettings
from lowtide.reporting.watching import PageServer, watch

from .conftest import step_row, write_rows, write_run


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return write_run(tmp_path / "run", [step_row(10), step_row(20)])


@pytest.fixture
def server(run: Path) -> Iterator[PageServer]:
    reader = open_reader(ReportSettings(target=str(run)))
    with PageServer(reader, interval=0.1) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def get(server: PageServer, path: str, host: str | None = None) -> tuple[int, str, str]:
    connection = http.client.HTTPConnection("127.0.0.1", server.server_address[1], timeout=100)
    connection.request("GET", path, headers={} if host is None else {"Host": host})
    answer = connection.getresponse()
    body = answer.read()
    if answer.status == 200:  # else a browser would wait for more, guess, or show what it had
        assert answer.headers["Content-Length"] == str(len(body))
        kind = "text/html" if path == "/" else "application/json"
        assert answer.headers["Content-Type"] == f"{kind}; charset=utf-8"
        assert answer.headers["Cache-Control"] == "no-store"
    result = answer.status, body.decode(), answer.headers.get("ETag") or ""
    connection.close()
    return result


def last_step(data: dict[str, Any]) -> float:
    loss = next(section for section in data["sections"] if section["id"] == "loss")
    return loss["series"][0]["step"][-1]


def test_news_come_once(server: PageServer, run: Path) -> None:
    status, text, version = get(server, "/data.json?have=")
    assert (status, last_step(json.loads(text))) == (200, 20)
    assert get(server, f"/data.json?have={version}")[:2] == (204, "")
    write_rows(run / "metrics.jsonl", [step_row(30)])
    status, text, _ = get(server, f"/data.json?have={version}")
    assert (status, last_step(json.loads(text))) == (200, 30)


def test_the_page_asks_its_own_server_only(server: PageServer) -> None:
    status, page, _ = get(server, "/")
    assert status == 200
    assert 'data-live="0.1"' in page
    assert "connect-src 'self'" in page


@pytest.mark.parametrize(("host", "status"), [("localhost:9", 200), ("evil.example", 403)])
def test_only_names_of_this_machine_are_answered(
    server: PageServer, host: str, status: int
) -> None:
    assert get(server, "/", host)[0] == status


def test_an_address_that_is_none_is_answered(server: PageServer) -> None:
    with socket.create_connection(("127.0.0.1", server.server_address[1]), timeout=100) as client:
        client.sendall(b"GET http://[::1 HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert client.recv(20).startswith(b"HTTP/1.0 400 ")


def test_other_paths_are_not_served(server: PageServer) -> None:
    assert get(server, "/../settings.json")[0] == 404
    assert get(server, "/metrics.jsonl")[0] == 404


def test_a_port_in_use_is_told(server: PageServer, run: Path) -> None:
    reader = open_reader(ReportSettings(target=str(run)))
    with pytest.raises(UsageError, match="cannot be used"):
        PageServer(reader, port=int(server.server_address[1]))


def test_what_is_not_there_is_told_at_once(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="neither"):
        watch(ReportSettings(target=str(tmp_path / "none"), watch=True), announce=print)


def test_a_run_without_settings_is_read_before_it_is_shown(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(self: PageServer) -> None:
        raise KeyboardInterrupt

    (run / "settings.json").unlink(missing_ok=True)
    monkeypatch.setattr(PageServer, "serve_forever", interrupt)
    told: list[str] = []
    watch(ReportSettings(target=str(run), watch=True), announce=told.append)
    assert len(told) == 1 and told[0].startswith("http://127.0.0.1:")


def test_a_browser_follows_the_run(
    run: Path, open_page: Callable[[Path | str], tuple[str, list[str]]]
) -> None:
    class GrowingRun(RunReader):
        """A run that has logged another step whenever somebody looks."""

        looks = 0

        def read(self) -> bool:
            self.looks += 1
            write_rows(self.root / "metrics.jsonl", [step_row(1000 * self.looks)])
            return super().read()

    reader = GrowingRun(run)
    with PageServer(reader, interval=0.1) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        document, console = open_page(server.url)
        server.shutdown()
        thread.join()
    assert console == []
    assert reader.looks > 1
    (shown,) = re.findall(r'steps</div><div class="value ">([\d,]+)<', document)
    assert int(shown.replace(",", "")) >= 2000  # the page itself came with 1000


def test_ctrl_c_is_the_way_to_end_it(run: Path) -> None:
    words = [sys.executable, "-m", "lowtide", "report", str(run), "--watch"]
    child = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert child.stdout is not None
    line = child.stdout.readline()
    assert re.match(r"http://127\.0\.0\.1:\d+/", line)
    os.kill(child.pid, signal.SIGINT)
    _, errors = child.communicate(timeout=120)
    assert child.returncode == 0
    assert errors == ""


def test_200_clients_at_once_are_all_answered(server: PageServer) -> None:
    statuses: list[int] = []
    ready = threading.Barrier(200)

    def ask() -> None:
        ready.wait()
        statuses.append(get(server, "/data.json?have=")[0])

    threads = [threading.Thread(target=ask) for _ in range(200)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert statuses == [200] * 200


def test_broken_connections_leave_no_traceback(
    server: PageServer, capfd: pytest.CaptureFixture[str]
) -> None:
    address = ("127.0.0.1", server.server_address[1])
    reset = struct.pack("ii", 1, 0)  # close with a reset, which is an error for the other side
    for text in (b"", b"GET / HT", b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n", b"\xff\0\r\n\r\n"):
        with socket.create_connection(address) as connection:
            connection.sendall(text)
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, reset)
    assert get(server, "/")[0] == 200
    server.shutdown()
    server.server_close()
    assert "Traceback" not in capfd.readouterr().err


def test_an_idle_connection_ends(server: PageServer, monkeypatch: pytest.MonkeyPatch) -> None:
    handler = server.RequestHandlerClass
    assert 0 < handler.timeout <= 60  # pyright: ignore[reportAttributeAccessIssue]
    monkeypatch.setattr(handler, "timeout", 0.05)
    with socket.create_connection(("127.0.0.1", server.server_address[1])) as connection:
        connection.settimeout(20)
        assert connection.recv(1) == b""


def test_a_reason_that_no_header_can_hold_is_told(
    server: PageServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> bool:
        raise DataError("gone: \udcff\x1b[2J\nünd")

    monkeypatch.setattr(server.reader, "read", fail)
    status, text, _ = get(server, "/")
    assert status == 503
    assert "\x1b" not in text
    assert "gone: " in text


def test_dropped_connections_are_no_news_and_other_errors_are(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    server = object.__new__(PageServer)
    for error, said in (
        (ConnectionResetError("gone"), ""),
        (ValueError("x"), "a request failed: ValueError('x')\n"),
    ):
        try:
            raise error
        except (OSError, ValueError):
            server.handle_error(None, None)
        assert capsys.readouterr().err == said


def test_what_cannot_be_shown_is_told_before_the_address(tmp_path: Path) -> None:
    write_run(tmp_path / "run", [])
    (tmp_path / "run" / "settings.json").unlink()
    announced: list[str] = []
    (tmp_path / "run" / "steps" / "step_00000001").mkdir()
    with pytest.raises(DataError):
        watch(ReportSettings(target=(str(tmp_path / "run"),)), announce=announced.append)
    assert announced == []


@pytest.mark.parametrize(
    ("error", "closed", "sent"),
    [
        (ConnectionResetError(), True, []),
        (TimeoutError(), True, []),
        (DataError("moved \x1b"), False, [(503, "moved \\x1b")]),
        (None, False, []),
    ],
)
def test_how_a_request_ends(error: Exception | None, closed: bool, sent: list[Any]) -> None:
    handler: Any = object.__new__(watching._Handler)
    handler.headers, handler.path, handler.close_connection = {"Host": "127.0.0.1:5"}, "/", False
    answers: list[Any] = []
    handler.send_error = lambda code, *words, explain=None: answers.append((int(code), explain))
    handler._answer = lambda *given: None

    def data() -> dict[str, Any]:
        if error is not None:
            raise error
        return {"kind": "run", "title": "t", "sections": [], "tiles": []}

    handler.server = SimpleNamespace(current_data=data, interval=2.0)
    handler.do_GET()
    assert handler.close_connection is closed
    assert answers == sent
