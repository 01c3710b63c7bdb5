"""Start or resume a run from its settings: data, tokenizer, network, then the loop.

In:      TrainSettings
Out:     the run's folder; TrainResult
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from lowtide.answers import tell
from lowtide.errors import DataError, UsageError
from lowtide.flatsettings import named_settings, replace_settings
from lowtide.keywords import takes_keywords
from lowtide.loader.mixtures import Mixture
from lowtide.loader.windows import TokenDataset
from lowtide.memory import PeakMeter
from lowtide.model.companions import (
    companions_dir,
    foreign_note,
    has_tokenizer,
    require_vocabulary,
)
from lowtide.model.config import GPTConfig, load_config, padded_vocab_size
from lowtide.model.moduleconfig import ModuleConfig
from lowtide.model.program import program_here
from lowtide.model.sizing import count_parameters
from lowtide.model.tensorfiles import require_weights
from lowtide.settings import require
from lowtide.tokenizer import Tokenizer
from lowtide.training.admission import expected_shape, fit_context, refuse_hopeless
from lowtide.training.agreement import require_same_checkpoint, require_same_settings
from lowtide.training.backends import Backend, Group, Model, backend_of
from lowtide.training.basemodel import find_base
from lowtide.training.checkpoints import RunFolder
from lowtide.training.choosing import first_embedding_kind, model_config
from lowtide.training.data import TrainingData, open_training_data
from lowtide.training.firstembedding import first_embedding
from lowtide.training.learningsettings import FirstEmbedding
from lowtide.training.offloading import RUNGS
from lowtide.training.results import TrainResult
from lowtide.training.resuming import continued_settings, require_own_run, run_exists
from lowtide.training.rungs import choose_rung
from lowtide.training.runidentity import optimizer_of
from lowtide.training.settinggroups import SHAPE_FIELDS, ModelSettings
from lowtide.training.settings import TrainSettings
from lowtide.training.trainer import Trainer
from lowtide.training.unusedsettings import refuse_unread
from lowtide.waiting import sleep_while_waiting

__all__ = ["train"]

_SIZE_TOLERANCE = 0.1  # a new shape is within 5 % of what is asked for

Note = Callable[[str], None]
"""Shows a message to the user; only in the first process."""


def _require_shape(
    model: ModelSettings,
    config: GPTConfig,
    folder: Path,
    next_step: str,
    names: Iterable[str] = SHAPE_FIELDS,
) -> None:
    """Refuse a shape that was asked for where the weights have another."""
    for name in names:
        asked, there = getattr(model, name), getattr(config, name)
        if asked is not None and asked != there:
            raise UsageError(
                f"{name} is {asked}, this model has {there}", path=folder, next_step=next_step
            )


def _require_base_shape(settings: TrainSettings, config: GPTConfig, folder: Path) -> None:
    """The same for a model to start from, whose layout and size are its own too."""
    named, step = named_settings(settings), "leave the shape out: it is the base model's"
    kinds = [name for name in ("layout", "tie_weights") if name in named]
    _require_shape(settings.model, config, folder, step, (*SHAPE_FIELDS, *kinds))
    wanted, there = settings.model.target_params, count_parameters(config)
    if settings.run.add_tokens is not None:
        return
    if wanted is not None and abs(there - wanted) > _SIZE_TOLERANCE * wanted:
        raise UsageError(
            f"target_params is {wanted:,}, this model has {there:,}", path=folder, next_step=step
        )


@takes_keywords(TrainSettings)
def train(settings: TrainSettings) -> TrainResult:
    """Train a model; called again, resume where it stopped, or report that it is finished."""
    sleep_while_waiting()
    require(
        not settings.output.slurm, "slurm", True, "false here; write_slurm_script writes the script"
    )
    run = RunFolder(settings.run.folder, keep=settings.saving.keep_checkpoints)
    goes_on = run.exists() and not settings.run.overwrite
    if not goes_on:  # else it matters what the run has
        refuse_unread(settings)
    require_own_run(run.root)
    if goes_on and not settings.run.resume:
        raise run_exists(run.root)
    settings = _with_rung(settings, run)
    # One meter for everything: tokenizing text before the first step counts too.
    with (
        PeakMeter(),
        backend_of(settings).open_group(settings.machine.device) as group,
        run.locked(wanted=group.is_first),
    ):
        return _train(settings, run, group)


def _with_rung(settings: TrainSettings, run: RunFolder) -> TrainSettings:
    """Resolve --offload auto; a resumed run keeps its kind of states, packed or not."""
    if settings.machine.offload != "auto":
        return settings
    rungs = RUNGS
    if run.exists() and not settings.run.overwrite:
        kinds = [str(row.get("kind")) for row in run.load_numbers().get("optimizers", [])]
        packed = any(kind.startswith("Packed") for kind in kinds)
        rungs = RUNGS[1:] if packed else RUNGS[:1]
    chosen = choose_rung(settings, expected_shape(settings), rungs=rungs)
    tell(f"--offload {chosen.machine.offload}: the first that fits")
    return chosen


def _train(settings: TrainSettings, run: RunFolder, group: Group) -> TrainResult:
    def note(text: str) -> None:
        if group.is_first:
            tell(text)

    _agree(settings, run, group, note)
    settings = replace_settings(settings, overwrite=False)  # done, and not repeated in the loop
    base_dir = _find_base_dir(settings, run, group)
    settings = _as_the_run_has_them(settings, run, base_dir, note)
    program = None
    if group.on_cpu:
        program = program_here(
            0, device=settings.machine.device, backend=settings.computing.backend
        )
        refuse_hopeless(settings, program=program, is_running=True)
    data = _open_data(settings, group, base_dir, note)
    model = _make_model(settings, run, group, data, base_dir, note)
    trainer = Trainer(
        model,
        data=data.train,
        val_data=data.val,
        eval_data=data.others,
        tokenizer=data.tokenizer,
        settings=_with_beginning(settings, run, model),
    )
    trainer.run = run  # its checkpoint is verified
    trainer.program = program
    return trainer.fit()


def _agree(settings: TrainSettings, run: RunFolder, group: Group, note: Note) -> None:
    """Check that all processes have the same settings and checkpoint; clear the run if asked to."""
    require_same_settings(group, settings)  # before anything is removed
    if group.is_first:
        if settings.run.overwrite:
            run.clear()
        run.find_whole(note, set_aside=True)
    group.wait()
    require_same_checkpoint(group, run.root, run.find_whole(note))


def _find_base_dir(settings: TrainSettings, run: RunFolder, group: Group) -> Path | None:
    """The folder of the model that a new run starts from."""
    if settings.run.init_from_model is None or run.exists():
        return None
    if group.is_first:
        find_base(settings)  # may have to make it; the others find it
    group.wait()
    return find_base(settings)


def _as_the_run_has_them(
    settings: TrainSettings, run: RunFolder, base_dir: Path | None, note: Note
) -> TrainSettings:
    """Settings to resume with: rows that fit the weights' context, and the run's first settings."""
    asked, shape = settings.model.seq_len, _known_shape(run, base_dir)
    settings = fit_context(settings, shape)
    if run.exists():
        known = optimizer_of(run.load_numbers())
        settings = continued_settings(run.root, settings, optimizer=known, note=note)
        refuse_unread(settings)
    if shape is not None and settings.model.seq_len == shape.context_length < asked:
        root = run.root if run.exists() else base_dir
        note(f"rows of {shape.context_length} tokens: the context of {root}")
    return settings


def _open_data(
    settings: TrainSettings, group: Group, base_dir: Path | None, note: Note
) -> TrainingData:
    """Open or make the data; ids of another tokenizer than the base model's are refused."""
    base = None
    if base_dir is not None and has_tokenizer(beside := companions_dir(base_dir)):
        base = Tokenizer.load(beside)
    elif base_dir is not None:
        note(f"warning: {base_dir} has no tokenizer: ids of the data are taken for its own")
    if not group.is_first:  # the first process may have to tokenize; the others find it done
        group.wait()
    data = open_training_data(settings, note=note, tokenizer=base)
    if group.is_first:
        group.wait()
    if base is not None and base.fingerprint != data.tokenizer.fingerprint:
        raise DataError(
            f"{settings.run.init_from_model} was trained with tokenizer {base.name} "
            f"({base.fingerprint[:12]}), the data was made with {data.tokenizer.name} "
            f"({data.tokenizer.fingerprint[:12]})",
            path=base_dir,
            next_step=f"lowtide prepare … --tokenization {base_dir} makes data that fits",
        )
    return data


