"""What torch users need of the loader; the only module of this stage that imports torch."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from lowtide.loader.windows import Tokens

__all__ = ["empty_pinned"]

_TORCH_TYPES = {"int64": torch.int64, "int32": torch.int32, "uint16": torch.uint16}


def empty_pinned(shape: tuple[int, int], dtype: np.dtype[Any]) -> Tokens:
    """Make an array in page-locked memory, from which CUDA copies without waiting.

    `torch.from_numpy(array)` is pinned too. Where there is no CUDA the memory is ordinary.
    """
    pinned = torch.cuda.is_available()
    return torch.empty(shape, dtype=_TORCH_TYPES[dtype.name], pin_memory=pinned).numpy()
