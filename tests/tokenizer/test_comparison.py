"""`lowtide compare-memory`: both ways measured, each in its own process, with the same merges."""

from __future__ import annotations

import dataclasses
import itertools
import json
import os
import random
import re
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from lowtide.cli import main
from lowtide.errors import DataError, LowtideError, UsageError
from lowtide.tokenizer import comparison
from lowtide.tokenizer.comparison import Comparison, WayResult, compare_tokenizers

MIB = 1 << 20


@pytest.fixture(scope="module")
def text_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    source = random.Random(5)
    words = ["".join(source.choices("abcdefé", k=source.randint(2, 9))) for _ in range(20_000)]
    path = tmp_path_factory.mktemp("text") / "text.txt"
    path.write_text("<|endoftext|>".join(" ".join(source.choices(words, k=50_000)) for _ in "abc"))
    return path


def test_both_ways_learn_the_same(text_file: Path) -> None:
    comparison = compare_tokenizers(input=text_file, vocab_size=400, processes=2)
    ordinary, ours = comparison.ordinary, comparison.lowtide
    assert comparison.first_difference is None
    assert len(ours.merges) == 400 - 257
    assert "Hugging Face tokenizers" in ordinary.name
    for way in (ordinary, ours):
        assert way.seconds > 0
        assert 10 * MIB < way.peak_bytes < 2000 * MIB
    assert "both learned the same 143 merges" in str(comparison)
    assert "times the memory" in str(comparison)


def test_plain_python_is_an_ordinary_way(tmp_path: Path) -> None:
    path = tmp_path / "text.txt"
    path.write_text("low lower lowest newest widest<|endoftext|>low" * 20)
    comparison = compare_tokenizers(input=[path], vocab_size=270, ordinary="reference")
    assert comparison.first_difference is None
    assert len(comparison.lowtide.merges) == 13


def test_the_command(text_file: Path, capfd: pytest.CaptureFixture[str]) -> None:
    words = ["--input", str(text_file), "--vocab-size", "300", "--processes", "2"]
    assert main(["compare-memory", *words]) == 0
    printed = capfd.readouterr()
    assert "peak memory" in printed.out
    assert "both learned the same 43 merges" in printed.out
    assert "counting" in printed.err


def test_differences_are_told() -> None:
    merges = [(b"a", b"b"), (b"c", b"d")]
    one = WayResult("one", 2.0, 200 * MIB, merges)
    for other, place in [(merges[:1], 1), ([(b"a", b"b"), (b"x", b"y")], 1), ([], 0)]:
        comparison = Comparison(one, WayResult("lowtide", 1.0, 100 * MIB, other))
        assert comparison.first_difference == place
        assert f"differ from number {place + 1} on" in str(comparison)
        assert "2.0 times the memory and 2.0 the time" in str(comparison)
    killed = WayResult("one", 2.0, 0, [], "ended by signal 9, out of memory?")
    assert "signal 9" in str(Comparison(killed, one))


