"""The page of a dataset: tokens by source, lengths of documents, what cleaning removed.

In:      a dataset's folder: dataset_metadata.json, the .docs files, metrics.jsonl
Out:     page data
Memory:  the document ends of one shard; counts of fixed size
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lowtide.corpus.ranking import describe_cut, read_cut
from lowtide.corpus.removals import RULE_TEXTS
from lowtide.counts import counted
from lowtide.dataset.layout import SPLITS, DatasetInfo, load_dataset_info
from lowtide.filenames import METADATA_NAME, METRICS_NAME
from lowtide.memory import format_size
from lowtide.progress import format_count
from lowtide.reporting.datasetfacts import (
    DatasetFacts,
    LengthCounts,
    count_lengths,
    merge_reports,
)
from lowtide.reporting.jobs import memory_chart, phase_table
from lowtide.reporting.metrics import JobMetrics, MetricsFile

__all__ = ["DatasetReader"]

_MAX_SOURCES = 24
_MAX_SHARDS = 200


class DatasetReader:
    """Reads a dataset's folder."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._version: int | None = None
        self._info: DatasetInfo
        self._lengths = LengthCounts()
        self._job = JobMetrics()

    def read(self) -> bool:
        """Read everything again if the metadata changed; True if it did."""
        info_path = self.root / METADATA_NAME
        version = info_path.stat().st_mtime_ns if info_path.exists() else None
        if version is not None and version == self._version:
            return False
        self._info = load_dataset_info(self.root)
        self._version = version
        self._lengths = count_lengths(self._info)
        self._job = JobMetrics()
        self._job.read(MetricsFile(self.root / METRICS_NAME))
        return True

    def facts(self, *, name: str | None = None) -> DatasetFacts:
        """Its numbers for comparisons."""
        return DatasetFacts(
            name=name or self.root.resolve().name,
            info=self._info,
            lengths=self._lengths,
            cleaning=self._cleaning_report(),
            peak_bytes=self._job.peak_bytes,
        )

    def _cleaning_report(self) -> dict[str, Any]:
        metadata = self._info.metadata
        reports = [metadata.get("cleaning"), *(e["cleaning"] for e in metadata.get("appended", []))]
        return merge_reports([report for report in reports if report])

    def page(self) -> dict[str, Any]:
        """Return the page's data."""
        metadata, cleaning = self._info.metadata, self._cleaning_report()
        sections = [
            self._sources(),
            self._length_chart(),
            _cleaning(cleaning),
            _languages(cleaning["languages"]),
            self._splits(),
            self._notices(),
            memory_chart(self._job) if self._job.num_rows else None,
            phase_table(self._job),
            self._shards(),
        ]
        return {
            "kind": "dataset",
            "title": self.root.resolve().name,
            "subtitle": f"{metadata.get('tokenization', 'unknown')} tokenizer · vocabulary "
            f"{self._info.vocab_size:,} · {self._info.dtype.name} · "
            f"{len(metadata.get('input_files', [])):,} input files",
            "badge": {"text": "whole", "tone": "good"},
            "tiles": self._tiles(),
            "sections": [section for section in sections if section is not None],
        }

    def _tiles(self) -> list[dict[str, Any]]:
        info, lengths = self._info, self._lengths
        tokens = sum(map(info.num_tokens, SPLITS))
        shards = sum(len(info.shards[split]) for split in SPLITS)
        val = info.num_tokens("val") / max(tokens, 1)
        tiles = [
            ("tokens", format_count(tokens), f"{tokens:,}"),
            ("documents", format_count(lengths.count), f"{lengths.mean:,.0f} tokens on average"),
            ("median length", f"{lengths.quantile(0.5):,.0f}", "tokens"),
            ("longest", format_count(lengths.longest), "tokens"),
            ("validation", f"{100 * val:.1f} %", f"{info.num_tokens('val'):,} tokens"),
            ("on disk", format_size(tokens * info.dtype.itemsize), counted(shards, "shard")),
        ]
        if self._job.peak_bytes:
            budget = self._job.budget_bytes
            note = f"of {format_size(budget)} budget" if budget else ""
            tiles.append(("peak memory", format_size(self._job.peak_bytes), note))
        return [{"label": a, "value": b, "note": c, "tone": ""} for a, b, c in tiles]

    def _sources(self) -> dict[str, Any]:
        rows: Sequence[Any] = self._info.metadata.get("sources", [])
        largest = heapq.nlargest(_MAX_SOURCES, rows, key=lambda row: row["tokens"])
        shown = [(row["file"], row["tokens"], row["documents"]) for row in largest]
        num_tokens = num_documents = 0
        for row in rows:  # one at a time: there may be hundreds of thousands
            num_tokens, num_documents = num_tokens + row["tokens"], num_documents + row["documents"]
        total = num_tokens or 1
        if len(rows) > len(shown):
            tokens = num_tokens - sum(row["tokens"] for row in largest)
            documents = num_documents - sum(row["documents"] for row in largest)
            shown.append((f"{len(rows) - len(shown):,} more files", tokens, documents))
        rest_tokens = sum(map(self._info.num_tokens, SPLITS)) - total
        if shown and rest_tokens > 0:
            shown.append(("not counted by file", rest_tokens, 0))
        return {
            "type": "bars",
            "id": "sources",
            "title": "Tokens by source",
            "width": "wide",
            "rows": [
                {
                    "name": name,
                    "value": tokens,
                    "text": f"{format_count(tokens)} tokens · {100 * tokens / total:.1f} % · "
                    f"{counted(documents, 'document')}",
                }
                for name, tokens, documents in shown
            ],
            "empty": "This dataset does not say which tokens came from which file: it was prepared "
            "by an earlier version, or converted.",
        }

    def _length_chart(self) -> dict[str, Any]:
        lengths = self._lengths
        note = (
            f"half are within {lengths.quantile(0.25):,.0f} and {lengths.quantile(0.75):,.0f} "
            f"tokens, 1 in 20 is over {lengths.quantile(0.95):,.0f}"
        )
        return {
            "type": "columns",
            "id": "lengths",
            "title": "Lengths of documents",
            "note": note if lengths.count else "",
            "axis": "tokens",
            "bins": lengths.columns(),
            "empty": "Nothing says where documents end: there are no .docs files.",
        }

    def _splits(self) -> dict[str, Any]:
        rows: list[list[str]] = []
        for split in SPLITS:
            shards = self._info.shards[split]
            documents = sum(shard.num_documents for shard in shards)
            by_hand = sum(shard.checksum is None for shard in shards)
            tokens = self._info.num_tokens(split)
            rows.append(
                [split, f"{tokens:,}", f"{documents:,}", f"{len(shards):,}", f"{by_hand:,}"]
            )
        return {
            "type": "table",
            "id": "splits",
            "title": "Splits",
            "width": "wide",
            "columns": ["split", "tokens", "documents", "shards", "moved in by hand"],
            "rows": rows,
            "empty": "",
        }

    def _notices(self) -> dict[str, Any] | None:
        metadata = self._info.metadata
        notices = list(metadata.get("notices", []))
        for event in metadata.get("appended", []):
            notices.append(
                f"appended {counted(event['tokens'], 'token')} of "
                f"{counted(len(event['input_files']), 'file')}"
            )
            notices += event.get("notices", [])
        if not notices:
            return None
        return {
            "type": "table",
            "id": "notices",
            "title": "Notes",
            "width": "wide",
            "columns": ["what was noticed"],
            "rows": [[str(notice)] for notice in notices[:50]],
            "empty": "",
        }

    def _shards(self) -> dict[str, Any]:
        shards = [shard for split in SPLITS for shard in self._info.shards[split]]
        more = f", the first {_MAX_SHARDS}" if len(shards) > _MAX_SHARDS else ""
        return {
            "type": "table",
            "id": "shards",
            "title": f"Shards ({len(shards):,}{more})",
            "width": "wide",
            "folded": True,
            "columns": ["file", "tokens", "documents", "ids", "xxh3-128"],
            "rows": [
                [
                    shard.path.relative_to(self.root).as_posix(),
                    f"{shard.num_tokens:,}",
                    f"{shard.num_documents:,}",
                    f"{shard.min_id} to {shard.max_id}",
                    shard.checksum or "moved in by hand",
                ]
                for shard in shards[:_MAX_SHARDS]
            ],
            "empty": "",
        }


