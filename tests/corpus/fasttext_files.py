"""Small models in fastText's format, and what they say of a text, in plain Python."""

from __future__ import annotations

import functools
import math
import random
import struct
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

LOSSES = {"hs": 1, "ns": 2, "softmax": 3, "ova": 4}


@dataclass
class TinyModel:
    """A model with random or given weights."""

    words: list[str]
    labels: list[str]
    dim: int = 4
    loss: str = "softmax"
    word_ngrams: int = 1
    bucket: int = 0
    minn: int = 0
    maxn: int = 0
    kept: dict[int, int] | None = None
    """Buckets that were not pruned, with their rows."""
    quantized: bool = False
    seed: int = 0
    rows: list[list[float]] = field(default_factory=list)
    outputs: list[list[float]] = field(default_factory=list)

    def __post_init__(self) -> None:
        source = random.Random(self.seed)
        count = len(self.words) + (self.bucket if self.kept is None else len(self.kept))
        self.codes = [source.randrange(256) for _ in range(2 * count)]
        self.centroids = [_single(source.gauss(0, 1)) for _ in range(256 * self.dim)]
        if self.quantized:
            self.rows = [self._decode(row) for row in range(count)]
        self.rows = self.rows or [
            [_single(source.gauss(0, 1)) for _ in range(self.dim)] for _ in range(count)
        ]
        self.outputs = self.outputs or [
            [_single(source.gauss(0, 1)) for _ in range(self.dim)] for _ in self.labels
        ]
        self.counts = sorted((source.randrange(1, 90) for _ in self.labels), reverse=True)

    def _decode(self, row: int) -> list[float]:
        """Two parts: all but one number, and the last."""
        first, second = self.codes[2 * row], self.codes[2 * row + 1]
        size = (self.dim + 1) // 2
        last = self.dim - size
        return (
            self.centroids[first * size : (first + 1) * size]
            + self.centroids[256 * size + second * last : 256 * size + (second + 1) * last]
        )

    def encode(self) -> bytes:
        """The file."""
        numbers = [self.dim, 5, 1, 1, 5, self.word_ngrams, LOSSES[self.loss], 3]
        numbers += [self.bucket, self.minn, self.maxn, 100]
        data = struct.pack("<2i12id", 793712314, 12, *numbers, 1e-4)
        size = len(self.words) + len(self.labels)
        pruned = -1 if self.kept is None else len(self.kept)
        data += struct.pack("<3i2q", size, len(self.words), len(self.labels), 100, pruned)
        for word in self.words:
            data += word.encode() + struct.pack("<xqb", 1, 0)
        for label, count in zip(self.labels, self.counts, strict=True):
            data += f"__label__{label}".encode() + struct.pack("<xqb", count, 1)
        for bucket, row in (self.kept or {}).items():
            data += struct.pack("<2i", bucket, row)
        data += struct.pack("<?", self.quantized)
        if self.quantized:
            data += struct.pack("<?2qi", False, len(self.rows), self.dim, len(self.codes))
            data += bytes(self.codes)
            size = (self.dim + 1) // 2
            data += struct.pack("<4i", self.dim, 2, size, self.dim - size)
            data += struct.pack(f"<{len(self.centroids)}f", *self.centroids)
        else:
            data += _dense(self.rows)
        return data + b"\0" + _dense(self.outputs)

    def write(self, path: Path) -> str:
        path.write_bytes(self.encode())
        return str(path)

    def predict(self, text: str) -> list[float]:
        """The scores of all labels; zeros where nothing of the text is known."""
        found = self._find_rows(text)
        if not found:
            return [0.0] * len(self.labels)
        weighed = ([times * value for value in self.rows[row]] for row, times in found.items())
        hidden = [sum(column) / found.total() for column in zip(*weighed, strict=True)]
        out = [sum(map(_times, hidden, row)) for row in self.outputs]
        if self.loss == "hs":
            return self._walk(out)
        if self.loss == "softmax":
            powers = [math.exp(value - max(out)) for value in out]
            return [power / sum(powers) + 1e-5 for power in powers]
        steps = [int((min(max(value, -8.0), 8.0) + 8) * 32) * 16 / 512 - 8 for value in out]
        return [1 / (1 + math.exp(-step)) + 1e-5 for step in steps]

    def _find_rows(self, text: str) -> Counter[int]:
        """How many times each row is in a text."""
        rows: list[int] = []
        hashes: list[int] = []
        for word in [*text.encode().split(), b"</s>"]:
            hashed = fasttext_hash(word)
            if word.decode() in self.words:
                rows.append(self.words.index(word.decode()))
            elif word.startswith(b"__label__"):
                continue
            if self.maxn and word != b"</s>":
                rows += self._buckets(fasttext_hash(gram.encode()) for gram in self._pieces(word))
            hashes.append(hashed - (1 << 32) if hashed >> 31 else hashed)
        for first, number in enumerate(hashes):
            for following in hashes[first + 1 : first + self.word_ngrams]:
                number = (number * 116049371 + following) % (1 << 64)
                rows += self._buckets([number])
        return Counter(rows)

    def _pieces(self, word: bytes) -> list[str]:
        marked = f"<{word.decode()}>"
        size = len(marked)
        return [
            marked[begin : begin + n]
            for begin in range(size)
            for n in range(self.minn, self.maxn + 1)
            if begin + n <= size and not (n == 1 and (begin == 0 or begin + n == size))
        ]

    def _buckets(self, hashes: Any) -> list[int]:
        places = [number % self.bucket for number in hashes]
        if self.kept is not None:
            places = [self.kept[place] for place in places if place in self.kept]
        return [len(self.words) + place for place in places]

    def _walk(self, out: list[float]) -> list[float]:
        size = len(self.labels)
        counts = [*self.counts, *([10**15] * (size - 1))]
        children: dict[int, tuple[int, int]] = {}
        leaf, node = size - 1, size
        for parent in range(size, 2 * size - 1):
            pair: list[int] = []
            for _ in range(2):
                if leaf >= 0 and counts[leaf] < counts[node]:
                    pair.append(leaf)
                    leaf -= 1
                else:
                    pair.append(node)
                    node += 1
            children[parent] = pair[0], pair[1]
            counts[parent] = counts[pair[0]] + counts[pair[1]]
        scores = [0.0] * (2 * size - 1)
        for parent in reversed(children):
            share = 1 / (1 + math.exp(-out[parent - size]))
            left, right = children[parent]
            scores[left] = scores[parent] + math.log(1 - share + 1e-5)
            scores[right] = scores[parent] + math.log(share + 1e-5)
        return [math.exp(score) for score in scores[:size]]


@functools.cache
def fasttext_hash(data: bytes) -> int:
    value = 2166136261
    for byte in data:
        value = (value ^ (byte | 0xFFFFFF00 if byte & 0x80 else byte)) * 16777619 % (1 << 32)
    return value


def _times(one: float, other: float) -> float:
    return one * other


def _single(value: float) -> float:
    return struct.unpack("<f", struct.pack("<f", value))[0]


def _dense(rows: list[list[float]]) -> bytes:
    width = len(rows[0])
    packed = (struct.pack(f"<{width}f", *row) for row in rows)
    return struct.pack("<2q", len(rows), width) + b"".join(packed)
