"""lowtide's tide layout for transformers: load the folder this lies in with trust_remote_code=True.

A Qwen3 network in which every block sees the embedding of its tokens again: mixed into the stream,
added to the values of every second block, and with a gate for each head, which may find nothing
along its own token's value. Needs torch and transformers only.
"""

# pyright: basic

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import GenerationMixin, PretrainedConfig, PreTrainedModel
from transformers.cache_utils import Cache, DynamicCache
from transformers.modeling_outputs import CausalLMOutputWithPast

GATE_INPUTS = 32


class TideConfig(PretrainedConfig):
    """The fields of Qwen3's config.json."""

    model_type = "lowtide_tide"

    def __init__(
        self,
        vocab_size: int = 50304,
        max_position_embeddings: int = 1024,
        num_hidden_layers: int = 12,
        hidden_size: int = 768,
        num_attention_heads: int = 6,
        num_key_value_heads: int = 6,
        head_dim: int = 128,
        intermediate_size: int = 2048,
        rms_norm_eps: float = 1e-6,
        rope_theta: float = 10000.0,
        tie_word_embeddings: bool = True,
        final_logit_softcapping: float = 0.0,
        without_own_values: bool = False,
        **others: Any,
    ) -> None:
        self.vocab_size = vocab_size
        self.max_position_embeddings = max_position_embeddings
        self.num_hidden_layers = num_hidden_layers
        self.hidden_size = hidden_size
        self.num_attention_heads = num_attention_heads
        self.num_key_value_heads = num_key_value_heads
        self.head_dim = head_dim
        self.intermediate_size = intermediate_size
        self.rms_norm_eps = rms_norm_eps
        self.rope_theta = rope_theta
        self.tie_word_embeddings = tie_word_embeddings
        self.final_logit_softcapping = final_logit_softcapping
        self.without_own_values = without_own_values
        super().__init__(**others)


class TideRMSNorm(nn.Module):
    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x, self.weight.shape, self.weight, self.eps)


