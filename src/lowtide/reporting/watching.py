"""Keep a page live in a browser: a small local HTTP server that the page polls.

In:      a page's reader, requests of browsers on this machine
Out:     the page, and its data when it changed
Memory:  as the reader; responses are made one at a time
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

from lowtide.errors import LowtideError, UsageError, printable, warn
from lowtide.files import checksum_bytes
from lowtide.reporting.pages import data_as_json, render_page
from lowtide.reporting.reports import PageReader, open_reader
from lowtide.reporting.settings import ReportSettings

__all__ = ["PageServer", "watch"]

_ADDRESS = "127.0.0.1"
# Against DNS rebinding: a web page elsewhere can resolve its own host name to 127.0.0.1 and read
# what is served there, so the Host header is checked.
_OUR_NAMES = ("127.0.0.1", "localhost")


class PageServer(ThreadingHTTPServer):
    """Serves one page, to browsers on this machine only."""

    daemon_threads = True
    request_queue_size = 256  # simultaneous requests; the default of 5 lets others wait seconds

    def __init__(self, reader: PageReader, *, port: int = 0, interval: float = 2.0) -> None:
        self.reader = reader
        self.interval = interval
        self.reading = threading.Lock()
        try:
            super().__init__((_ADDRESS, port), _Handler)
        except OSError as error:
            raise UsageError(
                f"port {port} cannot be used: {error.strerror}",
                next_step="name another --port, or none for a free one",
            ) from None

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore broken connections: browsers drop them all the time."""
        error = sys.exception()
        if not isinstance(error, OSError):
            warn(f"a request failed: {error!r}")

    @property
    def url(self) -> str:
        """The URL of the page."""
        return f"http://{_ADDRESS}:{self.server_address[1]}/"

    def current_data(self) -> dict[str, Any]:
        """Read new data and return the page's data."""
        with self.reading:
            self.reader.read()
            return self.reader.page()


class _Handler(BaseHTTPRequestHandler):
    server: PageServer  # pyright: ignore[reportIncompatibleVariableOverride]
    timeout = 30  # seconds for a request or a response; idle connections are closed then

    def do_GET(self) -> None:
        host = (self.headers.get("Host") or "").rsplit(":", 1)[0]
        if host not in _OUR_NAMES:
            self.send_error(HTTPStatus.FORBIDDEN, "this page is for browsers on this machine")
            return
        try:
            address = urlsplit(self.path)
        except ValueError:  # malformed, such as an unclosed bracket
            self.send_error(HTTPStatus.BAD_REQUEST)
            return
        try:
            if address.path == "/":
                page = render_page(self.server.current_data(), live_seconds=self.server.interval)
                self._answer(page, "text/html")
            elif address.path == "/data.json":
                self._answer_news(parse_qs(address.query).get("have", [""])[0])
            else:
                self.send_error(HTTPStatus.NOT_FOUND)
        except LowtideError as error:  # such as a folder that was moved: it may come back
            explain = printable(error.message)
            self.send_error(HTTPStatus.SERVICE_UNAVAILABLE, explain=explain)
        except (ConnectionError, TimeoutError):
            self.close_connection = True  # the browser disconnected during a response

    def _answer_news(self, have: str) -> None:
        text = data_as_json(self.server.current_data())
        version = checksum_bytes(text.encode("utf-8", "backslashreplace"))
        if version == have:
            self.send_response(HTTPStatus.NO_CONTENT)
            self.end_headers()
        else:
            self._answer(text, "application/json", version)

    def _answer(self, text: str, kind: str, version: str | None = None) -> None:
        body = text.encode("utf-8", "backslashreplace")
        self.send_response(HTTPStatus.OK)
        self.send_header("Content-Type", f"{kind}; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-store")
        if version is not None:
            self.send_header("ETag", version)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Print nothing: a line for every request would bury the address."""


def watch(settings: ReportSettings, *, announce: Callable[[str], None]) -> None:
    """Serve the page until Ctrl-C; `announce` is called with its address."""
    reader = open_reader(settings)
    reader.read()
    reader.page()  # errors appear here, not in the browser
    with PageServer(reader, port=settings.port, interval=settings.interval) as server:
        try:
            announce(server.url)
            server.serve_forever()
        except KeyboardInterrupt:
            return
