"""One shard: a file of ids, and beside it a file with the ends of its documents.

In:      arrays of ids and document ends (writing); a file (reading)
Out:     shard_00000-TOKENIZER-DATA.bin + the same .docs; ShardInfo
Memory:  a chunk while writing; a buffer of 4 MiB to check a shard that is not in the metadata
"""

from __future__ import annotations

import json
import re
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import xxhash

from lowtide import _native, files
from lowtide.arrays import np
from lowtide.dataset.tokenfiles.intact import damaged_file, require_intact
from lowtide.dataset.tokenfiles.streams import TokenFile
from lowtide.errors import DataError
from lowtide.quickclasses import dataclass
from lowtide.stores.paths import is_stored
from lowtide.tokenizer.vocabulary import id_bytes

if TYPE_CHECKING:
    import numpy.typing as npt

__all__ = [
    "DOCUMENTS_SUFFIX",
    "ID_BYTES",
    "ShardInfo",
    "checksum_head",
    "documents_path",
    "find_tag",
    "id_chunk",
    "load_document_ends",
    "load_shard_tokens",
    "mark_borders",
    "may_continue",
    "names_tokenizer",
    "open_shard",
    "pick_dtype",
    "plain_name",
    "read_shard_tokens",
    "scan_shard",
    "shard_from_row",
    "shard_name",
    "shard_number",
    "shard_row",
    "shard_tag",
    "write_shard_stream",
]

DOCUMENTS_SUFFIX = ".docs"
ID_BYTES = {"uint16": 2, "uint32": 4}
_SCAN_BYTES = 4 << 20
_HEAD_BYTES = 4096
_ENDS_STEP = 1 << 14
_NAME = re.compile(r"shard_(\d+)(?:-([0-9a-f]{8})-[0-9a-f]{8})?")


@dataclass(frozen=True)
class ShardInfo:
    """One file of tokens."""

    path: Path
    num_tokens: int
    num_documents: int
    """Documents that end in this shard; 0 if there is no .docs file."""
    min_id: int
    max_id: int
    checksum: str | None
    """xxh3-128 of the file, None for a shard moved in by hand."""
    head: str | None = None
    """xxh3-64 of its first bytes, to distinguish it from another shard of the same size."""
    ends_checksum: str | None = None
    """xxh3-128 of its .docs file; not stored by earlier versions."""


def shard_tag(tokenizer_fingerprint: str, *made_of: Any) -> str:
    """The part of a shard's name that identifies its tokenizer and everything that decided its ids.

    So shards of two datasets have the same name only if they are the same shard, and a single shard
    shows which tokenizer made it.

    >>> shard_tag("0123456789abcdef", ["content"], 10)
    '01234567-bc013c54'
    >>> shard_tag("0123456789abcdef", iter(["content"]), 10)
    '01234567-bc013c54'
    """
    digest = xxhash.xxh3_64(b"[" + json.dumps(tokenizer_fingerprint).encode())
    for part in made_of:
        if not isinstance(part, Iterator):
            digest.update(b", " + json.dumps(part, sort_keys=True).encode())
            continue
        mark = b", ["
        for row in cast("Iterator[Any]", part):  # a list of them is never held
            digest.update(mark + json.dumps(row).encode())
            mark = b", "
        digest.update(b"]" if mark == b", " else b", []")
    digest.update(b"]")
    return f"{tokenizer_fingerprint[:8]}-{digest.hexdigest()[:8]}"


def shard_name(number: int, tag: str = "") -> str:
    """The file name of shard `number`; without a tag, as in the guides and earlier versions.

    >>> shard_name(46, "01234567-bc013c54"), shard_name(46)
    ('shard_00046-01234567-bc013c54.bin', 'shard_00046.bin')
    """
    return f"shard_{number:05d}-{tag}.bin" if tag else f"shard_{number:05d}.bin"


