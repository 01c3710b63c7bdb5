"""The work folder of an unfinished preparation, which the same command resumes.

In:      the settings that decide the result, and the inputs on disk
Out:     OUT_DIR/.work/plan.json and inputs.jsonl, beside the work files of every phase
Memory:  one row at a time; the names of inputs that have changed

Work files are written atomically but not flushed to the disk, so a kill -9 loses none of them.
Before a command resumes, each file is verified by its checksum, because a power cut or a bad disk
may have damaged it.
"""

from __future__ import annotations

import io
import itertools
import json
import os
import re
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from lowtide import files
from lowtide.corpus.deduplication import is_removed_whole
from lowtide.corpus.textblocks import Stream
from lowtide.corpus.workers import WorkerPool
from lowtide.corpus.workfiles import is_intact, open_work_file
from lowtide.dataset.finishing import find_other_setting
from lowtide.engine.outputs import OUTPUT_FORMAT
from lowtide.errors import DataError, UsageError
from lowtide.filenames import WORK_NAME
from lowtide.journal import read_notes, write_notes

__all__ = [
    "begin_work",
    "has_plan",
    "is_half_removed",
    "is_outdated",
    "open_work",
    "read_facts",
    "remove_work",
]

_PLAN_NAME = "plan.json"
_INPUTS_NAME = "inputs.jsonl"
"""A row for each input: path, size, time. Earlier versions stored these in the plan."""
_NEAR_NAME = "near"
_REMOVED_AT_ONCE = 16
_VERSION = 4
"""The version of the work files; those of another version are not used."""
_CHECKED = ("block", "end", "ids", "removed", "shard", "examples", "gathered")
_OUR_NAMES = re.compile(
    r"\.?(plan\.json|inputs\.jsonl|scores|examples|gathered|clean|near|duplicates|existing|there|new"
    r"|encoded|shards)(-[0-9a-f]+)?"
    r"((\.[0-9a-f]{16})?\.partial)?$"  # left by a kill while a file was being written
)


def open_work(
    root: Path,
    *,
    verb: str,
    settings: Mapping[str, Any],
    streams: Sequence[Stream],
    restart: bool,
    on_notice: Callable[[str], None],
    facts: Mapping[str, Any] | None = None,
) -> tuple[Path, dict[str, Any]]:
    """Return the folder for work files: a new one, or that of the same command if interrupted.

    Inputs that changed since then (for example, were repaired) are read again, with all after them.
    `facts` are stored when the work begins, and returned when it resumes.
    """
    work = root / WORK_NAME
    plan: dict[str, Any] = {"version": _VERSION, "verb": verb, "settings": dict(settings)}
    plan_path = work / _PLAN_NAME
    stored = None if restart else _read_plan(root)
    if stored is not None and stored["verb"] == verb and not _is_of_use(stored, work):
        stored = None
    if stored is None:
        remove_work(root)
    else:
        _require_same_plan(stored, plan, root)
        changed = _find_changed(stored, streams, root)
        _check_work_files(work, on_notice, restarted=stored.get("boot") != _boot_id())
        if stored.get("output_format") != OUTPUT_FORMAT:  # near copies of an earlier version
            _forget_near_copies(work)
        if changed:
            judged = bool(plan["settings"].get("decontaminate"))
            _forget_streams(work, _first_affected(streams, changed), judged=judged)
            on_notice(f"{changed[0]} changed meanwhile: it and what follows it are read again")
        facts = stored["facts"]
        on_notice("going on where the last command stopped")
    work.mkdir(parents=True, exist_ok=True)
    known = dict(facts or {})
    with files.atomic_file(work / _INPUTS_NAME) as file:  # first: the plan implies it
        for row in _iter_inputs(streams):
            file.write(json.dumps(row).encode() + b"\n")
    about = {"facts": known, "boot": _boot_id(), "output_format": OUTPUT_FORMAT}
    write_notes(plan_path, {**plan, **about})
    return work, known


def begin_work(root: Path, *, verb: str, facts: Mapping[str, Any]) -> None:
    """Record the plan of a command without blocks of text (an import)."""
    work = root / WORK_NAME
    work.mkdir(parents=True, exist_ok=True)
    plan = {"version": _VERSION, "verb": verb, "facts": dict(facts)}
    write_notes(work / _PLAN_NAME, plan)


