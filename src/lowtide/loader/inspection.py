"""Inspect a dataset, a tokenizer or a file of ids.

In:      InspectSettings
Out:     Inspection: text to print, and the same as a dict
Memory:  the requested window, and a tokenizer
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from lowtide.answers import to_json
from lowtide.dataset.inspection import inspect_dataset, plan_inspection
from lowtide.dataset.settings import InspectSettings
from lowtide.dataset.storeddatasets import load_any_info
from lowtide.dataset.summary import dataset_facts
from lowtide.dataset.tokenfiles.table import SINGLE_SUFFIXES
from lowtide.engine.workstate import describe_work, is_work_folder
from lowtide.errors import UsageError, printable
from lowtide.keywords import takes_keywords
from lowtide.notebooks import preformatted
from lowtide.progress import Progress
from lowtide.quickclasses import dataclass
from lowtide.standardstreams import is_terminal
from lowtide.tokenizer.inspection import inspect_tokenizer, is_tokenizer
from lowtide.tokenizer.tokenizer import Tokenizer

__all__ = ["Inspection", "inspect"]

_PLACE = ("split", "start", "tokens", "show_ids")  # settings of what is shown of ids


@dataclass(frozen=True)
class Inspection:
    """The result of an inspection."""

    kind: str
    """dataset, work, loading, tokens, or the kind of a tokenizer."""
    text: str
    """The output of the command."""
    facts: Mapping[str, Any]
    """The same for programs, the output with `--json`."""

    def __str__(self) -> str:
        return self.text

    def _repr_html_(self) -> str:
        return preformatted(self.text)


@takes_keywords(InspectSettings)
def inspect(settings: InspectSettings) -> Inspection:
    """Show a dataset, a tokenizer or a file of ids at a glance, and text as tokens.

    `print(lowtide.inspect("data/books", start=1000, tokens=50))`
    """
    with Progress("inspect", budget_bytes=plan_inspection(settings)):
        path = settings.dataset_dir
        if settings.test_loading:
            _require_effect(settings, "with --test-loading", "split", "dtype")
            return _try_loading(settings)
        if path.suffix == ".idx" and path.with_suffix(".bin").is_file():
            settings = replace(settings, dataset_dir=path.with_suffix(".bin"))
            path = settings.dataset_dir
        if path.suffix in SINGLE_SUFFIXES:
            _require_effect(settings, "for a file of ids", *_PLACE, "dtype")
            return _show_tokens(settings)
        if is_tokenizer(path):
            _require_effect(settings, "for a tokenizer", "sample", "text")
            return _show_tokenizer(settings)
        if is_work_folder(path):  # checked once, because it is removed as soon as the work is done
            _require_effect(settings, "for a running job")
            text = printable(describe_work(path))
            return Inspection("work", text, {"kind": "work", "description": text})
        _require_effect(settings, "for a dataset", *_PLACE)
        text = printable(inspect_dataset(settings))
        facts = {"kind": "dataset", **dataset_facts(load_any_info(path))}
        return Inspection("dataset", text, facts)


def _require_effect(settings: InspectSettings, why: str, *used: str) -> None:
    """Refuse settings that have no effect here: --text of a dataset showed other text."""
    for name in (*_PLACE, "dtype", "sample", "text"):
        if name not in used and getattr(settings, name) != getattr(InspectSettings, name):
            flag = "--" + name.replace("_", "-")
            raise UsageError(
                f"{flag} has no effect {why}",
                path=settings.dataset_dir,
                next_step=f"leave {flag} out",
            )


def _try_loading(settings: InspectSettings) -> Inspection:
    from lowtide.loader.selftest import check_loading

    report = check_loading(settings.dataset_dir, split=settings.split, dtype=settings.dtype)
    return Inspection("loading", printable(str(report)), {"kind": "loading", **to_json(report)})


def _show_tokens(settings: InspectSettings) -> Inspection:
    from lowtide.loader.selftest import describe_tokens

    text = describe_tokens(
        settings.dataset_dir,
        split=settings.split,
        dtype=settings.dtype,
        first=settings.start,
        count=settings.tokens,
    )
    facts = {"kind": "tokens", "path": settings.dataset_dir, "description": text}
    return Inspection("tokens", printable(text), facts)


def _show_tokenizer(settings: InspectSettings) -> Inspection:
    path = settings.dataset_dir
    color = is_terminal(sys.stdout) and "NO_COLOR" not in os.environ
    tokenizer = Tokenizer.load(path)
    text = inspect_tokenizer(
        tokenizer, source=path, sample=settings.sample, text=settings.text, color=color
    )
    kind = f"{tokenizer.kind} tokenizer"
    facts = {
        "kind": kind,
        "path": path,
        "vocab_size": tokenizer.vocab_size,
        "special_tokens": tokenizer.special_tokens,
        "fingerprint": tokenizer.fingerprint,
    }
    return Inspection(kind, text, facts)
