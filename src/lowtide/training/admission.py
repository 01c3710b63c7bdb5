"""Before torch is loaded: refuse a budget that cannot do, tokenize a text, learn a tokenizer.

In:      TrainSettings
Out:     the text's tokens, or the tokenizer of a stream, in the run's folder; or BudgetError, with
         the smallest budget that can do
Memory:  the tokenizer; of a text by characters one block at a time, and its alphabet

Importing torch takes hundreds of megabytes, so a budget that they alone would pass is refused here,
by what a probe measured. The size of the vocabulary is looked up only to refuse: a smaller one
never needs more, and the advice has to be one that works.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path

from lowtide import ranks
from lowtide.answers import tell
from lowtide.corpus.inputs import names_files
from lowtide.errors import DataError
from lowtide.files import hold_lock
from lowtide.memory import parse_size
from lowtide.model.companions import has_tokenizer
from lowtide.model.config import GPTConfig, load_config, padded_vocab_size
from lowtide.model.program import Program, find_program
from lowtide.packages import require_package
from lowtide.tokenizer import Tokenizer
from lowtide.training.footprint import fit_micro_batch, planned_bytes
from lowtide.training.resuming import continued_settings
from lowtide.training.settings import TrainSettings, learned_vocabulary, model_config
from lowtide.training.texts import count_vocabulary, find_stream_tokenizer, find_text_tokens

__all__ = ["admit", "known_shape", "refuse_hopeless"]


def admit(settings: TrainSettings) -> None:
    """Do what a training needs no torch for; mistakes in its settings are left to be told there."""
    _require_packages(settings)
    if ranks.is_launched():  # several processes: the first tokenizes while the others wait
        return
    settings = _fit_context(settings)
    goes_on = any((settings.run_dir / "steps").glob("step_*"))
    if goes_on and settings.resume and not settings.overwrite:
        settings = continued_settings(settings.run_dir, settings)
    refuse_hopeless(settings)
    sources = (settings.dataset_dir, settings.train_data_path, settings.input_file)
    given = [source for source in (*sources, settings.dataset_id) if source is not None]
    cleared = settings.overwrite or (goes_on and not settings.resume)
    if len(given) != 1 or cleared or not (settings.input_file or _streams_files(settings)):
        return
    tokenizer = None
    if settings.init_from_model is not None:
        base = [folder for folder in _base_folders(settings) if (folder / "config.json").is_file()]
        if not base:
            return
        if has_tokenizer(base[0]):
            tokenizer = Tokenizer.load(base[0])
    with hold_lock(settings.run_dir, create_folder=True):
        if settings.input_file is not None:
            find_text_tokens(settings, tell, tokenizer)
        elif settings.tokenization is None:
            find_stream_tokenizer(settings, tell, tokenizer)


def _streams_files(settings: TrainSettings) -> bool:
    return settings.dataset_id is not None and names_files(settings.dataset_id)


def _require_packages(settings: TrainSettings) -> None:
    """Name what is not installed before any work is done."""
    with_torch = settings.backend == "torch"
    require_package(settings.backend, "training" if with_torch else "--backend jax")
    for package, flag, wanted in (
        ("bitsandbytes", "--use-8bit-optimizer", settings.use_8bit_optimizer and with_torch),
        ("tensorboard", "--tensorboard", settings.tensorboard),
        ("wandb", "--wandb", settings.wandb),
    ):
        if wanted:
            require_package(package, flag)


def refuse_hopeless(
    settings: TrainSettings, *, program: Program | None = None, is_running: bool = False
) -> None:
    """Refuse a budget that is too small whatever the data holds, before any of it is read.

    `program` is what is measured in this process, if it is the one that trains (`is_running`).
    """
    if settings.memory is None:
        return
    budget = parse_size(settings.memory)
    if program is None:
        program = find_program(
            settings.device,
            use_8bit=settings.use_8bit_optimizer,
            compiles=settings.compile,
            recomputes=settings.activation_checkpointing,
            backend=settings.backend,
        )
    if program.device != "cpu":  # the GPU's own memory decides
        return
    config = known_shape(settings)
    least = config or _smallest_shape(settings)
    need = planned_bytes(least, settings, micro_batch=1, program=program)
    if (need.running_budget_bytes if is_running else need.budget_bytes) <= budget:
        return
    if config is None:
        config = model_config(settings, padded_vocab_size(_vocabulary(settings)))
    fit_micro_batch(config, settings, budget, program=program)


def _fit_context(settings: TrainSettings) -> TrainSettings:
    """Shorten rows nobody asked a length for to the context of the model that goes on."""
    config = known_shape(settings)
    if config is None or settings.seq_len != TrainSettings.seq_len:
        return settings
    return dataclasses.replace(settings, seq_len=min(settings.seq_len, config.context_length))


def _smallest_shape(settings: TrainSettings) -> GPTConfig:
    """Return a shape that no vocabulary makes smaller."""
    if settings.target_params is not None:
        return GPTConfig(2, settings.seq_len, 1, 8, 1, layout=settings.layout)
    return model_config(settings, 2)


def known_shape(settings: TrainSettings) -> GPTConfig | None:
    """Return the shape of the run or model that goes on; None for a new one, or a damaged one."""
    own = [] if settings.overwrite else [settings.run_dir]
    for folder in [*own, *_base_folders(settings)]:
        if (folder / "config.json").is_file():
            try:
                return load_config(folder)
            except DataError:
                return None
    return None


def _base_folders(settings: TrainSettings) -> list[Path]:
    """Return where the model that training starts from may be."""
    name = settings.init_from_model
    return [] if name is None else [settings.checkpoints_dir / name, Path(name)]


def _vocabulary(settings: TrainSettings) -> int:
    """Count the ids that the data of a new model has."""
    if settings.vocab_size is not None:
        return settings.vocab_size
    if settings.dataset_dir is not None and (settings.dataset_dir / "tokenizer.json").is_file():
        return Tokenizer.load(settings.dataset_dir).vocab_size
    if settings.tokenization == "char" and settings.input_file is not None:
        return count_vocabulary(settings.input_file)
    path = settings.input_file
    if settings.tokenization is None and path is not None and path.suffix != ".npy":
        return learned_vocabulary(settings, path.stat().st_size if path.is_file() else None)
    if settings.tokenization is None and settings.dataset_id is not None:
        return learned_vocabulary(settings, None)
    return Tokenizer.load(settings.tokenization or "gpt2").vocab_size
