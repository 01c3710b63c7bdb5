"""Limits of how much text is counted, hashed, learned from or encoded at a time.

Out:     CountingLimits, for counting and learning; EncodingLimits, for encoding
Memory:  a few numbers
"""

from __future__ import annotations

from lowtide.corpus.contents import PART_BYTES
from lowtide.quickclasses import dataclass

__all__ = ["CountingLimits", "EncodingLimits"]


@dataclass(frozen=True)
class CountingLimits:
    """Sizes of steps. The merges do not depend on them."""

    batch_bytes: int = 8 << 20
    """Text of small files, rows and archives that is counted at once."""
    round_bytes: int = 256 << 20
    """Of a plain file between two checks of clock, signals and disk."""
    small_file_bytes: int = 1 << 20
    """Files up to this size are counted many at a time."""
    checkpoint_seconds: float = 30.0
    """Between two checkpoints of the counts."""
    hash_part_bytes: int = PART_BYTES
    """The parts of an input that are hashed separately; hashes on the disk depend on it."""
    merges_per_call: int = 256
    """Learned by native code before it returns, so that Ctrl-C works."""
    written_byte_bytes: int = 11
    """Memory for a byte of a token while it is written: as text, as JSON, in the vocabulary and in
    merges. Measured on megabytes of one letter and of one word, whose last tokens are as long."""


@dataclass(frozen=True)
class EncodingLimits:
    """Sizes of steps. The ids do not depend on them."""

    window_bytes: int = 1 << 20
    """Of a stream or a file, held at a time."""
    cache_bytes: int = 16 << 20
    """Ids of pieces that a thread remembers."""
    native_characters: int = 1 << 18
    """Of a text whose tokenizer's rules native code follows, encoded at a time: it takes 3 MB."""
    piece_characters: int = 32 << 10
    """Of a text for the package tokenizers, encoded at a time; a place to cut is looked for up to
    half as far from there."""
    most_characters: int = 16 << 20
    """The longest text without a place to cut."""
