"""Loss in equal time of two peers, on the tokens and windows of gpu_loss.py.

nanoGPT and modded-nanogpt, each from a folder with a plain copy of its files, train for a number
of seconds of steps. Compilation and evaluation do not count; some steps are timed first, and the
schedule ends with the time. The loss is the mean over the windows of 1,024 tokens that lowtide is
validated on, each without context. None of the peers' code is included here.

    python benchmarks/gpu_peers.py nanogpt carry/nanogpt "nanoGPT" --seconds 178
    python benchmarks/gpu_peers.py modded carry/modded-nanogpt "modded-nanogpt" --seconds 178
    python benchmarks/gpu_peers.py modded carry/modded-nanogpt "half the batch" \\
        --set accumulation=4 muon_warmup_steps=200

nanoGPT: its model.py and its choice of weights for AdamW to decay; its train.py is a script, so the
loop is ours, with its random crops, cosine schedule with warm-up, and clipping. Batch size and
warm-up are what its user would choose for minutes rather than days; the rest are its defaults.

modded-nanogpt: its train_gpt.py up to the warm-up (gpu_modded.py), with a loop of ours. Its recipe
and batch sizes stay. The schedule has four stages of other batch sizes and attention windows: a few
steps of each are timed, which compiles them, then everything is put back to the start and the
number of iterations is what fits. It is evaluated with its own final windows (768 and 2,560), once
with each window as one document (`val_loss`), as lowtide is, and once cut at separators
(`val_loss_by_document`), as it was trained. Its loader reads a document from the first token and
drops what is behind the first 896 or 2,048 of them: most of a text of long documents. With
`cut_documents=2048` the rest is a document too; 0 leaves the text alone.
"""

from __future__ import annotations

import argparse
import copy
import functools
import importlib.util
import math
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from gpu import CONTEXT, append_row
from gpu_loss import parse_changes
from gpu_modded import (
    check_attention,
    cut_documents,
    install_stand_ins,
    load_peer,
    make_room,
    window_documents,
    write_shards,
)
from lowtide.loader.windows import TokenDataset
from lowtide.tokenizer import Tokenizer

NANOGPT: dict[str, Any] = {
    "batch_size": 64,
    "gradient_accumulation_steps": 1,
    "n_layer": 12,
    "n_head": 12,
    "n_embd": 768,
    "bias": False,
    "dropout": 0.0,
    "learning_rate": 6e-4,
    "min_lr": 6e-5,
    "warmup_iters": 100,
    "weight_decay": 0.1,
    "beta1": 0.9,
    "beta2": 0.95,
    "grad_clip": 1.0,
    "seed": 1337,
}
MODDED: dict[str, Any] = {
    "accumulation": 8,  # micro-batches of a step; its batch sizes are those of eight
    "cut_documents": 2048,
    "muon_warmup_steps": None,  # its own, 300
    "lr_scale": 1.0,
    "decay_scale": 1.0,
    "seed": 0,
}
NANOGPT_VOCABULARY = 50304
# Steps before those that are timed, and how many are; of modded-nanogpt in each stage, where Adam's
# weights move in every second step and the embedding's for the first time in the fourth.
NANOGPT_TIMED, MODDED_TIMED = (3, 20), (4, 4)
STARTED = time.perf_counter()

Tokens = npt.NDArray[Any]


def say(text: str) -> None:
    """Print a line with the seconds since the start."""
    print(f"[{time.perf_counter() - STARTED:.0f} s] {text}", flush=True)


