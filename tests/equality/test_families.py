"""Ids equal the package's for tokenizers of every published family, natively or through it."""

from __future__ import annotations

import json
import lzma
import unicodedata
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lowtide.errors import UsageError
from lowtide.generation.prompts import Prompt, encode_end
from lowtide.tokenizer import Tokenizer
from lowtide.tokenizer.composing import compose_nfc
from lowtide.tokenizer.limits import EncodingLimits

from .families import FAMILIES, NATIVE, load_theirs, load_theirs_as_text, save
from .texts import make_text

ODD = [
    "",
    " ",
    "word sword word, words  <mask> x\n<mask>\n <|right|>  <|both|>\t a",
    "e\u0301e\u0301 cafe\u0301 caf\u00e9 e\u0301 \u1112\u1161\u11ab \u212b",
    "q\u0323\u0307 q\u0307\u0323 \u0340 \u0958 \u2126 \u037e",
    " <think>a</think>|||IP_ADDRESS|||<|im_start|>  12345 x   5<|endoftext|>",
    "foo  5 \u00bd \u0663 1 000   7\n8 's 'S'ſ don't DON'T I'Ve",
    "a" + " " * 60 + "b" + " " * 24 + "\n" + " " * 23,
    "\u0927\u0941\u092e \u0e01\u0e34\u0e19 \u1ea4n \u0416\u0306 ПриветМир HTTPServer//\r\n\r\n/x",
]

_ATOMS = [
    *"aZ09 .'/<>|_\n\t", "  ", "   ", "\r\n", "é", "e\u0301", "\u0301", "\u0323", "\u1112",
    "\u1161", "\u11ab", "한", "中", "Ж", "क", "\u093f", "½", "٣", "\u3000", "\u2028", "\u212b",
    "😀", "'s", "'LL", "<mask>", "<|right|>", "<|both|>", "word", "café", "cafe\u0301",
    "e\u0301e\u0301", "<think>", "<|im_start|>", "<|endoftext|>", "|||IP_ADDRESS|||", "<0x41>",
    "▁", "</s>",
]  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("families")


@cache
def load_ours(name: str, folder: Path) -> Tokenizer:
    return Tokenizer.load(save(name, folder / name))


def assert_equal(name: str, folder: Path, text: str) -> None:
    ours = load_ours(name, folder)
    theirs = load_theirs(name).encode(text, add_special_tokens=False).ids
    assert ours.encode(text, special="allow").tolist() == theirs
    as_text = load_theirs_as_text(name).encode(text, add_special_tokens=False).ids
    assert ours.encode(text, special="text").tolist() == as_text


@pytest.mark.parametrize("name", FAMILIES)
def test_ids_are_equal(name: str, folder: Path) -> None:
    assert load_ours(name, folder).kind == ("bpe" if name in NATIVE else "package")
    for text in [*ODD, *(make_text(seed, num_words=500) for seed in range(50, 56))]:
        assert_equal(name, folder, text)


@pytest.mark.parametrize("name", FAMILIES)
@given(parts=st.lists(st.sampled_from(_ATOMS) | st.characters(max_codepoint=0x2FFFF), max_size=30))
@settings(max_examples=40)
def test_ids_of_random_text_are_equal(name: str, folder: Path, parts: list[str]) -> None:
    text = "".join(parts).encode("utf-8", "replace").decode()
    assert_equal(name, folder, text)


@cache
def corpus_samples() -> list[str]:
    """The beginnings of published corpora, where they are on this machine."""
    roots = [root / "shared" / "corpora" for root in list(Path(__file__).parents)[3:5]]
    root = next((root for root in roots if root.exists()), None)
    if root is None:
        return []
    samples: list[str] = []
    for path in sorted(root.rglob("*")):
        if path.is_file():
            with lzma.open(path) if path.suffix == ".xz" else path.open("rb") as file:
                samples.append(file.read(6_000).decode("utf-8", "replace"))
    return samples


@pytest.mark.parametrize("name", FAMILIES)
def test_ids_of_published_corpora_are_equal(name: str, folder: Path) -> None:
    if not corpus_samples():
        pytest.skip("../shared/corpora is not on this machine")
    for text in corpus_samples():
        assert_equal(name, folder, text)


