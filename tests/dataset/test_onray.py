"""The work and messages of preparations and appends on Ray; without Ray."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from lowtide.dataset.appendable import AppendResult
from lowtide.dataset.settings import AppendSettings, PrepareSettings
from lowtide.dataset.staged import onray


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    found: list[Any] = []

    def run(settings: Any, work_dir: Path, work: Any, progress: Any) -> int:
        found.append((settings, work_dir, work))
        return 77

    monkeypatch.setattr(onray, "run_workers", run)
    return found


def test_a_preparation_tells_the_highest_peak_of_its_workers(asked: list[Any]) -> None:
    settings = PrepareSettings(
        input_files=(Path("a.txt"),), out_dir=Path("out"), engine="ray", memory="1GiB"
    )
    result = onray.prepare_on_ray(settings)
    assert (result.peak_bytes, result.budget_bytes) == (77, 1 << 30)
    assert asked == [(settings, Path("out.work"), onray._prepare)]


def test_a_worker_does_what_one_of_shared_folders_does(monkeypatch: pytest.MonkeyPatch) -> None:
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
    monkeypatch.setattr(onray, "read_any_metadata", lambda root: {"appended": [1, 2]})
    info = SimpleNamespace(metadata={"appended": events})
    monkeypatch.setattr(onray, "load_any_info", lambda root: info)
    monkeypatch.setattr(onray, "read_added", lambda root, before: ("added", root, before))
    settings = AppendSettings(
        dataset_dir=tmp_path, input_files=(Path("a.txt"),), engine="ray", work_dir=tmp_path / "w"
    )
    found: Any = onray.append_on_ray(settings)
    if was_there:
        assert found == AppendResult(info, {}, [], 0, 0, was_there=True)  # pyright: ignore
    else:
        assert found == ("added", tmp_path, 2)
    assert asked == [(settings, tmp_path / "w", onray._append)]
