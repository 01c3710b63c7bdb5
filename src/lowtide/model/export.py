"""Export a model as a folder that transformers loads, or as a GGUF file that llama.cpp loads.

In:      the folder of a run, or of a published model of a supported family (families.py)
Out:     model.safetensors, config.json, tokenizer.json and their companion files, in the format of
         the model's family
Memory:  pieces of one tensor (tensorfiles.py), whatever the size of the model; no torch
"""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any, Literal

from lowtide.errors import DataError, UsageError
from lowtide.filenames import (
    CONFIG_NAME,
    GENERATION_CONFIG_NAME,
    MERGES_NAME,
    TOKENIZER_CONFIG_NAME,
    TOKENIZER_NAME,
    VOCABULARY_NAME,
    WEIGHTS_INDEX_NAME,
    WEIGHTS_NAME,
)
from lowtide.files import checksum_bytes, checksum_file, hold_lock, read_json, write_json
from lowtide.freenames import require_free_names
from lowtide.keywords import takes_keywords
from lowtide.memory import MemoryBudget
from lowtide.model.checksums import find_intact, has_all_files, record_files
from lowtide.model.companions import (
    COMPANIONS,
    companions_dir,
    foreign_note,
    has_tokenizer,
    require_vocabulary,
    write_companions,
)
from lowtide.model.config import find_model_dir, find_weights_dir, load_config
from lowtide.model.gguf import GgufType, describe_gguf, write_gguf
from lowtide.model.growing import copy_grown, find_new_tokens, grown_config, grown_tokenizer
from lowtide.model.sizing import count_parameters
from lowtide.model.tensorfiles import PIECE_BYTES, copy_tensors, stored_dtype
from lowtide.model.tide import write_modelling_file
from lowtide.progress import Progress, run_metrics_path
from lowtide.quickclasses import dataclass
from lowtide.settings import require
from lowtide.tokenizer import Tokenizer

__all__ = ["ExportSettings", "export_model", "write_export"]

_TOKENIZER_TIMES = 16  # memory to read and write a vocabulary, as a multiple of its file's size
_USUAL_TYPE: GgufType = "f16"
_RECORD = "export.json"
"""Record of an export's inputs, to recognize the same command."""
_WRITTEN = (
    *(_RECORD, CONFIG_NAME, WEIGHTS_NAME, WEIGHTS_INDEX_NAME),
    *(TOKENIZER_NAME, TOKENIZER_CONFIG_NAME, VOCABULARY_NAME, MERGES_NAME, *COMPANIONS),
)
"""Files of a model that loading one looks for."""
_BESIDE = (CONFIG_NAME, VOCABULARY_NAME, MERGES_NAME, TOKENIZER_CONFIG_NAME, *COMPANIONS)
"""Files beside the weights that decide what is written."""


@dataclass(frozen=True)
class ExportSettings:
    """Which model to export, where and in which format."""

    model_name: str
    """Run to export (its name or folder), or the folder of a published model."""
    out_dir: Path
    """Folder to write; transformers loads it with AutoModelForCausalLM and AutoTokenizer."""
    checkpoints_dir: Path = Path("checkpoints")
    """Where runs are kept."""
    best: bool = False
    """Use the run's best weights instead of the last."""
    dtype: Literal["float32", "bfloat16", "float16"] | None = None
    """Type of the written weights; the stored type if not given (float32 in runs)."""
    to: Literal["transformers", "gguf"] = "transformers"
    """A folder for transformers, or one file for llama.cpp, named after the model and the type."""
    type: GgufType | None = None
    """Type of the weights in a GGUF file (f16); q8_0 and q4_0 take 8.5 and 4.5 bits a weight."""
    add_tokens: Path | None = None
    """File of new tokens, one a line, to add to the written model; each embedding starts as the
    mean of the token's pieces. To use them, prepare with --tokenization OUT_DIR and train with
    --init-from-model OUT_DIR."""
    memory: str | None = None
    """Budget of resident memory, such as 100MiB; default: half of the available memory."""

    def __post_init__(self) -> None:
        if self.to == "gguf":
            require(self.dtype is None, "dtype", self.dtype, "--type beside --to gguf")
            none = self.add_tokens is None
            require(none, "add_tokens", self.add_tokens, "a folder: first without --to gguf")
        else:
            require(self.type is None, "type", self.type, "--to gguf beside it")

    def target(self, run_dir: Path) -> Path:
        """The file whose presence means that the export is complete."""
        if self.to == "transformers":
            return self.out_dir / WEIGHTS_NAME
        return self.out_dir / f"{run_dir.resolve().name}-{self.type or _USUAL_TYPE}.gguf"


