"""Exchange ids with other programs: nanoGPT, llm.c and modded-nanogpt, Megatron, .npy.

In:      a dataset of ours (export), or files of another program (import: `importing`)
Out:     files of another program, or a dataset of ours
Memory:  one chunk of ids and of document ends, a few MiB; nothing that grows with the files
"""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Generator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from lowtide import files
from lowtide.dataset import layout
from lowtide.dataset.foreign import (
    LLMC_KINDS,
    MEGATRON_MAGIC,
    MEGATRON_TYPES,
    STEP_TOKENS,
    TokenSource,
    iter_lengths,
    open_dataset,
)
from lowtide.dataset.importing import find_difference, import_dataset
from lowtide.dataset.settings import ConvertSettings
from lowtide.errors import UsageError
from lowtide.memory import MemoryBudget
from lowtide.progress import METRICS_NAME, Progress
from lowtide.settings import build_settings

__all__ = ["ConvertResult", "convert_dataset"]


_RECORD = "conversion.json"
"""What an export is of, and whether it is finished, for the same command given again."""
_SHARES = {"tokenizer": 32 << 20, "ids and ends": 24 << 20}


@dataclass(frozen=True)
class ConvertResult:
    """What was written."""

    paths: list[Path]
    num_tokens: int
    was_there: bool = False
    """True if all of it was there already, made of the same input in the same way."""


def convert_dataset(settings: ConvertSettings | None = None, /, **options: Any) -> ConvertResult:
    """Import another program's ids as a dataset, or export a dataset for another program."""
    settings = settings or build_settings(ConvertSettings, options)
    budget = MemoryBudget.from_setting(settings.memory)
    budget.require(_SHARES)
    if settings.to == "lowtide" and settings.source_kind == "lowtide":
        raise UsageError("the input is a dataset already", path=settings.in_path)
    with (
        Progress("convert", budget_bytes=budget.total_bytes) as progress,
        files.hold_lock(settings.out_path, create_folder=True, on_notice=progress.note),
    ):
        if settings.to != "lowtide":
            return _export(settings, progress)
        info, was_there = import_dataset(settings, progress)
        return ConvertResult([info.root], sum(map(info.num_tokens, layout.SPLITS)), was_there)


def _export(settings: ConvertSettings, progress: Progress) -> ConvertResult:
    info = layout.load_dataset_info(settings.in_path)
    out = settings.out_path
    wanted = {"to": settings.to, "dataset": info.fingerprint}
    total = sum(map(info.num_tokens, layout.SPLITS))
    if _begin_export(out, wanted):
        paths = sorted(out / name for name in files.read_json(out / _RECORD)["files"])
        return ConvertResult(paths, total, was_there=True)
    progress.metrics_path = out / METRICS_NAME
    paths: list[Path] = []
    with progress.phase("export", total=total, unit="tokens") as phase:
        for split in layout.SPLITS:
            if not info.num_tokens(split):
                continue
            source = open_dataset(info, split)
            if settings.to == "llmc":
                paths += _export_llmc(out, split, source, info)
            elif settings.to == "megatron":
                paths += _export_megatron(out, split, source, info)
            else:
                paths.append(_export_flat(out, split, source, info, header=settings.to == "npy"))
            phase.advance(source.num_tokens)
    names = [path.name for path in paths]
    files.write_json(out / _RECORD, {**wanted, "finished": True, "files": names})
    return ConvertResult(paths, total)


def _begin_export(out: Path, wanted: Mapping[str, Any]) -> bool:
    """True if this very export is finished; strangers' files and other exports are refused."""
    if (out / _RECORD).is_file():
        stored = files.read_json(out / _RECORD)
        difference = find_difference(stored, wanted)
        if difference is not None:
            raise UsageError(
                f"there is a finished output here already: {difference}",
                path=out,
                next_step="name another folder",
            )
        if stored.get("finished"):
            return True
    else:
        ours = {METRICS_NAME, files.LOCK_NAME}
        strangers = sorted(path.name for path in out.iterdir() if path.name not in ours)
        if strangers:
            raise UsageError(
                f"the folder is not empty: it holds {strangers[0]}",
                path=out,
                next_step="name another folder",
            )
    files.write_json(out / _RECORD, {**wanted, "finished": False})
    return False


@contextlib.contextmanager
def _export_file(path: Path) -> Generator[BinaryIO | None]:
    """Open a file of an export; None if an interrupted command has written it, all of it."""
    if path.exists():
        yield None
        return
    with files.atomic_file(path) as file:
        yield file  # pyright: ignore[reportReturnType]


def _write_ids(
    file: BinaryIO | None, source: TokenSource, first: int, last: int, dtype: np.dtype[Any]
) -> None:
    if file is None:
        return
    for ids, _ in source.iter_chunks(first, last):
        file.write(ids.astype(dtype, copy=False).tobytes())


def _export_flat(
    out: Path, split: str, source: TokenSource, info: layout.DatasetInfo, *, header: bool
) -> Path:
    signed = np.dtype("<i4") if header and info.dtype.itemsize == 4 else info.dtype
    path = out / f"{split}.{'npy' if header else 'bin'}"
    with _export_file(path) as file:
        if file is not None and header:
            file.write(layout.npy_header(source.num_tokens, signed))
        _write_ids(file, source, 0, source.num_tokens, signed)
    return path


def _export_llmc(
    out: Path, split: str, source: TokenSource, info: layout.DatasetInfo
) -> list[Path]:
    kind = next(key for key, dtype in LLMC_KINDS.items() if dtype == info.dtype)
    paths: list[Path] = []
    first = 0
    for number, part in enumerate(source.parts):
        path = out / f"{split}_{number:06d}.bin"
        header = np.zeros(256, dtype="<i4")
        header[:3] = [*kind, part.num_tokens]
        with _export_file(path) as file:
            if file is not None:
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
    code = next(key for key, value in MEGATRON_TYPES.items() if value == dtype)
    data_path, index_path = out / f"{split}.bin", out / f"{split}.idx"
    with _export_file(data_path) as file:
        _write_ids(file, source, 0, source.num_tokens, dtype)
    count = sum(len(lengths) for lengths in iter_lengths(source))
    with _export_file(index_path) as file:
        if file is None:
            return [data_path, index_path]
        file.write(MEGATRON_MAGIC + struct.pack("<QBQQ", 1, code, count, count + 1))
        for lengths in iter_lengths(source):
            file.write(lengths.astype("<i4").tobytes())
        position = 0
        for lengths in iter_lengths(source):
            ends = np.cumsum(lengths) * dtype.itemsize + position
            file.write((ends - lengths * dtype.itemsize).astype("<i8").tobytes())
            position = int(ends[-1]) if len(ends) else position
        for begin in range(0, count + 1, STEP_TOKENS):
            stop = min(begin + STEP_TOKENS, count + 1)
            file.write(np.arange(begin, stop, dtype="<i8").tobytes())
    return [data_path, index_path]
