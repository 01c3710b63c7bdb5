"""Open the data named in a run's settings: for training, for evaluation, and their tokenizer.

In:      TrainSettings
Out:     TrainingData; an error if tokenizer fingerprints do not match
Memory:  descriptions of files; a text file given directly is tokenized into the run's folder once
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from lowtide import ranks
from lowtide.corpus.inputs import names_files
from lowtide.corpus.reading import ReadingSettings
from lowtide.dataset.provenance import load_own_tokenizer, read_provenance, tokenizer_dir
from lowtide.errors import DataError, UsageError
from lowtide.filenames import TOKENIZER_NAME
from lowtide.loader.mixtures import Mixture
from lowtide.loader.storedtokens import CacheSettings, fetch_tokenizer
from lowtide.loader.streaming import StreamingDataLoader
from lowtide.loader.texts import FileTexts, HubTexts
from lowtide.loader.windows import TokenDataset
from lowtide.memory import parse_size
from lowtide.model.config import padded_vocab_size
from lowtide.model.program import program_here
from lowtide.quickclasses import dataclass
from lowtide.stores.urls import store_url
from lowtide.tokenizer import Tokenizer
from lowtide.training.admission import known_shape
from lowtide.training.backends import backend_of
from lowtide.training.choosing import model_config
from lowtide.training.footprint import planned_bytes, stream_reading
from lowtide.training.heldout import hold_out
from lowtide.training.results import require_same_tokenizer
from lowtide.training.settinggroups import DataSettings
from lowtide.training.settings import TrainSettings
from lowtide.training.texttokens import find_stream_tokenizer, find_text_tokens

__all__ = ["TrainingData", "open_training_data"]


@dataclass(frozen=True)
class TrainingData:
    """The data of a run."""

    train: Any
    """A TokenDataset, a Mixture, or a stream of batches."""
    val: TokenDataset | None
    others: dict[str, TokenDataset]
    tokenizer: Tokenizer


def open_training_data(
    settings: TrainSettings, *, note: Callable[[str], None], tokenizer: Tokenizer | None = None
) -> TrainingData:
    """Open the data; `tokenizer` is that of the model to start from."""
    _require_one_source(settings.data)
    if settings.data.dataset_id is not None:
        return _open_stream(settings, note, tokenizer)
    path = settings.data.dataset_dir or settings.data.train_data_path
    if settings.data.input_file is not None:
        path = find_text_tokens(settings, note, tokenizer)
    assert path is not None
    assumed: list[str] = []
    found = _own_tokenizer(settings.data, path, tokenizer, assumed.append)
    # With a separate validation file, all of the training file is trained on.
    whole = settings.data.val_data_path is not None and path.is_file()
    train = _open(settings, path, found, "all" if whole else "train", stride=settings.data.stride)
    for line in [*assumed, train.describe()]:  # what cannot be opened has its own message
        note(line)
    cost = train.require_cache(settings.data.order)
    if cost is not None:
        note(cost)
    val = _validation(settings, path, found, note)
    source = _with_replay(settings, train, found, note)
    return TrainingData(source, val, _others(settings, found), found)


def _require_one_source(data: DataSettings) -> None:
    given = {
        "--dataset-dir": data.dataset_dir,
        "--input-file": data.input_file,
        "--train-data-path": data.train_data_path,
        "--dataset-id": data.dataset_id,
    }
    named = [name for name, value in given.items() if value is not None]
    if len(named) != 1:
        raise UsageError(
            f"{' and '.join(named)} are given, expected one of them" if named
            else "nothing to train on is given",
            next_step=f"give one of {', '.join(given)}",
        )  # fmt: skip


def _with_replay(
    settings: TrainSettings, train: TokenDataset, tokenizer: Tokenizer, note: Callable[[str], None]
) -> TokenDataset | Mixture:
    """The data to train on, with replay rows mixed in if requested."""
    folder, share = settings.replay.replay_dataset_dir, settings.replay.replay_fraction
    if folder is None or share <= 0:
        return train
    replay = _open(settings, folder, tokenizer, "train", stride=settings.data.stride)
    replay.require_cache(settings.data.order)
    note(f"replay: {share:.0%} of the rows from {replay.source.place}")
    return Mixture({"domain": train, "replay": replay}, {"domain": 1 - share, "replay": share})


def _others(settings: TrainSettings, tokenizer: Tokenizer) -> dict[str, TokenDataset]:
    """Open the named datasets to evaluate on; folders of bare .bin files are accepted."""
    return {
        name: _open(settings, path, tokenizer, "val", eval_only=path.is_dir())
        for name, path in settings.evaluation.datasets().items()
    }


def _open_stream(
    settings: TrainSettings, note: Callable[[str], None], known: Tokenizer | None
) -> TrainingData:
    """Open text that is tokenized as it is read; every process takes its rows of each batch."""
    name = settings.data.dataset_id
    assert name is not None
    local = names_files(name)
    tokenizer = find_stream_tokenizer(settings, note, known)
    limits = _reading_limits(settings, tokenizer)
    texts = (
        FileTexts([name], text_field=settings.data.text_field, **limits)
        if local
        else HubTexts(name, split=settings.data.split, text_field=settings.data.text_field)
    )
    held = hold_out(settings, texts, tokenizer, note)
    world_size = ranks.world_size()
    stream = StreamingDataLoader(
        None if local else name,
        files=[name] if local else None,
        tokenizer=tokenizer,
        seq_len=settings.model.seq_len,
        batch_size=max(1, settings.batch.rows_per_step // world_size),
        streaming=settings.data.use_streaming,
        shuffle_buffer_size=settings.data.shuffle_buffer_size,
        stride=settings.data.stride,
        max_examples=settings.data.max_examples,
        val_fraction=held.fraction,
        text_field=settings.data.text_field,
        split="train" if local else settings.data.split,
        seed=settings.learning.seed,
        drop_last=world_size > 1,
        output_dtype="int64",
        rank=ranks.rank(),
        world_size=world_size,
        **limits,
    )
    note(f"streaming {name}, tokenized on the fly ({tokenizer.name})")
    val = held.val
    if settings.data.val_data_path is not None:
        val = _open(settings, settings.data.val_data_path, tokenizer, "all")
    return TrainingData(stream, val, _others(settings, tokenizer), tokenizer)


def _reading_limits(settings: TrainSettings, tokenizer: Tokenizer) -> dict[str, Any]:
    """Memory limits of a stream's reader: what its files need, and what the budget has to spare.

    The error advises a budget with room for the whole batch and the longer row.
    """
    needed = stream_reading(settings.data).reader_bytes
    kind = backend_of(settings).device_kind(settings.machine.device)
    if settings.machine.memory is None or kind != "cpu":
        return {"reader_bytes": max(needed, ReadingSettings.reader_bytes)}
    config = known_shape(settings.run)
    if config is None:
        config = model_config(settings.model, padded_vocab_size(tokenizer.vocab_size))
    program = program_here(0, device=settings.machine.device, backend=settings.computing.backend)
    wanted = planned_bytes(config, settings, program=program).running_budget_bytes
    budget = parse_size(settings.machine.memory)
    return {
        "reader_bytes": needed + max(0, budget - wanted),
        "budget_bytes": max(budget, wanted),
    }


def _own_tokenizer(
    data: DataSettings, path: Path, known: Tokenizer | None, note: Callable[[str], None]
) -> Tokenizer:
    """Return the tokenizer stored with the data, else the named, the model's, or gpt2."""
    own = _tokenizer_beside(path, data)
    if own is not None:
        if data.tokenization not in (None, own.kind, own.name):
            named = Tokenizer.load(str(data.tokenization))
            if named.fingerprint != own.fingerprint:
                raise DataError(
                    f"--tokenization {data.tokenization} is not the tokenizer of this "
                    f"dataset ({own.name})",
                    path=path,
                    next_step="leave --tokenization out: the dataset brings its own",
                )
        return own
    if data.tokenization is None and known is not None:
        found = known
    else:
        found = Tokenizer.load(data.tokenization or "gpt2")
    name = path.name or path.resolve().name
    note(f"{name}: nothing beside it says which tokenizer made it; taken as {found.name}'s")
    return found


