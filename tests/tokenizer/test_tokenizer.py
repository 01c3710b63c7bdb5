"""Encoding equals the plain reference, by every way in; decoding gives every byte back."""

from __future__ import annotations

import copy
import gzip
import os
import pickle
import random
import threading
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lowtide import _native
from lowtide.errors import DataError, LowtideError, UsageError
from lowtide.tokenizer import Tokenizer, reference
from lowtide.tokenizer.formats import ranked_vocabulary
from lowtide.tokenizer.limits import EncodingLimits
from lowtide.tokenizer.patterns import PATTERN_NAMES, Pattern
from lowtide.tokenizer.vocabulary import Vocabulary

from ..forks import run_children

Pair = tuple[bytes, bytes]
MakeText = Callable[[int, int], bytes]


def encode_by_reference(
    text: bytes, merges: list[Pair], *, specials: list[str], pattern: Pattern = "gpt2"
) -> list[int]:
    """Return ids as Tokenizer.from_merges numbers them."""
    ids: dict[bytes, int] = {}
    for id, token in enumerate(
        [*(bytes([byte]) for byte in range(256)), *(left + right for left, right in merges)]
    ):
        ids.setdefault(token, id + len(specials))
    found: list[int] = []
    for part, special in reference.split_specials(text, specials):
        if special:
            found.append(specials.index(part.decode()))
        else:
            tokens = reference.encode(part, merges=merges, pattern=pattern)
            found += [ids[token] for token in tokens]
    return found


@pytest.fixture(scope="module", params=PATTERN_NAMES)
def ours(
    request: pytest.FixtureRequest, small_merges: list[Pair], specials: list[str]
) -> Tokenizer:
    return Tokenizer.from_merges(small_merges, special_tokens=specials, pattern=request.param)


@given(data=st.data())
@settings(max_examples=30, deadline=None)
def test_encodes_as_the_reference(
    ours: Tokenizer,
    data: st.DataObject,
    nasty_bytes: st.SearchStrategy[bytes],
    small_merges: list[Pair],
    specials: list[str],
) -> None:
    text, pattern = data.draw(nasty_bytes), ours.data.pattern
    plain = encode_by_reference(text, small_merges, specials=[], pattern=pattern)
    assert ours.encode(text, special="text").tolist() == [id + len(specials) for id in plain]
    allowed = encode_by_reference(text, small_merges, specials=specials, pattern=pattern)
    assert ours.encode(text, special="allow").tolist() == allowed


@given(data=st.data())
@settings(max_examples=75, deadline=None)
def test_decoding_gives_every_byte_back(
    data: st.DataObject, nasty_bytes: st.SearchStrategy[bytes], small_tokenizer: Tokenizer
) -> None:
    text = data.draw(nasty_bytes)
    for mode in ("text", "allow"):
        ids = small_tokenizer.encode(text, special=mode)
        assert ids.dtype == np.int32
        assert small_tokenizer.decode_bytes(ids) == text
        assert small_tokenizer.decode(ids.tolist()) == text.decode("utf-8", "replace")


@given(data=st.data())
@settings(max_examples=40, deadline=None)
def test_a_batch_is_its_texts_one_by_one(
    data: st.DataObject, nasty_bytes: st.SearchStrategy[bytes], small_tokenizer: Tokenizer
) -> None:
    texts = data.draw(st.lists(nasty_bytes, max_size=6))
    mode = data.draw(st.sampled_from(["text", "allow"]))
    threads = data.draw(st.sampled_from([None, 1, 3]))
    batch = small_tokenizer.encode_batch(texts, special=mode, num_threads=threads)
    alone = [small_tokenizer.encode(text, special=mode).tolist() for text in texts]
    assert [ids.tolist() for ids in batch] == alone


def with_limits(tokenizer: Tokenizer, **limits: int) -> Tokenizer:
    return Tokenizer(tokenizer.data, limits=EncodingLimits(**limits))


