"""The journal: the same command goes on, another is refused, a reboot is survived."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lowtide.corpus.inputs import expand_inputs
from lowtide.corpus.workfiles import write_work_file
from lowtide.dataset import journal
from lowtide.errors import UsageError


def begin(root: Path, **changes: Any) -> tuple[Path, dict[str, Any], list[str]]:
    (root / "a.txt").write_text("text") if not (root / "a.txt").exists() else None
    notices: list[str] = []
    given: dict[str, Any] = {
        "verb": "prepare",
        "settings": {"seed": 0},
        "inputs": expand_inputs([root / "a.txt"]),
        "restart": False,
        "on_notice": notices.append,
        **changes,
    }
    work, facts = journal.open_journal(root / "out", **given)
    return work, facts, notices


def test_facts_stay_as_they_were(tmp_path: Path) -> None:
    _, facts, notices = begin(tmp_path, facts={"first": 7})
    assert facts == {"first": 7} and notices == []
    _, facts, notices = begin(tmp_path, facts={"first": 9})
    assert facts == {"first": 7} and notices == ["going on where the last command stopped"]
    assert journal.read_facts(tmp_path / "out", verb="prepare") == {"first": 7}
    assert journal.read_facts(tmp_path / "out", verb="append") is None


def test_another_command_is_refused(tmp_path: Path) -> None:
    begin(tmp_path)
    with pytest.raises(UsageError, match="--seed 0, now it is 1"):
        begin(tmp_path, settings={"seed": 1})
    with pytest.raises(UsageError, match="unfinished work of lowtide prepare"):
        begin(tmp_path, verb="append")
    (tmp_path / "a.txt").write_text("other text")
    with pytest.raises(UsageError, match=r"a\.txt changed since"):
        begin(tmp_path)
    begin(tmp_path, restart=True)


def test_after_a_restart_of_the_machine_only_whole_files_stay(tmp_path: Path) -> None:
    work, _, _ = begin(tmp_path)
    (work / "clean").mkdir()
    (work / "encoded-x").mkdir()
    for name in ("clean/1.block", "clean/2.block", "clean/3.block", "encoded-x/1.ids"):
        write_work_file(work / name, {"has_text": name != "clean/3.block"}, {"one": np.arange(9)})
    (work / "clean" / "2.block").write_bytes(b"\0" * 300)
    plan = json.loads((work / "plan.json").read_text())
    (work / "plan.json").write_text(json.dumps({**plan, "boot": "another"}))
    _, _, notices = begin(tmp_path)
    left = sorted(path.name for path in work.rglob("*") if path.is_file())
    assert left == ["1.block", "plan.json"]
    assert "1 work files are made again" in notices[0]


def test_work_without_a_plan_is_removed(tmp_path: Path) -> None:
    work, _, _ = begin(tmp_path)
    (work / "left.block").write_text("x")
    (work / "plan.json").unlink()
    begin(tmp_path)
    assert not (work / "left.block").exists()
