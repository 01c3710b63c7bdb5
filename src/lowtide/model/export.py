"""A folder that transformers loads as it is: weights, config, tokenizer; and the way back.

In:      the folder of a run, or of a Qwen3 or GPT-2 model
Out:     model.safetensors, config.json, tokenizer.json and what transformers wants beside them
Memory:  one copy of the weights in the wanted type
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from lowtide.errors import DataError, UsageError
from lowtide.files import checksum_file, hold_lock, read_json, write_json
from lowtide.progress import Progress, run_metrics_path
from lowtide.settings import build_settings

__all__ = ["ExportSettings", "export_model"]

_WEIGHTS = "model.safetensors"
_RECORD = "export.json"
"""What an export was made of, for the same command given again."""


@dataclass(frozen=True)
class ExportSettings:
    """Which model goes where."""

    model_name: str
    """Run to export (its name or folder), or a Qwen3 or GPT-2 folder to bring into this form."""
    out_dir: Path
    """Folder to write; transformers loads it with AutoModelForCausalLM and AutoTokenizer."""
    checkpoints_dir: Path = Path("checkpoints")
    """Where runs are kept."""
    best: bool = False
    """Take the run's best weights instead of the last."""
    dtype: Literal["float32", "bfloat16", "float16"] = "float32"
    """Type of the written weights."""


def export_model(settings: ExportSettings | None = None, /, **options: Any) -> Path:
    """Write the folder and give its path."""
    settings = settings or build_settings(ExportSettings, options)

    from lowtide.model.weights import find_model_dir  # here: the settings need no torch

    out_dir = settings.out_dir
    run_dir = find_model_dir(settings.model_name, settings.checkpoints_dir)
    folder = run_dir / "best" if settings.best else run_dir
    if not (folder / "tokenizer.json").is_file():
        raise DataError("no tokenizer.json here", path=folder)
    if _is_there(settings, folder):
        return out_dir
    with (
        hold_lock(out_dir, create_folder=True),
        Progress("export", metrics_path=run_metrics_path(run_dir)) as progress,
    ):
        if not _is_there(settings, folder):  # by a command that ended just now
            _write_folder(settings, folder, progress)
    return out_dir


def _is_there(settings: ExportSettings, folder: Path) -> bool:
    """True if this very export is finished; another one's folder is refused."""
    out_dir = settings.out_dir
    if not (out_dir / _WEIGHTS).exists():
        return False
    wanted = _describe_export(settings, folder)
    stored = read_json(out_dir / _RECORD) if (out_dir / _RECORD).is_file() else None
    if stored == wanted:
        return True
    reason = "nothing says what it was made of"
    if isinstance(stored, dict):
        name = next(name for name in wanted if stored.get(name) != wanted[name])
        reason = f"its {name} is {stored.get(name)}, now it is {wanted[name]}"
    raise UsageError(
        f"there is a model here already: {reason}",
        path=out_dir,
        next_step="choose another --out-dir, or remove this one",
    )


def _describe_export(settings: ExportSettings, folder: Path) -> dict[str, Any]:
    """What the written folder depends on."""
    return {
        "dtype": settings.dtype,
        "weights": checksum_file(folder / _WEIGHTS),
        "tokenizer": checksum_file(folder / "tokenizer.json"),
    }


def _write_folder(settings: ExportSettings, folder: Path, progress: Progress) -> None:
    import torch  # here, so that the settings above need no torch

    from lowtide.model.checksums import record_files
    from lowtide.model.weights import load_model, portable_tensors, save_weights
    from lowtide.tokenizer import Tokenizer

    out_dir = settings.out_dir
    tokenizer = Tokenizer.load(folder)
    size = (folder / _WEIGHTS).stat().st_size
    with progress.phase("read", total=size, unit="B") as phase:
        model = load_model(folder)
        phase.update(size)
    write_json(out_dir / _RECORD, _describe_export(settings, folder))
    tokenizer.save(out_dir)
    end = tokenizer.end_of_text_id
    config = {**model.config.to_huggingface(), "dtype": settings.dtype, "eos_token_id": end}
    write_json(out_dir / "config.json", {**config, "bos_token_id": end})
    write_json(out_dir / "tokenizer_config.json", _tokenizer_config(tokenizer, model.config))
    write_json(
        out_dir / "generation_config.json",
        {
            "bos_token_id": end,
            "eos_token_id": end,
            "do_sample": True,
            "temperature": 0.8,
            "top_k": 50,
        },
    )
    dtype = getattr(torch, settings.dtype)
    tensors = portable_tensors(model.state_dict(), model.config, dtype)
    size = sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())
    names = ("tokenizer.json", "config.json", "tokenizer_config.json", "generation_config.json")
    record_files(out_dir, names)
    with progress.phase("write", total=size, unit="B") as phase:
        save_weights(out_dir / _WEIGHTS, tensors)  # last: its presence means it is whole
        phase.update(size)


def _tokenizer_config(tokenizer: Any, config: Any) -> dict[str, Any]:
    """Tell transformers to take tokenizer.json as it is."""
    fields: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": config.context_length,
        "clean_up_tokenization_spaces": False,
    }
    if tokenizer.end_of_text_id is not None:
        fields["eos_token"] = fields["bos_token"] = "<|endoftext|>"
    if "<unk>" in tokenizer.special_tokens:
        fields["unk_token"] = "<unk>"
    return fields
