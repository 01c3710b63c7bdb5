"""Facts of several commands on one dataset are added up."""

from __future__ import annotations

from pathlib import Path

from lowtide import prepare_dataset
from lowtide.reporting.datasetfacts import DatasetFacts, LengthCounts, merge_reports


def test_what_several_commands_removed_is_added_up() -> None:
    rule = {"count": 2, "bytes": 10, "examples": ["x"]}
    languages = {"en": {"count": 3, "bytes": 30}}
    one = {"documents_in": 1, "bytes_in": 100, "rules": {"short": rule}, "languages": languages}
    total = merge_reports([one, one, {"rules": {}}])
    assert total["rules"] == {"short": {"count": 4, "bytes": 20, "examples": ["x"]}}
    assert total["languages"] == {"en": {"count": 6, "bytes": 60}}
    assert (total["documents_in"], total["bytes_in"]) == (2, 200)


def test_a_dataset_says_how_many_tokens_its_tokenizer_has(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("some words, and some more of them\n" * 5)
    made = prepare_dataset(input_files=tmp_path / "a.txt", out_dir=tmp_path / "d",
                           tokenization="char", progress=False)  # fmt: skip
    assert made.info is not None
    facts = DatasetFacts("d", made.info, LengthCounts(), {}, 0)
    assert facts.vocab_size == made.info.vocab_size > 10
    assert (
        facts.tokens == sum(map(made.info.num_tokens, ("train", "val"))) > 0
        and facts.tokenization == "char"
    )
    assert facts.input_files == 1