@pytest.mark.parametrize("name", FAMILIES)
def test_a_long_text_has_the_ids_of_the_whole(name: str, folder: Path) -> None:
    """Of many pieces, that is: they are smaller here (tests/tokenizer has those of real size)."""
    size = 4 << 10
    text = make_text(60, num_words=size // 2)
    assert len(text) > 3 * size
    limits = EncodingLimits(piece_characters=size, window_bytes=size)
    ours = Tokenizer(load_ours(name, folder).data, limits=limits)
    theirs = load_theirs(name).encode(text, add_special_tokens=False).ids
    assert ours.encode(text, special="allow").tolist() == theirs
    parts = [text[at : at + 997] for at in range(0, len(text), 997)]
    assert list(ours.encode_iterable(parts)) == theirs
    as_bytes = text.encode()
    parts_of_bytes = [as_bytes[at : at + 997] for at in range(0, len(as_bytes), 997)]
    assert list(ours.encode_iterable(parts_of_bytes)) == theirs


@pytest.mark.parametrize("name", FAMILIES)
def test_saved_it_is_the_same(name: str, folder: Path, tmp_path: Path) -> None:
    import tokenizers

    ours = load_ours(name, folder)
    ours.save(tmp_path)
    again = Tokenizer.load(tmp_path)
    assert again.fingerprint == ours.fingerprint
    assert again.special_tokens == ours.special_tokens
    theirs = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    text = "".join(ODD) + make_text(61, num_words=200)
    ids = load_theirs(name).encode(text, add_special_tokens=False).ids
    assert again.encode(text, special="allow").tolist() == ids
    assert theirs.encode(text, add_special_tokens=False).ids == ids
    assert again.decode(ids) == theirs.decode(ids, skip_special_tokens=False)
    assert again.vocab_size == ours.vocab_size == max(theirs.get_vocab().values()) + 1


@pytest.mark.parametrize("name", FAMILIES)
def test_a_file_and_a_batch_have_the_ids_of_the_text(
    name: str, folder: Path, tmp_path: Path
) -> None:
    import numpy as np

    ours = load_ours(name, folder)
    text = "".join(ODD) + make_text(62, num_words=2000)
    (tmp_path / "a.txt").write_bytes(text.encode())
    wanted = load_theirs(name).encode(text, add_special_tokens=False).ids
    ours.encode_file(tmp_path / "a.txt", tmp_path / "a.bin", num_threads=2)
    assert np.fromfile(tmp_path / "a.bin", "<u2").tolist() == wanted
    batch = ours.encode_batch([text, "", text], special="allow", num_threads=2)
    assert [ids.tolist() for ids in batch][0::2] == [wanted, wanted]


def test_what_differs_between_families_is_in_the_fingerprint(folder: Path) -> None:
    found = {name: load_ours(name, folder).fingerprint for name in FAMILIES}
    assert len(set(found.values())) == len(FAMILIES)


@pytest.mark.parametrize(
    ("name", "place", "value"),
    [
        ("qwen3", ["normalizer"], None),
        ("qwen3", ["added_tokens", -1, "special"], True),
        ("qwen3", ["added_tokens", -1, "rstrip"], True),
        ("qwen3", ["added_tokens", -1, "normalized"], True),
        ("smollm2", ["pre_tokenizer", "pretokenizers", 0, "individual_digits"], False),
        ("olmo2", ["model", "ignore_merges"], True),
    ],
)
def test_every_part_is_in_the_fingerprint(
    name: str, place: list[Any], value: Any, folder: Path, tmp_path: Path
) -> None:
    contents = json.loads(load_theirs(name).to_str())
    inner = contents
    for key in place[:-1]:
        inner = inner[key]
    assert inner[place[-1]] != value
    inner[place[-1]] = value
    (tmp_path / "tokenizer.json").write_text(json.dumps(contents))
    assert Tokenizer.load(tmp_path).fingerprint != load_ours(name, folder).fingerprint


def test_composing_is_theirs_for_every_character() -> None:
    from tokenizers import normalizers

    theirs = normalizers.NFC()
    codes = [code for code in range(0x110000) if not 0xD800 <= code < 0xE000]
    assigned = [code for code in codes if code < 0x33480 or 0xE0000 <= code < 0xE0200]
    around = (("", ""), ("a", "\u0323\u0301"), ("a\u0301", ""), ("\u0f71", ""))
    for before, after in around:
        some = assigned if before else codes
        text = before + f"{after}\n{before}".join(map(chr, some)) + after
        assert compose_nfc(text.encode()).decode() == theirs.normalize_str(text)
    text = "\n".join(unicodedata.normalize("NFD", chr(code)) for code in assigned)
    assert compose_nfc(text.encode()).decode() == theirs.normalize_str(text)


def test_long_runs_of_marks_are_composed_like_theirs() -> None:
    from tokenizers import normalizers

    for marks in ("\u0323\u0301", "\u0301\u0345\u05b4\u0323", "\u0f72\u0f71\u0f73", "\u07fd\u0323"):
        text = "e" + marks * 100_000
        assert compose_nfc(text.encode()).decode() == normalizers.NFC().normalize_str(text)


def test_text_is_composed_wherever_it_needs_it(folder: Path) -> None:
    """Also at the borders of the stretches that are composed together, and beside stray bytes."""
    ours, theirs = load_ours("qwen3.5", folder), load_theirs("qwen3.5")
    for filler in ("x" * 4090, "\u0e01\u0e34" * 700, "\u1112\u1161\u11ab" * 500, "한" * 1365):
        for tail in ("e\u0301", "\u0301", "\u11a8", "\u0323\u0307e", "q\u0307\u0323" * 9, "aé"):
            for count in range(5):
                text = "e\u0301" + filler + "b" * count + tail + filler + tail
                assert ours.encode(text).tolist() == theirs.encode(text).ids
    stray = b"e\xcc\x81 \xff\xcc e\xcc\x81"
    assert ours.decode_bytes(ours.encode(stray)) == b"\xc3\xa9 \xff\xcc \xc3\xa9"


@pytest.mark.parametrize("name", NATIVE)
def test_prompts_are_cut_where_ids_do_not_change(name: str, folder: Path) -> None:
    ours = load_ours(name, folder)
    text = make_text(63, num_words=6000) + "".join(ODD)
    wanted = ours.encode(text, special="text").tolist()
    for context in (1, 40, 700):
        assert encode_end(ours, Prompt(text), context) == wanted[-context:]


@pytest.mark.parametrize("name", ["qwen3", "gpt-neox", "roberta"])
def test_other_formats_cannot_hold_it(name: str, folder: Path, tmp_path: Path) -> None:
    for write in (
        load_ours(name, folder).save_vocabulary,
        lambda place: load_ours(name, folder).save_tiktoken(place / "a.tiktoken"),
    ):
        with pytest.raises(UsageError, match="cannot hold"):
            write(tmp_path)
