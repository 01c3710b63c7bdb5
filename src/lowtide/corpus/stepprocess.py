"""The subprocess that runs a user's function on documents; it does not import lowtide.

In:      stdin: batches, each a number of documents, then the size and the bytes of each
Out:     stdout: for each document the outcome, and the new text or an error
Memory:  a batch, and the memory of the function

Output of the function goes to stderr. The module `random` is seeded for every document from its
text, so that results do not depend on which process handles it.
"""

from __future__ import annotations

import importlib.util
import os
import random
import struct
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import IO

KEPT, DROPPED, CHANGED, FAILED = range(4)
HEAD = struct.Struct("<BQ")
COUNT = struct.Struct("<Q")


def main(path: str, name: str) -> None:
    """Load the function, then process batches until the end of input."""
    source, answers = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    try:
        function = load(path, name)
        answer(answers, KEPT, b"")
    except BaseException as error:
        answer(answers, FAILED, describe(error, path))
        return
    while head := source.read(COUNT.size):
        sizes = [COUNT.unpack(source.read(COUNT.size))[0] for _ in range(COUNT.unpack(head)[0])]
        texts = [source.read(size) for size in sizes]
        for text in texts:
            answers.write(b"".join(judge(function, text, path)))
        answers.flush()


def load(path: str, name: str) -> Callable[[str], object]:
    """Load the function from a file, with the file's folder on the import path."""
    sys.path.insert(0, str(Path(path).parent))
    spec = importlib.util.spec_from_file_location("lowtide_step", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["lowtide_step"] = module
    spec.loader.exec_module(module)
    function = getattr(module, name)
    if not callable(function):
        raise TypeError(f"{name} is not a function")
    return function


def judge(function: Callable[[str], object], text: bytes, path: str) -> tuple[bytes, bytes]:
    """Apply the function to a document and return the outcome."""
    random.seed(text)
    try:
        result = function(text.decode())
        if result is not None and not isinstance(result, str):
            raise TypeError(f"it returned {type(result).__name__}, expected str or None")
    except Exception as error:
        return pack(FAILED, describe(error, path))
    if result is None:
        return pack(DROPPED, b"")
    data = result.encode("utf-8", "replace")
    return pack(KEPT, b"") if data == text else pack(CHANGED, data)


def pack(kind: int, data: bytes) -> tuple[bytes, bytes]:
    """Encode a response."""
    return HEAD.pack(kind, len(data)), data


def answer(file: IO[bytes], kind: int, data: bytes) -> None:
    """Write a response and flush it."""
    file.write(b"".join(pack(kind, data)))
    file.flush()


def describe(error: BaseException, path: str) -> bytes:
    """The error, and the last line of the user's file in its traceback."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if str(Path(frame.filename).absolute()) == path]
    line = own[-1].lineno if own else getattr(error, "lineno", None)
    where = f" ({Path(path).name}, line {line})" if line else ""
    return f"{type(error).__name__}: {error}{where}".encode("utf-8", "replace")


if __name__ == "__main__":
    main(*sys.argv[1:])
