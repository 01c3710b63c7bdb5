"""The page of several datasets: sizes, lengths, sources, languages and what was removed of each.

In:      folders of datasets
Out:     page data (pages.py makes HTML of it)
Memory:  counts of fixed size per dataset, and the names of its input files
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lowtide.corpus.removals import RULE_TEXTS
from lowtide.counts import counted
from lowtide.errors import UsageError
from lowtide.memory import format_size
from lowtide.progress import format_count
from lowtide.reporting.datasetfacts import DatasetFacts
from lowtide.reporting.datasets import DatasetReader
from lowtide.reporting.factstable import Column, facts_table

__all__ = ["MOST_DATASETS", "DatasetComparisonReader"]

MOST_DATASETS = 8
_MAX_SOURCES = 40
_EXAMPLE_LETTERS = 160
# Settings of where a dataset is and how it was made, which do not change its content.
_WHERE = {"out_dir", "memory", "num_workers", "restart", "work_dir", "engine", "config_file"}

_COLUMNS: list[Column[DatasetFacts]] = [
    ("dataset", lambda facts: facts.name, str),
    ("tokens", lambda facts: facts.tokens, "{:,}".format),
    ("documents", lambda facts: facts.documents, "{:,}".format),
    ("mean length", lambda facts: facts.lengths.mean, "{:,.0f}".format),
    ("median", lambda facts: facts.lengths.quantile(0.5), "{:,.0f}".format),
    ("95 % below", lambda facts: facts.lengths.quantile(0.95), "{:,.0f}".format),
    ("longest", lambda facts: facts.lengths.longest, "{:,}".format),
    ("validation", lambda facts: facts.val_share, "{:.1%}".format),
    ("input files", lambda facts: facts.input_files, "{:,}".format),
    ("text read", lambda facts: facts.cleaning["bytes_in"] or None, format_size),
    ("tokenizer", lambda facts: facts.tokenization, str),
    ("vocabulary", lambda facts: facts.vocab_size, "{:,}".format),
    ("peak memory", lambda facts: facts.peak_bytes or None, format_size),
]


class DatasetComparisonReader:
    """Reads the folders of several datasets."""

    def __init__(self, roots: Sequence[Path]) -> None:
        if len(roots) > MOST_DATASETS:
            raise UsageError(
                f"{len(roots)} datasets, expected {MOST_DATASETS} at most on one page",
                next_step="name the datasets to compare",
            )
        self._readers = [DatasetReader(root) for root in roots]

    def read(self) -> bool:
        """Read what changed; True if anything did."""
        news = [reader.read() for reader in self._readers]
        return any(news)

    def page(self) -> dict[str, Any]:
        """Return the page's data."""
        facts = [reader.facts() for reader in self._readers]
        if len({one.name for one in facts}) < len(facts):  # told apart by the whole path
            facts = [reader.facts(name=str(reader.root)) for reader in self._readers]
        names = [one.name for one in facts]
        return {
            "kind": "comparison",
            "title": f"{len(facts)} datasets",
            "subtitle": " · ".join(names),
            "badge": None,
            "tiles": [
                {
                    "label": one.name,
                    "value": format_count(one.tokens),
                    "note": f"tokens in {counted(one.documents, 'document')}",
                    "tone": "",
                }
                for one in facts
            ],
            "sections": [
                facts_table(
                    facts,
                    _COLUMNS,
                    id="datasets",
                    title="Datasets",
                    note="lengths in tokens; a click on a column sorts by it",
                ),
                _lengths(facts),
                _removed(facts, names),
                _examples(facts),
                _sources(facts, names),
                _languages(facts, names),
                _differences(facts, names),
            ],
        }


def _lengths(facts: list[DatasetFacts]) -> dict[str, Any]:
    """Shares (not counts) of documents by length, to compare datasets of different sizes."""
    ranges = [one.lengths.ranges() for one in facts]
    places = sorted({place for one in ranges for place in one})
    return {
        "type": "columns",
        "id": "lengths",
        "title": "Lengths of documents",
        "note": "share of the documents, in percent",
        "axis": "tokens",
        "width": "wide",
        "format": "number",
        "unit": " %",
        "names": [one.name for one in facts],
        "bins": [
            {
                "label": format_count(first),
                "text": f"{first:,} to {last:,} tokens",
                "counts": [
                    round(100 * one.get((first, last), 0) / max(fact.lengths.count, 1), 3)
                    for one, fact in zip(ranges, facts, strict=True)
                ],
            }
            for first, last in places
        ],
        "empty": "Nothing says where documents end: there are no .docs files.",
    }


