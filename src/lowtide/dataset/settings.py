"""Settings of the dataset stage's verbs; each field's docstring is its help."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from lowtide.aliases import WORKER_FLAG
from lowtide.corpus.evaluations import find_item_files
from lowtide.corpus.hub import hub_name
from lowtide.corpus.reading import BLOCK_BYTES
from lowtide.corpus.readingflags import ReadingFlags, as_sequence, check_workers
from lowtide.corpus.settings import CleaningSettings
from lowtide.dataset.near.likeness import Likeness
from lowtide.errors import UsageError
from lowtide.filenames import WORK_NAME
from lowtide.flatsettings import limit
from lowtide.quickclasses import dataclass
from lowtide.settings import import_when_used
from lowtide.stores.paths import input_path, is_stored
from lowtide.stores.urls import store_url

if TYPE_CHECKING:
    import tyro
else:
    tyro = import_when_used("tyro")

__all__ = [
    "AppendSettings",
    "ConvertSettings",
    "InspectSettings",
    "PrepareSettings",
    "PretokenizeSettings",
    "VerifySettings",
]

_MOST_NGRAM = 64
_ENGINES = ("threads", "files", "ray")


def _check_engine(settings: PrepareSettings | AppendSettings) -> None:
    """Refuse flags that do not go together with --engine."""
    engine = settings.engine
    if engine not in _ENGINES:
        raise UsageError(f"--engine {engine!r} is not one of {', '.join(_ENGINES)}")
    if settings.ray_address is not None and engine != "ray":
        raise UsageError("--ray-address is for --engine ray", next_step="add --engine ray")
    if engine == "threads" and settings.work_dir is not None:
        raise UsageError(
            "--work-dir is where workers of --engine files and ray meet",
            next_step="add --engine files, or leave --work-dir out",
        )
    if engine != "threads" and settings.restart:
        raise UsageError(
            "--restart would take the work of other workers from under them",
            next_step="stop them, remove the work folder yourself, and start again",
        )


@dataclass(frozen=True, kw_only=True)
class _PrepareInputs:
    """What `lowtide prepare` reads and writes; the first of its flags."""

    # Text and dataset
    input_files: tuple[str, ...]
    """Files, folders or globs, also of s3://, gs:// or az://: txt and jsonl, plain or .gz, .zst,
    .xz, and parquet; or hf://NAME:SPLIT, a Hugging Face dataset by its name or local folder."""
    out_dir: Path
    """The dataset's folder; with --engine files and ray also s3://, gs:// or az://."""
    tokenization: str = "gpt2"
    """gpt2, char (a vocabulary of all characters of the corpus), or a tokenizer's folder."""
    tokens_per_shard: int = 10_000_000
    """Every shard but the last of a split has exactly this many tokens."""
    val_fraction: float = 0.1
    """The share of documents kept apart for validation; 0 for none."""


