"""Settings of tokenizer training."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from lowtide.aliases import WORKER_FLAG
from lowtide.corpus.encodings import check_encoding
from lowtide.errors import UsageError
from lowtide.flatsettings import limit
from lowtide.quickclasses import dataclass
from lowtide.settings import import_when_used
from lowtide.stores.paths import input_path
from lowtide.tokenizer.learning import TieBreak
from lowtide.tokenizer.limits import CountingLimits
from lowtide.tokenizer.patterns import Pattern
from lowtide.tokenizer.vocabulary import END_OF_TEXT

if TYPE_CHECKING:
    import tyro
else:
    tyro = import_when_used("tyro")

__all__ = ["TokenizerTrainingSettings"]

_LIMITS = CountingLimits()


@dataclass(frozen=True)
class TokenizerTrainingSettings:
    """How to learn a tokenizer."""

    flag_words: ClassVar[Mapping[str, str]] = WORKER_FLAG

    input: tuple[str, ...]
    """Text, jsonl or parquet files (plain, .gz, .zst, .xz, .bz2), folders or globs; also s3://,
    gs://."""
    out_dir: Path | None = None
    """Folder for tokenizer.json, vocab.json, merges.txt and the record of the training."""
    vocab_size: int = 32000
    """Size of the vocabulary: special tokens, 256 bytes, and merges."""
    special_tokens: tuple[str, ...] = (END_OF_TEXT,)
    """Tokens that are never split, counted or merged with other text; they get the first ids."""
    kind: Literal["bpe", "char"] = "bpe"
    """bpe learns subwords; char makes one token of each character of the text."""
    pattern: Pattern = "gpt2"
    """Split pattern: how text is split into words before merging."""
    tie_break: TieBreak = "huggingface"
    """Which of equally frequent pairs is merged first: the one with the smallest ids (huggingface),
    or with the greatest bytes (cs336)."""
    min_frequency: int = 1
    """Stop when no pair occurs at least this often."""
    max_token_bytes: int | None = None
    """Longest token in bytes; default: no limit."""
    text_field: str = "text"
    """Field of jsonl rows, or column of parquet files, that holds the text."""
    encoding: str = "utf-8"
    """Encoding of text files."""
    skip_bad_inputs: bool = False
    """Skip files and rows that cannot be read, and list them, instead of stopping."""
    num_workers: int | None = None
    """Threads for counting; default: one for each core."""
    memory: str | None = None
    """Memory budget of the whole command, such as 2GiB; default: half of the available memory."""
    engine: Literal["threads", "files", "ray"] = "threads"
    """threads: this process only. files: any number of processes on machines that share a disk;
    start each with this same command, and they share the counting through --work-dir. ray: a
    worker on every node of a Ray cluster. The result is the same."""
    work_dir: Path | None = None
    """Folder through which the workers of --engine files and ray share work: on the shared disk,
    or a prefix such as s3://bucket/work; default: OUT_DIR.work."""
    ray_address: str | None = None
    """Address of the Ray cluster for --engine ray: HOST:PORT, or auto for the cluster this machine
    is part of; default: RAY_ADDRESS, or a cluster started on this machine while the command
    runs."""
    limits: Annotated[CountingLimits, tyro.conf.Fixed, tyro.conf.Suppress] = limit(_LIMITS)

    def __post_init__(self) -> None:
        if self.work_dir is not None:
            object.__setattr__(self, "work_dir", input_path(self.work_dir))
        self._check_engine()
        smallest = 256 + len(set(self.special_tokens))
        if self.kind == "bpe" and self.vocab_size < smallest:
            raise UsageError(
                f"--vocab-size {self.vocab_size} is too small: "
                f"256 bytes and {smallest - 256} special tokens need {smallest}",
                next_step=f"--vocab-size {smallest} or more",
            )
        if not self.input:
            raise UsageError("no input files", next_step="--input FILES")
        if self.kind == "char":
            self._check_characters()
        for text in self.special_tokens:
            if not text:
                raise UsageError(
                    "a special token cannot be empty", next_step="is a variable of the shell empty?"
                )
            if len(text) == 1:  # in files it would be identical to the ordinary token
                raise UsageError(
                    f"special token {text!r} is a single character",
                    next_step="name one of several, such as '<|endoftext|>'",
                )
        check_encoding(self.encoding)
        if self.min_frequency < 1:
            raise UsageError(f"--min-frequency {self.min_frequency} is below 1")
        if self.max_token_bytes is not None and self.max_token_bytes < 1:
            raise UsageError(f"--max-token-bytes {self.max_token_bytes} is below 1")
        if self.num_workers is not None and not 1 <= self.num_workers <= 4096:
            raise UsageError(f"--processes {self.num_workers} must be at least 1, and 4096 at most")

    def _check_characters(self) -> None:
        """Refuse what only merges have: the vocabulary would be larger than was asked for, say."""
        for name in ("vocab_size", "pattern", "tie_break", "min_frequency", "max_token_bytes"):
            if getattr(self, name) != getattr(type(self), name):
                flag = "--" + name.replace("_", "-")
                raise UsageError(
                    f"{flag} has no effect with --kind char, which makes one token of each "
                    "character",
                    next_step=f"leave {flag} out",
                )

    def _check_engine(self) -> None:
        engine = self.engine
        if engine not in ("threads", "files", "ray"):
            raise UsageError(f"--engine {engine!r} is not one of threads, files, ray")
        if self.ray_address is not None and engine != "ray":
            raise UsageError("--ray-address is for --engine ray", next_step="add --engine ray")
        if engine == "threads":
            if self.work_dir is not None:
                raise UsageError(
                    "--work-dir is where workers of --engine files and ray meet",
                    next_step="add --engine files, or leave --work-dir out",
                )
            return
        if self.kind == "char":
            raise UsageError(
                f"--engine {engine} counts pieces, and --kind char has none",
                next_step=f"leave --engine {engine} out",
            )
        if self.out_dir is None:
            raise UsageError(f"--engine {engine} needs --out-dir", next_step="--out-dir FOLDER")
