"""Initial weights bit-identical to torch's for a seed, drawn by several threads.

In:      a seed
Out:     the numbers of torch's generator, for any number of threads
Memory:  as model/firstweights.py, and 5 kB for every part that waits

torch draws a tensor in one thread. Its generator can be set to any position of its stream, and the
native Mersenne Twister skips ahead quickly: each thread lets torch fill one part from the part's
position.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from lowtide._native import Twister
from lowtide.model.firstweights import GROUP, STEP, Array, Draws

__all__ = ["TorchDraws"]

# A generator's state as torch saves it: the seed, words left and whether it is seeded, words used,
# the words themselves (64 bits each), then a normal number that is kept for the next draw of few.
_LEFT, _USED, _WORDS, _KEPT = slice(8, 12), slice(16, 24), slice(24, 24 + 624 * 8), 24 + 624 * 8


class TorchDraws(Draws):
    """Draws made by torch's generator."""

    def __init__(self, seed: int, *, step: int = STEP, num_workers: int | None = None) -> None:
        super().__init__(seed, step=step, num_workers=num_workers or torch.get_num_threads())
        self._state = torch.Generator().manual_seed(seed).get_state()

    def _generator(self, twister: Twister) -> torch.Generator:
        """torch's generator at the twister's position."""
        state = self._state.clone()
        fields, words = state.numpy(), np.frombuffer(twister.words, np.uint32)
        fields[_LEFT].view(np.int32)[0] = words.size + 1 - twister.num_used
        fields[_USED].view(np.uint64)[0] = twister.num_used
        fields[_WORDS].view(np.uint64)[:] = words
        return torch.Generator().set_state(state)

    def normal(self, count: int, std: float) -> Array:
        """Return normal numbers around 0, those of `torch.empty(count).normal_(0, std)`."""
        few = self._generator(self._twister)
        values = super().normal(count, std)
        if count < GROUP:  # torch has another algorithm then, which caches every second number
            values = torch.empty(count).normal_(0, std, generator=few).numpy()
            self._state[_KEPT:] = few.get_state()[_KEPT:]
        return values

    def fill_part(self, twister: Twister, part: Array, std: float) -> None:
        """Write torch's next numbers into a part."""
        there: Tensor = torch.from_numpy(part)
        there.normal_(0, std, generator=self._generator(twister))