def _is_of_use(stored: Mapping[str, Any], work: Path) -> bool:
    """True if there is work to resume."""
    return stored.get("version") == _VERSION and any(work.glob("*/*.block"))


def is_outdated(root: Path, *, verb: str) -> bool:
    """True if the work of this verb was begun by another version of lowtide."""
    plan = _read_plan(root)
    return plan is not None and plan["verb"] == verb and plan.get("version") != _VERSION


def has_plan(root: Path, *, verb: str | None = None) -> bool:
    """True if a command of this verb, or of any, was interrupted here."""
    plan = _read_plan(root)
    return plan is not None and verb in (None, plan["verb"])


def read_facts(root: Path, *, verb: str) -> dict[str, Any] | None:
    """The stored facts of an interrupted command; None if there are none."""
    plan = _read_plan(root)
    facts = plan.get("facts") if plan is not None and plan["verb"] == verb else None
    return facts if isinstance(facts, dict) else None


def _read_plan(root: Path) -> dict[str, Any] | None:
    """The plan of the work; without a checksum if an earlier version began it."""
    path = root / WORK_NAME / _PLAN_NAME
    try:
        plan = read_notes(path)
    except DataError as error:
        raise _not_a_plan(error.message, path) from None
    if plan is not None and "verb" not in plan:
        raise _not_a_plan("expected what an interrupted command was about, with its verb", path)
    return plan


def _not_a_plan(message: str, path: Path) -> DataError:
    return DataError(
        message,
        path=path,
        next_step=f"remove {path.parent}, and give the command again: it starts over",
    )


def remove_work(root: Path, *, pool: WorkerPool | None = None) -> None:
    """Remove unfinished work, the plan first, so that the rest is not used after a kill.

    Workers of a `pool` remove files in parallel: a quarter of a millisecond for a block of ids.
    """
    work = root / WORK_NAME
    strangers = [name for name in sorted(_list(work)) if not _OUR_NAMES.match(name)]
    if strangers:
        raise UsageError(
            f"{WORK_NAME} is needed for work files, but it holds {strangers[0]!r}, "
            "which lowtide did not make",
            path=work,
            next_step="choose another folder for the dataset",
        )
    (work / _PLAN_NAME).unlink(missing_ok=True)
    if work.exists():
        if pool is not None:
            _remove_files(work, pool)
        shutil.rmtree(work)


def _remove_files(work: Path, pool: WorkerPool) -> None:
    """Remove the files of all folders of work files."""

    def remove(paths: Sequence[str]) -> None:
        for path in paths:
            os.unlink(path)  # noqa: PTH108

    def iter_tasks() -> Iterator[Callable[[], None]]:
        for folder, _, names in os.walk(work):
            for begin in range(0, len(names), _REMOVED_AT_ONCE):
                some = names[begin : begin + _REMOVED_AT_ONCE]
                yield partial(remove, [f"{folder}/{name}" for name in some])

    for _ in pool.run(iter_tasks(), num_waiting=pool.num_workers):
        pass


def is_half_removed(root: Path) -> bool:
    """True if work files exist without a plan, which is removed first."""
    names = _list(root / WORK_NAME)
    is_ours = (root / WORK_NAME).is_dir() and all(_OUR_NAMES.match(name) for name in names)
    return is_ours and _PLAN_NAME not in names


def _list(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir()] if folder.is_dir() else []


def _boot_id() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return "unknown"


_SAME_AGAIN = "give the same command again, or start over with --restart"


def _require_same_plan(stored: Mapping[str, Any], plan: Mapping[str, Any], root: Path) -> None:
    """Refuse to resume the work of another verb, or of other settings."""
    if stored["verb"] != plan["verb"]:
        raise UsageError(
            f"unfinished work of lowtide {stored['verb']} is here",
            path=root / WORK_NAME,
            next_step=f"finish it with the same lowtide {stored['verb']} command, or --restart",
        )
    before, now = dict(stored["settings"]), dict(plan["settings"])
    if now.get("skip_bad_inputs"):  # the finished work had no bad input
        before["skip_bad_inputs"] = now["skip_bad_inputs"]
    other = find_other_setting(before, now)
    if other is not None:
        raise UsageError(
            "unfinished work here was begun with {} {}, now it is {}".format(*other),
            path=root / WORK_NAME,
            next_step=_SAME_AGAIN,
        )


