"""The folder of a run: weights, state for exact resume, the best weights, metrics; all atomic.

    checkpoints/NAME/
      config.json  tokenizer.json  model.safetensors    the newest weights, for transformers too
      settings.json  metrics.jsonl
      steps/step_00000500/  model.safetensors  state.safetensors  state.json  config.json
      best/  config.json  tokenizer.json  model.safetensors  best.json
      checksums.json in each of them: xxh3-128 of every file, compared before anything is used

`state.safetensors` holds the optimizers' moments as `moments.PARAMETER.KEY`, and, if the weights
are an average (--average-over), the parameters as `stepped.PARAMETER`; `state.json` holds numbers.
There are no random states, since random numbers are a function of seed and step.

In:      tensors and a few numbers from the loop
Out:     a folder per checkpoint, renamed into place when all of it is on the disk
Memory:  none besides its arguments
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Callable, Generator, Mapping
from pathlib import Path
from typing import Any

from lowtide.checksumrecords import verify_folder
from lowtide.errors import BudgetError, DataError, warn
from lowtide.filenames import (
    CHECKSUMS_NAME,
    CONFIG_NAME,
    METRICS_NAME,
    TOKENIZER_CONFIG_NAME,
    TOKENIZER_NAME,
    WEIGHTS_NAME,
)
from lowtide.files import (
    checksum_file,
    create_file,
    free_disk_bytes,
    hold_lock,
    publish,
    read_json,
    sync_directory,
    write_json,
)
from lowtide.memory import format_size
from lowtide.model.arrayfiles import ArrayFile, save_weights
from lowtide.model.checksums import (
    drop_damaged_record,
    record_checksums,
    record_files,
    step_dirs,
    write_recorded_json,
)
from lowtide.model.companions import write_companions
from lowtide.model.config import GPTConfig, load_config
from lowtide.model.moduleconfig import ModuleConfig
from lowtide.model.tide import write_modelling_file
from lowtide.quickclasses import dataclass
from lowtide.tokenizer import Tokenizer
from lowtide.training.basemodel import GROWN
from lowtide.training.resuming import RUN_NAMES, drop_rows_after, is_run
from lowtide.unfinished import unused_name

__all__ = [
    "OLD_STATE_NAME",
    "Checkpoint",
    "RunFolder",
    "naming_checkpoint",
    "readable_numbers",
]

_STATE = "state.safetensors"
OLD_STATE_NAME = "state.pt"  # the state of runs before checksums existed; read once, then rewritten
_NUMBERS = "state.json"


@dataclass(frozen=True)
class Checkpoint:
    """Everything that an exact resume needs."""

    step: int
    weights: dict[str, Any]
    """Under portable names; on the CPU when they are written."""
    tensors: dict[str, Any]
    """The optimizers' moments by name."""
    numbers: dict[str, Any]
    """Values for JSON: data position, counters, best loss."""

    @property
    def num_bytes(self) -> int:
        """Its approximate size on the disk."""
        return sum(t.nbytes for t in (*self.weights.values(), *self.tensors.values()))


