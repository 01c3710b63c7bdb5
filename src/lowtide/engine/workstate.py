"""Show the progress of workers on a shared folder, from the files they write there.

In:      a work folder
Out:     text to print: stages, tasks done and running, rate, time left, failures
Memory:  a name per task
"""

from __future__ import annotations

import time
from pathlib import Path

from lowtide.engine.leases import count_losses, list_failures, list_leases
from lowtide.engine.plans import has_plan
from lowtide.engine.records import PLAN_NAME, Records
from lowtide.progress import format_seconds
from lowtide.stores.paths import StorePath, is_stored

__all__ = ["describe_work", "is_work_folder"]


def is_work_folder(folder: Path) -> bool:
    """True if a folder is a shared work folder; False for the root of a bucket."""
    if is_stored(folder) and not StorePath(folder).url.key:
        return False
    records = Records(folder)
    # Without stages if the first has not begun, or while all are being removed.
    return records.place.exists(PLAN_NAME) and (bool(records.list_stages()) or has_plan(records))


def describe_work(folder: Path) -> str:
    """Describe the state of a work folder."""
    records = Records(folder)
    leases = list_leases(folder)
    lines = [f"{folder}: work of lowtide that is not finished"]
    stages = records.list_stages()
    if not stages:
        lines.append("  no stage    none has begun, or all are done and being removed")
    for stage, count in stages:
        done = len(records.list_done(stage))
        running = sum(name.rpartition("-")[0] == stage for name in leases)
        row = f"  {stage:<11} {done:,} of {count:,} tasks"
        if running:
            row += f", {running} in work{_describe_rate(records, stage, done, count)}"
        lines.append(row)
    lines += [f"  in work     {name} on {worker}" for name, worker in leases.items()]
    for name, failure in list_failures(folder).items():
        lines.append(f"  failed      {name}, {failure.times} times; the last: {failure.message}")
    for name, count in sorted(count_losses(folder).items()):
        lines.append(f"  lost        the worker on {name}, {count} times")
    return "\n".join(lines)


def _describe_rate(records: Records, stage: str, done: int, count: int) -> str:
    try:
        seconds = time.time() - records.find_begin(stage)
    except FileNotFoundError:  # the work is done, and the folder is being removed
        return ""
    if not done or seconds <= 0:  # nothing done yet, or the disk's clock is ahead of ours
        return ""
    left = (count - done) * seconds / done
    return f", {done / seconds:.2g} a second, about {format_seconds(left)} left"
