"""Learn a tokenizer from text of any size inside a memory budget.

In:      text files
Out:     a Tokenizer; tokenizer.json, vocab.json, merges.txt and training.json in `out_dir`
Memory:  `memory`, for counting and learning alike; what does not fit is kept in files
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import shutil
from collections.abc import Callable, Generator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal

import xxhash

from lowtide import __version__, _native, files
from lowtide.aliases import WORKER_FLAG
from lowtide.corpus.contents import (
    ContentLog,
    describe_inputs,
    find_difference,
    hash_stored,
    is_unchanged,
)
from lowtide.corpus.differences import find_changed_setting
from lowtide.corpus.encodings import check_encoding
from lowtide.corpus.footprint import reader_bytes
from lowtide.corpus.inputs import (
    InputFile,
    InputList,
    changed_input,
    expand_inputs,
    has_changed,
    hash_inputs,
)
from lowtide.corpus.reading import ReadingSettings, is_plain_text
from lowtide.engine.leases import LEASE_SECONDS
from lowtide.engine.plans import commit_plan
from lowtide.engine.records import Records
from lowtide.errors import DataError, UsageError
from lowtide.files import hold_lock
from lowtide.keywords import takes_keywords
from lowtide.longjson import Rows, read_long_json, write_long_json
from lowtide.memory import MemoryBudget, format_size, usable_cores
from lowtide.notebooks import shown_in_notebooks
from lowtide.progress import METRICS_NAME, Progress
from lowtide.scratch import scratch_folder
from lowtide.settings import settings_as_json
from lowtide.tokenizer.counting import CountCheckpoints, count_pieces
from lowtide.tokenizer.learning import TieBreak, learn_merges
from lowtide.tokenizer.patterns import Pattern
from lowtide.tokenizer.scanning import scan_characters
from lowtide.tokenizer.sharing import (
    STAGES,
    SharedCounting,
    count_together,
    cut_inputs,
    find_part_bytes,
)
from lowtide.tokenizer.tokenizer import Tokenizer
from lowtide.tokenizer.vocabulary import END_OF_TEXT, UNKNOWN, Vocabulary

__all__ = [
    "TokenizerTrainingSettings",
    "TrainedTokenizer",
    "describe_trained",
    "smallest_budget_bytes",
    "train_tokenizer",
]

_RECORD = "training.json"
_WINDOW_BYTES = 1 << 20
_THREAD_BYTES = 6 * _WINDOW_BYTES  # tables and batches of a thread, its window and what it grows by
_BATCH_BYTES = 8 << 20
_SLACK_BYTES = 12 << 20  # Python's own growth, read buffers, the queue of candidate pairs
_SMALLEST_TABLES = 8 << 20
_SCAN_BYTES = 24 << 20  # a block, its documents, and their characters as 32 bits each
_CHARACTER_BYTES = 900  # of a vocabulary, as it is made and written
_FILE_BYTES = 450  # of an input, beside its row in the list: its hash, and that in the checkpoint
_PROGRAM_BYTES = 40 << 20  # the interpreter and what it imports for this


@dataclasses.dataclass(frozen=True)
class TokenizerTrainingSettings:
    """How to learn a tokenizer."""

    flag_words: ClassVar[Mapping[str, str]] = WORKER_FLAG

    input: tuple[str, ...]
    """Text, jsonl or parquet files (plain, .gz, .zst, .xz), folders or globs; also s3://, gs://."""
    out_dir: Path | None = None
    """Folder for tokenizer.json, vocab.json, merges.txt and the record of the training."""
    vocab_size: int = 32000
    """Tokens in all: special tokens, 256 bytes, and merges."""
    special_tokens: tuple[str, ...] = (END_OF_TEXT,)
    """Never split, never counted, never merged across; the first ids are theirs."""
    kind: Literal["bpe", "char"] = "bpe"
    """bpe learns pieces of words; char knows every character of the text."""
    pattern: Pattern = "gpt2"
    """How text is split before merging."""
    tie_break: TieBreak = "huggingface"
    """Of equally frequent pairs: the smallest ids (huggingface), or the greatest bytes (cs336)."""
    min_frequency: int = 1
    """Stop when no pair occurs this often."""
    text_field: str = "text"
    """The field of a jsonl row, or the column of a parquet file, that holds the text."""
    encoding: str = "utf-8"
    """Encoding of text files."""
    skip_bad_inputs: bool = False
    """Leave out rows and rests of files that cannot be read, and say so, instead of stopping."""
    num_workers: int | None = None
    """Threads for counting; all cores by default."""
    memory: str | None = None
    """Memory budget of the whole command, such as 2GiB; half of what is available by default."""
    engine: Literal["threads", "files"] = "threads"
    """threads: this process. files: any number of processes on machines that share a disk, each
    started with this same command; they count together in --work-dir. The result is the same."""
    work_dir: Path | None = None
    """Where workers of --engine files meet, on the shared disk; default: OUT_DIR.work."""

    def __post_init__(self) -> None:
        self._check_engine()
        smallest = 256 + len(set(self.special_tokens))
        if self.kind == "bpe" and self.vocab_size < smallest:
            raise UsageError(
                f"--vocab-size {self.vocab_size} is too small: "
                f"256 bytes and {smallest - 256} special tokens need {smallest}"
            )
        if not self.input:
            raise UsageError("no input files", next_step="--input FILES")
        for text in self.special_tokens:
            if not text:
                raise UsageError("a special token cannot be empty")
            if len(text) == 1:  # files could not tell it from the ordinary token
                raise UsageError(f"special token {text!r} is a single character")
        check_encoding(self.encoding)
        if self.min_frequency < 1:
            raise UsageError(f"--min-frequency {self.min_frequency} is below 1")
        if self.num_workers is not None and not 1 <= self.num_workers <= 4096:
            raise UsageError(f"--processes {self.num_workers} must be at least 1, and 4096 at most")

    def _check_engine(self) -> None:
        if self.engine not in ("threads", "files"):
            raise UsageError(f"--engine {self.engine!r} is not one of threads, files")
        if self.engine == "threads":
            if self.work_dir is not None:
                raise UsageError(
                    "--work-dir is where workers of --engine files meet",
                    next_step="add --engine files, or leave --work-dir out",
                )
            return
        if self.kind == "char":
            raise UsageError(
                "--engine files counts pieces, and --kind char has none",
                next_step="leave --engine files out",
            )
        if self.out_dir is None:
            raise UsageError("--engine files needs --out-dir", next_step="--out-dir FOLDER")