class RunFolder:
    """Reads and writes one run's folder."""

    def __init__(self, root: str | Path, *, keep: int = 2) -> None:
        self.root = Path(root)
        self.keep = keep
        self.source_dir: Path | None = None
        """The folder of the model that the run starts from, if there is one."""
        self._whole_dir: Path | None = None
        self._is_locked = False
        self._lost_record = False

    @contextlib.contextmanager
    def locked(self, *, wanted: bool = True) -> Generator[None]:
        """Lock the folder for this process until the end; other processes get an error.

        The lock is reentrant within one process.
        """
        if not wanted or self._is_locked:
            yield
            return
        with hold_lock(self.root, create_folder=True):
            self._is_locked = True
            try:
                yield
            finally:
                self._is_locked = False

    def clear(self) -> None:
        """Remove all files of the run; other files stay, and a folder that is not a run's."""
        self._whole_dir = None
        if not is_run(self.root):
            return
        for name in ("steps", "best", "data", GROWN):
            shutil.rmtree(self.root / name, ignore_errors=True)
        for name in (*RUN_NAMES, self.metrics_path.name):
            (self.root / name).unlink(missing_ok=True)

    @property
    def metrics_path(self) -> Path:
        """The path of the run's metrics."""
        return self.root / METRICS_NAME

    @property
    def best_dir(self) -> Path:
        """The folder of the weights with the lowest validation loss."""
        return self.root / "best"

    def create(self) -> None:
        """Make the folder and remove what a killed run left: parts of files, rows of its steps."""
        (self.root / "steps").mkdir(parents=True, exist_ok=True)
        for left in (self.root / "steps").glob(".*.partial"):
            shutil.rmtree(left, ignore_errors=True)  # a link to a folder is left alone
        if not self.exists():  # killed before its first checkpoint: it begins at step 0 again
            self.forget_metrics_after(0, -1)

    def step_dirs(self) -> list[Path]:
        """The finished checkpoints, oldest first."""
        return step_dirs(self.root)

    def exists(self) -> bool:
        """True if there is a checkpoint to resume from."""
        return bool(self.step_dirs())

    def find_whole(self, note: Callable[[str], None], *, set_aside: bool = False) -> Path | None:
        """The newest undamaged checkpoint; None without any checkpoint.

        Damaged ones are named, and with `set_aside` get another name, so that the run can write
        those steps again; a damaged record beside the run's weights is made anew.
        """
        if self._whole_dir is not None:
            return self._whole_dir
        damaged: list[tuple[Path, DataError]] = []
        for folder in reversed(self.step_dirs()):
            try:
                _verify_checkpoint(folder)
            except DataError as error:
                damaged.append((folder, error))
                continue
            self._whole_dir = folder
            break
        if damaged and self._whole_dir is None:
            raise _with_advice(damaged[0][1], self.root / "steps")
        for folder, error in damaged:
            note(f"warning: {folder.name} is not used: {error.message} ({error.path})")
            if set_aside:
                aside = folder.with_name(f"damaged_{folder.name}")
                shutil.rmtree(aside, ignore_errors=True)
                folder.replace(aside)
        if set_aside and drop_damaged_record(self.root, note):
            self._lost_record = True
            if self._whole_dir is not None:
                names = (WEIGHTS_NAME, CONFIG_NAME)
                checksums = {name: checksum_file(self._whole_dir / name) for name in names}
                record_checksums(self.root, checksums)
        return self._whole_dir

    def newest_dir(self) -> Path:
        """The checkpoint that a run resumes from."""
        return self._whole_dir or self.step_dirs()[-1]

    def save(self, checkpoint: Checkpoint, config: GPTConfig | ModuleConfig) -> Path:
        """Write a checkpoint; it appears when it is complete, then old ones are removed."""
        self._require_space(checkpoint)
        folder = self.root / "steps" / f"step_{checkpoint.step:08d}"
        numbers = {"step": checkpoint.step, **checkpoint.numbers}
        if folder.exists():  # the same weights; only results of an evaluation are new
            write_recorded_json(folder / _NUMBERS, numbers)
            return folder
        partial = unused_name(folder, "partial")
        partial.mkdir(parents=True)
        try:
            save_weights(partial / WEIGHTS_NAME, checkpoint.weights, record=False)
            save_weights(partial / _STATE, checkpoint.tensors, record=False)
            write_json(partial / _NUMBERS, numbers)
            write_json(partial / CONFIG_NAME, config.to_huggingface())
            checksums = record_files(partial, (WEIGHTS_NAME, _STATE, _NUMBERS, CONFIG_NAME))
            partial.replace(folder)
            sync_directory(folder.parent)
        except BaseException:
            shutil.rmtree(partial, ignore_errors=True)
            raise
        self._whole_dir = None
        write_modelling_file(self.root, config)
        self._publish_weights(folder, checksums)
        for old in self.step_dirs()[: -self.keep]:
            shutil.rmtree(old)
        return folder

    def _publish_weights(self, folder: Path, checksums: Mapping[str, str]) -> None:
        """Copy the weights and shape of a checkpoint to the run's folder, recorded beforehand."""
        record_checksums(self.root, {name: checksums[name] for name in (WEIGHTS_NAME, CONFIG_NAME)})
        if self._lost_record and (self.root / TOKENIZER_NAME).is_file():
            record_files(self.root, [TOKENIZER_NAME])  # by now it was compared with the data's
        for name in (CONFIG_NAME, WEIGHTS_NAME):
            _link_or_copy(folder / name, self.root / name)

    def complete(self, note: Callable[[str], None]) -> None:
        """For a finished run: restore the weights in its folder, and report other damage.

        A kill between the last checkpoint and its link in the run's folder leaves older weights
        there.
        """
        folder = self.newest_dir()
        if _is_old(folder):
            return
        names = (CONFIG_NAME, WEIGHTS_NAME)
        checksums = {name: checksum_file(folder / name) for name in names}
        is_same = all(
            (self.root / name).is_file() and checksum_file(self.root / name) == checksums[name]
            for name in names
        )
        if not is_same:
            note(f"the weights of {folder.name} are written to {self.root} again")
        if not is_same or self._lost_record:
            self._publish_weights(folder, checksums)
        for place in (self.root, self.best_dir):
            try:
                verify_folder(place)
            except DataError as error:
                note(f"warning: {error.message} ({error.path})")

    def _require_space(self, checkpoint: Checkpoint) -> None:
        needed, free = checkpoint.num_bytes + (1 << 20), free_disk_bytes(self.root)
        if needed > free:
            others = "; the last one is untouched" if self.step_dirs() else ""
            raise BudgetError(
                f"a checkpoint takes {format_size(needed)}, the disk has {format_size(free)} free"
                f"{others}",
                path=self.root,
                next_step="free some space, then give the same command again",
            )

    def save_best(
        self, weights: dict[str, Any], config: GPTConfig | ModuleConfig, numbers: Mapping[str, Any]
    ) -> None:
        """Write the weights with the lowest validation loss so far."""
        self.best_dir.mkdir(exist_ok=True)
        drop_damaged_record(self.best_dir, warn)  # all of its files are written again
        write_modelling_file(self.best_dir, config)
        save_weights(self.best_dir / WEIGHTS_NAME, weights)
        write_recorded_json(self.best_dir / CONFIG_NAME, config.to_huggingface())
        write_recorded_json(self.best_dir / "best.json", dict(numbers))

    def save_tokenizer(
        self, tokenizer: Tokenizer, config: GPTConfig | ModuleConfig, *, best: bool = False
    ) -> None:
        """Write the tokenizer, and companion files of the base model, beside the weights.

        Those beside the best weights are the run's; a resumed run has its own already.
        """
        if best:
            write_companions(self.best_dir, tokenizer, config, source=self.root)
        elif not self.exists() or not _has_companions(self.root):
            write_companions(self.root, tokenizer, config, source=self.source_dir)

    def load_config(self) -> GPTConfig:
        """The shape of the newest checkpoint."""
        folder = self.newest_dir()
        with naming_checkpoint(folder):
            return load_config(folder)

    def load_module_config(self) -> ModuleConfig | None:
        """The same for a run of a torch module."""
        path = self.newest_dir() / CONFIG_NAME
        with naming_checkpoint(path.parent):
            return ModuleConfig.read(_read_numbers(path), path)

    def load_weights(self, load: Callable[..., None]) -> None:
        """Call `load` with the folder of the newest checkpoint, if there is one."""
        if self.exists():
            folder = self.newest_dir()
            with naming_checkpoint(folder):
                load(folder, verify=folder != self._whole_dir)

    def load(
        self, open_file: Callable[[Path], Mapping[str, Any]] = ArrayFile
    ) -> tuple[Path, Mapping[str, Any], dict[str, Any]]:
        """The newest checkpoint's folder, tensors (each read on access) and numbers."""
        folder = self.newest_dir()
        with naming_checkpoint(folder):
            return folder, open_file(folder / _STATE), _read_numbers(folder / _NUMBERS)

    def is_old(self) -> bool:
        """True if the newest checkpoint is in torch's format, from before there were checksums."""
        return _is_old(self.newest_dir())

    def load_numbers(self) -> dict[str, Any]:
        """Only the numbers of the newest checkpoint."""
        folder = self.newest_dir()
        with naming_checkpoint(folder):
            return _read_numbers(folder / _NUMBERS)

    def renew(self, tensors: Mapping[str, Any], numbers: Mapping[str, Any]) -> None:
        """Convert an old checkpoint to the current format; torch's file is removed at the end."""
        folder = self.newest_dir()
        old = _read_numbers(folder / _NUMBERS)
        save_weights(folder / _STATE, tensors, record=False)
        write_json(folder / _NUMBERS, {**old, **numbers})
        checksums = record_files(folder, (WEIGHTS_NAME, _STATE, _NUMBERS, CONFIG_NAME))
        (folder / OLD_STATE_NAME).unlink()
        self._publish_weights(folder, checksums)

    def forget_metrics_after(self, step: int, evaluated_step: int) -> None:
        """Drop rows that a killed run wrote after its last checkpoint: these steps are repeated."""
        drop_rows_after(self.metrics_path, step, evaluated_step)