def _iter_inputs(streams: Sequence[Stream]) -> Iterator[list[Any]]:
    for stream in streams:
        for source in stream.inputs:
            yield [str(source.path), source.size_bytes, source.modified_ns]


def _iter_stored(stored: Mapping[str, Any], root: Path) -> Iterator[list[Any]]:
    if "inputs" in stored:
        yield from stored["inputs"]
        return
    path = root / WORK_NAME / _INPUTS_NAME
    try:
        with io.BufferedReader(files.open_file(path)) as file:
            yield from map(json.loads, file)
    except (OSError, ValueError, RecursionError) as error:
        raise DataError(
            f"the list of inputs of unfinished work cannot be read: {error}",
            path=path,
            next_step="start over with --restart",
        ) from None


def _find_changed(stored: Mapping[str, Any], streams: Sequence[Stream], root: Path) -> list[str]:
    """The inputs that have changed; a different list of inputs is an error."""
    changed: list[str] = []
    for old, new in itertools.zip_longest(_iter_stored(stored, root), _iter_inputs(streams)):
        if old is None or new is None or old[0] != new[0]:
            raise _other_inputs(stored, streams, root)
        if list(old) != list(new):
            changed.append(str(new[0]))
    return changed


def _other_inputs(stored: Mapping[str, Any], streams: Sequence[Stream], root: Path) -> UsageError:
    before = {str(row[0]) for row in _iter_stored(stored, root)}
    now = {str(row[0]) for row in _iter_inputs(streams)}
    which = before ^ now
    return UsageError(
        "the list of inputs changed since this work was begun: "
        + (f"{min(which)} was not in both" if which else "its order"),
        path=root / WORK_NAME,
        next_step=_SAME_AGAIN,
    )


def _first_affected(streams: Sequence[Stream], changed: Sequence[str]) -> int:
    """Return the first stream that an input in `changed` was or is now a part of.

    Small files are grouped into streams by size: one that grew may have been in the stream before.
    """
    names = set(changed)
    first = next(
        stream.index
        for stream in streams
        if any(str(source.path) in names for source in stream.inputs)
    )
    return max(first - 1, 0)


def _forget_streams(work: Path, first: int, *, judged: bool) -> None:
    """Remove the results of streams from `first` on; earlier ones do not depend on them.

    Results that depend on all inputs are always removed: shares by score, samples of examples, and
    encoded blocks if text is `judged` by how many documents contain it.
    """
    ranked = any((work / name).is_dir() for name in ("scores", "examples"))
    named = ("scores", "examples", "clean")
    for folder in [*(work / name for name in named), *work.glob("encoded*")]:
        for name in _list(folder):
            whole = ranked and folder.name != "scores"
            whole = whole or (judged and folder.name.startswith("encoded"))
            if whole or int(name.lstrip(".")[:7]) >= first:
                (folder / name).unlink()
    for kind in ("removed", "shard", "gathered"):
        for path in work.glob(f"*/*.{kind}"):
            path.unlink()
    _forget_near_copies(work)


def _forget_near_copies(work: Path) -> None:
    """Remove results for near copies, which depend on all blocks and are cheap to redo."""
    if (work / _NEAR_NAME).is_dir():
        shutil.rmtree(work / _NEAR_NAME)


def _check_work_files(work: Path, on_notice: Callable[[str], None], *, restarted: bool) -> None:
    """Keep the work files that are intact, remove the others."""
    lost = 0
    for path in sorted(itertools.chain(*(work.glob(f"*/*.{kind}") for kind in _CHECKED))):
        if not (is_removed_whole if path.suffix == ".removed" else is_intact)(path):
            _remove(path)
            lost += 1
    # Cheap to redo: duplicates, and shards, whose renaming a power cut may have undone.
    if restarted or lost:
        for path in [*work.glob("*/*.removed"), *work.glob("*/*.shard")]:
            path.unlink()
        _forget_near_copies(work)
    if lost:
        for path in work.glob("*/*.ids"):  # they may depend on lost files
            path.unlink()
        for path in work.glob("*/*.block"):
            if not open_work_file(path).header["has_text"]:
                path.unlink()
        why = "the machine was restarted meanwhile" if restarted else "work files are damaged"
        on_notice(f"{why}; {lost} of them are made again")


def _remove(path: Path) -> None:
    """Remove anything with a work file's name, of any type."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink()