def shard_number(path: str | Path) -> int | None:
    """Return the number in a shard's name; None for other names.

    >>> shard_number("train/shard_00046-01234567-bc013c54.bin"), shard_number("mine.bin")
    (46, None)
    """
    match = _NAME.fullmatch(Path(path).stem)
    return int(match[1]) if match else None


def find_tag(path: str | Path) -> str | None:
    """The tag in the name of a shard or of its .docs file; None if it has none.

    >>> find_tag("train/shard_00046-01234567-bc013c54.docs"), find_tag("shard_00046.bin")
    ('01234567-bc013c54', None)
    """
    stem = Path(path).stem
    return stem.partition("-")[2] or None if _NAME.fullmatch(stem) else None


def may_continue(before: str | Path, shard: str | Path) -> bool:
    """True if a document that is cut at the end of one shard may go on in another.

    The rest of the last document of train may begin val; shards that an append added, or that were
    moved in by hand, begin with a document of their own.

    >>> may_continue("shard_00003.bin", "shard_00004.bin")
    True
    >>> may_continue("shard_00003.bin", "shard_00005.bin")
    False
    >>> may_continue("shard_00003-01234567-bc013c54.bin", "shard_00004-01234567-0a0b0c0d.bin")
    False
    """
    numbers = shard_number(before), shard_number(shard)
    if numbers[0] is None or numbers[1] is None:
        return False
    return numbers[0] + 1 == numbers[1] and find_tag(before) == find_tag(shard)


def mark_borders(parts: Sequence[TokenFile]) -> tuple[TokenFile, ...]:
    """The files of a stream, each marked if a document begins with it, whatever came before."""
    return (
        *parts[:1],
        *(
            part if may_continue(before.path, part.path) else replace(part, begins_document=True)
            for before, part in pairwise(parts)
        ),
    )


def names_tokenizer(path: str | Path, tokenizer_fingerprint: str) -> bool | None:
    """True if a shard's name has this tokenizer's tag, None if it has no tag."""
    match = _NAME.fullmatch(Path(path).stem)
    return None if match is None or match[2] is None else match[2] == tokenizer_fingerprint[:8]


def plain_name(name: str) -> str:
    """A shard's name without its tag.

    >>> plain_name("train/shard_00046-01234567-bc013c54.bin")
    'train/shard_00046.bin'
    """
    return re.sub(r"(shard_\d+)-[0-9a-f]{8}-[0-9a-f]{8}(?=\.bin$)", r"\1", name)


def documents_path(shard_path: Path) -> Path:
    """Return the path of the file with the ends of a shard's documents."""
    return shard_path.with_suffix(DOCUMENTS_SUFFIX)


def pick_dtype(vocab_size: int) -> np.dtype[Any]:
    """The smallest type that holds every id below `vocab_size`.

    >>> pick_dtype(50257).name, pick_dtype(65536).name, pick_dtype(65537).name
    ('uint16', 'uint16', 'uint32')
    """
    return np.dtype(f"<u{id_bytes(vocab_size)}")


def id_chunk(
    ids: npt.NDArray[Any], document_ends: npt.NDArray[Any], *, vocab_size: int, path: Path
) -> tuple[memoryview, memoryview]:
    """Convert ids and the document ends within them to a chunk for `write_shard_stream`."""
    low, high = (int(ids.min()), int(ids.max())) if len(ids) else (0, 0)
    if low < 0 or high >= vocab_size:
        wrong = low if low < 0 else high
        raise DataError(
            f"id {wrong} is outside the vocabulary of {vocab_size}",
            path=path,
            next_step="name the tokenizer that made these ids with --tokenizer, or bring the file "
            "back as it was",
        )
    data = np.ascontiguousarray(ids, dtype=pick_dtype(vocab_size)).tobytes()
    return memoryview(data), memoryview(document_ends.astype("<u8").tobytes())