def test_a_large_batch_on_many_threads(small_tokenizer: Tokenizer, make_text: MakeText) -> None:
    texts = [make_text(seed, 30_000) for seed in range(30)] + [b""] * 3
    batch = small_tokenizer.encode_batch(texts, num_threads=4)
    assert [ids.tolist() for ids in batch] == [
        small_tokenizer.encode(text).tolist() for text in texts
    ]


@pytest.mark.parametrize("window_bytes", [1, 50, 1000])
def test_a_stream_is_one_text(
    small_tokenizer: Tokenizer,
    make_text: MakeText,
    window_bytes: int,
) -> None:
    small_tokenizer = with_limits(small_tokenizer, window_bytes=window_bytes)
    text = make_text(0, 20_000)
    lines = text.decode().splitlines(keepends=True)
    for mode in ("text", "allow"):
        expected = small_tokenizer.encode(text, special=mode).tolist()
        assert list(small_tokenizer.encode_iterable(lines, special=mode)) == expected
        by_byte = (text[i : i + 1] for i in range(len(text)))
        assert list(small_tokenizer.encode_iterable(by_byte, special=mode)) == expected
    assert list(small_tokenizer.encode_iterable([])) == []


def test_a_stream_is_held_a_window_at_a_time(small_tokenizer: Tokenizer) -> None:
    small_tokenizer = with_limits(small_tokenizer, window_bytes=1 << 10)
    taken = 0

    def endless() -> object:
        nonlocal taken
        while True:
            taken += 1
            yield "some words and more of them\n"

    ids = small_tokenizer.encode_iterable(endless())
    for _ in range(100):
        next(ids)
    assert taken < 100


@pytest.mark.parametrize("num_threads", [1, 3])
@pytest.mark.parametrize("special", ["text", "allow"])
def test_a_file_is_one_text(
    tmp_path: Path,
    small_tokenizer: Tokenizer,
    make_text: MakeText,
    num_threads: int,
    special: str,
) -> None:
    small_tokenizer = with_limits(small_tokenizer, window_bytes=300)
    text = make_text(8, 50_000)
    (tmp_path / "text.txt").write_bytes(text)
    expected = small_tokenizer.encode(text, special=special)
    reported: list[int] = []
    for dtype in (None, "<u4"):
        count = small_tokenizer.encode_file(
            tmp_path / "text.txt",
            tmp_path / "ids.bin",
            special=special,
            num_threads=num_threads,
            dtype=dtype,
            on_progress=reported.append,
        )
        assert count == len(expected)
        written = np.fromfile(tmp_path / "ids.bin", dtype=dtype or "<u2")
        assert written.tolist() == expected.tolist()
        assert reported[-1] == len(text)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["ids.bin", "text.txt"]


def test_an_empty_file_has_no_ids(tmp_path: Path, small_tokenizer: Tokenizer) -> None:
    (tmp_path / "empty.txt").write_bytes(b"")
    assert small_tokenizer.encode_file(tmp_path / "empty.txt", tmp_path / "ids.bin") == 0
    assert (tmp_path / "ids.bin").read_bytes() == b""


def test_files_that_cannot_be_encoded(tmp_path: Path, small_tokenizer: Tokenizer) -> None:
    with pytest.raises(LowtideError, match="no such file") as caught:
        small_tokenizer.encode_file(tmp_path / "gone.txt", tmp_path / "ids.bin")
    assert caught.value.path == str(tmp_path / "gone.txt")
    (tmp_path / "text.txt").write_bytes(b"text")
    with pytest.raises(LowtideError, match="no such file"):
        small_tokenizer.encode_file(tmp_path / "text.txt", tmp_path / "gone" / "ids.bin")
    with pytest.raises(UsageError, match="uint16 or uint32"):
        small_tokenizer.encode_file(tmp_path / "text.txt", tmp_path / "ids.bin", dtype="<i8")
    options: dict[str, Any]
    for options, message in (
        ({"special": "none"}, "special is 'none', expected one of"),  # was read as "text"
        ({"num_workers": -1}, "num_workers is -1, expected at least 0"),
    ):
        with pytest.raises(UsageError, match=message):
            small_tokenizer.encode_file(tmp_path / "text.txt", tmp_path / "ids.bin", **options)