class NanoRun:
    """nanoGPT's model and AdamW, with its crops, its schedule and its clipping."""

    def __init__(self, checkout: Path, data: Path, settings: dict[str, Any], device: str) -> None:
        spec = importlib.util.spec_from_file_location("nanogpt_model", checkout / "model.py")
        assert spec is not None and spec.loader is not None
        peer = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(peer)
        torch.manual_seed(settings["seed"])
        shape = {name: settings[name] for name in ("n_layer", "n_head", "n_embd", "bias")}
        config = peer.GPTConfig(
            block_size=CONTEXT,
            vocab_size=NANOGPT_VOCABULARY,
            dropout=settings["dropout"],
            **shape,
        )
        self.settings, self.device = settings, device
        self.model = peer.GPT(config).to(device)
        self.optimizer = self.model.configure_optimizers(
            settings["weight_decay"],
            settings["learning_rate"],
            (settings["beta1"], settings["beta2"]),
            device,
        )
        self.compiled: Any = torch.compile(self.model)
        self.tokens = np.fromfile(data, dtype=np.uint16)
        self.taken, self.steps = 0, 10**9
        self.batch = self._crops()

    @property
    def tokens_per_step(self) -> int:
        """Tokens per update."""
        rows = self.settings["batch_size"] * self.settings["gradient_accumulation_steps"]
        return rows * CONTEXT

    def _crops(self) -> torch.Tensor:
        starts = torch.randint(len(self.tokens) - CONTEXT, (self.settings["batch_size"],))
        rows = [self.tokens[s : s + CONTEXT + 1].astype(np.int64) for s in starts.tolist()]
        both = torch.from_numpy(np.stack(rows))
        if self.device == "cuda":
            both = both.pin_memory().cuda(non_blocking=True)
        return both

    def loss(self, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """Mean cross-entropy, in mixed precision."""
        with torch.autocast(self.device, torch.bfloat16):
            return self.compiled(inputs, targets)[1]

    def step(self) -> None:
        """Run one update; the next crops are read while the device works."""
        settings = self.settings
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate(self.taken, self.steps, settings)
        for _ in range(settings["gradient_accumulation_steps"]):
            loss = self.loss(self.batch[:, :-1].contiguous(), self.batch[:, 1:].contiguous())
            self.batch = self._crops()
            (loss / settings["gradient_accumulation_steps"]).backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), settings["grad_clip"])
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self.taken += 1

    @torch.no_grad()
    def val_loss(self, inputs: Tokens, targets: Tokens) -> float:
        """Mean loss of windows; padding rows of the last batch have no targets (-1)."""
        self.model.eval()
        rows, total = self.settings["batch_size"], 0.0
        for first in range(0, len(inputs), rows):
            here = min(rows, len(inputs) - first)
            ids = np.zeros((rows, inputs.shape[1]), dtype=np.int64)
            wanted = np.full_like(ids, -1)
            ids[:here], wanted[:here] = inputs[first : first + here], targets[first : first + here]
            both = [torch.from_numpy(part).to(self.device) for part in (ids, wanted)]
            total += float(self.loss(*both)) * here
        return total / len(inputs)


def learning_rate(step: int, steps: int, settings: dict[str, Any]) -> float:
    """Linear warm-up, then half a cosine down to `min_lr` at the last step.

    >>> learning_rate(99, 10**9, NANOGPT) < learning_rate(100, 1000, NANOGPT)
    True
    """
    highest, lowest, warm = (settings[n] for n in ("learning_rate", "min_lr", "warmup_iters"))
    if step < warm:
        return highest * (step + 1) / (warm + 1)
    done = (step - warm) / max(1, steps - warm)
    return lowest + 0.5 * (1 + math.cos(math.pi * min(1.0, done))) * (highest - lowest)


def timed(step: Any, steps: int) -> float:
    """Seconds of `steps` calls, including the device's work."""
    torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(steps):
        step()
    torch.cuda.synchronize()
    return time.perf_counter() - start


def train_nanogpt(
    checkout: Path, data: Path, windows: tuple[Tokens, Tokens], seconds: float, settings: Any
) -> dict[str, Any]:
    """Train nanoGPT until the time is over."""
    first, count = NANOGPT_TIMED
    if settings["warmup_iters"] < first + count:
        raise ValueError(f"warmup_iters is less than the {first + count} steps that set the clock")
    torch.set_float32_matmul_precision("high")
    run = NanoRun(checkout, data, settings, "cuda")
    timed(run.step, first)
    torch.cuda.reset_peak_memory_stats()
    step_seconds = timed(run.step, count) / count
    run.steps = max(run.taken, int(seconds / step_seconds))
    say(f"{step_seconds:.4f} s a step: {run.steps} steps")
    used = step_seconds * (first + count) + timed(run.step, run.steps - run.taken)
    return {
        "peak_bytes": torch.cuda.max_memory_allocated(),
        "val_loss": run.val_loss(*windows),
        "seconds": used,
        "steps": run.steps,
        "tokens_per_second": run.steps * run.tokens_per_step / used,
    }