@shown_in_notebooks()
@dataclasses.dataclass(frozen=True)
class TrainedTokenizer:
    """A tokenizer and what its training found."""

    tokenizer: Tokenizer
    record: dict[str, Any]
    """The settings, the inputs and the counts, as training.json has them."""
    was_there: bool = False
    """True if `out_dir` held it already, made with the same settings from the same files."""


@takes_keywords(TokenizerTrainingSettings)
def train_tokenizer(settings: TokenizerTrainingSettings) -> TrainedTokenizer:
    """Learn a BPE or character tokenizer from text of any size, in a fixed amount of memory.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "text.txt"
    >>> _ = path.write_text("low lower lowest")
    >>> trained = train_tokenizer(input=[path], vocab_size=260)
    >>> trained.tokenizer.merges
    [(b'l', b'o'), (b'lo', b'w'), (b' ', b'low')]
    """
    inputs = expand_inputs(settings.input)
    if settings.out_dir is not None:
        finished = _load_finished(settings, inputs)
        if finished is not None:
            # A run that ended between its last file and the clearing up left this.
            shutil.rmtree(settings.out_dir / files.WORK_NAME, ignore_errors=True)
            return finished
    if settings.engine == "files":
        return _train_together(settings, inputs)
    needed = reader_bytes(inputs, _reading_options(settings))  # first: what it imports is program
    budget = MemoryBudget.from_setting(settings.memory)
    budget.count("list of files", len(inputs) * _FILE_BYTES)
    with contextlib.ExitStack() as stack:
        if settings.out_dir is not None:
            stack.enter_context(hold_lock(settings.out_dir, create_folder=True))
            finished = _load_finished(settings, inputs)  # by a command that ended just now
            if finished is not None:
                return finished
        work_dir = stack.enter_context(_work_folder(settings.out_dir))
        metrics_path = settings.out_dir / METRICS_NAME if settings.out_dir else None
        with Progress(
            "train-tokenizer", budget_bytes=budget.total_bytes, metrics_path=metrics_path
        ) as progress:
            contents: list[str | None] = [None] * len(inputs)
            if settings.kind == "char":
                vocabulary, counts = _scan_characters(settings, inputs, budget, progress, needed)
                if settings.out_dir is not None:
                    contents = [hash_stored(source) for source in inputs]
            else:
                checkpoints = CountCheckpoints(work_dir, _counting_key(settings, inputs))
                if settings.out_dir is not None:  # what is kept is known again by its content
                    checkpoints.contents = ContentLog(inputs)
                    stack.callback(checkpoints.contents.close)
                vocabulary, counts = _learn_merges(
                    settings, inputs, budget, progress, checkpoints, needed
                )
                if checkpoints.contents is not None:
                    contents = checkpoints.contents.finish()
            trained = _finish(settings, inputs, contents, vocabulary, counts)
    return trained


