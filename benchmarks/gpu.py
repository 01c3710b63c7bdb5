"""Training on one big GPU: tokens per second, utilization, memory; compared with a plain loop.

Ours runs the whole Trainer (loader, guards, counters). The plain loop is the usual starting point:
nanoGPT's model and loop rewritten, full logits, fused AdamW, one compiled graph. Rows are appended
to a JSON-lines file as they are measured, and printed as one table at the end.

    python benchmarks/gpu.py headline --data train.bin --out gpu.jsonl
    python benchmarks/gpu.py memory --data train.bin --out gpu.jsonl
    python benchmarks/gpu.py table --out gpu.jsonl

gpu_loss.py (loss in equal time), gpu_limits.py and gpu_robust.py add rows to the same file.
"""

from __future__ import annotations

import argparse
import functools
import gc
import itertools
import json
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from lowtide.loader.windows import TokenDataset
from lowtide.model.config import GPTConfig
from lowtide.model.float8 import loss_and_float8_error
from lowtide.model.gpt import GPT
from lowtide.model.kernels import fused_loss_and_error
from lowtide.model.sizing import count_parameters, flops_per_token
from lowtide.tokenizer import Tokenizer
from lowtide.training.distributed import open_process_group
from lowtide.training.firstembedding import first_embedding
from lowtide.training.footprint import planned_bytes
from lowtide.training.settings import TrainSettings
from lowtide.training.steps import Steps
from lowtide.training.trainer import Trainer
from plain_gpt import PlainGPT

PEAK_FLOPS = 989e12
TOKENS_PER_STEP = 131072
CONTEXT = 1024
SMALL = {"vocab_size": 50304, "context_length": CONTEXT, "num_layers": 12, "width": 768}
SHAPES = {
    "gpt2": GPTConfig(**SMALL, num_heads=12, layout="gpt2", norm_eps=1e-5),
    "gpt2, 6 heads": GPTConfig(**SMALL, num_heads=6, layout="gpt2", norm_eps=1e-5),
    "qwen3": GPTConfig(**SMALL, num_heads=12),
    "qwen3, 6 heads": GPTConfig(**SMALL, num_heads=6),
    "tide, 6 heads": GPTConfig(**SMALL, num_heads=6, layout="tide"),
    "350M": GPTConfig(50304, CONTEXT, 24, 1024, 8),
    "750M": GPTConfig(50304, CONTEXT, 24, 1536, 12),
}
PLAIN = "plain loop"
BASE = {
    "use_mixed_precision": True,
    "compile": True,
    "batch_size": 64,
    "gradient_accumulation_steps": 2,
    "optimizer": "adamw",
    "learning_rate": 1e-3,
}
WHOLE = {"attention": "cudnn", "compile_whole": True}
FLOAT8 = {**WHOLE, "float8_head": True}
ALL8 = {"float8_head": True, "float8_blocks": True}
BLOCKS = {**WHOLE, **ALL8}
SPEED_CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "gpt2, adamw": ("gpt2", WHOLE),
    "gpt2, adamw, float8 head": ("gpt2", FLOAT8),
    "gpt2 6 heads, adamw": ("gpt2, 6 heads", WHOLE),
    "gpt2 6 heads, adamw, float8 head": ("gpt2, 6 heads", FLOAT8),
    "qwen3 6 heads, adamw": ("qwen3, 6 heads", WHOLE),
    "qwen3 6 heads, adamw, float8 head": ("qwen3, 6 heads", FLOAT8),
    "qwen3 6 heads, muon, float8 head": ("qwen3, 6 heads", {**FLOAT8, "optimizer": "muon"}),
    "gpt2, adamw, float8 head and blocks": ("gpt2", BLOCKS),
    "gpt2 6 heads, adamw, float8 head and blocks": ("gpt2, 6 heads", BLOCKS),
    "qwen3 6 heads, adamw, float8 head and blocks": ("qwen3, 6 heads", BLOCKS),
    "qwen3 6 heads, muon, float8 head and blocks": (
        "qwen3, 6 heads",
        {**BLOCKS, "optimizer": "muon"},
    ),
}
ROWS = {"batch_size": 16, "attention": "cudnn"}
AGAIN = {**ROWS, "activation_checkpointing": True}
LARGE = {"attention": "cudnn", "optimizer": "muon", "float8_head": True}
MEMORY_CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "124M, adamw": ("qwen3, 6 heads", ROWS),
    "124M, muon": ("qwen3, 6 heads", {**ROWS, "optimizer": "muon"}),
    "124M, 8-bit adamw": ("qwen3, 6 heads", {**ROWS, "use_8bit_optimizer": True}),
    "124M, float8 head": ("qwen3, 6 heads", {**ROWS, "float8_head": True}),
    "124M, loss chunks of 1024": ("qwen3, 6 heads", {**ROWS, "loss_chunk_tokens": 1024}),
    "124M, checkpointing": ("qwen3, 6 heads", AGAIN),
    "124M, checkpointing, one graph": ("qwen3, 6 heads", {**AGAIN, "compile_whole": True}),
    "124M, checkpointing, 64 rows": ("qwen3, 6 heads", {**AGAIN, "batch_size": 64}),
    "350M, muon, float8 head": ("350M", {**LARGE, "batch_size": 32}),
    "750M, muon, float8 head": ("750M", {**LARGE, "batch_size": 16}),
    "750M, the same, checkpointing": ("750M", {**LARGE, **AGAIN}),
    "350M, muon, float8 head and blocks": ("350M", {**LARGE, **ALL8, "batch_size": 32}),
    "750M, muon, float8 head and blocks": ("750M", {**LARGE, **ALL8, "batch_size": 16}),
}


