"""Work before torch is loaded: refuse a small budget, tokenize text, learn a tokenizer.

In:      TrainSettings
Out:     the text's tokens, or the tokenizer of a stream, in the run's folder; or BudgetError, with
         the smallest budget that works
Memory:  the tokenizer; of a text by characters one block at a time, and its alphabet

Importing torch takes hundreds of megabytes, as measured by a probe, so a budget below that is
refused here. The check first assumes the smallest possible vocabulary; only if that fails is the
real size determined, so that the budget in the error is enough.
"""

from __future__ import annotations

from pathlib import Path

from lowtide import ranks
from lowtide.answers import tell
from lowtide.corpus.inputs import names_files
from lowtide.errors import BudgetError, DataError
from lowtide.filenames import CONFIG_NAME, TOKENIZER_NAME
from lowtide.files import hold_lock
from lowtide.flatsettings import fill_left_out
from lowtide.loader.storedtokens import CacheSettings, fetch_tokenizer
from lowtide.memory import parse_size
from lowtide.model.companions import companions_dir, has_tokenizer
from lowtide.model.config import GPTConfig, load_config, padded_vocab_size
from lowtide.model.program import Program
from lowtide.packages import (
    MissingPackageError,
    first_missing,
    has_package,
    install_command,
    require_package,
)
from lowtide.stores.urls import is_store_url, store_url
from lowtide.tokenizer import Tokenizer
from lowtide.training.basemodel import GROWN, find_base
from lowtide.training.choosing import learned_vocabulary, model_config
from lowtide.training.footprint import fit_micro_batch, planned_bytes
from lowtide.training.resuming import continued_settings, require_own_run
from lowtide.training.rungs import program_of, smallest_rung
from lowtide.training.settinggroups import DataSettings, ModelSettings, RunSettings
from lowtide.training.settings import TrainSettings
from lowtide.training.textneeds import least_text_bytes, text_budget_bytes
from lowtide.training.texttokens import (
    count_vocabulary,
    find_stream_tokenizer,
    find_text_tokens,
    require_local_text,
)
from lowtide.training.unusedsettings import refuse_unread

__all__ = ["admit", "expected_shape", "fit_context", "known_shape", "refuse_hopeless"]


def admit(settings: TrainSettings) -> None:
    """Do all work that needs no torch; training itself reports other errors in the settings."""
    _require_packages(settings)
    goes_on = any((settings.run.folder / "steps").glob("step_*"))
    continues = goes_on and settings.run.resume and not settings.run.overwrite
    if not continues:  # else it matters what the run has
        refuse_unread(settings)
    if ranks.is_launched():  # with several processes the first tokenizes while the others wait
        return
    require_local_text(settings.data)  # before an error about the budget, which would not help
    require_own_run(settings.run.folder)
    settings = fit_context(settings, known_shape(settings.run))
    if continues:
        settings = continued_settings(settings.run.folder, settings)
        refuse_unread(settings)
    if settings.run.add_tokens is not None and not goes_on:
        find_base(settings)
    refuse_hopeless(settings)
    sources = (settings.data.dataset_dir, settings.data.train_data_path, settings.data.input_file)
    given = [source for source in (*sources, settings.data.dataset_id) if source is not None]
    cleared = settings.run.overwrite or (goes_on and not settings.run.resume)
    if (
        len(given) != 1
        or cleared
        or not (settings.data.input_file or _streams_files(settings.data))
    ):
        return
    tokenizer = None
    if settings.run.init_from_model is not None:
        base = [
            folder for folder in _base_folders(settings.run) if (folder / CONFIG_NAME).is_file()
        ]
        if not base:
            return
        if has_tokenizer(beside := companions_dir(base[0])):
            tokenizer = Tokenizer.load(beside)
    with hold_lock(settings.run.folder, create_folder=True):
        if settings.data.input_file is not None:
            find_text_tokens(settings, tell, tokenizer)
        elif settings.data.tokenization is None:
            find_stream_tokenizer(settings, tell, tokenizer)


def _streams_files(data: DataSettings) -> bool:
    return data.dataset_id is not None and names_files(data.dataset_id)