@dataclass(frozen=True, kw_only=True)
class PrepareSettings(CleaningSettings, ReadingFlags, _PrepareInputs):
    """Text of any size to checked, shuffled shards of ids.

    Fields are inherited so that a cleaning option is declared once; the help shows them in the
    order inputs, reading, cleaning, and what follows here.
    """

    flag_words: ClassVar[Mapping[str, str]] = WORKER_FLAG
    common_flags: ClassVar[tuple[str, ...]] = (
        "input_files", "out_dir", "tokenization", "val_fraction", "document_separator",
        "text_field", "filter", "dedup", "rules", "score", "near_dedup", "decontaminate",
        "processes", "memory", "dry_run",
    )  # fmt: skip

    near_dedup: float = 0.0
    """Remove a document that has at least this share of its n-grams of words in common with one
    that stays, such as 0.8; 0 for none, else 0.5 to 1. Removals are in near_duplicates.jsonl."""
    near_dedup_ngram: int = 5
    """Words in an n-gram of --near-dedup."""
    decontaminate: tuple[str, ...] = ()
    """Files of evaluation items (jsonl, or globs of them) that the text should not contain;
    by n-grams of 13 words, 8 to 12 for shorter items, that at most 10 documents have."""
    decontaminate_by: Literal["drop", "cut"] = "drop"
    """drop removes documents that contain text of an item; cut only the lines that do."""
    # Order
    shuffle: bool = True
    """Shuffle documents, all of them with all; else they stay in order."""
    seed: int = 0
    """Decides the shuffle."""
    # Machine
    num_workers: int | None = None
    """Workers; default: one for each core. The result does not depend on it."""
    memory: str | None = None
    """Memory for everything, as 2GiB or 500MB; default: half of what is available."""
    dry_run: bool = False
    """Read, clean and count, and report what would be written, but write no dataset."""
    restart: bool = False
    """Throw away unfinished work of an earlier command in this folder."""
    engine: Literal["threads", "files", "ray"] = "threads"
    """threads: this process. files: any number of processes on machines that share a disk or an
    object store, each started with this same command; they meet in --work-dir. ray: a worker on
    every node of a Ray cluster whose nodes share one. The result is the same."""
    work_dir: Path | None = None
    """Where workers of --engine files and ray meet, a folder of the shared disk or a prefix as
    s3://bucket/work; default: OUT_DIR.work."""
    ray_address: str | None = None
    """The cluster of --engine ray, as HOST:PORT, or auto for the one this machine is part of;
    default: RAY_ADDRESS, or one on this machine, for as long as the command runs."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.work_dir is not None:
            object.__setattr__(self, "work_dir", input_path(self.work_dir))
        object.__setattr__(self, "out_dir", input_path(self.out_dir))
        self._check_engine()
        self._check_near_copies()
        object.__setattr__(self, "decontaminate", tuple(map(str, as_sequence(self.decontaminate))))
        object.__setattr__(self, "input_files", tuple(map(str, as_sequence(self.input_files))))
        self.check_reading()
        if not 0 <= self.val_fraction < 1:
            raise UsageError(
                f"--val-fraction {self.val_fraction} must be at least 0 and less than 1"
            )
        if self.tokens_per_shard < 2:
            raise UsageError(f"--tokens-per-shard {self.tokens_per_shard} must be at least 2")
        check_workers(self.num_workers)
        if self.seed < 0:
            raise UsageError(f"--seed {self.seed} is negative")

    def _check_near_copies(self) -> None:
        if self.near_dedup and not 0.5 <= self.near_dedup <= 1:
            raise UsageError(
                f"--near-dedup {self.near_dedup} must be 0, or from 0.5 to 1",
                next_step="0.8 removes what shares four fifths of its n-grams of words",
            )
        if not 1 <= self.near_dedup_ngram <= _MOST_NGRAM:
            raise UsageError(
                f"--near-dedup-ngram {self.near_dedup_ngram} must be at least 1, and "
                f"{_MOST_NGRAM} at most"
            )

    @property
    def near(self) -> Likeness | None:
        """How near copies are found; None where they stay."""
        return Likeness(self.near_dedup, self.near_dedup_ngram) if self.near_dedup else None

    @property
    def item_files(self) -> tuple[str, ...]:
        """The files of evaluation items that `decontaminate` names, if they are there."""
        return find_item_files(self.decontaminate)

    @property
    def keeps_text(self) -> bool:
        """Whether clean text waits on the disk until all of it was looked at."""
        return self.near is not None or bool(self.decontaminate)

    def _check_engine(self) -> None:
        _check_engine(self)
        for path in (self.out_dir, self.work_dir):
            if path is not None and (url := store_url(path)) is not None and not url.key:
                raise UsageError(f"{url} is a whole bucket", next_step=f"name a prefix: {url}/mine")
        if self.engine == "threads" and is_stored(self.out_dir) and not self.dry_run:
            raise UsageError(
                f"{self.out_dir} is an address, and --engine threads writes to a disk",
                next_step="add --engine files, whose workers upload what they make; or name a "
                "folder of this machine, and copy it there when it is finished",
            )
        if self.engine != "threads" and self.dry_run:
            raise UsageError(
                "--dry-run is for --engine threads", next_step=f"leave --engine {self.engine} out"
            )


@dataclass(frozen=True, kw_only=True)
class PretokenizeSettings:
    """Text files to .npy files of ids beside them, one each."""

    flag_words: ClassVar[Mapping[str, str]] = WORKER_FLAG

    file: Annotated[tuple[Path, ...], tyro.conf.Positional]
    """The text, one file or several: plain, or jsonl, parquet, .gz, .zst, .xz."""
    tokenization: str = "gpt2"
    """gpt2, char (all characters of the file), or a tokenizer's folder."""
    out_path: Path | None = None
    """Where the ids of a single file go; default: beside FILE, with the suffix .npy."""
    text_field: str = "text"
    """The field of jsonl rows, the column of parquet files, that holds the text."""
    encoding: str = "utf-8"
    """The encoding of a text file."""
    skip_bad_inputs: bool = False
    """Leave out rows without text, and what cannot be read of a damaged archive."""
    num_workers: int | None = None
    """Workers; default: one for each core."""
    memory: str | None = None
    """Memory for everything, as 2GiB or 500MB; default: half of what is available."""

    def __post_init__(self) -> None:
        paths = tuple(Path(str(path)) for path in as_sequence(self.file))
        object.__setattr__(self, "file", paths)
        if not paths:
            raise UsageError("no file is named", next_step="lowtide pretokenize FILE")
        if hub := list(filter(None, map(hub_name, paths))):
            raise UsageError(
                f"pretokenize reads files, and {hub[0]} is a dataset of the hub",
                next_step=f"lowtide prepare --input-files {hub[0]} --out-dir DIR, then "
                "lowtide convert DIR OUT --to npy",
            )
        check_workers(self.num_workers)
        if self.out_path is not None:
            object.__setattr__(self, "out_path", Path(self.out_path))


