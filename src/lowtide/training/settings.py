"""The settings of `lowtide train` and `evaluate`; no torch here, so that help is quick."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from lowtide.aliases import COLUMN_FLAG
from lowtide.errors import UsageError
from lowtide.packages import choose_backend
from lowtide.quickclasses import dataclass
from lowtide.settings import build_settings, import_when_used, require
from lowtide.training.learningsettings import LearningSettings
from lowtide.training.settinggroups import (
    SHAPE_FIELDS,
    BatchSettings,
    ComputeSettings,
    DataSettings,
    EvaluationSettings,
    LengthSettings,
    MachineSettings,
    ModelSettings,
    OutputSettings,
    ReplaySettings,
    RunSettings,
    SavingSettings,
)
from lowtide.training.torchoptions import refuse_options

if TYPE_CHECKING:
    import tyro
else:
    tyro = import_when_used("tyro")

__all__ = [
    "AGAINST_LEARNING_BY_HEART",
    "EVAL_BATCH_ROWS",
    "EvaluateSettings",
    "TrainSettings",
    "train_settings",
]

# Evaluations are counted in batches of so many rows, not in micro-batches: what is computed at once
# must not decide which windows are looked at.
EVAL_BATCH_ROWS = 32
AGAINST_LEARNING_BY_HEART = "--dropout 0.1 --weight-decay 1 --order shifted"
"""Options that help if text is seen more than twice, with any optimizer."""


@dataclass(frozen=True)
class TrainSettings:
    """All settings of training, in groups, so that each function takes only those it uses.

    `train_settings` makes it from plain names.
    """

    presets_dir: ClassVar[Path] = Path(__file__).parent / "presets"
    configs_dir: ClassVar[Path] = Path(__file__).parent / "configs"
    rules_out: ClassVar[Mapping[str, tuple[str, ...]]] = {
        **dict.fromkeys(SHAPE_FIELDS, ("target_params",)),
        "num_heads": ("target_params", "num_kv_heads"),
        "target_params": SHAPE_FIELDS,
    }
    flag_words: ClassVar[Mapping[str, str]] = COLUMN_FLAG
    common_flags: ClassVar[tuple[str, ...]] = (
        "dataset_dir", "input_file", "tokenization", "model_name", "init_from_model",
        "target_params", "seq_len", "max_iters", "epochs", "batch_size",
        "gradient_accumulation_steps", "learning_rate", "use_mixed_precision", "memory",
        "eval_interval",
    )  # fmt: skip

    data: DataSettings = field(default_factory=DataSettings)
    run: RunSettings = field(default_factory=RunSettings)
    model: ModelSettings = field(default_factory=ModelSettings)
    length: LengthSettings = field(default_factory=LengthSettings)
    batch: BatchSettings = field(default_factory=BatchSettings)
    learning: LearningSettings = field(default_factory=LearningSettings)
    computing: ComputeSettings = field(default_factory=ComputeSettings)
    machine: MachineSettings = field(default_factory=MachineSettings)
    evaluation: EvaluationSettings = field(default_factory=EvaluationSettings)
    replay: ReplaySettings = field(default_factory=ReplaySettings)
    saving: SavingSettings = field(default_factory=SavingSettings)
    output: OutputSettings = field(default_factory=OutputSettings)

    left_out: frozenset[str] = field(default=frozenset(), init=False, repr=False, compare=False)
    """Names of settings that were not given; a resumed run uses its own values for them."""
    supplied: frozenset[str] = field(default=frozenset(), init=False, repr=False, compare=False)
    """Names of settings that only a preset or a built-in config file gives: for new runs too."""

    def __post_init__(self) -> None:
        queued = self.output.slurm and self.run.overwrite
        require(
            not queued, "overwrite", True, "no --slurm beside it: each restart would begin anew"
        )
        goes_on = self.run.resume or not self.output.slurm
        require(goes_on, "resume", False, "no --slurm beside it: each restart would be refused")
        refuse_options(self)

    @property
    def tokens_per_step(self) -> int:
        """Tokens of one step."""
        return self.batch.rows_per_step * self.model.seq_len


def train_settings(**options: Any) -> TrainSettings:
    """Settings of training by their names, as flags and keywords give them.

    >>> train_settings(seq_len=64, batch_size=8).tokens_per_step
    512
    """
    return build_settings(TrainSettings, options)


@dataclass(frozen=True)
class EvaluateSettings:
    """Which model to evaluate, and on which data."""

    model_name: str
    """Run to evaluate (its name or folder), or the folder of a published model."""
    dataset_dir: Annotated[tuple[str, ...], tyro.conf.UseAppendAction] = ()
    """Prepared dataset, .npy or .bin, as DIR or NAME=DIR. Repeatable."""
    tasks: Annotated[tuple[str, ...], tyro.conf.UseAppendAction] = ()
    """Multiple-choice questions or texts to complete: FILE.jsonl or NAME=FILE.jsonl. Repeatable."""
    checkpoints_dir: Path = Path("checkpoints")
    """Where runs are kept."""
    split: Literal["val", "train", "all"] = "val"
    """Split to evaluate on."""
    best: bool = False
    """Use the run's best weights instead of the last."""
    batch_size: int = 16
    """Rows computed at once."""
    eval_iters: int | None = None
    """Batches of 32 rows to evaluate, evenly spaced, as in training; all if not given."""
    seq_len: int | None = None
    """Tokens in a row; the model's context if not given, at most 4,096."""
    dtype: str | None = None
    """Type of the ids in files without a header (uint16, uint32, int32)."""
    tokenization: str | None = None
    """Tokenizer of the data, to compute bits per byte; the run's own if not given."""
    check_data: bool = True
    """Verify the checksums of the data files during the evaluation, and refuse a damaged file."""
    backend: Literal["auto", "torch", "jax"] = "auto"
    """auto takes torch, or jax if torch is not installed."""
    device: str = "auto"
    """cpu, cuda, or auto; with jax cpu, gpu, tpu, or auto."""
    memory: str | None = None
    """Budget of resident memory, such as 2GiB; default: half of the available memory."""

    def __post_init__(self) -> None:
        if not self.dataset_dir and not self.tasks:
            raise UsageError(
                "nothing to evaluate on is given",
                next_step="give --dataset-dir DIR, or --tasks FILE with questions",
            )
        names, named = list(self.task_files()), self.datasets()
        require(len(names) == len(self.tasks), "tasks", ", ".join(self.tasks), "one name each")
        several = len(named) == len(self.dataset_dir)
        step = "give NAME=DIR: the name of a folder is that of its result"
        asked = ", ".join(self.dataset_dir)
        require(several, "dataset_dir", asked, "one name each", next_step=step)
        twice = ", ".join(named.keys() & set(names))
        require(not twice, "tasks", twice, "other names than the datasets")
        require(self.batch_size >= 1, "batch_size", self.batch_size, "at least 1")
        for name in ("eval_iters", "seq_len"):
            value = getattr(self, name)
            require(value is None or value >= 1, name, value, "at least 1")
        for name in ("split", "eval_iters", "dtype", "check_data"):
            value, usual = getattr(self, name), getattr(type(self), name)
            used = bool(self.dataset_dir) or value == usual
            require(used, name, value, "--dataset-dir beside it: tasks are evaluated as a whole")

    def chosen_backend(self) -> str:
        """The backend, where none was asked for the one that is installed."""
        return choose_backend(self.backend, "evaluating")

    def datasets(self) -> dict[str, str]:
        """Return the datasets by name: that of the folder or file if none is given."""
        named: dict[str, str] = {}
        for entry in self.dataset_dir:
            name, equals, path = entry.partition("=")
            name, path = (name, path) if equals else (Path(entry).name or entry, entry)
            require(bool(path), "dataset_dir", entry, "NAME=DIR or DIR")
            named[name] = path
        return named

    def task_files(self) -> dict[str, Path]:
        """Return the files of questions by name."""
        named: dict[str, Path] = {}
        for entry in self.tasks:
            name, equals, path = entry.partition("=")
            name, path = (name, path) if equals else (Path(entry).stem, entry)
            require(bool(name and path), "tasks", entry, "NAME=FILE or FILE")
            named[name] = Path(path)
        return named
