"""Exchange ids with other programs: nanoGPT, llm.c and modded-nanogpt, Megatron, .npy.

In:      a dataset of ours (export), or files of another program (import)
Out:     files of another program, or a dataset of ours
Memory:  one buffer of 8 MiB of ids
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from lowtide import files
from lowtide.dataset import layout
from lowtide.dataset.journal import begin_work, has_plan, remove_work
from lowtide.dataset.settings import ConvertSettings
from lowtide.dataset.sharding import remove_other_shards
from lowtide.errors import DataError, UsageError
from lowtide.progress import METRICS_NAME, Progress
from lowtide.settings import build_settings
from lowtide.tokenizer import Tokenizer

__all__ = ["ConvertResult", "TokenSource", "convert_dataset", "open_source"]

_STEP_TOKENS = 2 << 20
_LLMC_HEADER_BYTES = 1024
_LLMC_KINDS = {(20240520, 1): np.dtype("<u2"), (20240801, 7): np.dtype("<u4")}
_MEGATRON_MAGIC = b"MMIDIDX\0\0"
_MEGATRON_TYPES = {4: np.dtype("<i4"), 5: np.dtype("<i8"), 8: np.dtype("<u2")}


@dataclass(frozen=True)
class ConvertResult:
    """What was written."""

    paths: list[Path]
    num_tokens: int


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
            for start in range(begin, end, _STEP_TOKENS):
                stop = min(start + _STEP_TOKENS, end)
                ids = _read_ids(part, start, stop)
                yield ids, self._find_ends(part, ids, start, stop)
            base += part.num_tokens

    def _find_ends(
        self, part: _Part, ids: npt.NDArray[Any], start: int, stop: int
    ) -> npt.NDArray[np.int64]:
        if part.ends_path is not None:
            ends = _read_ends(part)
            return ends[(ends > start) & (ends <= stop)] - start
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


def _read_ends(part: _Part) -> npt.NDArray[np.int64]:
    assert part.ends_path is not None
    with part.ends_path.open("rb") as file:
        file.seek(part.ends_offset)
        if part.ends_are_lengths:
            lengths = np.frombuffer(file.read(4 * part.num_documents), dtype="<i4")
            return np.cumsum(lengths, dtype=np.int64)
        return np.frombuffer(file.read(8 * part.num_documents), dtype="<u8").astype(np.int64)


def convert_dataset(settings: ConvertSettings | None = None, /, **options: Any) -> ConvertResult:
    """Import another program's ids as a dataset, or export a dataset for another program."""
    settings = settings or build_settings(ConvertSettings, options)
    with Progress("convert") as progress:
        if settings.to == "lowtide":
            return _import(settings, progress)
        return _export(settings, progress)


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
        split = _split_by_name(file)
        if split == "test" and path.is_dir():
            on_notice(f"{file} is left out, by its name it is for testing")
            continue
        groups.setdefault(split, []).append(_open_part(file, kind, np.dtype(dtype)))
    if not groups:
        raise DataError(f"no files of the kind {kind} here", path=path)
    if len(groups) == 1:
        groups = {"all": next(iter(groups.values()))}
    return {split: TokenSource(parts, end_id) for split, parts in groups.items()}


def _split_by_name(path: Path) -> str:
    words = set(re.split("[^a-z]+", path.stem.lower()))
    if words & {"val", "valid", "validation", "eval", "dev"}:
        return "val"
    return "test" if "test" in words else "train"


def _list_files(path: Path, kind: str) -> list[Path]:
    suffix = {"npy": ".npy", "megatron": ".idx"}.get(kind, ".bin")
    if path.is_dir():
        return sorted(path.glob(f"*{suffix}"))
    if kind == "megatron":
        path = path.with_suffix(".idx")
    if not path.is_file():
        raise DataError("no such file", path=path, next_step="check the path for typing errors")
    return [path]


