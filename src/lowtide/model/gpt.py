"""The network, top to bottom: embedding, blocks of attention and MLP, norm, output matrix, loss.

Letters in shapes: B rows, T tokens of a row, D width, H query heads, K key/value heads, E head_dim,
V vocabulary, N = B*T.

In:      ids [B, T], and targets [B, T] in training
Out:     logits [B, T, V], or the mean loss with targets
Memory:  weights; activations as sizing.activation_bytes counts them (one D per token and layer with
         activation checkpointing); logits of `loss_chunk_tokens` tokens, never of the batch
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from lowtide.errors import UsageError
from lowtide.model import rows
from lowtide.model.config import GPTConfig
from lowtide.model.float8 import fits_float8
from lowtide.model.float8_linear import normed_linear
from lowtide.model.loss import chunked_cross_entropy
from lowtide.model.rotation import has_fused_rotation, norm_and_rotate
from lowtide.model.sizing import loss_chunk_tokens

__all__ = ["GPT", "KVCache"]


_RESIDUAL_WEIGHTS = ("attention.output.weight", "mlp.down.weight")


class KVCache:
    """Keys and values of the tokens seen so far, so that decoding computes only the new one."""

    def __init__(self, config: GPTConfig, batch_size: int, device: Any, dtype: torch.dtype) -> None:
        shape = (batch_size, config.num_kv_heads, config.context_length, config.head_dim)
        self.keys = [
            torch.empty(shape, device=device, dtype=dtype) for _ in range(config.num_layers)
        ]
        self.values = [torch.empty_like(keys) for keys in self.keys]
        self.length = 0

    def append(self, layer: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Store [B, K, T, E] after what is there; give everything up to the end."""
        end = self.length + keys.shape[2]
        self.keys[layer][:, :, self.length : end] = keys
        self.values[layer][:, :, self.length : end] = values
        return self.keys[layer][:, :, :end], self.values[layer][:, :, :end]


class RMSNorm(nn.Module):
    """Divide by the root of the mean square, times a learned gain."""

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        if rows.can_fuse(x):
            return rows.rms_norm(x, self.weight, self.eps)
        return F.rms_norm(x, (x.shape[-1],), self.weight.to(x.dtype), self.eps)


def _norm(config: GPTConfig) -> nn.Module:
    if config.layout == "gpt2":
        return nn.LayerNorm(config.width, eps=config.norm_eps)
    return RMSNorm(config.width, config.norm_eps)