@takes_keywords(ExportSettings)
def export_model(settings: ExportSettings) -> Path:
    """Write the folder, or the GGUF file, and return its path."""
    return write_export(settings)[0]


def write_export(settings: ExportSettings) -> tuple[Path, bool]:
    """The same, and whether it existed already."""
    out_dir = settings.out_dir
    run_dir = find_model_dir(settings.model_name, settings.checkpoints_dir)
    folder = find_weights_dir(run_dir, best=settings.best)
    if not has_tokenizer(companions_dir(folder)):
        raise DataError(
            "no tokenizer.json here",
            path=folder,
            next_step="copy the files of the model's tokenizer beside its weights",
        )
    target = settings.target(run_dir)
    written = out_dir if settings.to == "transformers" else target
    if _is_there(settings, folder, target):
        return written, True
    budget = MemoryBudget.from_setting(settings.memory)
    names = max(path.stat().st_size for path in _tokenizer_files(folder))
    budget.require({"a piece of a tensor": PIECE_BYTES, "tokenizer": _TOKENIZER_TIMES * names})
    metrics_path = run_metrics_path(run_dir)
    with (
        hold_lock(out_dir, create_folder=True),
        Progress("export", budget_bytes=budget.total_bytes, metrics_path=metrics_path) as progress,
    ):
        if _is_there(settings, folder, target):  # by a command that ended just now
            return written, True
        if settings.to == "gguf":
            _write_gguf(settings, folder, target, progress)
        else:
            _write_folder(settings, folder, progress)
    return written, False


def _record_path(target: Path) -> Path:
    """The path of the record of an export's inputs."""
    if target.name == WEIGHTS_NAME:
        return target.with_name(_RECORD)
    return target.with_name(f"{target.name}.{_RECORD}")


def _is_there(settings: ExportSettings, folder: Path, target: Path) -> bool:
    """True if the same export exists and is complete; another export is refused."""
    out_dir, record = settings.out_dir, _record_path(target)
    if not target.exists():
        return False
    wanted = _describe_export(settings, folder, folder)
    stored = read_json(record) if record.is_file() else None
    if stored == wanted:
        return _is_whole(target)
    reason = "nothing says what it was made of"
    if isinstance(stored, dict):
        names = dict.fromkeys((*wanted, *_BESIDE, "add_tokens"))  # a later version may say more
        other = [name for name in names if stored.get(name) != wanted.get(name)]
        if not other:
            return _is_whole(target)
        name = other[0]
        reason = f"it was made with {name}={stored.get(name)}, now {name}={wanted.get(name)}"
    raise UsageError(
        f"there is a model here already: {reason}",
        path=out_dir,
        next_step="choose another --out-dir, or remove this one",
    )


def _is_whole(target: Path) -> bool:
    """True if all files of an export exist and match their checksums."""
    return has_all_files(target.parent, None if target.name == WEIGHTS_NAME else [target.name])


def _describe_export(settings: ExportSettings, folder: Path, weights_dir: Path) -> dict[str, Any]:
    """Everything that the written folder depends on."""
    dtype = settings.dtype
    if settings.to == "gguf":
        dtype = settings.type or _USUAL_TYPE
    described = {
        "dtype": dtype or stored_dtype(weights_dir, load_config(weights_dir)),
        "weights": _weights_checksum(folder),
        "tokenizer": checksum_file(_tokenizer_files(folder)[0]),
    }
    beside = companions_dir(folder)
    for name in _BESIDE:
        path = (folder if name == CONFIG_NAME else beside) / name
        if path.is_file():
            described[name] = checksum_file(path)
    if settings.add_tokens is not None and settings.add_tokens.is_file():
        described["add_tokens"] = checksum_file(settings.add_tokens)
    return described


