"""Gains and biases: a thousandth of a network, in float32 on the device on every rung."""

from __future__ import annotations

import torch
from torch import Tensor

from lowtide.ladder.units import unit_name

__all__ = ["Smalls"]


class Smalls:
    """Gains and biases: float32 numbers on the device, with their moments and gradients."""

    def __init__(self, shapes: dict[str, tuple[int, ...]], device: torch.device) -> None:
        self.shapes = shapes
        size = sum(torch.Size(shape).numel() for shape in shapes.values())
        self.values, self.first, self.second, self.gradients = (
            torch.zeros(size, device=device) for _ in range(4)
        )

    def named(self, flat: Tensor) -> dict[str, Tensor]:
        """Parts of one of the four by name."""
        sizes = [torch.Size(shape).numel() for shape in self.shapes.values()]
        parts = flat.split(sizes)
        return {n: p.view(s) for (n, s), p in zip(self.shapes.items(), parts, strict=True)}

    def by_owner(self) -> dict[str, dict[str, Tensor]]:
        """The numbers themselves, by the block or norm that they belong to."""
        found: dict[str, dict[str, Tensor]] = {}
        for name, value in self.named(self.values).items():
            found.setdefault(unit_name(name), {})[name] = value
        return found
