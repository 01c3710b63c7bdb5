"""Ids in files of this and other programs, as streams: nanoGPT, llm.c, Megatron, .npy, shards.

In:      a path and the kind of its files, or a dataset of ours
Out:     a TokenSource per split: ids a few MiB at a time, and where documents end
Memory:  `STEP_TOKENS` ids and their document ends; indexes are read a piece at a time, and searched
         on disk, so they may be of any size
"""

from __future__ import annotations

import os
import re
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from lowtide import files
from lowtide.dataset import layout
from lowtide.dataset.settings import ConvertSettings
from lowtide.errors import DataError
from lowtide.tokenizer import Tokenizer
from lowtide.tokenizer.vocabulary import END_OF_TEXT, UNKNOWN, Vocabulary

__all__ = [
    "LLMC_KINDS",
    "MEGATRON_MAGIC",
    "MEGATRON_TYPES",
    "STEP_TOKENS",
    "TokenSource",
    "iter_lengths",
    "list_source_files",
    "load_source_tokenizer",
    "open_dataset",
    "open_source",
]

STEP_TOKENS = 1 << 18
_INDEX_ROWS = 1 << 16
LLMC_HEADER_BYTES = 1024
LLMC_KINDS = {(20240520, 1): np.dtype("<u2"), (20240801, 7): np.dtype("<u4")}
MEGATRON_MAGIC = b"MMIDIDX\0\0"
_MYPT_STATE = "tokenizer_state.json"
MEGATRON_TYPES = {4: np.dtype("<i4"), 5: np.dtype("<i8"), 8: np.dtype("<u2")}


@dataclass(frozen=True)
class _Part:
    """Ids in a file."""

    path: Path
    offset: int
    num_tokens: int
    dtype: np.dtype[Any]
    ends_path: Path | None = None
    """Where a file says the documents end: ours (.docs) or Megatron's lengths."""
    ends_offset: int = 0
    num_documents: int = 0
    ends_are_lengths: bool = False


@dataclass(frozen=True)
class TokenSource:
    """The ids of one split, in any format, as one stream."""

    parts: list[_Part]
    end_id: int | None = field(default=None)

    @property
    def num_tokens(self) -> int:
        """All ids of the stream."""
        return sum(part.num_tokens for part in self.parts)

    def iter_chunks(
        self, first: int, last: int
    ) -> Iterator[tuple[npt.NDArray[Any], npt.NDArray[np.int64]]]:
        """Give ids `first` to `last`, a few MiB at a time, and the document ends in each chunk."""
        base = 0
        for part in self.parts:
            begin, end = max(first - base, 0), min(last - base, part.num_tokens)
            for start in range(begin, end, STEP_TOKENS):
                stop = min(start + STEP_TOKENS, end)
                ids = _read_ids(part, start, stop)
                yield ids, self._find_ends(part, ids, start, stop)
            base += part.num_tokens

    def _find_ends(
        self, part: _Part, ids: npt.NDArray[Any], start: int, stop: int
    ) -> npt.NDArray[np.int64]:
        if part.ends_path is not None:
            found = [
                ends[(ends > start) & (ends <= stop)] - start
                for ends in _iter_ends(part, start, stop)
            ]
            return np.concatenate(found) if found else np.empty(0, np.int64)
        if self.end_id is None:
            return np.empty(0, np.int64)
        return np.flatnonzero(ids == self.end_id) + 1


def _read_ids(part: _Part, start: int, stop: int) -> npt.NDArray[Any]:
    with part.path.open("rb", buffering=0) as file:
        file.seek(part.offset + start * part.dtype.itemsize)
        data = file.read((stop - start) * part.dtype.itemsize)
    if len(data) != (stop - start) * part.dtype.itemsize:
        raise DataError("the file ends too early", path=part.path)
    return np.frombuffer(data, dtype=part.dtype)


def _iter_ends(part: _Part, start: int, stop: int) -> Iterator[npt.NDArray[np.int64]]:
    """Where the documents end that end in (start, stop], a piece of the index at a time.

    Documents without a token end where the one before does, and are left out.
    """
    assert part.ends_path is not None
    with part.ends_path.open("rb", buffering=0) as file:
        row = _find_row(file, part, start)
        last = start
        while row < part.num_documents:
            ends = _read_ends(file, part, row, min(row + _INDEX_ROWS, part.num_documents))
            if np.any(np.diff(ends, prepend=ends[:1]) < 0) or int(ends[-1]) > part.num_tokens:
                raise DataError("document ends must rise and stay in the file", path=part.ends_path)
            kept = ends[np.diff(ends, prepend=last) > 0]
            if len(kept):
                yield kept
                last = int(kept[-1])
            if last >= stop:
                return
            row += len(ends)


def _find_row(file: Any, part: _Part, start: int) -> int:
    """The first document that ends after `start`, by halving on disk."""
    low, high = 0, part.num_documents
    while low < high:
        middle = (low + high) // 2
        if int(_read_ends(file, part, middle, middle + 1)[0]) > start:
            high = middle
        else:
            low = middle + 1
    return low


