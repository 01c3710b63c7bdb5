"""Load a tokenizer while the rest of a command is still being imported, which takes as long again.

In:      what names a tokenizer
Out:     the tokenizer, or the error, once it is asked for
Memory:  the tokenizer
"""

from __future__ import annotations

import threading
from pathlib import Path

from lowtide.tokenizer.tokenizer import Tokenizer

__all__ = ["TokenizerAhead"]


class TokenizerAhead:
    """A tokenizer that a thread of its own begins to load now.

    >>> TokenizerAhead("no such folder").result()
    Traceback (most recent call last):
    lowtide.errors.DataError: no tokenizer 'no such folder': no such folder or file, ...
    """

    def __init__(self, source: str | Path) -> None:
        self._source = source
        self._tokenizer: Tokenizer | None = None
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._load, name="lowtide-tokenizer")
        self._thread.start()

    def _load(self) -> None:
        try:
            self._tokenizer = Tokenizer.load(self._source)
        except BaseException as error:
            self._error = error  # for whoever asks

    def result(self) -> Tokenizer:
        """Return the tokenizer, or raise what went wrong, once that is known."""
        self._thread.join()
        if self._error is not None:
            raise self._error
        assert self._tokenizer is not None
        return self._tokenizer
