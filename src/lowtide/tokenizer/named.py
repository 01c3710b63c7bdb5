"""Tokenizers as callers of the Python interface give them: an object, or its name or path.

In:      a Tokenizer, or what Tokenizer.load takes
Out:     a Tokenizer; UsageError for anything else
"""

from __future__ import annotations

import os
from typing import Any

from lowtide.errors import UsageError
from lowtide.tokenizer.tokenizer import Tokenizer

__all__ = ["open_tokenizer"]


def open_tokenizer(given: Any) -> Tokenizer:
    """Return a Tokenizer, loaded if its name or path is given.

    >>> open_tokenizer("gpt2").vocab_size
    50257
    """
    if isinstance(given, str | os.PathLike):
        return Tokenizer.load(os.fspath(given))
    if not isinstance(given, Tokenizer):
        raise UsageError(
            f"tokenizer is of type {type(given).__name__}, expected a lowtide.Tokenizer",
            next_step='give lowtide.Tokenizer.load(FOLDER), or its folder or file, or "gpt2"',
        )
    return given
