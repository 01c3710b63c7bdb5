"""A store in memory that stands for `Store`: objects by key, and a note of every call."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from lowtide.errors import DataError
from lowtide.stores.objects import ObjectInfo
from lowtide.stores.refusals import ObjectMissingError
from lowtide.stores.urls import StoreURL


class MemoryStore:
    """Objects of one bucket; every version of one has a tag of its own."""

    def __init__(self, **contents: bytes) -> None:
        self.contents: dict[str, bytes] = dict(contents)
        self.tags: dict[str, int] = {}
        self.calls: list[tuple[Any, ...]] = []

    def info(self, url: StoreURL) -> ObjectInfo:
        if url.key not in self.contents:
            raise ObjectMissingError("no such object", path=str(url))
        return ObjectInfo(url, len(self.contents[url.key]), f"t{self.tags.get(url.key, 0)}")

    def put(self, key: str, data: bytes) -> str:
        self.tags[key] = self.tags.get(key, 0) + 1
        self.contents[key] = bytes(data)
        return f"t{self.tags[key]}"

    def head(self, url: StoreURL) -> ObjectInfo:
        self.calls.append(("head", url.key))
        return self.info(url)

    def read(self, info: ObjectInfo, start: int, count: int) -> bytes:
        self.calls.append(("read", info.url.key, start, count))
        return self.contents[info.url.key][start : start + count]

    def read_whole(self, url: StoreURL, *, most_bytes: int) -> tuple[ObjectInfo, bytes]:
        self.calls.append(("read_whole", url.key, most_bytes))
        info = self.info(url)
        if info.size > most_bytes:
            raise DataError("too large")
        return info, self.contents[url.key]

    def create(self, url: StoreURL, data: bytes) -> str | None:
        self.calls.append(("create", url.key))
        return None if url.key in self.contents else self.put(url.key, data)

    def replace(self, url: StoreURL, data: bytes, tag: str) -> str | None:
        self.calls.append(("replace", url.key, tag))
        is_same = url.key in self.contents and self.info(url).tag == tag
        return self.put(url.key, data) if is_same else None

    def exchange(self, url: StoreURL, data: bytes, tag: str) -> str | None:
        self.calls.append(("exchange", url.key, tag))
        is_same = url.key in self.contents and self.info(url).tag == tag
        return self.put(url.key, data) if is_same else None

    def upload(self, url: StoreURL, path: Path) -> None:
        self.calls.append(("upload", url.key))
        self.put(url.key, path.read_bytes())

    def delete(self, urls: Sequence[StoreURL]) -> None:
        self.calls.append(("delete", len(urls)))
        for url in urls:
            self.contents.pop(url.key, None)

    def iter_objects(self, prefix: StoreURL) -> Iterator[ObjectInfo]:
        self.calls.append(("list", prefix.key))
        for key in sorted(self.contents):
            if not prefix.key or key.startswith(f"{prefix.key}/"):
                yield self.info(StoreURL(prefix.scheme, prefix.bucket, key))

    def list_names(self, prefix: StoreURL) -> list[str]:
        self.calls.append(("list_names", prefix.key))
        start = len(prefix.key) + 1 if prefix.key else 0
        found = (info.url.key[start:] for info in self.iter_objects(prefix))
        return sorted({name.partition("/")[0] for name in found})

    def find_time(self, url: StoreURL) -> float:
        self.calls.append(("find_time", url.key))
        self.info(url)
        return 5.0
