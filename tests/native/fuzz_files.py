"""Rounds of the fuzzer over files that come from elsewhere or wait on disk between two steps.

In:      models of fastText, long rows, snappy pages, saved counts, index rows; whole and damaged
Out:     nothing; what must hold whatever the bytes are is asserted
"""

from __future__ import annotations

import contextlib
import json
import math
import random
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa

from lowtide import _native

sys.path.insert(0, str(Path(__file__).parents[1] / "corpus"))
from fasttext_files import LOSSES, TinyModel

__all__ = ["MakeText", "fuzz_counts", "fuzz_judges", "fuzz_pages", "fuzz_ranges"]

MakeText = Callable[[random.Random], bytes]
Damage = Callable[[bytes, random.Random], bytes]
_WORDS = ["tide", "low", "</s>", "wäter", "潮", "a", "don't", "__label__x"]


def make_model(source: random.Random) -> TinyModel:
    """A small model of any kind that fastText saves."""
    bucket = source.choice([0, 0, 5, 40])
    dim = source.choice([1, 2, 5, 16])
    kept = None
    if bucket and source.random() < 0.3:
        kept = {place: row for row, place in enumerate(source.sample(range(bucket), 4))}
    return TinyModel(
        words=source.sample(_WORDS, source.randrange(1, len(_WORDS))),
        labels=["good", "bad", "x", "y", "z"][: source.choice([1, 2, 3, 5])],
        dim=dim,
        loss=source.choice(list(LOSSES)),
        word_ngrams=source.choice([1, 2, 3]) if bucket else 1,
        bucket=bucket,
        minn=1 if bucket else 0,
        maxn=source.choice([0, 3, 6]) if bucket else 0,
        kept=kept,
        quantized=dim > 1 and source.random() < 0.3,
        seed=source.randrange(1 << 30),
    )


def fuzz_judges(source: random.Random, folder: Path, make_text: MakeText, damage: Damage) -> None:
    """Models of fastText, whole and damaged: an error of ours, or scores that are numbers."""
    data = make_model(source).encode()
    is_whole = source.random() < 0.3
    if not is_whole:
        data = damage(data, source)
        if source.random() < 0.5:  # in the sizes
            at = source.randrange(0, 100)
            data = data[:at] + source.randbytes(4) + data[at + 4 :]
    path = folder / "model.bin"
    path.write_bytes(data)
    try:
        model = _native.FastTextModel(str(path))
    except (_native.ModelError, MemoryError):
        assert not is_whole
        return
    assert model.memory_bytes < 1 << 26
    texts = [make_text(source) for _ in range(3)]
    for text in texts:
        scores = model.predict(text)
        assert len(scores) == len(model.labels)
        assert not is_whole or all(math.isfinite(score) for score in scores)
    label = source.randrange(len(model.labels))
    options = _native.CleanOptions()
    options.set_models(model, [1] * len(model.labels), 0.2, model, label, 0.4)
    text = b"<|endoftext|>".join(texts)
    cleaned = _native.clean_text(
        text, [b"<|endoftext|>"], [(0, 0, 0, len(text))], False, False, options, bytes
    )
    assert len(cleaned.text) <= 3 * len(text) + 16  # a bad byte becomes U+FFFD


def fuzz_pages(source: random.Random, folder: Path, make_text: MakeText, damage: Damage) -> None:
    """Long rows and snappy pages between files: the text, or that it is damaged."""
    text = make_text(source) * source.choice([1, 1, 50])
    whole = pa.Codec("snappy").compress(text, asbytes=True)
    packed = damage(whole, source)
    row = damage(json.dumps({"a": 1, "text": text.decode("latin-1")}).encode(), source)
    with (
        tempfile.TemporaryFile(dir=folder) as stored,
        tempfile.TemporaryFile(dir=folder) as unpacked,
        tempfile.TemporaryFile(dir=folder) as rows,
        tempfile.TemporaryFile(dir=folder) as field,
    ):
        stored.write(b"before" + packed)
        stored.flush()
        count = _native.unpack_snappy(stored.fileno(), 6, len(packed), unpacked.fileno())
        assert -1 <= count <= 100 * len(packed) + 100
        if packed == whole:
            assert unpacked.read() == text
        rows.write(row)
        rows.flush()
        count = _native.extract_long_row(rows.fileno(), "text", field.fileno())
        expected, ends, _, _ = _native.extract_jsonl(row.split(b"\n")[0], "text")
        if b"\n" not in row and len(ends) == 1:
            assert field.read()[:count] == expected.tobytes()