@dataclass(frozen=True, kw_only=True)
class AppendSettings:
    """New text for a finished dataset, with its tokenizer and its settings."""

    flag_words: ClassVar[Mapping[str, str]] = WORKER_FLAG

    dataset_dir: Annotated[Path, tyro.conf.Positional]
    """The dataset's folder; with --engine files and ray also s3://, gs:// or az://."""
    input_files: tuple[str, ...]
    """Files, folders or globs of new text."""
    text_field: str = "text"
    """The field of jsonl rows, the column of parquet files, that holds the text."""
    skip_bad_inputs: bool = False
    """Leave out files and rows that cannot be read (each is named) instead of stopping."""
    num_workers: int | None = None
    """Workers; default: one for each core."""
    memory: str | None = None
    """Memory for everything, as 2GiB or 500MB; default: half of what is available."""
    restart: bool = False
    """Throw away unfinished work of an earlier command in this folder."""
    engine: Literal["threads", "files", "ray"] = "threads"
    """threads: this process. files: any number of processes on machines that share a disk or an
    object store, each started with this same command; they meet in --work-dir. ray: a worker on
    every node of a Ray cluster whose nodes share one. The result is the same."""
    work_dir: Path | None = None
    """Where workers of --engine files and ray meet, a folder of the shared disk, or for a dataset
    in a store also s3://, gs:// or az://; default: DATASET_DIR.work."""
    ray_address: str | None = None
    """The cluster of --engine ray, as HOST:PORT, or auto for the one this machine is part of;
    default: RAY_ADDRESS, or one on this machine, for as long as the command runs."""
    block_bytes: Annotated[int, tyro.conf.Fixed, tyro.conf.Suppress] = limit(BLOCK_BYTES)

    def __post_init__(self) -> None:
        object.__setattr__(self, "dataset_dir", input_path(self.dataset_dir))
        object.__setattr__(self, "input_files", tuple(map(str, as_sequence(self.input_files))))
        check_workers(self.num_workers)
        if self.work_dir is not None:
            object.__setattr__(self, "work_dir", input_path(self.work_dir))
        _check_engine(self)
        self._check_places()

    def _check_places(self) -> None:
        """Refuse a dataset or a work folder where this engine cannot work."""
        root, url = self.dataset_dir, store_url(self.dataset_dir)
        if url is not None and not url.key:
            raise UsageError(f"{url} is a whole bucket", next_step=f"name a prefix: {url}/mine")
        if is_stored(root) and self.engine == "threads":
            inputs = " ".join(map(shlex.quote, self.input_files))
            raise UsageError(
                f"{root} lies in an object store, and --engine threads adds text on a disk",
                next_step=f"lowtide append {root} --input-files {inputs} --engine files",
            )
        if self.work_dir is not None and is_stored(self.work_dir) and not is_stored(root):
            raise UsageError(
                f"workers cannot meet at {self.work_dir}: the dataset {root} is on a disk, which "
                "they share anyway",
                next_step="name a folder of a disk that all workers share as --work-dir, or leave "
                f"it out: {root}{WORK_NAME}",
            )


