"""Expand files, folders, globs and URLs into one ordered list of inputs.

In:      paths as typed
Out:     InputFile rows in a stable order, each file once
Memory:  about 110 bytes and its path for each file; 160 more during the search, 500 if objects are
         in folders
"""

from __future__ import annotations

import json
import os
import re
import stat
from array import array
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import overload

import xxhash

from lowtide.corpus.hub import hub_name, parse_hub_name
from lowtide.corpus.inputformats import (
    COMPRESSIONS,
    FORMATS,
    InputFormat,
    is_known,
    may_hold_rows,
)
from lowtide.corpus.jsonlines import classify_file
from lowtide.corpus.localfiles import iter_files, not_a_file
from lowtide.counts import counted
from lowtide.errors import DataError, UsageError, from_os_error
from lowtide.packages import require_package
from lowtide.quickclasses import dataclass
from lowtide.stores.paths import StorePath, find_objects, input_path, tag_number
from lowtide.stores.urls import StoreURL, is_store_url, store_url

__all__ = [
    "SPREAD_BYTES",
    "InputFile",
    "InputList",
    "InputSlice",
    "as_input_list",
    "changed_input",
    "expand_inputs",
    "has_changed",
    "hash_inputs",
    "names_files",
]

SPREAD_BYTES = 16
"""For each input: how much the program's own memory after the search differs between two runs, 5.5
measured with 200,000 files; a budget that is advised has room for it."""
_KIND_NAMES = tuple(FORMATS)
_COMPRESSION_NAMES = (None, *COMPRESSIONS)


@dataclass(frozen=True)
class InputFile:
    """One file of the corpus."""

    index: int
    """Its index in the corpus; documents of earlier inputs come first."""
    path: Path
    kind: str
    """A name of `FORMATS`; hub is a Hugging Face dataset, and `path` its name."""
    compression: str | None
    """gzip, zstd, xz, bzip2, or None."""
    size_bytes: int
    """Size as stored, that is, compressed."""
    modified_ns: int = 0
    changed_ns: int = 0
    """The time of the last change of any kind (ctime), which programs cannot set."""
    split: str = ""
    """The split of a Hugging Face dataset."""

    @property
    def format(self) -> InputFormat:
        """Its input format."""
        return FORMATS[self.kind]

    @property
    def is_read_in_order(self) -> bool:
        """True for a file that only one worker at a time can read."""
        return self.compression is not None or (self.format.is_file and not self.format.is_cut)


class InputList(Sequence[InputFile]):
    """A compact list of inputs, for hundreds of thousands; an InputFile is created on access.

    Inputs are renumbered by their position in the list, from `first_index` on.

    >>> files = InputList([InputFile(7, Path("a.txt"), "text", None, 10)])
    >>> files[0].index, files.total_bytes
    (0, 10)
    """

    def __init__(self, inputs: Iterable[InputFile] = (), *, first_index: int = 0) -> None:
        self.first_index = first_index
        self._paths = bytearray()
        self._ends = array("q")
        self._kinds = array("b")
        self._sizes, self._modified, self._changed = array("q"), array("q"), array("q")
        self._splits: dict[int, str] = {}
        for source in inputs:
            self.append(source)

    def append(self, source: InputFile) -> None:
        """Add an input, with the next number."""
        self._paths += os.fsencode(source.path)
        if source.split:
            self._splits[len(self)] = source.split
        kind = _KIND_NAMES.index(source.kind)
        packing = _COMPRESSION_NAMES.index(source.compression)
        self._kinds.append(kind * len(_COMPRESSION_NAMES) + packing)
        self._sizes.append(source.size_bytes)
        self._modified.append(source.modified_ns)
        self._changed.append(source.changed_ns)
        self._ends.append(len(self._paths))

    @property
    def total_bytes(self) -> int:
        """Bytes of all of them as stored."""
        return sum(self._sizes)

    def __len__(self) -> int:
        return len(self._ends)

    @overload
    def __getitem__(self, place: int) -> InputFile: ...
    @overload
    def __getitem__(self, place: slice) -> InputSlice: ...
    def __getitem__(self, place: int | slice) -> InputFile | InputSlice:
        if isinstance(place, slice):
            return InputSlice(self, range(len(self))[place])
        place = range(len(self))[place]
        kind, packing = divmod(self._kinds[place], len(_COMPRESSION_NAMES))
        return InputFile(
            index=self.first_index + place,
            path=input_path(os.fsdecode(self.name_at(place))),
            kind=_KIND_NAMES[kind],
            compression=_COMPRESSION_NAMES[packing],
            size_bytes=self._sizes[place],
            modified_ns=self._modified[place],
            changed_ns=self._changed[place],
            split=self._splits.get(place, ""),
        )

    def size_at(self, place: int) -> int:
        """Bytes of one input, without creating the InputFile."""
        return self._sizes[place]

    def name_at(self, place: int) -> bytes:
        """The path or URL of one input, without creating the InputFile."""
        begin = self._ends[place - 1] if place else 0
        return bytes(self._paths[begin : self._ends[place]])


