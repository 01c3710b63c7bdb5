"""The plan shared by all workers on a folder: canonical JSON, created once.

In:      a plan as plain values
Out:     FOLDER/plan.json; a worker with a different plan is refused, with the differences
Memory:  the plan, twice

A worker compares the plan with its own, except what it takes from there: `append` reads in it which
shards the dataset had when the work began. So the plan has a checksum of its values.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from lowtide.engine.outputs import OUTPUT_FORMAT
from lowtide.engine.records import PLAN_NAME, Records
from lowtide.errors import DataError, LowtideError, UsageError
from lowtide.files import checksum_bytes

__all__ = ["checksum_plan", "commit_plan", "has_plan", "read_plan"]

_FORMAT_KEY = "output_format"
_CHECKSUM_KEY = "checksum"
_TOLD_FIRST = ("verb", "version")
"""If one of these differs, so do many others; they are reported first."""
_MOST_LOOKS = 100
_START_OVER = "remove the work folder, and give the command again: it starts over"


def read_plan(records: Records) -> dict[str, Any] | None:
    """The plan of a work folder as JSON; None if it has none yet."""
    path = records.folder / PLAN_NAME
    try:
        data = records.place.read(PLAN_NAME)
        value: Any = json.loads(data)
    except FileNotFoundError:
        return None
    except (ValueError, RecursionError) as error:
        raise DataError(
            f"the plan of this work cannot be read: {error}", path=path, next_step=_START_OVER
        ) from None
    if not isinstance(value, dict):
        raise DataError("expected the plan that workers agree on", path=path, next_step=_START_OVER)
    value.pop(_CHECKSUM_KEY, None)
    # Plans of other formats, which are refused as such, may have no checksum.
    if value.get(_FORMAT_KEY) == OUTPUT_FORMAT and data != _encode(value):
        raise DataError("the plan of this work is damaged", path=path, next_step=_START_OVER)
    return value


def _encode(plan: Mapping[str, Any]) -> bytes:
    """The bytes of a plan's file; their checksum is in all records."""
    checksum = checksum_bytes(json.dumps(plan, sort_keys=True).encode())
    signed = {**plan, _CHECKSUM_KEY: checksum}
    return json.dumps(signed, sort_keys=True, indent=1).encode() + b"\n"


def has_plan(records: Records) -> bool:
    """True if a folder has a plan of this format; other files of that name do not count."""
    try:
        return _FORMAT_KEY in (read_plan(records) or {})
    except DataError:
        return False


def checksum_plan(records: Records) -> str | None:
    """The checksum of the plan of a work folder; None if it has none."""
    try:
        return checksum_bytes(records.place.read(PLAN_NAME))
    except FileNotFoundError:
        return None


def commit_plan(plan: Mapping[str, Any], records: Records) -> None:
    """Create the plan in the work folder, or check that the existing one is the same.

    The plan includes the format of tasks' files: work in another format cannot be resumed. All
    later records contain the plan's checksum.
    """
    values = json.loads(json.dumps({**plan, _FORMAT_KEY: OUTPUT_FORMAT}, sort_keys=True))
    data = _encode(values)
    _refuse_leftovers(records)
    found = _create_or_read(records, data)
    if found is not None:
        _refuse_difference(found, values, records)
    records.plan = checksum_bytes(data)


def _refuse_leftovers(records: Records) -> None:
    """Raise an error for records without a plan: it is unknown which job they belong to.

    A plan is created before the first record and removed after the last one, so it is checked
    before and after them: another worker may begin or end in between.
    """
    if read_plan(records) is not None:
        return
    stage = records.find_leftover()
    if stage is not None and read_plan(records) is None and records.list_done(stage):
        raise DataError(
            f"there are records of stage {stage} here, and no plan: they were left by another job",
            path=records.folder,
            next_step=_START_OVER,
        )


def _refuse_difference(found: Mapping[str, Any], plan: Mapping[str, Any], records: Records) -> None:
    if found.get(_FORMAT_KEY) != OUTPUT_FORMAT:
        raise UsageError(
            f"the work here was begun by another version of lowtide, whose work files have "
            f"format {found.get(_FORMAT_KEY, 'LTTASK01')}; this one's have {OUTPUT_FORMAT}",
            path=records.folder,
            next_step="remove this folder, and give the command again: it starts over; or finish "
            "the work with the version that began it",
        )
    difference = next(_iter_differences(found, plan), None)
    if difference is not None:
        raise UsageError(
            f"the work here is of another plan: {difference}",
            path=records.folder,
            next_step="start every worker with the same command, the same inputs and the same "
            "version; or choose another --work-dir; or remove this folder, which starts over",
        )


def _create_or_read(records: Records, data: bytes) -> dict[str, Any] | None:
    """Create the plan and return None, or return the existing one.

    A worker that finishes the work removes the folder, perhaps between two reads by this one: then
    there is no plan to compare with, and it is created again.
    """
    for _ in range(_MOST_LOOKS):
        try:
            if records.create(PLAN_NAME, data):
                return None
        except FileNotFoundError:
            continue
        if (found := read_plan(records)) is not None:
            return found
    raise LowtideError(
        "the work folder was removed again and again while this worker looked for its plan",
        path=records.folder,
        next_step="give the command again",
    )


_IN_WORDS = {
    "inputs": "its inputs have other names, sizes or times",
    "tokenizer": "its tokenizer is another one",
    "dataset": "the dataset has changed since it was begun",
    "train": "the dataset has other shards",
    "val": "the dataset has other shards",
}


def _iter_differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[str]:
    names = [*now, *sorted(set(before) - set(now))]
    for name in sorted(names, key=lambda name: name not in _TOLD_FIRST):
        old, new = before.get(name), now.get(name)
        if old == new:
            continue
        if isinstance(old, dict) and isinstance(new, dict):
            yield from _iter_differences(old, new)
        elif name in _IN_WORDS:
            yield _IN_WORDS[name]
        else:
            yield f"{name.replace('_', '-')} was {old}, now it is {new}"
