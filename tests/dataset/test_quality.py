"""Quality rules in a preparation: counted, in the plan, the same bytes for every engine."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from lowtide.dataset import threaded
from lowtide.dataset.appending import append_to_dataset
from lowtide.dataset.preparation import prepare_dataset
from lowtide.dataset.summary import describe_preparation
from lowtide.errors import UsageError

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parents[1] / "corpus"))
from corpora import SEPARATOR, read_documents, snapshot
from fasttext_files import TinyModel

PROSE = (
    "The {} of the sea is a thing that people have known. They go to the shore with {} and wait."
)


def make_text(number: int) -> str:
    """A document that C4 keeps, with a line that it removes; every seventh has a bracket."""
    lines = [PROSE.format(f"tide{number}-{line}", f"boat{line}") for line in range(4)]
    return "\n".join([*lines, "a menu without a mark", "{" if number % 7 == 0 else "", "Oh {."[:2]])


@pytest.fixture
def inputs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    documents = [make_text(number) for number in range(140)]
    documents[3] += "\nThis page uses a { in a sentence."
    documents[5] = "Too short to be of use to anybody."
    Path("a.txt").write_text(SEPARATOR.join(documents))
    return Path("a.txt")


def options(inputs: Path, out_dir: str, **more: Any) -> dict[str, Any]:
    common: dict[str, Any] = {"tokenization": "char", "rules": "c4", "processes": 2}
    common |= {"block_bytes": 4096}
    return {"input_files": [inputs], "out_dir": out_dir, **common, **more}


def test_what_rules_remove_is_counted(inputs: Path) -> None:
    result = prepare_dataset(**options(inputs, "out"))
    rules = result.report["rules"]
    assert rules["document_c4_curly_bracket"]["count"] == 1
    assert rules["document_c4_few_sentences"]["count"] == 1
    assert rules["line_c4_end_mark"]["count"] >= 138
    assert rules["line_c4_end_mark"]["bytes"] >= 138 * len("a menu without a mark")
    assert rules["line_c4_end_mark"]["examples"][0] == "a menu without a mark"
    texts = read_documents(Path("out"), "train") + read_documents(Path("out"), "val")
    assert len(texts) == 138
    assert not any("menu" in text or "{" in text for text in texts)
    assert "lines removed: C4, no punctuation at the end" in describe_preparation(result)


@pytest.mark.parametrize(("processes", "memory"), [(1, "200MiB"), (2, "1GiB")])
def test_neither_workers_nor_memory_change_a_byte(
    inputs: Path, processes: int, memory: str
) -> None:
    prepare_dataset(**options(inputs, "one", rules="gopher-quality,c4,fineweb"))
    prepare_dataset(
        **options(
            inputs, "two", rules="gopher-quality,c4,fineweb", processes=processes, memory=memory
        )
    )
    assert snapshot(Path("one")) == snapshot(Path("two"))


def test_interrupted_work_goes_on_with_the_same_rules_only(
    inputs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepare_dataset(**options(inputs, "whole"))

    class Killed(BaseException):
        pass

    def die(*_: Any, **__: Any) -> None:
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(threaded, "plan_shards", die)
        with pytest.raises(Killed):
            prepare_dataset(**options(inputs, "out"))
    others: list[tuple[dict[str, Any], str]] = [
        ({"rules": ""}, "--rules c4, now it is none"),
        ({"rules": "c4,fineweb"}, "--rules c4, now it is c4,fineweb"),
        ({"rule_limit": ("c4.policy=0",)}, "--rule-limit none, now it is"),
    ]
    for other, was in others:
        with pytest.raises(UsageError, match=was):
            prepare_dataset(**options(inputs, "out", **other))
    prepare_dataset(**options(inputs, "out"))
    assert snapshot(Path("out")) == snapshot(Path("whole"))


def test_a_finished_dataset_of_other_rules_is_another_one(inputs: Path) -> None:
    prepare_dataset(**options(inputs, "out"))
    assert prepare_dataset(**options(inputs, "out")).was_there
    with pytest.raises(UsageError, match="made with --rules c4, now it is none"):
        prepare_dataset(**options(inputs, "out", rules=""))
    with pytest.raises(UsageError, match="--rule-limit none, now it is"):
        prepare_dataset(**options(inputs, "out", rule_limit=("c4.policy=0",)))


def test_without_rules_the_plan_is_what_it_was_before_there_were_any(inputs: Path) -> None:
    prepare_dataset(**options(inputs, "out", rules=""))
    settings = json.loads(Path("out/dataset_metadata.json").read_text())["settings"]
    assert not {"rules", "rule_limit"} & set(settings)


def test_appended_text_meets_the_rules_of_the_dataset(inputs: Path) -> None:
    prepare_dataset(**options(inputs, "out"))
    new = [make_text(number) for number in range(300, 340)]
    Path("b.txt").write_text(SEPARATOR.join([*new, new[0] + "\nHere is a { again."]))
    result = append_to_dataset(dataset_dir="out", input_files=["b.txt"])
    assert result.report["rules"]["document_c4_curly_bracket"]["count"] == 1
    texts = read_documents(Path("out"), "train") + read_documents(Path("out"), "val")
    assert len(texts) == 138 + 40
    assert not any("menu" in text for text in texts)


def test_personal_data_is_masked_and_counted(inputs: Path) -> None:
    text = make_text(500) + "\nWrite to jo@example.org or call +49 30 1234567 about the tide."
    inputs.write_text(SEPARATOR.join([text, *(make_text(number) for number in range(20))]))
    result = prepare_dataset(**options(inputs, "out", rules="", mask="phone,email"))
    rows = {rule: row for rule, row in result.report["rules"].items() if rule.startswith("masked")}
    assert rows == {
        "masked_email": {"count": 1, "bytes": 14, "examples": []},
        "masked_phone": {"count": 1, "bytes": 14, "examples": []},
    }
    texts = read_documents(Path("out"), "train") + read_documents(Path("out"), "val")
    assert sum("Write to [email] or call [phone] about the tide." in text for text in texts) == 1
    assert "masked: e-mail addresses" in describe_preparation(result)
    with pytest.raises(UsageError, match="made with --mask email,phone, now it is none"):
        prepare_dataset(**options(inputs, "out", rules=""))


def write_model(path: Path, first: str, second: str, *, seed: int = 0) -> str:
    """A model that knows two words: texts with one are `first`, with the other `second`."""
    model = TinyModel(
        words=["people", "Leute"],
        labels=[first, second],
        dim=4,
        rows=[[9.0 - seed, 0, 0, 0], [0, 9.0, 0, 0]],
        outputs=[[1.0, -1, 0, 0], [-1.0, 1, 0, 0]],
    )
    return model.write(path)


@pytest.fixture
def mixed(inputs: Path) -> Path:
    documents = [make_text(number) for number in range(150)]
    documents[::3] = [text.replace("people", "Leute") for text in documents[::3]]
    documents[7] = "Nothing in here is known to the model, not a single word of it."
    inputs.write_text(SEPARATOR.join(documents))
    return inputs


def test_languages_are_counted_and_chosen(mixed: Path) -> None:
    model = write_model(Path("lid.bin"), "en", "de")
    more: dict[str, Any] = {"rules": "", "language_model": model}
    result = prepare_dataset(**options(mixed, "out", **more, languages="en"))
    rules, languages = result.report["rules"], result.report["languages"]
    assert {name: row["count"] for name, row in languages.items()} == {"en": 99, "de": 50}
    assert rules["document_language"]["count"] == 50
    assert rules["document_language_score"]["count"] == 1
    texts = read_documents(Path("out"), "train") + read_documents(Path("out"), "val")
    assert len(texts) == 99
    assert not any("Leute" in text for text in texts)
    assert "Languages (documents): en 99, de 50" in describe_preparation(result)
    counted = prepare_dataset(**options(mixed, "all", **more, min_language_score=0.0))
    assert counted.info is not None
    texts = read_documents(Path("all"), "train") + read_documents(Path("all"), "val")
    assert len(texts) == 150


def test_scores_decide_what_stays(mixed: Path) -> None:
    model = write_model(Path("good.bin"), "cc", "hq")
    result = prepare_dataset(**options(mixed, "out", rules="", score=model))
    assert result.report["rules"]["document_score"]["count"] == 100
    texts = read_documents(Path("out"), "train") + read_documents(Path("out"), "val")
    assert len(texts) == 50
    assert not any("people" in text for text in texts)


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"score": "two.bin", "score_label": "best"}, "--score-label 'best' is not a label"),
        ({"score": "one.bin"}, "the model has one label, 'hq'"),
        ({"language_model": "two.bin", "languages": "en"}, "--languages 'en' is not among the 2"),
    ],
)
def test_labels_are_looked_for_before_anything_is_written(
    mixed: Path, more: dict[str, str], message: str
) -> None:
    write_model(Path("two.bin"), "hq", "cc")
    TinyModel(words=["people"], labels=["hq"], dim=1, rows=[[1.0]], outputs=[[1.0]]).write(
        Path("one.bin")
    )
    with pytest.raises(UsageError, match=message):
        prepare_dataset(**options(mixed, "out", **more))
    assert not Path("out").exists()


def test_models_give_the_same_bytes_however_it_is_run(mixed: Path) -> None:
    more: dict[str, Any] = {
        "rules": "c4",
        "score": write_model(Path("good.bin"), "hq", "cc"),
        "language_model": write_model(Path("lid.bin"), "en", "de"),
    }
    prepare_dataset(**options(mixed, "one", **more))
    prepare_dataset(**options(mixed, "two", **more, processes=1, memory="200MiB"))
    prepare_dataset(**options(mixed, "three", **more, engine="files"))
    assert snapshot(Path("one")) == snapshot(Path("two")) == snapshot(Path("three"))


def test_another_model_is_another_dataset(mixed: Path) -> None:
    model = write_model(Path("good.bin"), "hq", "cc")
    prepare_dataset(**options(mixed, "out", score=model))
    Path("moved.bin").write_bytes(Path(model).read_bytes())
    assert prepare_dataset(**options(mixed, "out", score="moved.bin")).was_there
    with pytest.raises(UsageError, match=r"--score .*good\.bin, now it is none"):
        prepare_dataset(**options(mixed, "out"))
    with pytest.raises(UsageError, match=r"--keep-above 0\.5, now it is 0\.25"):
        prepare_dataset(**options(mixed, "out", score=model, keep_above=0.25))
    Path("b.txt").write_text(SEPARATOR.join(make_text(number) for number in range(300, 320)))
    assert append_to_dataset(dataset_dir="out", input_files=["b.txt"]).added_tokens > 0
    write_model(Path("good.bin"), "hq", "cc", seed=1)
    with pytest.raises(UsageError, match=r"good\.bin with other content"):
        prepare_dataset(**options(mixed, "out", score=model))
    with pytest.raises(
        UsageError, match=r"was made with --score .*good\.bin, now it is .*good\.bin wi"
    ):
        append_to_dataset(dataset_dir="out", input_files=["b.txt"])
