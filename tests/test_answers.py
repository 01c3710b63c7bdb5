"""--json and --quiet: one object on stdout, nothing on stderr, of every verb that reports."""

from __future__ import annotations

import builtins
import json
import sys
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lowtide import cli
from lowtide.answers import Answer, is_quiet, print_answer, shown_as, tell, to_json, wants_json
from lowtide.verbs import VERBS

TINY = ["--num-layers", "1", "--width", "16", "--num-heads", "1", "--seq-len", "8",
        "--batch-size", "2", "--eval-iters", "1", "--sample-tokens", "0"]  # fmt: skip
MODEL = ["--model-name", "m", "--device", "cpu"]

# Every verb, in an order in which each finds what it needs, and what its object must say.
COMMANDS: list[tuple[list[str], dict[str, Any]]] = [
    (["train-tokenizer", "--input", "text.txt", "--vocab-size", "280", "--out-dir", "tok"],
     {"vocab_size": 280, "was_there": False, "out_dir": "tok"}),
    (["train-classifier", "--good", "text.txt", "--other", "more.txt", "--out-dir", "quality",
      "--document-separator", "\\n", "--buckets", "100"],
     {"path": "quality/model.bin", "was_there": False}),
    (["prepare", "--input-files", "text.txt", "--tokenization", "tok", "--out-dir", "data"],
     {"dataset_dir": "data", "was_there": False, "vocab_size": 280}),
    (["prepare", "--input-files", "text.txt", "--tokenization", "tok", "--out-dir", "data"],
     {"dataset_dir": "data", "was_there": True}),
    (["append", "--dataset-dir", "data", "--input-files", "more.txt"], {"was_there": False}),
    (["pretokenize", "text.txt", "more.txt", "--tokenization", "tok"], {}),
    (["verify", "data"], {"ok": True, "problems": []}),
    (["inspect", "data"], {"kind": "dataset", "vocab_size": 280}),
    (["inspect", "tok"], {"kind": "bpe tokenizer", "vocab_size": 280}),
    (["inspect", "text.npy"], {"kind": "tokens"}),
    (["convert", "data", "bin", "--to", "nanogpt"], {"was_there": False}),
    (["plan", "--tokens", "1M", "--ram", "8GiB", "--size", "1M"], {"fits": True}),
    (["train", "--dataset-dir", "data", "--max-iters", "1", *MODEL, *TINY], {"steps": 1}),
    (["evaluate", "--dataset-dir", "data", *MODEL], {}),
    (["generate", "--max-new-tokens", "2", *MODEL], {}),
    (["export", "--model-name", "m", "--out-dir", "hf"], {"path": "hf", "was_there": False}),
    (["report", "data"], {"kind": "dataset"}),
    (["compare-memory", "--what", "loading", "--tokens", "20k"], {}),
    (["completion", "bash"], {"shell": "bash"}),
]  # fmt: skip


def test_every_verb_answers_with_one_object_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    assert {words[0] for words, _ in COMMANDS} == set(VERBS) - {"demo"}  # which runs the others
    monkeypatch.chdir(tmp_path)
    (tmp_path / "text.txt").write_text("".join(f"line {n} of some words\n" for n in range(400)))
    (tmp_path / "more.txt").write_text(
        "".join(f"other text, and row {n} of it\n" for n in range(400))
    )
    answers: dict[str, dict[str, Any]] = {}
    for words, expected in COMMANDS:
        code = cli.main([*words, "--json", "--quiet"])
        out, err = capfd.readouterr()
        assert (code, err) == (0, ""), (words, err)
        answer = json.loads(out)
        assert out.count("\n") == 1
        assert {key: answer.get(key) for key in expected} == expected, words
        answers[words[0]] = answer
    assert [row["was_there"] for row in answers["pretokenize"]["files"]] == [False, False]
    assert answers["append"]["total_tokens"] > answers["prepare"]["total_tokens"] > 0
    assert answers["evaluate"]["datasets"]["data"]["loss"] > 0
    assert isinstance(answers["generate"]["text"], str)
    assert not (is_quiet() or wants_json())  # the next command of this process is its own


