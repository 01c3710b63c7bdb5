"""The tensors of a network: our name, the name and shape in files, and how the two correspond.

In:      GPTConfig
Out:     one row per tensor of the files; no torch
"""

from __future__ import annotations

from collections.abc import Iterator

from lowtide.model.config import GPTConfig
from lowtide.model.tide import added_tensors
from lowtide.quickclasses import dataclass

__all__ = [
    "ModelTensor",
    "iter_tensors",
    "layer_of",
    "layer_tensors",
    "portable_shapes",
    "query_key_norm_sizes",
]

HEAD = "lm_head.weight"


@dataclass(frozen=True)
class ModelTensor:
    """One tensor of the files."""

    ours: str
    """The parameter that holds it."""
    name: str
    """In files."""
    shape: tuple[int, ...]
    """In files."""
    rows: slice | None = None
    """Its rows of the parameter; None: all of them."""
    transposed: bool = False
    """Files have its transpose."""


def iter_tensors(config: GPTConfig) -> Iterator[ModelTensor]:
    """All tensors of a network."""
    family, width = config.family, config.width
    table = (config.vocab_size, width)
    yield ModelTensor("embedding.weight", f"{family.embedding}.weight", table)
    if family.learned_positions:
        place = (config.context_length, width)
        yield ModelTensor("positions.weight", f"{family.positions}.weight", place)
    yield from _norm(config, "final_norm", family.final_norm)
    if not config.tie_weights:
        yield ModelTensor("head.weight", HEAD, table)
    for layer in range(config.num_layers):
        yield from layer_tensors(config, layer)


def layer_tensors(config: GPTConfig, layer: int) -> Iterator[ModelTensor]:
    """The tensors of one layer."""
    family = config.family
    ours, theirs = f"blocks.{layer}.", f"{family.layers}{layer}."
    for name, portable in family.norms.items():
        yield from _norm(config, f"{ours}{name}", f"{theirs}{portable}")
    for name, portables in family.linears.items():
        outs, inner, has_bias = _linear(config, name)
        yield from _split(config, f"{ours}{name}", [f"{theirs}{p}" for p in portables],
                          outs, inner, has_bias)  # fmt: skip
    if family.query_key_norm != "none":
        sizes = query_key_norm_sizes(config)
        names = ("attention.query_norm", "attention.key_norm")
        for name, portable, size in zip(names, family.query_key_norms, sizes, strict=True):
            yield ModelTensor(f"{ours}{name}.weight", f"{theirs}{portable}.weight", (size,))
    for tensor in added_tensors(config, layer):
        yield ModelTensor(f"{ours}{tensor.name}", f"{theirs}{tensor.portable_name}", tensor.shape)


def query_key_norm_sizes(config: GPTConfig) -> tuple[int, int]:
    """Numbers that a norm of queries, and one of keys, takes together."""
    if config.family.query_key_norm == "head":
        return config.head_dim, config.head_dim
    return config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim


def _norm(config: GPTConfig, ours: str, theirs: str) -> Iterator[ModelTensor]:
    for part in ("weight", "bias") if config.family.norm == "layer" else ("weight",):
        yield ModelTensor(f"{ours}.{part}", f"{theirs}.{part}", (config.width,))


def _linear(config: GPTConfig, name: str) -> tuple[tuple[int, ...], int, bool]:
    """Rows of each matrix that a parameter holds, their columns, and whether there are biases."""
    query, key = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    return {
        "attention.query_key_value": ((query, key, key), config.width, config.has_qkv_bias),
        "attention.output": ((config.width,), query, config.has_output_bias),
        "mlp.gate_up": ((config.mlp_width,) * 2, config.width, config.has_mlp_bias),
        "mlp.up": ((config.mlp_width,), config.width, config.has_mlp_bias),
        "mlp.down": ((config.width,), config.mlp_width, config.has_mlp_bias),
    }[name]


def _split(
    config: GPTConfig,
    ours: str,
    theirs: list[str],
    outs: tuple[int, ...],
    inner: int,
    has_bias: bool,
) -> Iterator[ModelTensor]:
    turned = config.family.transposed
    outs = (sum(outs),) if len(theirs) == 1 else outs
    start = 0
    for portable, out in zip(theirs, outs, strict=True):
        rows = slice(start, start + out) if len(outs) > 1 else None
        shape = (inner, out) if turned else (out, inner)
        yield ModelTensor(f"{ours}.weight", f"{portable}.weight", shape, rows, turned)
        if has_bias:
            yield ModelTensor(f"{ours}.bias", f"{portable}.bias", (out,), rows)
        start += out


def portable_shapes(config: GPTConfig) -> dict[str, tuple[int, ...]]:
    """Names and shapes of a network's tensors, as transformers has them."""
    return {tensor.name: tensor.shape for tensor in iter_tensors(config)}


def layer_of(ours: str) -> tuple[int | None, str]:
    """The layer of our parameter and its name there; None for parameters outside of layers.

    >>> layer_of("blocks.3.mlp.down.weight"), layer_of("embedding.weight")
    ((3, 'mlp.down.weight'), (None, 'embedding.weight'))
    """
    first, _, rest = ours.partition(".")
    layer, _, name = rest.partition(".")
    return (int(layer), name) if first == "blocks" else (None, ours)
