"""Summarize a preparation in a few lines: input, removals with their reasons, and the dataset.

In:      PrepareResult
Out:     text to print
Memory:  a few kilobytes
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lowtide.corpus.ranking import describe_cut, read_cut
from lowtide.corpus.removals import RULE_TEXTS
from lowtide.counts import counted
from lowtide.flags import path_word
from lowtide.memory import format_size

if TYPE_CHECKING:
    from lowtide.dataset.appendable import AppendResult
    from lowtide.dataset.existing import PrepareResult
    from lowtide.dataset.layout import DatasetInfo
    from lowtide.dataset.pretokenization import PretokenizeResult
    from lowtide.dataset.verification import VerifyResult

__all__ = [
    "dataset_facts",
    "describe_append",
    "describe_cleaning",
    "describe_preparation",
    "describe_pretokenization",
    "describe_verification",
]


def describe_cleaning(report: dict[str, Any]) -> str:
    """Describe the input and the removals by rule, with an example of each."""
    lines = [
        f"Read: {counted(report['documents_in'], 'document')}, "
        f"{counted(report['lines_in'], 'line')}, "
        f"{format_size(report['bytes_in'])}"
    ]
    for rule, row in report["rules"].items():
        lines.append(f"  {row['count']:>12,}  {RULE_TEXTS[rule]} ({format_size(row['bytes'])})")
        example = " ".join(row["examples"][0].split()) if row["examples"] else ""
        if example and rule.startswith(("line", "duplicate", "document", "near")):
            lines.append(f"{'':>16}e.g. {example[:76]}{'…' if len(example) > 76 else ''}")
    languages = report.get("languages", {})
    if languages:
        shown = [f"{label} {row['count']:,}" for label, row in list(languages.items())[:8]]
        more = f" and {len(languages) - 8} more" if len(languages) > 8 else ""
        lines.append(f"Languages (documents): {', '.join(shown)}{more}")
    if "score" in report:
        lines.append(f"By score: {describe_cut(read_cut(report['score']))}")
    if unknown := report.get("unknown_characters", 0):
        lines.append(
            f"{counted(unknown, 'character')} of the kept text are unknown to the tokenizer: <unk>"
        )
    return "\n".join(lines)


def describe_preparation(result: PrepareResult) -> str:
    """Describe the result of a preparation, as `lowtide prepare` prints it."""
    lines = [describe_cleaning(result.report), *(f"note: {text}" for text in result.notices)]
    if result.was_there and result.dataset is not None:
        lines = [
            f"{result.dataset.root}: is there already, made of these inputs with these settings; "
            "nothing was touched"
        ]
    if result.dataset is None:
        lines.append("Nothing was written (dry run).")
    else:
        items = result.dataset.metadata.get("decontamination")
        if items and not result.was_there:
            lines.append(
                f"Evaluation items: {items['items']:,} searched for, {items['items_hit']:,} found"
            )
        lines += _describe_dataset(result.dataset)
    return "\n".join(lines)


def dataset_facts(info: DatasetInfo | None) -> dict[str, Any]:
    """Return the facts of a dataset for programs; none after a dry run."""
    if info is None:
        return {}
    return {
        "dataset_dir": info.root,
        "tokenization": info.metadata.get("tokenization"),
        "vocab_size": info.vocab_size,
        "dtype": info.dtype_name,
        "total_tokens": sum(map(info.num_tokens, info.shards)),
        "total_shards": sum(map(len, info.shards.values())),
        "train_tokens": info.num_tokens("train"),
        "val_tokens": info.num_tokens("val"),
        "fingerprint": info.tokenizer_fingerprint,
    }


def describe_append(result: AppendResult) -> str:
    """Describe the result of `lowtide append`."""
    if result.was_there:
        return "\n".join(
            [*result.notices, f"{result.info.root}: nothing to add; nothing was touched"]
        )
    lines = [
        describe_cleaning(result.report),
        *(f"note: {text}" for text in result.notices),
        f"Added: {counted(result.added_tokens, 'token')} in "
        f"{counted(result.added_shards, 'shard')}",
        *_describe_dataset(result.info),
    ]
    return "\n".join(lines)


def _describe_dataset(info: DatasetInfo) -> list[str]:
    metadata = info.metadata
    lines = [
        f"Total tokens: {metadata['total_tokens']:,}  "
        f"({metadata['tokenization']}, vocabulary {info.vocab_size:,}, {info.dtype_name})",
        f"Total shards: {metadata['total_shards']:,}",
    ]
    for split in ("train", "val"):
        share = info.num_tokens(split) / max(metadata["total_tokens"], 1)
        lines.append(
            f"{split.capitalize()} shards: {len(info.shards[split]):,} in {info.root / split}  "
            f"({info.num_tokens(split):,} tokens, {100 * share:.1f} %)"
        )
    wanted = float(metadata.get("split", {}).get("val_fraction") or 0)
    share = info.num_tokens("val") / max(metadata["total_tokens"], 1)
    if wanted and abs(share - wanted) > wanted / 4:
        lines.append(
            f"Validation has {100 * share:.1f} % of the tokens, {100 * wanted:.1f} % were asked "
            "for: each document goes into one split as a whole, by a hash of its text."
        )
    if metadata.get("split", {}).get("mode") == "tail" and info.num_tokens("val"):
        lines.append(
            "Validation is the end of the text: with so few documents, or so long ones, whole ones "
            "would miss the share."
        )
    lines.append(f"Next: lowtide train --dataset-dir {path_word(info.root)} --model-name NAME")
    return lines


def describe_pretokenization(result: PretokenizeResult) -> str:
    """Describe the result of `lowtide pretokenize`."""
    if result.was_there:
        return (
            f"{result.path}: is there already, made of this text with this tokenizer "
            f"({result.num_tokens:,} tokens); nothing was touched"
        )
    rate = result.text_bytes / max(result.seconds, 1e-9)
    ratio = ""
    if result.is_plain and result.num_tokens:
        ratio = f"bytes per token: {result.text_bytes / result.num_tokens:.2f}, "
    size = result.num_tokens * result.dtype.itemsize
    return "\n".join(
        [
            f"Total: {result.num_tokens:,} tokens from {result.text_bytes:,} bytes "
            f"({result.tokenizer}, {result.dtype.name})",
            f"  {ratio}{format_size(rate)}/s",
            f"Saved to: {result.path}",
            f"  file size: {format_size(size)}; training reads parts of it, never all at once",
        ]
    )


def describe_verification(result: VerifyResult) -> str:
    """Describe the result of `lowtide verify`."""
    lines = [
        f"{counted(result.num_shards, 'shard')}, {counted(result.num_tokens, 'token')} checked"
    ]
    if result.num_strangers:
        line = f"{result.num_strangers} of them were moved in by hand and have no checksum"
        if result.num_unnamed:
            which = "them" if result.num_unnamed == result.num_strangers else result.num_unnamed
            line += f"; nothing says which tokenizer made {which}"
        lines.append(line)
    return "\n".join(lines + (["all is well"] if not result.problems else []))
