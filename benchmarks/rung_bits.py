"""Compares the bits that rungs of --offload compute on this device, also with themselves.

Every case trains the same network on the same rows. Of each step the loss, the norm and a sum over
the bits of every parameter's gradient are kept; then each case is compared with the first one: the
first step at which a parameter differs, and which ones do, in the order of computing. With `=`
after a rung, torch sums in a fixed order: in strict deterministic mode, without which fused
attention adds the gradients of queries in any order, and the compiler chooses the fastest way to
sum.

    python benchmarks/rung_bits.py --params 3e8 --no-compile
    python benchmarks/rung_bits.py --params 2.5e9 --layers 8 --cases packed packed layers layers=
    python benchmarks/rung_bits.py --params 8e6 --device cpu --cases packed disk --rows 1
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")

import torch
from torch import Tensor

from gpu_offload import CONTEXT, VOCAB, first_weights, run_settings
from lowtide.ladder import network
from lowtide.ladder.engine import LadderEngine
from lowtide.ladder.exactsums import ExactSums
from lowtide.ladder.network import PackedGPT
from lowtide.ladder.units import Unit
from lowtide.model.sizing import count_parameters, shape_for_parameters
from lowtide.training.distributed import ProcessGroup
from lowtide.training.state import RunState

CASES = ["packed", "packed", "layers", "layers", "packed=", "layers="]


def batch(rows: int, step: int, device: str) -> tuple[Tensor, Tensor]:
    """Rows of ids, small ones more often, the same for every case."""
    generator = torch.Generator().manual_seed(step)
    ids = (VOCAB * torch.rand(rows, CONTEXT + 1, generator=generator) ** 4).long().to(device)
    return ids[:, :-1].contiguous(), ids[:, 1:].contiguous()


def watch_gradients(engine: LadderEngine, found: dict[str, Tensor]) -> None:
    """Let the engine store a sum over the bits of every parameter's gradient, as it is computed."""
    executor: Any = engine._executor
    keep = executor._keep_gradient

    def keep_and_note(unit: Unit, flat: Tensor, squares: list[Tensor]) -> None:
        for matrix in unit.matrices:
            own = flat[matrix.where]
            bits = own.view(torch.int32 if own.dtype == torch.float32 else torch.int16)
            found[matrix.name] = bits.sum(dtype=torch.int64)
        keep(unit, flat, squares)

    executor._keep_gradient = keep_and_note


def run(case: str, options: argparse.Namespace, scratch: Path) -> dict[str, Any]:
    """Train some steps of one case; the results of each step, and their time."""
    torch._dynamo.reset()
    config = shape_for_parameters(options.params, vocab_size=VOCAB, context_length=CONTEXT)
    config = config.replace(num_layers=options.layers or config.num_layers)
    rung, rows = case.rstrip("="), options.rows * options.parts
    settings = run_settings(options, rung, scratch)
    state = RunState(micro_batch=options.rows)
    device = torch.device(options.device)
    group = ProcessGroup(0, 1, device)
    began = time.perf_counter()
    engine = LadderEngine(PackedGPT(config, seed=1), settings, state, group, rows=rows, note=print)
    result: dict[str, Any] = {"case": case, "params": count_parameters(config), "steps": []}
    result["ready_seconds"] = round(time.perf_counter() - began, 1)
    seconds: list[float] = []
    watched: dict[str, Tensor] = {}
    watch_gradients(engine, watched)
    if not case.endswith("="):
        engine._exact = ExactSums(torch.device("cpu"), print)  # off, as on a CPU
    for step in range(options.steps):
        inputs, targets = batch(rows, step, options.device)
        engine.wait()
        start = time.perf_counter()
        loss = engine.compute(inputs, targets)
        norm, _ = engine.update(loss, min(1.0, (step + 1) / 3))
        engine.wait()
        seconds.append(time.perf_counter() - start)
        result["steps"].append(
            {
                "loss": loss.item(),
                "norm": norm.item(),
                "gradients": {name: int(value) for name, value in watched.items()},
            }
        )
        state.step += 1
    result["step_seconds"] = round(statistics.median(seconds[1:]), 4)
    if device.type == "cuda":
        result["peak_gib"] = round(torch.cuda.max_memory_allocated() / 2**30, 2)
        torch.cuda.reset_peak_memory_stats()
    engine._places.close()
    return result


def compare(first: dict[str, Any], other: dict[str, Any]) -> str:
    """A description of where two cases differ first, and by how much."""
    for number, (a, b) in enumerate(zip(first["steps"], other["steps"], strict=True), 1):
        names = [n for n, value in a["gradients"].items() if b["gradients"][n] != value]
        if names or a["loss"] != b["loss"] or a["norm"] != b["norm"]:
            largest = max(
                abs(x["loss"] - y["loss"])
                for x, y in zip(first["steps"], other["steps"], strict=True)
            )
            return (
                f"differ from step {number} on: {len(names)} of {len(a['gradients'])} gradients, "
                f"the first {names[:4]}; loss by {b['loss'] - a['loss']:.3g} there, "
                f"by {largest:.3g} at most"
            )
    return "the same bits"


def main() -> None:
    """Run all cases and compare each with the first, and with the first that is as exact."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--params", type=lambda text: int(float(text)), default=300_000_000)
    parser.add_argument("--layers", type=int, default=0, help="fewer than the shape has")
    parser.add_argument("--cases", nargs="+", default=CASES)
    parser.add_argument("--rows", type=int, default=4)
    parser.add_argument("--parts", type=int, default=2)
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--learning-rate", type=float, default=3e-5)
    parser.add_argument("--optimizer", default="adamw")
    parser.add_argument("--no-compile", dest="compile", action="store_false")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--out", type=Path, default=Path("rung_bits.jsonl"))
    options = parser.parse_args()
    if options.device == "cuda":
        network._first_weights = first_weights
    results: list[dict[str, Any]] = []
    for case in options.cases:
        with tempfile.TemporaryDirectory() as scratch:
            try:
                result = run(case, options, Path(scratch))
            except RuntimeError as error:  # an operation without a deterministic implementation
                print(f"{case}: {str(error)[:400]}", flush=True)
                continue
        results.append(result)
        gc.collect()
        losses = [f"{step['loss']:.6f}" for step in result["steps"]]
        norms = [f"{step['norm']:.6f}" for step in result["steps"]]
        times = {k: v for k, v in result.items() if k not in ("steps", "case")}
        print(f"{case:12s} losses {' '.join(losses)}\n{'':12s} norms  {' '.join(norms)}  {times}")
        with options.out.open("a") as file:
            row = {k: v for k, v in result.items() if k != "steps"}
            row |= {k: [s[k] for s in result["steps"]] for k in ("loss", "norm")}
            file.write(json.dumps(row) + "\n")
    for number, result in enumerate(results[1:], 1):
        for other in results[:number]:
            if other["case"].endswith("=") == result["case"].endswith("="):
                words = compare(other, result)
                print(f"{result['case']} ({number}) beside {other['case']}: {words}", flush=True)
                break


if __name__ == "__main__":
    main()
