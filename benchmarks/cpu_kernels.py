"""Matrix products and attention on a CPU: native code, torch's own, and oneDNN within torch.

Shapes are those of layers and heads of small models, with the rows of a step. Each kind is called
for a while in turns; the shortest mean of processor time counts, since other work makes it only
longer. One thread by default: with more, processor time includes their waiting.

    OMP_NUM_THREADS=1 python benchmarks/cpu_kernels.py products
    OMP_NUM_THREADS=1 python benchmarks/cpu_kernels.py attention
    OMP_NUM_THREADS=1 python benchmarks/cpu_kernels.py small
    python benchmarks/cpu_kernels.py memory
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from lowtide import _native
from lowtide.memory import resident_bytes
from lowtide.model.attending import attend
from lowtide.model.config import GPTConfig
from lowtide.model.gpt import GPT
from lowtide.model.products import quick_linear, quick_multiply
from lowtide.training.muon import Muon, matrix_splits

# Rows of a step, inputs and outputs of a layer: widths 112 (a million parameters), 304 (ten), 384.
LAYERS = [
    (2048, 112, 336),
    (2048, 112, 600),
    (2048, 300, 112),
    (2048, 112, 2048),
    (768, 128, 384),
    (1024, 192, 576),
    (2048, 304, 912),
    (2048, 304, 1640),
    (2048, 384, 1536),
    (1024, 1024, 1024),
]
# Rows, tokens, heads of queries, of keys, numbers of a head, window.
HEADS = [
    (12, 64, 4, 4, 32, 0),
    (16, 128, 4, 4, 28, 0),
    (16, 128, 8, 8, 38, 0),
    (4, 512, 4, 4, 28, 0),
    (8, 256, 6, 6, 64, 0),
    (1, 1024, 8, 8, 58, 0),
    (1, 1024, 8, 2, 64, 0),
    (1, 1024, 8, 8, 64, 128),
    (1, 2048, 4, 4, 128, 0),
]
# Layers, width, heads, rows of a batch, tokens of a row.
SMALL_NETWORKS = [(2, 32, 2, 1, 32), (4, 64, 2, 2, 32), (4, 64, 2, 8, 64), (6, 112, 4, 8, 128)]
_ROUNDS, _ROUND_SECONDS = 7, 0.03
_onednn = torch.ops.mkldnn._linear_pointwise  # pyright: ignore[reportPrivateUsage]


def seconds(calls: dict[str, Callable[[], object]]) -> dict[str, float]:
    """The shortest mean of processor time of each call."""
    best = dict.fromkeys(calls, float("inf"))
    for call in calls.values():
        call()
    for _ in range(_ROUNDS):
        for name, call in calls.items():
            start, count = time.process_time(), 0
            while time.process_time() - start < _ROUND_SECONDS:
                call()
                count += 1
            best[name] = min(best[name], (time.process_time() - start) / count)
    return best


def by_onednn(a: Tensor, b: Tensor) -> Tensor:
    """The product, as torch's compiler calls oneDNN for a linear layer."""
    return _onednn(a, b.t(), None, "none", [], "")


def measure_products() -> None:
    """Print the speed of the three products of each layer."""
    widths = [bits for bits in (256, 512) if bits <= _native.vector_bits()]
    print("rows x inputs x outputs, product: thousand million operations a second")
    for rows, inputs, outputs in LAYERS:
        x, weight = torch.randn(rows, inputs), torch.randn(outputs, inputs)
        gradient = torch.randn(rows, outputs)
        pairs = {
            "forward": (x, weight.t()),
            "of inputs": (gradient, weight),
            "of weights": (gradient.t(), x),
        }
        for name, (a, b) in pairs.items():
            room = torch.empty(a.shape[0], b.shape[1])
            calls: dict[str, Callable[[], object]] = {
                "torch": lambda a=a, b=b: a @ b,
                "oneDNN": lambda a=a, b=b: by_onednn(a, b),
            }
            for bits in widths:
                calls[f"native, {bits} bits"] = lambda a=a, b=b, room=room, bits=bits: (
                    quick_multiply(a, b, room, bits=bits)
                )
            found = seconds(calls)
            work = 2 * rows * inputs * outputs / 1e9
            speeds = "  ".join(f"{kind} {work / spent:5.0f}" for kind, spent in found.items())
            print(f"{f'{rows} x {inputs} x {outputs} {name}':<31} {speeds}", flush=True)