def _read_ends(file: Any, part: _Part, first: int, last: int) -> npt.NDArray[np.int64]:
    """Ends of documents `first` to `last`: a .docs file says them; Megatron says where each begins
    and how long it is."""
    if not part.ends_are_lengths:
        return _read_rows(file, part, part.ends_offset + 8 * first, last - first, "<u8")
    lengths = _read_rows(file, part, part.ends_offset + 4 * first, last - first, "<i4")
    pointers_at = part.ends_offset + 4 * part.num_documents
    pointers = _read_rows(file, part, pointers_at + 8 * first, last - first, "<i8")
    ends = pointers // part.dtype.itemsize + lengths
    if np.any(lengths < 0) or np.any(ends[:-1] * part.dtype.itemsize != pointers[1:]):
        raise DataError(
            f"the documents from {first} on do not follow one another in the file",
            path=part.ends_path,
        )
    return ends


def _read_rows(
    file: Any, part: _Part, offset: int, count: int, dtype: str
) -> npt.NDArray[np.int64]:
    size = count * np.dtype(dtype).itemsize
    data = os.pread(file.fileno(), size, offset)
    if len(data) != size:
        raise DataError("the index ends too early", path=part.ends_path)
    return np.frombuffer(data, dtype=dtype).astype(np.int64)


def open_source(
    path: Path,
    *,
    kind: str,
    dtype: str,
    end_id: int | None,
    on_notice: Callable[[str], None] = lambda _: None,
) -> dict[str, TokenSource]:
    """Find the ids at `path`: splits where the names tell them, else one split named all.

    A file for testing is left out: it would be learned.
    """
    groups: dict[str, list[_Part]] = {}
    for file in _list_files(path, kind):
        split = file.parent.name if kind == "mypt" else _split_by_name(file)
        if split == "test" and path.is_dir():
            on_notice(f"{file} is left out, by its name it is for testing")
            continue
        groups.setdefault(split, []).append(_open_part(file, kind, np.dtype(dtype), on_notice))
    if not groups:
        raise DataError(f"no files of the kind {kind} here", path=path)
    if kind != "mypt" and len(groups) == 1:
        groups = {"all": next(iter(groups.values()))}
    return {split: TokenSource(parts, end_id) for split, parts in groups.items()}


def _split_by_name(path: Path) -> str:
    words = set(re.split("[^a-z]+", path.stem.lower()))
    if words & {"val", "valid", "validation", "eval", "dev"}:
        return "val"
    return "test" if "test" in words else "train"


def list_source_files(path: Path, *, kind: str) -> list[Path]:
    """All files that an import reads."""
    found = _list_files(path, kind)
    if kind == "megatron":
        found += [file.with_suffix(".bin") for file in found if file.with_suffix(".bin").exists()]
    return found


def load_source_tokenizer(settings: ConvertSettings) -> Tokenizer:
    """Load the tokenizer of ids to import: the one named, or the one that lies with them."""
    state_path = settings.in_path / _MYPT_STATE
    if settings.source_kind != "mypt":
        return Tokenizer.load(settings.tokenizer)
    state = files.read_json(state_path) if state_path.is_file() else {"token_kind": "gpt2"}
    kind = state.get("token_kind") if isinstance(state, dict) else None
    if kind != "char":
        if kind != "gpt2" and settings.tokenizer == "gpt2":
            raise DataError(
                f"token_kind {kind!r} is not known, expected gpt2 or char",
                path=state_path,
                next_step="name the tokenizer of these ids with --tokenizer",
            )
        return Tokenizer.load(settings.tokenizer)
    characters = state.get("chars")
    if isinstance(characters, str):
        characters = list(characters)
    if not isinstance(characters, list) or not all(
        isinstance(sign, str) and len(sign) == 1 for sign in characters
    ):
        raise DataError("chars must be a list of single characters", path=state_path)
    # The ids are places in this list, so the special tokens come after it.
    names = (END_OF_TEXT, UNKNOWN)
    vocabulary = Vocabulary(
        kind="char",
        tokens=tuple(
            [sign.encode("utf-8", "surrogatepass") for sign in characters]
            + [name.encode() for name in names]
        ),
        special_tokens={name: len(characters) + place for place, name in enumerate(names)},
    )
    return Tokenizer(vocabulary, name="char")


def _list_files(path: Path, kind: str) -> list[Path]:
    if kind == "mypt":
        return [file for split in layout.SPLITS for file in sorted((path / split).glob("*.bin"))]
    suffix = {"npy": ".npy", "megatron": ".idx"}.get(kind, ".bin")
    if path.is_dir():
        return sorted(path.glob(f"*{suffix}"))
    if kind == "megatron":
        path = path.with_suffix(".idx")
    if not path.is_file():
        raise DataError("no such file", path=path, next_step="check the path for typing errors")
    return [path]


