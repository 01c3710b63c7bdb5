"""Text whose pieces are cut in parts, and vocabularies that list every pair, give the same ids."""

from __future__ import annotations

import json
import random
from itertools import product
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lowtide import Tokenizer
from lowtide.tokenizer.bytelevel import printable

# Kana, Chinese and Korean, some with the same last bytes, and what stands between them.
_LETTERS = "中丮亮弭문가각あいィ国國"
_OTHERS = [" ", "a", "é", "。", "，", "🙂", "\n"]


def draw_text(source: random.Random, length: int) -> str:
    """Clauses of two to twelve letters, now and then something else."""
    clauses: list[str] = []
    while sum(map(len, clauses)) < length:
        clauses.append("".join(source.choices(_LETTERS, k=source.randint(2, 12))))
        clauses.append(source.choice(_OTHERS))
    return "".join(clauses)


def draw_tokens(source: random.Random) -> list[bytes]:
    """Single bytes, characters, pairs of them, and some that end or begin within a character."""
    tokens = [bytes([byte]) for byte in range(256)]
    spelled = [letter.encode() for letter in _LETTERS]
    for _ in range(source.randrange(40)):
        text = "".join(source.choices([*_LETTERS, " ", "。"], k=source.randint(2, 4))).encode()
        begin = source.choice([0, 0, 0, 1, 2])
        spelled.append(text[begin : len(text) - source.choice([0, 0, 0, 1, 2])])
    halves = [part for token in spelled for part in (token[:2], token[1:]) if source.random() < 0.5]
    ordered = sorted({*spelled, *halves} - set(tokens), key=len)
    if source.random() < 0.3:
        source.shuffle(ordered)
    return tokens + [token for token in ordered if token]


def write_tokenizer(
    folder: Path, tokens: list[bytes], *, ignore_merges: bool, source: random.Random | None = None
) -> Path:
    """A tokenizer.json whose merges are all pairs that spell a token, as those of Llama 3 are.

    With a source, those of a token are in any order.
    """
    known = set(tokens)
    merges: list[tuple[bytes, bytes]] = []
    for token in tokens:
        pairs = [(token[:cut], token[cut:]) for cut in range(1, len(token))]
        pairs = [pair for pair in pairs if known.issuperset(pair)]
        merges += source.sample(pairs, len(pairs)) if source else pairs
    model = {
        "type": "BPE",
        "ignore_merges": ignore_merges,
        "vocab": {printable(token): id for id, token in enumerate(tokens)},
        "merges": [[printable(left), printable(right)] for left, right in merges],
    }
    step = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}
    contents = {"version": "1.0", "added_tokens": [], "pre_tokenizer": step, "model": model}
    path = folder / "tokenizer.json"
    path.write_text(json.dumps(contents))
    return path


@given(seed=st.integers(0, 1 << 30), ignore_merges=st.booleans())
@settings(max_examples=60, deadline=None)
def test_ids_are_those_of_the_package(
    tmp_path_factory: pytest.TempPathFactory, seed: int, ignore_merges: bool
) -> None:
    tokenizers = pytest.importorskip("tokenizers")
    source = random.Random(seed)
    path = write_tokenizer(
        tmp_path_factory.mktemp("tok"), draw_tokens(source), ignore_merges=ignore_merges
    )
    ours = Tokenizer.load(path)
    assert ours.data.kind == "bpe"
    theirs = tokenizers.Tokenizer.from_file(str(path))
    for _ in range(3):  # from the second on, text is cut
        text = draw_text(source, 400)
        expected = theirs.encode(text, add_special_tokens=False).ids
        assert ours.encode(text).tolist() == expected


@given(seed=st.integers(0, 1 << 30), ignore_merges=st.booleans())
@settings(max_examples=60, deadline=None)
def test_of_several_pairs_that_spell_a_token_the_right_one_counts(
    tmp_path_factory: pytest.TempPathFactory, seed: int, ignore_merges: bool
) -> None:
    """More merges than tokens; some tokens are made of later ones, and some are never made."""
    tokenizers = pytest.importorskip("tokenizers")
    source = random.Random(seed)
    words = [bytes(word) for size in range(2, 8) for word in product(b"ab", repeat=size)]
    longest = source.choice([5, 6, 7])
    share = source.uniform(0.5, 1)
    kept = [word for word in words if len(word) <= longest and source.random() < share]
    if source.random() < 0.7:
        kept.sort(key=lambda word: len(word) + source.random() * source.choice([1, 3, 9]))
    tokens = [bytes([byte]) for byte in range(256)] + kept
    folder = tmp_path_factory.mktemp("tok")
    path = write_tokenizer(folder, tokens, ignore_merges=ignore_merges, source=source)
    ours, theirs = Tokenizer.load(path), tokenizers.Tokenizer.from_file(str(path))
    for _ in range(20):
        text = " ".join("".join(source.choices("ab", k=source.randint(1, 24))) for _ in range(20))
        expected = theirs.encode(text, add_special_tokens=False).ids
        assert ours.encode(text).tolist() == expected


def test_a_part_is_not_taken_for_a_token_that_only_whole_pieces_are(tmp_path: Path) -> None:
    """A token that no merges make: a piece may be that token, a part of a piece may not."""
    characters = [letter.encode() for letter in "中国あ"]
    tokens = [bytes([byte]) for byte in range(256)]
    tokens += [*(character[:2] for character in characters), *characters]
    path = write_tokenizer(tmp_path, [*tokens, "中国".encode()], ignore_merges=True)
    contents = json.loads(path.read_text())
    assert contents["model"]["merges"].pop() == [printable(c) for c in characters[:2]]
    path.write_text(json.dumps(contents))
    ours = Tokenizer.load(path)
    ours.encode("ああああああああ\n" * 3000)  # so that what follows is cut
    assert ours.encode("中国").tolist() == [len(tokens)]
    assert ours.encode("ああああああああ中国").tolist() == [*[261] * 8, 259, 260]
    assert ours.encode("中国ああああああああ").tolist() == [259, 260, *[261] * 8]


def test_random_text_of_a_published_vocabulary() -> None:
    """All of CJK, in pieces of any length: parts have two or three ids a character."""
    source = random.Random(7)
    ours = Tokenizer.load("gpt2")
    codes = [*range(0x3041, 0x3097), *range(0x4E00, 0x9FFF, 7), *range(0xAC00, 0xD7A3, 5)]
    words = ["".join(map(chr, source.choices(codes, k=source.randint(1, 30)))) for _ in range(4000)]
    expected = ours.native.merge_pieces([word.encode() for word in words], together=False)
    line = ours.encode("\n").tolist()
    ids = ours.encode("".join(word + "\n" for word in words)).tolist()
    assert ids == [id for row in expected for id in (*row, *line)]
