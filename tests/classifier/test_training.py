"""Training a classifier: the same model however it is run, read by others, killed and refused."""

from __future__ import annotations

import contextlib
import gzip
import json
import random
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lowtide import _native, prepare_dataset, train_classifier
from lowtide.classifier import learning, training
from lowtide.classifier.describing import describe_classifier
from lowtide.corpus.classifiers import model_checksum
from lowtide.errors import BudgetError, DataError, UsageError

SEPARATOR = "<|endoftext|>"
GOOD = [
    "court",
    "law",
    "judge",
    "appeal",
    "statute",
    "held",
    "plaintiff",
    "ruling",
    "section",
    "the",
    "of",
    "and",
]
OTHER = [
    "click",
    "buy",
    "offer",
    "cookie",
    "free",
    "shop",
    "deal",
    "now",
    "best",
    "page",
    "the",
    "of",
    "and",
]


def make_texts(words: list[str], count: int, seed: int) -> list[str]:
    dice = random.Random(seed)
    return [" ".join(dice.choices(words, k=dice.randrange(20, 80))) for _ in range(count)]


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Good text as txt, other as jsonl and packed txt; one document is of many passages."""
    folder = tmp_path_factory.mktemp("corpus")
    good = make_texts(GOOD, 150, 1)
    (folder / "good.txt").write_text(SEPARATOR.join([*good, "\n".join(make_texts(GOOD, 200, 2))]))
    other = make_texts(OTHER, 200, 3)
    rows = "".join(json.dumps({"text": text}) + "\n" for text in other[:90])
    (folder / "a.jsonl").write_text(rows)
    with gzip.open(folder / "b.txt.gz", "wt") as file:
        file.write(SEPARATOR.join(other[90:]))
    return folder


def options(corpus: Path, out_dir: Path, **more: Any) -> dict[str, Any]:
    common: dict[str, Any] = {"buckets": 1000, "max_words": 50, "num_workers": 2, "min_count": 1}
    common |= {"good": corpus / "good.txt", "other": [corpus / "a.jsonl", corpus / "b.txt.gz"]}
    return {**common, "out_dir": out_dir, "block_bytes": 8192, **more}


def files_of(folder: Path) -> dict[str, bytes]:
    return {
        path.name: path.read_bytes()
        for path in sorted(folder.iterdir())
        if path.name != "metrics.jsonl"
    }


@pytest.fixture(scope="module")
def trained(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> training.TrainedClassifier:
    out_dir = tmp_path_factory.mktemp("trained") / "model"
    return train_classifier(**options(corpus, out_dir))


def test_it_tells_good_from_other(trained: training.TrainedClassifier) -> None:
    record = trained.record
    assert record["held_out"]["auc"] == 1.0
    assert record["held_out"]["precision"] == record["held_out"]["recall"] == 1.0
    assert record["examples"]["other"] + record["held_out"]["other"] == 200
    assert record["held_out"]["other"] == 20
    assert record["examples"]["good"] + record["held_out"]["good"] > 150
    assert record["words"] == len(set(GOOD) | set(OTHER)) + 1  # and the end of a line
    assert set(files_of(trained.path.parent)) == {"model.bin", "classifier.json"}
    model = _native.FastTextModel(str(trained.path))
    assert model.labels == ["good", "other"]
    assert model.predict(b"the judge held the appeal")[0] > 0.9
    assert model.predict(b"click now and buy")[0] < 0.1
    text = describe_classifier(trained)
    assert "AUC 1.0000" in text
    assert "Of --other it would keep first:" in text
    assert f"--score {trained.path} --keep-top 0.1" in text
    shown = record["held_out"]
    assert len(shown["would_keep"]) == len(shown["would_drop"]) == 3
    assert shown["would_keep"][0]["score"] >= shown["would_keep"][2]["score"]
    assert shown["would_drop"][0]["score"] <= shown["would_drop"][2]["score"]
    assert shown["would_keep"][2]["score"] > shown["would_drop"][2]["score"]
    assert all(row["text"].split()[0] in GOOD for row in shown["good_with_low_scores"])


def test_the_fasttext_package_gives_the_same_scores(trained: training.TrainedClassifier) -> None:
    fasttext = pytest.importorskip("fasttext")
    theirs, ours = fasttext.load_model(str(trained.path)), _native.FastTextModel(str(trained.path))
    for text in [*make_texts(GOOD, 20, 9), *make_texts(OTHER + GOOD, 20, 10), "x", "unknown words"]:
        # Not model.predict, which calls NumPy in a way that NumPy 2 refuses.
        found = {label: score for score, label in theirs.f.predict(f"{text}\n", 2, 0.0, "strict")}
        scores = dict(zip(ours.labels, ours.predict(text.encode()), strict=True))
        for label, score in scores.items():
            assert found.get(f"__label__{label}", 0.0) == pytest.approx(score, abs=1e-5)


def test_the_same_model_however_it_is_run(
    corpus: Path,
    trained: training.TrainedClassifier,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One worker and three; tables so small that words are counted in many partitions."""
    expected = files_of(trained.path.parent)
    train_classifier(**options(corpus, tmp_path / "one", num_workers=1, memory="256MiB"))
    assert files_of(tmp_path / "one") == expected
    count = training.count_words
    passes: list[int] = []

    def count_in_little(*args: Any, **named: Any) -> Any:
        split = learning._count_partitions

        def noting(*inner: Any) -> Any:
            passes.append(inner[2])
            return split(*inner)

        with monkeypatch.context() as patch:
            patch.setattr(learning, "_count_partitions", noting)
            return count(*args, **{**named, "table_bytes": 49_700})

    monkeypatch.setattr(training, "count_words", count_in_little)
    train_classifier(**options(corpus, tmp_path / "three", num_workers=3))
    assert files_of(tmp_path / "three") == expected
    assert passes[0] == 3
    assert len(passes) > 1


