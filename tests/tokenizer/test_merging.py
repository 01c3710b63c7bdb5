"""Merges equal the plain reference and Hugging Face's trainer: in memory, and in rounds."""

from __future__ import annotations

import json
import random
import tempfile
from collections import Counter
from collections.abc import Callable, Mapping
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lowtide import _native
from lowtide.tokenizer import reference
from lowtide.tokenizer.bytelevel import unprintable

Pair = tuple[bytes, bytes]
TIE_BREAKS = pytest.mark.parametrize("tie_break", ["huggingface", "cs336"])

# Few letters, so that ties abound and different pairs could spell the same token.
few_letters = st.sampled_from([b"a", b"ab", b"abc", b"ab \n", bytes(range(256))]).flatmap(
    lambda letters: st.lists(st.sampled_from(list(letters)), min_size=1, max_size=16).map(bytes)
)
pieces_with_counts = st.dictionaries(few_letters, st.integers(1, 9), max_size=12)
ANY_LENGTH = 1 << 40
longest_tokens = st.sampled_from([ANY_LENGTH, 1, 2, 3, 4, 7])


def learn(
    counts: Mapping[bytes, int],
    *,
    target: int,
    tie_break: str,
    min_frequency: int = 1,
    merges_per_call: int = 1 << 40,
    rounds: type[_native.RoundLearner] | None = None,
    memory_bytes: int = 0,
    longest_token: int = ANY_LENGTH,
) -> list[Pair]:
    folder = tempfile.gettempdir()
    return learn_with(
        _native.MergeLearner(tie_break, longest_token=longest_token)
        if rounds is None
        else rounds(
            tie_break, file_dir=folder, memory_bytes=memory_bytes, longest_token=longest_token
        ),
        counts,
        target=target,
        min_frequency=min_frequency,
        merges_per_call=merges_per_call,
    )


FULL_SPEED = pytest.mark.parametrize(
    "kind", [_native.MergeLearner, _native.WideMergeLearner], ids=["short", "wide"]
)


def learn_with(
    learner: _native.MergeLearner | _native.RoundLearner,
    counts: Mapping[bytes, int],
    *,
    target: int,
    min_frequency: int = 1,
    merges_per_call: int = 1 << 40,
) -> list[Pair]:
    learner.take_items(list(counts.items()))
    learner.build()
    while learner.learn(target, merges_per_call, min_frequency):
        assert learner.merges_done == len(learner.merges()) // 3
    return pairs_of(learner)


def pairs_of(learner: _native.MergeLearner | _native.RoundLearner) -> list[Pair]:
    tokens = {byte: bytes([byte]) for byte in range(256)}
    merges: list[Pair] = []
    for left, right, token in np.asarray(learner.merges()).reshape(-1, 3).tolist():
        merges.append((tokens[left], tokens[right]))
        assert token == len(tokens)  # no token is made twice
        tokens[token] = tokens[left] + tokens[right]
    return merges


@TIE_BREAKS
@FULL_SPEED
@pytest.mark.parametrize("num_threads", [2, 5])
def test_words_of_a_pair_are_divided_among_threads(
    make_text: Callable[[int, int], bytes],
    kind: type[_native.MergeLearner],
    tie_break: str,
    num_threads: int,
) -> None:
    text = make_text(4, 20_000) + b" aaaa aaaaa ababab abaab bbb" * 3
    counts = reference.count_pieces([text], pattern="gpt2", specials=[])
    alone = _native.MergeLearner(tie_break)
    together = kind(tie_break, num_threads=num_threads, many_words=1)
    merges = learn_with(alone, counts, target=700)
    assert len(merges) == 700
    assert learn_with(together, counts, target=700) == merges


@FULL_SPEED
@pytest.mark.parametrize("length", [*range(2, 20), 31, 32, 33, 34, 57])
def test_a_pair_is_found_at_any_place_of_a_word(
    kind: type[_native.MergeLearner], length: int
) -> None:
    """Beside words that begin as a pair would go on, which belong to nobody's pair."""
    letters = bytes(range(ord("0"), ord("z")))
    counts: dict[bytes, int] = {}
    for place in range(length - 1):
        filler = bytes(letters[(place + i) % 60] for i in range(length))
        counts[filler[:place] + b"xy" + filler[place + 2 :]] = 1000 + place
        counts[b"y" + filler[: place + 1]] = 2
        counts[filler[: place + 1] + b"x"] = 2
    options = {"target": 20, "min_frequency": 1}
    found = learn_with(kind("huggingface"), counts, **options)
    assert found[0] == (b"x", b"y")
    assert found == reference.learn_merges(counts, tie_break="huggingface", **options)