class PlainLoop:
    """Random crops from a mapped file, forward, backward, clip, fused AdamW."""

    def __init__(self, config: GPTConfig, path: Path, *, micro: int) -> None:
        torch.manual_seed(0)
        self.model = PlainGPT(config, bias=False).cuda()
        self.compiled = torch.compile(self.model)
        self.optimizer = torch.optim.AdamW(
            self.model.parameters(), lr=6e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=True
        )
        self.data = np.memmap(path, dtype=np.uint16, mode="r")
        self.micro, self.accumulation = micro, TOKENS_PER_STEP // CONTEXT // micro

    def _batch(self) -> tuple[torch.Tensor, torch.Tensor]:
        starts = torch.randint(len(self.data) - CONTEXT - 1, (self.micro,)).tolist()
        rows = [self.data[s : s + CONTEXT + 1].astype(np.int64) for s in starts]
        both = torch.from_numpy(np.stack(rows)).pin_memory().cuda(non_blocking=True)
        return both[:, :-1].contiguous(), both[:, 1:].contiguous()

    def step(self) -> None:
        for _ in range(self.accumulation):
            ids, targets = self._batch()
            with torch.autocast("cuda", torch.bfloat16):
                loss = self.compiled(ids, targets) / self.accumulation
            loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)


def make_steps(
    config: GPTConfig, path: Path, *, notify: Any = None, **options: Any
) -> tuple[Steps, TrainSettings]:
    """Return the state that `fit` would prepare before the first step, and its settings."""
    torch.manual_seed(options.get("seed", 0))
    model = GPT(config)
    # The initial weights are set here: a Trainer takes models unchanged.
    if options.pop("zero_init", False):
        model.zero_outputs()
    data = TokenDataset(path, split="all", seq_len=CONTEXT, dtype="uint16")
    kind = options.pop("first_embedding", "random")
    if kind != "random":
        seed = options.get("seed", 0)
        rows = first_embedding(data, config, seed=seed, frequency=kind == "frequency")
        with torch.no_grad():
            model.embedding.weight.copy_(torch.from_numpy(rows))
    folder = Path(tempfile.mkdtemp())
    trainer = Trainer(
        model,
        data=data,
        max_iters=10**6,
        device="cuda",
        checkpoints_dir=folder,
        notify=notify,
        tokenizer=Tokenizer.load("gpt2") if options.get("spelling_rate") else None,
        **options,
    )
    with open_process_group("cuda") as group:
        return trainer.prepare(group), trainer.settings


