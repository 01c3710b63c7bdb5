"""Read and write config.json of transformers, versions 4 and 5.

In:      the fields of a config.json; or a GPTConfig
Out:     the other one; DataError for an unsupported network, naming the field
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lowtide.errors import DataError
from lowtide.model.config import GPTConfig
from lowtide.model.families import FAMILIES, Family, FamilyName
from lowtide.model.rope import SCALINGS, RopeScaling, yarn_growth
from lowtide.settings import build_settings, require

__all__ = ["read_fields", "write_fields"]

# Fields that duplicate a written one, or that the written weights make wrong.
_REPLACED = (
    "torch_dtype", "rope_scaling", "sliding_window", "max_window_layers", "layer_types",
    "mlp_bias", "n_inner", "use_sliding_window",
)  # fmt: skip
_CAP = "final_logit_softcapping"
_WITHOUT_OWN = "without_own_values"
_THETA = 10000.0  # where a config.json has none
_MOST_LAYERS = 1 << 10  # more are refused by their number
_ROPE_FIELDS = (
    "factor", "original_max_position_embeddings", "low_freq_factor", "high_freq_factor",
    "beta_fast", "beta_slow", "attention_factor", "truncate",
)  # fmt: skip
_OLD_CONTEXT = "original_max_position_embeddings"
_MSCALES = ("mscale", "mscale_all_dim")


def read_fields(fields: Mapping[str, Any], *, path: Path | None = None) -> GPTConfig:
    """Read the fields of a config.json."""
    kind = fields.get("model_type")
    found: list[FamilyName] = [
        name
        for name, family in FAMILIES.items()
        if kind in (family.model_type, *family.same_model_types)
    ]
    if not found:
        published = {name: family.title for name, family in FAMILIES.items() if family.title}
        *names, last_name = published
        *titles, last_title = published.values()
        raise DataError(
            f"model_type is {kind!r}; lowtide runs {', '.join(names)} and {last_name}, and its own",
            path=path,
            next_step="give the folder of a lowtide run, or of a "
            f"{', '.join(titles)} or {last_title} model",
        )
    if fields.get("quantization_config"):
        raise DataError(
            "quantization_config is set: the weights are stored in fewer bits than lowtide reads",
            path=path,
            next_step="take the model's folder with weights in bfloat16, float16 or float32",
        )
    layout = found[0]
    config = (
        _read_gpt2(fields) if FAMILIES[layout].learned_positions else _read_rotary(fields, layout)
    )
    written = set(write_fields(config)) | set(_REPLACED)
    others = {name: value for name, value in fields.items() if name not in written}
    return config.replace(others=others)


def write_fields(config: GPTConfig) -> dict[str, Any]:
    """Return the fields of the config.json that transformers reads for a shape."""
    own = _write_gpt2(config) if config.family.learned_positions else _write_rotary(config)
    return {**own, **config.others}


def _build(**fields: Any) -> GPTConfig:
    for name, value in fields.items():  # numbers as text are accepted for settings, not in files
        require(name == "layout" or not isinstance(value, str), name, value, "a number")
    return build_settings(GPTConfig, fields)  # it checks types, since files may hold anything


def _require_is(fields: Mapping[str, Any], name: str, usual: Any, *known: Any) -> None:
    """Refuse a field whose value means another kind of network."""
    value = fields.get(name)
    if value is not None and value not in (usual, *known):
        raise DataError(f"{name} is {value!r}, expected {usual}")


def _flag(fields: Mapping[str, Any], name: str) -> bool:
    value = fields.get(name)
    require(value is None or isinstance(value, bool), name, value, "true or false")
    return bool(value)


def _number(fields: Mapping[str, Any], name: str, default: int) -> int:
    """A size that may be omitted; null is 0, which means the default."""
    value = fields.get(name, default)
    whole = isinstance(value, int) and not isinstance(value, bool)
    require(value is None or whole, name, value, "a number")
    return value or 0


def _read_gpt2(fields: Mapping[str, Any]) -> GPTConfig:
    _require_is(fields, "activation_function", "gelu_new", "gelu_pytorch_tanh")
    for name in ("scale_attn_by_inverse_layer_idx", "add_cross_attention"):
        _require_is(fields, name, False)
    for name in ("scale_attn_weights", "tie_word_embeddings"):
        _require_is(fields, name, True)
    return _build(
        vocab_size=fields["vocab_size"],
        context_length=fields.get("n_positions", fields.get("n_ctx", 1024)),
        num_layers=fields["n_layer"],
        width=fields["n_embd"],
        num_heads=fields["n_head"],
        mlp_width=_number(fields, "n_inner", 0),
        layout="gpt2",
        dropout=fields.get("resid_pdrop", 0.0),
        norm_eps=fields.get("layer_norm_epsilon", 1e-5),
    )


def _read_rotary(fields: Mapping[str, Any], layout: FamilyName) -> GPTConfig:
    family = FAMILIES[layout]
    _require_is(fields, "hidden_act", "silu", "swish")
    rope = _rope_fields(fields)
    window, layers = _read_windows(fields, family)
    return _build(
        vocab_size=fields["vocab_size"],
        context_length=fields["max_position_embeddings"],
        num_layers=fields["num_hidden_layers"],
        width=fields["hidden_size"],
        num_heads=fields["num_attention_heads"],
        num_kv_heads=_number(fields, "num_key_value_heads", family.default_kv_heads),
        head_dim=_number(fields, "head_dim", family.default_head_dim),
        mlp_width=fields["intermediate_size"],
        layout=layout,
        tie_weights=_flag(fields, "tie_word_embeddings"),
        dropout=fields.get("dropout", 0.0),
        rope_theta=_read_theta(rope, fields),
        norm_eps=fields.get("rms_norm_eps", family.default_eps),
        rope_scaling=_read_scaling(rope, fields),
        attention_bias=family.qkv_bias is None and _flag(fields, "attention_bias"),
        mlp_bias=family.mlp_bias is None and _flag(fields, "mlp_bias"),
        sliding_window=window,
        window_layers=layers,
        logit_cap=fields.get(_CAP, 0.0) if family.logit_cap else 0.0,
        without_own_values=family.rereads_embedding and _flag(fields, _WITHOUT_OWN),
    )


def _rope_fields(fields: Mapping[str, Any]) -> Mapping[str, Any]:
    """The fields of rotary positions: rope_scaling (version 4) or rope_parameters (version 5).

    Of both, rope_scaling counts, as in every version: model cards tell to add it.
    """
    rope = fields.get("rope_scaling") or fields.get("rope_parameters") or {}
    require(isinstance(rope, Mapping), "rope_parameters", rope, "an object")
    if any(isinstance(value, Mapping) for value in rope.values()):
        raise DataError("rope_parameters differ from layer to layer; expected one set for all")
    part = rope.get("partial_rotary_factor", fields.get("partial_rotary_factor"))
    if part not in (None, 1, 1.0):
        raise DataError(f"partial_rotary_factor is {part!r}, expected 1")
    return rope


def _read_theta(rope: Mapping[str, Any], fields: Mapping[str, Any]) -> float:
    """The base of the frequencies; one that only the unused of two objects names is refused."""
    theta = rope.get("rope_theta", fields.get("rope_theta"))
    unused = fields.get("rope_parameters")
    other = unused.get("rope_theta", _THETA) if isinstance(unused, Mapping) else _THETA
    if theta is None and other != _THETA:
        raise DataError(
            f"rope_theta is {other} in rope_parameters, but rope_scaling, which replaces it, has "
            "none",
            next_step=f'add "rope_theta": {other} to rope_scaling in config.json',
        )
    return float(_THETA if theta is None else theta)


def _read_scaling(rope: Mapping[str, Any], fields: Mapping[str, Any]) -> dict[str, Any] | None:
    kind = rope.get("rope_type") or rope.get("type") or "default"
    if kind == "default":
        return None
    if kind not in SCALINGS:
        raise DataError(f"rope_type is {kind!r}, expected default, {', '.join(SCALINGS)}")
    names = (*_ROPE_FIELDS, *_MSCALES)
    given = {name: rope[name] for name in names if rope.get(name) is not None}
    for name, value in given.items():
        is_number = isinstance(value, (int, float))
        require(is_number, f"{name} of rope_parameters", value, "a number")
    scales = [given.pop(name, 0) for name in _MSCALES]
    factor = given.get("attention_factor", 1)  # with 0 transformers computes positions of zeros
    require(factor > 0, "attention_factor of rope_parameters", factor, "more than 0")
    if kind != "linear":  # the one outside counts in transformers, too
        context = fields.get(_OLD_CONTEXT) or given.get(_OLD_CONTEXT)
        given[_OLD_CONTEXT] = context or fields["max_position_embeddings"]
    # As transformers has it: one of the two alone does nothing.
    if kind == "yarn" and all(scales) and "factor" in given:
        first, second = (yarn_growth(given["factor"], scale) for scale in scales)
        require(first * second > 0, "mscale of rope_parameters", scales[0], "more than 0")
        given.setdefault("attention_factor", first / second)
    return {"rope_type": kind, **given}


def _read_windows(fields: Mapping[str, Any], family: Family) -> tuple[int, tuple[int, ...]]:
    """The window, and the layers that have it."""
    num_layers = fields["num_hidden_layers"]
    if family.windows == "none" or not isinstance(num_layers, int) or num_layers > _MOST_LAYERS:
        return 0, ()
    window = _number(fields, "sliding_window", family.default_window)
    is_on = family.windows == "all" or _flag(fields, "use_sliding_window")
    if not is_on or not window:
        return 0, ()
    kinds = fields.get("layer_types")
    if kinds is None:
        first = 0 if family.windows == "all" else fields.get("max_window_layers", 28)
        layers = tuple(range(min(first, num_layers), num_layers))
        return (window, layers) if layers else (0, ())
    unknown = set(kinds) - {"full_attention", "sliding_attention"}
    if unknown or len(kinds) != num_layers:
        raise DataError(
            f"layer_types is {kinds!r}, expected full_attention or sliding_attention for each of "
            f"{num_layers} layers"
        )
    layers = tuple(n for n, kind in enumerate(kinds) if kind == "sliding_attention")
    return (window, layers) if layers else (0, ())


def _write_rotary(config: GPTConfig) -> dict[str, Any]:
    family = config.family
    return {
        "architectures": [family.architecture],
        "model_type": family.model_type,
        "vocab_size": config.vocab_size,
        "max_position_embeddings": config.context_length,
        "num_hidden_layers": config.num_layers,
        "hidden_size": config.width,
        "num_attention_heads": config.num_heads,
        "num_key_value_heads": config.num_kv_heads,
        "head_dim": config.head_dim,
        "intermediate_size": config.mlp_width,
        "hidden_act": "silu",
        "tie_word_embeddings": config.tie_weights,
        "attention_bias": config.attention_bias,
        "attention_dropout": 0.0,
        "rms_norm_eps": config.norm_eps,
        "rope_theta": config.rope_theta,
        **_write_rope(config),
        **_write_windows(config),
        "dropout": config.dropout,
        "dtype": "float32",
        **({"mlp_bias": config.mlp_bias} if family.mlp_bias is None else {}),
        **({_CAP: config.cap} if family.logit_cap else {}),
        **({_WITHOUT_OWN: config.without_own_values} if family.rereads_embedding else {}),
        **family.extra_fields,
    }


def _write_rope(config: GPTConfig) -> dict[str, Any]:
    scaling = config.rope_scaling
    rope: dict[str, Any] = {"rope_type": "default"}
    if scaling is not None:
        rope = {"rope_type": scaling.rope_type} | _set_fields(scaling)
    fields = {"rope_parameters": {**rope, "rope_theta": config.rope_theta}}
    # Version 4 reads this one.
    return fields if scaling is None else {**fields, "rope_scaling": fields["rope_parameters"]}


def _set_fields(scaling: RopeScaling) -> dict[str, Any]:
    """The fields of a scaling of this kind."""
    names = {
        "linear": ("factor",),
        "llama3": _ROPE_FIELDS[:4],
        "yarn": (*_ROPE_FIELDS[:2], *_ROPE_FIELDS[4:]),
    }[scaling.rope_type]
    values = {name: getattr(scaling, name) for name in names}
    if values.get("attention_factor") == 0.0:
        del values["attention_factor"]
    return values


def _write_windows(config: GPTConfig) -> dict[str, Any]:
    kind = config.family.windows
    if kind == "none":
        return {}
    sliding = set(config.window_layers)
    types = [
        "sliding_attention" if layer in sliding else "full_attention"
        for layer in range(config.num_layers)
    ]
    if kind == "all":
        some = 0 < len(sliding) < config.num_layers  # transformers reads these as Ministral
        window = {"sliding_window": config.sliding_window or None}
        return {**window, "layer_types": types} if some else window
    if not sliding:
        return {"use_sliding_window": False}
    return {
        "use_sliding_window": True,
        "sliding_window": config.sliding_window,
        "max_window_layers": min(sliding),
        "layer_types": types,
    }


def _write_gpt2(config: GPTConfig) -> dict[str, Any]:
    return {
        "architectures": ["GPT2LMHeadModel"],
        "model_type": "gpt2",
        "vocab_size": config.vocab_size,
        "n_positions": config.context_length,
        "n_ctx": config.context_length,
        "n_layer": config.num_layers,
        "n_embd": config.width,
        "n_head": config.num_heads,
        "n_inner": config.mlp_width,
        "activation_function": "gelu_new",
        "layer_norm_epsilon": config.norm_eps,
        "tie_word_embeddings": True,
        "embd_pdrop": config.dropout,
        "resid_pdrop": config.dropout,
        "attn_pdrop": config.dropout,
        "dtype": "float32",
    }
