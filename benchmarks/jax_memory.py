"""Memory of JAX's compiled training step, as the compiler counts it, beside the plan's formula.

    python benchmarks/jax_memory.py

Nothing is computed: each shape is compiled for this machine's CPU, which takes some seconds.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from lowtide.jaxtraining.engine import compute_gradients
from lowtide.jaxtraining.network import Form
from lowtide.jaxtraining.trees import stacked_shapes
from lowtide.model.config import GPTConfig
from lowtide.model.sizing import jax_activation_bytes, loss_chunk_tokens

VOCABULARY = 8192
CASES = (
    ("qwen3", 8, 8, 256, False),
    ("qwen3", 8, 8, 256, True),
    ("qwen3", 8, 1, 2048, False),
    ("qwen3", 8, 1, 2048, True),
    ("qwen3", 16, 8, 256, False),
    ("gpt2", 8, 8, 256, False),
    ("gpt2", 8, 8, 256, True),
)


def temporary_bytes(config: GPTConfig, rows: int, tokens: int, *, again: bool) -> int:
    """What the compiled pass needs beside its arguments and results."""
    chunk = loss_chunk_tokens(config.vocab_size, on_gpu=False)
    form = Form(config, again=again, chunk_tokens=chunk)
    params = {
        name: jax.ShapeDtypeStruct(shape, jnp.float32)
        for name, shape in stacked_shapes(config).items()
    }
    ids = jax.ShapeDtypeStruct((1, rows, tokens), jnp.int32)
    weights = jax.ShapeDtypeStruct((1, rows), jnp.float32)
    key = jax.eval_shape(lambda: jax.random.key(0))
    lowered = compute_gradients.lower(params, ids, ids, weights, key, form=form)
    return lowered.compile().memory_analysis().temp_size_in_bytes


def main() -> None:
    """Print a line for each shape."""
    print(f"{'shape':34} {'compiler':>9} {'plan':>9}")
    for layout, layers, rows, tokens, again in CASES:
        heads = 3 if layout == "qwen3" else 9
        config = GPTConfig(VOCABULARY, tokens, layers, 288, 9, num_kv_heads=heads, layout=layout)
        found = temporary_bytes(config, rows, tokens, again=again)
        chunk = min(rows * tokens, loss_chunk_tokens(VOCABULARY, on_gpu=False))
        loss = 4 * VOCABULARY * (chunk + config.width)
        plan = loss + jax_activation_bytes(config, rows=rows, tokens=tokens, checkpointing=again)
        name = f"{layout} {layers} layers, {rows} x {tokens}{', again' if again else ''}"
        print(f"{name:34} {found / (1 << 20):5.0f} MiB {plan / (1 << 20):5.0f} MiB", flush=True)


if __name__ == "__main__":
    main()
