"""The parts of a network: norms, attention with its cache, MLPs, and blocks of them.

Letters in shapes: B rows, T tokens of a row, D width, H query heads, K key/value heads, E head_dim.

In:      the residual stream [B, T, D], angles of positions, keys and values of earlier tokens
Out:     the residual stream
Memory:  activations as sizing.activation_bytes counts them; the cache
"""

from __future__ import annotations

from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lowtide.model import attending, products, rowkernels
from lowtide.model.config import GPTConfig
from lowtide.model.float8 import fits_float8
from lowtide.model.float8_linear import normed_linear
from lowtide.model.rotation import has_fused_rotation, norm_and_rotate
from lowtide.model.tensors import query_key_norm_sizes

__all__ = [
    "Attention",
    "Block",
    "Cache",
    "KVCache",
    "NormedLinear",
    "RMSNorm",
    "SwiGLU",
    "drop",
    "make_norm",
    "rotate",
]

_WINDOW_PART = 512  # queries whose mask exists at once


class KVCache:
    """Keys and values of the tokens seen so far, so that decoding computes only the new one."""

    def __init__(
        self,
        config: GPTConfig,
        batch_size: int,
        device: Any,
        dtype: torch.dtype,
        *,
        capacity: int | None = None,
    ) -> None:
        capacity = min(capacity or config.context_length, config.context_length)
        shape = (batch_size, config.num_kv_heads, capacity, config.head_dim)
        self.keys = [
            torch.empty(shape, device=device, dtype=dtype) for _ in range(config.num_layers)
        ]
        self.values = [torch.empty_like(keys) for keys in self.keys]
        self.length = 0

    @classmethod
    def over(cls, keys: list[Tensor], values: list[Tensor], length: int) -> KVCache:
        """Make a cache over existing tensors [B, K, capacity, E], one for each layer."""
        cache = cls.__new__(cls)
        cache.keys, cache.values, cache.length = keys, values, length
        return cache

    def places(self, tokens: int) -> tuple[slice, int]:
        """Return the positions of the next tokens, and their end."""
        end = self.length + tokens
        return slice(self.length, end), end

    def advance(self, tokens: int) -> None:
        """Count tokens that every layer has stored."""
        self.length += tokens

    def append(self, layer: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Store [B, K, T, E] after what is there; return everything up to the end."""
        end = self.length + keys.shape[2]
        self.keys[layer][:, :, self.length : end] = keys
        self.values[layer][:, :, self.length : end] = values
        return self.keys[layer][:, :, :end], self.values[layer][:, :, :end]


class AttendingCache(Protocol):
    """A cache for tokens of several rows, which computes the attention itself."""

    def places(self, tokens: int) -> tuple[Tensor, int]:
        """Return the positions of the next tokens, and the end of the last one."""
        ...

    def advance(self, tokens: int) -> None:
        """Count tokens that every layer has stored."""
        ...

    def attend(
        self, layer: int, query: Tensor, key: Tensor, value: Tensor, window: int, *, grouped: bool
    ) -> Tensor:
        """Store keys and values of a layer, and return the output of its heads."""
        ...


Cache = KVCache | AttendingCache


class RMSNorm(nn.Module):
    """Divide by the root of the mean square, times a learned gain."""

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        if rowkernels.can_fuse(x, self.weight):
            return rowkernels.rms_norm(x, self.weight, self.eps)
        return F.rms_norm(x, (x.shape[-1],), self.weight.to(x.dtype), self.eps)


def make_norm(config: GPTConfig) -> nn.Module:
    if config.family.norm == "layer":
        return nn.LayerNorm(config.width, eps=config.norm_eps)
    return RMSNorm(config.width, config.norm_eps)


class NormedLinear(products.Linear):
    """A linear layer right after a norm; in training in float8, if enabled."""

    float8 = False

    def forward(self, input: Tensor) -> Tensor:
        return self.part(input, self.weight, self.bias)

    def part(self, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        """Multiply by some rows of the matrix."""
        if self.float8 and self.training and fits_float8(x.shape[:-1].numel(), weight):
            return normed_linear(x, weight, bias)
        return products.linear(x, weight, bias)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate the pairs (i, i + E/2) of [B, H, T, E] by the angles of their positions (RoPE)."""
    if not x.is_cuda:
        first, second = x.chunk(2, dim=-1)
        return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)
    # Swapping the halves by flip instead of cat lets torch.compile make one kernel of it.
    # Uncompiled on a CPU flip would only take more memory.
    halves = x.unflatten(-1, (2, -1))
    signed = torch.stack((-sin, sin), dim=-2)
    return (halves * cos[:, None] + halves.flip(-2) * signed).flatten(-2)