def _tokenizer_beside(path: Path, data: DataSettings) -> Tokenizer | None:
    """Load the tokenizer stored with a dataset or a .npy; None if there is none."""
    if (url := store_url(path)) is not None:
        copy = fetch_tokenizer(url, CacheSettings(data.cache_dir, data.cache_size))
        return None if copy is None else Tokenizer.load(copy)
    if path.suffix == ".npy" and path.is_file():
        provenance = read_provenance(path)
        if provenance is not None:
            return load_own_tokenizer(path, provenance)
        if tokenizer_dir(path).is_dir():
            return Tokenizer.load(tokenizer_dir(path))
    folder = path if path.is_dir() else path.parent
    return Tokenizer.load(folder) if (folder / TOKENIZER_NAME).is_file() else None


def _open(
    settings: TrainSettings, path: Path, tokenizer: Tokenizer, split: Any, **more: Any
) -> TokenDataset:
    dataset = TokenDataset(
        path,
        split=split,
        seq_len=settings.model.seq_len,
        dtype=settings.data.dtype,
        val_fraction=settings.data.val_fraction,
        vocab_size=tokenizer.vocab_size,
        cache_dir=settings.data.cache_dir,
        cache_size=settings.data.cache_size,
        **more,
    )
    require_same_tokenizer(dataset, tokenizer, "the run")
    return dataset


def _validation(
    settings: TrainSettings, path: Path, tokenizer: Tokenizer, note: Callable[[str], None]
) -> TokenDataset | None:
    if settings.data.val_data_path is not None:
        return _open(settings, settings.data.val_data_path, tokenizer, "all")
    try:
        return _open(settings, path, tokenizer, "val")
    except DataError as error:
        note(f"no validation: {error.message}")
        return None