def test_ids_do_not_replace_their_text(tmp_path: Path, small_tokenizer: Tokenizer) -> None:
    text, link = tmp_path / "text.txt", tmp_path / "link"
    text.write_bytes(b"text")
    link.symlink_to(text)
    for one, other in ((text, text), (text, link), (link, text)):
        with pytest.raises(UsageError, match="the ids would replace their text"):
            small_tokenizer.encode_file(one, other)
    assert text.read_bytes() == b"text"


def test_a_compressed_file_is_not_encoded_as_it_is(
    tmp_path: Path, small_tokenizer: Tokenizer
) -> None:
    (tmp_path / "text.txt.gz").write_bytes(gzip.compress(b"text"))
    with pytest.raises(UsageError, match=r"compressed \(gzip\); its bytes would be encoded"):
        small_tokenizer.encode_file(tmp_path / "text.txt.gz", tmp_path / "ids.bin")
    assert not (tmp_path / "ids.bin").exists()


def test_what_is_no_text_is_refused(small_tokenizer: Tokenizer) -> None:
    value: Any = 5
    for tokenizer in (small_tokenizer, Tokenizer.from_characters("ab")):
        for encode in (
            tokenizer.encode,
            lambda text, of=tokenizer: of.encode_batch(["a", text]),
            lambda text, of=tokenizer: list(of.encode_iterable(["a", text])),
        ):
            with pytest.raises(UsageError, match="a text is int, expected str or bytes"):
                encode(value)


def test_a_batch_is_a_list_of_texts(small_tokenizer: Tokenizer) -> None:
    """One text would be taken for a list of its characters."""
    with pytest.raises(UsageError, match="one text was given") as caught:
        small_tokenizer.encode_batch("some text")
    assert caught.value.next_step == "tokenizer.encode(text)"
    with pytest.raises(UsageError, match=r"num_workers is 1\.5, expected"):
        small_tokenizer.encode_batch(["a"], num_workers=1.5)  # pyright: ignore


def test_a_place_where_nothing_can_be_saved(tmp_path: Path, small_tokenizer: Tokenizer) -> None:
    (tmp_path / "file").write_bytes(b"")
    for save in (small_tokenizer.save, small_tokenizer.save_vocabulary):
        with pytest.raises(LowtideError, match="this exists already"):
            save(tmp_path / "file")
    with pytest.raises(LowtideError, match="no such file or folder"):
        small_tokenizer.save_tiktoken(tmp_path / "none" / "a.tiktoken")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full on this system")
@pytest.mark.parametrize("num_threads", [1, 4])
def test_a_full_disk_is_named_as_such(
    tmp_path: Path, small_tokenizer: Tokenizer, num_threads: int
) -> None:
    """Also when another thread than the first one meets it."""
    text = b"some words " * 100_000
    (tmp_path / "text.txt").write_bytes(text)
    for _ in range(5):
        with pytest.raises(OSError, match="No space left"), Path("/dev/full").open("wb") as full:
            small_tokenizer.native.encode_file(
                input_path=str(tmp_path / "text.txt"),
                begin=0,
                stop=len(text),
                end=len(text),
                output_file=full.fileno(),
                output_path="ids.bin",
                output_offset=0,
                id_bytes=2,
                specials=False,
                num_threads=num_threads,
                window_bytes=4096,
            )


# Special tokens


