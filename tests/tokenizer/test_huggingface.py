"""tokenizer.json: tokenizers and transformers give the same ids; damage is refused."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unicodedata import normalize

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lowtide.errors import DataError
from lowtide.tokenizer import UNKNOWN, Tokenizer, huggingface
from lowtide.tokenizer.bytelevel import printable
from lowtide.tokenizer.huggingface import tokenizer_json, why_package
from lowtide.tokenizer.patterns import PATTERN_NAMES, Pattern
from lowtide.tokenizer.vocabulary import Vocabulary

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


@pytest.fixture(scope="module", params=PATTERN_NAMES)
def both(
    request: pytest.FixtureRequest, small_merges: list[Pair], specials: list[str]
) -> tuple[Tokenizer, Any]:
    """A tokenizer of ours, and what the package makes of its file."""
    from tokenizers import Tokenizer as HuggingFace

    ours = Tokenizer.from_merges(small_merges, special_tokens=specials, pattern=request.param)
    return ours, HuggingFace.from_str(json.dumps(tokenizer_json(ours.data)))


@given(data=st.data())
@settings(max_examples=60, deadline=None)
def test_tokenizers_gives_the_same_ids(
    both: tuple[Tokenizer, Any], data: st.DataObject, nasty_text: st.SearchStrategy[str]
) -> None:
    ours, theirs = both
    text = data.draw(nasty_text)
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
BYTE_LEVEL = {
    "type": "ByteLevel",
    "add_prefix_space": False,
    "trim_offsets": True,
    "use_regex": False,
}


ADDED = {
    "content": "<|new|>",
    "single_word": False,
    "lstrip": False,
    "rstrip": False,
    "normalized": False,
    "special": True,
}


@pytest.mark.parametrize(
    ("place", "value", "message"),
    [
        (["model"], [], "no model"),
        (["model", "vocab"], DELETED, "expected tokens with their ids"),
        (["model", "vocab"], ["a"], "expected tokens with their ids"),
        (["model", "vocab", "a"], "x", "has the id 'x'"),
        (["model", "vocab", "a"], -5, "has the id -5"),
        (["model", "vocab", "a"], 10**12, "has the id 1000000000000"),
        (["model", "vocab", "a"], DELETED, "no token b'a'"),
        (["model", "merges"], DELETED, "no list of merges"),
        (["model", "merges"], "a b", "no list of merges"),
        (["model", "merges", 0], 7, "two parts"),
        (["model", "merges", 0], [["a"], "b"], "two parts"),
        (["model", "merges", 0], "a b c", "two parts"),
        (["model", "merges", 0], ["q", "q"], "no token b'qq'"),
        (["added_tokens"], "x", "no content"),
        (["added_tokens", 0, "content"], DELETED, "no content"),
        (["added_tokens", 0, "id"], DELETED, "has the id None"),
        (["added_tokens", 0, "id"], 10**12, "has the id 1000000000000"),
        (["model", "type"], "Unigram", "the package tokenizers cannot read it either"),
        (["normalizer"], {"type": "Nfc"}, "the package tokenizers cannot read it either"),
        (["pre_tokenizer"], {"type": "Sequence"}, "the package tokenizers cannot read it"),
    ],
)
def test_damage_is_refused(
    tmp_path: Path, small_tokenizer: Tokenizer, place: list[Any], value: Any, message: str
) -> None:
    contents = with_change(tokenizer_json(small_tokenizer.data), place, value)
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps(contents))
    with pytest.raises(DataError, match=message) as caught:
        Tokenizer.load(path)
    assert str(caught.value.path) == str(path)


@pytest.mark.parametrize(
    ("place", "value", "reason"),
    [
        (["model", "vocab", "z"], DELETED, "no token for byte 122"),
        (["model", "vocab", "中"], 3000, "not byte-level"),
        (["model", "vocab", "a"], 99, "share the id 99"),
        (["added_tokens", 0, "content"], "", "an added token has no content"),
        (["added_tokens", 0, "id"], 50, "with the id 50, which becomes 0"),
        (["added_tokens", 0, "id"], 5000, "with the id 5000, which becomes 0"),
        (["added_tokens", 1], {**ADDED, "id": 5000}, "with the id 5000, which becomes "),
        (["model", "byte_fallback"], True, "byte_fallback True"),
        (["model", "end_of_word_suffix"], "</w>", "end_of_word_suffix '</w>'"),
        (["model", "dropout"], 0.1, "dropout 0.1"),
        (["normalizer"], {"type": "NFKC"}, "normalizer NFKC"),
        (["pre_tokenizer"], None, "pre_tokenizer none"),
        (["pre_tokenizer"], {"type": "Whitespace"}, "pre_tokenizer Whitespace"),
        (["pre_tokenizer"], BYTE_LEVEL, "pre_tokenizer ByteLevel"),
        (["pre_tokenizer"], {**BYTE_LEVEL, "add_prefix_space": True}, "add_prefix_space"),
        (["pre_tokenizer"], SPLIT, "pre_tokenizer Split"),
        (
            ["pre_tokenizer"],
            {"type": "Sequence", "pretokenizers": [SPLIT, BYTE_LEVEL]},
            "unknown split pattern",
        ),
    ],
)
def test_what_native_code_does_not_know_runs_through_the_package(
    tmp_path: Path, small_tokenizer: Tokenizer, place: list[Any], value: Any, reason: str
) -> None:
    from tokenizers import Tokenizer as HuggingFace

    contents = with_change(tokenizer_json(small_tokenizer.data), place, value)
    if value == "</w>":
        contents["model"]["vocab"] |= {"q</w>": 5000}
        contents["model"]["merges"] = []
    if contents["model"].get("vocab") and place[-1] == "z":
        contents["model"]["merges"] = []
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps(contents))
    ours = Tokenizer.load(path)
    assert ours.kind == "package"
    assert reason in ours.data.reason
    assert why_package(path) in (ours.data.reason, None)
    theirs = HuggingFace.from_file(str(path))
    theirs.model.dropout = None
    text = "It's the cat's hat, 2024! naïve\n\n  中文 <|endoftext|>q"
    assert ours.encode(text, special="allow").tolist() == theirs.encode(text).ids


def test_words_run_through_the_package(tmp_path: Path) -> None:
    contents = tokenizer_json(Tokenizer.from_characters("ab").data)
    path = tmp_path / "tokenizer.json"
    for place, value, reason in [
        (["pre_tokenizer"], {"type": "Whitespace"}, "pre_tokenizer Whitespace of words"),
        (["model", "vocab", "word"], 4, "token 'word' of more than a character"),
        (["added_tokens", 1], contents["added_tokens"][0], "without the special token"),
    ]:
        path.write_text(json.dumps(with_change(contents, place, value)))
        assert reason in Tokenizer.load(path).data.reason


@pytest.mark.parametrize("data", [b"", b'{"model": {', b"\xff\xfe\x00", b"null", b"[1]"])
def test_files_that_are_no_json_are_refused(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "tokenizer.json").write_bytes(data)
    with pytest.raises(DataError, match=r"not JSON|not a tokenizer\.json") as caught:
        Tokenizer.load(tmp_path)
    assert caught.value.path == tmp_path / "tokenizer.json"


def test_a_special_token_that_files_cannot_tell_from_a_byte_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="choose another special token"):
        Tokenizer.from_merges([], special_tokens=["a"]).save(tmp_path)


def test_why_a_model_without_merges_needs_the_package(tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps({"model": {"type": "WordPiece", "vocab": {"a": 0}}}))
    assert "WordPiece" in str(why_package(path))
    path.write_text("{}")
    assert why_package(path) is None  # damaged: whoever loads it says so


@pytest.mark.parametrize("composes", [False, True])
def test_bytes_that_no_utf8_has_may_lack_tokens(
    tmp_path: Path, make_text: MakeText, composes: bool
) -> None:
    """As in the vocabularies of GPT-NeoX and OLMo 1: they need no package."""
    from tokenizers import Tokenizer as HuggingFace
    from tokenizers import models, normalizers, pre_tokenizers, trainers

    never = {0xC0, 0xC1, *range(0xF5, 0x100)}
    letters = [printable(bytes([byte])) for byte in range(256) if byte not in never]
    theirs = HuggingFace(models.BPE())
    theirs.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    if composes:
        theirs.normalizer = normalizers.NFC()
    text = make_text(5, 20_000).decode("utf-8", "ignore")
    trainer = trainers.BpeTrainer(
        vocab_size=600, initial_alphabet=letters, limit_alphabet=243, show_progress=False
    )
    theirs.train_from_iterator([text], trainer)
    theirs.save(str(tmp_path / "tokenizer.json"))
    ours = Tokenizer.load(tmp_path)
    assert (ours.kind, ours.data.reason) == ("bpe", "")
    other = text[::-1] + "\U0010ffff\ufffd\u00ef\u0301"
    for part in (text, other, "\ufffd" * 50):
        assert list(ours.encode(part)) == theirs.encode(part, add_special_tokens=False).ids
    for byte in sorted(never):  # what is no text is U+FFFD when it comes back, as with any tokens
        given = b"a" + bytes([byte]) + b"\xbf\xbd b"
        assert ours.decode(ours.encode(given)).startswith("a\ufffd")
    ours.save(tmp_path / "again")
    again = Tokenizer.load(tmp_path / "again")
    assert again.fingerprint == ours.fingerprint
    assert list(again.encode(text)) == list(ours.encode(text))


def test_every_character_that_nfc_changes(tmp_path: Path) -> None:
    from tokenizers import Tokenizer as HuggingFace
    from tokenizers import models, normalizers, pre_tokenizers, trainers

    theirs = HuggingFace(models.BPE())
    theirs.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    theirs.normalizer = normalizers.NFC()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    theirs.train_from_iterator([], trainers.BpeTrainer(initial_alphabet=alphabet))
    theirs.save(str(tmp_path / "tokenizer.json"))
    ours = Tokenizer.load(tmp_path)
    characters = [chr(code) for code in range(0x110000) if not 0xD800 <= code < 0xE000]
    changed = [c for c in characters if normalize("NFC", c) != c]
    assert len(changed) > 1000
    for text in [*(f"a{c}b" for c in changed), " ".join(changed), "".join(changed)]:
        assert list(ours.encode(text)) == theirs.encode(text, add_special_tokens=False).ids


def test_a_blank_that_the_token_before_it_includes_is_no_token_again(
    small_tokenizer: Tokenizer, tmp_path: Path
) -> None:
    """Of equal blanks that strip both sides the first includes all others, as in tokenizers."""
    from tokenizers import AddedToken
    from tokenizers import Tokenizer as HuggingFace

    small_tokenizer.save(tmp_path)
    theirs = HuggingFace.from_file(str(tmp_path / "tokenizer.json"))
    tokens = [AddedToken("  ", lstrip=True, rstrip=True), AddedToken("<x>", rstrip=True)]
    theirs.add_tokens([*tokens, AddedToken("\t", rstrip=True)])
    theirs.save(str(tmp_path / "tokenizer.json"))
    ours = Tokenizer.load(tmp_path)
    assert ours.kind == "bpe"
    for text in ("a" + " " * 9 + "b", "<x>\t  \t a", " " * 40, "\t\t\t", "  <x>\t\t  <x>"):
        assert ours.encode(text).tolist() == theirs.encode(text).ids, text


def test_characters_have_a_table_as_long_as_their_ids(tmp_path: Path) -> None:
    vocabulary = Vocabulary.from_characters("ab\u00e9")
    huggingface.write_tokenizer_json(tmp_path / "tokenizer.json", vocabulary)
    found = huggingface.load_tokenizer_json(tmp_path / "tokenizer.json")
    assert (found.kind, found.tokens) == ("char", vocabulary.tokens)
    contents = json.loads((tmp_path / "tokenizer.json").read_bytes())
    contents["model"]["vocab"]["c"] = 9
    (tmp_path / "tokenizer.json").write_text(json.dumps(contents))
    found = huggingface.load_tokenizer_json(tmp_path / "tokenizer.json")
    assert found.tokens == (*vocabulary.tokens, b"", b"", b"", b"", b"c")


def test_the_small_sections_of_both_kinds() -> None:
    bpe = huggingface.tokenizer_json(Vocabulary.from_merges([(b"a", b"b")]))
    model = bpe.pop("model")
    assert {name: model[name] for name in model if name not in ("vocab", "merges")} == {
        "type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
        "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False,
        "ignore_merges": False,
    }  # fmt: skip
    level = {
        "type": "ByteLevel",
        "add_prefix_space": False,
        "trim_offsets": True,
        "use_regex": True,
    }
    assert bpe == {
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": [],
        "normalizer": None, "pre_tokenizer": level, "post_processor": None, "decoder": level,
    }  # fmt: skip
    char = huggingface.tokenizer_json(Vocabulary.from_characters("ab", special_tokens=["<unk>"]))
    vocab = {"<unk>": 0, "a": 1, "b": 2}
    assert char["model"] == {"type": "WordLevel", "unk_token": "<unk>", "vocab": vocab}
    assert char["decoder"] == {"type": "Fuse"}
    assert char["pre_tokenizer"] == {
        "type": "Split", "pattern": {"Regex": "[\\s\\S]"}, "behavior": "Isolated", "invert": False,
    }  # fmt: skip


@pytest.mark.parametrize(
    "setting", ["byte_fallback", "continuing_subword_prefix", "end_of_word_suffix", "dropout"]
)
def test_settings_that_change_ids_are_left_to_the_package(tmp_path: Path, setting: str) -> None:
    contents = huggingface.tokenizer_json(Vocabulary.from_merges([(b"a", b"b")]))
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps(contents))
    assert huggingface.why_package(path) is None
    contents["model"][setting] = "x"
    path.write_text(json.dumps(contents))
    assert huggingface.why_package(path) == f"{setting} 'x'"


def test_an_error_names_the_file_and_what_to_do(tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    path.write_text('{"model": {"type": "BPE", "vocab": {"a": 0}}}')
    with pytest.raises(DataError) as caught:
        huggingface.load_tokenizer_json(path)
    assert str(caught.value.path) == str(path)
    assert caught.value.next_step == (
        "take the file as it was published, or train a tokenizer: lowtide train-tokenizer"
    )


@pytest.mark.parametrize(
    ("name", "step"),
    [
        ("config.json", "bring back the tokenizer of this model"),
        ("dataset_metadata.json", "bring back the tokenizer of this dataset"),
    ],
)
@pytest.mark.parametrize("is_damaged", [False, True])
def test_no_other_tokenizer_is_advised_for_a_model_or_a_dataset(
    tmp_path: Path, name: str, step: str, is_damaged: bool
) -> None:
    (tmp_path / name).write_text("{}")
    if is_damaged:
        (tmp_path / "tokenizer.json").write_text("{")
    with pytest.raises(DataError) as caught:
        Tokenizer.load(tmp_path)
    assert caught.value.next_step is not None and caught.value.next_step.startswith(step)
