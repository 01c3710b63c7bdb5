"""The requirements of a command on Ray, and the progress it shows; without Ray."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from lowtide.engine import raycommands
from lowtide.errors import DataError


@dataclass(frozen=True)
class Settings:
    """The settings of a command with --engine ray."""

    out_dir: Path = Path("out")
    engine: str = "ray"
    ray_address: str | None = "auto"
    work_dir: Path | None = None
    memory: str | None = "1GiB"
    num_workers: int | None = 5


class Shown:
    """A stand-in for a job's progress."""

    def __init__(self) -> None:
        self.told: list[Any] = []

    def note(self, text: str) -> None:
        self.told.append(text)

    @contextlib.contextmanager
    def phase(self, name: str, *, total: int, unit: str) -> Any:
        self.told.append(("begin", name, total, unit))
        yield SimpleNamespace(update=lambda done: self.told.append((name, done)))
        self.told.append(("end", name))


def test_the_newest_stage_is_shown_until_the_next_begins() -> None:
    stages: list[tuple[str, int]] = []
    done = {"hash": {0}, "encode": set[int]()}
    records: Any = SimpleNamespace(
        list_stages=lambda: list(stages), list_done=lambda name: done[name]
    )
    progress: Any = Shown()
    shown = raycommands._ShownStages(records, progress)
    with shown.phases:
        shown.update()  # nothing has begun
        stages.append(("hash", 3))
        shown.update()
        done["hash"] = {0, 1}
        shown.update()
        stages.append(("encode", 5))
        shown.update()
        records.list_stages = lambda: (_ for _ in ()).throw(DataError("removed"))
        shown.update()
    assert progress.told == [
        ("begin", "hash", 3, "tasks"), ("hash", 1), ("hash", 2), ("end", "hash"),
        ("begin", "encode", 5, "tasks"), ("encode", 0), ("end", "encode"),
    ]  # fmt: skip


def test_every_node_works_on_the_same_files_with_a_budget_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(
        raycommands, "run_on_ray", lambda work, **options: asked.append((work, options)) or 77
    )
    progress: Any = Shown()
    settings = Settings()
    assert raycommands.run_workers(settings, Path("work"), repr, progress) == 77  # type: ignore
    ((work, options),) = asked
    assert work.args == (
        tmp_path, repr,
        Settings(engine="files", ray_address=None, work_dir=tmp_path / "work", memory=str(1 << 30)),
    )  # fmt: skip
    assert options.pop("on_notice") == progress.note
    assert options.pop("on_poll").__name__ == "update"
    assert options == {"address": "auto", "num_cpus": 5, "memory_bytes": 1 << 30}
    assert progress.told == [
        "Ray's own processes are not in the budget: some 400 to 650 MB on each node"
    ]


def test_a_node_works_where_the_command_was_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "inside").mkdir()
    found = raycommands._work_in(tmp_path / "inside", lambda given: (given, Path.cwd()), "s")  # type: ignore
    assert found == ("s", tmp_path / "inside")


def test_without_a_budget_each_node_has_half_of_what_is_here(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(raycommands, "default_budget_bytes", lambda: 123)
    assert raycommands.find_memory(Settings(memory=None)) == 123
    assert raycommands.find_memory(Settings(memory="2GiB")) == 2 << 30