def _has_companions(folder: Path) -> bool:
    """True if the tokenizer's files exist and match their checksums."""
    names = (TOKENIZER_NAME, TOKENIZER_CONFIG_NAME)
    try:
        verify_folder(folder, only=names)
    except DataError:
        return False
    return all((folder / name).is_file() for name in names)


def _is_old(folder: Path) -> bool:
    return not (folder / CHECKSUMS_NAME).exists() and (folder / OLD_STATE_NAME).exists()


def _verify_checkpoint(folder: Path) -> None:
    """Compare a checkpoint with its checksums; old ones have none."""
    if not (folder / CHECKSUMS_NAME).exists() and not (folder / OLD_STATE_NAME).exists():
        raise DataError(f"{CHECKSUMS_NAME} is missing", path=folder / CHECKSUMS_NAME)
    verify_folder(folder)


def _read_numbers(path: Path) -> dict[str, Any]:
    numbers = read_json(path)
    if not isinstance(numbers, dict):
        raise DataError(f"{path.name} holds no object", path=path)
    return numbers


@contextlib.contextmanager
def readable_numbers(folder: Path) -> Generator[None]:
    """Name the file in the error if a number of a checkpoint is missing, or is not a number."""
    try:
        yield
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        what = f"{error.args[0]} is missing" if isinstance(error, KeyError) else str(error)
        wrong = DataError(f"{_NUMBERS} is not what a run writes: {what}", path=folder / _NUMBERS)
        raise _with_advice(wrong, folder) from error


@contextlib.contextmanager
def naming_checkpoint(folder: Path) -> Generator[None]:
    """Add to the error for an unreadable checkpoint how the run can continue without it."""
    try:
        yield
    except DataError as error:
        raise _with_advice(error, folder) from None


def _with_advice(error: DataError, folder: Path) -> DataError:
    return DataError(
        error.message,
        path=error.path,
        next_step=f"remove {folder}; the run goes on from the checkpoint before it, if there is"
        " one",
    )


def _link_or_copy(source: Path, target: Path) -> None:
    """Link `source` under a second name; copy it where the file system has no hard links."""
    partial = unused_name(target, "partial")
    try:
        os.link(source, partial)
    except OSError:
        with source.open("rb") as reader, os.fdopen(create_file(partial), "wb") as writer:
            shutil.copyfileobj(reader, writer)
    publish(partial, target)