@pytest.mark.parametrize("spills", [0, 1, 2])
def test_pieces_of_a_counter_are_taken_by_threads(
    tmp_path: Path, make_text: Callable[[int, int], bytes], spills: int
) -> None:
    """From its tables, from files where all was spilled, and from both."""
    found: list[list[int]] = []
    for threads in (1, 3):
        folder = tmp_path / str(threads)
        folder.mkdir()
        counter = _native.PieceCounter(
            "gpt2", [], num_threads=2, table_bytes=64 << 20, window_bytes=1 << 20,
            spill_dir=str(folder),
        )  # fmt: skip
        for part in range(3):
            counter.count_texts([make_text(part, 3000) + b" a" * 7 + b" long" * (9 * part)])
            if part < spills:
                counter.checkpoint()
        learner = _native.MergeLearner("huggingface", num_threads=threads, many_words=9)
        learner.take(counter)
        assert learner.num_words > 300 and counter.distinct >= learner.num_words
        learner.build()
        learner.learn(400, 1 << 40, 1)
        found.append(np.asarray(learner.merges()).tolist())
    assert found[0] == found[1] and len(found[0]) == 3 * 400


@TIE_BREAKS
@given(
    counts=pieces_with_counts,
    target=st.integers(0, 60),
    min_frequency=st.integers(1, 6),
    longest_token=longest_tokens,
)
@settings(max_examples=70, deadline=None)
def test_merges_equal_the_reference(
    tie_break: str, counts: dict[bytes, int], target: int, min_frequency: int, longest_token: int
) -> None:
    options = {"target": target, "tie_break": tie_break, "min_frequency": min_frequency}
    options["longest_token"] = longest_token
    assert learn(counts, **options) == reference.learn_merges(counts, **options)


@TIE_BREAKS
@given(
    counts=pieces_with_counts | st.dictionaries(few_letters, st.integers(250, 600), max_size=40),
    target=st.integers(0, 60),
    min_frequency=st.integers(1, 6),
    memory_bytes=st.sampled_from([20_000, 1 << 20]),
    rounds=st.sampled_from([_native.RoundLearner, _native.WideRoundLearner]),
    longest_token=longest_tokens,
)
@settings(max_examples=70, deadline=None)
def test_merges_in_rounds_equal_the_reference(
    tie_break: str,
    counts: dict[bytes, int],
    target: int,
    min_frequency: int,
    memory_bytes: int,
    rounds: type[_native.RoundLearner],
    longest_token: int,
) -> None:
    options = {"target": target, "tie_break": tie_break, "min_frequency": min_frequency}
    options["longest_token"] = longest_token
    found = learn(counts, **options, rounds=rounds, memory_bytes=memory_bytes, merges_per_call=7)
    assert found == reference.learn_merges(counts, **options)


def many_words(letters: str, *, length: int, num_words: int) -> dict[bytes, int]:
    source = random.Random(4)
    words = ("".join(source.choices(letters, k=length)).encode() for _ in range(num_words))
    return {word: 1 + number % 3 for number, word in enumerate(words)}


# So little memory that each text takes many rounds, the segments of which do not fit at first; the
# last one has so many rare pairs that their sums must be counted in parts.
@TIE_BREAKS
@pytest.mark.parametrize(
    ("letters", "length", "num_words", "target", "memory_bytes", "parts"),
    [
        ("abcd", 16, 4000, 400, 1 << 19, 1),
        ("天地玄黄宇宙洪荒日月盈昃辰宿列张寒来暑往秋收冬藏", 7, 4000, 500, 1 << 19, 1),
        ("abcdefghijklmnopqrstuvwxyz", 12, 8000, 900, 700_000, 8),
    ],
)
def test_many_rounds_equal_one_in_memory(
    tie_break: str,
    letters: str,
    length: int,
    num_words: int,
    target: int,
    memory_bytes: int,
    parts: int,
    tmp_path: Path,
) -> None:
    counts = many_words(letters, length=length, num_words=num_words)
    learner = _native.RoundLearner(tie_break, file_dir=str(tmp_path), memory_bytes=memory_bytes)
    found = learn_with(learner, counts, target=target, merges_per_call=64)
    assert (learner.rounds >= 50, learner.parts) == (True, parts), learner.rounds
    assert found == learn(counts, target=target, tie_break=tie_break)
    assert list(tmp_path.iterdir()) == []


# Numbers counted up: so many pairs of digits are equally frequent that no threshold is enough.
@TIE_BREAKS
@pytest.mark.parametrize(("memory_bytes", "target"), [(100_000, 160), (1 << 20, 800)])
def test_pairs_of_the_same_counts_are_merged_in_rounds(
    tie_break: str, memory_bytes: int, target: int, tmp_path: Path
) -> None:
    counts = {b" %05d" % number: 1 for number in range(40_000)}
    learner = _native.RoundLearner(tie_break, file_dir=str(tmp_path), memory_bytes=memory_bytes)
    found = learn_with(learner, counts, target=target, merges_per_call=64)
    assert found == learn(counts, target=target, tie_break=tie_break)