def _finish(
    settings: TokenizerTrainingSettings,
    inputs: Sequence[InputFile],
    contents: list[str | None],
    vocabulary: Vocabulary,
    counts: dict[str, Any],
) -> TrainedTokenizer:
    """Write what was learned, if it is kept."""
    _require_unchanged(settings, inputs, contents)
    record = {
        "settings": _decisive_settings(settings),
        "input_files": Rows(len(inputs), lambda: describe_inputs(inputs, contents)),
        "counts": counts,
        "fingerprint": vocabulary.fingerprint,
    }
    name = settings.out_dir.name if settings.out_dir else settings.kind
    tokenizer = Tokenizer(vocabulary, name=name)
    if settings.out_dir is not None:
        _write(tokenizer, settings.out_dir, record)
    return TrainedTokenizer(tokenizer, record)


def _train_together(
    settings: TokenizerTrainingSettings,
    inputs: InputList,
    *,
    part_bytes: int | None = None,
    lease_seconds: float = LEASE_SECONDS,
) -> TrainedTokenizer:
    """Count with other workers; one of them learns, and all of them end with what it wrote."""
    out_dir = settings.out_dir
    assert out_dir is not None
    needed = reader_bytes(inputs, _reading_options(settings))
    budget = MemoryBudget.from_setting(settings.memory)
    budget.count("list of files", len(inputs) * _FILE_BYTES)
    part_bytes = part_bytes or find_part_bytes(inputs.total_bytes)
    records = Records(settings.work_dir or out_dir.with_name(f"{out_dir.name}.work"))
    with Progress("train-tokenizer", budget_bytes=budget.total_bytes) as progress:
        make_counter, options = _plan_counting(settings, inputs, budget, progress, needed)
        counting = SharedCounting(
            inputs=inputs,
            parts=cut_inputs(inputs, part_bytes, encoding=settings.encoding),
            options=options,
            specials=settings.special_tokens,
            batch_bytes=_BATCH_BYTES,
            records=records,
            make_counter=make_counter,
        )
        records.refuse_strangers(STAGES)
        plan = {
            "verb": "train-tokenizer",
            "version": __version__,
            "settings": _decisive_settings(settings),
            "part_bytes": part_bytes,
            "inputs": hash_inputs(inputs),
        }
        commit_plan(plan, records)

        def is_finished() -> bool:
            return (out_dir / "tokenizer.json").exists()

        def learn() -> None:
            with hold_lock(out_dir, create_folder=True), records.scratch_folder() as folder:
                if is_finished():
                    return
                counter = make_counter(folder)
                counts = counting.add_up(counter)
                vocabulary = _learn_from(settings, counter, counts, budget, progress, folder)
                _finish(settings, inputs, counting.contents(), vocabulary, counts)

        count_together(
            counting, learn, progress, is_finished=is_finished, lease_seconds=lease_seconds
        )
        records.remove(STAGES)
    finished = _load_finished(settings, inputs)
    assert finished is not None
    return dataclasses.replace(finished, was_there=False)


