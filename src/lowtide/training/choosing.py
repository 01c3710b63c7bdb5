"""Defaults that depend on other settings: the network's shape, optimizer, vocabulary size, rates.

In:      groups of TrainSettings
Out:     GPTConfig, a name, a number
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from lowtide.aliases import own_name
from lowtide.errors import UsageError
from lowtide.flatsettings import setting_fields
from lowtide.model.config import GPTConfig
from lowtide.model.families import FAMILIES
from lowtide.model.moduleconfig import ModuleConfig
from lowtide.model.sizing import count_parameters, shape_for_parameters, suitable_vocabulary
from lowtide.training.learningsettings import FirstEmbedding, LearningSettings
from lowtide.training.schedule import default_learning_rate
from lowtide.training.settinggroups import SHAPE_FIELDS, ModelSettings

if TYPE_CHECKING:
    from lowtide.training.settings import TrainSettings

__all__ = [
    "adam_betas",
    "begins_at_counts",
    "choose_optimizer",
    "embedding_rate",
    "first_embedding_kind",
    "learned_vocabulary",
    "model_config",
    "muon_momentum",
    "peak_learning_rate",
    "rates_in_force",
    "require_as_given",
    "require_muons",
    "require_same_moments",
]


# New models up to here begin at counts, and with these optimizers learn embeddings faster, whose
# second moments have a longer memory: decision 0055 has what was measured.
_SMALL_PARAMETERS = 30_000_000
_QUICK_PARAMETERS = {"muon": _SMALL_PARAMETERS, "adamw": 1_000_000}
_SMALL_EMBEDDING_RATE = 3.0
_BETA2, _SMALL_BETA2 = 0.95, 0.99
_MOMENTUM, _SMALL_MOMENTUM = 0.95, 0.9  # decision 0064
_SHAPE = (*SHAPE_FIELDS, "layout", "tie_weights")


def choose_optimizer(
    learning: LearningSettings,
    config: GPTConfig | ModuleConfig,
    tokens_per_step: int,
    *,
    has_matrices: bool = True,
) -> str:
    """Return the optimizer that `auto` means for a shape and a batch.

    Making an update orthogonal costs about 5 * width / tokens of a step beside training itself. Up
    to 1.25 times a step Muon reached a lower loss than AdamW in the same time, and at 2.5 times a
    higher one (decision 0055). 8-bit moments are AdamW's, and so is a module that has no matrices
    for Muon (not `has_matrices`).
    """
    if learning.optimizer != "auto":
        return learning.optimizer
    if learning.use_8bit_optimizer or not has_matrices:
        return "adamw"
    return "muon" if 4 * config.width <= tokens_per_step else "adamw"


def require_as_given(
    options: Iterable[str], settings: TrainSettings, config: GPTConfig | ModuleConfig
) -> None:
    """Refuse options for another shape or initialization of a given model: they have no effect.

    A shape from a preset or a config file is not refused: it is meant for new models. Other options
    that a torch module cannot follow are in modules.py.
    """
    model, learning = settings.model, settings.learning
    fields = setting_fields(type(settings))
    given = {own_name(name, fields) for name in options}
    is_own = isinstance(config, GPTConfig)
    for name in (*_SHAPE, "dropout") if is_own else _SHAPE:
        asked, there = getattr(model, name), getattr(config, name, "none")
        if name in given and asked is not None and asked != there:
            raise UsageError(
                f"{name} is {asked}, the model that was given has {there}",
                next_step=f"{'give it to GPTConfig, or ' if is_own else ''}leave it out",
            )
    beginnings = {
        "target_params": model.target_params is not None,
        "zero_init": is_own and learning.zero_init,
        "first_embedding": is_own and learning.first_embedding not in ("auto", "random"),
    }
    for name, is_asked in beginnings.items():
        if is_asked and name in given:
            raise UsageError(
                f"{name} is for a model that is yet to be made, and one was given",
                next_step="leave it out, or let lowtide.train(…) make the model",
            )


def require_muons(optimizer: str, *, cautious_decay: bool) -> None:
    """Refuse an option of Muon if the optimizer is AdamW: it would have no effect."""
    if cautious_decay and optimizer != "muon":
        raise UsageError(
            "cautious decay is Muon's, and the optimizer is AdamW",
            next_step="give --optimizer muon, or leave out --cautious-decay",
        )


def require_same_moments(saved: list[str], wanted: list[str]) -> None:
    """Refuse moments of other optimizers than those of the settings."""
    if wanted != saved:
        packed = any(kind.startswith("Packed") for kind in saved)
        began = (
            "--offload auto, as the run's states are packed"
            if packed
            else ("the optimizer the run began with")
        )
        raise UsageError(
            f"the run has moments of {' and '.join(saved)}, these settings make "
            f"{' and '.join(wanted)}",
            next_step=f"give {began}, or start another run from its weights: --init-from-model",
        )


def peak_learning_rate(
    settings: TrainSettings, config: GPTConfig | ModuleConfig, optimizer: str
) -> float:
    """The given learning rate, or the one that suits a shape and an optimizer."""
    return settings.learning.learning_rate or default_learning_rate(
        count_parameters(config), optimizer, adapting=settings.run.init_from_model is not None
    )


def embedding_rate(
    settings: TrainSettings, config: GPTConfig | ModuleConfig, optimizer: str
) -> float:
    """The embeddings' multiple of the learning rate: as given, or chosen by size."""
    if settings.learning.embedding_rate is not None:
        return settings.learning.embedding_rate
    return _SMALL_EMBEDDING_RATE if _learns_quickly(settings, config, optimizer) else 1.0