def test_neither_order_nor_files_change_the_model(
    corpus: Path, trained: training.TrainedClassifier, tmp_path: Path
) -> None:
    texts = [json.loads(line)["text"] for line in (corpus / "a.jsonl").read_text().splitlines()]
    (tmp_path / "a.txt").write_text(SEPARATOR.join([*texts, *texts[:7]]))  # copies count once
    others = [corpus / "b.txt.gz", tmp_path / "a.txt"]
    made = train_classifier(**options(corpus, tmp_path / "out", other=others))
    assert made.path.read_bytes() == trained.path.read_bytes()


class _Killed(BaseException):
    pass


def die_after(function: Callable[..., Any], calls: int) -> Callable[..., Any]:
    left = [calls]

    def die(*args: Any, **named: Any) -> Any:
        if left[0] == 0:
            raise _Killed
        left[0] -= 1
        return function(*args, **named)

    return die


@pytest.mark.parametrize(
    ("module", "name", "calls"),
    [
        (training, "choose_examples", 0),
        (training, "count_words", 0),
        (learning, "_keep", 2),
        (training, "measure", 0),
        (training.files, "write_json", 0),
        (training, "remove_work", 0),
    ],
)
def test_killed_work_goes_on(
    corpus: Path,
    trained: training.TrainedClassifier,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    module: Any,
    name: str,
    calls: int,
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(module, name, die_after(getattr(module, name), calls))
        with pytest.raises(_Killed):
            train_classifier(**options(corpus, tmp_path / "out"))
    if name != "remove_work":
        with pytest.raises(UsageError, match="begun with --epochs 5, now it is 6"):
            train_classifier(**options(corpus, tmp_path / "out", epochs=6))
    steps: list[int] = []
    learn = training.learn

    def counting(*args: Any, **named: Any) -> Any:
        done = named.pop("on_done")
        return learn(*args, **named, on_done=lambda n, loss: (steps.append(n), done(n, loss)))

    monkeypatch.setattr(training, "learn", counting)
    again = train_classifier(**options(corpus, tmp_path / "out"))
    assert again.was_there == (name == "remove_work")
    assert files_of(tmp_path / "out") == files_of(trained.path.parent)
    if name == "_keep":  # two passes of five were done
        total = sum(trained.record["examples"][key] for key in ("good", "other"))
        assert steps[0] == 2 * total
        assert sum(steps) == 5 * total


def test_the_same_command_again_touches_nothing(
    corpus: Path, trained: training.TrainedClassifier, tmp_path: Path
) -> None:
    out_dir = trained.path.parent
    before = {path: path.stat().st_mtime_ns for path in out_dir.iterdir()}
    again = train_classifier(**options(corpus, out_dir, num_workers=1))
    assert again.was_there
    assert "nothing was touched" in describe_classifier(again)
    assert {path: path.stat().st_mtime_ns for path in out_dir.iterdir()} == before
    with pytest.raises(UsageError, match="made with --seed 0, now it is 1"):
        train_classifier(**options(corpus, out_dir, seed=1))
    with pytest.raises(UsageError, match=r"b\.txt\.gz was among its inputs"):
        train_classifier(**options(corpus, out_dir, other=[corpus / "a.jsonl"]))


def test_a_damaged_or_foreign_model_is_refused(
    corpus: Path, trained: training.TrainedClassifier, tmp_path: Path
) -> None:
    out_dir = tmp_path / "out"
    out_dir.mkdir()
    data = bytearray(trained.path.read_bytes())
    data[-1] ^= 1
    (out_dir / "model.bin").write_bytes(data)
    with pytest.raises(UsageError, match="nothing says where it comes from"):
        train_classifier(**options(corpus, out_dir))
    (out_dir / "classifier.json").write_bytes(
        (trained.path.parent / "classifier.json").read_bytes()
    )
    with pytest.raises(DataError, match="not the one that"):
        train_classifier(**options(corpus, out_dir))
    (out_dir / "classifier.json").write_text("{}")
    with pytest.raises(UsageError, match="nothing says what it was made of"):
        train_classifier(**options(corpus, out_dir))


@pytest.mark.parametrize(
    ("good", "other", "why"),
    [
        (["court"] * 3, OTHER, "--good has 3 different passages"),
        ([], OTHER, "--good has 0 different passages"),
        (["the same text of a few words"] * 50, OTHER, "--good has 1 different passage "),
        (GOOD, [], "--other has 0 different passages"),
        (GOOD, GOOD, r"--other has 0 different passages .*40 more are among those of --good"),
    ],
)
def test_texts_that_make_no_classifier(
    tmp_path: Path, good: list[str], other: list[str], why: str
) -> None:
    for name, words in (("good.txt", good), ("other.txt", other)):
        texts = make_texts(words, 40, 5) if len(words) > 3 else [f"{word} " * 9 for word in words]
        if len(words) == 50:
            texts = words
        elif len(words) == 3:
            texts = [f"text number {n} of the {word}" for n, word in enumerate(words)]
        (tmp_path / name).write_text(SEPARATOR.join(texts))
    with pytest.raises(DataError, match=why):
        train_classifier(
            good=tmp_path / "good.txt", other=tmp_path / "other.txt", out_dir=tmp_path / "out"
        )
    assert not (tmp_path / "out" / "model.bin").exists()


def test_one_file_is_not_both(corpus: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="among --good and among --other") as caught:
        train_classifier(**options(corpus, tmp_path / "out", good=[corpus]))
    assert "a.jsonl" in str(caught.value)


def test_a_budget_that_is_too_small_is_refused(corpus: Path, tmp_path: Path) -> None:
    with pytest.raises(BudgetError, match="model and a batch"):
        train_classifier(**options(corpus, tmp_path / "out", memory="40MiB", buckets=50_000_000))
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ({"epochs": 0}, "--epochs 0 must be 1 to 1000"),
        ({"max_examples": 3}, "--max-examples 3 must be 10 to"),
        ({"buckets": 1 << 31}, "--buckets 2147483648 must be"),
        ({"num_workers": 0}, "--processes 0 must be at least 1"),
        ({"good": ()}, "--good names no files"),
        ({"document_separator": "x" * 1025}, "longer than 1024 bytes"),
        ({"document_separator": "\udcff"}, "is not text in UTF-8"),
    ],
)
def test_settings_that_make_no_sense(tmp_path: Path, more: dict[str, Any], why: str) -> None:
    with pytest.raises(UsageError, match=why):
        train_classifier(**{"good": "a", "other": "b", "out_dir": tmp_path, **more})


