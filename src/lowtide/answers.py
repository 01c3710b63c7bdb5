"""The output of a verb: text for people, or one JSON object for programs.

In:      a verb's result
Out:     stdout
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
import shutil
import sys
import tempfile
from collections.abc import Callable, Generator, Iterable, Mapping
from typing import Any, cast

from lowtide.errors import printable
from lowtide.quickclasses import dataclass
from lowtide.scratch import naming_full_disk
from lowtide.standardstreams import is_stdout_read

__all__ = [
    "Answer",
    "answer",
    "is_quiet",
    "print_answer",
    "shown_as",
    "tell",
    "to_json",
    "wants_json",
]

_shown = {"json": False, "quiet": False}  # the output mode of this process


@dataclass(frozen=True)
class Answer:
    """A result, shown in one of two ways."""

    parts: Iterable[str]
    """Text in parts; iterating over them may be the work itself."""
    data: Callable[[], Mapping[str, Any]] = dict
    """The same for programs; called after all parts."""
    field: str | None = None
    """If the parts are the whole result: the JSON field for their text. They are written one by
    one, and never held together."""
    rows: Callable[[], Iterable[Any]] | None = None
    """If that field is a list: returns its rows, which JSON shows instead of the parts."""
    end: str = "\n"
    """Printed after each part."""
    error: Exception | None = None
    """Raised after the result was shown."""


def answer(text: object, **data: Any) -> Answer:
    """Return an answer whose text is complete already; control characters in it are escaped."""
    return Answer([printable(str(text))], lambda: data)


@contextlib.contextmanager
def shown_as(*, as_json: bool, quiet: bool) -> Generator[None]:
    """A context in which results are shown according to `--json` and `--quiet`."""
    before = dict(_shown)
    _shown.update(json=as_json, quiet=quiet)
    try:
        yield
    finally:
        _shown.update(before)


def wants_json() -> bool:
    """True if stdout is for one JSON object."""
    return _shown["json"]


def is_quiet() -> bool:
    """True if stderr is for errors and warnings only."""
    return _shown["quiet"]


def tell(text: str) -> None:
    """Print a line about the work on stderr, unless --quiet was given."""
    if not is_quiet():
        print(printable(text), file=sys.stderr, flush=True)


def print_answer(given: Answer) -> None:
    """Print an answer; as JSON it is one object on one line."""
    as_json = wants_json()
    if as_json and given.field is not None:
        if given.rows is not None:
            _print_rows(given.field, given.rows())
        else:
            _stream_json(given.field, given.parts)
        return
    is_stream = given.end == ""
    for part in given.parts:
        if not as_json:
            print(part, end=given.end, flush=is_stream)
        if is_stream and not is_stdout_read():  # without a reader, the work is useless
            break
    if as_json:
        print(json.dumps(to_json(given.data())))
    if given.error is not None:
        raise given.error


def _stream_json(field: str, parts: Iterable[str]) -> None:
    """Print an object with one field of text of any length."""
    sys.stdout.write(f'{{{json.dumps(field)}: "')
    for part in parts:
        sys.stdout.write(json.dumps(part)[1:-1])
        if not is_stdout_read():
            break
    sys.stdout.write('"}\n')


def _print_rows(field: str, rows: Iterable[Any]) -> None:
    """Print an object with one list; rows go to a file first, so that an error prints nothing."""
    with tempfile.TemporaryFile("w+", encoding="utf-8") as file:
        with naming_full_disk():
            for number, row in enumerate(rows):
                file.write((", " if number else "") + json.dumps(to_json(row)))
            file.seek(0)
        sys.stdout.write(f"{{{json.dumps(field)}: [")
        shutil.copyfileobj(file, sys.stdout)
        sys.stdout.write("]}\n")


def to_json(value: Any) -> Any:
    """Convert a value for JSON: dataclasses to objects, paths to text, no NaN."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {
            field.name: to_json(getattr(value, field.name)) for field in dataclasses.fields(value)
        }
    if isinstance(value, Mapping):
        rows = cast("Mapping[Any, Any]", value)
        return {str(key): to_json(item) for key, item in rows.items()}
    if isinstance(value, list | tuple):
        return [to_json(item) for item in cast("list[Any]", value)]
    if callable(to_number := getattr(value, "item", None)):  # a number of NumPy or torch
        value = to_number()
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if value is None or isinstance(value, bool | int | float | str):
        return value
    return str(value)  # a path, a type of numbers
