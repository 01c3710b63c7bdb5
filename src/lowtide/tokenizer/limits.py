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
    """Bytes of a plain file between two checks of clock, signals and disk."""
    small_file_bytes: int = 1 << 20
    """Files up to this size are counted in batches."""
    checkpoint_seconds: float = 30.0
    """Interval between two checkpoints of the counts."""
    hash_part_bytes: int = PART_BYTES
    """Size of the separately hashed parts of an input; hashes on disk depend on it."""
    merges_per_call: int = 256
    """Merges learned by native code per call, so that Ctrl-C works."""
    written_byte_bytes: int = 11
    """Memory for a byte of a token while it is written: as text, as JSON, in the vocabulary and in
    merges. Measured on megabytes of one letter and of one word, whose last tokens are that long."""


@dataclass(frozen=True)
class EncodingLimits:
    """Sizes of steps. The ids do not depend on them."""

    window_bytes: int = 1 << 20
    """Bytes of a stream or a file that are held at a time."""
    cache_bytes: int = 16 << 20
    """Cache of a thread for the ids of pieces."""
    native_characters: int = 1 << 18
    """Part of a text encoded at a time natively by tokenizer rules (PieceRules): it takes 3 MB."""
    piece_characters: int = 32 << 10
    """Part of a text encoded at a time by the package tokenizers; a place to cut is searched for up
    to half as far from there."""
    most_characters: int = 16 << 20
    """The longest text without a place to cut."""