def adam_betas(
    settings: TrainSettings, config: GPTConfig | ModuleConfig, optimizer: str
) -> tuple[float, float]:
    """AdamW's beta1 and beta2, the latter as given or chosen by size."""
    beta1, beta2 = settings.learning.beta1, settings.learning.beta2
    if beta2 is not None:
        return beta1, beta2
    return beta1, _SMALL_BETA2 if _learns_quickly(settings, config, optimizer) else _BETA2


def muon_momentum(settings: TrainSettings, config: GPTConfig | ModuleConfig) -> float:
    """Muon's momentum after its warm-up: as given, or chosen by size."""
    if settings.learning.momentum is not None:
        return settings.learning.momentum
    return _SMALL_MOMENTUM if _is_small(settings, config) else _MOMENTUM


def rates_in_force(settings: TrainSettings, config: GPTConfig | ModuleConfig) -> dict[str, float]:
    """The effective values of settings whose default depends on others, by name."""
    learning = settings.learning
    optimizer = choose_optimizer(learning, config, settings.tokens_per_step)
    decay = learning.embedding_decay
    return {
        "learning_rate": peak_learning_rate(settings, config, optimizer),
        "embedding_rate": embedding_rate(settings, config, optimizer),
        "embedding_decay": learning.weight_decay if decay is None else decay,
        "beta2": adam_betas(settings, config, optimizer)[1],
        "momentum": muon_momentum(settings, config),
    }


def first_embedding_kind(
    settings: TrainSettings, config: GPTConfig | ModuleConfig
) -> FirstEmbedding:
    """What the embedding of a new model is initialized from: as given, or chosen by size.

    By default not counts for streamed text, which is not available yet.
    """
    if settings.learning.first_embedding != "auto":
        return settings.learning.first_embedding
    counts = settings.data.dataset_id is None and _is_small(settings, config)
    return "frequency" if counts else "random"


def begins_at_counts(settings: TrainSettings, config: GPTConfig | ModuleConfig) -> bool:
    """True if the embedding of a new model is initialized from counts of tokens."""
    return first_embedding_kind(settings, config) != "random"


def _learns_quickly(
    settings: TrainSettings, config: GPTConfig | ModuleConfig, optimizer: str
) -> bool:
    return _is_small(settings, config, most=_QUICK_PARAMETERS.get(optimizer, 0))


def _is_small(
    settings: TrainSettings, config: GPTConfig | ModuleConfig, *, most: int = _SMALL_PARAMETERS
) -> bool:
    """True for a new model of few parameters, by their number, whose tokens are not characters.

    A vocabulary of fewer tokens than the width (of characters) gained nothing.
    """
    count, is_new = settings.model.target_params, settings.run.init_from_model is None
    small = count is not None and count <= most
    return is_new and small and config.vocab_size > config.width


def model_config(model: ModelSettings, vocab_size: int) -> GPTConfig:
    """Return the shape the settings ask for, for a vocabulary."""
    shape = {name: getattr(model, name) for name in SHAPE_FIELDS}
    given = {name: value for name, value in shape.items() if value is not None}
    if model.target_params is not None:
        if given:
            raise UsageError(
                f"target_params and {', '.join(given)} are both given",
                next_step="give a number of parameters or a shape, not both",
            )
        config = shape_for_parameters(
            model.target_params,
            vocab_size=vocab_size,
            context_length=model.seq_len,
            layout=model.layout,
            tie_weights=model.tie_weights,
        )
        return config.replace(dropout=model.dropout)
    return GPTConfig(
        vocab_size=vocab_size,
        context_length=model.seq_len,
        layout=model.layout,
        tie_weights=model.tie_weights,
        dropout=model.dropout,
        norm_eps=FAMILIES[model.layout].default_eps,
        **given,
    )


def learned_vocabulary(vocab_size: int | None, model: ModelSettings, text_bytes: int | None) -> int:
    """The vocabulary size to learn: as given, or chosen for the model and the text."""
    if vocab_size is not None:
        return vocab_size
    count = model.target_params or count_parameters(model_config(model, 256))
    return suitable_vocabulary(count, text_bytes)