def finite_loss(ready: Steps) -> float:
    """Return the mean loss of the steps so far; a GPU is faster on numbers that are not finite."""
    skipped = int(ready.counters.bad)
    if skipped:
        raise RuntimeError(f"{skipped} steps had a loss or gradient that is not finite")
    return float(ready.counters.loss / ready.counters.steps)


class WaitedFeed:
    """Wraps a run's feed, and counts the seconds that the loop waits for batches."""

    def __init__(self, ready: Steps) -> None:
        self._feed, self.seconds = ready.feed, 0.0
        ready.feed = self  # type: ignore[assignment]

    def __next__(self) -> Any:
        start = time.perf_counter()
        batch = next(self._feed)
        self.seconds += time.perf_counter() - start
        return batch

    def close(self) -> None:
        """Stop preparing batches."""
        self._feed.close()


def time_steps(step: Any, *, warm: int, steps: int) -> dict[str, float]:
    """Return seconds of the first step (compilation), of a later one (median), and the peak."""
    torch.cuda.reset_peak_memory_stats()
    first = _seconds(step)
    for _ in range(warm):
        step()
    times = _step_times(step, steps)
    return {
        "first_step_seconds": first,
        "step_seconds": statistics.median(times),
        "mean_step_seconds": statistics.mean(times),
        "peak_bytes": torch.cuda.max_memory_allocated(),
    }


def _seconds(step: Any) -> float:
    torch.cuda.synchronize()
    start = time.perf_counter()
    step()
    torch.cuda.synchronize()
    return time.perf_counter() - start


def _step_times(step: Any, steps: int) -> list[float]:
    """Return the seconds of each of some steps; the host runs ahead, as it does in training."""
    marks = [torch.cuda.Event(enable_timing=True) for _ in range(steps + 1)]
    marks[0].record()
    for mark in marks[1:]:
        step()
        mark.record()
    torch.cuda.synchronize()
    return [a.elapsed_time(b) / 1000 for a, b in itertools.pairwise(marks)]


def measure_plain(path: Path, *, micro: int, steps: int) -> dict[str, Any]:
    """Measure the plain loop."""
    config = SHAPES["gpt2"]
    loop = PlainLoop(config, path, micro=micro)
    times = time_steps(loop.step, warm=3, steps=steps)
    return {"name": f"plain loop, micro-batch {micro}", **_rates(config, TOKENS_PER_STEP, times)}


def measure_ours(
    name: str, shape: str, options: dict[str, Any], path: Path, *, steps: int, profile: Path | None
) -> dict[str, Any]:
    """Measure the Trainer's own step; with `profile`, write the table of kernels too."""
    config = SHAPES[shape]
    options = {**BASE, **options}
    if "gradient_accumulation_steps" not in options or options["batch_size"] < 64:
        options["gradient_accumulation_steps"] = max(
            1, TOKENS_PER_STEP // CONTEXT // options["batch_size"]
        )
    ready, settings = make_steps(config, path, **options)
    feed = WaitedFeed(ready)
    times = time_steps(ready.train_step, warm=3, steps=steps)
    row = {"name": name, **_rates(config, settings.tokens_per_step, times)}
    row["waiting_share"] = feed.seconds / (
        times["first_step_seconds"] + (steps + 3) * row["step_seconds"]
    )
    row["planned_bytes"] = planned_bytes(config, settings, on_gpu=True).device_bytes
    row["loss"] = finite_loss(ready)
    if profile is not None:
        _profile(ready.train_step, profile)
    feed.close()
    return row