class ModdedRun:
    """modded-nanogpt's model, optimizer and loader, stepped and evaluated from outside."""

    def __init__(self, peer: Any, settings: dict[str, Any]) -> None:
        self.peer, self.model, self.manager = peer, peer.model, peer.training_manager
        self.model.prefix_table.copy_(peer.build_prefix_table(self.model.vocab_size))
        for config in self.manager.optimizer.param_cfgs.values():
            config.initial_lr *= settings["lr_scale"]
            config.weight_decay *= settings["decay_scale"]
        if settings["muon_warmup_steps"] is not None:
            peer.get_muon_momentum = functools.partial(
                peer.get_muon_momentum, muon_warmup_steps=settings["muon_warmup_steps"]
            )
        self.taken, self.batches = 0, self._open_batches()

    def _open_batches(self) -> Any:
        first = self.peer.TRAINING_STAGES[0]
        return self.peer.distributed_data_generator(
            self.peer.args.train_files,
            first.batch_size,
            first.train_max_seq_len,
            grad_accum_steps=self.peer.grad_accum_steps,
        )

    def step(self) -> None:
        """Run the next step of the schedule."""
        self.manager.advance_schedule(self.taken)
        for _ in range(self.peer.grad_accum_steps):
            batch = self.batches.send(self.manager.train_loader_send_args)
            losses = self.model(*batch[:4], self.manager.get_forward_args())
            (losses.sum() * self.peer.grad_scale).backward()
        self.manager.step_optimizers(self.taken)
        self.model.quantize_mlp_fp8(bootstrap_down=self.taken < 16)
        self.taken += 1
        if self.taken % 50 == 0:
            say(f"step {self.taken}")

    def time_stages(self) -> list[float]:
        """Seconds of a step of each stage, after the steps that compile it."""
        found: list[float] = []
        first, count = MODDED_TIMED
        for start, _ in self.peer.training_schedule.boundaries:
            self.taken = start
            timed(self.step, first)
            found.append(timed(self.step, count) / count)
            say(f"stage {len(found)}: {found[-1]:.4f} s a step")
        return found

    def plan(self, step_seconds: list[float], seconds: float) -> None:
        """Set the schedule's number of iterations to what fits into the seconds."""
        peer, old = self.peer, self.peer.training_schedule
        *stages, _ = peer.TRAINING_STAGES
        *times, last = step_seconds
        extension = peer.args.num_extension_iterations
        of_one = sum(stage.duration * one for stage, one in zip(stages, times, strict=True))
        iterations = int((seconds - extension * last) / of_one)
        if iterations < 1:
            raise ValueError(
                f"{seconds:g} seconds are too few: its last {extension} steps take them"
            )
        peer.training_schedule = peer.TrainingSchedule(
            peer.TRAINING_STAGES,
            iterations,
            extension,
            cooldown_frac=old.cooldown_frac,
            ws_post_yarn_ext=old.ws_post_yarn_ext,
        )
        self.manager.split_step = peer.training_schedule.split_step

    @property
    def steps(self) -> int:
        """All steps of the schedule."""
        return self.peer.training_schedule.total_steps

    def seen_tokens(self) -> int:
        """Tokens of all steps of the schedule."""
        lookup = self.peer.training_schedule.lookup
        return sum(lookup(step)[0].batch_size for step in range(self.steps))

    def state(self) -> Any:
        """A copy of the weights and of the optimizer's state."""
        return copy.deepcopy(self.model.state_dict()), self.manager.get_state()

    def restart(self, state: Any) -> None:
        """Undo all steps, and restart the text."""
        weights, moments = state
        self.model.train()
        self.model.zero_grad(set_to_none=True)
        self.model.load_state_dict(weights)
        self.manager.reset(moments)
        self.model.quantize_mlp_fp8(bootstrap_down=True)
        self.taken, self.batches = 0, self._open_batches()

    def end_schedule(self) -> None:
        """Set the attention windows of its evaluation. Once: the rotary angles change with them."""
        self.manager.advance_schedule(self.steps)
        self.manager.apply_final_ws_ext()

    @torch.no_grad()
    def val_loss(self, inputs: Tokens, targets: Tokens, ends: Tokens) -> float:
        """Mean loss of windows, one at a time: its embeddings mix in the token before, and the
        first token of a window has none."""
        self.model.eval()
        device = self.peer.device
        total = torch.zeros((), dtype=torch.float64, device=device)
        for row, wanted, documents in zip(inputs, targets, ends, strict=True):
            ids = torch.from_numpy(row.astype(np.int32))
            losses = self.model(
                ids.to(device),
                torch.from_numpy(wanted.astype(np.int64)).to(device),
                torch.from_numpy(documents).to(device),
                self.peer.get_bigram_hash(ids).to(device),
                self.manager.get_forward_args(),
            )
            total += losses.double().mean()
        return float(total) / len(inputs)


