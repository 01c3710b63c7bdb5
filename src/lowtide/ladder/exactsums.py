"""Deterministic sums on a GPU, so that every rung, and every run, computes the same bits.

In:      the device of a run
Out:     torch's deterministic mode while gradients are computed, restored afterwards
Memory:  none of its own

torch's fused attention adds the gradients of queries in no fixed order if rows are longer than one
of its blocks (128 tokens): two runs of one rung differ then. In deterministic mode the order is
fixed, which was no slower (313 million parameters on one H200, `benchmarks/rung_bits.py`). The mode
raises an error for operations that have no deterministic form: the run then goes on without it,
with a notice.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Generator
from typing import Any

import torch
import torch.utils.deterministic

__all__ = ["ExactSums"]

_settings: Any = torch.utils.deterministic  # its one setting is an attribute of the module
_REFUSED = "deterministic"  # a word in every error of the mode


class ExactSums:
    """The mode of one run: on if the device is a GPU, until an operation does not support it."""

    def __init__(self, device: torch.device, note: Callable[[str], None]) -> None:
        self._note = note
        self._wanted = device.type == "cuda"
        if self._wanted:
            # cuBLAS needs this, and reads it at its first product.
            os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")

    @contextlib.contextmanager
    def __call__(self) -> Generator[None]:
        if not self._wanted:
            yield
            return
        before = torch.are_deterministic_algorithms_enabled()
        warns = torch.is_deterministic_algorithms_warn_only_enabled()
        fills = _settings.fill_uninitialized_memory
        _settings.fill_uninitialized_memory = False  # nothing is read before it is written
        torch.use_deterministic_algorithms(True)
        try:
            yield
        finally:
            torch.use_deterministic_algorithms(before, warn_only=warns)
            _settings.fill_uninitialized_memory = fills

    def gives_up(self, error: RuntimeError) -> bool:
        """True if the error comes from the mode, which is then off from now on."""
        if not self._wanted or _REFUSED not in str(error):
            return False
        self._wanted = False
        self._note(
            "sums are not in one order from here on: runs may differ in their last bits "
            f"({str(error).splitlines()[0]})"
        )
        return True
