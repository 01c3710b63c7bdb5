"""Exchange ids with other programs: nanoGPT, llm.c and modded-nanogpt, Megatron, .npy.

In:      a dataset of ours (export), or files of another program (import: `importing`)
Out:     files of another program, or a dataset of ours
Memory:  one chunk of ids and of document ends, a few MiB; nothing that grows with the files
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lowtide import files
from lowtide.dataset import layout
from lowtide.dataset.importing import find_other_conversion, import_dataset
from lowtide.dataset.settings import ConvertSettings
from lowtide.dataset.tokenfiles.table import FORMATS, open_dataset
from lowtide.errors import UsageError
from lowtide.keywords import takes_keywords
from lowtide.memory import MemoryBudget
from lowtide.notebooks import shown_in_notebooks
from lowtide.progress import METRICS_NAME, Phase, Progress

__all__ = ["ConvertResult", "convert_dataset"]


_RECORD = "conversion.json"
"""What an export is of, and whether it is finished, for the same command given again."""
_SHARES = {"tokenizer": 32 << 20, "ids and ends": 24 << 20}


@shown_in_notebooks()
@dataclass(frozen=True)
class ConvertResult:
    """What was written."""

    paths: list[Path]
    num_tokens: int
    was_there: bool = False
    """True if all of it was there already, made of the same input in the same way."""


@takes_keywords(ConvertSettings)
def convert_dataset(settings: ConvertSettings) -> ConvertResult:
    """Import another program's ids as a dataset, or export a dataset for another program."""
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
    there = _begin_export(out, wanted, progress)
    if there is not None:
        return ConvertResult(there, total, was_there=True)
    progress.metrics_path = out / METRICS_NAME
    paths: list[Path] = []
    write = FORMATS[settings.to].write
    assert write is not None  # the settings allow no other
    with progress.phase("export", total=total, unit="tokens") as phase:
        for split in layout.SPLITS:
            if not info.num_tokens(split):
                continue
            source = open_dataset(info, split)
            paths += write(out, split, source, info.dtype)
            phase.advance(source.num_tokens)
    names, sizes = [path.name for path in paths], [path.stat().st_size for path in paths]
    record = {**wanted, "finished": True, "files": names, "bytes": sizes}
    with progress.phase("checksums", total=sum(sizes), unit="B") as phase:
        record["xxh3_128"] = [_checksum(path, phase) for path in paths]
    files.write_json(out / _RECORD, record)
    return ConvertResult(paths, total)


def _checksum(path: Path, phase: Phase) -> str:
    found = files.checksum_file(path)
    phase.advance(path.stat().st_size)
    return found


def _begin_export(out: Path, wanted: Mapping[str, Any], progress: Progress) -> list[Path] | None:
    """The files of this very export if it is finished; strangers' and other exports are refused."""
    if (out / _RECORD).is_file():
        stored: Any = files.read_json(out / _RECORD)
        difference = find_other_conversion(stored, wanted)
        if difference is not None:
            raise UsageError(
                f"there is a finished output here already: {difference}",
                path=out,
                next_step="name another folder",
            )
        there = _list_whole(out, stored, progress) if stored.get("finished") else None
        if there is not None:
            return there
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
    return None


def _list_whole(out: Path, stored: Mapping[str, Any], progress: Progress) -> list[Path] | None:
    """The files that a record names, if all are whole; else those that are not are removed.

    An export that goes on leaves alone what has its name already.
    """
    names = stored.get("files")
    if not isinstance(names, list) or not names:
        return None
    none: list[None] = [None] * len(names)  # earlier versions kept neither
    sizes, sums = stored.get("bytes", none), stored.get("xxh3_128", none)
    if any(not isinstance(rows, list) or len(rows) != len(names) for rows in (sizes, sums)):
        return None
    if not all(isinstance(name, str) and Path(name).name == name for name in names):
        return None
    lost = 0
    for name, size, checksum in zip(names, sizes, sums, strict=True):
        path = out / name
        if not path.is_file():
            lost += 1
        elif (size is not None and path.stat().st_size != size) or (
            checksum is not None and files.checksum_file(path) != checksum
        ):
            progress.note(f"{name} is damaged: it is written anew")
            path.unlink()
            lost += 1
    return None if lost else sorted(out / name for name in names)