def test_special_modes(small_tokenizer: Tokenizer) -> None:
    text = "one<|endoftext|>two"
    end = small_tokenizer.special_tokens["<|endoftext|>"]
    assert small_tokenizer.end_of_text_id == end
    assert end not in small_tokenizer.encode(text, special="text")
    assert end in small_tokenizer.encode(text)
    with pytest.raises(DataError, match="at byte 3"):
        small_tokenizer.encode(text, special="forbid")
    with pytest.raises(DataError, match="special token"):
        small_tokenizer.encode_batch(["fine", text], special="forbid")
    assert small_tokenizer.encode("fine", special="forbid").tolist() == (
        small_tokenizer.encode("fine").tolist()
    )
    with pytest.raises(UsageError, match="expected one of"):
        small_tokenizer.encode("text", special="maybe")  # pyright: ignore[reportArgumentType]


def test_of_overlapping_special_tokens_the_longest_wins() -> None:
    ours = Tokenizer.from_merges([], special_tokens=["<s>", "<s><s>", "s><"])
    assert ours.encode("<s><s><s>", special="allow").tolist() == [1, 0]
    assert ours.encode("s><s>", special="allow").tolist()[0] == 2


def test_text_is_never_a_special_token() -> None:
    """A ranked vocabulary could spell one by its merges: it must not."""
    tokens = {byte: bytes([byte]) for byte in range(256)} | {256: b"<s", 257: b"s>"}
    ranked = Tokenizer(
        ranked_vocabulary(tokens, special_tokens={"<s>": 258, "<s>s>": 259}, pattern="gpt2")
    )
    for text in ("<s>", "<s>s>", "a<s>"):
        assert max(ranked.encode(text, special="text").tolist()) < 258
        assert ranked.decode(ranked.encode(text, special="text")) == text
    assert ranked.encode("<s>", special="allow").tolist() == [258]


# Pathological text


@pytest.fixture(scope="module")
def ordinary_seconds(small_tokenizer: Tokenizer, make_text: MakeText) -> float:
    """How long a megabyte of ordinary text takes."""
    ordinary = make_text(1, 1_000_000)
    started = time.process_time()
    small_tokenizer.encode(ordinary)
    return time.process_time() - started


@pytest.mark.parametrize(
    "text",
    [
        b"a" * 1_000_000,
        b" " * 1_000_000,
        b"\n" * 1_000_000,
        "😀".encode() * 250_000,
        b"ab" * 500_000,
        b"!" * 1_000_000,
        b"\xff" * 1_000_000,
        b"\x00" * 1_000_000,
        "中".encode() * 300_000,
        b"'" * 1_000_000,
        b"'s" * 500_000,
    ],
    ids=lambda text: repr(text[:4]),
)
def test_a_megabyte_of_the_same_is_quick(
    text: bytes, small_tokenizer: Tokenizer, ordinary_seconds: float
) -> None:
    started = time.process_time()
    ids = small_tokenizer.encode(text)
    assert time.process_time() - started < 30 * ordinary_seconds + 1.0
    assert small_tokenizer.decode_bytes(ids) == text
    assert ids.tolist()[:50] == small_tokenizer.encode(text[:4000]).tolist()[:50]


@given(data=st.data())
@settings(max_examples=60, deadline=None)
def test_long_pieces_are_merged_as_the_reference_does(
    data: st.DataObject, small_merges: list[Pair]
) -> None:
    """Around 16, 32 and 64 bytes the way of merging changes, around 1024 caching ends."""
    length = data.draw(st.sampled_from([15, 16, 17, 32, 33, 63, 64, 65, 200, 1023, 1025]))
    letters = data.draw(st.sampled_from(["ab", "abcde", "the"]))
    text = "".join(data.draw(st.lists(st.sampled_from(letters), min_size=length, max_size=length)))
    ours = Tokenizer.from_merges(small_merges, special_tokens=[])
    expected = encode_by_reference(text.encode(), small_merges, specials=[])
    for _ in range(2):  # the second time from the cache
        assert ours.encode(text).tolist() == expected


