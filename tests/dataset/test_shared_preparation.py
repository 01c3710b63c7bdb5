"""A worker on a preparation: the order of its checks, work and cleanup."""

from __future__ import annotations

import contextlib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from lowtide.dataset.staged import adding, running
from lowtide.errors import DataError, UsageError


@pytest.mark.parametrize("fails", [False, True])
def test_a_worker_prepares_works_and_cleans_up(
    monkeypatch: pytest.MonkeyPatch, fails: bool
) -> None:
    calls: list[Any] = []
    note = lambda name: lambda *given, **more: calls.append(name)  # noqa: E731
    found = SimpleNamespace(
        shares=SimpleNamespace(table_bytes=3, range_bytes=4),
        budget=SimpleNamespace(total_bytes=1 << 30),
    )
    inputs = SimpleNamespace(total_bytes=5)
    records = SimpleNamespace(
        refuse_strangers=lambda names: calls.append(("strangers", names)),
        place=SimpleNamespace(prepare=note("place")),
        remove=lambda names: calls.append(("remove", names)),
    )
    made: list[Any] = []

    def job(**options: Any) -> Any:
        made.append(options)
        return SimpleNamespace(
            records=records, destination=SimpleNamespace(prepare=note("destination"))
        )

    class Run:
        stage_names = ("hash", "encode")

        def __init__(self, job: Any, shares: Any, progress: Any, loading: Any) -> None:
            assert loading is None

        def run(self, lease_seconds: float) -> None:
            calls.append(("run", lease_seconds))
            if fails:
                raise DataError("no")

    shown = SimpleNamespace(seconds=2.0, peak_bytes=7)
    monkeypatch.setattr(running, "find_inputs", lambda settings: found)
    monkeypatch.setattr(running, "choose_inputs", lambda *given: (inputs, "reading"))
    monkeypatch.setattr(
        running, "Progress", lambda name, *, budget_bytes: contextlib.nullcontext(shown)
    )
    monkeypatch.setattr(running, "Records", lambda folder, *, places_kept: records)
    monkeypatch.setattr(running, "StagedJob", job)
    monkeypatch.setattr(running, "_SharedPreparation", Run)
    monkeypatch.setattr(running, "_refuse_strangers", note("others"))
    monkeypatch.setattr(
        running, "noticing_changes",
        lambda inputs, *, next_step: calls.append(next_step) or contextlib.nullcontext(),
    )  # fmt: skip
    monkeypatch.setattr(
        running._native, "keep_freed_memory", lambda keep: calls.append(("keep", keep))
    )
    monkeypatch.setattr(running, "stop_steps", note("stop"))
    settings: Any = SimpleNamespace(
        work_dir=None, out_dir=Path("data/mine"), input_files=("a.txt",)
    )
    names = ("hash", "encode")
    expected: list[Any] = [
        ("strangers", names), "others", "place", "destination",
        "remove data/mine.work, and give the command again when nothing writes to it",
        ("run", 9.0), ("keep", False), "stop",
    ]  # fmt: skip
    if fails:
        with pytest.raises(DataError, match="no"):
            running.prepare_shared(settings, lease_seconds=9.0)
        assert calls == expected  # work that others need is kept
        return
    result = running.prepare_shared(settings, lease_seconds=9.0)
    assert calls == [*expected, ("remove", names)]
    assert (result.reading, result.seconds, result.peak_bytes) == ("reading", 2.0, 7)
    assert result.budget_bytes == 1 << 30
    assert (made[0]["table_bytes"], made[0]["range_bytes"]) == (3, 4)
    assert made[0]["sizes"] == running.Sizes.of(5)


@pytest.mark.parametrize("fails", [False, True])
def test_a_worker_on_an_append_cleans_up(monkeypatch: pytest.MonkeyPatch, fails: bool) -> None:
    calls: list[Any] = []
    records = SimpleNamespace(
        folder=Path("work"), refuse_strangers=lambda names: calls.append("strangers"),
        place=SimpleNamespace(prepare=lambda: calls.append("place")),
        remove=lambda names: calls.append("remove"),
    )  # fmt: skip
    monkeypatch.setattr(
        adding, "noticing_changes",
        lambda inputs, *, next_step: calls.append(next_step) or contextlib.nullcontext(),
    )  # fmt: skip
    monkeypatch.setattr(
        adding._native, "keep_freed_memory", lambda keep: calls.append(("keep", keep))
    )
    monkeypatch.setattr(adding, "stop_steps", lambda: calls.append("stop"))
    records.plan = "plan"
    job: Any = SimpleNamespace(records=records, inputs=[])
    rest: Any = None
    dataset: Any = SimpleNamespace(
        prepare=lambda: calls.append("dataset"), clear=lambda plan: calls.append(("clear", plan))
    )
    run: Any = adding._SharedAppend(job, rest, dataset, 1, rest, rest)

    def work(lease_seconds: float) -> None:
        calls.append(lease_seconds)
        if fails:
            raise DataError("no")

    run._run = work
    expected: list[Any] = [
        "strangers", "place", "dataset",
        "remove work, and give the command again when nothing writes to it",
        5.0, ("keep", False), "stop",
    ]  # fmt: skip
    with pytest.raises(DataError) if fails else contextlib.nullcontext():
        run.work(5.0)
    assert calls == [*expected, *([] if fails else [("clear", "plan"), "remove"])]


