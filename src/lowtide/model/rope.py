"""RoPE scaling: rotary positions extended beyond the context a model was first trained with.

In:      head size, base, and the scaling that config.json names
Out:     the angle of each pair of a head per position, and a factor of cosines and sines; no torch
"""

from __future__ import annotations

import math
from typing import Literal, get_args

from lowtide.quickclasses import dataclass
from lowtide.settings import require

__all__ = ["SCALINGS", "RopeScaling", "frequencies", "table_factor", "yarn_growth"]

Scaling = Literal["linear", "llama3", "yarn"]
SCALINGS: tuple[str, ...] = get_args(Scaling)


@dataclass(frozen=True)
class RopeScaling:
    """How the frequencies of rotary positions differ from the plain ones."""

    rope_type: Scaling
    factor: float
    """How many times longer the context became."""
    original_max_position_embeddings: int = 0
    """The context before (llama3, yarn)."""
    low_freq_factor: float = 1.0
    """llama3: wavelengths longer than the old context over this are stretched."""
    high_freq_factor: float = 4.0
    """llama3: wavelengths shorter than the old context over this stay."""
    beta_fast: float = 32.0
    """yarn: pairs with more rotations than this in the old context stay."""
    beta_slow: float = 1.0
    """yarn: pairs with fewer rotations than this are stretched."""
    attention_factor: float = 0.0
    """yarn: factor of cosines and sines; 0 means 0.1 ln(factor) + 1."""
    truncate: bool = True
    """yarn: the ramp between the two begins and ends at whole pairs."""

    def __post_init__(self) -> None:
        require(self.rope_type in SCALINGS, "rope_type", self.rope_type, " or ".join(SCALINGS))
        for name in ("factor", "low_freq_factor", "high_freq_factor", "beta_fast", "beta_slow"):
            value = getattr(self, name)
            require(0.0 < value < math.inf, name, value, "more than 0, and finite")
        require(0.0 <= self.attention_factor < math.inf, "attention_factor",
                self.attention_factor, "0 or more, and finite")  # fmt: skip
        if self.rope_type == "linear":
            return
        known = 1 <= self.original_max_position_embeddings <= 1 << 24
        require(known, "original_max_position_embeddings",
                self.original_max_position_embeddings, "from 1 to 2^24")  # fmt: skip
        if self.rope_type == "llama3":
            apart = self.high_freq_factor > self.low_freq_factor
            require(apart, "high_freq_factor", self.high_freq_factor, "more than low_freq_factor")


def frequencies(head_dim: int, theta: float, scaling: RopeScaling | None) -> list[float]:
    """Radians per position of each pair of a head.

    >>> frequencies(4, 100.0, RopeScaling("linear", 2.0))
    [0.5, 0.05]
    """
    plain = [theta ** (-2 * pair / head_dim) for pair in range(head_dim // 2)]
    if scaling is None:
        return plain
    if scaling.rope_type == "linear":
        return [frequency / scaling.factor for frequency in plain]
    if scaling.rope_type == "llama3":
        return [_llama3(frequency, scaling) for frequency in plain]
    return _yarn(plain, head_dim, theta, scaling)


def table_factor(scaling: RopeScaling | None) -> float:
    """What cosines and sines are multiplied by."""
    if scaling is None or scaling.rope_type != "yarn":
        return 1.0
    if scaling.attention_factor:
        return scaling.attention_factor
    return yarn_growth(scaling.factor)


def yarn_growth(factor: float, scale: float = 1.0) -> float:
    """What cosines and sines grow by for a context `factor` times as long.

    >>> round(yarn_growth(4.0), 4), yarn_growth(0.5)
    (1.1386, 1.0)
    """
    return 0.1 * scale * math.log(factor) + 1.0 if factor > 1 else 1.0


def _llama3(frequency: float, scaling: RopeScaling) -> float:
    turns = scaling.original_max_position_embeddings * frequency / (2 * math.pi)
    low, high = scaling.low_freq_factor, scaling.high_freq_factor
    if turns > high:
        return frequency
    if turns < low:
        return frequency / scaling.factor
    share = (turns - low) / (high - low)
    return frequency * ((1 - share) / scaling.factor + share)


def _yarn(plain: list[float], head_dim: int, theta: float, scaling: RopeScaling) -> list[float]:
    context = scaling.original_max_position_embeddings

    def pair_of(turns: float) -> float:
        """The (fractional) pair with so many rotations in the old context."""
        return head_dim * math.log(context / (turns * 2 * math.pi)) / (2 * math.log(theta))

    first, last = pair_of(scaling.beta_fast), pair_of(scaling.beta_slow)
    if scaling.truncate:
        first, last = math.floor(first), math.ceil(last)
    first, last = max(first, 0), min(last, head_dim - 1)
    width = last - first or 0.001
    stretched: list[float] = []
    for pair, frequency in enumerate(plain):
        ramp = min(max((pair - first) / width, 0.0), 1.0)
        stretched.append(frequency * (1 - ramp) + frequency / scaling.factor * ramp)
    return stretched
