"""The time of a JAX training step by kernel, and with other ways to compile it.

Each variant is one way to compile a step's gradients; `base` has a loop over layers, as on CPUs,
and `unrolled, no triton` is the way on GPUs. All are compiled first, then timed one after the other
in one process. Parts (a pass without its loss, the update, ...) show where time is spent, and with
--profile the kernels of one variant are listed, the longest first.

    python benchmarks/jax_profile.py --layers 12 --width 768 --heads 6 --rows 32 --profile base
    python benchmarks/jax_profile.py --vocabulary 8192 --rows 64 --variants base unrolled
    python benchmarks/jax_profile.py --params 1e5 --vocabulary 256 --rows 2 --tokens 64   (a CPU)
"""

from __future__ import annotations

import argparse
import collections
import concurrent.futures
import contextlib
import dataclasses
import functools
import json
import os
import re
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

from lowtide.jaxtraining import devices, loss, network, optimizers
from lowtide.jaxtraining.network import Form, can_fuse, hidden_states, loss_of
from lowtide.jaxtraining.optimizers import Rules
from lowtide.jaxtraining.trees import LAYERS, Tree, stacked_shapes
from lowtide.model.config import GPTConfig
from lowtide.model.sizing import count_parameters, loss_chunk_tokens
from lowtide.training.choosing import model_config
from lowtide.training.settings import train_settings

Array = Any


@dataclasses.dataclass(frozen=True)
class Variant:
    """One way to compile a pass; the fields are differences from the way on CPUs."""

    form: dict[str, Any] = dataclasses.field(default_factory=dict)
    chunk: float = 1.0
    """Multiple of the tokens whose logits exist at once."""
    keeps: str = ""
    """all: nothing is recomputed; barrier: recomputed values are never merged with others."""
    cast_first: bool = False
    """Weights of all layers are rounded before the first."""
    picked: bool = False
    """The loss is computed from the logits, not from their logarithms."""
    precision: str = "highest"
    options: dict[str, Any] = dataclasses.field(default_factory=dict)
    """Options of the compiler."""
    part: str = "step"


UNROLLED = {"unrolled": True}
VARIANTS = {
    "base": Variant(),
    "unrolled": Variant(UNROLLED),
    "unrolled, all kept": Variant(UNROLLED, keeps="all"),
    "unrolled, barriers": Variant(UNROLLED, keeps="barrier"),
    "unrolled, loss picked": Variant(UNROLLED, picked=True),
    "unrolled, loss whole": Variant(UNROLLED, chunk=4.0),
    "unrolled, small chunks": Variant(UNROLLED, chunk=0.25),
    "unrolled, no triton": Variant(UNROLLED, options={"xla_gpu_enable_triton_gemm": False}),
    "unrolled, default precision": Variant(UNROLLED, precision="default"),
    "unrolled, no graphs": Variant(UNROLLED, options={"xla_gpu_enable_command_buffer": ""}),
    "base, no graphs": Variant(options={"xla_gpu_enable_command_buffer": ""}),
    "scan, all kept": Variant(keeps="all"),
    "scan, cast first": Variant(cast_first=True),
    "scan, slices fused": Variant(options={"xla_gpu_enable_dynamic_slice_fusion": True}),
    "part: forward": Variant(UNROLLED, part="forward"),
    "part: without loss": Variant(UNROLLED, part="no loss"),
    "part: without attention": Variant(UNROLLED, part="no attention"),
    "part: update": Variant(part="update"),
}


@dataclasses.dataclass
class Case:
    """One network and one batch on the device."""

    config: GPTConfig
    form: Form
    rules: Rules
    params: Tree
    rows: tuple[Array, Array, Array]


