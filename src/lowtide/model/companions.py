"""The files beside a model's weights: its tokenizer, chat template and generation settings.

Files of a published model are copied unchanged: the tokenizer with its templates, the chat
template, generation settings. Only the class name of the tokenizer is changed, because transformers
otherwise rebuilds the tokenizer of a model_type from its vocabulary, and would split text by other
rules than those of a tokenizer.json learned here.

In:      the folder a model came from, or a Tokenizer
Out:     tokenizer.json, tokenizer_config.json and other files, recorded in checksums.json
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from lowtide.errors import DataError
from lowtide.filenames import (
    CONFIG_NAME,
    GENERATION_CONFIG_NAME,
    MERGES_NAME,
    PIECES_NAME,
    TEKKEN_NAME,
    TOKENIZER_CONFIG_NAME,
    TOKENIZER_NAME,
    VOCABULARY_NAME,
)
from lowtide.files import json_bytes, read_json, write_bytes
from lowtide.model.checksums import record_files
from lowtide.model.config import GPTConfig
from lowtide.model.moduleconfig import ModuleConfig
from lowtide.tokenizer import Tokenizer

__all__ = [
    "COMPANIONS",
    "companions_dir",
    "foreign_note",
    "has_tokenizer",
    "require_vocabulary",
    "write_companions",
]

COMPANIONS = (
    GENERATION_CONFIG_NAME,
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.jinja",
    "chat_template.json",
    PIECES_NAME,
)
"""Files that are copied unchanged."""
_OF_TOKENS = ("added_tokens.json", PIECES_NAME)
_LARGEST = 64 << 20
_CLASS = "PreTrainedTokenizerFast"


def has_tokenizer(folder: Path) -> bool:
    """True if a folder has a tokenizer in a supported format."""
    pair = (VOCABULARY_NAME, MERGES_NAME)
    alone = (TOKENIZER_NAME, TEKKEN_NAME, PIECES_NAME)
    return any((folder / name).is_file() for name in alone) or all(
        (folder / name).is_file() for name in pair
    )


def companions_dir(folder: Path) -> Path:
    """The folder of the tokenizer and other files of the model in `folder`.

    That is the folder itself, but of a checkpoint, RUN/steps/step_N, that of its run.
    """
    steps = folder.parent if len(folder.parts) > 2 else folder.absolute().parent
    run = steps.parent
    if steps.name != "steps" or not (run / CONFIG_NAME).is_file() or has_tokenizer(folder):
        return folder
    return run if has_tokenizer(run) else folder


def require_vocabulary(tokenizer: Tokenizer, config: GPTConfig, folder: Path) -> None:
    """Refuse a tokenizer with ids that the embedding has no rows for."""
    if tokenizer.vocab_size > config.vocab_size:
        raise DataError(
            f"the tokenizer has {tokenizer.vocab_size:,} ids, the model's embedding "
            f"{config.vocab_size:,} rows",
            path=folder,
            next_step="bring tokenizer and weights of the same model together",
        )


def foreign_note(tokenizer: Tokenizer, config: GPTConfig) -> str | None:
    """A note for models for which transformers gives other ids than lowtide, with any files."""
    fixed = config.family.fixed_pattern
    if fixed and tokenizer.data.pattern != fixed:
        return (
            f"note: transformers splits the text of every {config.layout} model by the rules of "
            f"{config.family.title}, and this "
            "tokenizer by others: take lowtide's ids, or those of the package tokenizers"
        )
    return None


def write_companions(
    folder: Path,
    tokenizer: Tokenizer,
    config: GPTConfig | ModuleConfig,
    *,
    source: Path | None,
    grown: bytes | None = None,
) -> list[str]:
    """Write the files that belong beside weights into `folder`, and record them; return names.

    `source` is the folder that the model came from, if it came from one; `grown` its tokenizer.json
    with more tokens than it had there.
    """
    folder.mkdir(parents=True, exist_ok=True)
    names = [TOKENIZER_NAME, TOKENIZER_CONFIG_NAME]
    if grown is not None:
        _write(folder / TOKENIZER_NAME, grown)
    elif source is not None and (source / TOKENIZER_NAME).is_file():
        _copy(source / TOKENIZER_NAME, folder / TOKENIZER_NAME)
    else:
        tokenizer.save(folder)
    fields = _tokenizer_config(tokenizer, config, source)
    _write(folder / TOKENIZER_CONFIG_NAME, json_bytes(fields))
    for path in _companions_of(source):
        if grown is not None and path.name in _OF_TOKENS:
            continue  # they list the tokens without the added ones
        _copy(path, folder / path.name)
        names.append(path.name)
    record_files(folder, names)
    return names


def _companions_of(source: Path | None) -> Iterator[Path]:
    for name in COMPANIONS:
        if source is not None and (source / name).is_file():
            yield source / name


def _copy(path: Path, target: Path) -> None:
    if path.stat().st_size > _LARGEST:
        raise DataError(f"{path.name} has more than {_LARGEST:,} bytes", path=path)
    _write(target, path.read_bytes())


def _write(path: Path, data: bytes) -> None:
    if not path.is_file() or path.read_bytes() != data:
        write_bytes(path, data)


def _tokenizer_config(
    tokenizer: Tokenizer, config: GPTConfig | ModuleConfig, source: Path | None
) -> dict[str, Any]:
    """Make transformers use tokenizer.json unchanged; other fields of the source are kept."""
    if source is not None and (source / TOKENIZER_CONFIG_NAME).is_file():
        fields: Any = read_json(source / TOKENIZER_CONFIG_NAME)
        if not isinstance(fields, dict):
            raise DataError("does not hold an object", path=source / TOKENIZER_CONFIG_NAME)
        return {**fields, "tokenizer_class": _CLASS}
    fields = {
        "tokenizer_class": _CLASS,
        "model_max_length": config.context_length,
        "clean_up_tokenization_spaces": False,
    }
    if tokenizer.end_of_text is not None:
        fields["eos_token"] = fields["bos_token"] = tokenizer.end_of_text
    if "<unk>" in tokenizer.special_tokens:
        fields["unk_token"] = "<unk>"
    return fields