def train_modded(
    checkout: Path,
    data: Path,
    windows: tuple[Tokens, Tokens],
    seconds: float,
    settings: dict[str, Any],
    *,
    wall: float,
) -> dict[str, Any]:
    """Train modded-nanogpt until the seconds are over; do not begin where the wall comes first."""
    check_attention("cuda")
    install_stand_ins(Tokenizer.load("gpt2").vocabulary)
    inputs, targets = windows
    by_document = window_documents(inputs)
    whole = np.full_like(by_document, inputs.shape[1])
    whole[:, 0] = 0
    torch.manual_seed(settings["seed"])
    with tempfile.TemporaryDirectory() as name:
        tokens = cut_documents(np.fromfile(data, dtype=np.uint16), settings["cut_documents"])
        write_shards(tokens, Path(name))
        peer = load_peer(checkout, Path(name), accumulation=settings["accumulation"])
        make_room(peer, tokens)
        run = ModdedRun(peer, settings)
        say("imported; the first steps of each stage compile")
        start = run.state()
        step_seconds = run.time_stages()
        run.end_schedule()
        say(f"evaluation compiled: {run.val_loss(inputs[:1], targets[:1], whole[:1]):.3f}")
        run.restart(start)
        del start
        run.plan(step_seconds, seconds)
        say(f"{run.steps} steps, {run.seen_tokens():,} tokens")
        if time.perf_counter() - STARTED + seconds + 45 > wall:
            raise SystemExit("too late to begin; what was compiled is cached: run this once more")
        torch.cuda.reset_peak_memory_stats()
        used = timed(run.step, run.steps)
        peak = torch.cuda.max_memory_allocated()
        say(f"trained for {used:.1f} s")
        run.end_schedule()
        return {
            "val_loss": run.val_loss(inputs, targets, whole),
            "val_loss_by_document": run.val_loss(inputs, targets, by_document),
            "seconds": used,
            "steps": run.steps,
            "tokens_per_second": run.seen_tokens() / used,
            "peak_bytes": peak,
            "stage_step_seconds": step_seconds,
        }


def main() -> None:
    """Run one peer and store its row."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("peer", choices=["nanogpt", "modded"])
    parser.add_argument("checkout", type=Path, help="folder with the peer's files")
    parser.add_argument("name")
    parser.add_argument("--seconds", type=float, default=178.0)
    parser.add_argument("--wall", type=float, default=math.inf, help="seconds until it is killed")
    parser.add_argument("--data", type=Path, default=Path("carry/data/train.bin"))
    parser.add_argument("--val-data", type=Path, default=Path("carry/data/val.bin"))
    parser.add_argument("--out", type=Path, default=Path("gpu.jsonl"))
    parser.add_argument("--set", nargs="*", default=[], metavar="NAME=VALUE")
    options = parser.parse_args()
    known = NANOGPT if options.peer == "nanogpt" else MODDED
    changes = parse_changes(options.set)
    if unknown := set(changes) - set(known):
        parser.error(f"{', '.join(unknown)}: not among {', '.join(known)}")
    settings = known | changes
    val = TokenDataset(options.val_data, split="all", seq_len=CONTEXT, dtype="uint16")
    windows = val.get_batch(range(len(val)))
    given = (options.checkout, options.data, windows, options.seconds, settings)
    row = (
        train_nanogpt(*given)
        if options.peer == "nanogpt"
        else train_modded(*given, wall=options.wall)
    )
    append_row(options.out, "loss", {"name": options.name, "settings": settings, **row})


if __name__ == "__main__":
    main()