def _make_model(
    settings: TrainSettings,
    run: RunFolder,
    group: Group,
    data: TrainingData,
    base_dir: Path | None,
    note: Note,
) -> Model:
    """The network with its initial weights: random, counted, or those of the base model."""
    config = _shape(settings, run, data, base_dir)
    if run.exists() or base_dir is not None:
        require_weights(base_dir or run.newest_dir(), config)
    backend = backend_of(settings)
    model = backend.new_model(
        config, seed=settings.learning.seed, zero_init=settings.learning.zero_init
    )
    first = first_embedding_kind(settings, config)
    if base_dir is not None:
        if first != "random":
            note("--first-embedding: the embedding is that of the model to start from")
        backend.load_weights(model, base_dir)
        run.source_dir = companions_dir(base_dir)
        note(f"starting from {base_dir}")
        if text := foreign_note(data.tokenizer, config):
            note(text)
    elif first != "random" and not run.exists():
        seed = settings.learning.seed
        _set_first_embedding(backend, model, data.train, first, seed, group, note)
    return model


def _with_beginning(settings: TrainSettings, run: RunFolder, model: Model) -> TrainSettings:
    """The settings that a new run stores, with the initial embedding that was chosen."""
    if settings.learning.first_embedding != "auto" or run.exists():
        return settings
    kind = first_embedding_kind(settings, model.config)
    return replace_settings(settings, first_embedding=kind)


