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

# Layout, vocabulary, layers, width, rows, tokens, activations again, bfloat16.
CASES = (
    ("qwen3", 8192, 8, 288, 8, 256, False, False),
    ("qwen3", 8192, 8, 288, 8, 256, True, False),
    ("qwen3", 8192, 8, 288, 1, 2048, False, False),
    ("qwen3", 8192, 8, 288, 1, 2048, True, False),
    ("qwen3", 8192, 16, 288, 8, 256, False, False),
    ("gpt2", 8192, 8, 288, 8, 256, False, False),
    ("gpt2", 8192, 8, 288, 8, 256, True, False),
    ("qwen3", 8192, 8, 288, 8, 256, False, True),
    ("qwen3", 8192, 8, 288, 8, 256, True, True),
    ("gpt2", 1024, 2, 3072, 1, 64, False, False),
    ("gpt2", 1024, 2, 3072, 1, 64, False, True),
    ("gpt2", 1024, 2, 1536, 1, 64, False, False),
    ("qwen3", 1024, 2, 1536, 1, 64, False, False),
    ("gpt2", 1024, 4, 1536, 1, 64, True, False),
    ("gpt2", 1024, 4, 1536, 1, 64, True, True),
    ("qwen3", 1024, 4, 1536, 1, 64, True, True),
    ("gpt2", 1024, 24, 768, 1, 64, False, False),
    ("gpt2", 1024, 24, 768, 1, 64, False, True),
    ("gpt2", 1024, 24, 768, 1, 64, True, True),
    ("gpt2", 8192, 8, 768, 1, 256, False, False),
    ("gpt2", 8192, 8, 768, 4, 256, False, False),
    ("qwen3", 8192, 4, 1536, 2, 256, False, False),
    ("qwen3", 8192, 4, 1536, 2, 256, True, True),
)


def temporary_bytes(config: GPTConfig, rows: int, tokens: int, *, again: bool, half: bool) -> int:
    """What the compiled pass needs beside its arguments and results."""
    chunk = loss_chunk_tokens(config.vocab_size, on_gpu=False)
    dtype = "bfloat16" if half else "float32"
    form = Form(config, dtype=dtype, again=again, chunk_tokens=chunk)
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
    print(f"{'shape':54} {'compiler':>9} {'plan':>9}")
    for layout, vocabulary, layers, width, rows, tokens, again, half in CASES:
        count = 9 if width == 288 else 12
        heads = 3 if layout == "qwen3" else count
        config = GPTConfig(
            vocabulary, tokens, layers, width, count, num_kv_heads=heads, layout=layout
        )
        found = temporary_bytes(config, rows, tokens, again=again, half=half)
        chunk = min(rows * tokens, loss_chunk_tokens(vocabulary, on_gpu=False))
        loss = 4 * vocabulary * (chunk + width)
        plan = loss + jax_activation_bytes(
            config, rows=rows, tokens=tokens, half=half, checkpointing=again, loss=loss
        )
        name = f"{layout} {layers} x {width}, {rows} x {tokens}, vocabulary {vocabulary}"
        name += f"{', bf16' if half else ''}{', again' if again else ''}"
        print(f"{name:54} {found / (1 << 20):5.0f} MiB {plan / (1 << 20):5.0f} MiB", flush=True)


if __name__ == "__main__":
    main()
