"""The work folder: the same command resumes, another is rejected, a reboot is survived."""

from __future__ import annotations

import json
import os
from pathlib import Path
from types import SimpleNamespace
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
from lowtide.journal import write_notes
from lowtide.unfinished import unused_name


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
    """A plan in the format of earlier versions."""
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
        # judging and choosing among all inputs also depends on those that follow
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


@pytest.mark.parametrize(
    ("plan", "has", "has_append", "outdated", "facts"),
    [
        ({"version": 4, "verb": "append", "facts": {"a": 1}}, True, True, False, {"a": 1}),
        ({"version": 3, "verb": "append"}, True, True, True, None),
        ({"version": 4, "verb": "append", "facts": [1]}, True, True, False, None),
        ({"version": 4, "verb": "prepare", "facts": {"a": 1}}, True, False, False, None),
        ({"version": 3, "verb": "prepare"}, True, False, False, None),
        (None, False, False, False, None),
    ],
)
def test_what_a_plan_tells_of_work(
    tmp_path: Path, plan: Any, has: bool, has_append: bool, outdated: bool, facts: Any
) -> None:
    if plan is not None:
        (tmp_path / WORK_NAME).mkdir()
        write_notes(tmp_path / WORK_NAME / "plan.json", plan)
    assert workfolder.has_plan(tmp_path) is has
    assert workfolder.has_plan(tmp_path, verb="append") is has_append
    assert workfolder.is_outdated(tmp_path, verb="append") is outdated
    assert workfolder.read_facts(tmp_path, verb="append") == facts


def test_a_command_without_blocks_says_what_it_is_about(tmp_path: Path) -> None:
    workfolder.begin_work(tmp_path / "out", verb="import", facts={"files": 3})
    assert workfolder.read_facts(tmp_path / "out", verb="import") == {"files": 3}
    assert not workfolder.is_outdated(tmp_path / "out", verb="import")


@pytest.mark.parametrize("text", ["{", "[]", '{"version": 4}'])
def test_a_plan_that_cannot_be_read_is_told(tmp_path: Path, text: str) -> None:
    (tmp_path / WORK_NAME).mkdir()
    (tmp_path / WORK_NAME / "plan.json").write_text(text)
    with pytest.raises(DataError) as caught:
        workfolder.has_plan(tmp_path)
    assert caught.value.path == tmp_path / WORK_NAME / "plan.json"
    assert caught.value.next_step == (
        f"remove {tmp_path / WORK_NAME}, and give the command again: it starts over"
    )


@pytest.mark.parametrize(
    ("names", "half"),
    [
        (["clean"], True), ([], True), (["clean", "plan.json"], False), (["clean", "mine"], False),
        (["encoded-0a", "shards-ff", "near"], True), (None, False),
    ],
)  # fmt: skip
def test_work_without_its_plan_was_being_removed(
    tmp_path: Path, names: list[str] | None, half: bool
) -> None:
    for name in names or ():
        (tmp_path / WORK_NAME / name).mkdir(parents=True)
    if names == []:
        (tmp_path / WORK_NAME).mkdir()
    assert workfolder.is_half_removed(tmp_path) is half


def test_files_are_removed_by_workers_some_at_a_time(tmp_path: Path) -> None:
    work = tmp_path / WORK_NAME
    for folder, count in (("clean", 40), ("near/deep", 3)):
        (work / folder).mkdir(parents=True)
        for number in range(count):
            (work / folder / str(number)).touch()
    write_notes(work / "plan.json", {"verb": "prepare"})
    sizes: list[int] = []
    left: list[bool] = []

    class Pool:
        num_workers = 3

        def run(self, tasks: Any, *, num_waiting: int) -> Any:
            assert num_waiting == 3
            for task in tasks:
                left.append((work / "plan.json").exists())
                sizes.append(len(task.args[0]))
                yield task()

    pool: Any = Pool()
    workfolder.remove_work(tmp_path, pool=pool)
    assert not work.exists()
    assert sorted(sizes) == [3, 8, 16, 16]
    assert not any(left)  # the plan is removed first
    workfolder.remove_work(tmp_path, pool=pool)  # nothing exists


def test_the_stream_before_a_changed_one_may_have_had_it() -> None:
    def stream(index: int, *names: str) -> Any:
        return SimpleNamespace(
            index=index, inputs=[SimpleNamespace(path=Path(name)) for name in names]
        )

    streams = [stream(0, "a"), stream(1, "b", "c"), stream(2, "d"), stream(3, "e")]
    for changed, first in ((["a"], 0), (["b"], 0), (["c"], 0), (["d"], 1), (["e", "d"], 1)):
        assert workfolder._first_affected(streams, changed) == first


def test_other_inputs_are_named_or_their_order(tmp_path: Path) -> None:
    work, _, _ = begin(tmp_path)
    finish_block(work)
    (tmp_path / "b.txt").write_text("other text")
    names = [tmp_path / "a.txt", tmp_path / "b.txt"]

    def streams(order: list[Path]) -> Any:
        return plan_streams(expand_inputs(order), ReadingSettings())

    begin(tmp_path, restart=True, streams=streams(names))
    finish_block(work)
    with pytest.raises(UsageError, match="since this work was begun: its order"):
        begin(tmp_path, streams=streams(names[::-1]))
    with pytest.raises(UsageError, match=r"b\.txt was not in both"):
        begin(tmp_path, streams=streams(names[:1]))


def test_near_copies_of_another_format_are_found_again(tmp_path: Path) -> None:
    work, _, _ = begin(tmp_path)
    block = finish_block(work)
    (work / "near").mkdir()
    begin(tmp_path)
    assert (work / "near").is_dir()
    plan = json.loads((work / "plan.json").read_text())
    write_notes(work / "plan.json", {**_unchecked(plan), "output_format": "LTTASK00"})
    begin(tmp_path)
    assert block.exists() and not (work / "near").exists()


def test_what_is_cheap_to_make_goes_after_a_restart_of_the_machine(tmp_path: Path) -> None:
    work, _, _ = begin(tmp_path)
    block = finish_block(work)
    (work / "shards-0").mkdir()
    write_work_file(work / "shards-0" / "0.shard", {}, {})
    write_work_file(work / "clean" / "0.ids", {}, {})
    (work / "near").mkdir()
    plan = json.loads((work / "plan.json").read_text())
    begin(tmp_path)
    assert (work / "shards-0" / "0.shard").exists() and (work / "near").exists()
    write_notes(work / "plan.json", {**_unchecked(plan), "boot": "another"})
    _, _, notices = begin(tmp_path)
    assert notices == ["going on where the last command stopped"]  # nothing was lost
    assert not (work / "shards-0" / "0.shard").exists() and not (work / "near").exists()
    assert block.exists() and (work / "clean" / "0.ids").exists()


def test_a_folder_with_a_work_files_name_is_removed(tmp_path: Path) -> None:
    (tmp_path / "folder" / "inside").mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "kept")
    (tmp_path / "kept").mkdir()
    workfolder._remove(tmp_path / "folder")
    workfolder._remove(tmp_path / "link")
    assert [path.name for path in tmp_path.iterdir()] == ["kept"]