@pytest.mark.parametrize("place", [("sources", 0), ("held_out", "auc"), ("examples", "good")])
def test_a_damaged_record_is_named(place, tmp_path: Path) -> None:
    """The same command again finds a record with something else where numbers and rows were."""
    for name, words in (("good", "tide water sand"), ("other", "noise crackle hum")):
        lines = [f"{words} {words} number {number} of {name}" for number in range(40)]
        (tmp_path / f"{name}.jsonl").write_text(
            "".join(json.dumps({"text": line}) + "\n" for line in lines)
        )
    given = {
        "good": [tmp_path / "good.jsonl"], "other": [tmp_path / "other.jsonl"], "buckets": 1000,
        "out_dir": tmp_path / "out", "epochs": 1, "num_workers": 1,
    }  # fmt: skip
    train_classifier(**given)
    path = tmp_path / "out" / "classifier.json"
    record = json.loads(path.read_text())
    record[place[0]][place[1]] = 1.5 if place[0] == "sources" else [[]]
    path.write_text(json.dumps(record))
    with pytest.raises((DataError, UsageError), match=r"classifier.json is damaged"):
        describe_classifier(train_classifier(**given))


def test_a_model_that_its_record_does_not_know_judges_nothing(
    trained: training.TrainedClassifier, corpus: Path, tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(trained.path.parent, tmp_path / "model"))
    path = folder / trained.path.name
    checksum = model_checksum(str(path))
    data = bytearray(path.read_bytes())
    data[-3] ^= 1  # a weight
    path.write_bytes(data)
    given: dict[str, Any] = {"input_files": [corpus / "a.jsonl"], "tokenization": "char"}
    given |= {"score": str(path), "keep_top": 0.5}
    with pytest.raises(DataError, match=f"classifier.json says {checksum}") as caught:
        prepare_dataset(**given, out_dir=tmp_path / "out")
    assert caught.value.path == path
    (folder / "classifier.json").unlink()  # somebody's own
    assert prepare_dataset(**given, out_dir=tmp_path / "own").info.metadata["total_tokens"] > 0


