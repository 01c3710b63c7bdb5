"""Tell files of JSON rows from other JSON: both may be named .json.

In:      the path of a file or an object
Out:     its format and compression
Memory:  1 MiB of text, and a decompressor's window as far as it is filled
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from lowtide.corpus.inputformats import classify, may_hold_rows
from lowtide.errors import LowtideError

__all__ = ["classify_file"]

_HEAD_BYTES = 1 << 20


def classify_file(path: Path) -> tuple[str, str | None]:
    """Like `classify`, but a .json file of rows, as C4 has them, is jsonl.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "rows.json"
    >>> _ = path.write_text('{"text": "a"}\\n{"text": "b"}')
    >>> classify_file(path)
    ('jsonl', None)
    """
    kind, compression = classify(path)
    return (
        "jsonl" if may_hold_rows(path) and _holds_rows(path, compression) else kind
    ), compression


def _holds_rows(path: Path, compression: str | None) -> bool:
    """True if two lines or more begin a file, of which the first is a JSON object.

    An object alone is a file of settings or data, whose text may be wanted as it is. What cannot
    be read is not rows: reading it as text reports the error.
    """
    from lowtide.corpus.decompression import open_stream  # which knows InputFile
    from lowtide.corpus.inputs import InputFile

    try:
        with open_stream(InputFile(0, path, "text", compression, 0)) as stream:
            head = stream.read(_HEAD_BYTES).removeprefix(b"\xef\xbb\xbf").lstrip()
            first, line_end, others = head.partition(b"\n")
            if not line_end:
                is_object, others = _pass_long_row(head, stream.read)
            else:
                is_object = isinstance(json.loads(first), dict)
            while is_object and not (others := others.lstrip()):
                if not (others := stream.read(_HEAD_BYTES)):
                    return False
            return is_object and others.startswith(b"{")
    except (LowtideError, OSError, ValueError, RecursionError):
        return False


def _pass_long_row(head: bytes, read: Callable[[int], bytes]) -> tuple[bool, bytes]:
    """Read on to the end of a line: whether it begins and ends as an object, and what follows.

    As Python objects it would take many times its size; the reader of rows reports one that is no
    JSON after all.
    """
    last = head.rstrip()[-1:]
    while head.startswith(b"{") and (part := read(_HEAD_BYTES)):
        rest, line_end, others = part.partition(b"\n")
        last = rest.rstrip()[-1:] or last
        if line_end:
            return last == b"}", others
    return False, b""
