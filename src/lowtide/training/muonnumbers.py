"""The numbers of Muon, for both backends and for what is planned: no torch, no JAX."""

from __future__ import annotations

__all__ = ["NORM_MARGIN", "POLAR_EXPRESS", "ROW_MEMORY", "STACK_BYTES"]

# Matrices of equal shape that are made orthogonal together.
STACK_BYTES = 256 << 20
# How much of the mean squares of rows stays from step to step.
ROW_MEMORY = 0.95
# The polynomials that bring singular values near 1 (Amsel et al., 2025).
POLAR_EXPRESS = (
    (8.15655, -22.48329, 15.87877),
    (4.04293, -2.80892, 0.50002),
    (3.89167, -2.77248, 0.50606),
    (3.28575, -2.36813, 0.46449),
    (2.34654, -1.70978, 0.42324),
)
# They are made for singular values up to 1; rounding must not bring one above.
NORM_MARGIN = 1.02
