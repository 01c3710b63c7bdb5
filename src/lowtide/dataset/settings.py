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
    """Files, folders or globs, also s3://, gs://, az://: txt, jsonl, parquet, plain or .gz, .zst,
    .xz, .bz2; or hf://NAME:SPLIT, a Hugging Face dataset by its name or local folder."""
    out_dir: Path
    """Folder for the dataset; with --engine files or ray also at s3://, gs:// or az://."""
    tokenization: str = "gpt2"
    """gpt2, char (one token per character), or a tokenizer's folder."""
    tokens_per_shard: int = 10_000_000
    """Tokens in a shard; only the last shard of a split has fewer."""
    val_fraction: float = 0.1
    """Share of the documents held out for validation; 0 for none."""


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
    """Remove near duplicates: documents that share at least this share of their word n-grams with
    one that is kept, such as 0.8; 0 for none, else 0.5 to 1. near_duplicates.jsonl lists the
    removed documents."""
    near_dedup_ngram: int = 5
    """Words in one n-gram of --near-dedup."""
    decontaminate: tuple[str, ...] = ()
    """Evaluation items (jsonl files or globs) that must not occur in the dataset; they are found
    by n-grams of 13 words, 8 to 12 for shorter items, that occur in at most 10 documents."""
    decontaminate_by: Literal["drop", "cut"] = "drop"
    """drop removes documents that contain text of an item; cut removes only the matching lines."""
    # Order
    shuffle: bool = True
    """Shuffle all documents together; otherwise they stay in input order."""
    seed: int = 0
    """Seed of the shuffle."""
    # Machine
    num_workers: int | None = None
    """Workers; default: one for each core. The result does not depend on it."""
    memory: str | None = None
    """Memory budget of the whole command, such as 2GiB; default: half of the available
    memory."""
    dry_run: bool = False
    """Report what would be written, with counts of removals, without writing it."""
    restart: bool = False
    """Discard the unfinished work of an earlier command in this folder."""
    engine: Literal["threads", "files", "ray"] = "threads"
    """threads: this process only. files: any number of processes, on machines that share a disk
    or an object store; start each with this same command, and they share work through --work-dir.
    ray: a worker on every node of a Ray cluster with such shared storage. The result is the
    same."""
    work_dir: Path | None = None
    """Folder through which the workers of --engine files and ray share work: on the shared disk,
    or a prefix such as s3://bucket/work; default: OUT_DIR.work."""
    ray_address: str | None = None
    """Address of the Ray cluster for --engine ray: HOST:PORT, or auto for the cluster this machine
    is part of; default: RAY_ADDRESS, or a cluster started on this machine while the command
    runs."""

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
                next_step="0.8 removes documents that share four fifths of their word n-grams",
            )
        if not 1 <= self.near_dedup_ngram <= _MOST_NGRAM:
            raise UsageError(
                f"--near-dedup-ngram {self.near_dedup_ngram} must be at least 1, and "
                f"{_MOST_NGRAM} at most"
            )

    @property
    def near(self) -> Likeness | None:
        """How near copies are found; None if they are kept."""
        return Likeness(self.near_dedup, self.near_dedup_ngram) if self.near_dedup else None

    @property
    def item_files(self) -> tuple[str, ...]:
        """The existing files of evaluation items named by `decontaminate`."""
        return find_item_files(self.decontaminate)

    @property
    def keeps_text(self) -> bool:
        """True if clean text is stored on disk until all of it was scanned."""
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
    """One or more text files: txt, jsonl or parquet, plain or .gz, .zst, .xz, .bz2."""
    tokenization: str = "gpt2"
    """gpt2, char (all characters of the file), or a tokenizer's folder."""
    out_path: Path | None = None
    """Output path for a single FILE; default: beside FILE, with the suffix .npy."""
    text_field: str = "text"
    """The field of jsonl rows, the column of parquet files, that holds the text."""
    encoding: str = "utf-8"
    """The encoding of a text file."""
    skip_bad_inputs: bool = False
    """Skip rows without text and the unreadable part of a damaged archive, instead of stopping."""
    num_workers: int | None = None
    """Workers; default: one for each core."""
    memory: str | None = None
    """Memory budget of the whole command, such as 2GiB; default: half of the available
    memory."""

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
    """Folder of the dataset; with --engine files or ray also at s3://, gs:// or az://."""
    input_files: tuple[str, ...]
    """Files, folders or globs of new text."""
    text_field: str = "text"
    """The field of jsonl rows, the column of parquet files, that holds the text."""
    skip_bad_inputs: bool = False
    """Leave out files and rows that cannot be read (each is named) instead of stopping."""
    num_workers: int | None = None
    """Workers; default: one for each core."""
    memory: str | None = None
    """Memory budget of the whole command, such as 2GiB; default: half of the available
    memory."""
    restart: bool = False
    """Discard the unfinished work of an earlier command in this folder."""
    engine: Literal["threads", "files", "ray"] = "threads"
    """threads: this process only. files: any number of processes, on machines that share a disk
    or an object store; start each with this same command, and they share work through --work-dir.
    ray: a worker on every node of a Ray cluster with such shared storage. The result is the
    same."""
    work_dir: Path | None = None
    """Folder through which the workers of --engine files and ray share work: on the shared disk,
    or, for a dataset in a store, also at s3://, gs:// or az://; default: DATASET_DIR.work."""
    ray_address: str | None = None
    """Address of the Ray cluster for --engine ray: HOST:PORT, or auto for the cluster this machine
    is part of; default: RAY_ADDRESS, or a cluster started on this machine while the command
    runs."""
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
    """Folder of the dataset, or its address such as s3://bucket/mine."""
    num_workers: int | None = None
    """Workers; default: one for each core."""
    memory: str | None = None
    """Memory budget of the whole command, such as 2GiB; default: half of the available
    memory."""

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
    """Format to import; default: detected from the files. mypt is a folder of uint32 shards in
    train and val with a dataset_metadata.json of that program."""
    tokenizer: str = "gpt2"
    """Tokenizer that the imported ids were made with: gpt2, or a tokenizer's folder; a char
    dataset of mypt contains its own characters."""
    dtype: Literal["uint16", "uint32"] | None = None
    """Type of the ids in files without a header; default: uint16 for .bin files that look like
    it."""
    val_fraction: float = 0.1
    """Share at the end of the tokens that becomes validation, if an import has no validation
    file."""
    tokens_per_shard: int = 10_000_000
    """Tokens in a shard of an import."""
    memory: str | None = None
    """Memory budget of the whole command, such as 2GiB; default: half of the available
    memory."""

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
    """Folder of a dataset or a tokenizer; a file of token ids; a tokenizer file, or gpt2; or the
    --work-dir of a running job. A dataset and a --work-dir may be at s3://, gs:// or az://."""
    split: Literal["train", "val"] = "train"
    """Split to decode from."""
    start: int = 0
    """First token to decode."""
    tokens: int = 100
    """Number of tokens to decode; 0 for none."""
    show_ids: bool = False
    """Print the token ids too."""
    test_loading: bool = False
    """Load batches as training would, and check order, shapes, speed and memory."""
    dtype: str | None = None
    """Type of the ids in a .npy or .bin file without a header, such as uint32."""
    sample: Path | None = None
    """For a tokenizer: a text file on which bytes per token are measured."""
    text: str | None = None
    """For a tokenizer: text to show split into tokens; default: the beginning of --sample."""
    memory: str | None = None
    """Memory budget of the whole command, such as 2GiB; default: half of the available
    memory."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "dataset_dir", input_path(self.dataset_dir))
        if self.tokens < 0:
            raise UsageError(f"--tokens {self.tokens} is negative")