def _tokenizer_files(folder: Path) -> list[Path]:
    names = (TOKENIZER_NAME, VOCABULARY_NAME, MERGES_NAME)
    beside = companions_dir(folder)
    return [beside / name for name in names if (beside / name).is_file()]


def _weights_checksum(folder: Path) -> str:
    """The checksum of a folder's weights, in one file or in several."""
    if (folder / WEIGHTS_NAME).is_file():
        return checksum_file(folder / WEIGHTS_NAME)
    parts = sorted(folder.glob("*.safetensors"))
    return checksum_bytes("".join(map(checksum_file, parts)).encode())


def _write_gguf(settings: ExportSettings, folder: Path, target: Path, progress: Progress) -> None:
    weights_dir = find_intact(folder, note=progress.note)
    config = load_config(weights_dir)
    beside = companions_dir(folder)
    tokenizer = Tokenizer.load(beside)
    require_vocabulary(tokenizer, config, folder)
    contents = describe_gguf(
        weights_dir,
        tokenizer=tokenizer,
        tokenizer_dir=beside,
        config=config,
        kind=settings.type or _USUAL_TYPE,
        name=folder.resolve().name,
    )
    write_json(_record_path(target), _describe_export(settings, folder, weights_dir))
    with progress.phase("write", total=contents.num_bytes, unit="B") as phase:
        write_gguf(target, contents, on_bytes=phase.advance)
    for text in contents.notes:
        progress.note(f"note: {text}")


def _require_free_folder(out_dir: Path) -> None:
    """Refuse a folder with files of a model, unless they are from an interrupted export."""
    record = out_dir / _RECORD
    stored = read_json(record) if record.is_file() else None
    if not (isinstance(stored, dict) and "weights" in stored):
        require_free_names(out_dir, _WRITTEN, next_step="choose another --out-dir")


def _write_folder(settings: ExportSettings, folder: Path, progress: Progress) -> None:
    out_dir = settings.out_dir
    _require_free_folder(out_dir)
    weights_dir = find_intact(folder, note=progress.note)
    model_config = load_config(weights_dir)
    stored_config = model_config
    beside = companions_dir(folder)
    tokenizer = Tokenizer.load(beside)
    require_vocabulary(tokenizer, model_config, folder)
    tokens = grown = None
    if settings.add_tokens is not None:
        tokens = find_new_tokens(settings.add_tokens, tokenizer)
        model_config = grown_config(model_config, tokens, settings.add_tokens)
        grown = grown_tokenizer(beside, tokenizer, tokens)
    described = _describe_export(settings, folder, weights_dir)
    write_json(out_dir / _RECORD, described)
    if text := foreign_note(tokenizer, model_config):
        progress.note(text)
    names = write_companions(out_dir, tokenizer, model_config, source=beside, grown=grown)
    names += write_modelling_file(out_dir, model_config)
    ends = dict.fromkeys(("eos_token_id", "bos_token_id"), tokenizer.end_of_text_id)
    ends = {
        **ends,
        **{name: model_config.others[name] for name in ends if name in model_config.others},
    }
    fields = model_config.to_huggingface()
    write_json(out_dir / CONFIG_NAME, {**fields, "dtype": described["dtype"], **ends})
    if GENERATION_CONFIG_NAME not in names:
        usual = {"do_sample": True, "temperature": 0.8, "top_k": 50}
        write_json(out_dir / GENERATION_CONFIG_NAME, {**ends, **usual})
    size = count_parameters(model_config) * (4 if described["dtype"] == "float32" else 2)
    record_files(out_dir, {*names, CONFIG_NAME, GENERATION_CONFIG_NAME})
    copy = copy_tensors if tokens is None else functools.partial(copy_grown, tokens=tokens)
    with progress.phase("write", total=size, unit="B") as phase:
        copy(  # last: its presence means that the export is complete
            weights_dir,
            out_dir / WEIGHTS_NAME,
            config=stored_config,
            dtype=settings.dtype,
            on_bytes=phase.advance,
        )
