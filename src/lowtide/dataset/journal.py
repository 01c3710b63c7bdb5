"""Remember what an unfinished preparation is, so that the same command can go on with it.

In:      the settings that decide the result, and the inputs as they are on disk
Out:     OUT_DIR/.work/plan.json, beside the work files of every phase
Memory:  one small row per input

Work files are renamed when they are whole and are not flushed to the disk. A kill -9 loses none of
them. After a restart of the machine (another boot id) each one is checked by its checksum.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from lowtide import files
from lowtide.corpus.inputs import InputFile
from lowtide.corpus.workfiles import is_intact, open_work_file
from lowtide.errors import UsageError

__all__ = ["WORK_NAME", "has_plan", "open_journal", "read_facts", "remove_work"]

WORK_NAME = ".work"
_PLAN_NAME = "plan.json"


def open_journal(
    root: Path,
    *,
    verb: str,
    settings: Mapping[str, Any],
    inputs: Sequence[InputFile],
    restart: bool,
    on_notice: Callable[[str], None],
    facts: Mapping[str, Any] | None = None,
) -> tuple[Path, dict[str, Any]]:
    """Give the folder for work files: new, or that of the same command when it was interrupted.

    `facts` are kept as they were when the work was begun, and given back.
    """
    work = root / WORK_NAME
    plan: dict[str, Any] = {
        "verb": verb,
        "settings": dict(settings),
        "inputs": [[str(source.path), source.size_bytes, source.modified_ns] for source in inputs],
    }
    plan_path = work / _PLAN_NAME
    if restart:
        remove_work(root)
    if plan_path.exists():
        stored = files.read_json(plan_path)
        _check_same(stored, plan, root)
        if stored.get("boot") != _boot_id():
            _check_work_files(work, on_notice)
        facts = stored["facts"]
        on_notice("going on where the last command stopped")
    elif work.exists():
        remove_work(root)
    work.mkdir(parents=True, exist_ok=True)
    known = dict(facts or {})
    files.write_json(plan_path, {**plan, "facts": known, "boot": _boot_id()})
    return work, known


def has_plan(root: Path, *, verb: str) -> bool:
    """Tell whether a command of this verb was interrupted here."""
    path = root / WORK_NAME / _PLAN_NAME
    return path.exists() and files.read_json(path)["verb"] == verb


def read_facts(root: Path, *, verb: str) -> dict[str, Any] | None:
    """Give the facts of an interrupted command, None where there is none."""
    return (
        files.read_json(root / WORK_NAME / _PLAN_NAME)["facts"]
        if has_plan(root, verb=verb)
        else None
    )


def remove_work(root: Path) -> None:
    """Remove unfinished work; the plan goes first, so a kill meanwhile leaves nothing to trust."""
    work = root / WORK_NAME
    (work / _PLAN_NAME).unlink(missing_ok=True)
    if work.exists():
        shutil.rmtree(work)


def _boot_id() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return "unknown"


def _check_same(stored: Mapping[str, Any], plan: Mapping[str, Any], root: Path) -> None:
    next_step = "give the same command again, or start over with --restart"
    if stored["verb"] != plan["verb"]:
        raise UsageError(
            f"unfinished work of lowtide {stored['verb']} is here",
            path=root / WORK_NAME,
            next_step=f"finish it with the same lowtide {stored['verb']} command, or --restart",
        )
    for name, value in plan["settings"].items():
        before = stored["settings"].get(name)
        if before != value:
            flag = name.replace("_", "-")
            raise UsageError(
                f"unfinished work here was begun with --{flag} {before}, now it is {value}",
                path=root / WORK_NAME,
                next_step=next_step,
            )
    if stored["inputs"] != [list(row) for row in plan["inputs"]]:
        before = {row[0]: row for row in stored["inputs"]}
        changed = [row[0] for row in plan["inputs"] if before.get(row[0]) != list(row)]
        which = changed[0] if changed else "the list of inputs"
        raise UsageError(
            f"{which} changed since this work was begun",
            path=root / WORK_NAME,
            next_step="start over with --restart",
        )


def _check_work_files(work: Path, on_notice: Callable[[str], None]) -> None:
    """Keep what survived a restart of the machine whole, drop the rest."""
    lost = 0
    for path in sorted(work.glob("*/*.block")) + sorted(work.glob("*/*.ids")):
        if not is_intact(path):
            path.unlink()
            lost += 1
    # Cheap to make again: duplicates, and shards whose names the power cut may have undone.
    for path in [*work.glob("*/*.removed"), *work.glob("*/*.shard")]:
        path.unlink()
    if lost:
        for path in work.glob("*/*.ids"):  # they may depend on what was lost
            path.unlink()
        for path in work.glob("*/*.block"):
            if not open_work_file(path).header["has_text"]:
                path.unlink()
        on_notice(f"the machine was restarted meanwhile; {lost} work files are made again")
