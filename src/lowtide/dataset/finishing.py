"""The last steps of a preparation: the names of its shards, and the metadata file.

In:      settings, inputs, counts
Out:     dataset_metadata.json; the tags in the names of shards
Memory:  a few numbers per input
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from itertools import chain
from typing import TYPE_CHECKING, Any

from lowtide.corpus.classifiers import model_checksum
from lowtide.corpus.evaluations import checksum_items
from lowtide.corpus.inputhashes import InputHashes
from lowtide.corpus.inputs import InputFile
from lowtide.corpus.reading import ReadingSettings
from lowtide.corpus.removals import Report
from lowtide.corpus.usersteps import step_checksum
from lowtide.counts import counted
from lowtide.dataset import layout
from lowtide.dataset.encoding import SourceCounts
from lowtide.dataset.identity import iter_sources, list_contents
from lowtide.dataset.removed import Finder, list_finders
from lowtide.dataset.settings import PrepareSettings
from lowtide.dataset.tokenfiles.shards import ShardInfo, shard_tag
from lowtide.errors import DataError
from lowtide.flags import flag_name
from lowtide.longjson import Rows
from lowtide.quickclasses import dataclass
from lowtide.settings import settings_as_json
from lowtide.tokenizer import Tokenizer

if TYPE_CHECKING:
    from lowtide.dataset.contamination import Contamination
    from lowtide.dataset.near.removedcopies import NearRemovals

__all__ = [
    "Made",
    "find_other_setting",
    "find_shard_tag",
    "has_too_few",
    "plan_models",
    "plan_settings",
    "too_few_tokens",
    "write_dataset",
]

_NOT_IN_PLAN = (
    "out_dir",
    "input_files",
    "num_workers",
    "memory",
    "dry_run",
    "restart",
    "engine",
    "work_dir",
    "ray_address",
)
_MODELS = {
    "language_model": ("languages", "min_language_score", "language_model_checksum"),
    "score": ("score_label", "keep_above", "keep_top", "score_checksum"),
    "step": ("step_checksum",),
}
_NEAR = ("near_dedup", "near_dedup_ngram")
_EVALS = ("decontaminate", "decontaminate_by", "decontaminate_checksum")
_ONLY_IF_USED = (
    "rules",
    "rule_limit",
    "mask",
    *_NEAR,
    *_EVALS,
    *_MODELS,
    *chain(*_MODELS.values()),
)
"""Left out of the plan if not used."""
_ALWAYS = (
    "tokenization", "tokens_per_shard", "val_fraction", "document_separator", "text_field",
    "encoding", "skip_bad_inputs", "normalize", "lowercase", "filter", "min_line_chars",
    "max_line_chars", "min_line_words", "min_document_chars", "max_document_chars",
    "min_document_words", "max_repetition", "dedup", "min_dedup_chars", "shuffle", "seed",
)  # fmt: skip
"""Always in the plan. A setting added later is left out if it has its default, so that the same
command still makes, and finds, the shards of an earlier version."""


def plan_settings(settings: PrepareSettings) -> dict[str, Any]:
    """Return the settings that decide the result, which have to be the same to resume."""
    known = {**settings_as_json(settings), **plan_models(settings)}
    _ = settings.models  # refuses labels that the model lacks before anything is written
    for name, others in _MODELS.items():
        if not known[name]:
            known.update(dict.fromkeys(others))
    if settings.keep_top is not None:
        known["keep_above"] = None
    if settings.decontaminate:
        known["decontaminate_checksum"] = checksum_items(settings.item_files)
    else:
        known.update(dict.fromkeys(_EVALS))
    if not settings.near_dedup:
        known.update(dict.fromkeys(_NEAR))
    unused: dict[str, tuple[Any, ...]] = {row.name: (row.default,) for row in fields(settings)}
    unused |= dict.fromkeys(_ALWAYS, ()) | dict.fromkeys(_ONLY_IF_USED, ("", None, [], ()))
    return {
        key: value
        for key, value in known.items()
        if key not in _NOT_IN_PLAN and value not in unused[key]
    }


def plan_models(settings: PrepareSettings) -> dict[str, str]:
    """Checksums of models, because a file of the same name may contain another model later."""
    return {
        f"{name}_checksum": (step_checksum if name == "step" else model_checksum)(path)
        for name in _MODELS
        if (path := getattr(settings, name))
    }


def find_other_setting(
    before: Mapping[str, Any], now: Mapping[str, Any]
) -> tuple[str, Any, Any] | None:
    """The first setting that differs between two plans: its flag, its old and new value.

    >>> find_other_setting({"rules": "c4", "seed": 1}, {"seed": 1})
    ('--rules', 'c4', 'none')
    """
    later = {*_ONLY_IF_USED, *PrepareSettings.__dataclass_fields__} - {*_ALWAYS, *_NOT_IN_PLAN}
    names = [*now, *(name for name in before if name in later and name not in now)]
    for name in sorted(names, key=lambda name: not name.endswith("_checksum")):
        if name in (*_MODELS, "decontaminate") or before.get(name) == now.get(
            name
        ):  # a model is identified by its checksum
            continue
        shown = name.removesuffix("_checksum")
        unused = None if name in _ALWAYS else "none"
        old, new = before.get(shown, unused), now.get(shown, unused)
        return flag_name(shown), old, f"{new} with other content" if old == new else new
    return None


def find_shard_tag(
    settings: PrepareSettings,
    inputs: Sequence[InputFile],
    tokenizer: Tokenizer,
    contents: InputHashes,
) -> str:
    """A tag by content: equal for equal texts, wherever they and the output are stored."""
    plan = plan_settings(settings)
    for name in (
        "tokenization",
        "skip_bad_inputs",
        "decontaminate",
        *_MODELS,
    ):  # names, and how to continue
        plan.pop(name, None)
    return shard_tag(tokenizer.fingerprint, plan, list_contents(inputs, contents))


def has_too_few(settings: PrepareSettings, num_tokens: int) -> bool:
    """True if there are too few tokens for a dataset."""
    return num_tokens < (2 if settings.val_fraction else 1)


def too_few_tokens(settings: PrepareSettings, num_tokens: int) -> DataError:
    """The error for a preparation that removed everything."""
    left = f"{counted(num_tokens, 'token')} {'is' if num_tokens == 1 else 'are'} left"
    return DataError(
        f"{left} after cleaning, filtering and deduplication",
        path=settings.out_dir,
        next_step="see what was removed, and why, with --dry-run",
    )


@dataclass(frozen=True)
class Made:
    """The results and counts of a preparation."""

    split_mode: str
    shards: Mapping[str, Sequence[ShardInfo]]
    report: Report
    notices: list[str]
    contents: InputHashes
    sources: SourceCounts
    seen: dict[str, Any] | None
    """The row of the hashes that `append` needs; None without deduplication."""
    near: NearRemovals | None = None
    """The removed near copies; None if they are kept."""
    contamination: Contamination | None = None
    """The text found of evaluation items; None if it is kept."""

    @property
    def finders(self) -> list[Finder]:
        """The finders that were used."""
        return list_finders(self.near, self.contamination)


def write_dataset(
    settings: PrepareSettings,
    inputs: Sequence[InputFile],
    reading: ReadingSettings,
    tokenizer: Tokenizer,
    made: Made,
) -> None:
    """Write the metadata, which makes the folder a dataset."""
    layout.write_metadata(
        settings.out_dir,
        shards=made.shards,
        vocab_size=tokenizer.vocab_size,
        tokenizer_fingerprint=tokenizer.fingerprint,
        tokenization=settings.tokenization,
        tokens_per_shard=settings.tokens_per_shard,
        input_files=Rows(len(inputs), lambda: (str(row.path) for row in inputs)),
        more={
            "split": {"mode": made.split_mode, "val_fraction": settings.val_fraction},
            "end_of_text_id": tokenizer.end_of_text_id,
            "sources": Rows(
                len(inputs),
                lambda: made.sources.iter_json(iter_sources(inputs, reading, made.contents)),
            ),
            "cleaning": made.report.as_json(),
            "notices": made.notices + list(chain(*(finder.notices() for finder in made.finders))),
            **({"near_duplicates": made.near.write_log(settings.out_dir)} if made.near else {}),
            **(
                {"decontamination": made.contamination.write_report(settings.out_dir)}
                if made.contamination
                else {}
            ),
            "settings": plan_settings(settings),
            **({} if made.seen is None else {"seen": [made.seen]}),
        },
    )
