"""Results of tasks in the shared folder, created atomically and once, and records of them.

In:      a task's result, written to a hidden file
Out:     FOLDER/STAGE/NAME.out and then FOLDER/STAGE/NAME.done: a record of names, sizes, checksums
Memory:  one record; the locations of 4,096 results; the headers of 256

A task is done when it has a record. Records and results are created, never replaced (folders), so
two workers on one task do no harm: the second one finds the first one's bytes, and stops with an
error if its own differ. A record names its plan, and a record of another job is refused.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import threading
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from lowtide import files
from lowtide.engine.folders import open_folder
from lowtide.engine.outputs import Output, OutputWriter, open_output, parse_header
from lowtide.engine.tasks import Task, Uncommitted
from lowtide.engine.taskscratch import TaskScratch
from lowtide.errors import DataError, UsageError

__all__ = ["PLAN_NAME", "Records", "describe_worker"]

_DONE = ".done"
_COUNT = "count"
PLAN_NAME = "plan.json"
"""The file of the plan that all workers agree on; the stages decide its content."""
_OWN_ENTRY = re.compile(
    rf"{_COUNT}|([0-9]+-)?[0-9a-f]{{16}}|.+-[0-9]{{7}}(-[0-9a-z]+)?(\.(done|out|lease))?"
)
"""Files of stages, leases and failures; scratch folders, probes of a store."""
_OUTPUTS_KEPT = 256
_PLACES_KEPT = 4096  # about 4 MB


def describe_worker() -> str:
    """Host and process, to help users find a worker.

    >>> describe_worker().endswith(f":{os.getpid()}")
    True
    """
    return f"{os.uname().nodename}:{os.getpid()}"


class Records:
    """The records of tasks in a work folder, on a disk or in a store."""

    def __init__(self, folder: Path, *, places_kept: int = _PLACES_KEPT) -> None:
        self._places_kept = places_kept
        self.place = open_folder(folder)
        self.folder = folder
        self.plan: str | None = None
        """The checksum of the plan that workers agreed on (plans); None if there is none."""
        self._outputs: OrderedDict[Task, Output] = OrderedDict()
        self._places: dict[tuple[Task, tuple[str, ...]], Output] = {}
        self._lock = threading.Lock()

    def record_path(self, task: Task) -> Path:
        """The path of a task's record."""
        return self.folder / _record_name(task)

    def is_done(self, task: Task) -> bool:
        """True if a task has its record; a record of another job is an error."""
        if self.plan is None:
            return self.place.exists(_record_name(task))
        try:
            data = self.place.read(_record_name(task))
        except FileNotFoundError:
            return False
        self._parse(task, data)
        return True

    def list_done(self, stage: str) -> set[int]:
        """The indices of a stage's finished tasks; a listing may be out of date."""
        names = (name for name in self.place.list_names(stage) if name.endswith(_DONE))
        numbers = (name.removesuffix(_DONE).rpartition("-")[2] for name in names)
        return {int(number) for number in numbers if number.isdecimal()}

    def read(self, task: Task) -> dict[str, Any]:
        """The content of a finished task's record: the stage's `facts`, and its files."""
        try:
            data = self.place.read(_record_name(task))
        except FileNotFoundError:
            raise _damaged_record("file not found", self.record_path(task)) from None
        return self._parse(task, data)

    def _parse(self, task: Task, data: bytes) -> dict[str, Any]:
        path = self.record_path(task)
        record = _parse_json(data, path)
        if not isinstance(record, dict) or record.get("task") != task.name:
            raise _damaged_record(f"expected the record of task {task.name}", path)
        checksum = record.pop("checksum", None)
        if checksum is not None and checksum != _checksum_record(record):
            raise _damaged_record(f"the record of task {task.name} is damaged", path)
        if self.plan is not None and record.get("plan") != self.plan:
            raise _damaged_record(
                f"the record of task {task.name} was left by another job or version", path
            )
        return record

    def _read_json(self, name: str) -> Any:
        path = self.folder / name
        try:
            return _parse_json(self.place.read(name), path)
        except FileNotFoundError:
            raise _damaged_record("file not found", path) from None

    def open(self, task: Task) -> Output:
        """The file of a finished task, if it matches its record.

        Neither ever changes, so both are checked once; results that this process has committed are
        not checked. Pages are verified whenever they are read.
        """
        with self._lock:
            output = self._outputs.pop(task, None)
        if output is None:
            ((name, row),) = self.read(task)["files"].items()
            output = self._open(task, self.place.output_path(task.stage, name), row)
        self._keep(task, output)
        return output

    def _keep(self, task: Task, output: Output) -> None:
        with self._lock:
            self._outputs[task] = output
            while len(self._outputs) > _OUTPUTS_KEPT:
                self._outputs.popitem(last=False)

    def open_sections(self, task: Task, names: Sequence[str]) -> Output:
        """The file of a finished task, when only some sections are read, many times.

        The offsets are cached for the first few thousand: every partition of a stage reads a little
        of every task of an earlier one.
        """
        key = (task, tuple(names))
        output = self._places.get(key)
        if output is None:
            output = self.open(task)
            sections = {name: output.sections[name] for name in names}
            output = replace(output, header={}, sections=sections)
            if len(self._places) < self._places_kept:
                self._places[key] = output
        return output

    def _open(self, task: Task, path: Path, row: Mapping[str, Any]) -> Output:
        size = path.stat().st_size
        if size != row["bytes"]:
            raise DataError(
                f"{size} bytes, but the record of task {task.name} says {row['bytes']}",
                path=path,
                next_step="remove the work folder, and give the command again: it starts over",
            )
        return open_output(path)

    def commit(
        self,
        task: Task,
        write: Callable[[OutputWriter], Mapping[str, Any]],
        *,
        facts: Callable[[], Mapping[str, Any]] = dict,
    ) -> None:
        """Write a task's file and commit it; `write` returns the file's header."""
        self.write(task, write, facts=facts).commit()

    def write(
        self,
        task: Task,
        write: Callable[[OutputWriter], Mapping[str, Any]],
        *,
        facts: Callable[[], Mapping[str, Any]] = dict,
        after: Uncommitted | None = None,
    ) -> Uncommitted:
        """Write a task's file, without committing it: flush, name and record follow in `commit`.

        The result `after` is committed before it, or discarded with it.
        """
        first = after or Uncommitted()
        with contextlib.ExitStack() as stack:
            stack.push(first.files)
            unnamed, file = stack.enter_context(self.place.scratch_file(task.stage))
            writer = OutputWriter(file)
            checksum, header = writer.finish(write(writer))
            file.flush()
            row = {"bytes": file.tell(), "xxh3": checksum}
            file.close()  # frees its buffer
            commit = partial(self._publish, task, unnamed, row, facts(), header)
            return Uncommitted((*first.steps, commit), stack.pop_all())

    def _publish(
        self,
        task: Task,
        unnamed: Path,
        row: Mapping[str, Any],
        facts: Mapping[str, Any],
        header: bytes,
    ) -> None:
        name = self.place.publish(unnamed, task.stage, task.name, row["xxh3"])
        if name is None:
            raise _other_result(task, self.record_path(task))
        self.commit_record(task, facts=facts, outputs={name: row})
        self._keep(task, parse_header(self.place.output_path(task.stage, name), header))

    def commit_record(
        self,
        task: Task,
        *,
        facts: Mapping[str, Any],
        outputs: Mapping[str, Mapping[str, Any]] | None = None,
    ) -> None:
        """Record that a task is done; if it has a record already, the result must be the same."""
        record: dict[str, Any] = {"task": task.name, "facts": dict(facts)}
        record["files"] = dict(outputs or {})
        if self.plan is not None:
            record["plan"] = self.plan
        signed = {**record, "by": describe_worker()}
        data = json.dumps({**signed, "checksum": _checksum_record(signed)}).encode()
        if self.place.create(_record_name(task), data):
            return
        before = self.read(task)
        if any(before.get(key) != json.loads(json.dumps(record[key])) for key in record):
            raise _other_result(task, self.record_path(task))

    def create(self, name: str, data: bytes) -> bool:
        """Create a small file in the folder; False if it exists already, and is left unchanged.

        If it matters who was first, `data` must be unique to this worker: if the answer is lost,
        only the bytes tell whose object a store has.
        """
        return self.place.create(name, data)

    def agree_on_count(self, stage: str, count: int, *, place: int = 0) -> None:
        """Record the number of tasks of a stage; an error if another worker's number differs.

        `place` is the index of the stage among the stages of its worker.
        """
        if not self.place.exists(f"{stage}/{_COUNT}"):  # creating it takes a flush to the disk
            self.create(f"{stage}/{_COUNT}", json.dumps([count, place]).encode())
        stored = self._read_count(stage)
        if stored != count:
            raise UsageError(
                f"stage {stage} has {stored} tasks for other workers, {count} for this one",
                path=self.folder,
                next_step="start every worker with the same command, inputs and version",
            )

    def _read_count(self, stage: str) -> int:
        name = f"{stage}/{_COUNT}"
        return _parse_count(self._read_json(name), self.folder / name)[0]

    def list_stages(self) -> list[tuple[str, int]]:
        """The stages that were begun, in order, with their number of tasks."""
        found: list[tuple[float, int, str, int]] = []
        for stage in self.place.list_names():
            name = f"{stage}/{_COUNT}"
            with contextlib.suppress(FileNotFoundError):  # not a stage, or just removed
                when, data = self.place.find_time(name), self.place.read(name)
                path = self.folder / name
                count, place = _parse_count(_parse_json(data, path), path)
                found.append((when, place, stage, count))
        return [(stage, count) for _, _, stage, count in sorted(found)]

    def find_begin(self, stage: str) -> float:
        """When a stage was begun, by the folder's clock; FileNotFoundError if it was not."""
        return self.place.find_time(f"{stage}/{_COUNT}")

    def find_leftover(self) -> str | None:
        """A stage with records of any job; None if there is none."""
        own = self._own_names(())
        stages = (name for name in self.place.list_names() if name not in own)
        return next((stage for stage in stages if self.list_done(stage)), None)

    def refuse_strangers(self, stages: Collection[str]) -> None:
        """Raise an error if the folder has entries that workers on these stages did not create.

        Folders of their names are removed at the end, so what is in them is checked too. A folder
        with a plan is left to `commit_plan`, which reports what differs: workers with other
        settings have other stages.
        """
        names = self.place.list_names()
        if PLAN_NAME in names:
            return
        for name in names:
            stranger = self._find_stranger(name, self._own_names(stages))
            if stranger is not None:
                raise UsageError(
                    f"{stranger} is here, which no worker made",
                    path=self.folder,
                    next_step="give a folder of its own as --work-dir",
                )

    def _find_stranger(self, name: str, own: Collection[str]) -> str | None:
        """An entry of the folder, or of a folder in it, that is not ours."""
        if name not in own or (self.folder / name).is_file():
            return name
        others = own if name in self.place.more_names else ("train", "val")  # of new shards
        inside = (row for row in self.place.list_names(name) if row not in others)
        return next((f"{name}/{row}" for row in inside if not _OWN_ENTRY.fullmatch(row)), None)

    def remove(self, stages: Collection[str]) -> None:
        """Remove everything that workers on these stages wrote, and the folder if it is then empty.

        The plan is removed last: while it exists, the rest is known to belong to it. Work with
        another plan is kept: a worker that was slow may come here when the next job has begun.
        """
        self.place.remove(self._iter_removable(stages))

    def _iter_removable(self, stages: Collection[str]) -> Iterator[str]:
        for name in self._own_names(stages):
            try:
                plan = files.checksum_bytes(self.place.read(PLAN_NAME))
            except FileNotFoundError:
                plan = None
            if plan not in (None, self.plan):
                return
            if name != PLAN_NAME or plan is not None:  # else it would be the next job's
                yield name

    def _own_names(self, stages: Collection[str]) -> list[str]:
        return [*stages, "leases", "failures", "losses", *self.place.more_names, PLAN_NAME]

    def scratch_folder(self) -> contextlib.AbstractContextManager[Path]:
        """A folder for a task's temporary files."""
        return self.place.scratch_folder()

    def scratch(self) -> TaskScratch:
        """The same, created only if data does not fit in memory."""
        return TaskScratch(self.place.scratch_folder)


def _record_name(task: Task) -> str:
    return f"{task.stage}/{task.name}{_DONE}"


def _parse_json(data: bytes, path: Path) -> Any:
    try:
        return json.loads(data)
    except (ValueError, RecursionError) as error:
        raise _damaged_record(f"not JSON: {error}", path) from None


def _parse_count(value: Any, path: Path) -> tuple[int, int]:
    """The number of tasks of a stage, and its index; earlier versions wrote only the first."""
    row = value if isinstance(value, list) else [value, 0]
    if [type(number) for number in row] != [int, int]:
        raise _damaged_record("expected how many tasks there are", path)
    return row[0], row[1]


def _checksum_record(record: Mapping[str, Any]) -> str:
    return files.checksum_bytes(json.dumps(record, sort_keys=True).encode())


def _damaged_record(message: str, path: Path) -> DataError:
    return DataError(
        message,
        path=path,
        next_step="remove the work folder, and give the command again: it starts over",
    )


def _other_result(task: Task, path: Path) -> DataError:
    return DataError(
        f"task {task.name} was done twice, with two results",
        path=path,
        next_step="an input changed meanwhile, or versions differ: see that all workers have the "
        "same of both, remove the work folder, and start again",
    )
