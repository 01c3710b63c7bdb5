"""Any torch module as a network of a run: called with ids, its output read as logits or loss.

In:      a module that returns logits or a loss for ids
Out:     WrappedModule, which Trainer trains, saves and resumes like a GPT
Memory:  the module's own; it computes all logits of a micro-batch at once
"""

from __future__ import annotations

import inspect
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from lowtide.checksumrecords import verify_folder
from lowtide.errors import DataError, UsageError
from lowtide.filenames import WEIGHTS_NAME
from lowtide.flatsettings import setting_values
from lowtide.generation.sampling import continue_ids
from lowtide.model.moduleconfig import ModuleConfig
from lowtide.model.weights import STORED_TYPES, TensorFile
from lowtide.tokenizer import Tokenizer
from lowtide.training.choosing import choose_optimizer
from lowtide.training.learningsettings import LearningSettings
from lowtide.training.optimizers import inner_matrices, moment_bytes
from lowtide.training.settinggroups import OutputSettings
from lowtide.training.settings import TrainSettings

__all__ = ["WrappedModule", "refuse_options", "wrap_module"]

Loss = Callable[[nn.Module, Tensor, Tensor], Tensor]

_OWN_NETWORKS_ONLY: dict[str, tuple[Any, ...]] = {
    "activation_checkpointing": (False,),
    "ahead_weight": (0.0,),
    "compile_whole": (False,),
    "confidence": (1.0,),
    "dropout": (0.0,),
    "early_cap": (0.0,),
    "embedding_decay_to": ("zero",),
    "first_embedding": ("auto", "random"),
    "float8_blocks": (False,),
    "float8_head": (False,),
    "loss_chunk_tokens": (None,),
    "spelling_rate": (0.0,),
    "zero_init": (False,),
}
"""Options that change how lowtide's own networks compute, and the values that change nothing."""


def wrap_module(
    module: nn.Module,
    *,
    seq_len: int | None = None,
    vocab_size: int | None = None,
    loss: Loss | None = None,
) -> WrappedModule:
    """Wrap a torch module for Trainer, which does this automatically for modules it is given.

    The module is called with ids [B, T], and with `targets` if its forward has a parameter of that
    name (or `loss(module, ids, targets)` is called instead). It may return logits [B, T, V], the
    mean loss, both in a tuple, or an object with `logits` or `loss`. `vocab_size` defaults to the
    size of its first embedding.
    """
    if not isinstance(module, nn.Module):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise UsageError(
            f"a model is a GPT or a torch module, not {type(module).__name__}",
            next_step="give an object of a class that inherits from torch.nn.Module",
        )
    if seq_len is None:
        raise UsageError(
            "how many tokens a row has is not known",
            next_step="give seq_len=…, or a dataset that has one: TokenDataset(…, seq_len=…)",
        )
    tables = [m for m in module.modules() if isinstance(m, nn.Embedding)]
    found = vocab_size or (tables[0].num_embeddings if tables else None)
    if found is None:
        raise UsageError(
            "the module has no nn.Embedding to count the vocabulary by",
            next_step="give vocab_size=… to lowtide.wrap_module, or a tokenizer to Trainer",
        )
    _require_storable(module)
    return WrappedModule(module, _measure(module, tables, seq_len, found), loss)


def refuse_options(settings: TrainSettings) -> None:
    """Refuse options that only lowtide's own networks support: none is ignored."""
    values = setting_values(settings)
    found = [name for name, off in _OWN_NETWORKS_ONLY.items() if values[name] not in off]
    if found:
        raise UsageError(
            f"{', '.join(found)}: only lowtide's own networks can do that, and the model is a "
            "torch module",
            next_step="leave it out, and do it inside of the module",
        )