def make_case(options: argparse.Namespace) -> Case:
    """Draw weights and ids on the device."""
    shape: dict[str, Any] = {"target_params": options.params}
    if options.layers:
        shape = {"num_layers": options.layers, "width": options.width, "num_heads": options.heads}
    settings = train_settings(backend="jax", seq_len=options.tokens, **shape)
    config = model_config(settings.model, options.vocabulary)
    on_gpu = devices.pick_devices("auto")[0].platform == "gpu"
    form = Form(
        config,
        dtype="bfloat16",
        chunk_tokens=loss_chunk_tokens(config.vocab_size, on_gpu=on_gpu),
        fused=on_gpu and can_fuse(config, options.tokens, "bfloat16"),
    )
    key = jax.random.key(0)
    params: Tree = {}
    for number, (name, sizes) in enumerate(stacked_shapes(config).items()):
        drawn = 0.02 * jax.random.normal(jax.random.fold_in(key, number), sizes)
        params[name] = jnp.ones(sizes) if name.endswith("norm.weight") else drawn
    ids = jax.random.randint(key, (options.rows, options.tokens + 1), 0, config.vocab_size)
    share = 1 / (options.rows * options.tokens)
    weights = jnp.full(options.rows, share, jnp.float32)
    return Case(config, form, Rules(config, "adamw"), params, (ids[:, :-1], ids[:, 1:], weights))


def _picked_losses(states: Array, head: Array, wanted: Array) -> tuple[Array, Array]:
    """As loss._losses, but the target's logit is looked up where logits are."""
    rounded = jnp.einsum("btd,vd->btv", states, head)
    logits = rounded.astype(jnp.float32)
    whole = jax.nn.logsumexp(logits, axis=-1, keepdims=True)
    chosen = jnp.take_along_axis(rounded, wanted[..., None], axis=-1).astype(jnp.float32)
    return (whole - chosen)[..., 0], logits - whole


@contextlib.contextmanager
def compiled_as(variant: Variant) -> Iterator[None]:
    """Apply a variant to everything traced inside."""
    kept, losses, checkpoint = network._is_kept, loss._losses, jax.checkpoint
    attend = network._attend_fused, network._attend
    if variant.keeps == "all":
        network._is_kept = jax.checkpoint_policies.everything_saveable
    if variant.keeps == "barrier":
        jax.checkpoint = lambda f, prevent_cse, policy: checkpoint(f, policy=policy)
    if variant.picked:
        loss._losses = _picked_losses
    if variant.part == "no attention":
        network._attend_fused = lambda query, keys, values: query + keys[:, :, :, None]
        network._attend = lambda query, keys, values, *rest: query + keys[:, :, :, None]
    try:
        with jax.default_matmul_precision(variant.precision):
            yield
    finally:
        network._is_kept, loss._losses, jax.checkpoint = kept, losses, checkpoint
        network._attend_fused, network._attend = attend


def function_of(variant: Variant, case: Case) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """The functions that are compiled and timed, with their arguments."""
    size = int(case.form.chunk_tokens * variant.chunk)
    form = dataclasses.replace(case.form, chunk_tokens=size, **variant.form)

    def total(params: Tree, ids: Array, targets: Array, weights: Array) -> Array:
        if variant.cast_first:
            params = {
                name: value.astype(form.dtype)
                if name.startswith(LAYERS) and not name.endswith("norm.weight")
                else value
                for name, value in params.items()
            }
        if variant.part == "no loss":
            return hidden_states(params, ids, form).astype(jnp.float32).sum()
        return loss_of(params, ids, targets, weights, None, form)

    if variant.part == "forward":
        return jax.jit(total), (case.params, *case.rows)
    if variant.part != "update":
        return jax.jit(jax.value_and_grad(total)), (case.params, *case.rows)
    moments = jax.tree.map(
        lambda one: jnp.zeros(*one) if isinstance(one, tuple) else jnp.array(one),
        optimizers.new_moments(case.rules),
        is_leaf=lambda one: isinstance(one, tuple),
    )
    step = functools.partial(optimizers.update, rules=case.rules)
    one = jnp.float32(1e-9)
    return jax.jit(step), (case.params, moments, case.params, one, one, one)


