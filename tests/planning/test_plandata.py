"""What a plan knows of its data: every way to name it gives these facts."""

from __future__ import annotations

import dataclasses
import gzip
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lowtide.errors import DataError
from lowtide.planning.machine import Machine
from lowtide.planning.plandata import DataFacts, bytes_per_token, find_data
from lowtide.planning.settings import PlanSettings
from lowtide.settings import build_settings
from lowtide.tokenizer import Tokenizer

GIB = 1 << 30
LINE = "The tide comes in, the tide goes out.\n"


def _machine(gib: float = 8) -> Machine:
    return Machine(int(gib * GIB), int(gib * GIB) // 2, 2, None, 0, None, is_this=False)


def _find(gib: float = 8, **given: Any) -> DataFacts:
    return find_data(build_settings(PlanSettings, given), _machine(gib))


@pytest.mark.parametrize(
    ("vocabulary", "wanted"), [(32000, 4.57), (16000, 4.16), (1000, 2.52), (1, 1.0), (10**6, 4.6)]
)
def test_bytes_of_a_token(vocabulary: int, wanted: float) -> None:
    assert bytes_per_token(vocabulary) == pytest.approx(wanted, abs=0.01)


@pytest.mark.parametrize(
    ("gib", "wanted"), [(7.9, 8000), (8, 8000), (8.1, 16000), (16, 16000), (17, 32000)]
)
def test_a_vocabulary_for_a_machine(gib: float, wanted: int) -> None:
    facts = _find(gib)
    assert (facts.description, facts.vocab_size) == ("none named", wanted)
    assert (facts.text_bytes, facts.train_tokens, facts.learns_tokenizer) == (None, None, True)
    assert facts.token_bytes == 2 and not facts.streams


@pytest.mark.parametrize(("tokens", "wanted"), [(1_000_000, 1500), (10_000, 500), (10**9, 8000)])
def test_less_text_has_a_smaller_vocabulary(tokens: int, wanted: int) -> None:
    facts = _find(num_tokens=tokens)
    assert facts.vocab_size == wanted and facts.train_tokens == tokens
    assert facts.text_bytes == int(tokens / 0.9 * bytes_per_token(wanted))


@pytest.mark.parametrize("name", ["char", "gpt2"])
def test_a_tokenizer_that_is_named_is_not_learned(name: str) -> None:
    facts = _find(tokenization=name, num_tokens=900)
    sizes = {"char": (256, 1000), "gpt2": (50257, int(1000 * bytes_per_token(50257)))}
    assert (facts.vocab_size, facts.text_bytes) == sizes[name]
    assert not facts.learns_tokenizer


def test_text_is_measured_by_a_sample(tmp_path: Path) -> None:
    text = tmp_path / "a.txt"
    text.write_text(LINE * 5000)
    ids = Tokenizer.load("gpt2").encode((LINE * 5000).encode(), special="text")
    ratio = len(LINE) * 5000 / len(ids)
    facts = _find(input_files=[str(text)], tokenization="gpt2")
    assert facts.bytes_per_token == pytest.approx(ratio)
    assert facts.train_tokens == int(len(LINE) * 5000 / ratio * 0.9)
    assert facts.line_bytes == pytest.approx(len(LINE) * 5000 / 5001)
    assert facts.description == (
        f"1 file, 185.5 KiB of text, about 49.5k training tokens "
        f"({ratio:.2f} bytes per token, measured on a sample)"
    )
    assert facts.distinct_bytes is None and facts.dataset_dir is None


def test_text_to_learn_from_is_estimated(tmp_path: Path) -> None:
    for name in "ab":
        (tmp_path / f"{name}.txt").write_text(LINE * 5000)
    facts = _find(input_files=[str(tmp_path)])
    assert facts.vocab_size == 500 and facts.learns_tokenizer
    assert facts.distinct_bytes is not None and 0 < facts.distinct_bytes < 4000
    assert facts.text_bytes == len(LINE) * 10_000
    assert facts.description.startswith("2 files, 371.1 KiB of text, about ")
    assert facts.description.endswith("(2.11 bytes per token, estimated for English)")


def test_what_is_packed_gives_no_sample(tmp_path: Path) -> None:
    packed = tmp_path / "a.txt.gz"
    packed.write_bytes(gzip.compress((LINE * 5000).encode()))
    facts = _find(input_files=[str(packed)], tokenization="gpt2")
    assert facts.line_bytes is None
    assert facts.bytes_per_token == bytes_per_token(50257)
    assert facts.description.endswith("estimated for English)")


def test_tokens_of_a_file_are_counted(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.arange(20_000, dtype=np.uint16) % 300)
    facts = _find(dataset_dir=str(tmp_path / "a.npy"), vocab_size=300)
    assert (facts.vocab_size, facts.text_bytes, facts.learns_tokenizer) == (300, None, False)
    assert facts.dataset_dir == tmp_path / "a.npy"
    assert facts.bytes_per_token == bytes_per_token(300)
    assert facts.train_tokens == 18_000
    assert facts.description.endswith("training tokens, vocabulary 300")
    unnamed = _find(dataset_dir=str(tmp_path / "a.npy"))
    assert unnamed.vocab_size == 50257


def test_a_stream_has_a_size_where_it_is_files(tmp_path: Path) -> None:
    text = tmp_path / "a.txt"
    text.write_text(LINE * 5000)
    facts = _find(dataset_id=str(text), vocab_size=1000)
    tokens = int(len(LINE) * 5000 / bytes_per_token(1000))
    assert (facts.train_tokens, facts.streams, facts.text_bytes) == (tokens, True, None)
    assert facts.learns_tokenizer
    assert facts.description == f"{text}, streamed: about {tokens / 1000:.1f}k training tokens"
    hub = _find(dataset_id="owner/name", tokenization="gpt2")
    assert (hub.description, hub.train_tokens) == ("owner/name, streamed", None)
    assert not hub.learns_tokenizer
    said = _find(dataset_id="owner/name", tokenization="gpt2", num_tokens=5000)
    assert said.description.endswith(": about 5k training tokens") and said.train_tokens == 5000


def test_a_data_set_of_the_hub_has_no_size_yet() -> None:
    facts = _find(input_files=["hf://owner/name"], vocab_size=2000)
    assert "how much text it has is known once it is read" in facts.description
    assert (facts.vocab_size, facts.text_bytes, facts.train_tokens) == (2000, None, None)
    assert facts.learns_tokenizer and facts.bytes_per_token == bytes_per_token(2000)


def test_facts_of_more_text() -> None:
    facts = DataFacts("some", 1000, 100, 90, True, 2.5)
    more = facts.for_tokens(9000)
    assert more.text_bytes == 25_000
    assert more.description == "some; about 9k training tokens are wanted"
    assert dataclasses.replace(facts, streams=True).for_tokens(9000).text_bytes is None


def test_rows_have_their_text_in_the_field_that_is_named(tmp_path: Path) -> None:
    """The first command that was printed failed."""
    (tmp_path / "rows.jsonl").write_text(('{"body": "' + LINE[:-1] + '"}\n') * 9)
    with pytest.raises(DataError, match="its fields: 'body'"):
        _find(input_files=[str(tmp_path / "rows.jsonl")])
    facts = _find(input_files=[str(tmp_path / "rows.jsonl")], text_field="body")
    assert facts.text_bytes
