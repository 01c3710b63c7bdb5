"""The network, top to bottom: embedding, blocks of attention and MLP, norm, output matrix, loss.

Letters in shapes: B rows, T tokens of a row, D width, H query heads, K key/value heads, E head_dim,
V vocabulary, N = B*T.

In:      ids [B, T], and targets [B, T] in training
Out:     logits [B, T, V], or the mean loss with targets
Memory:  weights; activations as sizing.activation_bytes counts them (one D per token and layer with
         activation checkpointing); logits of `loss_chunk_tokens` tokens, never of the batch
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from lowtide.errors import UsageError
from lowtide.model.blocks import Block, Cache, NormedLinear, drop, make_norm
from lowtide.model.config import GPTConfig
from lowtide.model.graphs import describe_to_compiler
from lowtide.model.loss import chunked_cross_entropy
from lowtide.model.rope import frequencies, table_factor
from lowtide.model.sizing import loss_chunk_tokens
from lowtide.model.targets import LossForm, cap_logits, targets_ahead
from lowtide.model.tide_blocks import TideAttention, TideBlock

__all__ = ["GPT", "rotary_tables"]

_FIRST_POSITIONS = 8192  # of rotary tables
_RESIDUAL_WEIGHTS = ("attention.output.weight", "mlp.down.weight")


class GPT(nn.Module):
    """A decoder-only language model.

    >>> config = GPTConfig(vocab_size=100, context_length=16, num_layers=1, width=16, num_heads=2)
    >>> GPT(config)(torch.zeros(1, 8, dtype=torch.long)).shape
    torch.Size([1, 8, 100])
    """

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.config = config
        self.activation_checkpointing = False
        self.float8_head = False
        self.loss_form = LossForm()
        self.compiled_hidden: Callable[[Tensor], Tensor] | None = None
        self.compiled_call: Callable[..., Tensor] | None = None
        self.compiled_again: Callable[..., Tensor] | None = None
        self.loss_chunk_tokens = loss_chunk_tokens(config.vocab_size, on_gpu=False)
        self.embedding = _make_embedding(config.vocab_size, config.width)
        if config.family.learned_positions:
            self.positions = _make_embedding(config.context_length, config.width)
        else:
            self.register_buffer("cos", None, persistent=False)
            self.register_buffer("sin", None, persistent=False)
            self.reset_buffers()
        make_block = TideBlock if config.family.rereads_embedding else Block
        self.blocks = nn.ModuleList(make_block(config, layer) for layer in range(config.num_layers))
        self.final_norm = make_norm(config)
        if not config.tie_weights:
            self.head = nn.Linear(config.width, config.vocab_size, bias=False)
        if not _is_outline():
            self._initialize()

    def _initialize(self) -> None:
        """Normal weights of 0.02; those that add to the residual stream are smaller."""
        residual_std = 0.02 / math.sqrt(2 * self.config.num_layers)
        for name, parameter in self.named_parameters():
            if parameter.ndim == 2:
                residual = name.endswith(_RESIDUAL_WEIGHTS)
                nn.init.normal_(parameter, std=residual_std if residual else 0.02)
            elif name.endswith("bias"):
                nn.init.zeros_(parameter)
        for module in self.modules():
            if isinstance(module, TideAttention):
                module.reset_gates()

    def reset_buffers(self, *, first_positions: int = _FIRST_POSITIONS) -> None:
        """Compute the rotary tables again, on the weights' device; files do not contain them."""
        if not self.config.family.learned_positions and not _is_outline():
            self._make_tables(min(self.config.context_length, first_positions))

    def _make_tables(self, positions: int) -> None:
        with torch.inference_mode(False):  # training may use tables that a sample enlarged
            cos, sin = rotary_tables(self.config, positions)
            self.cos, self.sin = cos.to(self.device), sin.to(self.device)

    def tables(self, positions: int) -> tuple[Tensor, Tensor]:
        """Return cosines and sines of at least so many positions."""
        if positions > self.get_buffer("cos").shape[0]:
            # Long contexts are seldom used to their end: their tables grow with the text.
            longer = 1 << (positions - 1).bit_length()
            self._make_tables(min(longer, self.config.context_length))
        return self.get_buffer("cos"), self.get_buffer("sin")

    @property
    def output_weight(self) -> Tensor:
        """The matrix [V, D] that turns the last hidden state into logits."""
        return self.embedding.weight if self.config.tie_weights else self.head.weight

    @property
    def device(self) -> torch.device:
        """The device of the weights."""
        return self.embedding.weight.device

    def hidden(self, ids: Tensor, cache: Cache | None = None) -> Tensor:
        """Return the final hidden states [B, T, D], normalized."""
        tokens = ids.shape[1]
        places, end = (slice(0, tokens), tokens) if cache is None else cache.places(tokens)
        if end > self.config.context_length:
            raise UsageError(f"{end} tokens do not fit a context of {self.config.context_length}")
        x = self.embedding(ids)
        cos = sin = None
        if self.config.family.learned_positions:
            x = x + self.positions.weight[places]
            x = drop(x, self.config.dropout, training=self.training)
        else:
            dtype = torch.get_autocast_dtype(x.device.type) if _autocast(x) else x.dtype
            cos, sin = (table[places].to(dtype) for table in self.tables(end))
        if _autocast(x) and torch.get_autocast_dtype(x.device.type) == torch.bfloat16:
            # bfloat16 has float32's range, so the residual stream may use it: its memory traffic is
            # the largest cost of blocks after their matrix products.
            x = x.to(torch.bfloat16)
        # Compiled for one shape; decoding, whose shape changes with every token, is not compiled.
        call = _call if cache is not None else self.compiled_call or _call
        call_block = call
        if self.activation_checkpointing and self.training:
            call_block = self.compiled_again or _call_again
        start = (x,) if self.config.family.rereads_embedding else ()
        for block in self.blocks:
            x = call_block(block, x, cos, sin, cache, *start)
        if cache is not None:
            cache.advance(tokens)
        return call(self.final_norm, x)

    def forward(self, ids: Tensor, targets: Tensor | None = None) -> Tensor:
        """Return logits [B, T, V], or with targets [B, T] the mean loss in nats per token."""
        ids = _as_ids(ids, "ids")
        targets = None if targets is None else _as_ids(targets, "targets")
        if ids.ndim != 2 or (targets is not None and targets.shape != ids.shape):
            shapes = [tuple(part.shape) for part in (ids, targets) if part is not None]
            raise UsageError(
                f"ids and targets of shapes {', '.join(map(str, shapes))}, expected two of "
                "(rows, tokens)"
            )
        x = (self.compiled_hidden or self.hidden)(ids)
        if targets is None:
            return self.logits(x)
        if _autocast(x):
            x = x.to(torch.get_autocast_dtype(x.device.type))
        form = self.loss_form if self.training else LossForm()
        return chunked_cross_entropy(
            x.flatten(0, 1),
            self.output_weight,
            targets_ahead(targets, len(form.ahead)) if form.ahead else targets.flatten(),
            self.loss_chunk_tokens,
            cap=self.config.cap or form.cap,
            ahead=form.ahead,
            confidence=form.confidence,
            # Evaluation measures the weights themselves, not their 8-bit copies.
            float8=self.float8_head and self.training,
        )

    def compile_blocks(self, *, whole: bool = False, **options: Any) -> None:
        """Compile a block, once for all of them; or with `whole` all of them as one graph.

        Options are those of torch.compile.
        """
        describe_to_compiler()
        if whole:
            self.compiled_hidden = torch.compile(self.hidden, dynamic=False, **options)
        else:
            self.compiled_call = torch.compile(_call, dynamic=False, **options)
            self.compiled_again = torch.compile(_call_again, dynamic=False, **options)

    def use_float8(self, *, head: bool, blocks: bool) -> None:
        """Use float8 in training: for the output matrix, and after norms in blocks."""
        self.float8_head = head
        for module in self.modules():
            if isinstance(module, NormedLinear):
                module.float8 = blocks

    def zero_outputs(self) -> None:
        """Zero the output matrices of blocks, so that blocks add nothing at first."""
        for name, parameter in self.named_parameters():
            if name.endswith(_RESIDUAL_WEIGHTS):
                nn.init.zeros_(parameter)

    def next_logits(self, ids: Tensor, cache: Cache | None = None) -> Tensor:
        """Return the logits [B, V] for the token after the last one."""
        return self.logits(self.hidden(ids, cache)[:, -1])

    def row_logits(self, ids: Tensor, cache: Cache) -> Tensor:
        """Return the logits [B, V] after one more id [B] of each of a cache's rows."""
        return self.logits(self.hidden(ids[None], cache)[0])

    def logits(self, x: Tensor) -> Tensor:
        """Logits of hidden states, capped where the layout caps them."""
        return cap_logits(F.linear(x, self.output_weight), self.config.cap)


