"""Find the token files of a path: a prepared dataset, a .npy, a .bin, a folder of .bin, an array.

In:      a path or an array, which split, and the dtype if the file has no header
Out:     TokenSource: files with offsets and lengths, read as one stream
Memory:  a row of about 200 bytes per shard; of file contents only samples of a few KiB are read
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt

from lowtide.dataset.layout import DatasetInfo, load_dataset_info
from lowtide.dataset.provenance import Provenance, read_provenance, record_path
from lowtide.dataset.tokenfiles.shards import documents_path, mark_borders, open_shard
from lowtide.dataset.tokenfiles.streams import TokenFile
from lowtide.dataset.tokenfiles.table import open_token_file
from lowtide.errors import DataError, UsageError, from_os_error
from lowtide.filenames import METADATA_NAME
from lowtide.files import checksum_bytes
from lowtide.loader.storedtokens import CacheSettings, StoredTokens, open_stored_dataset
from lowtide.quickclasses import dataclass
from lowtide.settings import require_counts
from lowtide.stores.urls import StoreURL, store_url

__all__ = ["Split", "TokenSource", "find_tokens", "sample_fingerprint"]

Split = Literal["train", "val", "all"]

_SAMPLE_BYTES = 4096


@dataclass(frozen=True)
class TokenSource:
    """Files that are read consecutively as one stream of tokens."""

    path: Path
    split: Split
    shards: tuple[TokenFile, ...]
    dtype: np.dtype[Any]
    fingerprint: str
    """A hash of the data: checksums of shards if known, else sizes and samples."""
    first_token: int = 0
    """Offset of this split in a file that holds both splits."""
    total_tokens: int = 0
    """Tokens of all splits together."""
    vocab_size: int | None = None
    tokenizer_fingerprint: str | None = None
    tokenizer_dir: Path | None = None
    notice: str | None = None
    """Notes on what could not be checked."""
    array: npt.NDArray[Any] | None = None
    """The ids of this split, if they are in memory."""
    stored: StoredTokens | None = None
    """The shards if they are in an object store; `path` is then the local copy of the metadata."""

    @property
    def place(self) -> str:
        """The path or URL given by the user."""
        return str(self.path if self.stored is None else self.stored.url)

    @property
    def num_tokens(self) -> int:
        """Tokens of this split."""
        return sum(shard.num_tokens for shard in self.shards)


def find_tokens(
    path: str | os.PathLike[str] | npt.ArrayLike,
    *,
    split: Split = "train",
    dtype: npt.DTypeLike | None = None,
    val_fraction: float = 0.1,
    val_tokens: int | None = None,
    eval_only: bool = False,
    cache: CacheSettings | None = None,
) -> TokenSource:
    """Describe the tokens at `path`; only names, sizes and headers are read.

    `path` may also be an array of ids; one that is mapped from a file is read as that file. A
    single file or array is split in two: the first part is "train", the last `val_fraction` of it,
    or its last `val_tokens` tokens, is "val"; "all" is the whole.
    """
    if split not in get_args(Split):
        raise UsageError(f"split {split!r} is not one of {', '.join(get_args(Split))}")
    share: Any = val_fraction
    if not (isinstance(share, float | int) and 0 <= share < 1):
        raise UsageError(f"val_fraction {val_fraction!r} does not lie between 0 and 1")
    require_counts(least=None, val_tokens=val_tokens)
    if eval_only:
        split = "val"
    given = None if dtype is None else _checked_dtype(dtype)
    if not isinstance(path, str | os.PathLike):
        source = _from_array(path, dtype=given)
        return _take_portion(source, split, val_fraction=val_fraction, val_tokens=val_tokens)
    if not os.fspath(path):  # pathlib would read it as the current folder
        raise UsageError("the path of the tokens is empty", next_step="the current folder is .")
    url, path = store_url(path), Path(path)
    if val_tokens is not None and (url is not None or path.is_dir()):
        raise UsageError(
            f"val_tokens is {val_tokens}, and a folder has splits of its own",
            next_step="leave val_tokens out; lowtide prepare --val-fraction decides the splits",
        )
    if url is not None:
        return _from_store(url, split, cache or CacheSettings())
    if path.is_dir():
        return _find_in_folder(path, split=split, dtype=given, eval_only=eval_only)
    source = _describe_file(path, dtype=given)
    return _take_portion(source, split, val_fraction=val_fraction, val_tokens=val_tokens)


def _from_array(given: npt.ArrayLike, *, dtype: np.dtype[Any] | None = None) -> TokenSource:
    """Describe an array: as the file that it is mapped from, or as an array in memory."""
    ids = given if isinstance(given, np.ndarray) else np.asarray(given)
    if dtype is not None and dtype != ids.dtype:
        raise UsageError(f"the array holds {ids.dtype}, not {dtype} as given")
    dtype = ids.dtype
    if ids.ndim != 1 or dtype.kind not in "iu" or not dtype.isnative or dtype.byteorder == ">":
        raise UsageError(
            f"an array of {dtype} with shape {ids.shape} holds no ids",
            next_step="give one row of whole numbers, such as ids.ravel().astype('uint16')",
        )
    place = _place_in_file(ids)
    name, offset = (Path("array"), 0) if place is None else place
    return TokenSource(
        path=name,
        split="all",
        shards=(TokenFile(name, offset, len(ids), dtype),),
        dtype=dtype,
        fingerprint=_array_fingerprint(ids),
        total_tokens=len(ids),
        array=ids if place is None else None,
    )


def _place_in_file(ids: npt.NDArray[Any]) -> tuple[Path, int] | None:
    """The file and byte offset of a mapped array; None if the ids are only in memory."""
    mapped: Any = ids
    while isinstance(mapped.base, np.ndarray):  # views, of which the first is the map itself
        mapped = mapped.base
    if type(mapped) is not np.memmap or not ids.flags.c_contiguous:
        return None
    if mapped.mode not in ("r", "r+"):  # a copy-on-write map may differ from its file
        return None
    if mapped.filename is None or not Path(mapped.filename).is_file():
        return None
    begin = ids.__array_interface__["data"][0] - mapped.__array_interface__["data"][0]
    place = Path(mapped.filename), mapped.offset + begin
    return place if _are_there(ids, *place) else None


def _are_there(ids: npt.NDArray[Any], path: Path, offset: int) -> bool:
    """True if a file has these ids, by samples: another file may have replaced the mapped one."""
    try:
        with path.open("rb", buffering=0) as file:
            return all(
                os.pread(file.fileno(), len(sample), offset + first * ids.dtype.itemsize) == sample
                for first, sample in _samples(ids)
            )
    except OSError:
        return False


def _array_fingerprint(ids: npt.NDArray[Any]) -> str:
    """Like `sample_fingerprint`, for ids in memory."""
    samples = (sample for _, sample in _samples(ids))
    return checksum_bytes(b"".join([f"{len(ids)} {ids.dtype.name}".encode(), *samples]))


def _samples(ids: npt.NDArray[Any]) -> Iterator[tuple[int, bytes]]:
    """Samples of ids, each with the place of its first id."""
    count = _SAMPLE_BYTES // ids.dtype.itemsize
    for place in sorted({len(ids) * i // 15 for i in range(15)} | {max(0, len(ids) - count)}):
        yield place, ids[place : place + count].tobytes()


def _checked_dtype(dtype: npt.DTypeLike) -> np.dtype[Any]:
    try:
        result = np.dtype(dtype)
    except (TypeError, ValueError, SyntaxError):  # SyntaxError: NumPy parses "1,2" as an expression
        raise UsageError(
            f"{dtype!r} is not a type of numbers", next_step="give uint16, uint32 or int32"
        ) from None
    if result.kind not in "iu" or result.itemsize not in (1, 2, 4, 8):
        raise UsageError(
            f"dtype {result} cannot hold ids", next_step="give uint16, uint32 or int32"
        )
    return result


def _find_in_folder(
    path: Path, *, split: Split, dtype: np.dtype[Any] | None, eval_only: bool
) -> TokenSource:
    if (path / METADATA_NAME).is_file():
        return _from_dataset(load_dataset_info(path), split)
    pair = path / "train.bin", path / "val.bin"
    if all(file.is_file() for file in pair):  # the layout of nanoGPT's data folders
        chosen = {"train": pair[:1], "val": pair[1:], "all": pair}[split]
        return _from_files(path, chosen, split=split, dtype=dtype)
    flat = sorted(file for file in path.glob("*.bin") if not file.name.startswith("."))
    if flat and (eval_only or split == "all"):
        return _from_files(path, flat, split=split, dtype=dtype)
    if flat:
        raise DataError(
            f"a folder of {len(flat)} .bin files without {METADATA_NAME} has no {split} split",
            path=path,
            next_step="give eval_only=True to evaluate on all of it, or split='all'",
        )
    raise DataError(
        f"no tokens here: neither {METADATA_NAME} nor .bin files",
        path=path,
        next_step=f"lowtide prepare --input-files FILES --out-dir {path}",
    )


def _from_dataset(info: DatasetInfo, split: Split) -> TokenSource:
    names = ("train", "val") if split == "all" else (split,)
    shards = mark_borders(
        [open_shard(shard, info.dtype) for name in names for shard in info.shards[name]]
    )
    if not shards:
        raise DataError(
            f"no {split} shards found",
            path=info.root / split,
            next_step=f"lowtide inspect {info.root}   (shows what each split holds)",
        )
    return TokenSource(
        path=info.root,
        split=split,
        shards=shards,
        dtype=info.dtype,
        fingerprint=info.fingerprint,
        total_tokens=sum(info.num_tokens(name) for name in ("train", "val")),
        vocab_size=info.vocab_size,
        tokenizer_fingerprint=info.tokenizer_fingerprint,
        tokenizer_dir=info.root,
        notice=info.describe_moved_in(),
    )


def _from_store(url: StoreURL, split: Split, cache: CacheSettings) -> TokenSource:
    found = open_stored_dataset(url, cache)
    try:
        source = _from_dataset(found.info, split)
    except DataError as error:
        raise DataError(error.message, path=str(url)) from None
    names = ("train", "val") if split == "all" else (split,)
    shards = [shard for name in names for shard in found.shards[name]]
    marked = tuple(
        replace(shard, begins_document=part.begins_document)
        for shard, part in zip(shards, source.shards, strict=True)
    )
    return replace(source, stored=StoredTokens(url, marked, cache))


def _from_files(
    path: Path, files: Sequence[Path], *, split: Split, dtype: np.dtype[Any] | None
) -> TokenSource:
    parts = [_describe_file(file, dtype=dtype) for file in files]
    for part in parts:
        if part.dtype != parts[0].dtype:
            raise DataError(
                f"{part.path.name} holds {part.dtype}, {parts[0].path.name} {parts[0].dtype}",
                path=part.path,
            )
    shards = mark_borders([shard for part in parts for shard in part.shards])
    return TokenSource(
        path=path,
        split=split,
        shards=shards,
        dtype=parts[0].dtype,
        fingerprint=checksum_bytes("\n".join(part.fingerprint for part in parts).encode()),
        total_tokens=sum(shard.num_tokens for shard in shards),
    )


def _describe_file(path: Path, *, dtype: np.dtype[Any] | None) -> TokenSource:
    """Describe a whole .npy or .bin file."""
    try:
        found = open_token_file(path, dtype=dtype)
        with path.open("rb", buffering=0) as file:
            fingerprint = sample_fingerprint(file.fileno(), os.fstat(file.fileno()).st_size)
    except FileNotFoundError:
        raise DataError(
            f"{path.name} not found", path=path, next_step=_advice_for_missing(path)
        ) from None
    except OSError as error:
        raise from_os_error(error) from error
    if dtype is not None and dtype != found.dtype:
        raise DataError(f"{path.name} holds {found.dtype}, not {dtype} as given", path=path)
    if found.dtype.byteorder == ">":
        raise DataError(
            f"{path.name} holds {found.dtype}, expected one row of little-endian ids",
            path=path,
            next_step="store the ids with numpy.save(path, ids.astype('int32'))",
        )
    known = read_provenance(path) if path.suffix == ".npy" else None
    if known is not None:
        _require_recorded(path, known, found.num_tokens, found.dtype)
    return TokenSource(
        path=path,
        split="all",
        shards=(replace(found, num_documents=_count_documents(path)),),
        dtype=found.dtype,
        fingerprint=fingerprint,
        total_tokens=found.num_tokens,
        vocab_size=None if known is None else known.vocab_size,
        tokenizer_fingerprint=None if known is None else known.tokenizer_fingerprint,
    )


def _require_recorded(path: Path, known: Provenance, num_tokens: int, dtype: np.dtype[Any]) -> None:
    """Refuse a file that is not the one its record was written for."""
    if (num_tokens, dtype.name) != (known.num_tokens, known.dtype):
        raise DataError(
            f"{path.name} holds {num_tokens} tokens of {dtype.name}, {record_path(path).name} says "
            f"{known.num_tokens} of {known.dtype}: it is not the file that lowtide made",
            path=path,
            next_step="remove the record if the file is yours, or both, and pretokenize again",
        )


def _advice_for_missing(path: Path) -> str:
    text = path.with_suffix(".txt")
    if path.suffix == ".npy" and text.is_file():
        return f"lowtide pretokenize {text}"
    return "check the path for typing errors"


def _count_documents(path: Path) -> int:
    ends = documents_path(path)
    return ends.stat().st_size // 8 if path.suffix == ".bin" and ends.is_file() else 0


def sample_fingerprint(descriptor: int, size: int) -> str:
    """Hash a file's size, its ends and 14 samples between: cheap, and equal for any copy."""
    places = sorted({size * i // 15 for i in range(15)} | {max(0, size - _SAMPLE_BYTES)})
    samples = [os.pread(descriptor, _SAMPLE_BYTES, place) for place in places]
    return checksum_bytes(b"".join([str(size).encode(), *samples]))


def _take_portion(
    source: TokenSource, split: Split, *, val_fraction: float, val_tokens: int | None
) -> TokenSource:
    """Split a single file in two: training first, validation from the end."""
    total = source.num_tokens
    if split == "all":
        return source
    if val_tokens is None:
        boundary = int(total * (1 - val_fraction))
    elif 0 <= val_tokens < total:
        boundary = total - val_tokens
    else:
        raise DataError(
            f"{val_tokens} validation tokens asked for, {source.path.name} holds {total} in all",
            path=source.path,
        )
    whole = source.shards[0]
    first, count = (0, boundary) if split == "train" else (boundary, total - boundary)
    span = replace(
        whole,
        byte_offset=whole.byte_offset + first * source.dtype.itemsize,
        num_tokens=count,
        num_documents=whole.num_documents if first == 0 else 0,
    )
    identity = f"{source.fingerprint}\n{first}\n{count}".encode()
    return replace(
        source,
        split=split,
        shards=(span,),
        first_token=first,
        fingerprint=checksum_bytes(identity),
        array=None if source.array is None else source.array[first : first + count],
    )
