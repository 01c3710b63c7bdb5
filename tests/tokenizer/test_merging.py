"""Merges equal the plain reference and Hugging Face's trainer: in memory, in little, in files."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lowtide import _native
from lowtide.tokenizer import reference
from lowtide.tokenizer.bytelevel import unprintable

Pair = tuple[bytes, bytes]
TIE_BREAKS = pytest.mark.parametrize("tie_break", ["huggingface", "cs336"])

# Few letters, so that ties abound and different pairs spell the same token.
few_letters = st.sampled_from([b"a", b"ab", b"abc", b"ab \n", bytes(range(256))]).flatmap(
    lambda letters: st.lists(st.sampled_from(list(letters)), min_size=1, max_size=16).map(bytes)
)
pieces_with_counts = st.dictionaries(few_letters, st.integers(1, 9), max_size=12)


def learn(
    counts: Mapping[bytes, int],
    *,
    target: int,
    tie_break: str,
    min_frequency: int = 1,
    merges_per_call: int = 1 << 40,
    file_dir: str = "",
    resident_limit: int = 0,
    compact: type[_native.CompactLearner] | None = None,
    memory_bytes: int = 0,
) -> list[Pair]:
    learner = (
        _native.MergeLearner(tie_break, file_dir=file_dir, resident_limit=resident_limit)
        if compact is None
        else compact(tie_break, memory_bytes=memory_bytes)
    )
    learner.take_items(list(counts.items()))
    learner.build()
    while learner.learn(target, merges_per_call, min_frequency):
        assert learner.merges_done > 0
    tokens = {byte: bytes([byte]) for byte in range(256)}
    merges: list[Pair] = []
    for left, right, token in learner.merges().reshape(-1, 3).tolist():
        merges.append((tokens[left], tokens[right]))
        assert (
            tokens.setdefault(token, tokens[left] + tokens[right]) == tokens[left] + tokens[right]
        )
    return merges


@TIE_BREAKS
@given(counts=pieces_with_counts, target=st.integers(0, 60), min_frequency=st.integers(1, 6))
@settings(max_examples=300, deadline=None)
def test_merges_equal_the_reference(
    tie_break: str, counts: dict[bytes, int], target: int, min_frequency: int
) -> None:
    options = {"target": target, "tie_break": tie_break, "min_frequency": min_frequency}
    assert learn(counts, **options) == reference.learn_merges(counts, **options)


@TIE_BREAKS
@given(
    counts=pieces_with_counts | st.dictionaries(few_letters, st.integers(250, 600), max_size=40),
    target=st.integers(0, 60),
    min_frequency=st.integers(1, 6),
    memory_bytes=st.sampled_from([0, 2_000, 1 << 20]),
    compact=st.sampled_from([_native.CompactLearner, _native.WideCompactLearner]),
)
@settings(max_examples=300, deadline=None)
def test_merges_in_little_memory_equal_the_reference(
    tie_break: str,
    counts: dict[bytes, int],
    target: int,
    min_frequency: int,
    memory_bytes: int,
    compact: type[_native.CompactLearner],
) -> None:
    options = {"target": target, "tie_break": tie_break, "min_frequency": min_frequency}
    found = learn(counts, **options, compact=compact, memory_bytes=memory_bytes, merges_per_call=7)
    assert found == reference.learn_merges(counts, **options)


# No memory at all counts pairs in many passes and lists no words; a little lists some of them.
@TIE_BREAKS
@pytest.mark.parametrize("memory_bytes", [0, 400_000, 1 << 30])
def test_text_in_little_memory_equals_text_in_memory(
    tie_break: str, memory_bytes: int, make_text: Callable[[int, int], bytes]
) -> None:
    counts = reference.count_pieces([make_text(9, 80_000)], pattern="gpt2", specials=[])
    in_memory = learn(counts, target=1500, tie_break=tie_break)
    assert len(in_memory) >= 1500
    assert in_memory == learn(
        counts,
        target=1500,
        tie_break=tie_break,
        compact=_native.CompactLearner,
        memory_bytes=memory_bytes,
    )


@TIE_BREAKS
def test_many_pieces_are_moved_together_as_they_get_shorter(tie_break: str) -> None:
    source = random.Random(4)
    counts = {bytes(source.choices(b"abcd", k=16)): 1 + number % 3 for number in range(20_000)}
    assert learn(counts, target=1200, tie_break=tie_break) == learn(
        counts,
        target=1200,
        tie_break=tie_break,
        compact=_native.CompactLearner,
        memory_bytes=2 << 20,
    )


def test_more_tokens_than_short_symbols_can_tell_apart() -> None:
    counts = {b"%d" % number: 1 for number in range(100_000, 180_000)}
    with pytest.raises(RuntimeError, match="more tokens than symbols"):
        learn(
            counts,
            target=70_000,
            tie_break="cs336",
            compact=_native.CompactLearner,
            memory_bytes=1 << 26,
        )


@TIE_BREAKS
@given(counts=pieces_with_counts)
@settings(max_examples=60, deadline=None)
def test_arrays_in_files_change_nothing(
    tie_break: str, counts: dict[bytes, int], tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("arrays")
    in_memory = learn(counts, target=60, tie_break=tie_break)
    in_files = learn(
        counts,
        target=60,
        tie_break=tie_break,
        file_dir=str(folder),
        resident_limit=1,
        merges_per_call=1,
    )
    assert in_files == in_memory
    assert list(folder.iterdir()) == []


@TIE_BREAKS
def test_text_in_files_equals_text_in_memory(
    tie_break: str, tmp_path: Path, make_text: Callable[[int, int], bytes]
) -> None:
    counts = reference.count_pieces([make_text(9, 80_000)], pattern="gpt2", specials=[])
    in_memory = learn(counts, target=1500, tie_break=tie_break)
    assert len(in_memory) >= 1500
    assert in_memory == learn(
        counts, target=1500, tie_break=tie_break, file_dir=str(tmp_path), resident_limit=1
    )


def train_with_hugging_face(counts: Mapping[bytes, int], *, target: int) -> list[Pair]:
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    trainer = trainers.BpeTrainer(
        vocab_size=256 + target,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
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
)
@settings(max_examples=150, deadline=None)
def test_merges_equal_hugging_face(counts: dict[bytes, int], target: int) -> None:
    ours = learn(counts, target=target, tie_break="huggingface")
    assert ours == train_with_hugging_face(counts, target=target)


def test_merges_of_text_equal_hugging_face(make_text: Callable[[int, int], bytes]) -> None:
    text = make_text(0, 60_000)
    counts = reference.count_pieces([text], pattern="gpt2", specials=[])
    ours = learn(counts, target=1500, tie_break="huggingface")
    assert ours == train_with_hugging_face(counts, target=1500)


def test_counts_may_exceed_32_bits() -> None:
    counts = {b"ab": (1 << 33) + 1, b"cd": 1 << 33, b"bc": 3}
    assert learn(counts, target=3, tie_break="huggingface") == [
        (b"a", b"b"),
        (b"c", b"d"),
        (b"b", b"c"),
    ]


@TIE_BREAKS
def test_learning_ends_when_no_pair_is_left(tie_break: str) -> None:
    assert learn({b"abc": 1}, target=100, tie_break=tie_break) == reference.learn_merges(
        {b"abc": 1}, target=100, tie_break=tie_break
    )
    assert len(learn({b"abc": 1}, target=100, tie_break=tie_break)) == 2
    assert learn({}, target=100, tie_break=tie_break) == []
    assert learn({b"a": 7, b"b": 2}, target=100, tie_break=tie_break) == []


@TIE_BREAKS
def test_a_long_piece_of_one_letter(tie_break: str) -> None:
    counts = Counter({b"a" * 5000: 2, b"ab" * 1001: 1})
    assert learn(counts, target=14, tie_break=tie_break) == reference.learn_merges(
        counts, target=14, tie_break=tie_break
    )


def test_an_unwritable_folder_is_an_error_that_names_it(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="No such file") as caught:
        _native.MergeLearner("huggingface", file_dir=str(tmp_path / "gone"), resident_limit=0)
    assert caught.value.filename == str(tmp_path / "gone")
    with pytest.raises(ValueError, match="unknown tie-break"):
        _native.MergeLearner("coin", file_dir="", resident_limit=0)
