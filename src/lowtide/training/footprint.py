"""Estimate the memory of training, by part, before it starts; without torch, so that it is quick.

In:      GPTConfig and TrainSettings
Out:     Footprint: bytes on the device and on the host; the largest micro-batch a budget allows
"""

from __future__ import annotations

import functools
from pathlib import Path

from lowtide.corpus.footprint import reader_bytes
from lowtide.corpus.inputs import expand_inputs, names_files
from lowtide.corpus.textblocks import ReadingSettings
from lowtide.dataset.provenance import tokenizer_dir
from lowtide.errors import BudgetError, LowtideError
from lowtide.gpus import CUDA_CONTEXT_BYTES
from lowtide.loader.batches import planned_bytes as loader_bytes
from lowtide.loader.footprint import planned_bytes as stream_bytes
from lowtide.memory import format_size
from lowtide.model.config import GPTConfig
from lowtide.model.inference import TOKEN_BYTES
from lowtide.model.program import Program, find_program
from lowtide.model.sizing import (
    count_parameters,
    loss_chunk_tokens,
)
from lowtide.quickclasses import dataclass
from lowtide.stores.extents import buffer_bytes
from lowtide.stores.urls import is_store_url
from lowtide.tokenizer.needs import vocabulary_bytes
from lowtide.training.activations import cpu_activations, gpu_activations, jax_activations
from lowtide.training.choosing import begins_at_counts, choose_optimizer
from lowtide.training.firstembedding import first_embedding_bytes
from lowtide.training.learningsettings import LearningSettings
from lowtide.training.muonnumbers import STACK_BYTES
from lowtide.training.offloading import RUNGS, OffloadBytes, offload_bytes
from lowtide.training.settinggroups import ComputeSettings, DataSettings, MachineSettings
from lowtide.training.settings import TrainSettings
from lowtide.training.spelling import search_bytes, sharing_bytes

__all__ = [
    "Footprint",
    "StreamReading",
    "fit_device_batch",
    "fit_micro_batch",
    "planned_bytes",
    "stream_reading",
]

# CUDA's libraries and context on the host, for a GPU that is not present to be measured.
_CUDA_PROGRAM_BYTES = 2 << 30
_MARGIN = 1.1
# Gaps that the C library keeps between many small tensors, beyond a tenth of them: a model of width
# 32 with thousands of rows took 13 % more than was estimated.
_HOLES_BYTES = 16 << 20
# A budget advised before the start must be enough for the process that trains, which has read its
# text by the time it measures itself: 10 MiB more than the probe had, and the gaps.
_LEAST_SPARE_BYTES = 40 << 20


