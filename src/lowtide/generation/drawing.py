"""Choose the next token from logits with NumPy, by the rules of sampling.py; no framework.

In:      logits [V], the ids so far
Out:     an id
Memory:  some copies of the logits
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from lowtide.generation.recentids import RecentIds
from lowtide.generation.settings import LARGEST_LOGIT, SamplingSettings

__all__ = ["ArrayChooser", "choose_token"]

Array = np.ndarray[Any, Any]


class ArrayChooser:
    """Chooses the tokens of one text; the penalty is for its newest ids."""

    def __init__(
        self,
        ids: Sequence[int],
        size: int,
        seed: int | None,
        sampling: SamplingSettings,
        vocab_size: int,
    ) -> None:
        seen = np.full(size, ids[0], np.int64)
        seen[: len(ids)] = ids
        self.recent = RecentIds(seen, count=len(ids))
        self._sampling, self._vocab_size = sampling, vocab_size
        self._dice = np.random.default_rng(seed)

    def choose(self, logits: Array, banned: Sequence[int]) -> int:
        """The next token after logits [V]; never one of `banned`, nor one beyond the vocabulary."""
        token = choose_token(
            logits[: self._vocab_size],
            self.recent.ids,
            self._sampling,
            banned=banned,
            dice=self._dice,
        )
        self.recent.add(token)
        return token


def choose_token(
    logits: Array,
    seen: Sequence[int] | Array,
    settings: SamplingSettings,
    *,
    banned: Sequence[int] = (),
    dice: np.random.Generator,
) -> int:
    """Return an id; `dice` draws it if the settings leave more than one."""
    # A model that diverged has NaN or infinite logits: then all such tokens are equally likely,
    # which is better than an error.
    logits = np.clip(np.nan_to_num(logits), -LARGEST_LOGIT, LARGEST_LOGIT)
    if banned:
        logits[list(banned)] = -np.inf
    if settings.repetition_penalty != 1.0:
        places = np.minimum(np.asarray(seen, np.int64), logits.size - 1)
        picked, penalty = logits[places], settings.repetition_penalty
        logits[places] = np.where(picked > 0, picked / penalty, picked * penalty)
    if settings.temperature < 1e-4:  # dividing by less would overflow
        return int(logits.argmax())
    left, shares = _shares(logits / settings.temperature, settings)
    reached = np.cumsum(shares)
    drawn = int(np.searchsorted(reached, dice.random() * reached[-1], side="right"))
    return int(left[min(drawn, left.size - 1)])


def _shares(logits: Array, settings: SamplingSettings) -> tuple[Array, Array]:
    """The tokens left by top-k and top-p, and their probabilities; the likeliest is always left."""
    left = np.arange(logits.size)
    if 0 < settings.top_k < logits.size:
        # Softmax and sorting of a large vocabulary would take longer than a small network does.
        left = np.flatnonzero(logits >= np.partition(logits, -settings.top_k)[-settings.top_k])
    kept = logits[left].astype(np.float64)
    shares = np.exp(kept - kept.max())
    shares /= shares.sum()
    if settings.top_p < 1.0:
        # All tokens below this probability together have less than 1 - top_p: none is left.
        likely = np.flatnonzero(shares >= (1.0 - settings.top_p) / shares.size)
        order = likely[np.argsort(-shares[likely], kind="stable")]
        before = np.cumsum(shares[order]) - shares[order]
        chosen = order[before < settings.top_p] if settings.top_p > 0 else order[:1]
        left, shares = left[chosen], shares[chosen] / shares[chosen].sum()
    return left, shares
