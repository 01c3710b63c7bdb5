"""What a preparation on Ray asks of its nodes, and shows of them; without Ray."""

from __future__ import annotations

import contextlib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from lowtide.dataset.appendable import AppendResult
from lowtide.dataset.settings import AppendSettings, PrepareSettings
from lowtide.dataset.staged import onray
from lowtide.errors import DataError


class Shown:
    """Stands for a job's progress."""

    seconds = 3.5

    def __init__(self) -> None:
        self.told: list[Any] = []

    def __enter__(self) -> Shown:
        return self

    def __exit__(self, *details: object) -> None:
        pass

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
    shown = onray._ShownStages(records, progress)
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


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    found: list[Any] = []

    def run(work: Any, **options: Any) -> int:
        found.append((work, options))
        return 77

    monkeypatch.setattr(onray, "run_on_ray", run)
    monkeypatch.setattr(onray, "Records", lambda folder: SimpleNamespace(list_stages=list))
    return found


def test_every_node_works_on_the_same_files_with_a_budget_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, asked: list[Any]
) -> None:
    monkeypatch.chdir(tmp_path)
    progress: Any = Shown()
    monkeypatch.setattr(onray, "Progress", lambda name: progress)
    settings = PrepareSettings(
        input_files=(Path("a.txt"),), out_dir=Path("out"), engine="ray", ray_address="auto",
        work_dir=Path("work"), memory="1GiB", num_workers=5,
    )  # fmt: skip
    result = onray.prepare_on_ray(settings)
    assert (result.peak_bytes, result.budget_bytes, result.seconds) == (77, 1 << 30, 3.5)
    ((work, options),) = asked
    folder, function, worker = work.args
    assert (folder, function) == (tmp_path, onray._prepare)
    assert (worker.engine, worker.ray_address) == ("files", None)
    assert (worker.work_dir, worker.memory) == (tmp_path / "work", str(1 << 30))
    assert (worker.out_dir, worker.input_files) == (settings.out_dir, settings.input_files)
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
    found = onray._work_in(tmp_path / "inside", lambda settings: (settings, Path.cwd()), "s")  # type: ignore
    assert found == ("s", tmp_path / "inside")
    monkeypatch.setattr(onray, "prepare_shared", lambda settings: SimpleNamespace(peak_bytes=5))
    assert onray._prepare("settings") == 5  # type: ignore
    appended: list[str] = []
    monkeypatch.setattr(onray, "append_shared", appended.append)
    monkeypatch.setattr(onray, "process_peak_bytes", lambda: 6)
    assert onray._append("settings") == 6  # type: ignore
    assert appended == ["settings"]


@pytest.mark.parametrize(("events", "was_there"), [([1, 2], True), ([1, 2, 3], False)])
def test_an_append_tells_what_was_added(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, asked: list[Any], events: list[int],
    was_there: bool,
) -> None:  # fmt: skip
    monkeypatch.setattr(onray, "Progress", lambda name: Shown())
    monkeypatch.setattr(onray, "read_any_metadata", lambda root: {"appended": [1, 2]})
    info = SimpleNamespace(metadata={"appended": events})
    monkeypatch.setattr(onray, "load_any_info", lambda root: info)
    monkeypatch.setattr(onray, "append_work_folder", lambda settings: tmp_path / "work")
    monkeypatch.setattr(onray, "read_added", lambda root, before: ("added", root, before))
    settings = AppendSettings(
        dataset_dir=tmp_path, input_files=(Path("a.txt"),), engine="ray", work_dir=tmp_path / "w"
    )
    found: Any = onray.append_on_ray(settings)
    if was_there:
        assert found == AppendResult(info, {}, [], 0, 0, was_there=True)  # pyright: ignore
    else:
        assert found == ("added", tmp_path, 2)
    assert asked[0][0].args[1] is onray._append


def test_without_a_budget_each_node_has_half_of_what_is_here(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(onray, "default_budget_bytes", lambda: 123)
    assert onray._find_memory(None) == 123
    assert onray._find_memory("2GiB") == 2 << 30