def _set_first_embedding(
    backend: Backend,
    model: Model,
    data: Any,
    kind: FirstEmbedding,
    seed: int,
    group: Group,
    note: Note,
) -> None:
    """Initialize the embedding from counts of tokens, which a stream does not have yet."""
    config = model.config
    if not isinstance(data, TokenDataset | Mixture) or isinstance(config, ModuleConfig):
        note("the embedding begins at random: text that is streamed is not there to be counted")
        return
    rows = None
    if group.is_first:
        note("counting which tokens stand beside which, for the first embedding")
        rows = first_embedding(data, config, seed=seed, frequency=kind == "frequency")
    backend.set_embedding(model, group.first_says(rows))


def _known_shape(run: RunFolder, base_dir: Path | None) -> GPTConfig | None:
    """The shape of the model to continue; None for a new one."""
    if run.exists():
        return run.load_config()
    return None if base_dir is None else load_config(base_dir)


def _shape(
    settings: TrainSettings, run: RunFolder, data: TrainingData, base_dir: Path | None
) -> GPTConfig:
    """The network's shape: the run's own, the base model's, or that of the settings."""
    if run.exists():
        config = run.load_config().replace(dropout=settings.model.dropout)
        _require_shape(
            settings.model, config, run.root, "choose another --model-name for another shape"
        )
    elif base_dir is not None:
        config = load_config(base_dir).replace(dropout=settings.model.dropout)
        _require_base_shape(settings, config, base_dir)
    else:
        config = model_config(settings.model, padded_vocab_size(data.tokenizer.vocab_size))
    require_vocabulary(data.tokenizer, config, base_dir or settings.run.folder)
    if settings.model.seq_len > config.context_length:
        raise UsageError(
            f"seq_len is {settings.model.seq_len}, the model's context {config.context_length}",
            next_step=f"--seq-len {config.context_length}",
        )
    return config
