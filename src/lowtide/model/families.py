"""Supported families of models: the parts of each, and their names in files.

One row per family. The network (blocks), names of tensors (tensors), sizes (sizing), config.json
(configjson) and GGUF (gguf) are derived from it, so another family of this kind is another row. No
other module checks for a family by its name, which a test verifies.

Out:     FAMILIES, by the name of the layout; no torch
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import Any, Literal

from lowtide.quickclasses import dataclass

__all__ = ["FAMILIES", "Family", "FamilyName", "Layout"]

FamilyName = Literal["qwen3", "gpt2", "tide", "llama", "mistral", "qwen2", "olmo2"]
Layout = Literal["qwen3", "gpt2", "tide"]
"""Layouts of new models; published models may be of any family in the table."""

_NORMS = {"attention_norm": "input_layernorm", "mlp_norm": "post_attention_layernorm"}
_LINEARS = {
    "attention.query_key_value": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "attention.output": ("self_attn.o_proj",),
    "mlp.gate_up": ("mlp.gate_proj", "mlp.up_proj"),
    "mlp.down": ("mlp.down_proj",),
}
_QUERY_KEY_NORMS = ("self_attn.q_norm", "self_attn.k_norm")
# llama.cpp's names for the same parts.
_GGUF = {
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


@dataclass(frozen=True)
class Family:
    """The properties shared by the models of one family."""

    model_type: str
    """model_type in config.json."""
    architecture: str
    """The class that transformers loads it with."""
    title: str = ""
    """Its name for messages; empty for layouts that nobody publishes."""
    same_model_types: tuple[str, ...] = ()
    """Other values of model_type, whose networks are those of the family."""

    # Computation.
    norm: Literal["rms", "layer"] = "rms"
    norms_after: bool = False
    """Norms are applied to the output of attention and MLP (post-norm), not to their input."""
    query_key_norm: Literal["none", "head", "whole"] = "none"
    """Norms of queries and keys: none, for each head, or over all heads of a token."""
    learned_positions: bool = False
    """Learned position embeddings; else rotary positions."""
    gated_mlp: bool = True
    """SwiGLU; else GELU in its tanh form."""
    qkv_bias: bool | None = False
    """None: as attention_bias of the config says."""
    output_bias: bool | None = False
    """None: as attention_bias of the config says."""
    mlp_bias: bool | None = False
    """None: as mlp_bias of the config says."""
    rereads_embedding: bool = False
    """Every block gets the embedding again and has gated heads (tide_blocks); torch only."""
    attention_dropout: bool = False
    """Dropout acts inside attention too, not only on what blocks add."""
    plain_heads: bool = False
    """Each query head has keys and values of its own, all heads make up the width, and the
    embedding is the output matrix: the family's files can hold no other model."""
    float32_turns: bool = False
    """Rotary frequencies are computed in float32, as runs of the layout began; elsewhere they are
    rounded once, from float64."""

    logit_cap: float = 0.0
    """Soft cap of the logits of a new model; 0: the family has none."""

    # Names in files.
    layers: str = "model.layers."
    embedding: str = "model.embed_tokens"
    positions: str = ""
    final_norm: str = "model.norm"
    norms: Mapping[str, str] = field(default_factory=lambda: _NORMS)
    """Names of a layer's norms by ours."""
    linears: Mapping[str, tuple[str, ...]] = field(default_factory=lambda: _LINEARS)
    """Names of the matrices that are rows of one of ours."""
    query_key_norms: tuple[str, str] = _QUERY_KEY_NORMS
    transposed: bool = False
    """Matrices are stored [in, out]."""

    # Defaults of config.json.
    default_eps: float = 1e-6
    default_kv_heads: int = 0
    """0: as many as heads."""
    default_head_dim: int = 0
    """0: the width over the heads."""
    windows: Literal["none", "all", "some"] = "none"
    """The layers with a sliding window, if sliding_window is set and layer_types is not."""
    default_window: int = 0
    fixed_pattern: str = ""
    """The split pattern that transformers uses for every model of the family, with any files."""

    # llama.cpp.
    gguf: str | None = None
    """Its name for the architecture; None: it has none."""
    gguf_names: Mapping[str, str] = field(default_factory=lambda: _GGUF)
    gguf_permuted: bool = False
    """Rows of queries and keys are interleaved (pairs) instead of in halves."""
    gguf_biases: bool = False
    """llama.cpp has the biases of attention that a config may ask for."""
    gguf_square_heads: bool = False
    """llama.cpp takes heads of width / num_heads only."""
    gguf_own_head: bool = False
    """llama.cpp does not take the embedding as the output matrix: it is written twice."""

    extra_fields: Mapping[str, Any] = field(default_factory=dict)
    """Further fields of config.json."""