def test_a_classifier_that_another_command_ended_while_this_one_waited_is_taken(
    trained: training.TrainedClassifier,
    corpus: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    out_dir = tmp_path / "model"

    def end_first(*given: Any, **more: Any) -> Any:
        assert given == (out_dir,) and more["create_folder"] is True
        shutil.copytree(trained.path.parent, out_dir)
        return contextlib.nullcontext()

    monkeypatch.setattr(training.files, "hold_lock", end_first)
    again = train_classifier(**options(corpus, out_dir))
    assert again.was_there
    assert again.record == trained.record


def test_texts_of_both_kinds_are_told(trained: training.TrainedClassifier) -> None:
    examples = {**trained.record["examples"], "in_both": 1}
    some = replace(trained, record={**trained.record, "examples": examples})
    assert "\n  in both: 1 text; good, not other\n" in describe_classifier(some)
    assert "in both" not in describe_classifier(trained)


def test_every_phase_comes_to_its_end(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    phases: list[Any] = []
    made: list[Any] = []

    class Noting(training.Progress):
        def __init__(self, *given: Any, **more: Any) -> None:
            super().__init__(*given, **more)
            made.append(self)

        @contextlib.contextmanager
        def phase(self, name: str, **more: Any) -> Any:
            with super().phase(name, **more) as phase:
                phases.append(phase)
                yield phase

    monkeypatch.setattr(training, "Progress", Noting)
    out_dir = tmp_path / "out"
    record = train_classifier(**options(corpus, out_dir, epochs=2)).record
    learned = record["examples"]["good"] + record["examples"]["other"]
    tested = record["held_out"]["good"] + record["held_out"]["other"]
    stored = sum(path.stat().st_size for path in corpus.iterdir())
    assert [(phase.name, phase.total, phase.done, phase.unit) for phase in phases] == [
        ("clean, choose", stored, stored, "B"),
        ("gather", learned + tested, learned + tested, "examples"),
        ("count words", learned, learned, "examples"),
        ("learn", 2 * learned, 2 * learned, "examples"),
        ("test", tested, tested, "examples"),
    ]
    assert phases[3].numbers["loss"] > 0
    assert made[0].metrics_path == out_dir / "metrics.jsonl"
    assert (out_dir / "metrics.jsonl").read_text().count("\n") > 0
    assert sorted(path.name for path in out_dir.iterdir()) == [
        "classifier.json", "metrics.jsonl", "model.bin",
    ]  # fmt: skip


def test_the_record_says_what_the_model_was_made_of(
    corpus: Path, trained: training.TrainedClassifier
) -> None:
    record = json.loads((trained.path.parent / "classifier.json").read_text())
    assert record == trained.record
    assert record["version"] == 1 and record["labels"] == ["good", "other"]
    assert record["documents_in"] == 151 + 200 and record["notices"] == []
    assert record["xxh3_128"] == training.files.checksum_file(trained.path)
    assert record["examples"]["in_both"] == 0
    assert [Path(row["file"]).name for row in record["sources"]] == [
        "good.txt", "a.jsonl", "b.txt.gz",
    ]  # fmt: skip
    assert record["settings"]["good_files"] == 1
    assert not set(record["settings"]) & set(training._FREE)


def test_the_words_for_a_classifier(trained: training.TrainedClassifier) -> None:
    shown = {"score": 0.12346, "text": "x" * 91}
    record = {
        "examples": {"good": 1234, "other": 5, "in_both": 2}, "words": 6789,
        "held_out": {
            "good": 1000, "other": 7, "precision": 0.98765, "recall": 0.5, "auc": 0.25,
            "would_keep": [shown], "would_drop": [{"score": 1.0, "text": "y" * 90}],
            "good_with_low_scores": [],
        },
    }  # fmt: skip
    made = replace(trained, path=Path("m/model.bin"), record=record, was_there=False)
    assert describe_classifier(made) == "\n".join((
        "Classifier in m/model.bin",
        "  learned from 1,234 good and 5 other passages, 6,789 words",
        "  in both: 2 texts; good, not other",
        "Held out: 1,000 good and 7 other passages",
        "  precision 0.988 and recall 0.500 of good at a score of 0.5, AUC 0.2500",
        "Of --other it would keep first:",
        f"  0.1235  {'x' * 90}…",
        "and drop first:",
        f"  1.0000  {'y' * 90}",
        "Of --good it likes least:",
        "Next: lowtide prepare --input-files FILES --score m/model.bin --keep-top 0.1 "
        "--out-dir data/mine",
    ))  # fmt: skip


def test_the_file_that_is_both_is_named(corpus: Path, tmp_path: Path) -> None:
    """Not the first of the others, but the one that is among the good ones."""
    others = [corpus / "a.jsonl", corpus / "good.txt", corpus / "b.txt.gz"]
    with pytest.raises(UsageError, match="among --good and among --other") as caught:
        train_classifier(**options(corpus, tmp_path / "out", other=others))
    assert caught.value.path == corpus / "good.txt"


@pytest.mark.parametrize("record", ['{"settings": {}}', '{"sources": []}', "[]", '{"settings": 1}'])
def test_a_record_that_says_nothing_is_refused(corpus: Path, tmp_path: Path, record: str) -> None:
    (tmp_path / "classifier.json").write_text(record)
    with pytest.raises(UsageError, match="nothing says what it was made of"):
        train_classifier(**options(corpus, tmp_path))


def test_a_model_whose_work_is_unfinished_is_made_anew(corpus: Path, tmp_path: Path) -> None:
    """Or without it, where the user says so."""
    (tmp_path / "model.bin").write_bytes(b"half")
    made = train_classifier(**options(corpus, tmp_path, restart=True))
    assert not made.was_there and made.path.stat().st_size > 4
