"""The work folder: the same command goes on, another is refused, a reboot is survived."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xxhash

from lowtide.corpus.inputs import expand_inputs
from lowtide.corpus.reading import ReadingSettings, Stream, plan_streams
from lowtide.corpus.workfiles import write_work_file
from lowtide.dataset import workfolder
from lowtide.errors import DataError, UsageError
from lowtide.filenames import WORK_NAME
from lowtide.files import unused_name
from lowtide.journal import write_notes


def begin(root: Path, **changes: Any) -> tuple[Path, dict[str, Any], list[str]]:
    (root / "a.txt").write_text("text") if not (root / "a.txt").exists() else None
    notices: list[str] = []
    given: dict[str, Any] = {
        "verb": "prepare",
        "settings": {"seed": 0},
        "streams": plan_streams(expand_inputs([root / "a.txt"]), ReadingSettings()),
        "restart": False,
        "on_notice": notices.append,
        **changes,
    }
    work, facts = workfolder.open_work(root / "out", **given)
    return work, facts, notices


def finish_block(work: Path, name: str = "0000000-0000000", made: str = "clean") -> Path:
    path = work / made / f"{name}.block"
    path.parent.mkdir(exist_ok=True)
    write_work_file(path, {"has_text": True}, {})
    return path


def _unchecked(plan: dict[str, Any]) -> dict[str, Any]:
    """A plan as earlier versions wrote it."""
    return {name: value for name, value in plan.items() if name != "checksum"}


def test_facts_stay_as_they_were(tmp_path: Path) -> None:
    work, facts, notices = begin(tmp_path, facts={"first": 7})
    assert facts == {"first": 7} and notices == []
    finish_block(work)
    _, facts, notices = begin(tmp_path, facts={"first": 9})
    assert facts == {"first": 7} and notices == ["going on where the last command stopped"]
    assert workfolder.read_facts(tmp_path / "out", verb="prepare") == {"first": 7}
    assert workfolder.read_facts(tmp_path / "out", verb="append") is None


def test_another_command_is_refused(tmp_path: Path) -> None:
    work, _, _ = begin(tmp_path)
    finish_block(work)
    with pytest.raises(UsageError, match="--seed 0, now it is 1"):
        begin(tmp_path, settings={"seed": 1})
    with pytest.raises(UsageError, match="unfinished work of lowtide prepare"):
        begin(tmp_path, verb="append")
    (tmp_path / "b.txt").write_text("other text")
    both = expand_inputs([tmp_path / "a.txt", tmp_path / "b.txt"])
    with pytest.raises(UsageError, match=r"list of inputs changed .*b\.txt was not in both"):
        begin(tmp_path, streams=plan_streams(both, ReadingSettings()))
    begin(tmp_path, settings={"seed": 1}, restart=True)
    assert not list(work.glob("*/*"))


def test_where_nothing_was_done_another_command_may_begin(tmp_path: Path) -> None:
    begin(tmp_path)
    _, _, notices = begin(tmp_path, settings={"seed": 1})
    assert notices == []


def test_bad_inputs_may_be_skipped_from_now_on_but_not_back(tmp_path: Path) -> None:
    work, _, _ = begin(tmp_path, settings={"skip_bad_inputs": False})
    finish_block(work)
    begin(tmp_path, settings={"skip_bad_inputs": True})
    with pytest.raises(UsageError, match="--skip-bad-inputs True, now it is False"):
        begin(tmp_path, settings={"skip_bad_inputs": False})


@pytest.mark.parametrize(
    ("made", "besides", "settings", "stay"),
    [
        ("clean", None, {}, [True, False, False, False]),
        ("encoded-x", None, {}, [True, False, False, False]),
        # what is judged or chosen among all inputs depends on those that follow, too
        ("encoded-x", None, {"decontaminate": ["evals.jsonl"]}, [False] * 4),
        ("clean", None, {"decontaminate": ["evals.jsonl"]}, [True, False, False, False]),
        ("clean", "scores", {}, [False] * 4),
        ("clean", "examples", {}, [False] * 4),
        ("scores", None, {}, [True, False, False, False]),
    ],
)
def test_what_follows_a_changed_input_is_done_again(
    tmp_path: Path, made: str, besides: str | None, settings: dict[str, Any], stay: list[bool]
) -> None:
    for name in "abcd":
        (tmp_path / f"{name}.txt").write_text(name * 100)
    given = [tmp_path / f"{name}.txt" for name in "abcd"]

    def streams() -> list[Stream]:
        return plan_streams(expand_inputs(given), ReadingSettings(block_bytes=64))

    work, _, _ = begin(tmp_path, streams=streams(), settings=settings)
    blocks = [finish_block(work, f"000000{number}-0000000", made) for number in range(4)]
    if besides:
        (work / besides).mkdir()
    (work / "duplicates").mkdir()
    (work / "duplicates" / "0.removed").write_bytes(xxhash.xxh3_128_digest(b""))
    (tmp_path / "c.txt").write_text("mended")
    _, _, notices = begin(tmp_path, streams=streams(), settings=settings)
    assert [path.exists() for path in blocks] == stay
    assert not (work / "duplicates" / "0.removed").exists()
    assert "c.txt changed meanwhile" in notices[0]


def test_a_folder_of_the_same_name_is_never_removed(tmp_path: Path) -> None:
    mine = tmp_path / "out" / ".work" / "mine.txt"
    mine.parent.mkdir(parents=True)
    mine.write_text("precious")
    for restart in (False, True):
        with pytest.raises(UsageError, match=r"'mine\.txt', which lowtide did not make"):
            begin(tmp_path, restart=restart)
    assert mine.read_text() == "precious"


@pytest.mark.parametrize("boot", ["another", None])
def test_only_whole_files_stay(tmp_path: Path, boot: str | None) -> None:
    work, _, _ = begin(tmp_path)
    (work / "clean").mkdir()
    (work / "encoded-x").mkdir()
    for name in ("clean/1.block", "clean/2.block", "clean/3.block", "encoded-x/1.ids"):
        write_work_file(work / name, {"has_text": name != "clean/3.block"}, {"one": np.arange(9)})
    (work / "clean" / "2.block").write_bytes(b"\0" * 300)
    plan = json.loads((work / "plan.json").read_text())
    write_notes(work / "plan.json", {**_unchecked(plan), "boot": boot or plan["boot"]})
    _, _, notices = begin(tmp_path)
    left = sorted(path.name for path in work.rglob("*") if path.is_file())
    assert left == ["1.block", "inputs.jsonl", "plan.json"]
    assert "restarted" in notices[0] if boot else "work files are damaged" in notices[0]
    assert "1 of them are made again" in notices[0]


def test_what_duplicates_were_found_is_checked_too(tmp_path: Path) -> None:
    work, _, _ = begin(tmp_path)
    finish_block(work)
    (work / "duplicates").mkdir()
    whole, damaged, pipe = (work / "duplicates" / f"{name}.removed" for name in "abc")
    for path in (whole, damaged):
        path.write_bytes(b"lines" + xxhash.xxh3_128_digest(b"lines"))
    begin(tmp_path)
    assert whole.exists()
    assert damaged.exists()
    damaged.write_bytes(damaged.read_bytes().replace(b"l", b"L"))
    os.mkfifo(pipe)
    _, _, notices = begin(tmp_path)
    assert not damaged.exists()
    assert not pipe.exists()
    assert "2 of them are made again" in notices[0]


def test_work_of_a_version_with_the_inputs_in_its_plan_goes_on(tmp_path: Path) -> None:
    work, _, _ = begin(tmp_path)
    left = finish_block(work)
    plan = json.loads((work / "plan.json").read_text())
    rows = [json.loads(row) for row in (work / "inputs.jsonl").read_text().splitlines()]
    (work / "plan.json").write_text(json.dumps({**_unchecked(plan), "inputs": rows}))
    (work / "inputs.jsonl").unlink()
    begin(tmp_path)
    assert left.exists()
    (work / "inputs.jsonl").write_text("[")
    with pytest.raises(DataError, match="list of inputs"):
        begin(tmp_path)


def test_work_without_a_plan_is_removed(tmp_path: Path) -> None:
    work, _, _ = begin(tmp_path)
    left = finish_block(work)
    (work / "plan.json").unlink()
    begin(tmp_path)
    assert not left.exists()


def test_what_a_kill_leaves_of_the_plan_is_no_stranger(tmp_path: Path) -> None:
    work = tmp_path / WORK_NAME
    work.mkdir()
    unused_name(work / "plan.json", "partial").write_text('{"verb"')
    workfolder.remove_work(tmp_path)
    assert not work.exists()
