"""The usual starting point: nanoGPT's model rewritten, full logits and the ordinary loss."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from lowtide.model.config import GPTConfig

__all__ = ["PlainGPT"]


class PlainBlock(nn.Module):
    """A block as nanoGPT has it, with torch's fused attention."""

    def __init__(self, width: int, heads: int, *, bias: bool) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width, bias=bias), nn.LayerNorm(width, bias=bias)
        self.attention = nn.Linear(width, 3 * width, bias=bias)
        self.project = nn.Linear(width, width, bias=bias)
        self.up = nn.Linear(width, 4 * width, bias=bias)
        self.down = nn.Linear(4 * width, width, bias=bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows, tokens, width = x.shape
        parts = self.attention(self.norm1(x)).split(width, dim=2)
        q, k, v = (
            p.view(rows, tokens, self.heads, width // self.heads).transpose(1, 2) for p in parts
        )
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.project(mixed.transpose(1, 2).contiguous().view(rows, tokens, width))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class PlainGPT(nn.Module):
    """A GPT of the same shape as ours; with `bias` it has all of GPT-2's parameters."""

    def __init__(self, config: GPTConfig, *, bias: bool) -> None:
        super().__init__()
        self.tokens = nn.Embedding(config.vocab_size, config.width)
        self.positions = nn.Embedding(config.context_length, config.width)
        self.blocks = nn.Sequential(
            *(
                PlainBlock(config.width, config.num_heads, bias=bias)
                for _ in range(config.num_layers)
            )
        )
        self.norm = nn.LayerNorm(config.width, bias=bias)
        self.head = nn.Linear(config.width, config.vocab_size, bias=False)
        self.tokens.weight = self.head.weight
        for parameter in self.parameters():
            if parameter.ndim == 2:
                nn.init.normal_(parameter, std=0.02)

    def forward(self, ids: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """Return the mean loss."""
        x = self.tokens(ids) + self.positions(torch.arange(ids.shape[1], device=ids.device))
        logits = self.head(self.norm(self.blocks(x)))
        return F.cross_entropy(logits.view(-1, logits.shape[-1]), targets.view(-1))
