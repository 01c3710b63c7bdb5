"""Exchange ids with other programs: nanoGPT, llm.c and modded-nanogpt, Megatron, .npy.

In:      a dataset of ours (export), or files of another program (import: `importing`)
Out:     files of another program, or a dataset of ours
Memory:  one chunk of ids and of document ends, a few MiB; nothing that grows with the files
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lowtide import files
from lowtide.dataset import layout
from lowtide.dataset.importing import find_other_conversion, import_dataset
from lowtide.dataset.settings import ConvertSettings
from lowtide.dataset.tokenfiles.streams import WrittenFiles
from lowtide.dataset.tokenfiles.table import FORMATS, open_dataset
from lowtide.errors import UsageError
from lowtide.filenames import LOCK_NAME, METRICS_NAME
from lowtide.keywords import takes_keywords
from lowtide.memory import MemoryBudget
from lowtide.notebooks import shown_in_notebooks
from lowtide.progress import Progress
from lowtide.quickclasses import dataclass
from lowtide.tokenizer.needs import tokenizer_needs

__all__ = ["ConvertResult", "convert_dataset"]


_RECORD = "conversion.json"
"""Record of an export's source and whether it is finished, for the same command given again."""
_Whole = dict[str, tuple[int | None, str | None]]
"""Sizes and xxh3-128 of files, by name; None in records of earlier versions."""
_SHARES = {"tokenizer": 32 << 20, "ids and ends": 24 << 20}


@shown_in_notebooks()
@dataclass(frozen=True)
class ConvertResult:
    """The result of a conversion."""

    paths: list[Path]
    num_tokens: int
    was_there: bool = False
    """True if all of it existed already, made from the same input in the same way."""


@takes_keywords(ConvertSettings)
def convert_dataset(settings: ConvertSettings) -> ConvertResult:
    """Import another program's ids as a dataset, or export a dataset for another program."""
    budget = MemoryBudget.from_setting(settings.memory)
    is_export = settings.to != "lowtide"
    needs = tokenizer_needs(settings.in_path if is_export else settings.tokenizer)
    budget.require({**_SHARES, "a large vocabulary": needs.table_bytes})
    if not is_export and settings.source_kind == "lowtide":
        raise UsageError("the input is a dataset already", path=settings.in_path)
    with (
        Progress("convert", budget_bytes=budget.total_bytes) as progress,
        files.hold_lock(settings.out_path, create_folder=True, on_notice=progress.note),
    ):
        if is_export:
            return _export(settings, progress)
        info, was_there = import_dataset(settings, progress)
        return ConvertResult([info.root], sum(map(info.num_tokens, layout.SPLITS)), was_there)


def _export(settings: ConvertSettings, progress: Progress) -> ConvertResult:
    info = layout.load_dataset_info(settings.in_path)
    out = settings.out_path
    wanted = {"to": settings.to, "dataset": info.fingerprint}
    total = sum(map(info.num_tokens, layout.SPLITS))
    whole, is_finished = _begin_export(out, wanted, progress)
    if is_finished:
        return ConvertResult(sorted(out / name for name in whole), total, was_there=True)
    progress.metrics_path = out / METRICS_NAME
    paths: list[Path] = []
    write = FORMATS[settings.to].write
    assert write is not None  # no other value passes the settings
    rows = {
        name: (size, checksum)
        for name, (size, checksum) in whole.items()
        if size is not None and checksum is not None
    }
    written = WrittenFiles(rows, lambda: _keep_record(out, wanted, rows, finished=False))
    with progress.phase("export", total=total, unit="tokens") as phase:
        for split in layout.SPLITS:
            if not info.num_tokens(split):
                continue
            source = open_dataset(info, split)
            paths += write(out, split, source, info.dtype, written)
            phase.advance(source.num_tokens)
    _keep_record(out, wanted, {path.name: rows[path.name] for path in paths}, finished=True)
    return ConvertResult(paths, total)


def _keep_record(
    out: Path, wanted: Mapping[str, Any], rows: Mapping[str, tuple[int, str]], *, finished: bool
) -> None:
    """Record the source of this export, and its complete files with their checksums."""
    record = {
        **wanted,
        "finished": finished,
        "files": list(rows),
        "bytes": [size for size, _ in rows.values()],
        "xxh3_128": [checksum for _, checksum in rows.values()],
    }
    files.write_json(out / _RECORD, record)


def _begin_export(out: Path, wanted: Mapping[str, Any], progress: Progress) -> tuple[_Whole, bool]:
    """The complete files of this export, and whether it is finished.

    Files of other programs and other exports are refused.
    """
    whole: _Whole = {}
    if (out / _RECORD).is_file():
        stored: Any = files.read_json(out / _RECORD)
        difference = find_other_conversion(stored, wanted)
        if difference is not None:
            raise UsageError(
                f"there is a finished output here already: {difference}",
                path=out,
                next_step="name another folder",
            )
        expected = _read_rows(stored)
        whole = _find_whole(out, expected, progress)
        if stored.get("finished") and whole and len(whole) == len(expected):
            return whole, True
    else:
        ours = {METRICS_NAME, LOCK_NAME}
        strangers = sorted(path.name for path in out.iterdir() if path.name not in ours)
        if strangers:
            raise UsageError(
                f"the folder is not empty: it holds {strangers[0]}",
                path=out,
                next_step="name another folder",
            )
        files.write_json(out / _RECORD, {**wanted, "finished": False})
    return whole, False


def _read_rows(stored: Mapping[str, Any]) -> _Whole:
    """The files in a record; none if it is damaged."""
    names = stored.get("files")
    if not isinstance(names, list):
        return {}
    none: list[None] = [None] * len(names)  # earlier versions stored neither
    sizes, sums = stored.get("bytes", none), stored.get("xxh3_128", none)
    if any(not isinstance(rows, list) or len(rows) != len(names) for rows in (sizes, sums)):
        return {}
    if not all(isinstance(name, str) and Path(name).name == name for name in names):
        return {}
    return {name: (size, found) for name, size, found in zip(names, sizes, sums, strict=True)}


def _find_whole(out: Path, expected: _Whole, progress: Progress) -> _Whole:
    """The files that are still intact; a resumed export keeps them."""
    there = {name: row for name, row in expected.items() if (out / name).is_file()}
    if not there:
        return {}
    whole: _Whole = {}
    total = sum((out / name).stat().st_size for name in there)
    with progress.phase("check", total=total, unit="B") as phase:
        for name, (size, checksum) in there.items():
            path = out / name
            found = size is None or path.stat().st_size == size
            if found and checksum is not None:
                found = files.checksum_file(path, on_read=phase.advance) == checksum
            if found:
                whole[name] = size, checksum
            else:
                progress.note(f"{name} is damaged: it is written anew")
    return whole