# Most segments are rare pairs, which take more of the learner than segments of many symbols do.
@pytest.mark.parametrize("memory_bytes", [3 << 20, 6 << 20])
def test_rounds_begin_with_room_for_merges(memory_bytes: int, tmp_path: Path) -> None:
    counts = many_words("abcdefghijklmnop", length=6, num_words=30_000)
    learner = _native.RoundLearner("huggingface", file_dir=str(tmp_path), memory_bytes=memory_bytes)
    learner.take_items(list(counts.items()))
    while learner.learn(20_000, 64, 1) and learner.rounds < 20:
        pass
    assert (learner.merges_done, learner.rounds < 20) == (20_000, True)
    whole = learn_with(_native.MergeLearner("huggingface"), counts, target=20_000)
    assert pairs_of(learner) == whole


def test_the_file_gets_shorter_as_pieces_become_tokens(tmp_path: Path) -> None:
    learner = _native.RoundLearner("cs336", file_dir=str(tmp_path), memory_bytes=2 << 20)
    counts = many_words("abcd", length=16, num_words=4000)
    learner.take_items(list(counts.items()))
    before = learner.file_bytes
    assert before == 2 * 18 * len(counts)
    while learner.learn(1200, 64, 1):
        pass
    assert learner.file_bytes < before / 2


# Counts of more than 15 bits take several units of the file; 2^32 and more, all that a bound holds.
@pytest.mark.parametrize("rounds", [_native.RoundLearner, _native.WideRoundLearner])
def test_large_counts_in_rounds(rounds: type[_native.RoundLearner]) -> None:
    counts = {b"abc": (1 << 47) + 5, b"bcd": (1 << 33) + 1, b"cd": 1 << 33, b"xyz": 40_000}
    options = {"target": 6, "tie_break": "huggingface"}
    found = learn(counts, **options, rounds=rounds, memory_bytes=1 << 20)
    assert found == reference.learn_merges(counts, **options)


# All pairs reach what a bound can say, and more of them than are counted exactly at once.
@TIE_BREAKS
@pytest.mark.parametrize("memory_bytes", [0, 20_000])
def test_many_large_counts_in_rounds(tie_break: str, memory_bytes: int) -> None:
    letters = "abcdefghijk"
    counts = {
        (left + right).encode(): (1 << 33) + (7919 * number % 1000)
        for number, (left, right) in enumerate(product(letters, letters))
    }
    counts |= {b"%d" % (7919 * number % 9973): number << 30 for number in range(1, 90)}
    options = {"target": 20, "tie_break": tie_break}
    found = learn(counts, **options, rounds=_native.RoundLearner, memory_bytes=memory_bytes)
    assert found == reference.learn_merges(counts, **options)


def test_a_long_word_is_cut_where_its_pairs_are_rare(tmp_path: Path) -> None:
    counts = {bytes(random.Random(8).choices(b"acgt", k=300_000)): 1}
    learner = _native.RoundLearner("huggingface", file_dir=str(tmp_path), memory_bytes=4 << 20)
    found = learn_with(learner, counts, target=400)
    assert learner.rounds > 3
    assert found == learn(counts, target=400, tie_break="huggingface")


def test_a_segment_that_fits_no_round_is_a_memory_error(tmp_path: Path) -> None:
    learner = _native.RoundLearner("huggingface", file_dir=str(tmp_path), memory_bytes=1 << 20)
    with pytest.raises(MemoryError, match="too small to learn merges"):
        learn_with(learner, {b"a" * 300_000: 1}, target=5)


def test_more_tokens_than_short_symbols_can_tell_apart() -> None:
    counts = {b"%d" % number: 1 for number in range(100_000, 180_000)}
    options = {"target": 70_000, "tie_break": "cs336", "memory_bytes": 1 << 26}
    with pytest.raises(RuntimeError, match="more tokens than symbols"):
        learn(counts, **options, rounds=_native.RoundLearner)
    with pytest.raises(RuntimeError, match="more tokens than symbols"):
        learn(counts, **options)
    in_rounds = learn(counts, **options, rounds=_native.WideRoundLearner)
    assert len(in_rounds) == 70_000
    assert learn_with(_native.WideMergeLearner("cs336"), counts, target=70_000) == in_rounds


def train_with_hugging_face(
    counts: Mapping[bytes, int], *, target: int, longest_token: int | None = None
) -> list[Pair]:
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    trainer = trainers.BpeTrainer(
        vocab_size=256 + target,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
        max_token_length=None if longest_token is None else longest_token + 1,
    )
    words = (piece.decode() for piece, count in counts.items() for _ in range(count))
    tokenizer.train_from_iterator(words, trainer)
    rows = json.loads(tokenizer.to_str())["model"]["merges"]
    return [(unprintable(left), unprintable(right)) for left, right in rows]