def _require_packages(settings: TrainSettings) -> None:
    """Raise an error for missing packages before any work is done."""
    with_torch = settings.computing.backend == "torch"
    missing = first_missing("torch") if with_torch else None
    if missing is not None and has_package("jax"):
        raise MissingPackageError(
            f"training needs the package {missing}, which is not installed; jax is",
            next_step=f"give --backend jax, or {install_command('torch')}",
        )
    require_package(settings.computing.backend, "training" if with_torch else "--backend jax")
    for package, flag, wanted in (
        (
            "bitsandbytes",
            "--use-8bit-optimizer",
            settings.learning.use_8bit_optimizer and with_torch,
        ),
        ("obstore", "an object store", is_store_url(settings.data.dataset_dir)),
        ("tensorboard", "--tensorboard", settings.output.tensorboard),
        ("wandb", "--wandb", settings.output.wandb),
    ):
        if wanted:
            require_package(package, flag)


def refuse_hopeless(
    settings: TrainSettings, *, program: Program | None = None, is_running: bool = False
) -> None:
    """Refuse a budget that is too small for any data, before data is read.

    `program` is measured in this process, if it is the one that trains (`is_running`).
    """
    if settings.machine.memory is None:
        return
    budget = parse_size(settings.machine.memory)
    if program is None:
        program = program_of(settings)
    if program.device != "cpu":  # the GPU's own memory decides
        return
    config = known_shape(settings.run)
    least = config or _smallest_shape(settings.model)
    tried = _smallest(settings, least, program)
    need = planned_bytes(least, tried, micro_batch=1, program=program)
    needed = need.running_budget_bytes if is_running else need.budget_bytes
    if max(needed, 0 if is_running else least_text_bytes(settings)) <= budget:
        return
    text_bytes = 0 if is_running else text_budget_bytes(settings)
    try:
        config = config or expected_shape(settings)
    except BudgetError:  # scanning the characters of the text itself takes more
        config = least
    tried = _smallest(settings, config, program)
    fit_micro_batch(config, tried, budget, program=program, text_bytes=text_bytes)


def _smallest(settings: TrainSettings, config: GPTConfig, program: Program) -> TrainSettings:
    """The settings with the smallest rung, if they choose none."""
    if settings.machine.offload != "auto":
        return settings
    return smallest_rung(settings, config, program)


def expected_shape(settings: TrainSettings) -> GPTConfig:
    """The shape that a run will have, as far as it can be known before its data is opened."""
    known = known_shape(settings.run)
    return known or model_config(settings.model, padded_vocab_size(_vocabulary(settings)))


def fit_context(settings: TrainSettings, config: GPTConfig | None) -> TrainSettings:
    """Shorten rows to the context of the model that is continued, unless a length was given."""
    if config is None or settings.model.seq_len != ModelSettings.seq_len:
        return settings
    return fill_left_out(settings, {"seq_len": min(settings.model.seq_len, config.context_length)})


def _smallest_shape(model: ModelSettings) -> GPTConfig:
    """The shape with the smallest possible vocabulary."""
    if model.target_params is not None:
        return GPTConfig(2, model.seq_len, 1, 8, 1, layout=model.layout)
    return model_config(model, 2)


def known_shape(run: RunSettings) -> GPTConfig | None:
    """The shape of the run or model to continue; None for a new one, or a damaged one."""
    own = [] if run.overwrite else [run.folder]
    for folder in [*own, *_base_folders(run)]:
        if (folder / CONFIG_NAME).is_file():
            try:
                return load_config(folder)
            except DataError:
                return None
    return None


def _base_folders(run: RunSettings) -> list[Path]:
    """The folders where the model to start from may be."""
    name = run.init_from_model
    if name is None:
        return []
    folders = [run.checkpoints_dir / name, Path(name)]
    return folders if run.add_tokens is None else [run.folder / GROWN, *folders]


def _vocabulary(settings: TrainSettings) -> int:
    """Count the ids that the data of a new model has."""
    data, model = settings.data, settings.model
    if data.vocab_size is not None:
        return data.vocab_size
    if (url := store_url(data.dataset_dir)) is not None:
        copy = fetch_tokenizer(url, CacheSettings(data.cache_dir, data.cache_size))
        return Tokenizer.load(copy or "gpt2").vocab_size
    if data.dataset_dir is not None and (data.dataset_dir / TOKENIZER_NAME).is_file():
        return Tokenizer.load(data.dataset_dir).vocab_size
    if data.tokenization == "char" and data.input_file is not None:
        return count_vocabulary(data, settings.machine.memory)
    path = data.input_file
    if data.tokenization is None and path is not None and path.suffix != ".npy":
        return learned_vocabulary(
            data.vocab_size,
            model,
            path.stat().st_size if path.is_file() else None,
        )
    if data.tokenization is None and data.dataset_id is not None:
        return learned_vocabulary(data.vocab_size, model, None)
    return Tokenizer.load(data.tokenization or "gpt2").vocab_size
