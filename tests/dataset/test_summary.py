"""The final output of commands, word for word."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from lowtide.corpus.removals import RULE_TEXTS
from lowtide.dataset.summary import (
    describe_append,
    describe_cleaning,
    describe_preparation,
    describe_pretokenization,
    describe_verification,
)


def report(**rules: dict[str, Any]) -> dict[str, Any]:
    return {"documents_in": 1200, "lines_in": 3400, "bytes_in": 5 << 20, "rules": rules}


def info(**changes: Any) -> Any:
    tokens = changes.pop("tokens", {"train": 900, "val": 100})
    metadata = {"total_tokens": 1000, "total_shards": 3, "tokenization": "gpt2"}
    return SimpleNamespace(
        root=Path("data/mine"),
        metadata={**metadata, "split": {"val_fraction": 0.1, "mode": "documents"}, **changes},
        vocab_size=50257,
        dtype_name="uint16",
        num_tokens=tokens.__getitem__,
        shards={"train": [1, 2], "val": [3]},
    )


READ = "Read: 1,200 documents, 3,400 lines, 5.0 MiB"
DATASET = [
    "Total tokens: 1,000  (gpt2, vocabulary 50,257, uint16)",
    "Total shards: 3",
    "Train shards: 2 in data/mine/train  (900 tokens, 90.0 %)",
    "Val shards: 1 in data/mine/val  (100 tokens, 10.0 %)",
    "Next: lowtide train --dataset-dir data/mine --model-name NAME",
]


def test_rules_have_counts_and_examples_where_something_was_removed() -> None:
    removing = next(rule for rule in RULE_TEXTS if rule.startswith("line"))
    changing = next(
        rule for rule in RULE_TEXTS if not rule.startswith(("line", "duplicate", "document"))
    )
    for length in (76, 77):
        row = {"count": 7, "bytes": 2048, "examples": ["x" * length, "y"]}
        lines = describe_cleaning(report(**{removing: row, changing: row})).splitlines()
        assert lines == [
            READ,
            f"{'7':>14}  {RULE_TEXTS[removing]} (2.0 KiB)",
            f"{'':>16}e.g. {'x' * 76}{'…' if length == 77 else ''}",
            f"{'7':>14}  {RULE_TEXTS[changing]} (2.0 KiB)",
        ]
    bare = {removing: {"count": 1, "bytes": 1, "examples": []}}
    assert len(describe_cleaning(report(**bare)).splitlines()) == 2


def prepared(**changes: Any) -> Any:
    result = {"report": report(), "notices": ["so"], "was_there": False, "dataset": info()}
    result["info"] = result["dataset"]  # of the dataset that was appended to
    return SimpleNamespace(**{**result, **changes})


def test_a_preparation_says_what_was_made_of_what() -> None:
    assert describe_preparation(prepared()).splitlines() == [READ, "note: so", *DATASET]
    dry = describe_preparation(prepared(dataset=None)).splitlines()
    assert dry == [READ, "note: so", "Nothing was written (dry run)."]
    there = describe_preparation(prepared(was_there=True)).splitlines()
    assert there[0].startswith("data/mine: is there already, made of these inputs")
    assert there[1:] == DATASET
    assert describe_preparation(prepared(was_there=True, dataset=None)).splitlines() == dry


@pytest.mark.parametrize(
    ("val", "wanted", "told"), [(125, 0.1, False), (126, 0.1, True), (74, 0.1, True), (0, 0, False)]
)
def test_a_share_that_is_far_from_what_was_asked_for_is_told(
    val: int, wanted: float, told: bool
) -> None:
    made = info(tokens={"train": 1000 - val, "val": val}, split={"val_fraction": wanted})
    lines = describe_preparation(prepared(dataset=made)).splitlines()
    assert any("were asked for" in line for line in lines) is told


def test_validation_at_the_end_of_the_text_is_told() -> None:
    tail = (
        "Validation is the end of the text: with so few documents, or so long ones, whole ones "
        "would miss the share."
    )
    made = info(split={"val_fraction": 0.1, "mode": "tail"})
    lines = describe_preparation(prepared(dataset=made)).splitlines()
    assert lines[-2:] == [tail, DATASET[-1]]
    assert tail not in describe_preparation(prepared())
    none = info(tokens={"train": 100, "val": 0}, split={"val_fraction": 0.0, "mode": "tail"})
    assert tail not in describe_preparation(prepared(dataset=none))
    empty = info(tokens={"train": 0, "val": 0}, total_tokens=0)
    assert "(0 tokens, 0.0 %)" in describe_preparation(prepared(dataset=empty))


def test_an_append_says_what_was_added() -> None:
    added = prepared(added_tokens=1234, added_shards=2)
    expected = [READ, "note: so", "Added: 1,234 tokens in 2 shards", *DATASET]
    assert describe_append(added).splitlines() == expected
    nothing = prepared(was_there=True)
    assert describe_append(nothing).splitlines() == [
        "so",
        "data/mine: nothing to add; nothing was touched",
    ]


def test_a_pretokenization_says_sizes_and_rates() -> None:
    result = SimpleNamespace(
        was_there=False, path=Path("a.npy"), num_tokens=1000, text_bytes=4096, seconds=2.0,
        dtype=np.dtype("uint16"), tokenizer="gpt2", is_plain=True,
    )  # fmt: skip
    assert describe_pretokenization(result).splitlines() == [  # pyright: ignore
        "Total: 1,000 tokens from 4,096 bytes (gpt2, uint16)",
        "  bytes per token: 4.10, 2.0 KiB/s",
        "Saved to: a.npy",
        "  file size: 2.0 KiB; training reads parts of it, never all at once",
    ]
    result.was_there = True
    assert describe_pretokenization(result).startswith("a.npy: is there already")  # pyright: ignore
    result.was_there, result.num_tokens, result.seconds = False, 0, 0.0
    assert "\n  3.7 TiB/s\n" in describe_pretokenization(result)  # pyright: ignore
    result.num_tokens, result.is_plain = 9, False  # compressed: no rate of tokens
    assert "\n  3.7 TiB/s\n" in describe_pretokenization(result)  # pyright: ignore


def test_a_verification_says_whether_all_is_well() -> None:
    numbers = {"num_strangers": 0, "num_unnamed": 0}
    result = SimpleNamespace(num_shards=1200, num_tokens=5000, problems=[], **numbers)
    first = "1,200 shards, 5,000 tokens checked"
    assert describe_verification(result).splitlines() == [first, "all is well"]  # pyright: ignore
    result.num_strangers = 2
    moved = "2 of them were moved in by hand and have no checksum"
    endings = {0: "", 1: "; nothing says which tokenizer made 1"}
    for unnamed, ending in {**endings, 2: "; nothing says which tokenizer made them"}.items():
        result.num_unnamed = unnamed
        lines = describe_verification(result).splitlines()  # pyright: ignore
        assert lines[1:] == [moved + ending, "all is well"]
    result.problems = ["bad"]
    assert len(describe_verification(result).splitlines()) == 2  # pyright: ignore