def _removed(facts: list[DatasetFacts], names: list[str]) -> dict[str, Any]:
    rules = dict.fromkeys(rule for one in facts for rule in one.cleaning["rules"])
    shares = {
        rule: [one.removed_share(rule) for one in facts]
        for rule in sorted(rules, key=lambda rule: -max(one.removed_share(rule) for one in facts))
    }

    def text(one: DatasetFacts, rule: str) -> str:
        row = one.cleaning["rules"].get(rule)
        if row is None or not row["count"]:
            return ""
        share = 100 * one.removed_share(rule)
        return f"{share:.2g} % · {row['count']:,} · {format_size(row['bytes'])}"

    return {
        "type": "table",
        "id": "removed",
        "title": "What cleaning changed and removed",
        "note": "share of the bytes read · times · bytes",
        "width": "wide",
        "columns": ["rule", *names],
        "rows": [[RULE_TEXTS.get(rule, rule), *(text(one, rule) for one in facts)]
                 for rule in shares],
        "sort_by": [[RULE_TEXTS.get(rule, rule), *row] for rule, row in shares.items()],
        "empty": "Nothing was removed or changed, or nothing is known of the text.",
    }  # fmt: skip


def _examples(facts: list[DatasetFacts]) -> dict[str, Any]:
    rows: list[list[str]] = [
        [str(RULE_TEXTS.get(rule, rule)), one.name, " ".join(example.split())[:_EXAMPLE_LETTERS]]
        for one in facts
        for rule, row in one.cleaning["rules"].items()
        for example in dict.fromkeys(row["examples"][:2])
    ]
    return {
        "type": "table",
        "id": "examples",
        "title": "Examples of what was removed",
        "width": "wide",
        "columns": ["rule", "dataset", "text"],
        "rows": sorted(rows, key=lambda row: row[0]),
        "empty": "No command kept an example.",
    }


def _sources(facts: list[DatasetFacts], names: list[str]) -> dict[str, Any]:
    by_file = [one.sources for one in facts]
    totals = [sum(each.values()) or 1 for each in by_file]
    files = dict.fromkeys(file for each in by_file for file in each)

    def shares(file: str) -> list[float]:
        return [each.get(file, 0) / total for each, total in zip(by_file, totals, strict=True)]

    largest = sorted(files, key=lambda file: (-max(shares(file)), file))[:_MAX_SOURCES]
    more = f", the {_MAX_SOURCES} largest of {len(files):,}" if len(files) > len(largest) else ""
    return {
        "type": "table",
        "id": "sources",
        "title": f"Tokens by source{more}",
        "note": "share of the dataset's tokens",
        "width": "wide",
        "columns": ["file", *names],
        "rows": [
            [
                file,
                *(
                    f"{share:.1%} · {format_count(each[file])}" if file in each else ""
                    for share, each in zip(shares(file), by_file, strict=True)
                ),
            ]
            for file in largest
        ],
        "sort_by": [[file, *shares(file)] for file in largest],
        "empty": "These datasets do not say which tokens came from which file.",
    }


def _languages(facts: list[DatasetFacts], names: list[str]) -> dict[str, Any]:
    counts = [
        {label: row["count"] for label, row in one.cleaning["languages"].items()} for one in facts
    ]
    totals = [sum(each.values()) or 1 for each in counts]
    labels = dict.fromkeys(label for each in counts for label in each)
    rows = {
        label: [each.get(label, 0) / total for each, total in zip(counts, totals, strict=True)]
        for label in labels
    }
    order = sorted(rows, key=lambda label: -max(rows[label]))
    return {
        "type": "table",
        "id": "languages",
        "title": "Languages",
        "note": "share of the documents judged",
        "width": "wide",
        "columns": ["language", *names],
        "rows": [
            [label, *("" if not share else f"{share:.1%}" for share in rows[label])]
            for label in order
        ],
        "sort_by": [[label, *rows[label]] for label in order],
        "empty": "Not known: prepare --language-model tells languages apart.",
    }


def _differences(facts: list[DatasetFacts], names: list[str]) -> dict[str, Any]:
    settings = [one.settings for one in facts]
    rows = [
        [name, *("" if one.get(name) is None else str(one[name]) for one in settings)]
        for name in dict.fromkeys(name for one in settings for name in one)
        if name not in _WHERE and any(one.get(name) != settings[0].get(name) for one in settings)
    ]
    return {
        "type": "table",
        "id": "differences",
        "title": "Settings that differ",
        "width": "wide",
        "columns": ["setting", *names],
        "rows": rows,
        "empty": "All settings are the same.",
    }