@pytest.mark.parametrize(
    ("taken", "plan", "finished", "refused"),
    [
        (None, None, False, False), ("a.bin", None, False, True), ("a.bin", {}, False, False),
        ("a.bin", None, True, False),
    ],
)  # fmt: skip
def test_files_that_no_worker_made_are_refused(
    monkeypatch: pytest.MonkeyPatch, taken: str | None, plan: Any, finished: bool, refused: bool
) -> None:
    asked: list[bool] = []
    monkeypatch.setattr(running, "read_plan", lambda records: plan)
    monkeypatch.setattr(running, "is_finished", lambda root: finished)
    destination = SimpleNamespace(find_taken=lambda *, tokenizer: asked.append(tokenizer) or taken)
    for named, looks in (("gpt2", True), ("out", False)):
        settings = SimpleNamespace(out_dir=Path("out"), tokenization=named)
        job: Any = SimpleNamespace(settings=settings, destination=destination, records=None)
        if refused:
            with pytest.raises(UsageError, match=r"a\.bin is here already, but no dataset"):
                running._refuse_strangers(job)
        else:
            running._refuse_strangers(job)
        assert asked.pop() is looks


@pytest.mark.parametrize(
    ("shuffle", "done", "ahead", "names"),
    [
        (True, 0, True, ["hash", "close", "tally", "duplicates", "encode", "cut"]),
        (True, 2, True, ["hash", "close", "tally", "duplicates", "encode", "cut"]),
        (True, 3, True, ["hash", "close", "cut"]),  # all is encoded ahead
        (False, 3, True, ["hash", "close", "tally", "encode", "cut"]),  # borders follow blocks
        (True, 0, False, ["hash", "tally", "duplicates", "encode", "cut"]),
        (True, 3, False, ["hash", "tally", "encode", "cut"]),  # by a worker that was killed
    ],
)
def test_stages_that_nobody_asks_for_are_left_out(
    shuffle: bool, done: int, ahead: bool, names: list[str]
) -> None:
    run: Any = object.__new__(running._SharedPreparation)
    seen: list[str] = []
    run._job = SimpleNamespace(
        parts=[1, 2, 3],
        records=SimpleNamespace(list_done=lambda stage: set(range(done))),
        settings=SimpleNamespace(shuffle=shuffle),
    )
    run._ahead = SimpleNamespace(close=lambda: seen.append("close")) if ahead else None
    run.stages = lambda: [
        SimpleNamespace(name=name) for name in ("hash", "tally", "duplicates", "encode", "cut")
    ]
    for stage in run._iter_stages():
        seen.append(stage.name)  # noqa: PERF401  between calls of close
    assert seen == names


@pytest.mark.parametrize(
    ("settings", "is_ahead"),
    [
        ({}, True), ({"keeps_text": True}, False), ({"tokenization": "char"}, False),
    ],
)  # fmt: skip
def test_parts_are_encoded_ahead_where_only_lines_depend_on_all_text(
    monkeypatch: pytest.MonkeyPatch, settings: Any, is_ahead: bool
) -> None:
    asked: list[Any] = []
    monkeypatch.setattr(
        running, "EncodingAhead", lambda job, stage, **more: asked.append(more) or "ahead"
    )
    run: Any = object.__new__(running._SharedPreparation)
    usual = {"keeps_text": False, "tokenization": "gpt2"}
    run._job = SimpleNamespace(settings=SimpleNamespace(**(usual | settings)))
    run._shares = SimpleNamespace(one_pass_bytes=101, held_bytes=7)
    assert run._plan_ahead() == ("ahead" if is_ahead else None)
    assert asked == ([{"table_bytes": 50, "text_bytes": 7}] if is_ahead else [])
