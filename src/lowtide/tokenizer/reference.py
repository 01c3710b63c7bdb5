"""Byte-pair encoding in plain Python: the reference that the native code is tested against.

Slow and simple on purpose. Each function does the same as its native counterpart, with the
`regex` package for splitting and dictionaries for everything else.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from itertools import pairwise

from lowtide.packages import import_package
from lowtide.quickclasses import dataclass
from lowtide.tokenizer.bytelevel import printable
from lowtide.tokenizer.patterns import EXPRESSIONS, Pattern

__all__ = [
    "count_pieces",
    "encode",
    "learn_merges",
    "split_pieces",
    "split_specials",
]

Pair = tuple[bytes, bytes]

# tiktoken and tokenizers use Unicode 16; `regex` uses a newer version. These have another class in
# it, as printed by native/tokenizer/splitting/generate_character_ranges.py: letters, marks and
# numbers that are unassigned in Unicode 16, and U+0295, a small letter there.
NEWER_CHARACTERS = """
    558 58B-58C 5C8-5C9 88F B53-B54 C5C CDC 1ACF-1AF0 208F 209D-209F A7CE-A7CF A7D2 A7D4 A7DD A7E2
    A7F1 AB6C-AB6D 107BB-107BF 10940-10959 10EC5-10EC7 10ECB-10ECF 10ED9-10EEE 10EF0-10EFB 11B0A
    11B60-11B67 11DB0-11DDB 11DE0-11DE9 11DF0-11DF1 1246F 12475-1247F 12550-12686 16EA0-16EB8
    16EBB-16ED3 16FF2-16FF6 187F8-187FF 18CD6-18CDA 18D09-18D20 18D80-18DF2 18E00-19191 191A0-191D2
    1B123-1B128 1B168 1D127-1D128 1D250-1D252 1D25B-1D25C 1D25F 1D280-1D281 1D6A6 1DF1F-1DF24
    1DF2B-1DF81 1DF90-1DF96 1DFCD-1DFFF 1E6C0-1E6DE 1E6E0-1E6F5 1E6FE-1E6FF 2B73A-2B73F 2B81E
    2CEA2-2CEAD 323B0-33479 3D000-3FC3F