class InputSlice(Sequence[InputFile]):
    """Consecutive inputs of a list."""

    def __init__(self, inputs: InputList, places: range) -> None:
        self._inputs = inputs
        self._places = places

    @property
    def total_bytes(self) -> int:
        """Bytes of all of them as stored."""
        return sum(map(self._inputs.size_at, self._places))

    def __len__(self) -> int:
        return len(self._places)

    @overload
    def __getitem__(self, place: int) -> InputFile: ...
    @overload
    def __getitem__(self, place: slice) -> InputSlice: ...
    def __getitem__(self, place: int | slice) -> InputFile | InputSlice:
        if isinstance(place, slice):
            return InputSlice(self._inputs, self._places[place])
        return self._inputs[self._places[place]]


def as_input_list(inputs: Sequence[InputFile]) -> InputList:
    """The same inputs as an InputList, to save memory; a gap in their numbers is an error."""
    if isinstance(inputs, InputList):
        return inputs
    return InputList(inputs, first_index=inputs[0].index if inputs else 0)


def hash_inputs(inputs: Iterable[InputFile]) -> str:
    """A hash of the inputs' names, sizes and times: equal wherever they are listed."""
    digest = xxhash.xxh3_128()
    for source in inputs:
        row = [str(source.path), source.split, source.size_bytes, source.modified_ns]
        digest.update(json.dumps(row).encode() + b"\n")
    return digest.hexdigest()


def names_files(name: str) -> bool:
    """True for files, folders and globs of this machine, False for a dataset's name.

    >>> names_files("texts/*.txt"), names_files("owner/dataset")
    (True, False)
    """
    return is_store_url(name) or Path(name).exists() or any(sign in name for sign in "*?[")


def expand_inputs(
    paths: Iterable[str | Path], *, on_notice: Callable[[str], None] | None = None
) -> InputList:
    """Find every input file: named files as they are, folders and globs in sorted order.

    In folders only files with a known suffix are used (txt, text, md, jsonl, ndjson, parquet, each
    also .gz, .zst, .xz, .bz2); a file named explicitly is text if its suffix is unknown. A file
    that is found twice, also through a link, is used once, and reported to `on_notice`.
    """
    notice = on_notice or _ignore
    inputs = InputList()
    seen: dict[int, int] = {}
    plain_json = _PlainJson()
    for given in paths:
        if not os.fspath(given):  # pathlib would read it as the current folder
            raise UsageError(
                "an input is named by an empty word",
                next_step="is a variable of the shell empty? the current folder is .",
            )
        if (hub := hub_name(given)) is not None:
            name, split = parse_hub_name(hub)
            require_package("datasets", hub)
            inputs.append(InputFile(len(inputs), Path(name), "hub", None, 0, split=split))
            continue
        if (url := store_url(given)) is not None:
            _add_objects(inputs, url, seen, plain_json, notice)
            continue
        for path in iter_files(given, notice):
            try:
                status = path.stat()
            except OSError as error:
                raise from_os_error(error) from None
            if not stat.S_ISREG(status.st_mode):
                raise not_a_file(path)
            identity = status.st_dev << 64 | status.st_ino
            if identity in seen:
                notice(f"{path} is the same file as {inputs[seen[identity]].path}: read once")
                continue
            seen[identity] = len(inputs)
            kind, compression = classify_file(path)
            plain_json.see(path, kind)
            inputs.append(
                InputFile(
                    index=len(inputs),
                    path=path,
                    kind=kind,
                    compression=compression,
                    size_bytes=status.st_size,
                    modified_ns=status.st_mtime_ns,
                    changed_ns=status.st_ctime_ns,
                )
            )
    plain_json.tell(notice)
    if not inputs:
        raise DataError("no input files", next_step="name text, jsonl or parquet files or folders")
    return inputs