def _open_part(
    path: Path, kind: str, dtype: np.dtype[Any], on_notice: Callable[[str], None]
) -> _Part:
    size = path.stat().st_size
    if kind == "npy":
        return _open_npy(path)
    if kind == "megatron":
        return _open_megatron(path, on_notice)
    if kind == "llmc":
        return _open_llmc(path, size)
    if kind == "mypt":
        dtype = np.dtype("<u4")
    if size % dtype.itemsize:
        raise DataError(f"{size} bytes are no whole number of {dtype.name} ids", path=path)
    return _Part(path, 0, size // dtype.itemsize, dtype)


def _open_npy(path: Path) -> _Part:
    try:
        array = np.load(path, mmap_mode="r")
    except ValueError as error:
        raise DataError(
            f"not a .npy file: {error}", path=path, next_step="a headerless one: --from nanogpt"
        ) from None
    if array.ndim != 1 or array.dtype.kind not in "iu":
        raise DataError(
            f"an array of {array.ndim} dimensions of {array.dtype}, expected one of whole numbers",
            path=path,
        )
    return _Part(path, int(array.offset), len(array), array.dtype)


def _open_llmc(path: Path, size: int) -> _Part:
    with path.open("rb") as file:
        head = file.read(LLMC_HEADER_BYTES)
    header = np.frombuffer(head[: len(head) // 4 * 4], dtype="<i4")
    kind = (int(header[0]), int(header[1])) if len(header) == 256 else (0, 0)
    dtype = LLMC_KINDS.get(kind)
    if dtype is None:
        raise DataError(
            f"the header begins with {kind[0]} {kind[1]}, expected 20240520 1 or 20240801 7",
            path=path,
            next_step="without a header: --from nanogpt",
        )
    count = int(header[2])
    if size != LLMC_HEADER_BYTES + count * dtype.itemsize:
        raise DataError(f"the header says {count} ids, the file has {size} bytes", path=path)
    return _Part(path, LLMC_HEADER_BYTES, count, dtype)


def _open_megatron(path: Path, on_notice: Callable[[str], None]) -> _Part:
    data_path = path.with_suffix(".bin")
    with path.open("rb") as file:
        head = file.read(34)
    if len(head) != 34 or not head.startswith(MEGATRON_MAGIC):
        raise DataError("not an index of Megatron: MMIDIDX is missing", path=path)
    version, code, sequences, _ = struct.unpack("<QBQQ", head[9:])
    dtype = MEGATRON_TYPES.get(code)
    if version != 1 or dtype is None:
        raise DataError(f"version {version} and type {code} are not supported", path=path)
    if not data_path.is_file():
        raise DataError("the .bin of this index is missing", path=data_path)
    size = data_path.stat().st_size
    part = _Part(
        data_path, 0, size // dtype.itemsize, dtype, path, 34, sequences, ends_are_lengths=True
    )
    count, empty = _measure_index(part)
    if size != count * dtype.itemsize:
        raise DataError(f"the index says {count} ids, the file has {size} bytes", path=data_path)
    if empty:
        on_notice(f"{path}: {empty} documents without a single id are left out")
    return part


def _measure_index(part: _Part) -> tuple[int, int]:
    """The ids that an index of Megatron speaks of, and how many of its documents have none."""
    assert part.ends_path is not None
    total = empty = 0
    with part.ends_path.open("rb", buffering=0) as file:
        for row in range(0, part.num_documents, _INDEX_ROWS):
            count = min(_INDEX_ROWS, part.num_documents - row)
            lengths = _read_rows(file, part, part.ends_offset + 4 * row, count, "<i4")
            if int(lengths.min()) < 0:
                raise DataError(f"a document of {lengths.min()} ids", path=part.ends_path)
            total += int(lengths.sum())
            empty += int(np.count_nonzero(lengths == 0))
    return total, empty


def open_dataset(info: layout.DatasetInfo, split: str) -> TokenSource:
    """Give the shards of a split as one stream."""
    return TokenSource(
        [
            _Part(
                shard.path,
                0,
                shard.num_tokens,
                info.dtype,
                layout.documents_path(shard.path) if shard.num_documents else None,
                0,
                shard.num_documents,
            )
            for shard in info.shards[split]
        ]
    )


def iter_lengths(source: TokenSource) -> Iterator[npt.NDArray[np.int64]]:
    """Give the documents' lengths, some at a time; what follows the last end is one more."""
    carried = 0
    for part in source.parts:
        done = 0
        pieces = _iter_ends(part, 0, part.num_tokens) if part.ends_path is not None else ()
        for ends in pieces:
            lengths = np.diff(ends, prepend=done)
            lengths[0] += carried
            carried, done = 0, int(ends[-1])
            yield lengths
        carried += part.num_tokens - done
    if carried:
        yield np.array([carried], dtype=np.int64)
