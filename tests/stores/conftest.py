"""A store of our own on 127.0.0.1: it counts requests, and fails as it is told to."""

from __future__ import annotations

import hashlib
import json
import re
import threading
import urllib.request
from collections import deque
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

import numpy as np
import pytest

from lowtide.dataset.layout import write_metadata
from lowtide.dataset.tokenfiles.shards import id_chunk, shard_name, write_shard_stream
from lowtide.loader import shuffledblocks, storeahead
from lowtide.stores import extentfiles, extents, objects
from lowtide.tokenizer import Tokenizer

SMALL_EXTENT = 8176  # with its checksum two blocks of the disk


class RangeServer:
    """Speaks as much of S3 as lowtide needs: HEAD, GET of ranges under If-Match, lists in pages,
    PUT of whole objects, with and without conditions, and of copies; and of GCS, which differs in
    these."""

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}
        self.requests: list[str] = []
        self.faults: deque[str] = deque()
        """What happens to the next requests of objects: drop, cut, or a status; `lose` stores what
        was sent, and never says so."""
        self.obeys = True
        """Whether conditions of a PUT are heeded."""
        self.denies = False
        """Whether a PUT is denied."""
        self.tags_by_content = True
        """Whether the same bytes stored again have the same ETag, as those of S3 mostly have; with
        keys of KMS, on GCS and on Azure every write has a new one."""
        self.page = 1000
        self._tags: dict[int, tuple[bytes, str]] = {}
        self.before: Callable[[str], None] = lambda key: None
        self.before_put: Callable[[str], None] = lambda key: None
        handler = type("Handler", (_Handler,), {"store": self})
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()

    def etag(self, key: str) -> str:
        data = self.objects[key]
        if id(data) not in self._tags:
            salt = b"" if self.tags_by_content else len(self._tags).to_bytes(8, "big")
            self._tags[id(data)] = data, hashlib.md5(salt + data).hexdigest()
        return self._tags[id(data)][1]

    def generation(self, key: str) -> str:
        """What GCS compares instead of ETags; 0 is no object."""
        return str(int(self.etag(key)[:12], 16) + 1) if key in self.objects else "0"

    def upload(self, folder: Path, prefix: str) -> None:
        for path in folder.rglob("*"):
            if path.is_file():
                self.objects[f"{prefix}/{path.relative_to(folder)}"] = path.read_bytes()

    def count(self, part: str = "") -> int:
        return sum(part in row for row in self.requests)

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # else an answer in two packets waits for the client's "got it"
    store: RangeServer

    def log_message(self, *_: object) -> None:
        pass

    def _answer(self, status: int, body: bytes = b"", **headers: str) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Length", headers.get("length", str(len(body))))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        parts = urlsplit(self.path)
        bucket, _, key = unquote(parts.path).lstrip("/").partition("/")
        store = self.store
        store.requests.append(f"{self.command} {bucket}/{key} {self.headers.get('Range', '')}")
        if bucket != "bucket":
            return self._answer(404, b"<Error><Code>NoSuchBucket</Code></Error>")
        if not key:
            return self._list(parse_qs(parts.query))
        store.before(key)
        fault = store.faults.popleft() if store.faults else ""
        if fault == "drop":
            self.close_connection = True
            return None
        if fault.isdigit():
            return self._answer(int(fault), b"<Error><Code>Told</Code></Error>")
        if key not in store.objects:
            return self._answer(404, b"<Error><Code>NoSuchKey</Code></Error>")
        data, etag = store.objects[key], f'"{store.etag(key)}"'
        wanted = self.headers.get("If-Match")
        if wanted is not None and wanted != etag:
            return self._answer(412, b"<Error><Code>PreconditionFailed</Code></Error>")
        size, status, more = len(data), 200, {}
        if (span := self.headers.get("Range")) is not None:
            first, _, last = span.removeprefix("bytes=").partition("-")
            if int(first) >= size:
                return self._answer(416)
            data = data[int(first) : int(last or size) + 1]
            status = 206
            more["Content_Range"] = f"bytes {first}-{int(first) + len(data) - 1}/{size}"
        more["ETag"], more["Last_Modified"] = etag, "Mon, 16 Nov 2026 00:00:00 GMT"
        more["x_goog_generation"] = store.generation(key)
        if fault == "cut":
            more["length"] = str(len(data))
            self._answer(status, data[: len(data) // 2], **more)
            self.close_connection = True
            return None
        return self._answer(status, data, **{**more, "length": str(len(data))})

    def do_PUT(self) -> None:
        key = unquote(urlsplit(self.path).path).lstrip("/").partition("/")[2]
        data = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        store = self.store
        source = self.headers.get("x-amz-copy-source") or self.headers.get("x-goog-copy-source")
        store.requests.append(f"{'COPY' if source else 'PUT'} bucket/{key}")
        if store.denies:
            return self._answer(403, b"<Error><Code>AccessDenied</Code></Error>")
        store.before_put(key)
        fault = store.faults.popleft() if store.faults else ""
        if fault.isdigit():
            return self._answer(int(fault), b"<Error><Code>Told</Code></Error>")
        wanted = self.headers.get("If-Match")
        is_new = self.headers.get("If-None-Match") is None or key not in store.objects
        is_known = wanted is None or (key in store.objects and wanted == f'"{store.etag(key)}"')
        generation = self.headers.get("x-goog-if-generation-match")
        is_known &= generation is None or generation == store.generation(key)
        if store.obeys and not (is_new and is_known):
            return self._answer(412, b"<Error><Code>PreconditionFailed</Code></Error>")
        if source:
            data = store.objects.get(unquote(source).lstrip("/").partition("/")[2])
            if data is None:
                return self._answer(404, b"<Error><Code>NoSuchKey</Code></Error>")
        store.objects[key] = bytes(data)
        if fault == "lose":
            self.close_connection = True
            return None
        if source:
            return self._answer(200, b"<CopyObjectResult></CopyObjectResult>")
        more = {"x_goog_generation": store.generation(key)}
        return self._answer(200, ETag=f'"{store.etag(key)}"', **more)

    def do_DELETE(self) -> None:  # GCS
        key = unquote(urlsplit(self.path).path).lstrip("/").partition("/")[2]
        self.store.requests.append(f"DELETE bucket/{key}")
        self._answer(404 if self.store.objects.pop(key, None) is None else 204)

    def do_POST(self) -> None:  # several objects are removed by one request
        body = self.rfile.read(int(self.headers.get("Content-Length", 0))).decode()
        keys = re.findall("<Key>([^<]*)</Key>", body)
        for key in keys:
            self.store.objects.pop(key, None)
        rows = "".join(f"<Deleted><Key>{key}</Key></Deleted>" for key in keys)
        self._answer(200, f"<DeleteResult>{rows}</DeleteResult>".encode())

    def _list(self, query: dict[str, list[str]]) -> None:
        prefix, cut = query.get("prefix", [""])[0], query.get("delimiter", [""])[0]
        after = query.get("continuation-token", query.get("start-after", [""]))[0]
        names = sorted(key for key in self.store.objects if key.startswith(prefix) and key > after)
        folders: list[str] = []
        if cut:  # what lies deeper is named by its folder
            deeper = [key for key in names if cut in key.removeprefix(prefix)]
            folders = sorted({prefix + key[len(prefix) :].partition(cut)[0] for key in deeper})
            names = [key for key in names if key not in deeper]
        shown = names[: self.store.page]
        rows = "".join(
            f"<Contents><Key>{escape(key)}</Key><LastModified>2026-11-16T00:00:00.000Z"
            f"</LastModified><ETag>&quot;{self.store.etag(key)}&quot;</ETag>"
            f"<Size>{len(self.store.objects[key])}</Size></Contents>"
            for key in shown
        ) + "".join(
            f"<CommonPrefixes><Prefix>{escape(name + cut)}</Prefix></CommonPrefixes>"
            for name in folders
        )
        more = len(shown) < len(names)
        token = (
            f"<NextContinuationToken>{escape(shown[-1])}</NextContinuationToken>" if more else ""
        )
        body = (
            f"<ListBucketResult><Name>bucket</Name><IsTruncated>{str(more).lower()}</IsTruncated>"
            f"{token}{rows}</ListBucketResult>"
        )
        self._answer(200, body.encode())


@pytest.fixture(scope="session")
def _server() -> Iterator[RangeServer]:
    server = RangeServer()
    yield server
    server.close()


@pytest.fixture
def server(
    _server: RangeServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Iterator[RangeServer]:
    """The server, empty and obedient, with the environment that leads to it."""
    _server.objects.clear()
    _server.requests.clear()
    _server.faults.clear()
    _server.page, _server.obeys = 1000, True
    _server.before = _server.before_put = lambda key: None
    _server.denies, _server.tags_by_content = False, True
    for name, value in {
        "AWS_ACCESS_KEY_ID": "test-id",
        "AWS_SECRET_ACCESS_KEY": "test-secret-of-nobody",
        "AWS_REGION": "us-east-1",
        "AWS_ENDPOINT_URL": _server.url,
        "AWS_ALLOW_HTTP": "true",
        "XDG_CACHE_HOME": str(tmp_path / "cache-home"),
    }.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(objects, "_open", {})
    yield _server
    _server.faults.clear()
    extents.close_caches()


@pytest.fixture
def gcs(server: RangeServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> RangeServer:
    """The server as Google's store, with the environment that leads to it."""
    names = ("client_email", "private_key", "private_key_id")
    account = {"gcs_base_url": server.url, "disable_oauth": True, **dict.fromkeys(names, "")}
    (tmp_path / "account.json").write_text(json.dumps(account))
    monkeypatch.setenv("GOOGLE_SERVICE_ACCOUNT", str(tmp_path / "account.json"))
    monkeypatch.setenv("GOOGLE_ALLOW_HTTP", "true")
    return server


@pytest.fixture(scope="session")
def _moto() -> Iterator[str]:
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


@pytest.fixture
def moto(_moto: str, server: RangeServer, monkeypatch: pytest.MonkeyPatch) -> str:
    """The URL of moto's S3, with an empty bucket and the environment that leads to it."""
    urllib.request.urlopen(urllib.request.Request(f"{_moto}/moto-api/reset", method="POST")).close()
    urllib.request.urlopen(urllib.request.Request(f"{_moto}/bucket", method="PUT")).close()
    monkeypatch.setenv("AWS_ENDPOINT_URL", _moto)
    return _moto


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """How long a store was waited for, without waiting."""
    seconds: list[float] = []
    monkeypatch.setattr(objects, "_sleep", lambda waited, ended: seconds.append(waited))
    return seconds


@pytest.fixture
def small_extents(monkeypatch: pytest.MonkeyPatch) -> int:
    """Extents and blocks of 8 KiB: a dataset of some hundred KiB has many of both."""
    monkeypatch.setattr(extentfiles, "EXTENT_BYTES", SMALL_EXTENT)
    monkeypatch.setattr(storeahead, "EXTENT_BYTES", SMALL_EXTENT)
    monkeypatch.setattr(shuffledblocks, "BLOCK_TOKENS", 4096)
    return SMALL_EXTENT


@pytest.fixture
def dataset(tmp_path: Path) -> Path:
    """A prepared dataset of characters: 400,000 tokens in 6 uneven shards, and a val split."""
    root = tmp_path / "mine"
    tokenizer = Tokenizer.from_characters("".join(map(chr, range(32, 127))))
    random = np.random.default_rng(5)
    shards: dict[str, list[object]] = {"train": [], "val": []}
    for number, size in enumerate([120_000, 1, 80_000, 39_999, 100_000, 60_000, 3_000]):
        split = "val" if number == 6 else "train"
        path = root / split / shard_name(number)
        path.parent.mkdir(parents=True, exist_ok=True)
        ends = np.unique(np.append(random.integers(1, size + 1, size=size // 40), size))
        ids = random.integers(0, 90, size=size)
        chunk = id_chunk(ids, ends, vocab_size=tokenizer.vocab_size, path=path)
        shards[split].append(write_shard_stream(path, [chunk], vocab_size=tokenizer.vocab_size))
    tokenizer.save(root)
    write_metadata(
        root,
        shards=shards,  # pyright: ignore[reportArgumentType]
        vocab_size=tokenizer.vocab_size,
        tokenizer_fingerprint=tokenizer.fingerprint,
        tokenization="char",
        tokens_per_shard=120_000,
        input_files=["a.txt"],
    )
    return root


@pytest.fixture
def stored(server: RangeServer, dataset: Path) -> str:
    """The dataset in the store; its URL."""
    server.upload(dataset, "data/mine")
    return "s3://bucket/data/mine"
