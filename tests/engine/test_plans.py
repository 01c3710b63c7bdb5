"""Workers agree on a plan, even while another one ends the work and removes its folder."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from lowtide import files
from lowtide.engine.outputs import OUTPUT_FORMAT
from lowtide.engine.plans import commit_plan, read_plan
from lowtide.engine.records import PLAN_NAME, Records
from lowtide.engine.tasks import Task
from lowtide.errors import DataError, LowtideError, UsageError

TASK = Task("hash", 0)
PLAN = {"verb": "prepare", "version": "1", "settings": {"seed": 1}}
KEPT = {**PLAN, "output_format": OUTPUT_FORMAT}


def test_the_first_plan_is_kept_and_another_one_is_refused(tmp_path: Path) -> None:
    records = Records(tmp_path / "work")
    commit_plan(PLAN, records)
    commit_plan(PLAN, records)
    assert read_plan(records) == KEPT
    with pytest.raises(UsageError, match="another plan"):
        commit_plan({**PLAN, "version": "2"}, records)


@pytest.mark.parametrize("before", [PLAN, {**PLAN, "output_format": "LTTASK00"}])
def test_work_with_files_of_another_format_is_refused_as_such(
    tmp_path: Path, before: dict[str, object]
) -> None:
    """Earlier versions did not record the format; their files are complete but unusable."""
    records = Records(tmp_path / "work")
    records.create(PLAN_NAME, files.json_bytes(before))
    with pytest.raises(UsageError, match="begun by another version") as caught:
        commit_plan(PLAN, records)
    assert "remove this folder" in str(caught.value.next_step)


class _Leaving(Records):
    """A folder that another worker removes several times, each just after a read."""

    times = 0

    def create(self, name: str, data: bytes) -> bool:
        if self.times == 0:
            return super().create(name, data)
        self.times -= 1
        super().create(name, data)
        shutil.rmtree(self.folder)
        return False


def test_a_folder_that_goes_in_between_is_made_anew(tmp_path: Path) -> None:
    records = _Leaving(tmp_path / "work")
    records.times = 3
    commit_plan(PLAN, records)
    assert read_plan(records) == KEPT


def test_a_folder_that_never_stays_is_an_error(tmp_path: Path) -> None:
    records = _Leaving(tmp_path / "work")
    records.times = 1000
    with pytest.raises(LowtideError, match="was removed again and again"):
        commit_plan(PLAN, records)


def remember(records: Records) -> Records:
    commit_plan(PLAN, records)
    records.commit_record(TASK, facts={"rows": 1})
    return records


def test_a_record_says_which_plan_it_is_of(tmp_path: Path) -> None:
    remember(Records(tmp_path))
    other = Records(tmp_path)
    assert other.is_done(TASK)  # a process that only reads
    commit_plan(PLAN, other)
    assert other.is_done(TASK) and other.read(TASK)["facts"] == {"rows": 1}
    other.plan = "another"
    for ask in (other.is_done, other.read):
        with pytest.raises(DataError, match="left by another job") as caught:
            ask(TASK)
        assert "remove the work folder" in str(caught.value.next_step)
    with pytest.raises(DataError, match="left by another job"):
        other.commit_record(TASK, facts={"rows": 1})


def test_a_record_of_an_earlier_version_is_not_believed(tmp_path: Path) -> None:
    commit_plan(PLAN, Records(tmp_path))
    records = Records(tmp_path)
    records.commit_record(TASK, facts={})  # it had no plan
    commit_plan(PLAN, records)
    with pytest.raises(DataError, match="left by another job or version"):
        records.is_done(TASK)


def test_records_without_a_plan_are_refused(tmp_path: Path) -> None:
    remember(Records(tmp_path))
    (tmp_path / PLAN_NAME).unlink()
    with pytest.raises(DataError, match="records of stage hash here, and no plan"):
        commit_plan(PLAN, Records(tmp_path))
    assert not (tmp_path / PLAN_NAME).exists()


def test_the_plan_is_removed_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a kill during the removal, the remaining files still belong to the plan."""
    records = remember(Records(tmp_path))
    removed: list[str] = []
    monkeypatch.setattr(records.place, "remove", removed.extend)
    records.remove(["hash"])
    assert removed[-1] == PLAN_NAME and "hash" in removed


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"version": "2"}, "version was 1, now it is 2"),
        ({"verb": None}, "verb was prepare, now it is None"),
        ({"settings": {"seed": 1, "val_share": 2}}, "val-share was None, now it is 2"),
        ({"settings": {}}, "seed was 1, now it is None"),
        ({"settings": 5}, "settings was {'seed': 1}, now it is 5"),
        ({"inputs": [1]}, "its inputs have other names, sizes or times"),
        ({"tokenizer": "x"}, "its tokenizer is another one"),
        ({"dataset": 1}, "the dataset has changed since it was begun"),
        ({"train": 1}, "the dataset has other shards"),
        ({"val": {}}, "the dataset has other shards"),
        ({"settings": {"seed": 1, "inputs": 3}, "zzz": 1}, "its inputs have other names"),
    ],
)
def test_what_differs_is_said_in_words(
    tmp_path: Path, changes: dict[str, object], words: str
) -> None:
    records = Records(tmp_path / "work")
    commit_plan(PLAN, records)
    before = records.plan
    with pytest.raises(UsageError) as caught:
        commit_plan({**PLAN, **changes}, records)
    assert caught.value.message.startswith(f"the work here is of another plan: {words}")
    assert records.plan == before