FAMILIES: dict[FamilyName, Family] = {
    # Llama 1 to 3, SmolLM2, TinyLlama, and what else was trained in their form.
    "llama": Family(
        model_type="llama",
        architecture="LlamaForCausalLM",
        title="Llama",
        qkv_bias=None,
        output_bias=None,
        mlp_bias=None,
        gguf="llama",
        gguf_permuted=True,
        gguf_biases=True,
    ),
    "mistral": Family(
        model_type="mistral",
        architecture="MistralForCausalLM",
        title="Mistral",
        same_model_types=("ministral",),  # transformers saves Mistrals with layer_types as these
        default_kv_heads=8,
        windows="all",
        default_window=4096,
        gguf="llama",
        gguf_permuted=True,
        gguf_biases=True,
    ),
    "qwen2": Family(
        model_type="qwen2",
        architecture="Qwen2ForCausalLM",
        title="Qwen2",
        qkv_bias=True,
        default_kv_heads=32,
        windows="some",
        default_window=4096,
        fixed_pattern="qwen2",
        gguf="qwen2",
        gguf_square_heads=True,
    ),
    "qwen3": Family(
        model_type="qwen3",
        architecture="Qwen3ForCausalLM",
        title="Qwen3",
        query_key_norm="head",
        qkv_bias=None,
        output_bias=None,
        float32_turns=True,
        default_kv_heads=32,
        default_head_dim=128,
        windows="some",
        default_window=4096,
        gguf="qwen3",
    ),
    "olmo2": Family(
        model_type="olmo2",
        architecture="Olmo2ForCausalLM",
        title="OLMo 2",
        norms_after=True,
        query_key_norm="whole",
        qkv_bias=None,
        output_bias=None,
        norms={
            "attention_norm": "post_attention_layernorm",
            "mlp_norm": "post_feedforward_layernorm",
        },
        default_eps=1e-5,
        gguf="olmo2",
        gguf_square_heads=True,
        gguf_own_head=True,
        gguf_names={
            **_GGUF,
            "post_attention_layernorm": "post_attention_norm",
            "post_feedforward_layernorm": "post_ffw_norm",
        },
    ),
    "gpt2": Family(
        model_type="gpt2",
        architecture="GPT2LMHeadModel",
        title="GPT-2",
        norm="layer",
        learned_positions=True,
        gated_mlp=False,
        qkv_bias=True,
        output_bias=True,
        mlp_bias=True,
        attention_dropout=True,
        plain_heads=True,
        layers="transformer.h.",
        embedding="transformer.wte",
        positions="transformer.wpe",
        final_norm="transformer.ln_f",
        norms={"attention_norm": "ln_1", "mlp_norm": "ln_2"},
        linears={
            "attention.query_key_value": ("attn.c_attn",),
            "attention.output": ("attn.c_proj",),
            "mlp.up": ("mlp.c_fc",),
            "mlp.down": ("mlp.c_proj",),
        },
        transposed=True,
        default_eps=1e-5,
        gguf="gpt2",
        gguf_names={
            "ln_1": "attn_norm",
            "ln_2": "ffn_norm",
            "attn.c_attn": "attn_qkv",
            "attn.c_proj": "attn_output",
            "mlp.c_fc": "ffn_up",
            "mlp.c_proj": "ffn_down",
        },
    ),
    # Qwen3 with the embedding given to every block again and gated heads (tide.py): transformers
    # loads the modelling file that lies beside the weights, if the user trusts it.
    "tide": Family(
        model_type="lowtide_tide",
        architecture="TideForCausalLM",
        query_key_norm="head",
        rereads_embedding=True,
        float32_turns=True,
        logit_cap=15.0,
        extra_fields={
            "use_sliding_window": False,
            "auto_map": {
                "AutoConfig": "modeling_tide.TideConfig",
                "AutoModelForCausalLM": "modeling_tide.TideForCausalLM",
            },
        },
    ),
}