def measure_alternately(options: argparse.Namespace) -> None:
    """Measure the plain loop and all speed cases in turn, a few steps each, round after round."""
    plain = PlainLoop(SHAPES["gpt2"], options.data, micro=64)
    steps: dict[str, Any] = {PLAIN: plain.step}
    runs: list[Steps] = []
    for name, (shape, changes) in SPEED_CASES.items():
        if options.only and not any(word in name for word in options.only.split("|")):
            continue
        ready, _ = make_steps(SHAPES[shape], options.data, **{**BASE, **changes})
        runs.append(ready)
        steps[name] = ready.train_step
    first: dict[str, float] = {}
    for name, step in steps.items():
        first[name] = _seconds(step)
        print(f"{name}: first step {first[name]:.1f} s", flush=True)
    times: dict[str, list[float]] = {name: [] for name in steps}
    for _ in range(options.rounds):
        for name, step in steps.items():
            step()
            times[name] += _step_times(step, options.steps)
    for ready in runs:
        finite_loss(ready)
        ready.feed.close()
    base = statistics.median(times[PLAIN])
    for name, values in times.items():
        shape = SPEED_CASES[name][0] if name in SPEED_CASES else "gpt2"
        median = statistics.median(values)
        found = {"first_step_seconds": first[name], "step_seconds": median}
        found |= {"lowest_step_seconds": min(values), "highest_step_seconds": max(values)}
        row = {"name": name, **_rates(SHAPES[shape], TOKENS_PER_STEP, found)}
        row |= {"times_plain": base / median, "rounds": options.rounds}
        append_row(options.out, "headline", row)


def measure_loss_kernel() -> dict[str, Any]:
    """Check the fused loss against float64, and time it with several block sizes."""
    wanted = torch.randint(50257, (16384, 1), device="cuda")
    logits = torch.randn(16384, 50304, device="cuda").mul_(3).bfloat16()
    exact = logits[:512].double()
    expected = exact.softmax(-1)
    expected.scatter_add_(1, wanted[:512], -torch.ones_like(wanted[:512], dtype=torch.float64))
    losses = torch.nn.functional.cross_entropy(exact, wanted[:512, 0], reduction="sum")
    loss, error = fused_loss_and_error(logits[:512].clone(), wanted[:512])
    off = float((error.double() - expected).norm() / expected.norm())
    assert off < 5e-3, off
    assert abs(float(loss / losses) - 1) < 1e-4, (float(loss), float(losses))
    row: dict[str, Any] = {"name": "fused loss, 16384 rows", "relative_error": off}
    for block, warps in ((4096, 8), (8192, 8), (8192, 16), (16384, 16), (16384, 32), (32768, 32)):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        copies = [logits.clone() for _ in range(6)]
        fused_loss_and_error(copies[0], wanted, block=block, num_warps=warps)
        start.record()
        for copy in copies[1:]:
            fused_loss_and_error(copy, wanted, block=block, num_warps=warps)
        end.record()
        torch.cuda.synchronize()
        row[f"milliseconds_{block}_{warps}"] = round(start.elapsed_time(end) / 5, 4)
    row["result"] = f"error {off:.1e}; ms: { {k[13:]: v for k, v in row.items() if 'milli' in k} }"
    return row


def measure_float8_loss() -> dict[str, Any]:
    """Time the loss and its 8-bit gradient of 16,384 rows, by targets and cap of the logits."""
    logits = torch.randn(16384, 50304, device="cuda").mul_(2).bfloat16()
    row: dict[str, Any] = {"name": "8-bit loss, 16384 rows"}
    for targets, cap in ((1, 0.0), (3, 0.0), (3, 15.0)):
        wanted = torch.randint(50257, (16384, targets), device="cuda")
        given = {"cap": cap, "ahead": (0.5, 0.25)[: targets - 1]}
        call = functools.partial(loss_and_float8_error, logits, wanted, **given)
        call()
        found = _step_times(call, 10)
        row[f"milliseconds_{targets}_{cap:g}"] = round(statistics.median(found) * 1000, 3)
    row["result"] = f"ms: { {k[13:]: v for k, v in row.items() if 'milli' in k} }"
    return row


def _profile(step: Any, path: Path) -> None:
    activities = [torch.profiler.ProfilerActivity.CUDA, torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=activities) as profiler:
        for _ in range(2):
            step()
        torch.cuda.synchronize()
    events = [e for e in profiler.key_averages() if e.self_device_time_total > 0]
    kernels = [e for e in events if e.device_type == torch.autograd.DeviceType.CUDA]
    kernels.sort(key=lambda e: -e.self_device_time_total)
    total = sum(e.self_device_time_total for e in kernels)
    lines = [f"{total / 2000:.1f} ms of kernels a step"]
    for event in kernels[:45]:
        share = event.self_device_time_total / total
        lines.append(
            f"{event.self_device_time_total / 2000:8.2f} ms {share:6.1%} x{event.count // 2:<4} "
            f"{event.key[:110]}"
        )
    path.write_text("\n".join(lines) + "\n")
    print("\n".join(lines[:32]), flush=True)


