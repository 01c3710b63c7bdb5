"""The phases of a preparation by threads: which are run, in which order, and with what."""

from __future__ import annotations

import contextlib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from lowtide.dataset import threaded
from lowtide.dataset.threaded import Preparation
from lowtide.tokenizer import Tokenizer


def make(**changes: Any) -> Any:
    """A preparation without its inputs; `changes` are settings."""
    usual: dict[str, Any] = {
        "tokenization": "gpt2", "dry_run": False, "keep_top": None, "dedup": True, "near": None,
        "keeps_text": False, "decontaminate": (), "item_files": ("x",), "decontaminate_by": "cut",
        "cleaning": "cleaning", "out_dir": Path("out"), "shuffle": True, "seed": 5,
    }  # fmt: skip
    run = object.__new__(Preparation)
    run.settings = SimpleNamespace(**(usual | changes))  # type: ignore[assignment]
    parts: dict[str, Any] = {
        "pool": SimpleNamespace(num_workers=2), "streams": "streams", "reading": "reading",
        "work": Path("work"), "inputs": "inputs", "totals": "totals", "progress": Shown(),
        "shares": SimpleNamespace(one_pass_bytes=77, table_bytes=5), "created": True,
    }  # fmt: skip
    for name, value in parts.items():
        setattr(run, name, value)
    return run


class Shown:
    budget_bytes: int | None = None
    seconds, peak_bytes = 2.5, 9

    def __init__(self) -> None:
        self.phases: list[Any] = []
        self.metrics_path: Path | None = Path("metrics")

    @contextlib.contextmanager
    def phase(self, name: str, *, total: int, unit: str) -> Any:
        self.phases.append([name, total, unit, 0])

        def advance() -> None:
            self.phases[-1][3] += 1

        yield SimpleNamespace(advance=advance)


class Now:
    """Runs what is submitted at once."""

    def submit(self, function: Any, *given: Any, **more: Any) -> Any:
        result = function(*given, **more)
        return SimpleNamespace(result=lambda: result)


@pytest.mark.parametrize(
    ("encoding", "workers", "many", "keeps", "one_pass"),
    [
        (True, 2, False, False, True),
        (True, 1, True, False, True),  # a single worker reads nothing in parallel
        (True, 2, True, False, False),
        (True, 2, False, True, False),
        (False, 2, False, False, False),
    ],
)
def test_blocks_are_encoded_in_passing_where_they_come_in_order(
    monkeypatch: pytest.MonkeyPatch, encoding: bool, workers: int, many: bool, keeps: bool,
    one_pass: bool,
) -> None:  # fmt: skip
    jobs: list[Any] = []
    passes: list[Any] = []
    checked: list[Any] = []
    table = SimpleNamespace(contents="contents", report=SimpleNamespace(cut=None))
    monkeypatch.setattr(threaded, "has_many_streams", lambda streams: many)
    monkeypatch.setattr(
        threaded, "OnePass", lambda load, **options: passes.append(options) or "one pass"
    )
    monkeypatch.setattr(threaded, "CleanJob", lambda **options: jobs.append(options))
    monkeypatch.setattr(threaded, "run_cleaning", lambda job, pool, progress, *, totals: table)
    monkeypatch.setattr(
        threaded, "noticing_changes", lambda inputs, forget: contextlib.nullcontext()
    )
    monkeypatch.setattr(threaded, "require_unchanged", lambda *given: checked.append(given))
    run = make(keeps_text=keeps, tokenization="char" if not encoding else "gpt2")
    run.pool.num_workers = workers
    coding = SimpleNamespace(path=lambda path: path / "ids")
    future: Any = SimpleNamespace(result=lambda: coding) if encoding else None
    ranked = SimpleNamespace(cut="cut", require_same=lambda *given: checked.append(given))
    assert run.clean(future, ranked) is table
    assert table.report.cut == "cut"
    assert checked == [("inputs", "contents", "reading"), ("inputs", "contents")]
    (job,) = jobs
    assert (job["consumer"] is not None) is one_pass
    assert passes == ([{"dedup": True, "table_bytes": 77}] if one_pass else [])
    assert job["collect_characters"] is (not encoding)
    assert (job["cut"], job["folder"]) == ("cut", Path("work/clean"))
    assert (job["is_encoded"] is not None) is encoding
    if encoding:
        assert job["is_encoded"](Path("/nowhere")) is False
    assert run.clean(future) is table and jobs[-1]["cut"] is None


def phases_of(
    monkeypatch: pytest.MonkeyPatch, *, has_text: bool = True, finders: Any = (), **settings: Any
) -> tuple[Any, list[Any]]:
    calls: list[Any] = []
    run = make(**settings)
    table = SimpleNamespace(has_text=[False, has_text], report="report", notices=["n"])
    info = SimpleNamespace(metadata={"notices": ["noted"]})

    def note(name: str, answer: Any) -> Any:
        return lambda *given: calls.append((name, *given)) or answer

    for name, answer in (
        ("encode_job", "job"), ("find_cut", "ranked"), ("clean", table), ("write", info),
        ("find_near_copies", "near"), ("find_contamination", "items"),
        ("find_duplicates", "lines"), ("finish_dry_run", "dry"), ("character_tokenizer", "made"),
        ("result", "result"),
    ):  # fmt: skip
        setattr(run, name, note(name, answer))
    monkeypatch.setattr(Tokenizer, "load", lambda name: f"tokenizer {name}")
    monkeypatch.setattr(threaded, "list_finders", lambda near, items: list(finders))
    monkeypatch.setattr(threaded, "RemovedText", lambda lines, found: (lines, found))
    monkeypatch.setattr(
        threaded, "run_encoding", lambda *given: calls.append(("encode", *given[:3]))
    )
    monkeypatch.setattr(
        threaded, "remove_work", lambda root, *, pool=None: calls.append(("remove", root))
    )
    now: Any = Now()
    found = run.run_phases(now)
    return found, [call for call in calls if call[0] != "result"]