def test_a_plan_that_cannot_be_read_is_told(tmp_path: Path) -> None:
    records = Records(tmp_path)
    assert read_plan(records) is None
    for text, words in (("{", "cannot be read"), ("[]", "expected the plan that workers agree on")):
        (tmp_path / PLAN_NAME).write_text(text)
        with pytest.raises(DataError, match=words) as caught:
            read_plan(records)
        assert caught.value.path == tmp_path / PLAN_NAME
        assert "remove the work folder" in str(caught.value.next_step)


def test_the_plan_of_all_records_is_its_bytes(tmp_path: Path) -> None:
    records = Records(tmp_path)
    commit_plan(PLAN, records)
    text = (tmp_path / PLAN_NAME).read_bytes()
    assert records.plan == files.checksum_bytes(text)
    assert text.startswith(b'{\n "checksum": ') and text.endswith(b"}\n")


def test_a_damaged_plan_is_not_believed(tmp_path: Path) -> None:
    """`append` takes from its plan which shards the dataset has: nothing else compares them."""
    records = Records(tmp_path)
    plan = {**PLAN, "shards": {"train": [{"tokens": 17}]}, "first_number": 1}
    commit_plan(plan, records)
    path = tmp_path / PLAN_NAME
    whole = path.read_bytes()
    for place in range(len(whole)):
        damaged = bytearray(whole)
        damaged[place] ^= 1
        path.write_bytes(damaged)
        with pytest.raises(LowtideError):
            commit_plan(plan, records)
        if OUTPUT_FORMAT in str(damaged) and "output_format" in str(damaged):
            with pytest.raises(DataError, match="plan of this work"):
                read_plan(records)
    path.write_bytes(whole[:-1])
    with pytest.raises(DataError, match="plan of this work is damaged"):
        read_plan(records)
    path.write_bytes(whole)
    assert read_plan(records) == {**plan, "output_format": OUTPUT_FORMAT}


class _Going(Records):
    """A folder that is missing several times when its plan is created."""

    times = 0

    def create(self, name: str, data: bytes) -> bool:
        self.times -= 1
        if self.times >= 0:
            raise FileNotFoundError
        return super().create(name, data)


def test_a_folder_that_is_not_there_for_a_moment_is_tried_again(tmp_path: Path) -> None:
    records = _Going(tmp_path)
    records.times = 2
    commit_plan(PLAN, records)
    assert read_plan(records) == KEPT
    records.times = 1000
    with pytest.raises(LowtideError, match="again and again"):
        commit_plan(PLAN, records)


def test_records_that_another_worker_begins_or_ends_meanwhile_are_no_leftovers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    records = remember(Records(tmp_path))
    plan = (tmp_path / PLAN_NAME).read_bytes()
    (tmp_path / PLAN_NAME).unlink()
    find = records.find_leftover
    for meanwhile in (
        lambda: (tmp_path / PLAN_NAME).write_bytes(plan),  # it had just begun
        lambda: shutil.rmtree(tmp_path / "hash"),  # it has just ended
    ):
        monkeypatch.setattr(records, "find_leftover", lambda act=meanwhile: (find(), act())[0])
        commit_plan(PLAN, records)
        (tmp_path / PLAN_NAME).unlink()


def test_another_verb_or_version_is_told_before_what_follows_from_it(tmp_path: Path) -> None:
    records = Records(tmp_path)
    commit_plan({"verb": "prepare", "version": "1", "blocks": 3}, records)
    with pytest.raises(UsageError, match="another plan: verb was prepare, now it is append"):
        commit_plan({"verb": "append", "version": "2", "dataset": "d", "blocks": 4}, records)
    with pytest.raises(UsageError, match="another plan: version was 1, now it is 2"):
        commit_plan({"verb": "prepare", "version": "2", "dataset": "d", "blocks": 4}, records)


def begin(folder: Path, version: str) -> Records:
    """A job that has a plan and a result."""
    records = Records(folder)
    commit_plan({**PLAN, "version": version}, records)
    records.commit_record(TASK, facts={})
    return records


def test_the_work_of_the_next_job_stays(tmp_path: Path) -> None:
    """A worker that was slow comes to remove its work when that has gone long ago."""
    slow = begin(tmp_path / "work", "1")
    Records(tmp_path / "work").remove(["hash"])  # knows no plan
    assert slow.is_done(TASK)
    slow.remove(["hash"])
    assert not slow.folder.exists()
    following = begin(slow.folder, "2")
    slow.remove(["hash"])
    assert following.is_done(TASK) and read_plan(following) is not None
    following.remove(["hash"])
    assert not slow.folder.exists()


@pytest.mark.parametrize("at", ["hash", "leases", "losses"])
def test_the_next_job_may_begin_while_work_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: str
) -> None:
    slow, other = begin(tmp_path / "work", "1"), Records(tmp_path / "work")
    other.plan = slow.plan
    other.remove(["hash"])
    (slow.folder / "hash").mkdir(parents=True)  # what the slow worker wrote since
    following: list[Records] = []

    def own(stages: list[str]) -> Iterator[str]:
        for name in ("hash", "leases", "losses", PLAN_NAME):
            if name == at:
                following.append(begin(slow.folder, "2"))
            yield name

    monkeypatch.setattr(slow, "_own_names", own)
    slow.remove(["hash"])
    assert following[0].is_done(TASK) and read_plan(following[0]) is not None