def fuzz_counts(source: random.Random, folder: Path, make_text: MakeText, damage: Damage) -> None:
    """Counts saved by one counter and added to another, whole and damaged."""
    parts = [folder / "one", folder / "other"]
    for part in parts:
        part.mkdir(exist_ok=True)
        for path in part.iterdir():
            path.unlink()

    pattern = source.choice(["gpt2", "o200k"])

    def make_counter(part: Path) -> _native.PieceCounter:
        return _native.PieceCounter(
            pattern,
            [b"<|endoftext|>"],
            num_threads=source.randrange(1, 4),
            table_bytes=source.choice([0, 1 << 16, 1 << 22]),
            window_bytes=source.choice([16, 1000, 1 << 16]),
            spill_dir=part,
        )

    counter = make_counter(parts[0])
    texts = [make_text(source) for _ in range(source.randrange(1, 6))]
    counter.count_texts(texts)
    saved = folder / "saved"
    ends = counter.save(saved)
    data, longest = saved.read_bytes(), counter.longest_piece
    is_whole = source.random() < 0.3
    if not is_whole:
        data = damage(data, source)
        ends = [source.choice([end, 0, 1 << 62, end + 1]) for end in ends]
    begin = source.randrange(20)
    saved.write_bytes(b"x" * begin + data)
    other = make_counter(parts[1])
    try:
        other.add_saved(saved, begin, ends, longest)
        found = dict(other.drain())
    except (OSError, ValueError):
        assert not is_whole
        return
    if is_whole:
        direct = make_counter(parts[0])
        direct.count_texts(texts)
        assert found == dict(direct.drain())


def fuzz_ranges(source: random.Random, folder: Path, make_text: MakeText, damage: Damage) -> None:
    """Rows of an index as encoding leaves them, whole and damaged, and the ids they point at."""
    text = b"<|endoftext|>".join(make_text(source)[:500] for _ in range(source.randrange(1, 9)))
    options = _native.CleanOptions()
    cleaned = _native.clean_text(
        text, [b"<|endoftext|>"], [(0, 0, 0, len(text))], False, False, options, bytes
    )
    codes = np.arange(256, dtype=np.uint32)
    encoded = _native.encode_block(
        _native.CharacterTable(codes, codes, 0),
        cleaned.text,
        cleaned.documents,
        b"",
        options,
        shuffle=True,
        seed=1,
        block=0,
        carried=None,
        end_id=1,
        id_bytes=2,
    )
    path = folder / "ids"
    path.write_bytes(bytes(encoded.ids))
    index = damage(bytes(encoded.index), source) if source.random() < 0.7 else bytes(encoded.index)
    index = index[: len(index) // 32 * 32]
    is_whole = index == bytes(encoded.index)
    rows, bounds = _native.RangeRows(), [0, 1 << 63]
    with contextlib.suppress(ValueError, OSError):
        counter = _native.RangeCounter(bounds, 1 << 62)
        counter.add(index)
        rows.add(str(path).encode(), index, 0, 2, 0, (1 << 64) - 1, None, 0)
        rows.finish()
        reader = _native.RangeReader(rows, 2, 4)
        last = source.choice([1, len(encoded.ids) // 2])
        ids, ends = reader.read(0, last, 2)
        assert len(ids) == 2 * last
        if is_whole and last == len(encoded.ids) // 2:
            assert sorted(bytes(ids)) == sorted(bytes(encoded.ids))
            assert len(ends) // 8 == encoded.num_documents
