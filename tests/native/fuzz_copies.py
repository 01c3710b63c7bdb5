"""Rounds of the fuzzer over near copies, evaluation items, classifiers and SentencePiece's merges.

In:      documents that repeat each other's words; rows and files of one step, whole and damaged
Out:     nothing; what must hold whatever the bytes are is asserted
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from lowtide import _native
from lowtide.tokenizer.pieces import PieceRules, _make_native

__all__ = ["fuzz_items", "fuzz_learning", "fuzz_near", "fuzz_sentencepiece"]

MakeText = Callable[[random.Random], bytes]
Damage = Callable[[bytes, random.Random], bytes]
_WORDS = b"tide low water sand moon w\xc3\xa4ve \xe6\xbd\xae salt don't shore foam a , .".split()


def _clean(source: random.Random, make_text: MakeText) -> Any:
    """A block of documents, some of them alike."""
    texts: list[bytes] = []
    for _ in range(source.randrange(1, 12)):
        words = source.choices(_WORDS, k=source.choice([0, 3, 20, 200]))
        if texts and source.random() < 0.5:
            words = source.choice(texts).split()
            for _ in range(source.randrange(4)):
                words.insert(source.randrange(len(words) + 1), source.choice(_WORDS))
        texts.append(make_text(source)[:400] if source.random() < 0.2 else b" ".join(words))
    text = b"<|endoftext|>".join(texts)
    options = _native.CleanOptions()
    return _native.clean_text(
        text, [b"<|endoftext|>"], [(0, 0, 0, len(text))], False, False, options, bytes
    )


def fuzz_near(source: random.Random, folder: Path, make_text: MakeText, damage: Damage) -> None:
    """Signatures to pairs to decisions; rows between two steps may be damaged."""
    cleaned = _clean(source, make_text)

    def changed(rows: memoryview, row_bytes: int) -> bytes:
        data = bytes(rows)
        if source.random() < 0.2:
            data = damage(data, source)
        return data[: len(data) // row_bytes * row_bytes]

    ngram = source.choice([1, 2, 5, 64])
    signer = _native.NearSigner(
        source.choice([0.5, 0.8, 1.0]), ngram, source.choice([1, 4, 20]), source.choice([1, 4])
    )
    signer.sign(cleaned.text, cleaned.documents)
    rows = changed(signer.rows, _native.NEAR_ROW_BYTES)
    held = _native.BucketRows(max(len(rows) // _native.NEAR_ROW_BYTES, 1))
    buckets = _native.NearBuckets()
    with contextlib.suppress(ValueError, OSError, RuntimeError):  # of damaged rows
        held.add(np.frombuffer(rows, np.uint8), 0, 0)
        ordered = changed(held.sort(), _native.BUCKET_ROW_BYTES)
        buckets.add(np.frombuffer(ordered, np.uint8), 1 << 16)
        buckets.finish()
        buckets.sort()
        files = {name: folder / name for name in ("pairs", "wanted", "index", "grams", "removed")}
        for name, found in (("pairs", buckets.pairs), ("wanted", buckets.wanted)):
            files[name].write_bytes(changed(found, _native.PLACE_PAIR_BYTES))
        read = {name: _merge(files[name], source) for name in ("pairs", "wanted")}
        sets = _native.GramSets(ngram)
        sets.make(cleaned.text, cleaned.documents, 0, np.frombuffer(read["wanted"], np.uint8), 0)
        files["index"].write_bytes(changed(sets.index, _native.GRAM_SET_ROW_BYTES))
        files["grams"].write_bytes(changed(sets.grams, 8))
        _decide(files, read["pairs"], cleaned)


def _merge(path: Path, source: random.Random) -> bytes:
    """Both halves of a file of pairs as one."""
    count = path.stat().st_size // _native.PLACE_PAIR_BYTES
    first = count // 2
    runs = [(path, 0, first), (path, first * _native.PLACE_PAIR_BYTES, count - first)]
    merger = _native.PairMerger(runs, source.choice([1 << 10, 1 << 16]))
    found = b""
    while len(part := merger.read(source.choice([1, 100]))):
        found += bytes(part)
    assert len(found) <= path.stat().st_size
    return found


def _decide(files: dict[str, Path], pairs: bytes, cleaned: Any) -> None:
    count = files["index"].stat().st_size // _native.GRAM_SET_ROW_BYTES
    joined = files["index"].with_name("sets")
    joined.write_bytes(files["index"].read_bytes() + files["grams"].read_bytes())
    files["removed"].write_bytes(b"")
    at = count * _native.GRAM_SET_ROW_BYTES
    decider = _native.NearDecider([(0, joined, 0, count, at)], 0.8, 0, files["removed"])
    decider.add(np.frombuffer(pairs, np.uint8))
    decider.finish()
    assert decider.num_removed <= len(cleaned.documents) // _native.DOCUMENT_ROW_BYTES or count


def fuzz_items(source: random.Random, folder: Path, make_text: MakeText, damage: Damage) -> None:
    """Evaluation items, and documents that may say the same; rows of documents may be damaged."""
    cleaned = _clean(source, make_text)
    table = _native.EvalGrams()
    text = bytes(cleaned.text)
    added = 0
    for item in range(source.randrange(5)):
        begin = source.randrange(len(text) + 1)
        part = text[begin : begin + source.choice([10, 200])]
        added += table.add(part if source.random() < 0.7 else make_text(source), item)
    table.finish()
    assert len(table) <= added
    assert len(table.items()) == 4 * len(table)
    documents = bytes(cleaned.documents)
    if source.random() < 0.5:
        documents = damage(documents, source)
        size = _native.DOCUMENT_ROW_BYTES
        documents = documents[: len(documents) // size * size]
    with contextlib.suppress(ValueError):
        hits = table.scan(cleaned.text, np.frombuffer(documents, np.uint8))
        assert len(hits) % _native.EVAL_HIT_BYTES == 0
        assert len(hits) == 0 or len(table) > 0


def fuzz_learning(source: random.Random, folder: Path, make_text: MakeText, damage: Damage) -> None:
    """Passages to words to a classifier, whose file our reader takes as it is."""
    cleaned = _clean(source, make_text)
    _, text = _native.pick_passages(
        cleaned.text, cleaned.documents, 1, source.choice([64, 100, 5000]), 1 << 62, 1 << 62
    )
    assert len(text) <= len(cleaned.text)
    count = source.randrange(1, 6)
    cuts = sorted(source.randrange(len(text) + 1) for _ in range(count - 1))
    ends = np.array([*cuts, len(text)], np.uint64)
    if source.random() < 0.3:
        ends = np.frombuffer(damage(ends.tobytes(), source)[: 8 * count].ljust(8 * count, b"\0"))
        ends = ends.view(np.uint64).copy()
    with contextlib.suppress(ValueError):
        counter = _native.WordCounter(0, 1, 1 << 20)
        if not counter.add(text, ends):
            return
        words = _native.choose_words([counter.list(source.choice([1, 2]))], source.choice([3, 100]))
        trainer = _native.ClassifierTrainer(words, source.choice([8, 64]), 1, 1, 1e-6)
        labels = np.array([source.randrange(2) for _ in range(count)], np.uint8)
        trainer.step(text, ends, labels, (1.0, 1.0), 0.1, source.randrange(1, 3))
        scores = np.frombuffer(trainer.score(text, ends, 1), np.float32)
        assert len(scores) == count and np.isfinite(scores).all()
        path = folder / "learned.bin"
        with path.open("w+b") as file:
            trainer.write(file.fileno(), (1, 1))
        _native.FastTextModel(str(path)).predict(bytes(text))


def fuzz_sentencepiece(
    source: random.Random, folder: Path, make_text: MakeText, damage: Damage
) -> None:
    """Vocabularies of SentencePiece's kind, with merges that may make no sense, on any text."""
    texts = [f"<0x{byte:02X}>" for byte in range(256)]
    texts = ["<unk>", *texts, *"▁abcdehilmnorstw.,ä潮"]
    merges: list[list[str]] = []
    for _ in range(source.randrange(60)):
        left, right = source.choices(texts[257:], k=2)
        if right.startswith("▁") and not left.startswith("▁"):
            continue
        merges.append([left, right])
        if left + right not in texts and len(left + right) < 12:
            texts.append(left + right)
    if source.random() < 0.3:
        merges += [source.choices(texts, k=2) for _ in range(3)]
    model = {"type": "BPE", "unk_token": "<unk>", "fuse_unk": True, "byte_fallback": True}
    model |= {"dropout": None, "continuing_subword_prefix": None, "end_of_word_suffix": None}
    model |= {"ignore_merges": False, "vocab": {text: id for id, text in enumerate(texts)}}
    split = {"type": "Metaspace", "replacement": "▁", "split": False}
    split["prepend_scheme"] = source.choice(["always", "first", "never"])
    unknown = {"id": 0, "content": "<unk>", "special": True, "single_word": False}
    unknown |= {"lstrip": False, "rstrip": False, "normalized": False}
    rules = PieceRules.of(
        {
            "model": {**model, "merges": merges},
            "normalizer": None,
            "pre_tokenizer": split,
            "added_tokens": [unknown],
        }
    )
    if rules is None:
        return
    try:
        native = _make_native(rules, source.choice([0, 1 << 15]))
    except ValueError:
        return
    for text in (make_text(source), " ".join(source.choices(texts[257:], k=30)).encode()):
        shown = text.decode("utf-8", "replace")
        ids = native.encode(shown.encode(), source.random() < 0.5)
        assert not len(ids) or int(ids.max()) < len(texts)
        native.decode(ids)
