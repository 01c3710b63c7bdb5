"""NumPy, imported when it is first used: it takes 0.15 s, and preparing text goes without it.

Out:     `np`, which stands for the module and becomes it
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
            setattr(self, name, value)  # found directly from now on
            return value

    np = _NumPy()
