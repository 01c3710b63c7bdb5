"""Turn one text file into one .npy of ids beside it, in bounded memory.

In:      FILE (plain text; or compressed, jsonl, parquet, by documents)
Out:     FILE with the suffix .npy: a NumPy header, then ids (uint16 where they fit, else int32)
Memory:  windows of text and their ids, for each worker
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from lowtide import files
from lowtide.corpus.inputs import InputFile, expand_inputs
from lowtide.corpus.reading import (
    ReadingOptions,
    is_plain_text,
    iter_blocks,
    iter_documents,
    plan_streams,
)
from lowtide.dataset import layout
from lowtide.dataset.settings import PretokenizeSettings
from lowtide.errors import DataError, UsageError
from lowtide.memory import MemoryBudget, format_size, usable_cores
from lowtide.progress import METRICS_NAME, Progress
from lowtide.settings import build_settings
from lowtide.tokenizer import Tokenizer

__all__ = ["PretokenizeResult", "pretokenize_file"]

_STEP_BYTES = 64 << 20
_WINDOW_BYTES = 1 << 20
_WORKER_BYTES = 24 << 20
_BATCH_BYTES = 8 << 20


@dataclass(frozen=True)
class PretokenizeResult:
    """What was read and written."""

    path: Path
    text_bytes: int
    num_tokens: int
    dtype: np.dtype[Any]
    tokenizer: str
    seconds: float
    peak_bytes: int


def pretokenize_file(
    settings: PretokenizeSettings | None = None, /, **options: Any
) -> PretokenizeResult:
    """Encode a text file into a .npy; `<|endoftext|>` in it becomes the token.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "a.txt"
    >>> _ = path.write_text("low tide")
    >>> result = pretokenize_file(file=path, tokenization="gpt2")
    >>> np.load(result.path).tolist()
    [9319, 20013]
    """
    settings = settings or build_settings(PretokenizeSettings, options)
    source = _find_input(settings)
    out = settings.out_path or _beside(source)
    if out.exists():
        raise UsageError(
            "this file is there already",
            path=out,
            next_step="remove it, or name another --out-path",
        )
    budget = MemoryBudget.from_setting(settings.memory)
    workers = settings.processes or usable_cores()
    budget.reserve("windows and caches", wanted_bytes=_WORKER_BYTES * workers + _BATCH_BYTES * 4)
    metrics_path = out.with_name(f".{out.name}.{METRICS_NAME}")  # hidden: no text beside the text
    with Progress(
        "pretokenize", budget_bytes=budget.total_bytes, metrics_path=metrics_path
    ) as progress:
        tokenizer = _load_tokenizer(settings, source, out, progress)
        dtype = np.dtype("<u2" if tokenizer.vocab_size <= 1 << 16 else "<i4")
        _check_disk(source, out, dtype)
        with progress.phase("encode", total=source.size_bytes, unit="B") as phase:
            if tokenizer.kind == "bpe" and is_plain_text(source, encoding=settings.encoding):
                count = _encode_plain(source, out, tokenizer, dtype, workers, phase.update)
            else:
                batches = _iter_batches(source, _reading(settings, progress))
                count = _encode_batches(batches, source, out, tokenizer, dtype, phase.update)
    return PretokenizeResult(
        path=out,
        text_bytes=source.size_bytes,
        num_tokens=count,
        dtype=dtype,
        tokenizer=tokenizer.name,
        seconds=progress.seconds,
        peak_bytes=progress.peak_bytes,
    )


def _find_input(settings: PretokenizeSettings) -> InputFile:
    found = expand_inputs([settings.file])
    if len(found) > 1:
        raise UsageError(
            f"{len(found)} files, expected one: each has its .npy",
            path=settings.file,
            next_step=f"one at a time; or lowtide prepare --input-files {settings.file}",
        )
    return found[0]


def _beside(source: InputFile) -> Path:
    path = source.path.with_suffix("") if source.compression else source.path
    return path.with_suffix(".npy")


def _check_disk(source: InputFile, out: Path, dtype: np.dtype[Any]) -> None:
    needed, free = source.size_bytes // 2 * dtype.itemsize, files.free_disk_bytes(out.parent)
    if needed > free:
        raise DataError(
            f"the ids may need {format_size(needed)} of disk, {format_size(free)} are free",
            path=out,
            next_step="free some space",
        )


def _load_tokenizer(
    settings: PretokenizeSettings, source: InputFile, out: Path, progress: Progress
) -> Tokenizer:
    if settings.tokenization != "char":
        return Tokenizer.load(settings.tokenization)
    characters: set[str] = set()
    with progress.phase("characters", total=source.size_bytes, unit="B") as phase:
        for document in iter_documents([source], _reading(settings, progress)):
            characters.update(document.text.decode("utf-8", "replace"))
            phase.advance(len(document.text))
    tokenizer = Tokenizer.from_characters(sorted(characters))
    folder = out.with_suffix(".tokenizer")
    folder.mkdir(exist_ok=True)
    tokenizer.save(folder)
    return tokenizer


def _reading(settings: PretokenizeSettings, progress: Progress) -> ReadingOptions:
    return ReadingOptions(
        text_field=settings.text_field,
        encoding=settings.encoding,
        skip_bad=settings.skip_bad_inputs,
        on_notice=progress.note,
    )


def _encode_plain(
    source: InputFile,
    out: Path,
    tokenizer: Tokenizer,
    dtype: np.dtype[Any],
    workers: int,
    on_progress: Callable[[int], None],
) -> int:
    """Encode natively, on all cores, straight into the file; an interrupted run goes on."""
    partial, note = files.partial_path(out), files.partial_path(out.with_suffix(".json"))
    identity = [source.size_bytes, source.modified_ns, tokenizer.fingerprint]
    position = count = 0
    if note.exists() and partial.exists():
        stored = files.read_json(note)
        if stored["identity"] == identity:
            position, count = stored["position"], stored["count"]
    with partial.open("r+b" if position else "w+b") as file:
        while position < source.size_bytes:
            added, position = tokenizer.native.encode_file(
                input_path=os.fspath(source.path),
                begin=position,
                stop=min(position + _STEP_BYTES, source.size_bytes),
                end=source.size_bytes,
                output_file=file.fileno(),
                output_path=os.fspath(out),
                output_offset=layout.NPY_HEADER_BYTES + count * dtype.itemsize,
                id_bytes=dtype.itemsize,
                specials=True,
                num_threads=workers,
                window_bytes=_WINDOW_BYTES,
            )
            count += added
            if position < source.size_bytes:
                os.fsync(file.fileno())
                state = {"identity": identity, "position": position, "count": count}
                files.write_json(note, state)
            on_progress(position)
        _finish(file, count, dtype)
    files.publish(out)
    note.unlink(missing_ok=True)
    return count


def _finish(file: BinaryIO, count: int, dtype: np.dtype[Any]) -> None:
    file.seek(0)
    file.write(layout.npy_header(count, dtype))
    file.truncate(layout.NPY_HEADER_BYTES + count * dtype.itemsize)


def _encode_batches(
    batches: Iterator[tuple[list[bytes], list[bool]]],
    source: InputFile,
    out: Path,
    tokenizer: Tokenizer,
    dtype: np.dtype[Any],
    on_progress: Callable[[int], None],
) -> int:
    """Encode text by text, with end-of-text after those that are marked."""
    count = done = 0
    with files.atomic_file(out) as file:
        file.write(layout.npy_header(0, dtype))
        for texts, marks in batches:
            for ids, marked in zip(tokenizer.encode_batch(texts), marks, strict=True):
                file.write(ids.astype(dtype).tobytes())
                count += len(ids)
                if marked and tokenizer.end_of_text_id is not None:
                    file.write(np.array([tokenizer.end_of_text_id], dtype=dtype).tobytes())
                    count += 1
            done += sum(map(len, texts))
            on_progress(min(done, source.size_bytes))
        _finish(file, count, dtype)  # pyright: ignore[reportArgumentType]
    return count


def _iter_batches(
    source: InputFile, reading: ReadingOptions
) -> Iterator[tuple[list[bytes], list[bool]]]:
    texts: list[bytes] = []
    marks: list[bool] = []
    held = 0
    pieces = _iter_pieces(source, reading) if source.kind == "text" else _iter_rows(source, reading)
    for text, marked in pieces:
        texts.append(text)
        marks.append(marked)
        held += len(text)
        if held >= _BATCH_BYTES:
            yield texts, marks
            texts, marks, held = [], [], 0
    if texts:
        yield texts, marks


def _iter_pieces(source: InputFile, reading: ReadingOptions) -> Iterator[tuple[bytes, bool]]:
    """Give all of a text, cut at its separators: the same ids as of a plain file."""
    for stream in plan_streams([source], reading):
        for block in iter_blocks(stream, reading):
            if block is not None:
                parts = block.data.split(reading.separator)
                yield from ((part, True) for part in parts[:-1])
                yield parts[-1], False


def _iter_rows(source: InputFile, reading: ReadingOptions) -> Iterator[tuple[bytes, bool]]:
    for document in iter_documents([source], reading):
        yield document.text, document.is_last