class WrappedModule(nn.Module):
    """A torch module as Trainer calls it: ids and targets to the mean loss."""

    backend = "torch"

    def __init__(self, module: nn.Module, config: ModuleConfig, loss: Loss | None = None) -> None:
        super().__init__()
        self.module, self.config = module, config
        self._loss = loss
        given = inspect.signature(module.forward).parameters.get("targets")
        self._takes_targets = given is not None
        self._needs_targets = given is not None and given.default is inspect.Parameter.empty
        self._compiled: tuple[Any, ...] = ()  # in a tuple, so that torch does not register it
        self.activation_checkpointing = False
        self.loss_chunk_tokens = 0
        self.loss_form: Any = None

    def forward(self, ids: Tensor, targets: Tensor) -> Tensor:
        """Return the mean loss in nats per token."""
        if self._loss is not None:
            return self._loss(self.module, ids, targets)
        answer = self._call(ids, targets)
        logits = _find(answer, "logits", dimensions=3)
        has_logits = logits is not None and logits.shape[:2] == ids.shape
        # A module that gets no targets cannot compute the loss: a number beside logits is not one.
        names_loss = isinstance(getattr(answer, "loss", None), Tensor)
        knows_loss = self._takes_targets or names_loss or not has_logits
        loss = _find(answer, "loss", dimensions=0) if knows_loss else None
        if loss is not None:
            return loss
        if logits is None or not has_logits:
            raise UsageError(
                f"{self.config.module} returned {_describe(answer)} for ids of shape "
                f"{tuple(ids.shape)}, expected logits [rows, tokens, vocabulary] or a loss",
                next_step="lowtide.wrap_module(module, loss=lambda module, ids, targets: …)",
            )
        return nn.functional.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())

    def state_dict(self, *args: Any, **options: Any) -> dict[str, Any]:
        """The module's own state, under its own names."""
        return self.module.state_dict(*args, **options)

    def load_weights(self, folder: Path, *, verify: bool = True) -> None:
        """Take the weights of a checkpoint."""
        if verify:
            verify_folder(folder)
        path = folder / WEIGHTS_NAME
        try:
            self.module.load_state_dict(dict(TensorFile(path)))
        except RuntimeError as error:
            raise DataError(
                f"the weights are not those of {self.config.module}: {str(error).splitlines()[-1]}",
                path=path,
                next_step="make the module as it was, or give another model_name",
            ) from None

    def compile_blocks(self, *, whole: bool = False) -> None:
        """Compile the module, into as many graphs as torch makes of it."""
        self._compiled = (torch.compile(self.module, dynamic=False),)

    def use_float8(self, *, head: bool, blocks: bool) -> None:
        """Do nothing: refuse_options has refused both options."""

    @torch.no_grad()
    def sample(self, tokenizer: Tokenizer, output: OutputSettings, *, seed: int) -> str:
        """Continue the run's sample prompt, if the module returns logits.

        There is no sample with a given loss function, which may call the module with more than ids.
        """
        if self._needs_targets or self._loss is not None:
            return ""

        def next_logits(ids: Tensor) -> Tensor | None:
            # Not the compiled module, which would be compiled again for every length.
            logits = _find(self.module(ids), "logits", dimensions=3)
            return None if logits is None else logits[:, -1]

        was_training = self.module.training
        self.module.eval()
        ids = continue_ids(
            next_logits,
            tokenizer.encode(output.sample_prompt).tolist() or [0],
            tokenizer,
            max_new_tokens=output.sample_tokens,
            context=self.config.context_length,
            seed=seed,
            device=next(self.module.parameters()).device,
        )
        self.module.train(was_training)
        return tokenizer.decode(ids)

    def training_bytes(
        self, learning: LearningSettings, *, tokens_per_step: int, has_own_optimizer: bool
    ) -> int:
        """Weights, their average, gradients and moments; those of a given optimizer are unknown."""
        gradients = [p for p in self.module.parameters() if p.requires_grad]
        held = sum(p.numel() * p.element_size() for p in (*self.module.parameters(), *gradients))
        if learning.average_over > 0:
            held += sum(p.numel() * p.element_size() for p in gradients)
        if has_own_optimizer:
            return held
        name = choose_optimizer(
            learning,
            self.config,
            tokens_per_step,
            has_matrices=bool(inner_matrices(self.module)),
        )
        eight = learning.use_8bit_optimizer
        return held + moment_bytes(self.module, name=name, use_8bit=eight)

    def _call(self, ids: Tensor, targets: Tensor) -> Any:
        called = self._compiled[0] if self._compiled else self.module
        return called(ids, targets=targets) if self._takes_targets else called(ids)


def _require_storable(module: nn.Module) -> None:
    """Refuse, before training, tensors that a checkpoint could not hold."""
    for name, value in module.state_dict().items():
        if not isinstance(value, Tensor) or value.dtype not in STORED_TYPES:
            kind = value.dtype if isinstance(value, Tensor) else type(value).__name__
            raise UsageError(
                f"{name} of the module is {kind}, which a checkpoint cannot hold",
                next_step="register_buffer(…, persistent=False) leaves a buffer out that the "
                "module makes itself; else keep it as real numbers (torch.view_as_real)",
            )


def _find(answer: Any, name: str, *, dimensions: int) -> Tensor | None:
    """The tensor of so many dimensions in a module's result."""
    parts: tuple[Any, ...] = answer if isinstance(answer, tuple) else (answer,)
    for value in (getattr(answer, name, None), *parts):
        if isinstance(value, Tensor) and value.ndim == dimensions:
            return value
    return None


def _describe(answer: Any) -> str:
    if isinstance(answer, Tensor):
        return f"a tensor of shape {tuple(answer.shape)}"
    if isinstance(answer, tuple):
        return f"({', '.join(map(_describe, answer))})"
    return f"a {type(answer).__name__}"


def _measure(
    module: nn.Module, tables: list[nn.Embedding], seq_len: int, vocab_size: int
) -> ModuleConfig:
    parameters = list(module.parameters())
    if not parameters:
        raise UsageError("the module has no parameters", next_step="give one that can learn")
    # An embedding that is also the output matrix does arithmetic too.
    linear = {id(m.weight) for m in module.modules() if isinstance(m, nn.Linear)}
    looked_up = {id(table.weight) for table in tables} - linear
    sides = [min(p.shape) for p in parameters if p.ndim == 2]
    return ModuleConfig(
        module=type(module).__name__,
        vocab_size=vocab_size,
        context_length=seq_len,
        num_parameters=sum(p.numel() for p in parameters),
        multiplying=sum(p.numel() for p in parameters if id(p) not in looked_up),
        width=int(statistics.median(sides)) if sides else 1,
    )