class Attention(nn.Module):
    """Causal attention over the row; groups of queries share keys and values."""

    def __init__(self, config: GPTConfig, layer: int) -> None:
        super().__init__()
        self.layer = layer
        self.num_heads, self.num_kv_heads = config.num_heads, config.num_kv_heads
        self.head_dim = config.head_dim
        self.dropout = config.dropout if config.family.attention_dropout else 0.0
        self.sizes = (
            config.num_heads * config.head_dim,
            config.num_kv_heads * config.head_dim,
            config.num_kv_heads * config.head_dim,
        )
        self.window = config.window_of(layer)
        self.query_key_value = NormedLinear(config.width, sum(self.sizes), bias=config.has_qkv_bias)
        self.output = products.Linear(self.sizes[0], config.width, bias=config.has_output_bias)
        self.norm_kind = config.family.query_key_norm
        if self.norm_kind != "none":
            query_size, key_size = query_key_norm_sizes(config)
            self.query_norm = RMSNorm(query_size, config.norm_eps)
            self.key_norm = RMSNorm(key_size, config.norm_eps)

    def forward(
        self, x: Tensor, cos: Tensor | None, sin: Tensor | None, cache: Cache | None
    ) -> Tensor:
        query, key, value = self.heads(self.query_key_value(x), cos, sin)
        return self.join(self.attend(query, key, value, cache))

    def attend(self, query: Tensor, key: Tensor, value: Tensor, cache: Cache | None) -> Tensor:
        """The output of each head for each token [B, H, T, E], with the cache's tokens."""
        tokens = query.shape[2]
        mask = None
        if cache is not None and not isinstance(cache, KVCache):
            grouped = self.num_heads != self.num_kv_heads
            return cache.attend(self.layer, query, key, value, self.window, grouped=grouped)
        past = 0 if cache is None else cache.length
        if cache is not None:
            key, value = cache.append(self.layer, key, value)
        if not (self.dropout and self.training) and attending.can_attend(query, key, value):
            return attending.attend(query, key, value, window=self.window)
        if self.window and past + tokens > self.window:
            return self._attend_in_window(query, key, value, past)
        if tokens > 1 and past > 0:
            allowed = torch.ones(tokens, past + tokens, dtype=torch.bool, device=query.device)
            mask = allowed.tril(past)
        return self._look_up(query, key, value, mask, is_causal=mask is None and bool(tokens > 1))

    def _attend_in_window(self, query: Tensor, key: Tensor, value: Tensor, past: int) -> Tensor:
        """The same with a sliding window, which ends at the token itself.

        Queries are processed in parts, each with the keys that one of them may see: no mask is
        wider than a part and a window.
        """
        found: list[Tensor] = []
        for first in range(past, past + query.shape[2], _WINDOW_PART):
            part = query[:, :, first - past : first - past + _WINDOW_PART]
            end = first + part.shape[2]
            begin = max(0, first - self.window + 1)
            places = torch.arange(begin, end, device=query.device)
            own = torch.arange(first, end, device=query.device)[:, None]
            mask = (places <= own) & (places > own - self.window)
            found.append(self._look_up(part, key[:, :, begin:end], value[:, :, begin:end], mask))
        return found[0] if len(found) == 1 else torch.cat(found, dim=2)

    def _look_up(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        mask: Tensor | None,
        *,
        is_causal: bool = False,
    ) -> Tensor:
        return F.scaled_dot_product_attention(
            query,
            key,
            value,
            attn_mask=mask,
            dropout_p=self.dropout if self.training else 0.0,
            is_causal=is_causal,
            enable_gqa=self.num_heads != self.num_kv_heads,
        )

    def join(self, heads: Tensor) -> Tensor:
        """Concatenate heads [B, H, T, E], and multiply by the output matrix."""
        return self.output(heads.transpose(1, 2).flatten(2))

    def heads(
        self, x: Tensor, cos: Tensor | None, sin: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return queries, keys and values [B, heads, T, E], normalized and rotated."""
        if cos is None or sin is None:
            query, key, value = (
                part.unflatten(-1, (-1, self.head_dim)).transpose(1, 2)
                for part in x.split(self.sizes, dim=-1)
            )
            return query, key, value
        if self.norm_kind != "head":
            return self._plain_heads(x, cos, sin)
        if rowkernels.can_fuse(x, self.query_norm.weight, self.key_norm.weight):
            return rowkernels.turn_heads(
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
        return rotate(query, cos, sin), rotate(key, cos, sin), value.transpose(1, 2)

    def _plain_heads(self, x: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The same without norms of queries and keys, or with one over all heads of a token."""
        query, key, value = x.split(self.sizes, dim=-1)
        if self.norm_kind == "whole":
            query, key = self.query_norm(query), self.key_norm(key)
        query, key, value = (
            part.unflatten(-1, (-1, self.head_dim)).transpose(1, 2) for part in (query, key, value)
        )
        return rotate(query, cos, sin), rotate(key, cos, sin), value


class SwiGLU(nn.Module):
    """The gated MLP; gate and up are one matrix."""

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.has_bias = config.has_mlp_bias
        self.gate_up = NormedLinear(config.width, 2 * config.mlp_width, bias=self.has_bias)
        self.down = products.Linear(config.mlp_width, config.width, bias=self.has_bias)

    def forward(self, x: Tensor) -> Tensor:
        if not x.is_cuda or self.has_bias:
            both = self.gate_up(x)
            if rowkernels.can_fuse(both):
                return self.down(rowkernels.swiglu(both))
            gate, up = both.chunk(2, dim=-1)
            return self.down(F.silu(gate) * up)
        # Two products instead of one of twice the width, whose gradient would have to be
        # concatenated.
        gate_weight, up_weight = self.gate_up.weight.chunk(2)
        gate, up = (self.gate_up.part(x, weight) for weight in (gate_weight, up_weight))
        return self.down(F.silu(gate) * up)


class GeluMLP(nn.Module):
    """The MLP of GPT-2."""

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.up = NormedLinear(config.width, config.mlp_width)
        self.down = products.Linear(config.mlp_width, config.width)

    def forward(self, x: Tensor) -> Tensor:
        x = self.up(x)
        return self.down(
            rowkernels.gelu(x) if rowkernels.can_fuse(x) else F.gelu(x, approximate="tanh")
        )


class Block(nn.Module):
    """Attention, then MLP, each on a normed copy and added back; or normed before it is added."""

    def __init__(self, config: GPTConfig, layer: int) -> None:
        super().__init__()
        self.attention_norm = make_norm(config)
        self.attention = Attention(config, layer)
        self.mlp_norm = make_norm(config)
        self.mlp = SwiGLU(config) if config.family.gated_mlp else GeluMLP(config)
        self.norms_after = config.family.norms_after
        self.dropout = config.dropout

    def forward(
        self, x: Tensor, cos: Tensor | None, sin: Tensor | None, cache: Cache | None
    ) -> Tensor:
        if self.norms_after:
            mixed = self.attention_norm(self.attention(x, cos, sin, cache))
            x = x + drop(mixed, self.dropout, training=self.training)
            return x + drop(self.mlp_norm(self.mlp(x)), self.dropout, training=self.training)
        mixed = self.attention(self.attention_norm(x), cos, sin, cache)
        x = x + drop(mixed, self.dropout, training=self.training)
        return x + drop(self.mlp(self.mlp_norm(x)), self.dropout, training=self.training)


def drop(x: Tensor, share: float, *, training: bool) -> Tensor:
    """Drop a share of what a block adds, in training."""
    return F.dropout(x, share, training) if share > 0 else x
