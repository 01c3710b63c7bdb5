"""Learn a tokenizer from text of any size inside a memory budget.

In:      text files
Out:     a Tokenizer; tokenizer.json, vocab.json, merges.txt and training.json in `out_dir`
Memory:  `memory`, for counting and for learning; data that does not fit is spilled to files
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import shutil
from collections.abc import Generator, Sequence
from pathlib import Path
from typing import Any

import xxhash

from lowtide import _native
from lowtide.corpus.contents import ContentLog, hash_stored
from lowtide.corpus.footprint import reader_bytes
from lowtide.corpus.inputs import SPREAD_BYTES, InputFile, expand_inputs
from lowtide.errors import DataError
from lowtide.filenames import METRICS_NAME, WORK_NAME
from lowtide.files import hold_lock
from lowtide.keywords import takes_keywords
from lowtide.memory import MemoryBudget, format_size, usable_cores
from lowtide.progress import Progress
from lowtide.scratch import scratch_folder
from lowtide.tokenizer.counting import CountCheckpoints, count_pieces
from lowtide.tokenizer.countingplan import (
    SLACK_BYTES,
    WINDOW_BYTES,
    looking_options,
    plan_counting,
    reading_options,
    tell_unseen,
)
from lowtide.tokenizer.learning import LearnedMerges, learn_merges
from lowtide.tokenizer.scanning import CHARACTER_BYTES, count_characters, scan_characters
from lowtide.tokenizer.settings import TokenizerTrainingSettings
from lowtide.tokenizer.trained import (
    TrainedTokenizer,
    decisive_settings,
    keep_trained,
    load_finished,
)
from lowtide.tokenizer.vocabulary import UNKNOWN, Vocabulary

__all__ = ["FILE_BYTES", "learn_from", "train_tokenizer"]

_SCAN_BYTES = 24 << 20  # a block, its documents, and their characters with 32 bits each
FILE_BYTES = 450  # per input, besides its row in the list: its hash, and that in the checkpoint


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
        finished = load_finished(settings, inputs)
        if finished is not None:
            # Left by a run that was killed after writing its last file, before the cleanup.
            shutil.rmtree(settings.out_dir / WORK_NAME, ignore_errors=True)
            if settings.engine != "threads":
                from lowtide.tokenizer.sharedtraining import finish_removal

                finish_removal(settings, inputs)
            return finished
    if settings.engine != "threads":
        from lowtide.tokenizer import sharedtraining  # imported only if it is used

        on_ray = settings.engine == "ray"
        train = sharedtraining.train_on_ray if on_ray else sharedtraining.train_together
        return train(settings, inputs)
    needed = reader_bytes(inputs, reading_options(settings))  # first: its imports count as program
    budget = MemoryBudget.from_setting(settings.memory)
    budget.count("list of files", len(inputs) * FILE_BYTES)
    budget.spread_bytes += len(inputs) * SPREAD_BYTES
    with contextlib.ExitStack() as stack:
        if settings.out_dir is not None:
            stack.enter_context(hold_lock(settings.out_dir, create_folder=True))
            finished = load_finished(settings, inputs)  # by a command that has just ended
            if finished is not None:
                return finished
        work_dir = stack.enter_context(_work_folder(settings.out_dir))
        metrics_path = settings.out_dir / METRICS_NAME if settings.out_dir else None
        with Progress(
            "train-tokenizer", budget_bytes=budget.total_bytes, metrics_path=metrics_path
        ) as progress:
            if settings.kind == "char":
                vocabulary, counts = _scan_characters(settings, inputs, budget, progress, needed)
                contents = _hash_inputs(settings, inputs)
            else:
                checkpoints = CountCheckpoints(work_dir, _counting_key(settings, inputs))
                if settings.out_dir is not None:  # inputs are identified by their content later
                    checkpoints.contents = ContentLog(
                        inputs, part_bytes=settings.limits.hash_part_bytes
                    )
                    stack.callback(checkpoints.contents.close)
                counter, counts = _count(settings, inputs, budget, progress, checkpoints, needed)
                vocabulary = learn_from(settings, counter, counts, budget, progress, work_dir)
                log = checkpoints.contents
                contents = _hash_inputs(settings, inputs) if log is None else log.finish()
            trained = keep_trained(settings, inputs, contents, vocabulary, counts)
    return trained


def _hash_inputs(
    settings: TokenizerTrainingSettings, inputs: Sequence[InputFile]
) -> list[str | None]:
    """The hash of each input, to identify it later; None if nothing is written."""
    if settings.out_dir is None:
        return [None] * len(inputs)
    part_bytes = settings.limits.hash_part_bytes
    return [hash_stored(source, part_bytes=part_bytes) for source in inputs]


def _counting_key(settings: TokenizerTrainingSettings, inputs: Sequence[InputFile]) -> str:
    """A hash of all that must be equal to resume counting; checkpoints detect changed files."""
    digest = xxhash.xxh3_128(json.dumps(decisive_settings(settings), sort_keys=True).encode())
    for source in inputs:
        digest.update(json.dumps([str(source.path), source.size_bytes]).encode())
    return digest.hexdigest()


@contextlib.contextmanager
def _work_folder(out_dir: Path | None) -> Generator[Path]:
    """Return a folder for data that does not fit memory; it is removed when the job succeeds."""
    if out_dir is None:
        with scratch_folder("tokenizer") as folder:
            yield folder
        return
    work_dir = out_dir / WORK_NAME
    work_dir.mkdir(parents=True, exist_ok=True)
    yield work_dir
    shutil.rmtree(work_dir)


def learn_from(
    settings: TokenizerTrainingSettings,
    counter: _native.PieceCounter,
    counts: dict[str, Any],
    budget: MemoryBudget,
    progress: Progress,
    work_dir: Path,
) -> Vocabulary:
    """Learn a vocabulary from counted pieces; statistics are added to `counts`."""
    specials = tuple(dict.fromkeys(settings.special_tokens))
    budget.release("counting tables")
    merges = learn_merges(
        counter,
        target=settings.vocab_size - 256 - len(specials),
        tie_break=settings.tie_break,
        min_frequency=settings.min_frequency,
        max_token_bytes=settings.max_token_bytes,
        budget=budget,
        progress=progress,
        work_dir=work_dir,
        # More threads than cores would slow each other down: they busy-wait for work.
        num_workers=min(settings.num_workers or usable_cores(), usable_cores()),
        limits=settings.limits,
        first_id=len(specials),
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
    merges: LearnedMerges,
) -> Vocabulary:
    """Number tokens: special tokens, bytes, merges; no merge creates an existing token."""
    assert len(set(merges.tokens)) == len(merges.tokens)  # proof in decision 12
    return Vocabulary(
        kind="bpe",
        tokens=(*(text.encode() for text in specials), *merges.tokens),
        special_tokens={text: id for id, text in enumerate(specials)},
        pattern=settings.pattern,
        merge_ids=merges.numbers,
    )


def _count(
    settings: TokenizerTrainingSettings,
    inputs: Sequence[InputFile],
    budget: MemoryBudget,
    progress: Progress,
    checkpoints: CountCheckpoints,
    reading: int,
) -> tuple[_native.PieceCounter, dict[str, Any]]:
    plan = plan_counting(settings, inputs, budget, progress, reading)
    counter = plan.make_counter(checkpoints.folder)
    count_pieces(
        counter,
        inputs,
        needs=plan.needs,
        options=plan.options,
        checkpoints=checkpoints,
        progress=progress,
        limits=settings.limits,
    )
    if counter.spilled_runs:
        tables = format_size(budget.shares["counting tables"])
        progress.note(f"counts did not fit {tables}: spilled and merged")
    return counter, {
        "bytes": checkpoints.bytes_before + counter.bytes_done,
        "pieces": checkpoints.pieces_before + counter.pieces_done,
    }


def _scan_characters(
    settings: TokenizerTrainingSettings,
    inputs: Sequence[InputFile],
    budget: MemoryBudget,
    progress: Progress,
    reading: int,
) -> tuple[Vocabulary, dict[str, Any]]:
    specials = tuple(dict.fromkeys([*settings.special_tokens, UNKNOWN]))
    total = sum(row.size_bytes for row in inputs)
    shares = {"blocks of text": _SCAN_BYTES, "reading": reading, "slack": SLACK_BYTES}
    if sum(shares.values()) > budget.remaining_bytes:  # refused, with the budget it needs
        found, unseen = count_characters(inputs, options=looking_options(settings, budget))
        tell_unseen(unseen, progress)
        more = found * CHARACTER_BYTES - _SCAN_BYTES - reading
        budget.require({**shares, "characters": max(more, 0)})
    for name, size in shares.items():
        budget.reserve(name, wanted_bytes=size)
    options = dataclasses.replace(
        reading_options(settings),
        on_notice=progress.note,
        block_bytes=WINDOW_BYTES,
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
    for name in ("blocks of text", "reading"):  # all is read
        budget.release(name)
    budget.reserve("characters", wanted_bytes=len(scanned.characters) * CHARACTER_BYTES)
    vocabulary = Vocabulary.from_characters(scanned.characters, special_tokens=specials)
    return vocabulary, {"bytes": scanned.num_bytes, "vocab_size": len(vocabulary.tokens)}
