"""Write the output folder of a trained tokenizer, or check that it matches a command.

In:      a learned vocabulary; or a folder with one
Out:     tokenizer.json, vocab.json, merges.txt and training.json; a TrainedTokenizer
Memory:  the vocabulary; a row for each input
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lowtide.corpus.contents import describe_inputs, find_difference, is_unchanged
from lowtide.corpus.differences import find_changed_setting
from lowtide.corpus.inputs import InputFile, changed_input, has_changed
from lowtide.errors import DataError, LowtideError, UsageError
from lowtide.filenames import LEARNED_NAME, MERGES_NAME, TOKENIZER_NAME, VOCABULARY_NAME
from lowtide.flags import path_word
from lowtide.longjson import Rows, read_long_json, write_long_json
from lowtide.memory import format_size
from lowtide.notebooks import shown_in_notebooks
from lowtide.publishing import PublishGroup
from lowtide.quickclasses import dataclass
from lowtide.settings import settings_as_json
from lowtide.tokenizer.formats import write_vocab_and_merges
from lowtide.tokenizer.huggingface import write_tokenizer_json
from lowtide.tokenizer.ownfiles import require_own_files
from lowtide.tokenizer.settings import TokenizerTrainingSettings
from lowtide.tokenizer.tokenizer import Tokenizer
from lowtide.tokenizer.vocabulary import Vocabulary

__all__ = [
    "TrainedTokenizer",
    "decisive_settings",
    "describe_trained",
    "keep_trained",
    "load_finished",
]


@shown_in_notebooks()
@dataclass(frozen=True)
class TrainedTokenizer:
    """A tokenizer and the record of its training."""

    tokenizer: Tokenizer
    record: dict[str, Any]
    """The settings, the inputs and the counts, as in training.json."""
    was_there: bool = False
    """True if `out_dir` had it already, made with the same settings from the same files."""


def keep_trained(
    settings: TokenizerTrainingSettings,
    inputs: Sequence[InputFile],
    contents: list[str | None],
    vocabulary: Vocabulary,
    counts: dict[str, Any],
) -> TrainedTokenizer:
    """Write the learned tokenizer, unless nothing is to be written."""
    _require_unchanged(settings, inputs, contents)
    record = {
        "settings": decisive_settings(settings),
        "input_files": Rows(len(inputs), lambda: describe_inputs(inputs, contents)),
        "counts": counts,
        "fingerprint": vocabulary.fingerprint,
    }
    name = settings.out_dir.name if settings.out_dir else settings.kind
    tokenizer = Tokenizer(vocabulary, name=name)
    if settings.out_dir is not None:
        _write(vocabulary, settings.out_dir, record)
    return TrainedTokenizer(tokenizer, record)


def describe_trained(trained: TrainedTokenizer, out_dir: Path) -> str:
    """Return a summary of the result in a few lines."""
    try:
        return _describe(trained, out_dir)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise DataError(
            f"{LEARNED_NAME} is damaged: what it says of the tokenizer cannot be read ({error!r})",
            path=out_dir / LEARNED_NAME,
            next_step="remove this folder, and give the command again",
        ) from None


def _describe(trained: TrainedTokenizer, out_dir: Path) -> str:
    tokenizer, counts = trained.tokenizer, trained.record["counts"]
    lines = [
        f"{tokenizer.kind} tokenizer with {tokenizer.vocab_size:,} tokens in {out_dir}"
        + (" (was there already)" if trained.was_there else "")
    ]
    lines.append(f"  text         {format_size(counts['bytes'])}")
    if "pieces" in counts:
        lines.append(
            f"  pieces       {counts['pieces']:,}, {counts['distinct_pieces']:,} of them distinct"
        )
        lines.append(f"  merges       {counts['merges']:,}")
    lines.append(f"  fingerprint  {tokenizer.fingerprint}")
    lines.append(
        "next: lowtide prepare --input-files FILES "
        f"--tokenization {path_word(out_dir)} --out-dir data/mine"
    )
    return "\n".join(lines)


def decisive_settings(settings: TokenizerTrainingSettings) -> dict[str, Any]:
    """The settings that the result depends on."""
    free = ("out_dir", "num_workers", "memory", "input", "engine", "work_dir", "ray_address")
    return {key: item for key, item in settings_as_json(settings).items() if key not in free}


def _require_unchanged(
    settings: TokenizerTrainingSettings, inputs: Sequence[InputFile], contents: list[str | None]
) -> None:
    """Refuse inputs that were overwritten while they were read; files only touched are accepted."""
    for source, content in zip(inputs, contents, strict=True):
        # The counted text may be neither the old nor the new one. Characters are read before the
        # file is hashed, so for them the hash proves nothing.
        if has_changed(source) and (settings.kind == "char" or not is_unchanged(source, content)):
            raise changed_input(source)


def load_finished(
    settings: TokenizerTrainingSettings, inputs: Sequence[InputFile]
) -> TrainedTokenizer | None:
    out_dir = settings.out_dir
    assert out_dir is not None
    if not (out_dir / LEARNED_NAME).exists():
        for name in (TOKENIZER_NAME, VOCABULARY_NAME, MERGES_NAME):
            if (out_dir / name).exists():
                raise DataError(
                    "there is a tokenizer here already that lowtide did not train",
                    path=out_dir / name,
                    next_step="choose another --out-dir",
                )
        return None
    if not (out_dir / TOKENIZER_NAME).exists():
        return None  # killed while its files were written
    record = read_long_json(out_dir / LEARNED_NAME, ("input_files",))
    difference = _find_difference(settings, inputs, record, out_dir)
    if difference is None:
        tokenizer = Tokenizer.load(out_dir)
        require_own_files(tokenizer, out_dir, record)
        return TrainedTokenizer(tokenizer, record, was_there=True)
    raise _refusal(UsageError, difference, out_dir)


def _refusal(kind: type[LowtideError], reason: str, out_dir: Path) -> LowtideError:
    return kind(
        f"there is a tokenizer here already, and {reason}",
        path=out_dir,
        next_step="choose another --out-dir, or remove this folder",
    )


def _find_difference(
    settings: TokenizerTrainingSettings, inputs: Sequence[InputFile], record: Any, out_dir: Path
) -> str | None:
    """The first setting or input that differs from a finished tokenizer's; None if none does."""
    known = record.get("settings") if isinstance(record, dict) else None
    rows = record.get("input_files") if isinstance(record, dict) else None
    if not isinstance(known, dict) or not isinstance(rows, list | Rows):
        raise _refusal(DataError, "nothing says what it was made of", out_dir)
    other = find_changed_setting(known, decisive_settings(settings))
    if other is not None:
        return other
    if not all(isinstance(row, dict) for row in rows):
        raise _refusal(DataError, "nothing says which files it was made of", out_dir)
    return find_difference(inputs, rows)


def _write(vocabulary: Vocabulary, out_dir: Path, record: dict[str, Any]) -> None:
    """Write all files; tokenizer.json last, because its presence means that all are complete.

    The record comes first, so that a kill in between leaves no tokenizer without a record. Each
    file flushed on its own, and its folder after it, took the disk 53 ms of a command of 0.9 s.
    """
    with PublishGroup() as group:
        write_long_json(out_dir / LEARNED_NAME, record, group.add_record)
        if vocabulary.kind == "bpe":
            write_vocab_and_merges(out_dir, vocabulary, group.add_record)
        write_tokenizer_json(out_dir / TOKENIZER_NAME, vocabulary, group.add)