text_pieces = st.text(alphabet="ab", min_size=1, max_size=14) | st.text(
    alphabet="abcé \n", min_size=1, max_size=14
)


@given(
    counts=st.dictionaries(text_pieces.map(str.encode), st.integers(1, 4), max_size=12),
    target=st.integers(1, 60),
    longest_token=st.sampled_from([None, 2, 3, 5]),
)
@settings(max_examples=75, deadline=None)
def test_merges_equal_hugging_face(
    counts: dict[bytes, int], target: int, longest_token: int | None
) -> None:
    longest = ANY_LENGTH if longest_token is None else longest_token
    ours = learn(counts, target=target, tie_break="huggingface", longest_token=longest)
    assert ours == train_with_hugging_face(counts, target=target, longest_token=longest_token)


def test_merges_of_text_equal_hugging_face(make_text: Callable[[int, int], bytes]) -> None:
    text = make_text(0, 60_000)
    counts = reference.count_pieces([text], pattern="gpt2", specials=[])
    ours = learn(counts, target=1500, tie_break="huggingface")
    assert ours == train_with_hugging_face(counts, target=1500)


@FULL_SPEED
def test_counts_may_exceed_32_bits(kind: type[_native.MergeLearner]) -> None:
    most = (1 << 32) - 1
    counts = {b"ab": (1 << 33) + 1, b"cd": 1 << 33, b"ef": most + 1, b"gh": most, b"ij": most - 1}
    counts |= {b"cdcd": 2, b"bc": 3, b"ghi": 5, b"hij": 1}
    found = learn_with(kind("huggingface"), counts, target=9)
    assert found[:2] == [(b"c", b"d"), (b"a", b"b")]
    assert found == reference.learn_merges(counts, target=9, tie_break="huggingface")


@TIE_BREAKS
def test_learning_ends_when_no_pair_is_left(tie_break: str) -> None:
    assert learn({b"abc": 1}, target=100, tie_break=tie_break) == reference.learn_merges(
        {b"abc": 1}, target=100, tie_break=tie_break
    )
    assert len(learn({b"abc": 1}, target=100, tie_break=tie_break)) == 2
    assert learn({}, target=100, tie_break=tie_break) == []
    assert learn({b"a": 7, b"b": 2}, target=100, tie_break=tie_break) == []


@pytest.mark.parametrize("rounds", [None, _native.RoundLearner])
@pytest.mark.parametrize(("longest_token", "longest"), [(None, 1 << 16), (1024, 1024)])
def test_tokens_are_as_long_as_text_that_repeats_itself(
    rounds: type[_native.RoundLearner] | None, longest_token: int | None, longest: int
) -> None:
    counts = {b"a" * (1 << 16): 1, b"xyz" * 20_000: 2}
    limit = {"longest_token": longest_token} if longest_token else {}
    if rounds is None:
        learner = _native.MergeLearner("huggingface", **limit)
    else:
        learner = rounds(
            "huggingface", file_dir=tempfile.gettempdir(), memory_bytes=64 << 20, **limit
        )
    merges = learn_with(learner, counts, target=400)
    sizes = [len(left + right) for left, right in merges]
    assert max(sizes) == longest
    assert len(sizes) < 60


@TIE_BREAKS
def test_a_long_piece_of_one_letter(tie_break: str) -> None:
    counts = Counter({b"a" * 5000: 2, b"ab" * 1001: 1})
    assert learn(counts, target=14, tie_break=tie_break) == reference.learn_merges(
        counts, target=14, tie_break=tie_break
    )


@TIE_BREAKS
@FULL_SPEED
@pytest.mark.parametrize("letters", ["ACGT", "ab", "abcdefghijklmnopqrstuvwxyz"])
def test_long_pieces(kind: type[_native.MergeLearner], tie_break: str, letters: str) -> None:
    """Pairs at any distance from each other and from the end, in text that is one piece."""
    source = random.Random(7)
    counts = Counter(
        bytes(source.choices(letters.encode(), k=length)) for length in (31, 40, 63, 2001)
    )
    wanted = reference.learn_merges(counts, target=100, tie_break=tie_break)
    for num_threads in (1, 3):
        learner = kind(tie_break, num_threads=num_threads, many_words=1)
        assert learn_with(learner, counts, target=100) == wanted


def test_an_unwritable_folder_is_an_error_that_names_it(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="No such file") as caught:
        _native.RoundLearner("huggingface", file_dir=str(tmp_path / "gone"), memory_bytes=0)
    assert caught.value.filename == str(tmp_path / "gone")
    with pytest.raises(ValueError, match="unknown tie-break"):
        _native.MergeLearner("coin")
