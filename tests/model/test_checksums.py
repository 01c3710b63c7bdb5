"""Which files of a folder are whole, and what is taken or advised where they are not."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from lowtide.errors import DataError
from lowtide.filenames import CHECKSUMS_NAME
from lowtide.model.checksums import (
    find_intact,
    has_all_files,
    record_files,
    step_dirs,
    write_recorded_json,
)


def write(folder: Path, *names: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        (folder / name).write_text(name)
    record_files(folder, names)


def test_what_is_missing_may_be_written_again_and_what_is_changed_is_an_error(
    tmp_path: Path,
) -> None:
    assert not has_all_files(tmp_path)  # nothing was recorded
    write(tmp_path, "a", "b")
    assert has_all_files(tmp_path) and has_all_files(tmp_path, ["a"])
    assert not has_all_files(tmp_path, ["a", "c"])
    (tmp_path / "b").unlink()
    assert not has_all_files(tmp_path) and has_all_files(tmp_path, ["a"])
    (tmp_path / "a").write_text("another")
    with pytest.raises(DataError) as caught:
        has_all_files(tmp_path)
    assert caught.value.path == tmp_path / "a"
    assert "remove this file" in str(caught.value.next_step)


def test_the_newest_checkpoint_that_is_whole_is_taken(tmp_path: Path) -> None:
    write(tmp_path, "model.safetensors")
    steps = [tmp_path / "steps" / f"step_{number:08}" for number in (1, 2, 3)]
    for folder in steps:
        write(folder, "model.safetensors")
    (tmp_path / "steps" / "step_00000009").write_text("no folder")
    assert step_dirs(tmp_path) == steps
    said: list[str] = []
    assert find_intact(tmp_path, note=said.append) == tmp_path and not said
    for folder in (tmp_path, steps[2]):
        (folder / "model.safetensors").write_text("damaged")
    assert find_intact(str(tmp_path), note=said.append) == steps[1]
    assert len(said) == 1 and said[0].endswith(f"taking {steps[1]} instead")


@pytest.mark.parametrize(("name", "has_best", "advice"), [
    ("run", True, "the best weights (--best) may be whole"),
    ("best", False, "without --best the last weights may be whole"),
    ("run", False, "make it anew with the command that wrote the folder"),
])  # fmt: skip
def test_where_else_there_are_weights_is_said(
    tmp_path: Path, name: str, has_best: bool, advice: str
) -> None:
    write(tmp_path / name, "model.safetensors")
    (tmp_path / name / "model.safetensors").write_text("damaged")
    if has_best:
        (tmp_path / name / "best").mkdir()
    with pytest.raises(DataError) as caught:
        find_intact(tmp_path / name)
    assert advice in str(caught.value.next_step)


def test_what_is_there_is_not_written_again(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    write_recorded_json(path, {"a": 1})
    before = path.stat()
    write_recorded_json(path, {"a": 1})
    assert path.stat().st_ino == before.st_ino and has_all_files(tmp_path)
    record = tmp_path / CHECKSUMS_NAME
    record.unlink()
    write_recorded_json(path, {"a": 1})  # nothing says that it is ours
    assert path.stat().st_ino != before.st_ino and has_all_files(tmp_path)
    write_recorded_json(path, {"a": 2})
    assert json.loads(path.read_text()) == {"a": 2} and has_all_files(tmp_path)
    path.write_text("another")
    write_recorded_json(path, {"a": 2})
    assert json.loads(path.read_text()) == {"a": 2}
