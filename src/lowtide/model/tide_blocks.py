"""The tide layout: blocks of the qwen3 layout that also get the token's own embedding.

A block deep in the network only sees the output of earlier blocks, so a share of the width is spent
on remembering which token it was. Here every block gets the embedding again.

    x       -> mix[0] * x + mix[1] * start           before the block; two numbers a block
    values  -> values + gate * (start_values @ normed start)      in every second block
    heads   -> heads - own part                       each head's output without its component along
    heads   -> heads * gate                           the token's own value; before they are joined

Heads are for information from other tokens, since the residual stream carries the token itself: so
the component along its own value is removed (exclusive self-attention). A gate is twice a sigmoid,
so that it starts at 1, of a linear function of the first 32 numbers of the block's normalized
input: one number for each head and token. All of this is per token, so a decoding cache needs no
changes.

In:      the residual stream [B, T, D] and the embedding of the same tokens
Out:     the residual stream
Memory:  as a block of the qwen3 layout, and the embedding, the added values, the ungated heads and
         the directions of own values; by the kernels of a GPU (headkernels) without the directions
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lowtide.model.blocks import Attention, Cache, NormedLinear, RMSNorm, SwiGLU, drop
from lowtide.model.config import GPTConfig
from lowtide.model.headkernels import gated_without_own
from lowtide.model.rotation import has_fused_rotation
from lowtide.model.tide import has_start_values, num_gate_inputs

__all__ = ["TideBlock"]

_FIRST_MIX = (1.0, 0.1)


class TideAttention(Attention):
    """Attention with gated heads, and in every second block values that see the embedding."""

    def __init__(self, config: GPTConfig, layer: int) -> None:
        super().__init__(config, layer)
        inputs, self.without_own = num_gate_inputs(config), config.without_own_values
        self.head_gate = nn.Linear(inputs, config.num_heads)
        self.start_values = self.value_gate = None
        if has_start_values(layer):
            self.start_values = NormedLinear(config.width, self.sizes[2], bias=False)
            self.value_gate = nn.Linear(inputs, config.num_kv_heads)

    def reset_gates(self) -> None:
        """Open all gates to 1."""
        for gate in (self.head_gate, self.value_gate):
            if gate is not None:
                nn.init.zeros_(gate.weight)
                nn.init.zeros_(gate.bias)

    def forward_from(
        self,
        x: Tensor,
        start: Tensor,
        cos: Tensor | None,
        sin: Tensor | None,
        cache: Cache | None,
    ) -> Tensor:
        """Attend; `start` is the normed embedding of the tokens."""
        query, key, value = self.heads(self.query_key_value(x), cos, sin)
        if self.start_values is not None and self.value_gate is not None:
            added = self.start_values(start).unflatten(-1, (-1, self.head_dim)).transpose(1, 2)
            value = value + _open(self.value_gate, x) * added
        found = self.attend(query, key, value, cache)
        if self.without_own and cache is None and has_fused_rotation(found, self.head_dim):
            return self.output(gated_without_own(found, value, _logits(self.head_gate, x)))
        if self.without_own:
            found = _without_own(found, value)
        return self.join(found * _open(self.head_gate, x))


def _without_own(found: Tensor, value: Tensor) -> Tensor:
    """Outputs of heads [B, H, T, E] without the part along each token's own value [B, K, T, E]."""
    own = F.normalize(value, dim=-1)
    if found.shape[1] != value.shape[1]:
        own = own.repeat_interleave(found.shape[1] // value.shape[1], dim=1)
    return found - (found * own).sum(dim=-1, keepdim=True) * own


def _open(gate: nn.Linear, x: Tensor) -> Tensor:
    """How far each head is open for each token: [B, heads, T, 1], from 0 to 2."""
    opened = 2 * torch.sigmoid(_logits(gate, x))
    return opened.transpose(1, 2)[..., None]


def _logits(gate: nn.Linear, x: Tensor) -> Tensor:
    """The inputs of the gates' sigmoids: [B, T, heads]."""
    return gate(x[..., : gate.in_features])


class TideBlock(nn.Module):
    """Attention, then MLP, on a stream into which the embedding is mixed first."""

    def __init__(self, config: GPTConfig, layer: int) -> None:
        super().__init__()
        self.mix = nn.Parameter(torch.tensor(_FIRST_MIX))
        self.attention_norm = RMSNorm(config.width, config.norm_eps)
        self.attention = TideAttention(config, layer)
        self.mlp_norm = RMSNorm(config.width, config.norm_eps)
        self.mlp = SwiGLU(config)
        self.dropout, self.eps = config.dropout, config.norm_eps

    def forward(
        self,
        x: Tensor,
        cos: Tensor | None,
        sin: Tensor | None,
        cache: Cache | None,
        start: Tensor,
    ) -> Tensor:
        mix = self.mix.to(x.dtype)
        x = mix[0] * x + mix[1] * start
        normed_start = F.rms_norm(start, (start.shape[-1],), eps=self.eps)
        mixed = self.attention.forward_from(self.attention_norm(x), normed_start, cos, sin, cache)
        x = x + drop(mixed, self.dropout, training=self.training)
        return x + drop(self.mlp(self.mlp_norm(x)), self.dropout, training=self.training)
