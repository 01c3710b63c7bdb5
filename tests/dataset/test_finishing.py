"""The settings that decide a preparation's result, as in its plan."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from lowtide.dataset import finishing
from lowtide.dataset.finishing import find_other_setting, plan_settings
from lowtide.dataset.settings import PrepareSettings


@dataclass(frozen=True, kw_only=True)
class _LaterSettings(PrepareSettings):
    """Settings of a later version, with one rule more."""

    max_marks: int = 0


def test_a_setting_that_came_later_changes_no_plan_by_its_default() -> None:
    """Otherwise every dataset would differ with the next version."""
    given: dict[str, Any] = {"input_files": ("a.txt",), "out_dir": Path("out")}
    plan = plan_settings(PrepareSettings(**given))
    assert plan_settings(_LaterSettings(**given)) == plan
    assert plan_settings(_LaterSettings(**given, max_marks=3)) == {**plan, "max_marks": 3}


def test_a_setting_of_either_plan_alone_is_a_difference() -> None:
    plan = plan_settings(PrepareSettings(input_files=("a.txt",), out_dir=Path("out")))
    assert find_other_setting(plan, {**plan, "rules": "c4"}) == ("--rules", "none", "c4")
    assert find_other_setting({**plan, "rules": "c4"}, plan) == ("--rules", "c4", "none")
    assert find_other_setting({**plan, "memory": "1GiB"}, plan) is None  # has no effect
    assert find_other_setting(plan, {**plan, "max_marks": 3}) == ("--max-marks", "none", 3)


@pytest.mark.parametrize(
    ("before", "now", "expected"),
    [
        ({"seed": 1}, {"seed": 1}, None),
        ({"seed": 1}, {"seed": 2}, ("--seed", 1, 2)),
        ({}, {"seed": 2}, ("--seed", None, 2)),  # in every plan: None in an old one
        ({"rules": "c4"}, {}, ("--rules", "c4", "none")),
        ({}, {"rules": "c4"}, ("--rules", "none", "c4")),
        ({"language_model": "a", "language_model_checksum": "1"},
         {"language_model": "b", "language_model_checksum": "1"}, None),  # moved
        ({"language_model": "a", "language_model_checksum": "1"},
         {"language_model": "a", "language_model_checksum": "2"},
         ("--language-model", "a", "a with other content")),
        ({"seed": 1, "score": "a", "score_checksum": "1"},
         {"seed": 2, "score": "b", "score_checksum": "2"}, ("--score", "a", "b")),
        ({"decontaminate": ["a"], "decontaminate_checksum": "1"},
         {"decontaminate": ["b"], "decontaminate_checksum": "1"}, None),
        ({"made_up": 1}, {}, None),
        ({"out_dir": "a"}, {}, None),
    ],
)  # fmt: skip
def test_the_first_setting_that_differs_is_named(
    before: dict[str, Any], now: dict[str, Any], expected: Any
) -> None:
    assert finishing.find_other_setting(before, now) == expected


@pytest.mark.parametrize(
    ("fraction", "tokens", "few"),
    [(0.1, 1, True), (0.1, 2, False), (0.0, 0, True), (0.0, 1, False)],
)
def test_a_dataset_has_a_token_of_each_split(fraction: float, tokens: int, few: bool) -> None:
    settings: Any = SimpleNamespace(val_fraction=fraction, out_dir=Path("out"))
    assert finishing.has_too_few(settings, tokens) is few
    error = finishing.too_few_tokens(settings, tokens)
    counted = {0: "0 tokens are left", 1: "1 token is left", 2: "2 tokens are left"}
    assert error.message.startswith(f"{counted[tokens]} after") and error.path == Path("out")


@pytest.mark.parametrize("found", [True, False])
def test_the_metadata_of_what_was_made(monkeypatch: pytest.MonkeyPatch, found: bool) -> None:
    written: list[Any] = []
    monkeypatch.setattr(
        finishing.layout, "write_metadata", lambda root, **more: written.append((root, more))
    )
    monkeypatch.setattr(finishing, "plan_settings", lambda settings: {"seed": 1})
    monkeypatch.setattr(finishing, "iter_sources", lambda *given: "described")
    finders = [SimpleNamespace(notices=lambda: ["second"])] if found else []
    monkeypatch.setattr(finishing, "list_finders", lambda near, items: finders)
    near: Any = SimpleNamespace(write_log=lambda root: ("near", root)) if found else None
    items: Any = SimpleNamespace(write_report=lambda root: ("items", root)) if found else None
    sources: Any = SimpleNamespace(iter_json=lambda rows: [{"file": rows}])
    report: Any = SimpleNamespace(as_json=lambda: {"r": 1})
    shards: Any = {"train": ["shard"], "val": []}
    contents: Any = None
    made = finishing.Made(
        "tail", shards, report, ["first"], contents, sources, {"rows": 1} if found else None, near,
        items,
    )  # fmt: skip
    settings: Any = SimpleNamespace(
        out_dir=Path("out"), tokenization="gpt2", tokens_per_shard=5, val_fraction=0.25
    )
    tokenizer: Any = SimpleNamespace(vocab_size=300, fingerprint="f", end_of_text_id=7)
    inputs: Any = [SimpleNamespace(path=Path("a"))]
    reading: Any = None
    finishing.write_dataset(settings, inputs, reading, tokenizer, made)
    ((root, given),) = written
    more = given.pop("more")
    assert list(given.pop("input_files")) == ["a"] and list(more.pop("sources")) == [
        {"file": "described"}
    ]
    assert root == Path("out")
    assert given == {
        "shards": shards, "vocab_size": 300, "tokenizer_fingerprint": "f", "tokenization": "gpt2",
        "tokens_per_shard": 5,
    }  # fmt: skip
    logs = {"near_duplicates": ("near", root), "decontamination": ("items", root)} if found else {}
    assert more == {
        "split": {"mode": "tail", "val_fraction": 0.25}, "end_of_text_id": 7, "cleaning": {"r": 1},
        "notices": ["first", *(["second"] if found else [])], "settings": {"seed": 1}, **logs,
        **({"seen": [{"rows": 1}]} if found else {}),
    }  # fmt: skip
