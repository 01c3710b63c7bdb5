"""Random bytes through every native entry point; `make sanitize` runs it under the sanitizers.

The corpus is the same every time. Each round checks what must hold whatever the bytes are; wrong
accesses and overflows are what the sanitizers are there to find.
"""

from __future__ import annotations

import itertools
import random
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from lowtide import _native
from lowtide.tokenizer import Tokenizer
from lowtide.tokenizer.patterns import PATTERN_NAMES
from lowtide.tokenizer.reference import split_specials

ROUNDS = 40
TEXTS_PER_ROUND = 60

_PARTS = [
    b"'", b"'s", b"'re", b" ", b"  ", b"\n", b"\r\n", b"\t", b"a", b"Word", b"9", b"12345", b"/",
    b"\x00", b"\x80", b"\xff", b"\xc5\xbf", b"\xc5", b"\xe2\x82\xac", b"\xe2\x82", b"\xed\xa0\x80",
    b"\xf0\x9f\x98\x80", b"\xf0\x9f", b"\xcc\x81", b"\xe4\xb8\xad", b"\xc2\xa0", b"\xe3\x80\x80",
    b"<|endoftext|>", b"<|end", b"|>",
]  # fmt: skip


def make_text(source: random.Random) -> bytes:
    """Return random bytes, random parts, long runs, or a mixture, often around 64 bytes long."""
    kind = source.randrange(4)
    length = source.choice([0, 1, 2, 15, 16, 63, 64, 65, 127, 128, 129, 400, 3000])
    if kind == 0:
        return source.randbytes(length)
    if kind == 1:
        return source.choice(_PARTS) * source.randrange(300)
    parts = [source.choice(_PARTS) for _ in range(length // 3 + 1)]
    if kind == 3:
        parts.append(source.randbytes(source.randrange(20)))
    return b"".join(parts)[:length]


def make_specials(source: random.Random) -> list[bytes]:
    """Return a few special tokens that occur, overlap and repeat."""
    specials = [b"<|endoftext|>", b"<|end", b"|>", b"a", b"\xf0\x9f", b" Word", b"'s" * 9, b"\x00"]
    return source.sample(specials, source.randrange(4))


@pytest.mark.parametrize("seed", range(ROUNDS))
def test_any_bytes(seed: int, tmp_path: Path) -> None:
    source = random.Random(seed)
    pattern = PATTERN_NAMES[seed % 3]
    texts = [make_text(source) for _ in range(TEXTS_PER_ROUND)]
    specials = make_specials(source)
    counts: Counter[bytes] = Counter()
    for text in texts:
        check_splitting(pattern, text, specials)
        for part, special in split_specials(text, [s.decode("latin-1") for s in specials]):
            if not special:
                counts.update(split(pattern, part))
    if all(byte < 0x80 for special in specials for byte in special):
        assert check_counting(pattern, texts, specials, tmp_path, source) == counts
    else:
        check_counting(pattern, texts, specials, tmp_path, source)
    check_encoding(pattern, texts, counts, source, tmp_path)


def split(pattern: str, text: bytes) -> list[bytes]:
    ends = _native.split(pattern, text).tolist()
    return [text[begin:end] for begin, end in itertools.pairwise([0, *ends])]


def check_splitting(pattern: str, text: bytes, specials: list[bytes]) -> None:
    ends = _native.split(pattern, text)
    for instructions in ("scalar", "avx2"):
        assert ends.tolist() == _native.split(pattern, text, instructions).tolist()
    assert (ends[-1] == len(text)) if text else len(ends) == 0
    assert (np.diff(ends.astype(np.int64), prepend=0) > 0).all()
    cuts = set(_native.testing.safe_cuts(text, specials).tolist())
    assert cuts <= set(ends.tolist())
    last = _native.last_cut(text, specials)
    assert last == 0 or last in cuts


def check_counting(
    pattern: str, texts: list[bytes], specials: list[bytes], folder: Path, source: random.Random
) -> Counter[bytes]:
    counter = _native.PieceCounter(
        pattern,
        specials,
        num_threads=source.randint(1, 3),
        table_bytes=source.choice([0, 1 << 15, 1 << 24]),
        window_bytes=source.choice([1, 63, 1000]),
        spill_dir=str(folder),
    )
    half = len(texts) // 2
    counter.count_texts(texts[:half])
    if source.random() < 0.5:
        counter.checkpoint()
    path = folder / "text.bin"
    for text in texts[half:]:
        path.write_bytes(text)
        place = 0
        while place < len(text):
            stop = min(len(text), place + source.randint(1, 500))
            place = counter.count_file(str(path), place, stop, len(text))
    return Counter(dict(counter.drain()))


def check_encoding(
    pattern: str, texts: list[bytes], counts: Counter[bytes], source: random.Random, folder: Path
) -> None:
    in_rounds = source.random() < 0.5
    tie_break = source.choice(["huggingface", "cs336"])
    learner = (
        _native.RoundLearner(tie_break, file_dir=str(folder), memory_bytes=1 << 20)
        if in_rounds
        else _native.MergeLearner(tie_break)
    )
    learner.take_items(list(counts.items()))
    learner.build()
    while learner.learn(300, 50, 1):
        pass
    tokens = {byte: bytes([byte]) for byte in range(256)}
    merges: list[tuple[bytes, bytes]] = []
    for left, right, token in np.asarray(learner.merges()).reshape(-1, 3).tolist():
        merges.append((tokens[left], tokens[right]))
        tokens[token] = tokens[left] + tokens[right]
    specials = ["<|endoftext|>", "<|end", "|>"]
    tokenizer = Tokenizer.from_merges(merges, special_tokens=specials, pattern=pattern)
    alone = [tokenizer.encode(text) for text in texts]
    for text, ids in zip(texts, alone, strict=True):
        assert tokenizer.decode_bytes(ids) == text
        assert tokenizer.decode_bytes(tokenizer.encode(text, special="allow")) == text
    batch = tokenizer.encode_batch(texts, num_threads=3)
    assert all(np.array_equal(a, b) for a, b in zip(alone, batch, strict=True))
    whole = b"".join(texts)
    (folder / "whole.bin").write_bytes(whole)
    tokenizer.encode_file(folder / "whole.bin", folder / "ids.bin", special="allow", num_threads=2)
    expected = tokenizer.encode(whole, special="allow")
    assert np.array_equal(np.fromfile(folder / "ids.bin", dtype="<u2"), expected)