def describe_trained(trained: TrainedTokenizer, out_dir: Path) -> str:
    """Return what came out in a few lines."""
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
        f"next: lowtide prepare --input-files FILES --tokenization {out_dir} --out-dir data/mine"
    )
    return "\n".join(lines)


def smallest_budget_bytes(num_workers: int) -> int:
    """Return the smallest budget that plain text can be trained on with."""
    fixed = _fixed_bytes(num_workers, is_plain=True)
    return _PROGRAM_BYTES + sum(fixed.values()) + _SMALLEST_TABLES


def _fixed_bytes(num_workers: int, *, is_plain: bool, reading: int = 0) -> dict[str, int]:
    """Return what counting takes whatever the text is."""
    return {
        "threads": num_workers * _THREAD_BYTES,
        # Rows and compressed blocks are held twice.
        "batch of text": _BATCH_BYTES if is_plain else 4 * _BATCH_BYTES,
        "reading": reading,
        "slack": _SLACK_BYTES,
    }


def _decisive_settings(settings: TokenizerTrainingSettings) -> dict[str, Any]:
    """The settings that the result depends on."""
    free = ("out_dir", "num_workers", "memory", "input", "engine", "work_dir")
    return {key: item for key, item in settings_as_json(settings).items() if key not in free}


def _counting_key(settings: TokenizerTrainingSettings, inputs: Sequence[InputFile]) -> str:
    """What has to be the same to go on counting; the checkpoints know whether files changed."""
    digest = xxhash.xxh3_128(json.dumps(_decisive_settings(settings), sort_keys=True).encode())
    for source in inputs:
        digest.update(json.dumps([str(source.path), source.size_bytes]).encode())
    return digest.hexdigest()


def _require_unchanged(
    settings: TokenizerTrainingSettings, inputs: Sequence[InputFile], contents: list[str | None]
) -> None:
    """Refuse what was overwritten while it was read; a file that was only touched is fine."""
    for source, content in zip(inputs, contents, strict=True):
        # What was counted may be neither the old nor the new text. The characters were read before
        # they were hashed, so there the hash proves nothing.
        if has_changed(source) and (settings.kind == "char" or not is_unchanged(source, content)):
            raise changed_input(source)


def _load_finished(
    settings: TokenizerTrainingSettings, inputs: Sequence[InputFile]
) -> TrainedTokenizer | None:
    out_dir = settings.out_dir
    assert out_dir is not None
    if not (out_dir / _RECORD).exists():
        if (out_dir / "tokenizer.json").exists():
            raise DataError(
                "there is a tokenizer here already that lowtide did not train",
                path=out_dir / "tokenizer.json",
                next_step="choose another --out-dir",
            )
        return None
    if not (out_dir / "tokenizer.json").exists():
        return None  # killed while it wrote its files
    record = read_long_json(out_dir / _RECORD, ("input_files",))
    difference = _find_difference(settings, inputs, record)
    if difference is None:
        return TrainedTokenizer(Tokenizer.load(out_dir), record, was_there=True)
    raise DataError(
        f"there is a tokenizer here already, and {difference}",
        path=out_dir,
        next_step="choose another --out-dir, or remove this folder",
    )


def _find_difference(
    settings: TokenizerTrainingSettings, inputs: Sequence[InputFile], record: Any
) -> str | None:
    """Say what a tokenizer was made otherwise with, or of; None if nothing differs."""
    known = record.get("settings") if isinstance(record, dict) else None
    rows = record.get("input_files") if isinstance(record, dict) else None
    if not isinstance(known, dict) or not isinstance(rows, list | Rows):
        return "nothing says what it was made of"
    other = find_changed_setting(known, _decisive_settings(settings))
    if other is not None:
        return other
    if not all(isinstance(row, dict) for row in rows):
        return "nothing says which files it was made of"
    return find_difference(inputs, rows)


