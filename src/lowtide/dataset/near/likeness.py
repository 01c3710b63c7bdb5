"""Likeness: the similarity threshold of near copies, and the MinHash bands that find them.

In:      a threshold, and the number of words in an n-gram
Out:     Likeness: bands of minima, and the probability that a pair is found by them
Memory:  a few numbers
"""

from __future__ import annotations

import math

from lowtide import _native
from lowtide.quickclasses import dataclass

__all__ = ["Likeness"]

_MOST_ROWS = 8
_BAND_SHARE = 0.27
"""Approximate chance of a pair at the threshold to share one band: fewer minima cost less, but give
more candidate pairs that turn out to be dissimilar."""
_MISSED = 0.02
"""The share of pairs at the threshold that may share no band; of those above it, it is less."""


@dataclass(frozen=True)
class Likeness:
    """How similar documents have to be, and the parameters of their signatures.

    >>> options = Likeness(0.8, 5)
    >>> options.bands, options.rows, round(options.recall(0.8), 3), round(options.recall(0.9), 5)
    (13, 6, 0.981, 0.99995)
    """

    threshold: float
    ngram: int

    @property
    def rows(self) -> int:
        """Minima in a band."""
        rows = range(1, _MOST_ROWS + 1)
        return next((count for count in rows if self.threshold**count <= _BAND_SHARE), _MOST_ROWS)

    @property
    def bands(self) -> int:
        """Bands of a signature."""
        share = self.threshold**self.rows
        return 1 if share >= 1 - _MISSED else math.ceil(math.log(_MISSED) / math.log(1 - share))

    def recall(self, similarity: float) -> float:
        """The chance of a pair with this similarity to share a band."""
        return 1 - (1 - similarity**self.rows) ** self.bands

    def signer(self) -> _native.NearSigner:
        """The native object that computes signatures."""
        return _native.NearSigner(self.threshold, self.ngram, self.bands, self.rows)