def test_problems_are_in_the_object_and_still_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "text.txt").write_text("some words\n" * 50)
    words = ["prepare", "--input-files", "text.txt", "--tokenization", "char", "--out-dir", "d"]
    assert cli.main([*words, "--quiet"]) == 0
    assert "Total tokens" in capfd.readouterr().out  # --quiet leaves the result
    shard = next((tmp_path / "d" / "train").glob("*.bin"))
    shard.write_bytes(bytes(len(shard.read_bytes())))
    assert cli.main(["verify", "d", "--json", "--quiet"]) == 1
    out, err = capfd.readouterr()
    answer = json.loads(out)
    assert answer["ok"] is False and len(answer["problems"]) == 1
    assert err.startswith("error: 1 problem:\n")


def test_values_that_json_lacks() -> None:
    given = {"a": float("nan"), "b": np.int64(3), "c": (Path("x"),), "d": np.dtype("uint16")}
    assert to_json(given) == {"a": None, "b": 3, "c": ["x"], "d": "uint16"}


def test_text_of_any_length_is_written_as_it_comes(capsys: pytest.CaptureFixture[str]) -> None:
    said: list[str] = []

    def parts() -> Iterator[str]:
        for text in ('a "quote"\n', "ü", "\\"):
            said.append(capsys.readouterr().out)
            yield text

    with shown_as(as_json=True, quiet=False):
        print_answer(Answer(parts(), field="text", end=""))
    rest = capsys.readouterr().out
    assert said[0] == '{"text": "' and said[1] == r"a \"quote\"\n"  # each before the next is made
    assert json.loads("".join([*said, rest])) == {"text": 'a "quote"\nü\\'}
    print_answer(Answer(["a", "b"], field="text", end=""))
    assert capsys.readouterr().out == "ab"


def test_pretokenize_holds_no_results_of_files_that_are_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from lowtide import textverbs
    from lowtide.dataset import pretokenization
    from lowtide.dataset.settings import PretokenizeSettings

    living: weakref.WeakSet[pretokenization.PretokenizeResult] = weakref.WeakSet()
    most: list[int] = []

    def made(*_: object) -> Iterator[pretokenization.PretokenizeResult]:
        for number in range(50):
            result = pretokenization.PretokenizeResult(
                tmp_path / f"{number}.npy", 4, 2, np.dtype("<u2"), "gpt2", 0.1, 1
            )
            living.add(result)
            most.append(len(living))
            yield result

    monkeypatch.setattr(pretokenization, "iter_pretokenized", made)
    for as_json in (False, True):
        with shown_as(as_json=as_json, quiet=True):
            print_answer(textverbs.run_pretokenize(PretokenizeSettings(file=[tmp_path])))
    assert max(most) <= 2
    rows = json.loads(capsys.readouterr().out.splitlines()[-1])["files"]
    assert [Path(row["path"]).name for row in rows] == [f"{number}.npy" for number in range(50)]


def test_an_error_behind_some_rows_prints_no_half_object(
    capsys: pytest.CaptureFixture[str],
) -> None:
    def rows() -> Iterator[int]:
        yield 1
        raise ValueError("the second file")

    with shown_as(as_json=True, quiet=True), pytest.raises(ValueError, match="second"):
        print_answer(Answer([], field="files", rows=rows))
    assert capsys.readouterr().out == ""


def test_text_is_printed_as_it_comes_and_lines_when_they_are_whole(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    printed: list[tuple[str, str, bool]] = []

    def note(text: str, *, end: str, flush: bool) -> None:
        printed.append((text, end, flush))

    monkeypatch.setattr(builtins, "print", note)
    print_answer(Answer(["a", "b"], dict))
    print_answer(Answer(["c"], dict, end=""))
    assert printed == [("a", "\n", False), ("b", "\n", False), ("c", "", True)]


def test_what_is_told_is_told_at_once_and_not_when_quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[Any] = []

    def note(text: str, *, file: Any, flush: bool) -> None:
        told.append((text, file is sys.stderr, flush))

    monkeypatch.setattr(builtins, "print", note)
    tell("a line\x1b")
    with shown_as(as_json=False, quiet=True):
        tell("nothing")
    assert told == [("a line\\x1b", True, True)]


def test_numbers_that_json_lacks_are_refused_or_null(capsys: pytest.CaptureFixture[str]) -> None:
    with shown_as(as_json=True, quiet=False):
        rows = Answer([], dict, field="rows", rows=lambda: iter([{"a": float("nan")}, [1]]))
        print_answer(rows)
        print_answer(Answer([], lambda: {"b": float("inf")}))
    assert capsys.readouterr().out == '{"rows": [{"a": null}, [1]]}\n{"b": null}\n'