@dataclass(frozen=True, kw_only=True)
class VerifySettings:
    """Every byte, id and document end of a dataset."""

    flag_words: ClassVar[Mapping[str, str]] = WORKER_FLAG

    dataset_dir: Annotated[Path, tyro.conf.Positional]
    """The dataset's folder, or its address as s3://bucket/mine."""
    num_workers: int | None = None
    """Workers; default: one for each core."""
    memory: str | None = None
    """Memory for everything, as 2GiB or 500MB; default: half of what is available."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "dataset_dir", input_path(self.dataset_dir))
        check_workers(self.num_workers)


OtherKind = Literal["nanogpt", "llmc", "megatron", "npy"]
Kind = Literal["lowtide", OtherKind]
SourceKind = Literal[Kind, "mypt"]


@dataclass(frozen=True, kw_only=True)
class ConvertSettings:
    """Ids of other programs to a dataset, or a dataset to theirs."""

    in_path: Annotated[Path, tyro.conf.Positional]
    """A dataset to export; or a file or folder of another program to import."""
    out_path: Annotated[Path, tyro.conf.Positional]
    """The folder to write."""
    to: Kind = "lowtide"
    """lowtide imports; the others export: nanogpt (raw .bin), llmc (.bin with the header of llm.c
    and modded-nanogpt), megatron (.bin and .idx), npy."""
    source_kind: Annotated[SourceKind | None, tyro.conf.arg(name="from")] = None
    """What to import; default: by what the files look like. mypt is a folder of uint32 shards in
    train and val with a dataset_metadata.json of that program."""
    tokenizer: str = "gpt2"
    """The tokenizer imported ids were made with: gpt2, or a tokenizer's folder; mypt brings the
    characters of a char dataset along."""
    dtype: Literal["uint16", "uint32"] = "uint16"
    """The type of headerless ids."""
    val_fraction: float = 0.1
    """Where an import has no validation file: the share at its end."""
    tokens_per_shard: int = 10_000_000
    """The size of an import's shards."""
    memory: str | None = None
    """Memory for everything, as 2GiB or 500MB; default: half of what is available."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "in_path", Path(self.in_path))
        object.__setattr__(self, "out_path", Path(self.out_path))
        if self.source_kind is None:
            from lowtide.dataset.tokenfiles.table import guess_format  # not for --help

            object.__setattr__(self, "source_kind", guess_format(self.in_path))
        if self.tokens_per_shard < 2:
            raise UsageError(f"--tokens-per-shard {self.tokens_per_shard} must be at least 2")
        if not 0 <= self.val_fraction < 1:
            raise UsageError(f"--val-fraction {self.val_fraction} must be in [0, 1)")


@dataclass(frozen=True, kw_only=True)
class InspectSettings:
    """A dataset at a glance, and the text of any window; or a tokenizer."""

    dataset_dir: Annotated[Path, tyro.conf.Positional]
    """The folder of a dataset or of a tokenizer; a file of tokens; a tokenizer's file, or gpt2; the
    --work-dir of a job that is running. A dataset and a --work-dir may be s3://, gs:// or az://."""
    split: Literal["train", "val"] = "train"
    """Which part the window is in."""
    start: int = 0
    """The window's first token."""
    tokens: int = 100
    """How many tokens to decode; 0 for none."""
    show_ids: bool = False
    """Print the ids as well."""
    test_loading: bool = False
    """Load batches as training would, and check order, shapes, speed and memory."""
    dtype: str | None = None
    """Of a .npy or .bin file without a header: the type of its ids, such as uint32."""
    sample: Path | None = None
    """Of a tokenizer: a text file to measure bytes per token on."""
    text: str | None = None
    """Of a tokenizer: what to show as tokens; the sample's beginning by default."""
    memory: str | None = None
    """Memory for everything, as 2GiB or 500MB; default: half of what is available."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "dataset_dir", input_path(self.dataset_dir))
        if self.tokens < 0:
            raise UsageError(f"--tokens {self.tokens} is negative")
