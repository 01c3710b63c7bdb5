"""tekken.json: the ids of tiktoken behind the special tokens, as mistral-common has them."""

import base64
import json
from pathlib import Path
from typing import Any

import pytest
import tiktoken
from hypothesis import given
from hypothesis import strategies as st

from lowtide.errors import DataError
from lowtide.tokenizer import Tokenizer
from lowtide.tokenizer.patterns import EXPRESSIONS
from lowtide.tokenizer.tekken import is_tekken
from lowtide.tokenizer.training import train_tokenizer

TEXT = "Low tide, ПриветМир: don't swim 1234 miles! 日本語 naïve\r\n\n  HTTPServer "


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> dict[bytes, int]:
    path = tmp_path_factory.mktemp("text") / "text.txt"
    path.write_text(TEXT * 9, encoding="utf-8")
    options = {"input": [path], "vocab_size": 330, "pattern": "tekken", "special_tokens": ()}
    tokens = train_tokenizer(**options).tokenizer.data.tokens  # pyright: ignore[reportArgumentType]
    ordinary = [token for token in tokens if token != b"<|endoftext|>"]
    return {token: rank for rank, token in enumerate(ordinary)}


def contents(ranks: dict[bytes, int], **changes: Any) -> dict[str, Any]:
    rows = [
        {"rank": rank, "token_bytes": base64.b64encode(token).decode(), "token_str": None}
        for token, rank in ranks.items()
    ]
    config = {
        "pattern": EXPRESSIONS["tekken"],
        "num_vocab_tokens": len(rows),
        "default_vocab_size": len(rows) + 25,
        "default_num_special_tokens": 30,
        "version": "v3",
    }
    return {"config": {**config, **changes.pop("config", {})}, "vocab": rows, **changes}


def write(path: Path, data: Any) -> Path:
    path.write_text(json.dumps(data))
    return path


@pytest.fixture(scope="module")
def pair(
    ranks: dict[bytes, int], tmp_path_factory: pytest.TempPathFactory
) -> tuple[Tokenizer, tiktoken.Encoding]:
    folder = tmp_path_factory.mktemp("model")
    write(folder / "tekken.json", contents(ranks))
    kept = {token: rank for token, rank in ranks.items() if rank < len(ranks) - 5}
    theirs = tiktoken.Encoding(
        "tekken", pat_str=EXPRESSIONS["tekken"], mergeable_ranks=kept, special_tokens={}
    )
    return Tokenizer.load(folder), theirs


@given(st.text(max_size=60) | st.text("Low tide'sПриветМир 12\n", max_size=60))
def test_ids_are_tiktokens_behind_the_special_ones(
    pair: tuple[Tokenizer, tiktoken.Encoding], text: str
) -> None:
    ours, theirs = pair
    text = text.encode("utf-8", "replace").decode()
    assert ours.encode(text, special="text").tolist() == [
        token + 30 for token in theirs.encode_ordinary(text)
    ]


def test_special_tokens_come_first_and_those_without_a_name_have_one(
    pair: tuple[Tokenizer, tiktoken.Encoding], tmp_path: Path
) -> None:
    tokenizer, _ = pair
    specials = tokenizer.special_tokens
    assert specials["<unk>"] == 0 and specials["[INST]"] == 3 and specials["<SPECIAL_29>"] == 29
    assert len(specials) == 30
    tokenizer.save(tmp_path / "saved")  # as tokenizer.json, which says the same
    again = Tokenizer.load(tmp_path / "saved")
    assert again.encode(TEXT).tolist() == tokenizer.encode(TEXT).tolist()
    assert again.special_tokens == specials


def test_named_special_tokens_are_taken(ranks: dict[bytes, int], tmp_path: Path) -> None:
    rows = [{"rank": rank, "token_str": f"<{rank}>", "is_control": True} for rank in range(4)]
    data = contents(ranks, special_tokens=rows)
    found = Tokenizer.load(write(tmp_path / "tekken.json", data)).special_tokens
    assert list(found)[:5] == ["<0>", "<1>", "<2>", "<3>", "<SPECIAL_4>"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"config": {"pattern": "x+"}}, "unknown split pattern"),
        ({"config": {"default_vocab_size": 10}}, "special"),
        ({"config": {"default_vocab_size": 1 << 40}}, "not a tekken.json"),
        ({"config": {"default_vocab_size": "many"}}, "not numbers"),
        ({"config": {"default_vocab_size": 900}}, "config says"),
        ({"vocab": [{"rank": 1, "token_bytes": "AA=="}]}, "rank 1 where 0 should be"),
        ({"vocab": [{"rank": 0, "token_bytes": "?"}]}, "not a tekken.json"),
        ({"vocab": [7]}, "not a tekken.json"),
        ({"special_tokens": [{"rank": 1, "token_str": "a"}]}, "come twice"),
        ({"special_tokens": 7}, "not a tekken.json"),
    ],
)
def test_files_that_are_none_are_refused(
    ranks: dict[bytes, int], changes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(DataError, match=message):
        Tokenizer.load(write(tmp_path / "tekken.json", contents(ranks, **changes)))


@pytest.mark.parametrize(
    ("data", "is_one"),
    [
        ({"vocab": [], "config": {}}, True),
        ({"vocab": [], "config": {}, "model": {}}, False),
        ({"vocab": {}, "config": {}}, False),
        ({"vocab": [], "config": []}, False),
        ([], False),
    ],
)
def test_a_tekken_is_known_by_its_parts(data: object, is_one: bool) -> None:
    assert is_tekken(data) is is_one
