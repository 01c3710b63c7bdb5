"""tokenizer.json: tokenizers and transformers give the same ids; what would not is refused."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lowtide.errors import DataError
from lowtide.tokenizer import UNKNOWN, Tokenizer
from lowtide.tokenizer.huggingface import tokenizer_json
from lowtide.tokenizer.patterns import PATTERN_NAMES, Pattern

Pair = tuple[bytes, bytes]
MakeText = Callable[[int, int], bytes]
DELETED = object()


@pytest.mark.parametrize("pattern", PATTERN_NAMES)
def test_round_trip(
    tmp_path: Path, small_merges: list[Pair], specials: list[str], pattern: Pattern
) -> None:
    ours = Tokenizer.from_merges(small_merges, special_tokens=specials, pattern=pattern)
    ours.save(tmp_path / "tok")
    for source in (tmp_path / "tok", str(tmp_path / "tok"), tmp_path / "tok" / "tokenizer.json"):
        again = Tokenizer.load(source)
        assert again.fingerprint == ours.fingerprint
        assert again.name == "tok"
    assert [path.name for path in (tmp_path / "tok").iterdir()] == ["tokenizer.json"]


def test_characters_round_trip(tmp_path: Path) -> None:
    ours = Tokenizer.from_characters("añ中😀\n\x00\ufeff <", ["<|endoftext|>", UNKNOWN, "<é>"])
    ours.save(tmp_path)
    again = Tokenizer.load(tmp_path)
    assert again.fingerprint == ours.fingerprint
    assert again.kind == "char"


@pytest.mark.parametrize("pattern", PATTERN_NAMES)
@given(data=st.data())
@settings(max_examples=60, deadline=None)
def test_tokenizers_gives_the_same_ids(
    pattern: Pattern,
    data: st.DataObject,
    nasty_text: st.SearchStrategy[str],
    small_merges: list[Pair],
    specials: list[str],
) -> None:
    from tokenizers import Tokenizer as HuggingFace

    text = data.draw(nasty_text)
    ours = Tokenizer.from_merges(small_merges, special_tokens=specials, pattern=pattern)
    theirs = HuggingFace.from_str(json.dumps(tokenizer_json(ours.data)))
    ids = ours.encode(text, special="allow").tolist()
    assert theirs.encode(text).ids == ids
    assert theirs.decode(ids, skip_special_tokens=False) == text


@pytest.mark.parametrize("text", ["aña中 <é>b<|endoftext|>\r\n", "", "zzz\x00a", "a\u0301"])
def test_tokenizers_reads_characters(tmp_path: Path, text: str) -> None:
    from tokenizers import Tokenizer as HuggingFace

    ours = Tokenizer.from_characters("añ中b \n\x00<", ["<|endoftext|>", UNKNOWN, "<é>"])
    ours.save(tmp_path)
    theirs = HuggingFace.from_file(str(tmp_path / "tokenizer.json"))
    assert theirs.encode(text).ids == ours.encode(text, special="allow").tolist()


def test_transformers_gives_the_same_ids(
    tmp_path: Path, small_tokenizer: Tokenizer, make_text: MakeText
) -> None:
    from transformers import PreTrainedTokenizerFast

    small_tokenizer.save(tmp_path)
    theirs = PreTrainedTokenizerFast(tokenizer_file=str(tmp_path / "tokenizer.json"))
    text = make_text(0, 5000).decode()
    ids = small_tokenizer.encode(text, special="allow").tolist()
    assert theirs(text)["input_ids"] == ids
    assert theirs.decode(ids, clean_up_tokenization_spaces=False) == text
    assert theirs.convert_tokens_to_ids("<|endoftext|>") == small_tokenizer.end_of_text_id
    assert len(theirs) == small_tokenizer.vocab_size


def with_change(contents: dict[str, Any], place: list[Any], value: Any) -> dict[str, Any]:
    changed = copy.deepcopy(contents)
    inner: Any = changed
    for key in place[:-1]:
        inner = inner[key]
    if value is DELETED:
        del inner[place[-1]]
    else:
        inner[place[-1]] = value
    return changed


SPLIT = {"type": "Split", "pattern": {"Regex": "."}, "behavior": "Isolated", "invert": False}
BYTE_LEVEL = {"type": "ByteLevel", "add_prefix_space": False, "use_regex": False}


@pytest.mark.parametrize(
    ("place", "value", "message"),
    [
        (["model"], [], "no model"),
        (["model", "type"], "Unigram", "model Unigram"),
        (["model", "vocab"], DELETED, "expected tokens with their ids"),
        (["model", "vocab"], ["a"], "expected tokens with their ids"),
        (["model", "vocab", "a"], "x", "has the id 'x'"),
        (["model", "vocab", "a"], -5, "has the id -5"),
        (["model", "vocab", "a"], 10**12, "has the id 1000000000000"),
        (["model", "vocab", "a"], 99, "share the id 99"),
        (["model", "vocab", "a"], DELETED, "no token b'a'"),
        (["model", "vocab", "z"], DELETED, "no token for byte 122"),
        (["model", "vocab", "中"], 3000, "not byte-level"),
        (["model", "merges"], DELETED, "no list of merges"),
        (["model", "merges"], "a b", "no list of merges"),
        (["model", "merges", 0], 7, "two parts"),
        (["model", "merges", 0], [["a"], "b"], "two parts"),
        (["model", "merges", 0], "a b c", "two parts"),
        (["model", "merges", 0], ["q", "q"], "no token b'qq'"),
        (["model", "byte_fallback"], True, "byte_fallback is not supported"),
        (["model", "end_of_word_suffix"], "</w>", "end_of_word_suffix is not supported"),
        (["model", "dropout"], 0.1, "dropout is not supported"),
        (["normalizer"], {"type": "NFC"}, "normalizer is not supported"),
        (["added_tokens"], "x", "no content"),
        (["added_tokens", 0, "content"], DELETED, "no content"),
        (["added_tokens", 0, "content"], "", "no content"),
        (["added_tokens", 0, "id"], DELETED, "has the id None"),
        (["added_tokens", 0, "id"], 10**12, "has the id 1000000000000"),
        (["added_tokens", 0, "id"], 50, "the id of the special token"),
        (["added_tokens", 0, "lstrip"], True, "strips its neighbours"),
        (["pre_tokenizer"], None, "unknown pre_tokenizer"),
        (["pre_tokenizer"], {"type": "Sequence"}, "unknown pre_tokenizer"),
        (["pre_tokenizer"], {"type": "Whitespace"}, "unknown pre_tokenizer"),
        (["pre_tokenizer"], BYTE_LEVEL, "unknown pre_tokenizer"),
        (["pre_tokenizer"], {**BYTE_LEVEL, "add_prefix_space": True}, "add_prefix_space"),
        (["pre_tokenizer"], SPLIT, "unknown pre_tokenizer"),
        (
            ["pre_tokenizer"],
            {"type": "Sequence", "pretokenizers": [SPLIT, BYTE_LEVEL]},
            "unknown split pattern",
        ),
        (
            ["pre_tokenizer"],
            {
                "type": "Sequence",
                "pretokenizers": [{"type": "Digits"}, {**BYTE_LEVEL, "use_regex": True}],
            },
            "unknown pre_tokenizer",
        ),
    ],
)
def test_what_would_give_other_ids_is_refused(
    tmp_path: Path, small_tokenizer: Tokenizer, place: list[Any], value: Any, message: str
) -> None:
    contents = with_change(tokenizer_json(small_tokenizer.data), place, value)
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps(contents))
    with pytest.raises(DataError, match=message) as caught:
        Tokenizer.load(path)
    assert str(caught.value.path) == str(path)


def test_other_kinds_of_models_are_named(tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps({"model": {"type": "Unigram", "vocab": [["a", -1.0]]}}))
    with pytest.raises(DataError, match="not a byte-level BPE: model Unigram") as caught:
        Tokenizer.load(path)
    assert "lowtide train-tokenizer" in str(caught.value.next_step)


def test_a_word_level_model_of_words_is_refused(tmp_path: Path) -> None:
    characters = Tokenizer.from_characters("ab")
    contents = tokenizer_json(characters.data)
    path = tmp_path / "tokenizer.json"
    for place, value, message in [
        (["pre_tokenizer"], {"type": "Whitespace"}, "not a character tokenizer"),
        (["model", "vocab", "word"], 4, "not a single character"),
        (["added_tokens", 1], contents["added_tokens"][0], "needs the special token"),
    ]:
        path.write_text(json.dumps(with_change(contents, place, value)))
        with pytest.raises(DataError, match=message):
            Tokenizer.load(path)


@pytest.mark.parametrize("data", [b"", b'{"model": {', b"\xff\xfe\x00", b"null", b"[1]"])
def test_files_that_are_no_json_are_refused(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "tokenizer.json").write_bytes(data)
    with pytest.raises(DataError, match=r"not JSON|not a tokenizer\.json") as caught:
        Tokenizer.load(tmp_path)
    assert caught.value.path == tmp_path / "tokenizer.json"


def test_a_special_token_that_files_cannot_tell_from_a_byte_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="choose another special token"):
        Tokenizer.from_merges([], special_tokens=["a"]).save(tmp_path)