def lower(variant: Variant, case: Case) -> tuple[Any, tuple[Any, ...]]:
    """Trace a variant for the shapes of a case."""
    with compiled_as(variant):
        function, given = function_of(variant, case)
        return function.lower(*given), given


def time_of(compiled: Any, given: tuple[Any, ...], steps: int) -> float:
    """Seconds per call, of many queued calls."""
    jax.block_until_ready([compiled(*given) for _ in range(2)])
    start = time.perf_counter()
    found = None
    for _ in range(steps):
        found = compiled(*given)  # the result before is freed as soon as this call is queued
    jax.block_until_ready(found)
    return (time.perf_counter() - start) / steps


KINDS = (
    ("attention", ("sdpa", "flash", "fmha", "cudnn", "attention")),
    ("products", ("gemm", "nvjet", "cutlass", "xmma", "cublas", "splitk", "dot")),
    ("slices", ("dynamic_update", "dynamic-update", "dynamic_slice", "dynamic-slice")),
    ("copies", ("memcpy", "memset", "copy", "transpose", "concatenate")),
    ("scatter", ("scatter", "gather")),
    ("sums", ("reduce",)),
)


def kind_of(name: str) -> str:
    """The operation of a kernel, by its name."""
    lowered = name.lower()
    return next((kind for kind, words in KINDS if any(w in lowered for w in words)), "the rest")


def show_profile(compiled: Any, given: tuple[Any, ...], steps: int, top: int) -> None:
    """Print the kernels of some calls: milliseconds per call, their number, their operation."""
    with tempfile.TemporaryDirectory() as folder:
        with jax.profiler.trace(folder):
            jax.block_until_ready([compiled(*given) for _ in range(steps)])
        path = next(Path(folder).rglob("*.xplane.pb"))
        data = jax.profiler.ProfileData.from_file(str(path))
    written = instructions(compiled)
    times: dict[str, float] = collections.defaultdict(float)
    counts: dict[str, int] = collections.defaultdict(int)
    kinds: dict[str, float] = collections.defaultdict(float)
    for event in kernel_events(data):
        # Kernels whose names differ by a final number are one if they produce equal arrays.
        shape, origin = written.get(re.sub(r"[.-]", "_", event.name), ("", ""))
        name = f"{event.name.rstrip('0123456789_.')} {shape} {origin}"
        times[name] += event.duration_ns / 1e6 / steps
        counts[name] += 1
        kinds[kind_of(event.name)] += event.duration_ns / 1e6 / steps
    listed = sorted(kinds.items(), key=lambda pair: -pair[1])
    print("kernels by kind, ms of a call:", ", ".join(f"{k} {v:.2f}" for k, v in listed))
    for name in sorted(times, key=lambda one: -times[one])[:top]:
        print(f"{times[name]:9.3f} ms {counts[name] / steps:6.1f} x  {name[:150]}")
    sys.stdout.flush()


def kernel_events(data: Any) -> list[Any]:
    """The events of the device; on a CPU, all of them."""
    planes = [plane for plane in data.planes if plane.name.startswith("/device:GPU")]
    lines = [line for plane in planes or data.planes for line in plane.lines]
    streams = [line for line in lines if line.name.startswith("Stream")]
    return [event for line in streams or lines for event in line.events]


def instructions(compiled: Any) -> dict[str, tuple[str, str]]:
    """The result type of each instruction, and the end of its source, by its kernel's name."""
    found: dict[str, tuple[str, str]] = {}
    pattern = re.compile(r'%([\w.-]+) = (\S+) .*?op_name="([^"]*)"')
    for match in pattern.finditer(compiled.as_text()):
        name = re.sub(r"[.-]", "_", match[1])
        found[name] = match[2].split("{")[0], "/".join(match[3].split("/")[-2:])[-50:]
    return found