def measure_attention() -> None:
    """Print the time of the forward pass alone and of both, and how much longer torch takes."""
    kinds = [0, *(bits for bits in (256, 512) if bits <= _native.vector_bits())]
    for rows, tokens, heads, kv_heads, head_dim, window in HEADS:
        sizes = (heads, kv_heads, kv_heads)
        tensors = [torch.randn(rows, tokens, n, head_dim).transpose(1, 2) for n in sizes]
        wanting = [tensor.clone().requires_grad_() for tensor in tensors]
        given = torch.randn(rows, heads, tokens, head_dim)
        print(f"{rows} rows of {tokens}, {heads}/{kv_heads} heads of {head_dim}, window {window}")
        forward = seconds({str(bits): call_of(bits, tensors, window) for bits in kinds})
        both = seconds({str(bits): call_of(bits, wanting, window, given) for bits in kinds})
        for bits in kinds:
            name = f"native, {bits} bits" if bits else "torch"
            times = [(found["0"], found[str(bits)]) for found in (forward, both)]
            columns = [f"{own * 1e3:8.2f} ms {plain / own:5.2f}x" for plain, own in times]
            print(f"  {name:<17}" + "   ".join(columns), flush=True)


def call_of(
    bits: int, tensors: list[Tensor], window: int, given: Tensor | None = None
) -> Callable[[], object]:
    """Call attention, and with the gradient of its outputs the backward pass."""

    def call() -> object:
        found = by_kind(bits, tensors, window)
        return found if given is None else torch.autograd.grad(found, tensors, given)

    return call


def by_kind(bits: int, tensors: list[Tensor], window: int) -> Tensor:
    """Attention with vectors of so many bits; by torch with 0."""
    query, key, value = tensors
    if bits:
        return attend(query, key, value, window=window, bits=bits)
    mask = None
    if window:
        places = torch.arange(query.shape[2])
        mask = (places <= places[:, None]) & (places > places[:, None] - window)
    return F.scaled_dot_product_attention(
        query,
        key,
        value,
        attn_mask=mask,
        is_causal=mask is None,
        enable_gqa=query.shape[1] != key.shape[1],
    )


def measure_small() -> None:
    """Print the time of layers with few rows, and of steps of small networks."""
    print("rows x inputs x outputs: forward pass, microseconds")
    with torch.no_grad():
        for rows in (1, 8, 16, 24, 32, 64):
            for inputs, outputs in ((32, 96), (64, 192), (256, 768)):
                x, weight = torch.randn(rows, inputs), torch.randn(outputs, inputs)
                calls: dict[str, Callable[[], object]] = {
                    "torch": lambda x=x, weight=weight: F.linear(x, weight),
                    "native": lambda x=x, weight=weight: quick_linear(x, weight),
                }
                times = "  ".join(f"{k} {t * 1e6:6.1f}" for k, t in seconds(calls).items())
                print(f"{f'{rows} x {inputs} x {outputs}':<14} {times}", flush=True)
    for layers, width, heads, rows, tokens in SMALL_NETWORKS:
        model = GPT(GPTConfig(256, tokens, layers, width, heads))
        matrices = [p for block in model.blocks for p in block.parameters() if p.ndim == 2]
        splits = matrix_splits(model)
        parts = [splits.get(id(p), (len(p),)) for p in matrices]
        muon = Muon(matrices, lr=0.01, momentum=0.9, weight_decay=0.0, splits=parts)
        inputs, targets = torch.randint(256, (2, rows, tokens))
        calls = {
            "step": lambda model=model, x=inputs, y=targets: model(x, y).backward(),
            "one token": torch.inference_mode()(lambda model=model, x=inputs: model(x[:1, :1])),
            "Muon": muon.step,
        }
        times = "  ".join(f"{k} {t * 1e3:6.2f} ms" for k, t in seconds(calls).items())
        print(f"{layers} x {width}, {heads} heads, {rows} x {tokens}: {times}", flush=True)


def measure_memory() -> None:
    """Print what this process keeps after the products of five layers, by each kind."""
    kinds: dict[str, Callable[[Tensor, Tensor], object]] = {
        "native": lambda a, b: quick_multiply(a, b, torch.empty(a.shape[0], b.shape[1])),
        "torch": lambda a, b: a @ b,
        "oneDNN": by_onednn,
    }
    for name, product in kinds.items():
        before = resident_bytes()
        for rows, inputs, outputs in LAYERS[:5]:
            x, weight = torch.randn(rows, inputs), torch.randn(outputs, inputs)
            gradient = torch.randn(rows, outputs)
            for a, b in ((x, weight.t()), (gradient, weight), (gradient.t(), x)):
                product(a, b)
        middle = resident_bytes()
        weight = torch.randn(336, 112)
        for rows in range(100, 200):
            product(torch.randn(rows, 112), weight.t())
        after = resident_bytes()
        print(
            f"{name:<7} 15 products {(middle - before) / 2**20:.1f} MiB, "
            f"then 100 numbers of rows {(after - middle) / 2**20:.1f} MiB"
        )


def main() -> None:
    """Measure one of the four."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("products", "attention", "small", "memory"))
    what = parser.parse_args().what
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads")
    {
        "products": measure_products,
        "attention": measure_attention,
        "small": measure_small,
        "memory": measure_memory,
    }[what]()


if __name__ == "__main__":
    main()