def _cleaning(report: dict[str, Any]) -> dict[str, Any]:
    rows: list[dict[str, Any]] = []
    total = max(report["bytes_in"], 1)
    for rule, row in sorted(report["rules"].items(), key=lambda item: -item[1]["bytes"]):
        share = 100 * row["bytes"] / total
        percent = f"{share:.2g} %" if share >= 0.01 else "below 0.01 %"
        example = " ".join(row["examples"][0].split())[:160] if row["examples"] else ""
        rows.append(
            {
                "name": RULE_TEXTS.get(rule, rule),
                "value": row["bytes"],
                "text": f"{row['count']:,} · {format_size(row['bytes'])} · {percent}",
                "more": f"such as: {example}" if example else "",
            }
        )
    read = (
        f"of {format_size(report['bytes_in'])} read: {report['documents_in']:,} documents, "
        f"{report['lines_in']:,} lines"
    )
    if "score" in report:
        read += f"; {describe_cut(read_cut(report['score']))}"
    if "unknown_characters" in report:
        read += f"; {report['unknown_characters']:,} characters unknown to the tokenizer"
    return {
        "type": "bars",
        "id": "cleaning",
        "title": "What cleaning changed and removed",
        "note": read if report["bytes_in"] else "",
        "width": "half",
        "color": 1,
        "rows": rows,
        "empty": "Nothing was removed or changed."
        if report["bytes_in"]
        else "Nothing is known of the text this was made from.",
    }


def _languages(languages: dict[str, Any]) -> dict[str, Any] | None:
    """Documents by language, if a language model was used."""
    if not languages:
        return None
    total = sum(row["count"] for row in languages.values()) or 1
    rows = sorted(languages.items(), key=lambda item: -item[1]["count"])
    return {
        "type": "bars",
        "id": "languages",
        "title": "Languages",
        "note": "of the documents judged",
        "width": "half",
        "rows": [
            {
                "name": label,
                "value": row["count"],
                "text": f"{counted(row['count'], 'document')} · "
                f"{100 * row['count'] / total:.1f} % · {format_size(row['bytes'])}",
            }
            for label, row in rows[:_MAX_SOURCES]
        ],
        "empty": "",
    }