def write_shard_stream(
    path: Path,
    chunks: Iterable[tuple[memoryview, memoryview]],
    *,
    vocab_size: int,
    publisher: files.Publisher | None = None,
    on_written: Callable[[int, int, int], None] = _native.start_writeback,
) -> ShardInfo:
    """Write a shard of any size from chunks of ids, and of document ends within each as uint64.

    Its folder is flushed by `write_metadata`, once for all shards. A `publisher` gets the finished
    files, to flush and rename them. `on_written` is called with the descriptor, the offset and the
    size of every chunk, to start writeback.
    """
    item_bytes = id_bytes(vocab_size)
    digest, ends_digest = xxhash.xxh3_128(), xxhash.xxh3_128()
    low, high, position = 1 << 32, 0, 0
    head = bytearray()
    num_documents = 0
    with (
        files.atomic_file(
            documents_path(path), sync_folder=False, publisher=publisher
        ) as ends_file,
        files.atomic_file(path, sync_folder=False, publisher=publisher) as file,
    ):
        for ids, chunk_ends in chunks:
            if not len(ids):
                continue
            lowest, highest = _native.measure_ids(ids, item_bytes)
            low, high = min(low, lowest), max(high, highest)
            if high >= vocab_size:
                raise DataError(f"id {high} is outside the vocabulary of {vocab_size}", path=path)
            digest.update(ids)
            file.write(ids)
            # Start writeback now, not when the shard is complete and flushed.
            on_written(file.fileno(), position * item_bytes, ids.nbytes)
            head += ids[: _HEAD_BYTES - len(head)]
            ends = chunk_ends.cast("Q")
            for begin in range(0, len(ends), _ENDS_STEP):  # a list of all would take 40 bytes each
                rows = array("Q", [end + position for end in ends[begin : begin + _ENDS_STEP]])
                ends_digest.update(rows)
                ends_file.write(rows)
            num_documents += len(ends)
            position += len(ids) // item_bytes
    return ShardInfo(
        path=path,
        num_tokens=position,
        num_documents=num_documents,
        min_id=low,
        max_id=high,
        checksum=digest.hexdigest(),
        head=xxhash.xxh3_64_hexdigest(bytes(head)),
        ends_checksum=ends_digest.hexdigest(),
    )


def checksum_head(path: str | Path) -> str:
    """Return the xxh3-64 of a shard's first bytes."""
    path = Path(path) if isinstance(path, str) else path
    _require_file(path)
    with path.open("rb", buffering=0) as file:
        return xxhash.xxh3_64_hexdigest(file.read(_HEAD_BYTES))


def _check_ends(ends: npt.NDArray[Any], num_tokens: int, path: Path) -> None:
    if len(ends) and (int(ends[-1]) > num_tokens or bool(np.any(ends[1:] <= ends[:-1]))):
        raise DataError(
            f"document ends must rise and stay within the shard's {num_tokens} tokens",
            path=documents_path(path),
        )


def shard_row(root: Path, shard: ShardInfo) -> dict[str, Any]:
    """Return the metadata row of a shard."""
    return {
        "file": shard.path.relative_to(root).as_posix(),
        "tokens": shard.num_tokens,
        "documents": shard.num_documents,
        "min_id": shard.min_id,
        "max_id": shard.max_id,
        "xxh3_128": shard.checksum,
        "head_xxh3_64": shard.head,
        "docs_xxh3_128": shard.ends_checksum,
    }


def shard_from_row(root: Path, row: Mapping[str, Any]) -> ShardInfo:
    """Return the shard that a metadata row describes."""
    return ShardInfo(
        path=root / row["file"],
        num_tokens=int(row["tokens"]),
        num_documents=int(row["documents"]),
        min_id=int(row["min_id"]),
        max_id=int(row["max_id"]),
        checksum=row["xxh3_128"],
        head=row.get("head_xxh3_64"),
        ends_checksum=row.get("docs_xxh3_128"),
    )