@pytest.mark.parametrize("instructions", ["scalar", "avx2", "avx512"])
@given(data=st.data())
@settings(max_examples=40, deadline=None)
def test_every_instruction_set_merges_the_same(
    instructions: str, data: st.DataObject, small_merges: list[Pair]
) -> None:
    """On a machine without an instruction set, its row tests the best that there is."""
    pieces = data.draw(st.lists(st.text("abcdeth ", max_size=80).map(str.encode), max_size=12))
    ours = Tokenizer.from_merges(small_merges, special_tokens=[])
    ids = {token: id for id, token in reversed(ours.vocabulary.items())}
    expected = [[ids[token] for token in merge_plainly(piece, small_merges)] for piece in pieces]
    assert ours.native.merge_pieces(pieces, instructions) == expected


def merge_plainly(piece: bytes, merges: list[Pair]) -> list[bytes]:
    """Merge the pair of the lowest rank, the leftmost of equal ones, until there is none."""
    ranks = {pair: rank for rank, pair in enumerate(merges)}
    tokens = [bytes([byte]) for byte in piece]
    while known := [(ranks[pair], at) for at, pair in enumerate(pairwise(tokens)) if pair in ranks]:
        at = min(known)[1]
        tokens[at : at + 2] = [tokens[at] + tokens[at + 1]]
    return tokens


@given(data=st.data(), whole_pieces=st.booleans())
@settings(max_examples=75, deadline=None)
def test_ranked_vocabularies_merge_the_lowest_id_first(
    data: st.DataObject, whole_pieces: bool
) -> None:
    """Also where tokens are in an order in which merging cannot reach some of them, or twice."""
    words = st.text("abc", min_size=2, max_size=7).map(str.encode)
    tokens = [bytes([byte]) for byte in range(256)] + data.draw(st.lists(words, max_size=25))
    vocabulary = Vocabulary("bpe", tuple(tokens), {}, whole_pieces=whole_pieces)
    first = {token: id for id, token in reversed(list(enumerate(tokens)))}
    rules = {(left, right): token for left, right, token in vocabulary.merge_rows().tolist()}
    text = data.draw(st.text("abc", min_size=1, max_size=40)).encode()
    ids = [first[bytes([byte])] for byte in text]
    while known := [(rules[pair], at) for at, pair in enumerate(pairwise(ids)) if pair in rules]:
        token, at = min(known)
        ids[at : at + 2] = [token]
    if whole_pieces and text in first:
        ids = [first[text]]
    assert Tokenizer(vocabulary).encode(text).tolist() == ids


def test_tiny_caches_give_the_same_ids(small_tokenizer: Tokenizer, make_text: MakeText) -> None:
    tiny = with_limits(small_tokenizer, cache_bytes=1)
    long_words = " ".join("abcde"[i % 5] * (i % 90 + 1) + "b" * (i % 7) for i in range(6000))
    for text in (make_text(4, 200_000), long_words.encode()):
        assert tiny.encode(text).tolist() == small_tokenizer.encode(text).tolist()