def test_a_way_that_is_killed_is_no_error(
    tmp_path: Path, text_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Running out of memory is a result, too."""
    stub = tmp_path / "python"
    stub.write_text("#!/bin/sh\nkill -9 $$\n")
    stub.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(stub))
    comparison = compare_tokenizers(input=text_file)
    assert comparison.ordinary.failure == "ended by signal 9, out of memory?"
    assert comparison.ordinary.peak_bytes > 0


def test_mistakes_are_named(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(DataError, match="no such file"):
        compare_tokenizers(input=[tmp_path / "gone.txt"])
    with pytest.raises(UsageError, match="unknown setting"):
        compare_tokenizers(input=[tmp_path / "gone.txt"], size=5)
    (tmp_path / "empty.txt").write_text("")
    assert main(["compare-memory", "--input", str(tmp_path / "empty.txt")]) == 1
    assert "there is no text" in capfd.readouterr().err


def test_a_budget_that_is_too_small_is_told_first_and_the_advice_works(tmp_path: Path) -> None:
    path = tmp_path / "text.txt"
    path.write_text("low tide, high tide, " * 50)
    options = {"input": [path], "vocab_size": 270, "ordinary": "reference"}
    ran: list[str] = []
    real = comparison._run_way
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(comparison, "_run_way", lambda way, s: ran.append(way) or real(way, s))
        with pytest.raises(LowtideError) as refused:
            compare_tokenizers(memory="1MiB", **options)
    assert ran == ["lowtide"]  # nothing was held the ordinary way before
    advice = re.search(r"give at least --memory (\w+)", str(refused.value))
    assert advice is not None
    result = compare_tokenizers(memory=advice.group(1), **options)
    assert result.first_difference is None


def test_text_is_taken_apart_at_the_longest_special_token(tmp_path: Path) -> None:
    path = tmp_path / "t.txt"
    path.write_text("a<|e|>b<|x|><|e|>c<|x|>")
    for tokens in (("<|x|>", "<|x|><|e|>"), ("<|x|><|e|>", "<|x|>")):
        settings = comparison.CompareMemorySettings((str(path),), special_tokens=tokens)
        assert comparison._read_everything(settings) == ["a<|e|>b", "c", ""]
    plain = comparison.CompareMemorySettings((str(path),), special_tokens=())
    assert comparison._read_everything(plain) == [path.read_text()]
    path.write_text("")
    with pytest.raises(DataError, match="there is no text in the input files"):
        comparison._read_everything(plain)


def test_the_whole_table() -> None:
    merges = [(b"a", b"b")] * 1234
    one = WayResult("plain Python", 75.0, 300 * MIB, merges)
    ours = WayResult("lowtide", 10.0, 200 * MIB, merges)
    assert str(Comparison(one, ours)).splitlines() == [
        "               time  peak memory",
        "plain Python   1:15    300.0 MiB",
        "lowtide       10.0s    200.0 MiB",
        "the ordinary way takes 1.5 times the memory and 7.5 the time",
        "both learned the same 1,234 merges",
    ]
    nothing = WayResult("lowtide", 0.0, 0, merges)
    assert "takes 314572800.0 times the memory" in str(Comparison(one, nothing))
    for killed in (
        Comparison(one, dataclasses.replace(ours, failure="gone")),
        Comparison(dataclasses.replace(one, failure="gone"), ours),
    ):
        assert len(str(killed).splitlines()) == 3 and "gone" in str(killed)


def run_stub(
    monkeypatch: pytest.MonkeyPatch, settings: Any, code: int, result: Any = None
) -> tuple[Any, list[Any]]:
    """A way whose process ends so, and what it was started with."""
    started: list[Any] = []

    class Process:
        pid, returncode = 7, 0

        def __init__(self, command: list[str], env: dict[str, str]) -> None:
            started.append((command, env, json.loads(Path(command[3]).read_text())))
            if result is not None:
                Path(command[4]).write_text(json.dumps(result))

    usage = SimpleNamespace(ru_maxrss=3 << 10)
    fake = SimpleNamespace(
        environ=os.environ, wait4=lambda pid, options: (pid, code, usage),
        waitstatus_to_exitcode=lambda status: status,
    )  # fmt: skip
    monkeypatch.setattr(comparison, "subprocess", SimpleNamespace(Popen=Process))
    monkeypatch.setattr(comparison, "os", fake)
    monkeypatch.setattr(
        comparison, "time", SimpleNamespace(monotonic=itertools.count(5.0).__next__)
    )
    return comparison._run_way("reference", settings), started


def test_how_a_way_is_run(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = comparison.CompareMemorySettings(("a.txt",), num_workers=3, vocab_size=300)
    merges = [["\u0120", "a"], ["b", "c"]]
    result = {"seconds": 2.5, "peak_bytes": 77, "merges": merges}
    found, started = run_stub(monkeypatch, settings, 0, result)
    assert found == WayResult("plain Python", 2.5, 77, [(b" ", b"a"), (b"b", b"c")])
    ((command, environment, job),) = started
    assert command[:3] == [sys.executable, "-m", "lowtide.tokenizer.comparison"]
    assert environment["TOKENIZERS_PARALLELISM"] == "true"
    assert environment["RAYON_NUM_THREADS"] == "3"
    assert job["way"] == "reference" and job["settings"]["vocab_size"] == 300
    alone = dataclasses.replace(settings, num_workers=None)
    monkeypatch.delenv("RAYON_NUM_THREADS", raising=False)
    _, started = run_stub(monkeypatch, alone, 0, result)
    assert "RAYON_NUM_THREADS" not in started[0][1]


def test_how_a_way_that_fails_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = comparison.CompareMemorySettings(("a.txt",))
    found, _ = run_stub(monkeypatch, settings, -9)
    assert found == WayResult("plain Python", 1.0, 3 << 20, [], "ended by signal 9, out of memory?")
    with pytest.raises(LowtideError, match=r"^why$"):
        run_stub(monkeypatch, settings, 1, {"error": "why"})
    with pytest.raises(LowtideError, match="plain Python failed, see above"):
        run_stub(monkeypatch, settings, 1)


@pytest.mark.parametrize(
    ("wanted", "installed", "way"),
    [("auto", True, "tokenizers"), ("auto", False, "reference"), ("reference", True, "reference"),
     ("tokenizers", True, "tokenizers")],
)  # fmt: skip
def test_which_ordinary_way_is_taken(
    monkeypatch: pytest.MonkeyPatch, wanted: Any, installed: bool, way: str
) -> None:
    needed: list[tuple[str, str]] = []
    monkeypatch.setattr(comparison, "has_package", lambda name: installed)
    monkeypatch.setattr(comparison, "require_package", lambda *given: needed.append(given))
    settings = comparison.CompareMemorySettings(("a.txt",), ordinary=wanted)
    assert settings.ordinary_way == way
    package = "tokenizers" if way == "tokenizers" else "regex"
    assert needed == [(package, f"comparing with {way}")]
    with pytest.raises(UsageError, match="no input files"):
        comparison.CompareMemorySettings(())


def test_the_work_of_a_way_is_written_down(tmp_path: Path) -> None:
    text = tmp_path / "a.txt"
    text.write_text("low lower lowest<|x|>low lower")
    job, result = tmp_path / "job.json", tmp_path / "result.json"
    settings = {"input": [str(text)], "vocab_size": 260, "special_tokens": ["<|x|>"]}
    job.write_text(json.dumps({"way": "reference", "settings": settings}))
    assert comparison._work(job, result) == 0
    found = json.loads(result.read_text())
    assert found["merges"] == [["l", "o"], ["lo", "w"], ["\u0120", "low"]]
    assert found["seconds"] >= 0 and found["peak_bytes"] > 0
    text.write_text("")
    assert comparison._work(job, result) == 1
    assert "there is no text in the input files" in json.loads(result.read_text())["error"]


def test_rows_are_read_whole_as_well(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"text": "one<|x|>two"}\n{"text": "three"}\n')
    settings = comparison.CompareMemorySettings((str(path),), special_tokens=("<|x|>",))
    assert comparison._read_everything(settings) == ["one", "two", "three"]