"""
_SMALL_IN_UNICODE_16 = 0x295


def split_pieces(text: bytes, pattern: Pattern) -> list[bytes]:
    """Split text into pieces; each invalid UTF-8 byte is a separate character."""
    regex = import_package("regex", "the reference tokenizer")
    decoded = text.decode("utf-8", "surrogateescape")
    seen = decoded.translate(_stand_ins())
    return [
        decoded[piece.start() : piece.end()].encode("utf-8", "surrogateescape")
        for piece in regex.finditer(EXPRESSIONS[pattern], seen)
    ]


@cache
def _stand_ins() -> dict[int, str]:
    """A replacement for each newer character with its class in tiktoken: (code point, other)."""
    found = {_SMALL_IN_UNICODE_16: "z"}
    for word in NEWER_CHARACTERS.split():
        first, _, last = word.partition("-")
        codes = range(int(first, 16), int(last or first, 16) + 1)
        found |= dict.fromkeys(codes, "\ue000")  # private use in all Unicode versions
    return found


def split_specials(text: bytes, specials: Iterable[str]) -> list[tuple[bytes, bool]]:
    """Split text at special tokens: (part, is special); leftmost first, then longest."""
    tokens = sorted({special.encode() for special in specials}, key=len, reverse=True)
    parts: list[tuple[bytes, bool]] = []
    begin = position = 0
    while position < len(text):
        token = next((token for token in tokens if text.startswith(token, position)), None)
        if token is None:
            position += 1
            continue
        parts += [(text[begin:position], False), (token, True)]
        begin = position = position + len(token)
    parts.append((text[begin:], False))
    return [(part, special) for part, special in parts if part]


def count_pieces(
    texts: Iterable[bytes], *, pattern: Pattern, specials: Sequence[str]
) -> Counter[bytes]:
    """Count the pieces of texts; special tokens are not counted and not crossed."""
    counts: Counter[bytes] = Counter()
    for text in texts:
        for part, special in split_specials(text, specials):
            if not special:
                counts.update(split_pieces(part, pattern))
    return counts


def learn_merges(
    counts: Mapping[bytes, int],
    *,
    target: int,
    tie_break: str,
    min_frequency: int = 1,
    longest_token: float = math.inf,
) -> list[Pair]:
    """Learn merges until `target` tokens (huggingface) or merges (cs336), or no pair is left."""
    learn = _learn_afresh if tie_break == "cs336" else _learn_with_queue
    return learn(counts, target, min_frequency, longest_token)


def _learn_afresh(
    counts: Mapping[bytes, int], target: int, min_frequency: int, longest_token: float
) -> list[Pair]:
    """Recount all pairs for every merge; of the most frequent take the greatest bytes."""
    words = [([bytes([byte]) for byte in piece], count) for piece, count in counts.items()]
    merges: list[Pair] = []
    while len(merges) < target:
        pairs: Counter[Pair] = Counter()
        for word, count in words:
            for pair in pairwise(word):
                if len(pair[0]) + len(pair[1]) <= longest_token:
                    pairs[pair] += count
        best = max(pairs.items(), key=lambda item: (item[1], item[0]), default=None)
        if best is None or best[1] < min_frequency:
            break
        merges.append(best[0])
        words = [(_merge(word, best[0])[0], count) for word, count in words]
    return merges


def _merge(word: list[bytes], pair: Pair) -> tuple[list[bytes], list[tuple[Pair, int]]]:
    """Merge a pair in a word from the left; also return how the counts of other pairs change."""
    token = pair[0] + pair[1]
    merged: list[bytes] = []
    changes: list[tuple[Pair, int]] = []
    position = 0
    while position < len(word):
        if tuple(word[position : position + 2]) != pair:
            merged.append(word[position])
            position += 1
            continue
        if merged:
            changes += [((merged[-1], pair[0]), -1), ((merged[-1], token), 1)]
        if position + 2 < len(word):
            following = word[position + 2]
            changes += [((pair[1], following), -1), ((token, following), 1)]
        merged.append(token)
        position += 2
    return merged, changes


@dataclass
class _Entry:
    """A pair in the queue, with its count when last checked and the words it is in."""

    count: int
    pair: Pair
    words: set[int]


def _learn_with_queue(
    counts: Mapping[bytes, int], target: int, min_frequency: int, longest_token: float
) -> list[Pair]:
    """Follow Hugging Face's trainer step by step, including its behaviour when a token recurs.

    Its `max_token_length` is one more than `longest_token`. Queue entries store the words they were
    created for; a pair that gains words later gets a second entry, and counts are adjusted, never
    recomputed.
    """
    words = [[bytes([byte]) for byte in piece] for piece in counts]
    amounts = list(counts.values())
    ids = {bytes([byte]): rank for rank, byte in enumerate(sorted(range(256), key=_byte_order))}
    pair_counts: Counter[Pair] = Counter()
    places: dict[Pair, set[int]] = {}
    for index, word in enumerate(words):
        for pair in pairwise(word):
            pair_counts[pair] += amounts[index]
            places.setdefault(pair, set()).add(index)
    queue = [
        _Entry(pair_counts[pair], pair, where)
        for pair, where in places.items()
        if len(pair[0]) + len(pair[1]) <= longest_token
    ]
    merges: list[Pair] = []
    while len(ids) - 256 < target and queue:
        top = max(queue, key=lambda entry: (entry.count, *(-ids[part] for part in entry.pair)))
        if top.count != pair_counts[top.pair]:
            top.count = pair_counts[top.pair]
            continue
        if top.count < max(1, min_frequency):
            break
        queue = [entry for entry in queue if entry is not top]
        ids.setdefault(top.pair[0] + top.pair[1], len(ids))
        merges.append(top.pair)
        gained: dict[Pair, set[int]] = {}
        for index in top.words:
            words[index], changes = _merge(words[index], top.pair)
            for changed, amount in changes:
                pair_counts[changed] += amount * amounts[index]
                if amount > 0:
                    gained.setdefault(changed, set()).add(index)
        queue += [
            _Entry(pair_counts[pair], pair, where)
            for pair, where in gained.items()
            if pair_counts[pair] > 0 and len(pair[0]) + len(pair[1]) <= longest_token
        ]
    return merges


def _byte_order(byte: int) -> str:
    return printable(bytes([byte]))


def encode(
    text: bytes,
    *,
    merges: Sequence[Pair],
    pattern: Pattern,
) -> list[bytes]:
    """Return the tokens of text: in every piece, the earliest merge is applied first, leftmost."""
    ranks = {pair: rank for rank, pair in enumerate(merges)}
    tokens: list[bytes] = []
    for piece in split_pieces(text, pattern):
        word = [bytes([byte]) for byte in piece]
        while len(word) > 1:
            pairs = list(pairwise(word))
            best = min(range(len(pairs)), key=lambda place: ranks.get(pairs[place], len(ranks)))
            if pairs[best] not in ranks:
                break
            word[best : best + 2] = [word[best] + word[best + 1]]
        tokens += word
    return tokens
