"""The interface to a backend's devices and loader, shared by evaluation and generation.

In:      the name of a device, a folder with weights
Out:     devices, and networks on them; no torch, no JAX here
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

__all__ = ["Networks"]


class Networks(Protocol):
    """The devices of a backend, and networks loaded onto them."""

    def open(self, device: str) -> Any:
        """The devices of a setting; devices that do not exist are refused."""
        ...

    def is_cpu(self, place: Any) -> bool:
        """True if networks there use host memory."""
        ...

    def device_memory(self, place: Any) -> Callable[[], tuple[int, int]] | None:
        """A function that returns the memory in use on a GPU, and its size; None on a CPU."""
        ...

    def load(self, folder: Path, place: Any) -> Any:
        """The network of a folder."""
        ...