class _PlainJson:
    """Counts .json files without rows: their brackets and names are learned as any other text."""

    def __init__(self) -> None:
        self._first: Path | None = None
        self._others = 0

    def see(self, path: Path, kind: str) -> None:
        if not may_hold_rows(path) or FORMATS[kind].block_kind != "text":
            return
        if self._first is None:
            self._first = path
        else:
            self._others += 1

    def tell(self, notice: Callable[[str], None]) -> None:
        if self._first is not None:
            others = f" and {counted(self._others, 'other file')}" if self._others else ""
            notice(
                f"{self._first}{others}: read as plain text, for want of a JSON object on each of "
                "the first lines (name it .jsonl if it has rows)"
            )


def _add_objects(
    inputs: InputList,
    url: StoreURL,
    seen: dict[int, int],
    plain_json: _PlainJson,
    notice: Callable[[str], None],
) -> None:
    """Add the objects of a URL: a single one, those under a prefix, or matches of a pattern."""
    ignored = matched = 0
    is_pattern = any(sign in url.key for sign in "*?[")
    found = InputList()
    for info in find_objects(url):
        path = StorePath(str(info.url))
        named = info.url == url
        known = is_known(path) or (is_pattern and may_hold_rows(path))
        if not named and (not known or _is_hidden(info.url, url)):
            ignored += 1
            continue
        identity = xxhash.xxh3_128_intdigest(str(info.url).encode())
        matched += 1
        if identity in seen:
            notice(f"{info.url} is named twice: read once")
            continue
        seen[identity] = len(inputs) + len(found)
        kind, compression = classify_file(path)
        plain_json.see(path, kind)
        number = tag_number(info)
        found.append(InputFile(len(found), path, kind, compression, info.size, number, number))
    for place in range(len(found)) if is_pattern else _order_as_on_a_disk(found):
        inputs.append(found[place])
    if ignored:
        notice(f"{url}: {counted(ignored, 'object')} of other kinds ignored")
    if not matched:
        raise DataError(
            "no object matches this pattern"
            if is_pattern
            else "no text under this prefix (txt, md, jsonl, parquet, plain or compressed)",
            path=str(url),
            next_step="check the URL for typing errors",
        )


def _is_hidden(found: StoreURL, url: StoreURL) -> bool:
    """True for an object whose name, or a folder of it that `url` does not name, has a dot first.

    >>> _is_hidden(StoreURL("s3", "b", "in/.x/a.txt"), StoreURL("s3", "b", "in"))
    True
    """
    before, *signs = re.split(r"[*?\[]", url.key, maxsplit=1)
    fixed = before.rpartition("/")[0] if signs else before
    return "/." in f"/{found.key[len(fixed) :]}" and "/." not in f"/{url.key[len(fixed) :]}"


def _order_as_on_a_disk(found: InputList) -> Sequence[int]:
    """The places of objects in the order of `_walk`: the files of a folder, then its folders.

    Stores list all of them by their whole names; without folders that is the same order.
    """

    def key_of(place: int) -> bytes:
        folder, _, name = found.name_at(place).rpartition(b"/")
        return folder.replace(b"/", b"\0\1") + b"\0\0" + name

    places = range(len(found))
    if all(first < second for first, second in pairwise(map(key_of, places))):
        return places
    return sorted(places, key=key_of)


def has_changed(source: InputFile) -> bool:
    """True if a file may have changed since it was found."""
    if not source.format.is_file:
        return False
    try:
        status = source.path.stat()
    except OSError:
        return True
    return (status.st_size, status.st_mtime_ns, status.st_ctime_ns) != (
        source.size_bytes,
        source.modified_ns,
        source.changed_ns,
    )


def changed_input(source: InputFile, *, next_step: str | None = None) -> DataError:
    """The error for an input that was overwritten while it was read."""
    try:
        size = source.path.stat().st_size
        how = (
            f"it had {source.size_bytes} bytes, now {size}"
            if size != source.size_bytes
            else ("its bytes are other ones")
        )
    except OSError:
        how = "it is gone"
    return DataError(
        f"this file was changed while it was read: {how}",
        path=source.path,
        next_step=next_step or "give the same command again when nothing writes to it any more",
    )


def _ignore(text: str) -> None:
    pass
