"""Comparisons measure what they say, and refuse what they cannot."""

import importlib.util
import xml.etree.ElementTree as ElementTree

import pytest

from lowtide.errors import UsageError
from lowtide.planning import comparison
from lowtide.planning.comparison import CompareSettings, compare_memory, describe_pairs


def test_loading_and_its_picture(tmp_path):
    picture = tmp_path / "memory.svg"
    settings = CompareSettings(what=("loading",), tokens="1M", picture=picture)
    (pair,) = compare_memory(settings)
    assert pair.ordinary_bytes > pair.sparing_bytes + 30_000_000  # 48 bytes of a million tokens
    assert "loading 1,000,000 tokens" in describe_pairs([pair])
    root = ElementTree.fromstring(picture.read_text())
    assert sum(element.tag.endswith("rect") for element in root.iter()) == 2


def test_what_is_compared():
    has_8bit = importlib.util.find_spec("bitsandbytes") is not None
    assert ("optimizer" in CompareSettings().pairs) == has_8bit
    assert CompareSettings(input=("a.txt",)).pairs == ("tokenizer",)
    with pytest.raises(UsageError, match="no input files"):
        CompareSettings(what=("tokenizer",))
    with pytest.raises(UsageError, match="size is"):
        CompareSettings(size="big")


def test_both_sides_differ_by_what_is_compared(monkeypatch):
    asked = []
    monkeypatch.setattr(
        comparison, "_training_peak", lambda settings, options: asked.append(options) or len(asked)
    )
    settings = CompareSettings(size="3M")
    pair = comparison._compare_optimizers(settings)
    assert (pair.ordinary_bytes, pair.sparing_bytes) == (1, 2)
    short = {"seq_len": 64, "batch_size": 1, "optimizer": "adamw"}
    assert asked == [short, {**short, "use_8bit_optimizer": True}]
    pair = comparison._compare_checkpointing(settings)
    assert (pair.ordinary_bytes, pair.sparing_bytes) == (3, 4)
    long = {"seq_len": 256, "batch_size": 8, "optimizer": "adamw"}
    assert asked[2:] == [long, {**long, "activation_checkpointing": True}]