@pytest.mark.parametrize(
    ("settings", "has_text", "finders", "names"),
    [
        ({}, True, (), ["encode_job", "clean", "find_near_copies", "find_contamination",
                        "find_duplicates", "encode_job", "encode", "write", "remove"]),
        ({}, False, (), ["encode_job", "clean", "find_near_copies", "find_contamination",
                         "encode_job", "write", "remove"]),
        ({"dedup": False}, True, (), ["encode_job", "clean", "find_near_copies",
                                      "find_contamination", "encode_job", "encode", "write",
                                      "remove"]),
        ({"keep_top": 0.5, "tokenization": "mine"}, False, (),
         ["encode_job", "find_cut", "clean", "find_near_copies", "find_contamination",
          "encode_job", "write", "remove"]),
        ({"tokenization": "char"}, True, (),
         ["clean", "find_near_copies", "find_contamination", "find_duplicates",
          "character_tokenizer", "encode_job", "encode", "write", "remove"]),
        ({"dry_run": True}, False, (), ["clean", "find_near_copies", "find_contamination",
                                        "find_duplicates", "finish_dry_run"]),
        ({"dry_run": True, "dedup": False}, True, (),
         ["clean", "find_near_copies", "find_contamination", "finish_dry_run"]),
    ],
)  # fmt: skip
def test_the_phases_in_their_order(
    monkeypatch: pytest.MonkeyPatch, settings: Any, has_text: bool, finders: Any, names: list[str]
) -> None:
    found, calls = phases_of(monkeypatch, has_text=has_text, finders=finders, **settings)
    assert [call[0] for call in calls] == names
    assert found == ("dry" if settings.get("dry_run") else "result")
    clean = next(call for call in calls if call[0] == "clean")
    assert (clean[1] is None) is (
        settings.get("tokenization") == "char" or bool(settings.get("dry_run"))
    )
    assert clean[2] == ("ranked" if "keep_top" in settings else None)


def test_what_was_found_is_left_out_with_the_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    for finders, expected in (((), "lines"), (("finder",), ("lines", ["finder"]))):
        _, calls = phases_of(monkeypatch, finders=finders)
        encode = next(call for call in calls if call[0] == "encode")
        assert encode[1] == "job" and encode[3] == expected
        _, calls = phases_of(monkeypatch, finders=finders, dry_run=True)
        assert calls[-1][2:] == (expected, list(finders))
    _, calls = phases_of(monkeypatch, dedup=False)
    assert next(call for call in calls if call[0] == "encode")[3] is None


def test_a_dry_run_counts_every_block(monkeypatch: pytest.MonkeyPatch) -> None:
    run = make()
    added: list[Any] = []

    class Table:
        report = SimpleNamespace(add=lambda *given: added.append(given), as_json=lambda: {"r": 1})
        notices = ("first",)

        def __len__(self) -> int:
            return 3

    table: Any = Table()
    table.notices = ["first"]
    monkeypatch.setattr(
        threaded, "keep_block",
        lambda table, block, removed, cleaning: SimpleNamespace(
            counts=(block, removed), samples=cleaning
        ),
    )  # fmt: skip
    finders: Any = [SimpleNamespace(notices=lambda rows=rows: rows) for rows in (["second"], [])]
    found = run.finish_dry_run(table, "removed", finders)
    assert added == [((block, "removed"), "cleaning") for block in range(3)]
    assert run.progress.phases == [["count", 3, "blocks", 3]]
    assert (found.dataset, found.notices, found.report) == (None, ["first", "second"], {"r": 1})
    assert (found.seconds, found.peak_bytes, found.budget_bytes) == (2.5, 9, 0)


@pytest.mark.parametrize("created", [True, False])
def test_work_that_leads_to_nothing_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, created: bool
) -> None:
    removed: list[Path] = []
    monkeypatch.setattr(threaded, "remove_work", removed.append)
    (tmp_path / "metrics.jsonl").touch()
    run = make(out_dir=tmp_path)
    run.created = created
    run.discard()
    assert removed == [tmp_path] and run.progress.metrics_path is None
    assert (tmp_path / "metrics.jsonl").exists() is (not created)


def test_near_copies_and_items_are_looked_for_where_they_are_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[Any] = []
    monkeypatch.setattr(
        "lowtide.dataset.near.running.find_near_copies",
        lambda *given, **more: asked.append((given[1:3], more)) or "near",
    )
    monkeypatch.setattr(
        "lowtide.dataset.near.running.find_contamination",
        lambda *given, **more: asked.append((given[1:3], more)) or "items",
    )
    monkeypatch.setattr(threaded, "load_items", lambda paths, cleaning: ("items of", paths))
    run = make()
    assert run.find_near_copies("table") is None and run.find_contamination("table") is None
    assert make(near="options", dedup=False).find_near_copies("table") == "near"
    assert asked.pop() == (
        (Path("work/near"), "options"), {"table_bytes": 5, "leave_copies": False}
    )  # fmt: skip
    for by, cuts in (("cut", True), ("document", False)):
        run = make(decontaminate=("x",), decontaminate_by=by)
        assert run.find_contamination("table") == "items"
        assert asked.pop() == ((Path("work/near"), ("items of", ("x",))), {"cuts": cuts})