class TideAttention(nn.Module):
    def __init__(self, config: TideConfig, layer: int) -> None:
        super().__init__()
        width, self.head_dim, self.layer = config.hidden_size, config.head_dim, layer
        self.heads, self.kv_heads = config.num_attention_heads, config.num_key_value_heads
        self.q_proj = nn.Linear(width, self.heads * self.head_dim, bias=False)
        self.k_proj = nn.Linear(width, self.kv_heads * self.head_dim, bias=False)
        self.v_proj = nn.Linear(width, self.kv_heads * self.head_dim, bias=False)
        self.o_proj = nn.Linear(self.heads * self.head_dim, width, bias=False)
        self.q_norm = TideRMSNorm(self.head_dim, config.rms_norm_eps)
        self.k_norm = TideRMSNorm(self.head_dim, config.rms_norm_eps)
        inputs, self.without_own = min(GATE_INPUTS, width), config.without_own_values
        self.head_gate = nn.Linear(inputs, self.heads)
        if layer % 2 == 1:
            self.start_v_proj = nn.Linear(width, self.kv_heads * self.head_dim, bias=False)
            self.value_gate = nn.Linear(inputs, self.kv_heads)

    def forward(
        self,
        x: Tensor,
        start: Tensor,
        angles: tuple[Tensor, Tensor],
        mask: Tensor,
        cache: Cache | None,
    ) -> Tensor:
        query = turn(self.q_norm(self._split(self.q_proj(x))), angles)
        key = turn(self.k_norm(self._split(self.k_proj(x))), angles)
        value = self._split(self.v_proj(x))
        if self.layer % 2 == 1:
            value = value + opened(self.value_gate, x) * self._split(self.start_v_proj(start))
        own = value
        if cache is not None:
            key, value = cache.update(key, value, self.layer)
        key, value = (
            part.repeat_interleave(self.heads // self.kv_heads, 1) for part in (key, value)
        )
        found = F.scaled_dot_product_attention(query, key, value, attn_mask=mask)
        if self.without_own:
            own = F.normalize(own, dim=-1).repeat_interleave(self.heads // self.kv_heads, 1)
            found = found - (found * own).sum(-1, keepdim=True) * own
        return self.o_proj((found * opened(self.head_gate, x)).transpose(1, 2).flatten(2))

    def _split(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (-1, self.head_dim)).transpose(1, 2)


def opened(gate: nn.Linear, x: Tensor) -> Tensor:
    """How far each head is open for each token, from 0 to 2."""
    return (2 * torch.sigmoid(gate(x[..., : gate.in_features]))).transpose(1, 2)[..., None]


def turn(x: Tensor, angles: tuple[Tensor, Tensor]) -> Tensor:
    """Rotate the pairs (i, i + half) of each head by the angles of their positions."""
    cos, sin = angles
    first, second = x.chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)


class TideMLP(nn.Module):
    def __init__(self, config: TideConfig) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.up_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.down_proj = nn.Linear(config.intermediate_size, config.hidden_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class TideLayer(nn.Module):
    def __init__(self, config: TideConfig, layer: int) -> None:
        super().__init__()
        self.mix = nn.Parameter(torch.tensor([1.0, 0.1]))
        self.input_layernorm = TideRMSNorm(config.hidden_size, config.rms_norm_eps)
        self.self_attn = TideAttention(config, layer)
        self.post_attention_layernorm = TideRMSNorm(config.hidden_size, config.rms_norm_eps)
        self.mlp = TideMLP(config)

    def forward(self, x: Tensor, start: Tensor, normed_start: Tensor, *context: Any) -> Tensor:
        x = self.mix[0] * x + self.mix[1] * start
        x = x + self.self_attn(self.input_layernorm(x), normed_start, *context)
        return x + self.mlp(self.post_attention_layernorm(x))


class TideModel(nn.Module):
    def __init__(self, config: TideConfig) -> None:
        super().__init__()
        self.config = config
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        layers = (TideLayer(config, layer) for layer in range(config.num_hidden_layers))
        self.layers = nn.ModuleList(layers)
        self.norm = TideRMSNorm(config.hidden_size, config.rms_norm_eps)

    def forward(self, start: Tensor, mask: Tensor | None, cache: Cache | None) -> Tensor:
        past = 0 if cache is None else int(cache.get_seq_length())
        tokens = start.shape[1]
        seen = torch.ones(tokens, past + tokens, dtype=torch.bool, device=start.device).tril(past)
        places = torch.arange(past, past + tokens, device=start.device)[None]
        allowed = seen[None, None]
        if mask is not None:
            # Padding is not looked at, and tokens after it count from their own beginning.
            allowed = allowed & mask[:, None, None, :].bool()
            allowed = (
                allowed | torch.eye(past + tokens, dtype=torch.bool, device=start.device)[past:]
            )
            places = (mask.long().cumsum(-1) - 1).clamp(min=0)[:, past:]
        context = (self._angles(places, start), allowed, cache)
        normed = F.rms_norm(start, start.shape[-1:], eps=self.config.rms_norm_eps)
        x = start
        for layer in self.layers:
            x = layer(x, start, normed, *context)
        return self.norm(x)

    def _angles(self, places: Tensor, like: Tensor) -> tuple[Tensor, Tensor]:
        """Cosines and sines [B, 1, T, head_dim / 2] of the places' angles."""
        size = self.config.head_dim
        steps = torch.arange(0, size, 2, dtype=torch.float32, device=like.device) / size
        angles = places[:, None, :, None].float() * self.config.rope_theta**-steps
        return angles.cos().to(like.dtype), angles.sin().to(like.dtype)


class TideForCausalLM(PreTrainedModel, GenerationMixin):
    """The network with its output matrix."""

    config_class = TideConfig
    base_model_prefix = "model"
    _tied_weights_keys = {"lm_head.weight": "model.embed_tokens.weight"}  # noqa: RUF012
    _supports_sdpa = True

    def __init__(self, config: TideConfig) -> None:
        super().__init__(config)
        self.model = TideModel(config)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.post_init()

    def get_input_embeddings(self) -> nn.Module:
        return self.model.embed_tokens

    def set_input_embeddings(self, value: nn.Embedding) -> None:
        self.model.embed_tokens = value

    def get_output_embeddings(self) -> nn.Module:
        return self.lm_head

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        past_key_values: Cache | None = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        use_cache: bool | None = None,
        logits_to_keep: int = 0,
        **others: Any,
    ) -> CausalLMOutputWithPast:
        if inputs_embeds is None:
            inputs_embeds = self.model.embed_tokens(input_ids)
        if use_cache and past_key_values is None:
            past_key_values = DynamicCache()
        hidden = self.model(inputs_embeds, attention_mask, past_key_values)
        logits = self.lm_head(hidden[:, -logits_to_keep:] if logits_to_keep else hidden)
        cap = self.config.final_logit_softcapping
        if cap > 0:
            logits = cap * torch.tanh(logits / cap)
        loss = None
        if labels is not None:
            wanted = labels[:, 1:].flatten()
            loss = F.cross_entropy(logits[:, :-1].flatten(0, 1).float(), wanted)
        return CausalLMOutputWithPast(
            loss=loss,  # pyright: ignore[reportArgumentType]
            logits=logits,
            past_key_values=past_key_values,
        )