def _open_part(path: Path, kind: str, dtype: np.dtype[Any]) -> _Part:
    size = path.stat().st_size
    if kind == "npy":
        return _open_npy(path)
    if kind == "megatron":
        return _open_megatron(path)
    if kind == "llmc":
        return _open_llmc(path, size)
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
        head = file.read(_LLMC_HEADER_BYTES)
    header = np.frombuffer(head[: len(head) // 4 * 4], dtype="<i4")
    kind = (int(header[0]), int(header[1])) if len(header) == 256 else (0, 0)
    dtype = _LLMC_KINDS.get(kind)
    if dtype is None:
        raise DataError(
            f"the header begins with {kind[0]} {kind[1]}, expected 20240520 1 or 20240801 7",
            path=path,
            next_step="without a header: --from nanogpt",
        )
    count = int(header[2])
    if size != _LLMC_HEADER_BYTES + count * dtype.itemsize:
        raise DataError(f"the header says {count} ids, the file has {size} bytes", path=path)
    return _Part(path, _LLMC_HEADER_BYTES, count, dtype)


def _open_megatron(path: Path) -> _Part:
    data_path = path.with_suffix(".bin")
    with path.open("rb") as file:
        head = file.read(34)
    if len(head) != 34 or not head.startswith(_MEGATRON_MAGIC):
        raise DataError("not an index of Megatron: MMIDIDX is missing", path=path)
    version, code, sequences, _ = struct.unpack("<QBQQ", head[9:])
    dtype = _MEGATRON_TYPES.get(code)
    if version != 1 or dtype is None:
        raise DataError(f"version {version} and type {code} are not supported", path=path)
    if not data_path.is_file():
        raise DataError("the .bin of this index is missing", path=data_path)
    part = _Part(data_path, 0, 0, dtype, path, 34, sequences, ends_are_lengths=True)
    ends = _read_ends(part)
    count = int(ends[-1]) if len(ends) else 0
    size = data_path.stat().st_size
    if size != count * dtype.itemsize:
        raise DataError(f"the index says {count} ids, the file has {size} bytes", path=data_path)
    return _Part(data_path, 0, count, dtype, path, 34, sequences, ends_are_lengths=True)


def _dataset_source(info: layout.DatasetInfo, split: str) -> TokenSource:
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


def _import(settings: ConvertSettings, progress: Progress) -> ConvertResult:
    root = settings.out_path
    if (root / layout.METADATA_NAME).exists():
        raise UsageError("there is a finished dataset here already", path=root)
    if any((root / split).exists() for split in layout.SPLITS) and not has_plan(
        root, verb="convert"
    ):
        raise UsageError(
            "train or val is here already, but no dataset that it belongs to",
            path=root,
            next_step="name another folder",
        )
    if settings.source_kind == "lowtide":
        raise UsageError("the input is a dataset already", path=settings.in_path)
    tokenizer = Tokenizer.load(settings.tokenizer)
    sources = open_source(
        settings.in_path,
        kind=settings.source_kind or "nanogpt",
        dtype=settings.dtype,
        end_id=tokenizer.end_of_text_id,
        on_notice=progress.note,
    )
    plan = _plan_import(sources, settings)
    total = sum(last - first for _, _, first, last in plan)
    shards: dict[str, list[layout.ShardInfo]] = {split: [] for split in layout.SPLITS}
    root.mkdir(parents=True, exist_ok=True)
    begin_work(root, verb="convert")
    progress.metrics_path = root / METRICS_NAME
    with progress.phase("import", total=total, unit="tokens") as phase:
        for split, source, first, last in plan:
            number = sum(map(len, shards.values()))
            path = root / split / layout.shard_name(number)
            path.parent.mkdir(parents=True, exist_ok=True)
            chunks = (
                layout.id_chunk(ids, ends, vocab_size=tokenizer.vocab_size, path=path)
                for ids, ends in source.iter_chunks(first, last)
            )
            shard = layout.write_shard_stream(path, chunks, vocab_size=tokenizer.vocab_size)
            shards[split].append(shard)
            phase.advance(shard.num_tokens)
    remove_other_shards(root, [shard.path for rows in shards.values() for shard in rows])
    tokenizer.save(root)
    info = layout.write_metadata(
        root,
        shards=shards,
        vocab_size=tokenizer.vocab_size,
        tokenizer_fingerprint=tokenizer.fingerprint,
        tokenization=settings.tokenizer,
        tokens_per_shard=settings.tokens_per_shard,
        input_files=[str(settings.in_path)],
        more={
            "split": {
                "mode": "tail" if "all" in sources else "content",
                "val_fraction": settings.val_fraction,
            },
            # Other programs put end-of-text before, or nowhere: verify must not ask for it.
            "end_of_text_id": None,
            "imported_from": settings.source_kind,
        },
    )
    remove_work(root)
    return ConvertResult([info.root], total)


def _plan_import(
    sources: dict[str, TokenSource], settings: ConvertSettings
) -> list[tuple[str, TokenSource, int, int]]:
    """Give (split, source, first, last) of every shard; one stream is split at its end."""
    stretches: list[tuple[str, TokenSource, int, int]] = []
    if "all" in sources:
        source = sources["all"]
        total = source.num_tokens
        if total < 2:
            raise DataError(f"only {total} ids here", path=settings.in_path)
        wanted = round(total * settings.val_fraction)
        val = min(max(wanted, 1), total - 1) if settings.val_fraction else 0
        stretches = [("train", source, 0, total - val), ("val", source, total - val, total)]
    else:
        stretches = [
            (split, sources[split], 0, sources[split].num_tokens)
            for split in layout.SPLITS
            if split in sources
        ]
    return [
        (split, source, begin, min(begin + settings.tokens_per_shard, last))
        for split, source, first, last in stretches
        for begin in range(first, last, settings.tokens_per_shard)
    ]


def _export(settings: ConvertSettings, progress: Progress) -> ConvertResult:
    info = layout.load_dataset_info(settings.in_path)
    out = settings.out_path
    if out.exists() and any(out.iterdir()):
        raise UsageError("the folder is not empty", path=out, next_step="name another folder")
    out.mkdir(parents=True, exist_ok=True)
    progress.metrics_path = out / METRICS_NAME
    paths: list[Path] = []
    total = sum(map(info.num_tokens, layout.SPLITS))
    with progress.phase("export", total=total, unit="tokens") as phase:
        for split in layout.SPLITS:
            if not info.num_tokens(split):
                continue
            source = _dataset_source(info, split)
            if settings.to == "llmc":
                paths += _export_llmc(out, split, source, info)
            elif settings.to == "megatron":
                paths += _export_megatron(out, split, source, info)
            else:
                paths.append(_export_flat(out, split, source, info, header=settings.to == "npy"))
            phase.advance(source.num_tokens)
    return ConvertResult(paths, total)


def _write_ids(
    file: BinaryIO | Any, source: TokenSource, first: int, last: int, dtype: np.dtype[Any]
) -> None:
    for ids, _ in source.iter_chunks(first, last):
        file.write(ids.astype(dtype, copy=False).tobytes())


def _export_flat(
    out: Path, split: str, source: TokenSource, info: layout.DatasetInfo, *, header: bool
) -> Path:
    signed = np.dtype("<i4") if header and info.dtype.itemsize == 4 else info.dtype
    path = out / f"{split}.{'npy' if header else 'bin'}"
    with files.atomic_file(path) as file:
        if header:
            file.write(layout.npy_header(source.num_tokens, signed))
        _write_ids(file, source, 0, source.num_tokens, signed)
    return path


def _export_llmc(
    out: Path, split: str, source: TokenSource, info: layout.DatasetInfo
) -> list[Path]:
    kind = next(key for key, dtype in _LLMC_KINDS.items() if dtype == info.dtype)
    paths: list[Path] = []
    first = 0
    for number, part in enumerate(source.parts):
        path = out / f"{split}_{number:06d}.bin"
        header = np.zeros(256, dtype="<i4")
        header[:3] = [*kind, part.num_tokens]
        with files.atomic_file(path) as file:
            file.write(header.tobytes())
            _write_ids(file, source, first, first + part.num_tokens, info.dtype)
        first += part.num_tokens
        paths.append(path)
    return paths


def _export_megatron(
    out: Path, split: str, source: TokenSource, info: layout.DatasetInfo
) -> list[Path]:
    """Write .bin and .idx; the index is made of the lengths, read again for each of its arrays."""
    dtype = np.dtype("<u2") if info.dtype.itemsize == 2 else np.dtype("<i4")
    code = next(key for key, value in _MEGATRON_TYPES.items() if value == dtype)
    data_path, index_path = out / f"{split}.bin", out / f"{split}.idx"
    with files.atomic_file(data_path) as file:
        _write_ids(file, source, 0, source.num_tokens, dtype)
    count = sum(len(lengths) for lengths in _iter_lengths(source))
    with files.atomic_file(index_path) as file:
        file.write(_MEGATRON_MAGIC + struct.pack("<QBQQ", 1, code, count, count + 1))
        for lengths in _iter_lengths(source):
            file.write(lengths.astype("<i4").tobytes())
        position = 0
        for lengths in _iter_lengths(source):
            ends = np.cumsum(lengths) * dtype.itemsize + position
            file.write((ends - lengths * dtype.itemsize).astype("<i8").tobytes())
            position = int(ends[-1]) if len(ends) else position
        for begin in range(0, count + 1, _STEP_TOKENS):
            stop = min(begin + _STEP_TOKENS, count + 1)
            file.write(np.arange(begin, stop, dtype="<i8").tobytes())
    return [data_path, index_path]


def _iter_lengths(source: TokenSource) -> Iterator[npt.NDArray[np.int64]]:
    """Give the documents' lengths, part by part; what follows the last end is one more."""
    carried = 0
    for part in source.parts:
        ends = _read_ends(part) if part.ends_path is not None else np.empty(0, np.int64)
        lengths = np.diff(ends, prepend=0)
        if len(lengths):
            lengths[0] += carried
            carried = 0
        carried += part.num_tokens - (int(ends[-1]) if len(ends) else 0)
        yield lengths
    if carried:
        yield np.array([carried], dtype=np.int64)
