"""The folder that workers share: results that appear whole and once, and records that say so.

In:      a task's result, written to a hidden file
Out:     FOLDER/STAGE/NAME.out and then FOLDER/STAGE/NAME.done: a record of names, sizes, checksums
Memory:  one record

The record is the truth: a task is done when it has one. Both are created, never replaced (link is
atomic, on network disks too), so two workers on one task cannot tear anything: the second finds the
first one's bytes, and stops if they are not its own.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shutil
import socket
from collections.abc import Callable, Collection, Generator, Mapping
from pathlib import Path
from typing import IO, Any

from lowtide import files
from lowtide.engine.outputs import Output, OutputWriter, open_output
from lowtide.engine.tasks import Task
from lowtide.errors import DataError, UsageError

__all__ = ["PLAN_NAME", "Records", "describe_worker"]

_DONE = ".done"
_COUNT = "count"
PLAN_NAME = "plan.json"
"""What all workers agree on; a stage says what it holds."""
_BUFFER_BYTES = 1 << 20


def describe_worker() -> str:
    """Host and process, for people who look for a worker.

    >>> describe_worker().endswith(f":{os.getpid()}")
    True
    """
    return f"{socket.gethostname()}:{os.getpid()}"


class Records:
    """What tasks have left in a work folder."""

    def __init__(self, folder: Path) -> None:
        files.require_local(folder)
        self.folder = folder

    def record_path(self, task: Task) -> Path:
        """Where a task's record is."""
        return self.folder / task.stage / f"{task.name}{_DONE}"

    def output_path(self, task: Task) -> Path:
        """Where a task's file is."""
        return self.folder / task.stage / f"{task.name}.out"

    def is_done(self, task: Task) -> bool:
        """Return whether a task has its record."""
        return self.record_path(task).exists()

    def list_done(self, stage: str) -> set[int]:
        """The numbers of a stage's tasks that are done; a listing may lag behind."""
        done: set[int] = set()
        with contextlib.suppress(FileNotFoundError), os.scandir(self.folder / stage) as entries:
            for entry in entries:
                number = entry.name.removesuffix(_DONE).rpartition("-")[2]
                if entry.name.endswith(_DONE) and entry.name[0] != "." and number.isdecimal():
                    done.add(int(number))
        return done

    def read(self, task: Task) -> dict[str, Any]:
        """What a finished task's record says: `facts` of its stage, and its files."""
        path = self.record_path(task)
        try:
            record: Any = files.read_json(path)
        except DataError as error:
            raise _damaged_record(str(error.message), path) from None
        if not isinstance(record, dict) or record.get("task") != task.name:
            raise _damaged_record(f"expected the record of task {task.name}", path)
        checksum = record.pop("checksum", None)
        if checksum is not None and checksum != _checksum_record(record):
            raise _damaged_record(f"the record of task {task.name} is damaged", path)
        return record

    def open(self, task: Task) -> Output:
        """The file of a finished task, if it is as its record says."""
        path = self.output_path(task)
        expected = self.read(task)["files"][path.name]["bytes"]
        size = path.stat().st_size
        if size != expected:
            raise DataError(
                f"{size} bytes, but the record of task {task.name} says {expected}",
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
        """Write a task's file and its record; `write` returns the file's header."""
        path = self.output_path(task)
        with self._scratch(path) as (partial, file):
            writer = OutputWriter(file)
            checksum = writer.finish(write(writer))
            file.flush()
            os.fsync(file.fileno())
            size = file.tell()
            if not _create(partial, path):
                _require_same_file(partial, path, task)
        row = {"bytes": size, "xxh3": checksum}
        self.commit_record(task, facts=facts(), outputs={path.name: row})

    def commit_record(
        self,
        task: Task,
        *,
        facts: Mapping[str, Any],
        outputs: Mapping[str, Mapping[str, Any]] | None = None,
    ) -> None:
        """Say that a task is done; one that is done already must have had the same result."""
        record = {"task": task.name, "facts": dict(facts), "files": dict(outputs or {})}
        path = self.record_path(task)
        with self._scratch(path) as (partial, file):
            record = {**record, "by": describe_worker()}
            file.write(files.json_bytes({**record, "checksum": _checksum_record(record)}))
            file.flush()
            os.fsync(file.fileno())
            if _create(partial, path):
                return
        before = self.read(task)
        same = ("task", "facts", "files")
        if any(before.get(key) != json.loads(json.dumps(record[key])) for key in same):
            raise _other_result(task, path)

    @contextlib.contextmanager
    def _scratch(self, path: Path) -> Generator[tuple[Path, IO[bytes]]]:
        """A hidden file beside `path`, which is gone afterwards."""
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = files.unused_name(path, "partial")
        try:
            with os.fdopen(files.create_file(partial), "w+b", buffering=_BUFFER_BYTES) as file:
                yield partial, file
        finally:
            with contextlib.suppress(OSError):
                partial.unlink()

    def create(self, name: str, data: bytes) -> bool:
        """Create a small file in the folder; False if it is there already, as it was."""
        path = self.folder / name
        with self._scratch(path) as (partial, file):
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
            return _create(partial, path)

    def agree_on_count(self, stage: str, count: int) -> None:
        """Say how many tasks a stage has; workers that count otherwise do not belong together."""
        self.create(f"{stage}/{_COUNT}", json.dumps(count).encode())
        stored = _read_count(self.folder / stage / _COUNT)
        if stored != count:
            raise UsageError(
                f"stage {stage} has {stored} tasks for other workers, {count} for this one",
                path=self.folder,
                next_step="start every worker with the same command, inputs and version",
            )

    def list_stages(self) -> list[tuple[str, int]]:
        """The stages that were begun, in that order, with how many tasks they have."""
        found = sorted(self.folder.glob(f"*/{_COUNT}"), key=lambda path: path.stat().st_mtime_ns)
        return [(path.parent.name, _read_count(path)) for path in found]

    def refuse_strangers(self, stages: Collection[str]) -> None:
        """Refuse a folder that holds what workers on these stages have not made."""
        with contextlib.suppress(FileNotFoundError):
            for path in sorted(self.folder.iterdir()):
                if path.name not in _own_names(stages) and not path.name.startswith("."):
                    raise UsageError(
                        f"{path.name} is here, which no worker made",
                        path=self.folder,
                        next_step="give a folder of its own as --work-dir",
                    )

    def remove(self, stages: Collection[str]) -> None:
        """Remove what workers on these stages left, and the folder if it is empty then."""
        for name in _own_names(stages):
            path = self.folder / name
            if path.is_dir():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink(missing_ok=True)
        with contextlib.suppress(OSError):
            self.folder.rmdir()

    @contextlib.contextmanager
    def scratch_folder(self) -> Generator[Path]:
        """A folder of this task's own, for what it needs only meanwhile."""
        folder = self.folder / "scratch" / secrets.token_hex(8)
        folder.mkdir(parents=True)
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def _checksum_record(record: Mapping[str, Any]) -> str:
    return files.checksum_bytes(json.dumps(record, sort_keys=True).encode())


def _read_count(path: Path) -> int:
    try:
        count: Any = files.read_json(path)
    except DataError as error:
        raise _damaged_record(str(error.message), path) from None
    if type(count) is not int:
        raise _damaged_record("expected how many tasks there are", path)
    return count


def _damaged_record(message: str, path: Path) -> DataError:
    return DataError(
        message,
        path=path,
        next_step="remove the work folder, and give the command again: it starts over",
    )


def _own_names(stages: Collection[str]) -> list[str]:
    return [PLAN_NAME, *stages, "leases", "failures", "losses", "scratch"]


def _create(partial: Path, path: Path) -> bool:
    """Give a finished file its name; False if another file has it."""
    try:
        os.link(partial, path)
    except FileExistsError:
        # A network disk may repeat a request that had succeeded: then the file has both names.
        return os.path.samestat(partial.stat(), path.stat())
    files.sync_directory(path.parent)
    return True


def _require_same_file(mine: Path, other: Path, task: Task) -> None:
    if mine.stat().st_size != other.stat().st_size or files.checksum_file(
        mine
    ) != files.checksum_file(other):
        raise _other_result(task, other)


def _other_result(task: Task, path: Path) -> DataError:
    return DataError(
        f"task {task.name} was done twice, with two results",
        path=path,
        next_step="an input changed meanwhile, or versions differ: see that all workers have the "
        "same of both, remove the work folder, and start again",
    )
