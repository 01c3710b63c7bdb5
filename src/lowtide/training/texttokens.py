"""The tokens of a text file for a run: encoded once, in bounded memory, and mapped afterwards.

In:      TrainSettings with an input file
Out:     the .npy beside the text, or one in the run's folder with its tokenizer
Memory:  as pretokenize: windows of text and their ids; no torch

The ids are those that `lowtide pretokenize` writes. The same text (by its checksum) is never
tokenized twice.
"""

from __future__ import annotations

import functools
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from lowtide import _native
from lowtide.corpus.inputs import expand_inputs, names_files
from lowtide.corpus.reading import ReadingSettings
from lowtide.dataset.pretokenization import pretokenize_file
from lowtide.dataset.provenance import (
    Provenance,
    describe_source_change,
    npy_path,
    read_provenance,
    record_path,
    tokenizer_dir,
)
from lowtide.dataset.resources import estimate_text_bytes
from lowtide.errors import DataError, UsageError
from lowtide.filenames import TOKENIZER_NAME
from lowtide.files import atomic_file, checksum_file, read_json, write_json
from lowtide.loader.texts import FileTexts, HubTexts, TextSource
from lowtide.memory import MemoryBudget
from lowtide.model.checksums import step_dirs
from lowtide.model.config import padded_vocab_size
from lowtide.progress import Progress
from lowtide.stores.urls import store_url
from lowtide.tokenizer import Tokenizer
from lowtide.tokenizer.scanning import scan_characters
from lowtide.tokenizer.training import train_tokenizer
from lowtide.tokenizer.vocabulary import END_OF_TEXT
from lowtide.training.choosing import learned_vocabulary, model_config
from lowtide.training.footprint import stream_reading
from lowtide.training.resuming import another_run
from lowtide.training.settinggroups import DataSettings, RunSettings
from lowtide.training.settings import TrainSettings
from lowtide.training.textneeds import OWN_TOKEN_BYTES, TOKENS_NAME

__all__ = [
    "count_vocabulary",
    "find_stream_tokenizer",
    "find_text_tokens",
    "require_local_text",
]

_HEAD_BYTES = 32 << 20
_LARGE_BYTES = 64 << 20
# The longest stretch without a place to cut in a sample: all of it is in memory while merges are
# learned, at up to 80 times its size; by then training has taken no more than that.
_STRETCH_BYTES = 2 << 20
_LOOK_BYTES = 64 << 10
_IDENTITY_NAME = "source.json"


def require_local_text(data: DataSettings) -> None:
    """Refuse a text that lies in an object store."""
    path = data.input_file
    if path is None or path.suffix == ".npy" or (url := store_url(path)) is None:
        return
    raise UsageError(
        f"--input-file {url} lies in an object store, which is not read as one file",
        next_step=f"--dataset-id {url} reads it as it trains, lowtide prepare makes a dataset",
    )


def find_text_tokens(
    settings: TrainSettings,
    note: Callable[[str], None],
    known: Tokenizer | None,
    *,
    large_bytes: int = _LARGE_BYTES,
) -> Path:
    """Return the .npy of a text file: beside it, or made in the run's folder.

    `known` is the tokenizer of the model that training starts from.
    """
    path = settings.data.input_file
    assert path is not None
    if path.suffix == ".npy":
        return path
    require_local_text(settings.data)
    if path.is_dir():
        raise _no_text(path)
    own = _own_tokenizer(settings.run)
    known = own or known
    folder = settings.run.folder / "data"
    tokens_path, identity_path = folder / TOKENS_NAME, folder / _IDENTITY_NAME
    if own is not None and _began_with(path, identity_path) and tokens_path.is_file():
        return tokens_path
    beside = npy_path(path)
    if beside.is_file():
        reason = _why_not_beside(settings.data, path, read_provenance(beside), known)
        if reason is None:
            return beside
        note(f"{beside} is not used: {reason}; the text is tokenized anew")
    if not path.is_file():
        raise _no_text(path)
    identity = {
        "path": str(path.absolute()),
        "checksum": checksum_file(path),
        "text_field": settings.data.text_field,
        "tokenization": settings.data.tokenization,
        "vocab_size": settings.data.vocab_size,
        "learned_vocab_size": _learned_size(settings, path, known),
    }
    if tokens_path.is_file() and _is_recorded(identity_path, identity):
        return tokens_path
    folder.mkdir(parents=True, exist_ok=True)
    for old in (identity_path, tokens_path, record_path(tokens_path)):  # of another text
        old.unlink(missing_ok=True)
    shutil.rmtree(tokenizer_dir(tokens_path), ignore_errors=True)
    tokenizer = _choose_tokenizer(settings, path, note, known)
    if settings.model.target_params is not None and known is None:
        # A vocabulary that leaves no network is refused now, not after all of it is tokenized.
        model_config(settings.model, padded_vocab_size(tokenizer.vocab_size))
    tokenizer.save(folder)
    if path.stat().st_size >= large_bytes:
        note(
            f"{path} is tokenized for this run alone; lowtide pretokenize {path} --tokenization "
            f"{folder} does it once for all runs"
        )
    made = pretokenize_file(
        file=path,
        out_path=tokens_path,
        tokenization=str(folder),
        text_field=settings.data.text_field,
        memory=settings.machine.memory,
    )
    write_json(identity_path, identity)
    note(f"tokenized {path}: {made.num_tokens:,} tokens ({tokenizer.name}), kept in {tokens_path}")
    return tokens_path