@contextlib.contextmanager
def _work_folder(out_dir: Path | None) -> Generator[Path]:
    """Return a folder for what does not fit memory; it goes when the job ends well."""
    if out_dir is None:
        with scratch_folder("tokenizer") as folder:
            yield folder
        return
    work_dir = out_dir / files.WORK_NAME
    work_dir.mkdir(parents=True, exist_ok=True)
    yield work_dir
    shutil.rmtree(work_dir)


def _learn_merges(
    settings: TokenizerTrainingSettings,
    inputs: Sequence[InputFile],
    budget: MemoryBudget,
    progress: Progress,
    checkpoints: CountCheckpoints,
    reading: int,
) -> tuple[Vocabulary, dict[str, Any]]:
    counter, counts = _count(settings, inputs, budget, progress, checkpoints, reading)
    return _learn_from(settings, counter, counts, budget, progress, checkpoints.folder), counts


def _learn_from(
    settings: TokenizerTrainingSettings,
    counter: _native.PieceCounter,
    counts: dict[str, Any],
    budget: MemoryBudget,
    progress: Progress,
    work_dir: Path,
) -> Vocabulary:
    """Learn a vocabulary from counted pieces; `counts` get what was found."""
    specials = tuple(dict.fromkeys(settings.special_tokens))
    budget.release("counting tables")
    merges = learn_merges(
        counter,
        target=settings.vocab_size - 256 - len(specials),
        tie_break=settings.tie_break,
        min_frequency=settings.min_frequency,
        budget=budget,
        progress=progress,
        work_dir=work_dir,
    )
    counts["distinct_pieces"] = counter.distinct
    vocabulary = _number(settings, specials, merges)
    if len(vocabulary.tokens) < settings.vocab_size:
        frequency = (
            f" that occurs {settings.min_frequency} times" if settings.min_frequency > 1 else ""
        )
        progress.note(
            f"no pair is left{frequency}: the vocabulary has {len(vocabulary.tokens)} tokens, "
            f"{settings.vocab_size} were asked for"
        )
    counts |= {"merges": len(merges), "vocab_size": len(vocabulary.tokens)}
    return vocabulary


def _number(
    settings: TokenizerTrainingSettings,
    specials: tuple[str, ...],
    merges: list[tuple[bytes, bytes]],
) -> Vocabulary:
    """Return ids: special tokens, bytes, merges. A merge that spells a token again makes none.

    By cs336's rule it takes up an id all the same.
    """
    if settings.tie_break == "cs336":
        return Vocabulary.from_merges(merges, special_tokens=specials, pattern=settings.pattern)
    tokens = [text.encode() for text in specials] + [bytes([byte]) for byte in range(256)]
    seen = set(tokens[len(specials) :])
    for left, right in merges:
        if left + right not in seen:
            seen.add(left + right)
            tokens.append(left + right)
    return Vocabulary.from_tokens(
        dict(enumerate(tokens)),
        merges,
        special_tokens={text: id for id, text in enumerate(specials)},
        pattern=settings.pattern,
    )


def _count(
    settings: TokenizerTrainingSettings,
    inputs: Sequence[InputFile],
    budget: MemoryBudget,
    progress: Progress,
    checkpoints: CountCheckpoints,
    reading: int,
) -> tuple[_native.PieceCounter, dict[str, Any]]:
    make_counter, options = _plan_counting(settings, inputs, budget, progress, reading)
    counter = make_counter(checkpoints.folder)
    count_pieces(
        counter,
        inputs,
        specials=settings.special_tokens,
        options=options,
        checkpoints=checkpoints,
        progress=progress,
        batch_bytes=_BATCH_BYTES,
    )
    if counter.spilled_runs:
        tables = format_size(budget.shares["counting tables"])
        progress.note(f"counts did not fit {tables}: spilled and merged")
    return counter, {
        "bytes": checkpoints.bytes_before + counter.bytes_done,
        "pieces": checkpoints.pieces_before + counter.pieces_done,
    }


