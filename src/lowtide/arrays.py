"""Lazy import of NumPy, on first use: it takes 0.15 s, and preparing text does not need it.

Out:     `np`, a proxy that becomes the module
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__all__ = ["np"]

if TYPE_CHECKING:
    import numpy as np
else:

    class _NumPy:
        def __getattr__(self, name: str) -> Any:
            import numpy

            value = getattr(numpy, name)
            setattr(self, name, value)  # cached for later accesses
            return value

    np = _NumPy()