def _learned_size(settings: TrainSettings, path: Path, known: Tokenizer | None) -> int | None:
    """The vocabulary size of the tokenizer that the run learns; None if it takes another one."""
    data = settings.data
    if data.tokenization is not None or (known is not None and data.vocab_size is None):
        return None
    text_bytes = estimate_text_bytes(expand_inputs([path]))
    return learned_vocabulary(data.vocab_size, settings.model, text_bytes)


def _is_recorded(path: Path, identity: dict[str, Any]) -> bool:
    """True if a record is of these tokens."""
    stored = read_json(path) if path.is_file() else None
    if not isinstance(stored, dict):
        return False
    new = ("learned_vocab_size", "text_field")  # not stored by earlier versions
    return {**{name: identity[name] for name in new}, **stored} == identity


def _own_tokenizer(run: RunSettings) -> Tokenizer | None:
    """The tokenizer of a run that has a checkpoint; None for one that is yet to begin."""
    if not step_dirs(run.folder) or not (run.folder / TOKENIZER_NAME).is_file():
        return None
    return Tokenizer.load(run.folder)


def _began_with(path: Path, identity_path: Path) -> bool:
    """True if a run has tokens of this text, which may have been moved or renamed since.

    Another text is refused here: the run's tokens would be replaced by those of a text that it
    cannot go on with.
    """
    stored = read_json(identity_path) if identity_path.is_file() else None
    if not isinstance(stored, dict) or "checksum" not in stored:
        return False
    if not path.is_file():
        raise _no_text(path)
    if stored["checksum"] != checksum_file(path):
        raise another_run(
            f"{path} is another text than the one that this run began with",
            path=identity_path.parent.parent,
        )
    return True


def _no_text(path: Path) -> DataError:
    if path.is_dir():
        message = "this is a folder, --input-file takes one file"
        step = f"--dataset-id {path} trains on all texts in it, lowtide prepare makes a dataset"
    elif path.exists():
        message = "this is a pipe or a device, expected a file"
        step = "write its text to a file first: it is read again when the run goes on"
    else:
        message, step = "input file not found", "check the path for typing errors"
    return DataError(message, path=path, next_step=step)


def _why_not_beside(
    data: DataSettings, path: Path, made: Provenance | None, known: Tokenizer | None
) -> str | None:
    """The reason why the .npy beside a text cannot be used for it; None if it can."""
    if made is None:  # by another program; opening it reports what could not be checked
        return None
    change = describe_source_change(made.source, path) if path.is_file() else None
    if change is not None:
        return change
    field = made.settings.get("text_field", data.text_field)
    if field != data.text_field and path.is_file() and _has_fields(path):
        return f"it was made of the field {field}, --text-field is {data.text_field}"
    if data.vocab_size not in (None, made.vocab_size):
        return f"it has a vocabulary of {made.vocab_size}, --vocab-size is {data.vocab_size}"
    wanted = data.tokenization
    if data.vocab_size is not None or wanted == made.tokenization:
        return None
    if wanted == "char" or (wanted is not None and made.tokenization == "char"):
        return f"it was made with tokenizer {made.tokenization}, --tokenization is {wanted}"
    other = known if wanted is None else Tokenizer.load(wanted)
    if other is not None and other.fingerprint != made.tokenizer_fingerprint:
        return f"it was made with tokenizer {made.tokenization}, not with {other.name}"
    return None


def _has_fields(path: Path) -> bool:
    """True if texts are a field of rows, or a column."""
    return any(source.format.block_kind != "text" for source in expand_inputs([path]))


def _choose_tokenizer(
    settings: TrainSettings, path: Path, note: Callable[[str], None], known: Tokenizer | None
) -> Tokenizer:
    """Return the run's own tokenizer, the given, the base model's, or one learned from the text."""
    if (own := _own_tokenizer(settings.run)) is not None:
        return own
    if settings.data.tokenization == "char":
        return Tokenizer.from_characters(
            sorted(_characters(settings.data, settings.machine.memory))
        )
    if settings.data.tokenization is not None:
        return Tokenizer.load(settings.data.tokenization)
    if known is not None and settings.data.vocab_size is None:
        return known
    return learn_tokenizer(settings, str(path), note)


def find_stream_tokenizer(
    settings: TrainSettings, note: Callable[[str], None], known: Tokenizer | None
) -> Tokenizer:
    """Return the tokenizer of a run that streams: given, the base model's, or learned once."""
    name = settings.data.dataset_id
    assert name is not None
    if (own := _own_tokenizer(settings.run)) is not None:
        return own
    if settings.data.tokenization is not None:
        return Tokenizer.load(settings.data.tokenization)
    if known is not None and settings.data.vocab_size is None:
        return known
    if not names_files(name):
        texts = HubTexts(name, split=settings.data.split, text_field=settings.data.text_field)
        return learn_from_head(settings, texts, note)
    if settings.data.vocab_size is not None:
        return learn_tokenizer(settings, name, note)
    return learn_from_head(settings, _beginning(settings, name), note)


