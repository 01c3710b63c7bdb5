"""Exchange ids with other programs: nanoGPT, llm.c and modded-nanogpt, Megatron, .npy.

In:      a dataset of ours (export), or files of another program (import)
Out:     files of another program, or a dataset of ours
Memory:  one chunk of ids and of document ends, a few MiB; nothing that grows with the files
"""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Generator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, cast

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
    list_source_files,
    load_source_tokenizer,
    open_dataset,
    open_source,
)
from lowtide.dataset.journal import begin_work, has_plan, remove_work
from lowtide.dataset.settings import ConvertSettings
from lowtide.dataset.sharding import remove_other_shards
from lowtide.errors import DataError, UsageError
from lowtide.memory import MemoryBudget
from lowtide.progress import METRICS_NAME, Progress
from lowtide.settings import build_settings
from lowtide.tokenizer import Tokenizer

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
    convert = _import if settings.to == "lowtide" else _export
    with (
        Progress("convert", budget_bytes=budget.total_bytes) as progress,
        files.hold_lock(settings.out_path, create_folder=True, on_notice=progress.note),
    ):
        return convert(settings, progress)


def _describe_import(settings: ConvertSettings, tokenizer: Tokenizer) -> dict[str, Any]:
    """Everything an import depends on; input files by name, size and time of change."""
    paths = list_source_files(settings.in_path, kind=settings.source_kind or "nanogpt")
    status = [(path, path.stat()) for path in paths]
    return {
        "from": settings.source_kind,
        "tokenizer": tokenizer.fingerprint,
        "dtype": settings.dtype,
        "val-fraction": settings.val_fraction,
        "tokens-per-shard": settings.tokens_per_shard,
        "files": [[str(path), row.st_size, row.st_mtime_ns] for path, row in status],
    }


def _require_same(
    stored: object, wanted: Mapping[str, Any], path: Path, what: str = "output"
) -> None:
    """Refuse an output that another command made, naming what differs."""
    reason = "nothing says what it was made of"
    if isinstance(stored, Mapping):
        known = cast("Mapping[str, Any]", stored)
        other = next((name for name in wanted if known.get(name) != wanted[name]), None)
        if other is None:
            return
        reason = f"it was made with other {other}"
        if not isinstance(wanted[other], list):
            reason = f"its {other} is {known.get(other)}, now it is {wanted[other]}"
    raise UsageError(
        f"there is a finished {what} here already: {reason}",
        path=path,
        next_step="name another folder",
    )


def _import(settings: ConvertSettings, progress: Progress) -> ConvertResult:
    root = settings.out_path
    tokenizer = load_source_tokenizer(settings)
    wanted = _describe_import(settings, tokenizer)
    if (root / layout.METADATA_NAME).exists():
        info = layout.load_dataset_info(root)
        _require_same(info.metadata.get("conversion"), wanted, root, "dataset")
        if has_plan(root, verb="convert"):
            remove_work(root)  # a kill came just before
        return ConvertResult([root], sum(map(info.num_tokens, layout.SPLITS)), was_there=True)
    if any((root / split).exists() for split in layout.SPLITS) and not has_plan(
        root, verb="convert"
    ):
        raise UsageError(
            "train or val is here already, but no dataset that it belongs to",
            path=root,
            next_step="name another folder",
        )
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
    if _describe_import(settings, tokenizer) != wanted:
        raise DataError(
            "these files were changed while they were read",
            path=settings.in_path,
            next_step="give the same command again when nothing writes to them any more",
        )
    remove_other_shards(root, [shard.path for rows in shards.values() for shard in rows])
    tokenizer.save(root)
    info = layout.write_metadata(
        root,
        shards=shards,
        vocab_size=tokenizer.vocab_size,
        tokenizer_fingerprint=tokenizer.fingerprint,
        tokenization="char" if tokenizer.kind == "char" else settings.tokenizer,
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
            "conversion": wanted,
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
        _require_same(stored, wanted, out)
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