class NormedLinear(nn.Linear):
    """A linear layer right after a norm; in training multiplied in 8-bit floats where asked for."""

    float8 = False

    def forward(self, input: Tensor) -> Tensor:
        return self.part(input, self.weight, self.bias)

    def part(self, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        """Multiply by some rows of the matrix."""
        if self.float8 and self.training and fits_float8(x.shape[:-1].numel(), weight):
            return normed_linear(x, weight, bias)
        return F.linear(x, weight, bias)


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Turn the pairs (i, i + E/2) of [B, H, T, E] by the angles of their positions."""
    if not x.is_cuda:
        first, second = x.chunk(2, dim=-1)
        return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)
    # Halves swapped by flip, not joined by cat: torch.compile makes one plain kernel of it. Without
    # it, on a CPU, that only takes more memory.
    halves = x.unflatten(-1, (2, -1))
    signed = torch.stack((-sin, sin), dim=-2)
    return (halves * cos[:, None] + halves.flip(-2) * signed).flatten(-2)


class Attention(nn.Module):
    """Causal attention over the row, queries in groups that share keys and values."""

    def __init__(self, config: GPTConfig, layer: int) -> None:
        super().__init__()
        self.layer = layer
        self.num_heads, self.num_kv_heads = config.num_heads, config.num_kv_heads
        self.head_dim, self.dropout = config.head_dim, config.dropout
        self.sizes = (
            config.num_heads * config.head_dim,
            config.num_kv_heads * config.head_dim,
            config.num_kv_heads * config.head_dim,
        )
        bias = config.layout == "gpt2"
        self.query_key_value = NormedLinear(config.width, sum(self.sizes), bias=bias)
        self.output = nn.Linear(self.sizes[0], config.width, bias=bias)
        if config.layout == "qwen3":
            self.query_norm = RMSNorm(config.head_dim, config.norm_eps)
            self.key_norm = RMSNorm(config.head_dim, config.norm_eps)

    def forward(
        self, x: Tensor, cos: Tensor | None, sin: Tensor | None, cache: KVCache | None
    ) -> Tensor:
        num_rows, tokens, _ = x.shape
        query, key, value = self._heads(self.query_key_value(x), cos, sin)
        mask = None
        if cache is not None:
            past = cache.length
            key, value = cache.append(self.layer, key, value)
            if tokens > 1 and past > 0:
                allowed = torch.ones(tokens, past + tokens, dtype=torch.bool, device=x.device)
                mask = allowed.tril(past)
        mixed = F.scaled_dot_product_attention(
            query,
            key,
            value,
            attn_mask=mask,
            dropout_p=self.dropout if self.training else 0.0,
            is_causal=mask is None and tokens > 1,
            enable_gqa=self.num_heads != self.num_kv_heads,
        )
        return self.output(mixed.transpose(1, 2).reshape(num_rows, tokens, self.sizes[0]))

    def _heads(
        self, x: Tensor, cos: Tensor | None, sin: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Give queries, keys and values [B, heads, T, E], normed and turned."""
        if cos is None or sin is None:
            query, key, value = (
                part.unflatten(-1, (-1, self.head_dim)).transpose(1, 2)
                for part in x.split(self.sizes, dim=-1)
            )
            return query, key, value
        if rows.can_fuse(x):
            return rows.turn_heads(
                x,
                self.query_norm.weight,
                self.key_norm.weight,
                cos,
                sin,
                num_heads=self.num_heads,
                num_kv_heads=self.num_kv_heads,
                eps=self.query_norm.eps,
            )
        if has_fused_rotation(x, self.head_dim):
            query, key, value = norm_and_rotate(
                x, self.query_norm.weight, self.key_norm.weight, cos, sin,
                self.num_heads, self.num_kv_heads, self.query_norm.eps,
            )  # fmt: skip
            return query.transpose(1, 2), key.transpose(1, 2), value.transpose(1, 2)
        query, key, value = (
            part.unflatten(-1, (-1, self.head_dim)) for part in x.split(self.sizes, dim=-1)
        )
        query, key = self.query_norm(query).transpose(1, 2), self.key_norm(key).transpose(1, 2)
        return _rotate(query, cos, sin), _rotate(key, cos, sin), value.transpose(1, 2)


class SwiGLU(nn.Module):
    """The gated MLP of the qwen3 layout; gate and up are one matrix."""

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.gate_up = NormedLinear(config.width, 2 * config.mlp_width, bias=False)
        self.down = nn.Linear(config.mlp_width, config.width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        if not x.is_cuda:
            both = self.gate_up(x)
            if rows.can_fuse(both):
                return self.down(rows.swiglu(both))
            gate, up = both.chunk(2, dim=-1)
            return self.down(F.silu(gate) * up)
        # Two products: the gradient of one of twice the width would have to be joined first.
        gate_weight, up_weight = self.gate_up.weight.chunk(2)
        gate, up = (self.gate_up.part(x, weight) for weight in (gate_weight, up_weight))
        return self.down(F.silu(gate) * up)


class GeluMLP(nn.Module):
    """The MLP of the gpt2 layout."""

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.up = NormedLinear(config.width, config.mlp_width)
        self.down = nn.Linear(config.mlp_width, config.width)

    def forward(self, x: Tensor) -> Tensor:
        x = self.up(x)
        return self.down(rows.gelu(x) if rows.can_fuse(x) else F.gelu(x, approximate="tanh"))


class Block(nn.Module):
    """Attention, then MLP, each on a normed copy and added back."""

    def __init__(self, config: GPTConfig, layer: int) -> None:
        super().__init__()
        self.attention_norm = _norm(config)
        self.attention = Attention(config, layer)
        self.mlp_norm = _norm(config)
        self.mlp = SwiGLU(config) if config.layout == "qwen3" else GeluMLP(config)
        self.dropout = config.dropout

    def forward(
        self, x: Tensor, cos: Tensor | None, sin: Tensor | None, cache: KVCache | None
    ) -> Tensor:
        x = x + self._drop(self.attention(self.attention_norm(x), cos, sin, cache))
        return x + self._drop(self.mlp(self.mlp_norm(x)))

    def _drop(self, x: Tensor) -> Tensor:
        return F.dropout(x, self.dropout, self.training) if self.dropout > 0 else x


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
        self.compiled_hidden: Callable[[Tensor], Tensor] | None = None
        self.compiled_call: Callable[..., Tensor] | None = None
        self.compiled_again: Callable[..., Tensor] | None = None
        self.loss_chunk_tokens = loss_chunk_tokens(config.vocab_size, on_gpu=False)
        self.embedding = nn.Embedding(config.vocab_size, config.width)
        if config.layout == "gpt2":
            self.positions = nn.Embedding(config.context_length, config.width)
        else:
            self.register_buffer("cos", None, persistent=False)
            self.register_buffer("sin", None, persistent=False)
            self.reset_buffers()
        self.blocks = nn.ModuleList(Block(config, layer) for layer in range(config.num_layers))
        self.final_norm = _norm(config)
        if not config.tie_weights:
            self.head = nn.Linear(config.width, config.vocab_size, bias=False)
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

    def reset_buffers(self) -> None:
        """Compute the rotary tables anew, where the weights are; they are not part of the files."""
        if self.config.layout == "qwen3":
            cos, sin = _rotary_tables(self.config)
            self.cos, self.sin = cos.to(self.device), sin.to(self.device)

    @property
    def output_weight(self) -> Tensor:
        """The matrix [V, D] that turns the last hidden state into logits."""
        return self.embedding.weight if self.config.tie_weights else self.head.weight

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return self.embedding.weight.device

    def hidden(self, ids: Tensor, cache: KVCache | None = None) -> Tensor:
        """Give the last hidden states [B, T, D], normed."""
        past = 0 if cache is None else cache.length
        tokens = ids.shape[1]
        if past + tokens > self.config.context_length:
            raise UsageError(
                f"{past + tokens} tokens do not fit a context of {self.config.context_length}"
            )
        x = self.embedding(ids)
        cos = sin = None
        if self.config.layout == "gpt2":
            x = x + self.positions.weight[past : past + tokens]
        else:
            dtype = torch.get_autocast_dtype(x.device.type) if _autocast(x) else x.dtype
            cos = self.get_buffer("cos")[past : past + tokens].to(dtype)
            sin = self.get_buffer("sin")[past : past + tokens].to(dtype)
        if self.config.dropout > 0:
            x = F.dropout(x, self.config.dropout, self.training)
        if _autocast(x) and torch.get_autocast_dtype(x.device.type) == torch.bfloat16:
            # bfloat16 has float32's range, so the residual stream may be half as wide: its traffic
            # is what blocks spend most on after their matrix products.
            x = x.to(torch.bfloat16)
        # Compiled for one shape: decoding, whose shape changes with every token, does without.
        call = _call if cache is not None else self.compiled_call or _call
        call_block = call
        if self.activation_checkpointing and self.training:
            call_block = self.compiled_again or _call_again
        for block in self.blocks:
            x = call_block(block, x, cos, sin, cache)
        if cache is not None:
            cache.length += tokens
        return call(self.final_norm, x)

    def forward(self, ids: Tensor, targets: Tensor | None = None) -> Tensor:
        """Give logits [B, T, V], or with targets the mean loss in nats per token."""
        x = (self.compiled_hidden or self.hidden)(ids)
        if targets is None:
            return F.linear(x, self.output_weight)
        if _autocast(x):
            x = x.to(torch.get_autocast_dtype(x.device.type))
        return chunked_cross_entropy(
            x.flatten(0, 1),
            self.output_weight,
            targets.flatten(),
            self.loss_chunk_tokens,
            # Evaluation measures the weights themselves, not their 8-bit copies.
            float8=self.float8_head and self.training,
        )

    def compile_blocks(self, *, whole: bool = False, **options: Any) -> None:
        """Compile a block, once for all of them; or with `whole` all of them as one graph.

        Options are those of torch.compile.
        """
        if whole:
            self.compiled_hidden = torch.compile(self.hidden, dynamic=False, **options)
        else:
            self.compiled_call = torch.compile(_call, dynamic=False, **options)
            self.compiled_again = torch.compile(_call_again, dynamic=False, **options)

    def use_float8(self, *, head: bool, blocks: bool) -> None:
        """Multiply in 8-bit floats in training: by the output matrix, and after norms in blocks."""
        self.float8_head = head
        for module in self.modules():
            if isinstance(module, NormedLinear):
                module.float8 = blocks

    def zero_outputs(self) -> None:
        """Begin with blocks that add nothing: zero the matrices that write to the residual."""
        for name, parameter in self.named_parameters():
            if name.endswith(_RESIDUAL_WEIGHTS):
                nn.init.zeros_(parameter)

    def fit(self, data_loader: Any, **options: Any) -> Any:
        """Train on a GPTDataLoader or on whatever Trainer takes; options are Trainer's."""
        # By name: stages import only what comes before them, and training comes after the model.
        return importlib.import_module("lowtide.training.loaders").fit(self, data_loader, **options)

    def next_logits(self, ids: Tensor, cache: KVCache | None = None) -> Tensor:
        """Give the logits [B, V] for the token after the last one."""
        return F.linear(self.hidden(ids, cache)[:, -1], self.output_weight)


def _call(module: nn.Module, *arguments: Any) -> Tensor:
    return module(*arguments)


def _call_again(module: nn.Module, *arguments: Any) -> Any:
    """Call, keep the arguments only, and compute the rest again in the backward pass.

    Compiled with it, not around it: the second computation is then part of the compiled backward
    pass.
    """
    return checkpoint(module, *arguments, use_reentrant=False)


def _autocast(x: Tensor) -> bool:
    return torch.is_autocast_enabled(x.device.type)


def _rotary_tables(config: GPTConfig) -> tuple[Tensor, Tensor]:
    exponents = torch.arange(0, config.head_dim, 2, dtype=torch.float32) / config.head_dim
    angles = torch.outer(
        torch.arange(config.context_length, dtype=torch.float32), config.rope_theta**-exponents
    )
    return angles.cos(), angles.sin()