def _require_file(path: Path) -> None:
    if not is_stored(path):  # an object is always a file
        files.require_file(path)


def scan_shard(
    path: Path, *, dtype: np.dtype[Any], vocab_size: int, tokenizer_fingerprint: str
) -> ShardInfo:
    """Describe a shard that is not in the metadata: size, ids, whether it can belong here."""
    _require_file(path)
    if names_tokenizer(path, tokenizer_fingerprint) is False:
        raise DataError(
            f"{path.name} was made with another tokenizer: its name should say "
            f"{tokenizer_fingerprint[:8]}, as this dataset's tokenizer does",
            path=path,
            next_step="take the file out, and add its text with lowtide append",
        )
    size = path.stat().st_size
    if size == 0 or size % dtype.itemsize:
        raise DataError(
            f"{path.name} has {size} bytes, expected a whole number of {dtype.name} ids", path=path
        )
    low, high, high_halves = 1 << 32, 0, 0
    with path.open("rb", buffering=0) as file:
        while block := file.read(_SCAN_BYTES):
            ids = np.frombuffer(block, dtype=dtype)
            low, high = min(low, int(ids.min())), max(high, int(ids.max()))
            if dtype.itemsize == 2 and size % 4 == 0:
                high_halves = max(high_halves, int(ids[1::2].max()))
    wider = dtype.itemsize == 2 and size % 4 == 0 and size >= 64 and high_halves == 0 and high > 0
    if high >= vocab_size or wider:
        reason = (
            "every second id is 0, as if it held uint32"
            if wider
            else f"it has id {high}, the vocabulary ends at {vocab_size - 1}"
        )
        raise DataError(
            f"{path.name} does not belong to this dataset of {dtype.name} ids: {reason}",
            path=path,
            next_step="take the file out, and add its text with lowtide append",
        )
    ends = documents_path(path)
    num_documents = ends.stat().st_size // 8 if ends.is_file() else 0
    return ShardInfo(path, size // dtype.itemsize, num_documents, low, high, None)


def open_shard(shard: ShardInfo, dtype: np.dtype[Any]) -> TokenFile:
    """Open a shard as a TokenFile, like the other formats."""
    return TokenFile(
        shard.path,
        byte_offset=0,
        num_tokens=shard.num_tokens,
        dtype=dtype,
        num_documents=shard.num_documents,
        ends_path=documents_path(shard.path) if shard.num_documents else None,
        checksum=shard.checksum,
        ends_checksum=shard.ends_checksum if shard.num_documents else None,
    )


def load_shard_tokens(shard: ShardInfo, dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    """Map a shard's tokens, read-only, after verifying its checksum."""
    require_intact(shard.path, shard.checksum)
    return np.memmap(shard.path, dtype=dtype, mode="r", shape=(shard.num_tokens,))


def read_shard_tokens(
    shard: ShardInfo, dtype: np.dtype[Any], begin: int, end: int
) -> npt.NDArray[Any]:
    """Read tokens `begin` to `end` of a shard, which may be an object of a store."""
    with shard.path.open("rb", buffering=0) as file:
        file.seek(begin * dtype.itemsize)
        data = file.read((end - begin) * dtype.itemsize)
    return np.frombuffer(data, dtype=dtype)


def load_document_ends(shard: ShardInfo) -> npt.NDArray[np.uint64]:
    """Read the ends of a shard's documents; empty if they are not recorded."""
    path = documents_path(shard.path)
    if not path.is_file():
        return np.empty(0, dtype="<u8")
    data = path.read_bytes()
    if len(data) % 8:
        raise DataError(f"{path.name} has {len(data)} bytes, expected a multiple of 8", path=path)
    if shard.ends_checksum not in (None, found := files.checksum_bytes(data)):
        raise damaged_file(path, found, shard.ends_checksum)
    ends = np.frombuffer(data, dtype="<u8")
    _check_ends(ends, shard.num_tokens, shard.path)
    return ends