@dataclass(frozen=True)
class Footprint:
    """Bytes of a training run, by part."""

    weights: int
    gradients: int
    optimizer: int
    """Moments, and an average of the weights."""
    activations: int
    loss: int
    """A chunk of logits and its gradient, and the output matrix's gradient beside the others."""
    update: int
    """Temporary memory of the optimizer's step, when activations are freed."""
    batches: int
    """Prefetched batches on the host; of a stream its text, its shuffle buffer, and its reader
    (windows of compressed files, pages of parquet); of an object store what is fetched ahead."""
    program: int
    """Interpreter, torch and their libraries, as measured (program.py)."""
    tokenizer: int = 0
    """The vocabulary while it is loaded, and while it is written into the run's folder."""
    beginning: int = 0
    """Memory besides the weights before the first step only: a counted embedding."""
    offloaded: OffloadBytes | None = None
    """With --offload: memory outside of the device, and the size of a checkpoint."""

    @property
    def device_bytes(self) -> int:
        """GPU memory."""
        passing = max(self.activations + self.loss, self.update)
        return self.weights + self.gradients + self.optimizer + passing

    @property
    def host_bytes(self) -> int:
        """Host memory when a GPU trains: the program, copies for checkpoints."""
        if self.offloaded is not None:  # checkpoints are written from its storage, without a copy
            # A third of it are the rows themselves, kept until storage is allocated.
            held = max(self.offloaded.host + self.beginning // 3, self.beginning)
        else:
            saved = self.checkpoint_bytes + self.weights  # a separate copy of the best weights
            held = max(saved, self.weights + self.beginning)
        return self.batches + self.program + self.tokenizer + held

    @property
    def checkpoint_bytes(self) -> int:
        """The size of one checkpoint."""
        if self.offloaded is not None:
            return self.offloaded.checkpoint
        return self.weights + self.optimizer

    @property
    def total_bytes(self) -> int:
        """Memory of training on a CPU.

        Muon's tensors do not fit into all gaps that activations leave (measured).
        """
        passing = self.activations + self.loss
        if self.update:
            passing = max(passing, int(0.87 * self.update + 0.45 * passing))
        held = self.weights + max(self.gradients + self.optimizer + passing, self.beginning)
        return held + self.batches + self.program + self.tokenizer

    @property
    def budget_bytes(self) -> int:
        """The budget to advise: estimates are off by up to a tenth."""
        return max(int(self.total_bytes * _MARGIN), self.total_bytes + _LEAST_SPARE_BYTES)

    @property
    def running_budget_bytes(self) -> int:
        """The same if the program was measured in the process that trains."""
        return self.program + int((self.total_bytes - self.program) * _MARGIN) + _HOLES_BYTES

    @property
    def device_budget_bytes(self) -> int:
        """The same on a GPU."""
        return int(self.device_bytes * _MARGIN)


def planned_bytes(
    config: GPTConfig,
    settings: TrainSettings,
    *,
    micro_batch: int | None = None,
    on_gpu: bool = False,
    program: Program | None = None,
    data_bytes: int = 0,
    cpu_threads: int | None = None,
) -> Footprint:
    """The bytes that training needs with `micro_batch` rows at once (default: batch_size).

    `data_bytes` is the memory of a loader that is not part of the settings; `cpu_threads` are those
    that compute on a CPU (default: as many as here).
    Without `program` it is that of the installed torch, which a probe measures the first time.
    """
    rows = micro_batch or settings.batch.batch_size
    batches = _batch_bytes(settings) + data_bytes
    program_bytes = _program_bytes(settings, program, on_gpu=on_gpu)
    tokenizer = max(config.vocab_size * TOKEN_BYTES, _vocabulary_bytes(settings))
    counted = begins_at_counts(settings, config)
    counted = counted and settings.run.init_from_model is None and settings.data.dataset_id is None
    spelled = search_bytes(config.vocab_size) if settings.learning.spelling_rate > 0 else 0
    beginning = max(first_embedding_bytes(config) if counted else 0, spelled)
    if settings.machine.offload != "none":
        parts = offload_bytes(config, settings, rows=rows, on_gpu=on_gpu, cpu_threads=cpu_threads)
        return Footprint(
            weights=parts.weights,
            gradients=parts.gradients,
            optimizer=parts.optimizer,
            activations=parts.activations,
            loss=parts.loss,
            update=parts.update,
            batches=batches,
            program=program_bytes,
            tokenizer=tokenizer,
            beginning=beginning,
            offloaded=parts,
        )
    tokens = rows * settings.model.seq_len
    count = count_parameters(config)
    accumulating = rows < settings.batch.rows_per_step
    loss = _loss_bytes(config, settings.computing, tokens, on_gpu=on_gpu, accumulating=accumulating)
    optimizer, update = _optimizer_bytes(config, settings.learning, count, settings.tokens_per_step)
    if settings.learning.average_over > 0:
        optimizer += 4 * count
    if settings.learning.embedding_decay_to == "first":
        optimizer += 4 * config.vocab_size * config.width
    if settings.learning.spelling_rate > 0:
        sharing = sharing_bytes(config)
        optimizer, update = optimizer + sharing.moments, max(update, sharing.step) + sharing.lists
    if on_gpu:
        activations = gpu_activations(config, settings.computing, tokens, loss)
    elif settings.computing.backend == "jax":
        activations, loss, update = jax_activations(config, settings, rows, muon=update > 0)
    else:
        activations = cpu_activations(config, settings, rows, cpu_threads=cpu_threads)
    return Footprint(
        weights=4 * count,
        gradients=4 * count,
        optimizer=optimizer,
        activations=activations,
        loss=loss,
        update=update,
        batches=batches,
        program=program_bytes,
        tokenizer=tokenizer,
        beginning=beginning,
    )


def _vocabulary_bytes(settings: TrainSettings) -> int:
    """Memory of the tokenizer of the data or the run, by its files; 0 if there is none yet."""
    data, folder = settings.data, settings.run.folder
    base = settings.run.init_from_model
    named = (data.dataset_dir, data.tokenization, base)
    beside = [tokenizer_dir(path) for path in (data.train_data_path, data.input_file) if path]
    places = [folder / "data", folder / "data" / "tokenizer", *beside]
    places += [Path(place) for place in named if place is not None and not is_store_url(place)]
    if base is not None:
        places.append(settings.run.checkpoints_dir / base)
    return max(map(vocabulary_bytes, places))


def _program_bytes(settings: TrainSettings, program: Program | None, *, on_gpu: bool) -> int:
    compiles = settings.computing.compile and not on_gpu
    # JAX needs no package for 8-bit moments and recomputation.
    is_torch = settings.computing.backend == "torch"
    eight = settings.learning.use_8bit_optimizer and is_torch
    again = settings.computing.activation_checkpointing and is_torch
    program = program or find_program(
        use_8bit=eight, compiles=compiles, recomputes=again, backend=settings.computing.backend
    )
    parquet = stream_reading(settings.data).has_parquet
    if settings.data.input_file is not None:  # tokenized in the process that trains
        parquet = _look_at_files(
            str(settings.data.input_file), settings.data.text_field
        ).has_parquet
    size = program.bytes_for(
        use_8bit=eight, compiles=compiles, recomputes=again, reads_parquet=parquet
    )
    return size + (_CUDA_PROGRAM_BYTES if on_gpu and program.device == "cpu" else 0)


def _loss_bytes(
    config: GPTConfig,
    computing: ComputeSettings,
    tokens: int,
    *,
    on_gpu: bool,
    accumulating: bool = False,
) -> int:
    """Return the bytes of a chunk of logits, and of the output matrix's gradient."""
    chunk_tokens = computing.loss_chunk_tokens
    chunk_tokens = chunk_tokens or loss_chunk_tokens(config.vocab_size, on_gpu=on_gpu)
    # The loss's gradient overwrites the logits, except in half precision on a CPU, and in 8-bit
    # floats, written beside them twice; JAX has float32 there in either precision.
    half = computing.use_mixed_precision and (on_gpu or computing.backend == "torch")
    per_logit = (2 if on_gpu else 10) if half else 4
    if on_gpu and computing.float8_head:
        per_logit += 2
    if config.cap and not on_gpu:
        per_logit += 4  # the slope of the cap
    chunk = min(tokens, chunk_tokens) * config.vocab_size * per_logit
    # A tied matrix has a gradient as output and one as embedding, beside the accumulated one: 681
    # MiB of a matrix of 98 with micro-batches, 587 without.
    sums = on_gpu or (accumulating and computing.backend == "torch")
    twice = config.tie_weights and sums
    return chunk + 4 * config.vocab_size * config.width * (2 if twice else 1)


def _batch_bytes(settings: TrainSettings) -> int:
    size = loader_bytes(
        batch_size=settings.batch.rows_per_step,
        seq_len=settings.model.seq_len,
        prefetch_batches=settings.machine.num_workers,
    )
    if settings.data.dataset_id is not None and settings.data.use_streaming:
        size += stream_bytes(
            seq_len=settings.model.seq_len,
            shuffle_buffer_size=settings.data.shuffle_buffer_size,
            stride=settings.data.stride,
        )
    named = (settings.data.dataset_dir, settings.replay.replay_dataset_dir)
    if any(map(is_store_url, (*named, *settings.evaluation.datasets().values()))):
        size += buffer_bytes()
    return size + stream_reading(settings.data).reader_bytes


@dataclass(frozen=True)
class StreamReading:
    """Memory of reading the files of a stream, estimated from their beginnings."""

    reader_bytes: int = 0
    has_parquet: bool = False


def stream_reading(data: DataSettings) -> StreamReading:
    """Memory of reading if a run streams local files; nothing for other data."""
    if data.dataset_id is None or not names_files(data.dataset_id):
        return StreamReading()
    return _look_at_files(data.dataset_id, data.text_field)


@functools.lru_cache(maxsize=8)
def _look_at_files(name: str, text_field: str) -> StreamReading:
    """Cached, because a plan asks again for every micro-batch size."""
    try:
        inputs = expand_inputs([name])
    except LowtideError:  # reading them will report what is wrong
        return StreamReading()
    return StreamReading(
        reader_bytes(inputs, ReadingSettings(text_field=text_field)),
        has_parquet=any(source.format.reader_bytes is not None for source in inputs),
    )


def _optimizer_bytes(
    config: GPTConfig, learning: LearningSettings, count: int, tokens_per_step: int
) -> tuple[int, int]:
    """Return the bytes of moments, and the temporary memory of a step."""
    per_parameter = 2 if learning.use_8bit_optimizer else 8
    if choose_optimizer(learning, config, tokens_per_step) == "adamw":
        return per_parameter * count, 0
    matrices = count_parameters(config, embeddings=False)
    # Of the matrices of equal shape (those of the MLP are the largest group) one stack at a time is
    # orthogonalized: the stack and intermediate results (measured), beside all updates.
    group = config.num_layers * config.width * config.mlp_width * 4
    stack = min(max(STACK_BYTES, config.width * config.mlp_width * 4), 2 * group)
    return 4 * matrices + per_parameter * (count - matrices), 4 * matrices + 6 * stack


def fit_micro_batch(
    config: GPTConfig,
    settings: TrainSettings,
    budget_bytes: int,
    *,
    program: Program | None = None,
    is_running: bool = False,
    data_bytes: int = 0,
    text_bytes: int = 0,
) -> int:
    """Return the largest micro-batch, halved from batch_size, that fits; refuse if none does.

    `text_bytes` is the budget that tokenizing the text needs, before anything is trained.

    In the process that trains (`is_running`) the program's memory is exact, and only the rest is an
    estimate, so a budget that was accepted before is not refused for a megabyte.
    """
    rows = settings.batch.batch_size
    while True:
        plan = planned_bytes(
            config, settings, micro_batch=rows, program=program, data_bytes=data_bytes
        )
        needed = plan.running_budget_bytes if is_running else plan.budget_bytes
        if max(needed, text_bytes) <= budget_bytes:
            return rows
        if rows == 1:
            if text_bytes > plan.budget_bytes:
                raise _no_text_budget(plan.budget_bytes, text_bytes, budget_bytes)
            raise _no_budget(plan, settings.machine, plan.budget_bytes, budget_bytes)
        rows = -(-rows // 2)


def fit_device_batch(
    config: GPTConfig, settings: TrainSettings, *, device_bytes: int | None, host_bytes: int
) -> int:
    """Return the largest micro-batch, halved from batch_size, that a GPU holds (None: any).

    States that are offloaded to the host have to fit there too.
    """
    rows, less = settings.batch.batch_size, {"disk": ", or --offload disk-all", "disk-all": ""}
    while True:
        plan = planned_bytes(config, settings, micro_batch=rows, on_gpu=True)
        if settings.machine.offload != "none" and plan.host_bytes > host_bytes:
            raise BudgetError(
                f"--offload {settings.machine.offload} needs {format_size(plan.host_bytes)} of "
                f"host memory for this model, the budget is {format_size(host_bytes)}",
                next_step=f"give at least --memory {-(-plan.host_bytes // (1 << 20))}MiB, or a "
                f"smaller model{less.get(settings.machine.offload, ', or --offload disk')}",
            )
        needed = plan.device_budget_bytes + CUDA_CONTEXT_BYTES
        if device_bytes is None or needed <= device_bytes:
            return rows
        if rows == 1:
            raise _no_budget(plan, settings.machine, needed, device_bytes, flag="--vram")
        rows = -(-rows // 2)


def _no_text_budget(needed: int, text_bytes: int, budget: int) -> BudgetError:
    return BudgetError(
        f"tokenizing the text needs {format_size(text_bytes)}, training this model "
        f"{format_size(needed)} even one row at a time, the budget is {format_size(budget)}",
        next_step=f"give at least --memory {-(-text_bytes // (1 << 20))}MiB; or compress the text "
        "with a smaller window, or put line ends into it",
    )


def _no_budget(
    plan: Footprint, machine: MachineSettings, needed: int, budget: int, flag: str = "--memory"
) -> BudgetError:
    """An error that lists the largest parts, and remedies."""
    parts = [
        f"{name} {format_size(size)}"
        for name, size in (
            ("weights", plan.weights),
            ("gradients", plan.gradients),
            ("optimizer", plan.optimizer),
            ("activations", plan.activations),
            ("loss", plan.loss),
            ("program", plan.program if flag == "--memory" else CUDA_CONTEXT_BYTES),
        )
    ]
    less = "--seq-len, --use-8bit-optimizer or --activation-checkpointing, or --offload auto"
    if machine.offload != "none":
        less = "or --seq-len" + ("" if machine.offload in RUNGS[-2:] else ", or --offload auto")
    return BudgetError(
        f"training this model needs {format_size(needed)} even one row at a time "
        f"({', '.join(parts)}), the budget is {format_size(budget)}",
        next_step=f"give at least {flag} {-(-needed // (1 << 20))}MiB, or a smaller model, {less}",
    )