def _beginning(settings: TrainSettings, name: str) -> FileTexts:
    """The texts to learn from, read before any other memory is taken."""
    budget = MemoryBudget.from_setting(settings.machine.memory)
    needed = stream_reading(settings.data).reader_bytes
    return FileTexts(
        [name],
        text_field=settings.data.text_field,
        reader_bytes=max(needed, budget.remaining_bytes // 2),
        budget_bytes=budget.total_bytes,
    )


def learn_tokenizer(settings: TrainSettings, source: str, note: Callable[[str], None]) -> Tokenizer:
    """Learn a tokenizer from the run's own text, once; it is stored in the run."""
    size = learned_vocabulary(
        settings.data.vocab_size, settings.model, estimate_text_bytes(expand_inputs([source]))
    )
    return _learn(settings, source, size, note, described=source)


def _learn(
    settings: TrainSettings,
    source: str,
    vocab_size: int,
    note: Callable[[str], None],
    *,
    described: str,
) -> Tokenizer:
    folder = settings.run.folder / "data" / "tokenizer"
    train = functools.partial(
        train_tokenizer,
        input=[source],
        out_dir=folder,
        vocab_size=vocab_size,
        text_field=settings.data.text_field,
        memory=settings.machine.memory,
        max_token_bytes=OWN_TOKEN_BYTES,
    )
    try:
        trained = train()
    except UsageError:
        if step_dirs(settings.run.folder):
            raise
        shutil.rmtree(folder, ignore_errors=True)  # of an attempt that ended before the first step
        trained = train()
    if not trained.was_there:
        size = trained.tokenizer.vocab_size
        note(f"tokenizer of {size:,} tokens learned from {described}: {folder}")
    return trained.tokenizer


def learn_from_head(
    settings: TrainSettings, texts: TextSource, note: Callable[[str], None]
) -> Tokenizer:
    """Learn a tokenizer from the first texts of a stream, once; it is stored in the run."""
    folder = settings.run.folder / "data"
    sample, identity_path = folder / "head.txt", folder / "head.json"
    size = learned_vocabulary(settings.data.vocab_size, settings.model, None)
    most = settings.data.max_examples
    identity = {"texts": texts.fingerprint, "vocab_size": size, "max_examples": most}
    learned = folder / "tokenizer"
    if identity_path.is_file() and read_json(identity_path) == identity:
        return Tokenizer.load(learned)
    shutil.rmtree(learned, ignore_errors=True)
    folder.mkdir(parents=True, exist_ok=True)
    count = _write_head(sample, texts, most)
    if not sample.stat().st_size:
        raise DataError(
            "there is no text to learn a tokenizer from",
            path=settings.data.dataset_id,
            next_step="name text that is not empty",
        )
    described = f"the first {count:,} texts of {settings.data.dataset_id}"
    tokenizer = _learn(settings, str(sample), size, note, described=described)
    write_json(identity_path, identity)
    sample.unlink()
    return tokenizer


def _write_head(path: Path, texts: TextSource, max_examples: int | None) -> int:
    """Write the first texts of a stream to a file, some tens of MiB; count them."""
    count = written = stretch = 0
    end = END_OF_TEXT.encode()
    with atomic_file(path) as file:
        for text in texts.iter_texts(seed=None):
            for begin in range(0, len(text.data), _LOOK_BYTES):
                part = text.data[begin : begin + _LOOK_BYTES]
                written += file.write(part)
                cut = _native.last_cut(part, [end])
                stretch = len(part) - cut if cut else stretch + len(part)
                if stretch > _STRETCH_BYTES:
                    written += file.write(end)
                    stretch = 0
            if text.ends_document:
                written += file.write(end)
                count, stretch = count + 1, 0
            if written >= _HEAD_BYTES or count == max_examples:
                break
    return count


def count_vocabulary(data: DataSettings, memory: str | None) -> int:
    """Count the ids of a tokenizer by characters for a text file."""
    return Tokenizer.from_characters(sorted(_characters(data, memory))).vocab_size


def _characters(data: DataSettings, memory: str | None) -> frozenset[str]:
    assert data.input_file is not None
    inputs, budget = expand_inputs([data.input_file]), MemoryBudget.from_setting(memory)
    options = ReadingSettings(
        text_field=data.text_field,
        reader_bytes=max(ReadingSettings.reader_bytes, budget.remaining_bytes),
        budget_bytes=budget.total_bytes,
    )
    size = sum(row.size_bytes for row in inputs)
    with (
        Progress("characters", stream=None) as progress,
        progress.phase("characters", total=size, unit="B") as phase,
    ):
        found = scan_characters(inputs, specials=(END_OF_TEXT,), options=options, phase=phase)
    return found.characters