def compile_all(
    wanted: list[str], case: Case, seconds: float
) -> Iterator[tuple[str, Any, tuple[Any, ...], float]]:
    """Compile the first alone, since its tuning results serve the others, and those in parallel."""
    ends = time.perf_counter() + seconds
    lowered: dict[str, Any] = {}

    def build(name: str) -> tuple[Any, float]:
        start = time.perf_counter()
        found = lowered[name][0].compile(compiler_options=VARIANTS[name].options or None)
        return found, time.perf_counter() - start

    pool = concurrent.futures.ThreadPoolExecutor(6)
    running: dict[str, concurrent.futures.Future[tuple[Any, float]]] = {}
    for name in wanted:
        try:
            lowered[name] = lower(VARIANTS[name], case)
        except Exception as error:
            print(f"{name}: {type(error).__name__}: {str(error)[:200]}", flush=True)
            continue
        running[name] = pool.submit(build, name)
        if len(running) == 1:
            concurrent.futures.wait(running.values())
    concurrent.futures.wait(running.values(), timeout=max(1.0, ends - time.perf_counter()))
    for name, future in running.items():
        if not future.done():
            print(f"{name}: not compiled in time", flush=True)
        elif error := future.exception():
            print(f"{name}: {type(error).__name__}: {str(error)[:300]}", flush=True)
        else:
            compiled, took = future.result()
            yield name, compiled, lowered[name][1], took


def main() -> None:
    """Compile, time and print the selected variants."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--params", type=float, default=10e6)
    parser.add_argument("--layers", type=int, help="this shape instead of --params")
    parser.add_argument("--width", type=int, default=768)
    parser.add_argument("--heads", type=int, default=6)
    parser.add_argument("--rows", type=int, default=32)
    parser.add_argument("--tokens", type=int, default=1024, help="of a row")
    parser.add_argument("--vocabulary", type=int, default=50304)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=90, help="compile for no longer than this")
    parser.add_argument("--variants", nargs="+", choices=list(VARIANTS), default=list(VARIANTS))
    parser.add_argument("--profile", nargs="*", choices=list(VARIANTS), default=[])
    parser.add_argument("--top", type=int, default=24, help="kernels to name")
    parser.add_argument("--out", type=Path, help="a file for the rows")
    options = parser.parse_args()
    case = make_case(options)
    tokens = options.rows * options.tokens
    about = (
        f"{count_parameters(case.config):,} parameters, {tokens:,} tokens, fused {case.form.fused}"
    )
    print(f"jax {jax.__version__}, {jax.devices()[0].device_kind}, {about}", flush=True)
    began = time.perf_counter()
    rows: list[dict[str, Any]] = []
    for name, compiled, given, took in compile_all(options.variants, case, options.seconds):
        if name in options.profile:
            print(f"--- {name}")
            try:
                show_profile(compiled, given, 3, options.top)
            except Exception as error:  # no profiler is available
                print(f"no profile: {type(error).__name__}: {str(error)[:300]}", flush=True)
        seconds = time_of(compiled, given, options.steps)
        held = compiled.memory_analysis().temp_size_in_bytes
        rows.append(
            {
                "variant": name,
                "milliseconds": round(1000 * seconds, 3),
                "tokens_per_second": round(tokens / seconds),
                "temporary_gib": round(held / 2**30, 2),
                "compile_seconds": round(took, 1),
            }
        )
    print(f"{'':30} {'ms':>9} {'tokens/s':>10} {'GiB':>6} {'compiled in':>11}")
    for row in rows:
        print(
            f"{row['variant']:30} {row['milliseconds']:9.2f} {row['tokens_per_second']:10,} "
            f"{row['temporary_gib']:6.2f} {row['compile_seconds']:9.1f} s"
        )
    print(f"{time.perf_counter() - began:.0f} s")
    if options.out:
        with options.out.open("a") as file:
            file.writelines(json.dumps({**vars(options), "out": "", **row}) + "\n" for row in rows)
    sys.stdout.flush()
    os._exit(0)  # do not wait for a compiler that is still running


if __name__ == "__main__":
    main()
