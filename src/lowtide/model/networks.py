"""The interface to a backend's devices and loader, shared by evaluation and generation.

In:      the name of a device, a folder with weights
Out:     devices, and networks on them, which have numbers; no torch, no JAX here
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from lowtide.errors import UsageError

__all__ = ["Networks", "require_values"]


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


def require_values(model: Any) -> None:
    """Refuse a torch network whose tensors are on the meta device: they have shapes, no numbers."""
    if isinstance(model, type):
        return  # refused as a type
    for kind in ("parameters", "buffers"):
        list_tensors = getattr(model, kind, None)
        if callable(list_tensors):
            tensors: Any = list_tensors()
            if any(getattr(tensor, "is_meta", False) for tensor in tensors):
                raise UsageError(
                    f"the model has {kind} on torch's meta device, which have no numbers",
                    next_step="make the model outside of torch.device('meta'), or load its weights "
                    "with lowtide.load_model",
                )
