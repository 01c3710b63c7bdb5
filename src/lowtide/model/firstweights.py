"""Initial weights of a seed, equal to those of torch's generator, without torch.

In:      a GPTConfig of the qwen3 or gpt2 layout, a seed
Out:     parameters under our names, one at a time: as `torch.manual_seed(seed); GPT(config)`
Memory:  one parameter in float32; for each thread some parts of it while they are drawn

torch draws from a Mersenne Twister of 32-bit words, 24 bits of each for a float32, and turns pairs
of them into normal numbers (Box-Muller), eight pairs at a time. The native core has the same
generator, which skips words far faster than it makes numbers of them: threads draw parts of a
parameter in parallel, each from its own position of the one stream. Sines and logarithms may differ
in the last bit, so weights are equal to rounding. Modules draw numbers when they are created, which
the network then overwrites: those are skipped.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from lowtide._native import Twister
from lowtide.memory import usable_cores
from lowtide.model.config import GPTConfig
from lowtide.model.tensors import query_key_norm_sizes

__all__ = ["GROUP", "STEP", "Array", "Draws", "iter_first_weights", "parameter_shapes"]

Array = np.ndarray[Any, Any]

_STD = 0.02
_RESIDUAL = ("attention.output.weight", "mlp.down.weight")
GROUP = 16
"""Normal numbers are computed in groups of so many words."""
STEP = 1 << 20
"""Numbers that a thread draws at a time."""


def parameter_shapes(config: GPTConfig) -> dict[str, tuple[int, ...]]:
    """Names and shapes of all parameters, in the order in which the network makes them."""
    width, inner = config.width, config.mlp_width
    query, key = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    family, gated = config.family, config.family.gated_mlp
    norm_bias = family.norm == "layer"
    queries, keys = query_key_norm_sizes(config)
    # Parts of a block: shape, and whether there is a bias.
    block: dict[str, tuple[tuple[int, ...], bool]] = {
        "attention_norm": ((width,), norm_bias),
        "attention.query_key_value": ((query + 2 * key, width), config.has_qkv_bias),
        "attention.output": ((width, query), config.has_output_bias),
    }
    if family.query_key_norm != "none":
        block["attention.query_norm"] = (queries,), False
        block["attention.key_norm"] = (keys,), False
    block["mlp_norm"] = (width,), norm_bias
    up = ("mlp.gate_up", 2 * inner) if gated else ("mlp.up", inner)
    block[up[0]] = (up[1], width), config.has_mlp_bias
    block["mlp.down"] = (width, inner), config.has_mlp_bias
    shapes: dict[str, tuple[int, ...]] = {"embedding.weight": (config.vocab_size, width)}
    if family.learned_positions:
        shapes["positions.weight"] = (config.context_length, width)
    for layer in range(config.num_layers):
        for name, (shape, bias) in block.items():
            shapes.update(_with_bias(f"blocks.{layer}.{name}", shape, bias=bias))
    shapes.update(_with_bias("final_norm", (width,), bias=norm_bias))
    if not config.tie_weights:
        shapes["head.weight"] = (config.vocab_size, width)
    return shapes


def _with_bias(name: str, shape: tuple[int, ...], *, bias: bool) -> dict[str, tuple[int, ...]]:
    return {f"{name}.weight": shape, **({f"{name}.bias": shape[:1]} if bias else {})}


def iter_first_weights(
    config: GPTConfig, seed: int, *, zero_init: bool = False, draws: Draws | None = None
) -> Iterator[tuple[str, Array]]:
    """Yield (our name, float32 weights) of a new network; with `draws` by another generator."""
    shapes = parameter_shapes(config)
    draws = draws or Draws(seed)
    for name, shape in shapes.items():
        _skip(draws, name, shape)
    residual_std = _STD / math.sqrt(2 * config.num_layers)
    for name, shape in shapes.items():
        if len(shape) == 1:
            yield name, np.full(shape, 0.0 if name.endswith("bias") else 1.0, np.float32)
            continue
        residual = name.endswith(_RESIDUAL)
        values = draws.normal(math.prod(shape), residual_std if residual else _STD)
        values = values.reshape(shape)
        yield name, np.zeros_like(values) if zero_init and residual else values


def _skip(draws: Draws, name: str, shape: tuple[int, ...]) -> None:
    """Skip the numbers that a module drew for a parameter when it was created."""
    size = math.prod(shape)
    if name in ("embedding.weight", "positions.weight"):
        draws.skip_normal(size)
    elif not name.endswith(("norm.weight", "norm.bias")):  # a linear layer's, and its bias
        draws.skip(size)


class Draws:
    """torch's generator of a CPU: words, and normal numbers made of them."""

    def __init__(self, seed: int, *, step: int = STEP, num_workers: int | None = None) -> None:
        self._step, self._num_workers = step, num_workers or usable_cores()
        self._twister = Twister(seed & 0xFFFFFFFF)
        self._kept: float | None = None

    def skip(self, count: int) -> None:
        """Skip words."""
        self._twister.skip(count)

    def skip_normal(self, count: int) -> None:
        """Skip the words that `normal` would use."""
        if count < GROUP:
            self.normal(count, 1.0)
        else:
            self.skip(_num_words(count))

    def normal(self, count: int, std: float) -> Array:
        """Return normal numbers around 0, as `torch.empty(count).normal_(0, std)` fills them."""
        if count < GROUP:
            return np.array([self._one() * std for _ in range(count)], np.float32)
        values = np.empty(count, np.float32)
        if self._num_workers == 1 or count <= self._step:
            for part in self._parts(values):
                self.fill_part(self._ahead(_num_words(part.size)), part, std)
            return values
        with ThreadPoolExecutor(self._num_workers) as threads:
            jobs = [
                threads.submit(self.fill_part, self._ahead(_num_words(part.size)), part, std)
                for part in self._parts(values)
            ]
        for job in jobs:
            job.result()
        return values

    def _parts(self, values: Array) -> Iterator[Array]:
        """Parts of whole groups, except the last, which has at least one group."""
        starts = [*range(0, values.size - GROUP + 1, self._step), values.size]
        for start, end in itertools.pairwise(starts):
            yield values[start:end]

    def _ahead(self, num_words: int) -> Twister:
        """A copy of the twister's state; the twister itself skips these words."""
        here = self._twister.copy()
        self._twister.skip(num_words)
        return here

    def fill_part(self, twister: Twister, part: Array, std: float) -> None:
        """Write the twister's next normal numbers into a part."""
        words = np.empty(part.size, np.float32)
        twister.fill(words)
        whole = part.size - part.size % GROUP
        part[:whole] = _pairs_to_normal(words[:whole], std)
        if whole < part.size:  # the last group overlaps the one before, with new words
            twister.fill(words[:GROUP])
            part[-GROUP:] = _pairs_to_normal(words[:GROUP], std)

    def _one(self) -> float:
        """Return one normal number by torch's method for few: in float64, the second one cached."""
        if self._kept is not None:
            value, self._kept = self._kept, None
            return value
        words = [self._twister.next() for _ in range(4)]
        # Two words make one of 64 bits, the first one being the higher half.
        first, second = (((words[i] << 32) | words[i + 1]) & ((1 << 53) - 1) for i in (0, 2))
        radius = math.sqrt(-2.0 * math.log1p(-second * 2.0**-53))
        angle = 2.0 * math.pi * (first * 2.0**-53)
        self._kept = radius * math.sin(angle)
        return radius * math.cos(angle)


def _num_words(count: int) -> int:
    """Words that so many normal numbers take, sixteen or more."""
    return count + (GROUP if count % GROUP else 0)


def _pairs_to_normal(uniform: Array, std: float) -> Array:
    """Turn words into normal numbers, sixteen at a time: number i goes with number i + 8."""
    pairs = uniform.reshape(-1, 2, GROUP // 2)
    radius = np.sqrt(np.float32(-2) * np.log(np.float32(1) - pairs[:, 0]))
    angle = np.float32(2 * math.pi) * pairs[:, 1]
    both = np.stack((radius * np.cos(angle), radius * np.sin(angle)), axis=1)
    return (both * np.float32(std)).reshape(-1)