def test_threads_may_share_a_tokenizer(small_tokenizer: Tokenizer, make_text: MakeText) -> None:
    texts = [make_text(seed, 20_000) for seed in range(8)]
    expected = [small_tokenizer.encode(text).tolist() for text in texts]
    found: list[list[int]] = [[] for _ in texts]

    def work(index: int) -> None:
        for _ in range(5):
            found[index] = small_tokenizer.encode(texts[index]).tolist()

    threads = [threading.Thread(target=work, args=(index,)) for index in range(len(texts))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == expected


# What is given and what comes back


def test_text_with_half_a_surrogate_pair(small_tokenizer: Tokenizer) -> None:
    assert small_tokenizer.decode(small_tokenizer.encode("a\ud800b")) == "a\ufffdb"


def test_ids_out_of_range_are_refused(small_tokenizer: Tokenizer) -> None:
    size = small_tokenizer.vocab_size
    for ids in ([size], [-1], [0, 1, size + 5], [1.5]):
        with pytest.raises(UsageError, match="expected whole numbers"):
            small_tokenizer.decode(ids)  # pyright: ignore[reportArgumentType]
    assert small_tokenizer.decode([]) == ""
    assert small_tokenizer.decode(np.array([[5, 6], [7, 8]], dtype=np.int64)) == "\x00\x01\x02\x03"
    with pytest.raises(UsageError, match="not in the vocabulary"):
        small_tokenizer.token_bytes(size)
    assert small_tokenizer.token_bytes(size - 1) == small_tokenizer.vocabulary[size - 1]


def test_from_vocabulary_takes_given_ids(small_merges: list[Pair]) -> None:
    tokens = {byte: bytes([byte]) for byte in range(256)}
    tokens |= {256 + place: left + right for place, (left, right) in enumerate(small_merges[:20])}
    ours = Tokenizer.from_vocabulary(tokens, small_merges[:20], ["<|endoftext|>"])
    assert ours.special_tokens == {"<|endoftext|>": 276}
    assert ours.vocabulary == tokens | {276: b"<|endoftext|>"}
    assert ours.merges == small_merges[:20]
    assert ours.encode("<|endoftext|>", special="allow").tolist() == [276]
    assert Tokenizer.from_vocabulary(
        ours.vocabulary, ours.merges, ["<|endoftext|>"]
    ).fingerprint == (ours.fingerprint)


def test_a_byte_without_a_token_is_refused() -> None:
    with pytest.raises(DataError, match="no token for byte 7"):
        Tokenizer.from_vocabulary({b: bytes([b]) for b in range(256) if b != 7}, [])


@pytest.mark.parametrize(
    "ids", [["a"], [1.5], [None], [[1], [2, 3]], 5, [1 << 70], [-1], [True], "ab", [1 << 63], [{}]]
)
def test_what_is_no_id_is_told_in_our_words(small_tokenizer: Tokenizer, ids: Any) -> None:
    with pytest.raises(UsageError, match="expected whole numbers from 0 to"):
        small_tokenizer.decode(ids)


def test_a_token_is_special_or_made_by_a_merge() -> None:
    merges = [(b"a", b"b"), (b"ab", b"c")]
    vocabulary = {id: bytes([id]) for id in range(256)} | {256: b"ab", 257: b"abc"}
    message = "b'ab' is a special token, and an ordinary one of the merge of b'a' and b'b'"
    with pytest.raises(DataError, match=message):
        Tokenizer.from_vocabulary(vocabulary, merges, ["ab"])


@given(data=st.data())
@settings(max_examples=60, deadline=None)
def test_a_long_piece_merges_in_chunks_as_it_does_whole(data: st.DataObject) -> None:
    """Any merges, also such as no training makes: a later one may need what an earlier one took."""
    tokens = [b"a", b"b", b"c"]
    merges: list[Pair] = []
    for _ in range(data.draw(st.integers(0, 12))):
        left, right = (data.draw(st.sampled_from(tokens)) for _ in range(2))
        if len(left + right) <= 9 and (left, right) not in merges:
            merges.append((left, right))
            tokens.append(left + right)
    merges = data.draw(st.permutations(merges))
    vocabulary = {id: bytes([id]) for id in range(256)}
    vocabulary |= {256 + n: token for n, token in enumerate(sorted(set(tokens[3:])))}
    ours = Tokenizer.from_vocabulary(vocabulary, merges)
    letters = data.draw(st.sampled_from(["a", "ab", "abc"]))
    seed = data.draw(st.integers(0, 1 << 30))
    text = "".join(random.Random(seed).choices(letters, k=data.draw(st.integers(1, 1500)))).encode()
    assert ours.native.merge_long(text, 1) == ours.native.merge_pieces([text])[0]


@pytest.mark.parametrize("letters", [b"a", b"ACGT", b"-", b" ", bytes(range(128, 256))])
def test_text_without_a_place_to_cut(tmp_path: Path, letters: bytes) -> None:
    """In memory, and in a file that is larger than the window it is read through."""
    text = bytes(random.Random(1).choices(letters, k=600_000))
    tokenizer = Tokenizer.load("gpt2")
    pieces = _native.split("gpt2", text).tolist()
    expected = tokenizer.native.merge_pieces(
        [text[begin:end] for begin, end in pairwise([0, *pieces])]
    )
    ids = [id for piece in expected for id in piece]
    assert tokenizer.encode(text).tolist() == ids
    (tmp_path / "text").write_bytes(text)
    out = (tmp_path / "ids").open("w+b")
    with out:
        count, position = tokenizer.native.encode_file(
            input_path=str(tmp_path / "text"),
            begin=0,
            stop=len(text),
            end=len(text),
            output_file=out.fileno(),
            output_path="ids",
            output_offset=0,
            id_bytes=2,
            specials=True,
            num_threads=2,
            window_bytes=1 << 14,
        )
        assert (count, position) == (len(ids), len(text))
        assert np.fromfile(tmp_path / "ids", dtype="<u2").tolist() == ids


@pytest.mark.parametrize(
    ("size", "item_bytes"), [((1 << 16) - 1, 2), (1 << 16, 2), ((1 << 16) + 1, 4)]
)
def test_files_of_ids_are_as_wide_as_the_vocabulary_needs(
    size: int, item_bytes: int, tmp_path: Path
) -> None:
    few = Tokenizer.from_characters("ab").vocab_size - 2
    characters = [chr(0x20000 + place) for place in range(size - few)]
    wide = Tokenizer.from_characters(characters)
    assert wide.vocab_size == size
    (tmp_path / "a.txt").write_text(characters[-1] + characters[0], encoding="utf-8")
    assert wide.encode_file(tmp_path / "a.txt", tmp_path / "a.bin") == 2
    ids = np.fromfile(tmp_path / "a.bin", dtype=f"<u{item_bytes}")
    assert ids.tolist() == wide.encode(characters[-1] + characters[0]).tolist()
    if item_bytes == 4:
        with pytest.raises(UsageError, match="does not fit uint16"):
            wide.encode_file(tmp_path / "a.txt", tmp_path / "b.bin", dtype=np.uint16)


def test_every_way_to_encode_means_the_same_by_default(
    small_tokenizer: Tokenizer, tmp_path: Path
) -> None:
    text = "one<|endoftext|>two"
    wanted = small_tokenizer.encode(text, special="allow").tolist()
    assert len(wanted) < len(small_tokenizer.encode(text, special="text"))
    assert small_tokenizer.encode(text).tolist() == wanted
    assert [ids.tolist() for ids in small_tokenizer.encode_batch([text])] == [wanted]
    assert list(small_tokenizer.encode_iterable([text])) == wanted
    (tmp_path / "text.txt").write_text(text)
    assert small_tokenizer.encode_file(tmp_path / "text.txt", tmp_path / "ids.bin") == len(wanted)


def test_a_place_to_cut_is_looked_for_once_for_each_window(
    small_tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a text without one: after each window of new text, not after each string."""
    tokenizer = with_limits(small_tokenizer, window_bytes=100)
    looked: list[int] = []
    plain = tokenizer.last_cut

    def note(data: bytes) -> int:
        looked.append(len(data))
        return plain(data)

    monkeypatch.setattr(tokenizer, "last_cut", note)
    text = "x" * 450
    assert list(tokenizer.encode_iterable(text)) == tokenizer.encode(text).tolist()
    assert looked == [100, 200, 300, 400]
    looked.clear()
    words = "some words " * 50
    parts = [words[at : at + 10] for at in range(0, len(words), 10)]
    assert list(tokenizer.encode_iterable(parts)) == tokenizer.encode(words).tolist()
    assert len(looked) >= 5 and all(100 <= size < 110 for size in looked)


def test_special_tokens_that_are_not_there_get_new_ids() -> None:
    tokens = {byte: bytes([byte]) for byte in range(256)} | {300: b"ab", 301: b"ab", 302: b"<s>"}
    tokenizer = Tokenizer.from_vocabulary(tokens, [(b"a", b"b")], ["<s>", "<t>", "<u>", "ab"])
    assert tokenizer.special_tokens == {"<s>": 302, "<t>": 303, "<u>": 304, "ab": 300}
    assert tokenizer.vocab_size == 305
    assert tokenizer.token_bytes(304) == b"<u>" and tokenizer.token_bytes(299) == b""
    for id in (-1, 305):
        with pytest.raises(UsageError, match=f"id {id} is not in the vocabulary of 305"):
            tokenizer.token_bytes(id)
    nothing = Tokenizer.from_vocabulary(tokens, [(b"a", b"b")])
    assert nothing.special_tokens == {} and nothing.end_of_text_id is None


@pytest.mark.parametrize(
    ("size", "dtype", "found"),
    [(65_536, None, "<u2"), (65_537, None, "<u4"), (300, "uint32", "<u4"), (65_536, "<u2", "<u2"),
     (65_537, "uint16", None), (300, "int32", None), (300, "uint8", None), (300, ">u2", None)],
)  # fmt: skip
def test_types_of_files_of_ids(
    small_tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch, size: int, dtype: Any, found: Any
) -> None:
    monkeypatch.setattr(type(small_tokenizer), "vocab_size", property(lambda _: size))
    if found is not None:
        assert small_tokenizer._file_dtype(dtype) == np.dtype(found)
        return
    with pytest.raises(UsageError):
        small_tokenizer._file_dtype(dtype)


def test_folders_are_made_where_there_are_none(tmp_path: Path) -> None:
    tokenizer = Tokenizer.from_merges([(b"a", b"b")])
    for save, name in (
        (tokenizer.save, "tokenizer.json"),
        (tokenizer.save_vocabulary, "vocab.json"),
    ):
        for _ in range(2):  # one that is there is taken
            save(tmp_path / name / "deep" / "er")
        assert (tmp_path / name / "deep" / "er" / name).is_file()


@pytest.mark.parametrize("way", ["encode", "encode_batch", "iter_encoded", "encode_iterable"])
def test_a_mode_of_special_tokens_that_is_none_is_refused_by_every_way(way):
    tokenizer = Tokenizer.load("gpt2")
    texts = "a text" if way == "encode" else ["a text"]
    with pytest.raises(UsageError, match="special is 'perhaps'"):
        list(getattr(tokenizer, way)(texts, special="perhaps"))


def test_copies_and_pickles_give_the_same_ids(small_tokenizer: Tokenizer) -> None:
    text = "low tide \u00e9 <|endoftext|> 12"
    ranks = dict(enumerate([*(bytes([byte]) for byte in range(256)), b"ow"]))
    tokenizers = {
        "merges": small_tokenizer,
        "ranks": Tokenizer(ranked_vocabulary(ranks, special_tokens={}, pattern="gpt2")),
        "characters": Tokenizer.from_characters("abcdefghijklmnop"),
    }
    for kind, tokenizer in tokenizers.items():
        ids = tokenizer.encode(text).tolist()
        copies = (copy.copy(tokenizer), copy.deepcopy(tokenizer))
        for other in (*copies, pickle.loads(pickle.dumps(tokenizer))):
            assert other.encode(text).tolist() == ids, kind
            assert (other.name, other.fingerprint) == (tokenizer.name, tokenizer.fingerprint)
            assert other.data == tokenizer.data


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no forks here")
def test_a_child_made_while_other_threads_encode_encodes_too() -> None:
    code = """
from lowtide import Tokenizer
tokenizer = Tokenizer.from_merges([(b"a", b"b")])
tokenizer.encode("ab")
"""
    run_children(code, 'tokenizer.encode("ab")', children=1000)
