"""The parts of a tokenizer.json besides its vocabulary: processing steps, the first token of texts.

In:      a Tokenizer, and the folder it was loaded from
Out:     sections of tokenizer.json; the token that is put before every text
Memory:  the file once, and its short sections; all of it where the package runs the tokenizer
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import zstandard

from lowtide import _native
from lowtide.filenames import TOKENIZER_NAME
from lowtide.tokenizer import Tokenizer

__all__ = ["begin_token", "read_sections", "steps_of"]


def read_sections(tokenizer: Tokenizer, folder: Path) -> dict[str, Any]:
    """The tokenizer.json without its long sections, where native code reads it."""
    if tokenizer.data.source is not None:
        return json.loads(zstandard.ZstdDecompressor().decompress(tokenizer.data.source))
    path = folder / TOKENIZER_NAME
    if not path.is_file():
        return {}
    text = path.read_bytes()
    places = _native.find_json_sections(text)
    if places is None:
        return json.loads(text)
    first, second = sorted([(places[0], places[1]), (places[2], places[3])])
    return json.loads(
        text[: first[0]] + b"null" + text[sum(first) : second[0]] + b"null" + text[sum(second) :]
    )


def steps_of(section: Any, inner: str) -> Iterator[Mapping[str, Any]]:
    """The steps of a section, one or several."""
    if isinstance(section, Mapping):
        yield from section.get(inner, ()) if section.get("type") == "Sequence" else (section,)


def begin_token(contents: Mapping[str, Any]) -> int | None:
    """The token that the tokenizer puts before every text."""
    try:
        for step in steps_of(contents.get("post_processor"), "processors"):
            single = step.get("single") if step.get("type") == "TemplateProcessing" else None
            if single and "SpecialToken" in single[0]:
                name = single[0]["SpecialToken"]["id"]
                return int(step["special_tokens"][name]["ids"][0])
    except (AttributeError, KeyError, IndexError, TypeError, ValueError):
        pass  # the package could not read it either
    return None