def _is_outline() -> bool:
    """True on the meta device, where only shapes are needed: weights will come from a file.

    Initializing tensors there makes torch import its compiler: 140 MiB and a second and a half.
    """
    return torch.get_default_device().type == "meta"


def _make_embedding(rows: int, width: int) -> nn.Embedding:
    return nn.Embedding(rows, width, _weight=torch.empty(rows, width) if _is_outline() else None)


def _call(module: nn.Module, *arguments: Any) -> Tensor:
    return module(*arguments)


def _call_again(module: nn.Module, *arguments: Any) -> Any:
    """Activation checkpointing: keep only the arguments, recompute the rest in the backward pass.

    It is inside the compiled function, so that the recomputation is part of the compiled backward
    pass.
    """
    return checkpoint(module, *arguments, use_reentrant=False)


def _as_ids(given: Any, name: str) -> Tensor:
    """Whole numbers of any size as indices; what is none is refused."""
    if isinstance(given, Tensor) and given.dtype == torch.int64:
        return given
    kind = given.dtype if isinstance(given, Tensor) else type(given).__name__
    if not isinstance(given, Tensor) or given.is_floating_point() or given.dtype == torch.bool:
        raise UsageError(
            f"{name} are of type {kind}, expected a tensor of whole numbers",
            next_step="give torch.tensor(…, dtype=torch.long), of rows and tokens",
        )
    return given.long()


def _autocast(x: Tensor) -> bool:
    return torch.is_autocast_enabled(x.device.type)


def rotary_tables(config: GPTConfig, positions: int) -> tuple[Tensor, Tensor]:
    """Cosines and sines [positions, E / 2] of the rotary angles of queries and keys."""
    places = torch.arange(positions, dtype=torch.float32)
    if config.family.float32_turns and config.rope_scaling is None:
        exponents = torch.arange(0, config.head_dim, 2, dtype=torch.float32) / config.head_dim
        turns = config.rope_theta**-exponents
    else:
        found = frequencies(config.head_dim, config.rope_theta, config.rope_scaling)
        turns = torch.tensor(found, dtype=torch.float32)
    angles, factor = torch.outer(places, turns), table_factor(config.rope_scaling)
    return (
        (angles.cos() * factor, angles.sin() * factor)
        if factor != 1
        else (angles.cos(), angles.sin())
    )
