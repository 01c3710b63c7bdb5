"""Read the texts of a Hugging Face dataset row by row, by its name on the Hub or a local folder.

In:      `hf://NAME`, `hf://NAME:SPLIT`, `hf://FOLDER` (the extra "datasets" must be installed)
Out:     the texts of one column, in order
Memory:  what the datasets package buffers while it streams
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from lowtide.errors import DataError, UsageError
from lowtide.packages import import_package

__all__ = [
    "HUB_PREFIX",
    "hub_name",
    "hub_text",
    "is_saved_dataset",
    "iter_hub_rows",
    "iter_hub_texts",
    "open_hub_rows",
    "parse_hub_name",
]

HUB_PREFIX = "hf://"
_NAME_COLUMN = "name the column of text with --text-field, in training with --text-column"


def hub_name(given: str | Path) -> str | None:
    """The name if it begins with hf://, else None; a Path of such a name has lost a slash.

    >>> hub_name(Path("hf://owner/name")), hub_name("text/hf")
    ('hf://owner/name', None)
    """
    text = str(given)
    if text.startswith(HUB_PREFIX):
        return text
    short = HUB_PREFIX[:-1]
    return HUB_PREFIX + text.removeprefix(short) if text.startswith(short) else None


def parse_hub_name(given: str, *, split: str = "train") -> tuple[str, str]:
    """Return the name and the split of an input that begins with hf://; `split` is the default.

    >>> parse_hub_name("hf://roneneldan/TinyStories:validation")
    ('roneneldan/TinyStories', 'validation')
    """
    name, _, named = given.removeprefix(HUB_PREFIX).partition(":")
    if not name:
        raise UsageError(f"{given} names no dataset", next_step="write it as hf://owner/name:split")
    return name, named or split


def is_saved_dataset(name: str) -> bool:
    """True for a folder that the datasets package saved, which it opens with another function."""
    return any((Path(name) / file).exists() for file in ("dataset_info.json", "state.json"))


def iter_hub_texts(name: str, *, split: str, text_field: str) -> Iterator[bytes]:
    """The texts of a dataset's column, streamed."""
    rows = open_hub_rows(name, split=split)
    for number, row in enumerate(iter_hub_rows(rows, name)):
        yield hub_text(row, name=name, number=number, text_field=text_field)


def open_hub_rows(
    name: str, *, split: str, config_name: str | None = None, streaming: bool = True
) -> Any:
    """Open a dataset with the datasets package, streamed unless it was saved to a folder."""
    datasets = import_package("datasets", f"{HUB_PREFIX}{name}")
    try:
        if is_saved_dataset(name):
            return datasets.load_from_disk(name)
        return datasets.load_dataset(name, config_name, split=split, streaming=streaming)
    except Exception as error:  # the package raises errors of many other packages
        raise DataError(
            f"this dataset cannot be opened: {error}",
            path=f"{HUB_PREFIX}{name}",
            next_step="check the name, the split and the network",
        ) from None


def iter_hub_rows(rows: Any, name: str) -> Iterator[dict[str, Any]]:
    """The rows in order; exceptions while reading become an error that names the dataset."""
    try:
        yield from rows
    except (OSError, ValueError, RuntimeError) as error:
        raise DataError(f"reading stopped: {error}", path=f"{HUB_PREFIX}{name}") from None


def hub_text(row: dict[str, Any], *, name: str, number: int, text_field: str) -> bytes:
    """The text of a row: empty if the column is null, an error if there is no such column."""
    text = row.get(text_field)
    if text is None and text_field not in row:
        raise DataError(
            f"row {number} has no column {text_field!r}; there are {', '.join(row)}",
            path=f"{HUB_PREFIX}{name}",
            next_step=_NAME_COLUMN,
        )
    if text is not None and not isinstance(text, str):
        raise DataError(
            f"column {text_field!r} holds {type(text).__name__}, expected text; the columns are "
            f"{', '.join(row)}",
            path=f"{HUB_PREFIX}{name}",
            next_step=_NAME_COLUMN,
        )
    return (text or "").encode("utf-8", "replace")