def _rates(config: GPTConfig, tokens: int, times: dict[str, float]) -> dict[str, Any]:
    speed = tokens / times["step_seconds"]
    share = speed * flops_per_token(config, CONTEXT) / PEAK_FLOPS
    return {
        "parameters": count_parameters(config),
        "tokens_per_second": speed,
        "share_of_peak": share,
        **times,
    }


def append_row(path: Path, kind: str, row: dict[str, Any]) -> None:
    """Store a row, with the hardware and versions it was measured on."""
    row = {
        "kind": kind,
        "date": time.strftime("%Y-%m-%d"),
        "device": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        **row,
    }
    with path.open("a") as file:
        file.write(json.dumps(row) + "\n")
    print(json.dumps(row), flush=True)


def free() -> None:
    """Clear compiled code and free memory between two cases."""
    torch._dynamo.reset()
    gc.collect()
    torch.cuda.empty_cache()


def run_cases(
    cases: dict[str, tuple[str, dict[str, Any]]], options: argparse.Namespace, kind: str
) -> None:
    """Measure case after case; for one that fails, the row has the error."""
    for name, (shape, changes) in cases.items():
        if options.only and not any(word in name for word in options.only.split("|")):
            continue
        profile = None
        if options.profile and any(word in name for word in options.profile.split("|")):
            profile = options.out.with_name(
                f"profile_{len(name)}_{name.split(',')[0]}.txt".replace(" ", "_")
            )
        try:
            row = measure_ours(
                name, shape, changes, options.data, steps=options.steps, profile=profile
            )
        except Exception as error:
            row = {"name": name, "error": f"{type(error).__name__}: {error}"[:500]}
        append_row(options.out, kind, row)
        free()


def print_table(path: Path) -> None:
    """Print all measurements by kind, one line per row."""
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    for kind in dict.fromkeys(row["kind"] for row in rows):
        head = f"{'tokens/s':>9} {'of 989 TF':>9} {'step ms':>8} {'peak GiB':>8} {'x plain':>7}"
        print(f"\n{kind:<42} {head}")
        for row in rows:
            if row["kind"] == kind:
                print(f"{row['name']:<42} {_describe(row)}")


def _describe(row: dict[str, Any]) -> str:
    if "error" in row:
        return str(row["error"])
    if "val_loss" in row:
        return (
            f"{row['tokens_per_second']:>9,.0f} validation loss {row['val_loss']:.4f} after "
            f"{row['seconds']:.0f} s, {row['steps']} steps"
        )
    if "step_seconds" not in row:
        return str(row.get("result", ""))
    peak = f"{row['peak_bytes'] / 2**30:.1f}" if "peak_bytes" in row else ""
    times = f"{row['times_plain']:.3f}" if "times_plain" in row else ""
    return (
        f"{row['tokens_per_second']:>9,.0f} {row['share_of_peak']:>9.1%} "
        f"{row['step_seconds'] * 1000:>8.1f} {peak:>8} {times:>7}"
    )


def main() -> None:
    """Run one part, or print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("part", choices=["plain", "headline", "kernel", "speed", "memory", "table"])
    parser.add_argument("--data", type=Path, default=Path("carry/data/train.bin"))
    parser.add_argument("--out", type=Path, default=Path("gpu.jsonl"))
    parser.add_argument("--steps", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", default="")
    parser.add_argument("--profile", default="")
    options = parser.parse_args()
    torch.set_float32_matmul_precision("high")
    if options.part == "plain":
        append_row(options.out, "plain", measure_plain(options.data, micro=64, steps=options.steps))
    elif options.part == "headline":
        measure_alternately(options)
    elif options.part == "kernel":
        append_row(options.out, "kernel", measure_loss_kernel())
        append_row(options.out, "kernel", measure_float8_loss())
    elif options.part == "speed":
        run_cases(SPEED_CASES, options, "speed")
    elif options.part == "memory":
        run_cases(MEMORY_CASES, options, "memory")
    print_table(options.out)


if __name__ == "__main__":
    main()