def _plan_counting(
    settings: TokenizerTrainingSettings,
    inputs: Sequence[InputFile],
    budget: MemoryBudget,
    progress: Progress,
    reading: int,
) -> tuple[Callable[[Path], _native.PieceCounter], ReadingSettings]:
    """Divide the budget; return what makes a counter that spills into a folder, and how to read."""
    num_workers = settings.num_workers or usable_cores()
    is_plain = all(is_plain_text(row, encoding=settings.encoding) for row in inputs)
    fixed = _fixed_bytes(1, is_plain=is_plain, reading=reading)
    budget.require({**fixed, "counting tables": _SMALLEST_TABLES})
    spare = budget.remaining_bytes - sum(fixed.values()) - _SMALLEST_TABLES
    num_workers = min(num_workers, 1 + spare // _THREAD_BYTES)  # rather fewer than none at all
    fixed["threads"] = num_workers * _THREAD_BYTES
    for name, size in fixed.items():
        budget.reserve(name, wanted_bytes=size)
    table_bytes = budget.reserve(
        "counting tables",
        wanted_bytes=budget.remaining_bytes * 3 // 4,
        minimum_bytes=min(_SMALLEST_TABLES, budget.remaining_bytes),
    )

    def make_counter(folder: Path) -> _native.PieceCounter:
        return _native.PieceCounter(
            settings.pattern,
            [text.encode() for text in settings.special_tokens],
            num_threads=num_workers,
            table_bytes=table_bytes,
            window_bytes=_WINDOW_BYTES,
            spill_dir=str(folder),
        )

    options = dataclasses.replace(
        _reading_options(settings),
        on_notice=progress.note,
        reader_bytes=reading + budget.remaining_bytes,
        budget_bytes=budget.total_bytes,
    )
    return make_counter, options


def _reading_options(settings: TokenizerTrainingSettings) -> ReadingSettings:
    return ReadingSettings(
        text_field=settings.text_field,
        encoding=settings.encoding,
        skip_bad=settings.skip_bad_inputs,
    )


def _scan_characters(
    settings: TokenizerTrainingSettings,
    inputs: Sequence[InputFile],
    budget: MemoryBudget,
    progress: Progress,
    reading: int,
) -> tuple[Vocabulary, dict[str, Any]]:
    specials = tuple(dict.fromkeys([*settings.special_tokens, UNKNOWN]))
    total = sum(row.size_bytes for row in inputs)
    shares = {"blocks of text": _SCAN_BYTES, "reading": reading, "slack": _SLACK_BYTES}
    budget.require(shares)
    for name, size in shares.items():
        budget.reserve(name, wanted_bytes=size)
    options = dataclasses.replace(
        _reading_options(settings),
        on_notice=progress.note,
        block_bytes=_WINDOW_BYTES,
        reader_bytes=reading + budget.remaining_bytes,
        budget_bytes=budget.total_bytes,
    )
    with progress.phase("scanning", total=total, unit="B") as phase:
        scanned = scan_characters(
            inputs,
            specials=settings.special_tokens,
            options=options,
            phase=phase,
        )
    if not scanned.num_bytes:
        raise DataError("there is no text in the input files", next_step="name other files")
    budget.reserve("characters", wanted_bytes=len(scanned.characters) * _CHARACTER_BYTES)
    vocabulary = Vocabulary.from_characters(scanned.characters, special_tokens=specials)
    return vocabulary, {"bytes": scanned.num_bytes, "vocab_size": len(vocabulary.tokens)}


def _write(tokenizer: Tokenizer, out_dir: Path, record: dict[str, Any]) -> None:
    """Write all files; tokenizer.json last, since its presence means that the others are whole.

    The record before it: a kill in between must not leave a tokenizer that nobody knows.
    """
    write_long_json(out_dir / _RECORD, record)
    if tokenizer.kind == "bpe":
        tokenizer.save_vocabulary(out_dir)
    tokenizer.save(out_dir)
