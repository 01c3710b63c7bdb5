"""A preparation in one worker: what is read of the results of earlier stages."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from lowtide.dataset.near.likeness import Likeness
from lowtide.dataset.staged import job as module
from lowtide.dataset.staged.duplicates import Tally
from lowtide.dataset.staged.job import StagedJob
from lowtide.stores.paths import StorePath


def make(*, grown: Any = None, records: Any = None, **settings: Any) -> StagedJob:
    usual: dict[str, Any] = {
        "tokenization": "gpt2", "keep_top": None, "near": None, "decontaminate": (),
        "out_dir": Path("out"), "decontaminate_by": "cut", "item_files": (),
    }  # fmt: skip
    parts: Any = SimpleNamespace(**(usual | settings))
    rest: Any = None
    return StagedJob(parts, rest, rest, rest, records, 1, 1, grown=grown)


def test_characters_are_those_of_all_parts() -> None:
    found = {0: 0b1010, 1: 0b0011, 2: 1 << 70}
    opened: list[Any] = []

    def open_task(task: Any) -> Any:
        opened.append(task.stage)
        data = found[task.index].to_bytes(16, "little")
        return SimpleNamespace(read=lambda name: data if name == "characters" else b"")

    job = make(records=SimpleNamespace(open=open_task))
    job.__dict__["parts"] = [1, 2, 3]
    assert job.characters == [0, 1, 3, 70]
    assert opened == [module.HASH_STAGE] * 3


def test_characters_decide_where_they_are_the_tokenizer(monkeypatch: pytest.MonkeyPatch) -> None:
    def grown(kind: str) -> Any:
        return SimpleNamespace(tokenizer=SimpleNamespace(kind=kind), first_input=7)

    assert make().collects_characters is False
    assert make(tokenization="char").collects_characters is True
    assert make(tokenization="char", grown=grown("bpe")).collects_characters is False
    assert make(grown=grown("char")).collects_characters is True
    assert (make().first_index, make(grown=grown("bpe")).first_index) == (0, 7)
    assert make().unknown_notices == [] == make(grown=grown("bpe")).unknown_notices
    assert make(tokenization="char").unknown_notices == []
    monkeypatch.setattr(
        "lowtide.dataset.grown.unknown_characters", lambda tokenizer, codes: [tokenizer.kind, codes]
    )
    job = make(grown=grown("char"))
    job.__dict__["characters"] = [5]
    assert job.unknown_notices == ["char", [5]]


def test_the_scores_that_stay_are_the_datasets_or_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "read_cut", lambda header: ("cut", header))
    opened: list[Any] = []
    records = SimpleNamespace(open=lambda task: opened.append(task) or SimpleNamespace(header="h"))
    assert make(records=records).cut is None
    assert make(records=records, keep_top=0.5).cut == ("cut", "h")
    assert [(task.stage, task.index) for task in opened] == [(module.TOP_STAGE, 0)]
    assert make(keep_top=0.5, grown=SimpleNamespace(cut="its own")).cut == "its own"


def test_near_copies_of_added_text_come_behind_the_datasets_blocks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert make().near is None
    opened: list[Any] = []
    output = SimpleNamespace(size=lambda name: 8 * 11 if name == "starts" else 0)
    records = SimpleNamespace(open=lambda task: opened.append(task.index) or output)
    plain: Any = make(near=Likeness(0.8, 5), records=records).near
    assert plain._first == 0 and opened == []
    monkeypatch.setattr(
        Tally, "load", classmethod(lambda cls, job: SimpleNamespace(first_blocks=[0, 2, 4]))
    )
    added: Any = make(near=Likeness(0.8, 5), records=records, grown=SimpleNamespace()).near
    assert added._first == 10 - 4 and opened == [0]


def test_where_the_dataset_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "open_destination", lambda path: path)
    records = SimpleNamespace(folder=Path("work"), plan="abc")
    assert make(records=records).destination == Path("out")
    for root, aside in (
        (Path("data"), Path("work/new")),
        (StorePath("s3://bucket/data"), StorePath("s3://bucket/data/.adding/abc")),
    ):
        grown: Any = SimpleNamespace(root=root)
        assert make(records=records, grown=grown).destination == aside


def test_evaluation_items_are_looked_for_where_they_are_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    job = make()
    assert (job.contamination_job, job.contamination, job.finders) == (None, None, [])
    monkeypatch.setattr(module, "load_items", lambda paths, cleaning: ("items", paths))
    monkeypatch.setattr(
        "lowtide.dataset.addedtext.read_stored_counts",
        lambda root, metadata, given: (root, metadata),
    )
    info = SimpleNamespace(metadata={"a": 1})
    for by, cuts, grown, before in (
        ("cut", True, None, None),
        ("document", False, SimpleNamespace(root="root", info=info), ("root", {"a": 1})),
    ):
        job = make(
            decontaminate=("x",), item_files=("x.json",), decontaminate_by=by, records="records",
            grown=grown,
        )  # fmt: skip
        job.__dict__["parts"] = [1, 2, 3]
        found: Any = job.contamination_job
        assert (found.items, found.cuts, found.records) == (("items", ("x.json",)), cuts, "records")
        assert (found.scan_stage, found.num_parts) == (module.HASH_STAGE, 3)
        assert found.counts_before == before


def test_the_first_input_of_a_part_and_one_that_changed() -> None:
    job = make()
    streams = [
        SimpleNamespace(inputs=[SimpleNamespace(index=index), SimpleNamespace(index=index + 1)])
        for index in (0, 2, 4)
    ]
    job.__dict__.update(streams=streams, parts=[SimpleNamespace(first=0), SimpleNamespace(first=2)])
    assert [job.first_input(part) for part in (0, 1)] == [0, 4]
    job.__dict__["paths"] = {3: "c.txt"}
    error = job.changed_between_passes(3)
    assert "between two passes over it" in error.message and str(error.path) == "c.txt"
