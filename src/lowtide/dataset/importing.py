"""Import the ids of other programs as a dataset.

In:      files of another program (ConvertSettings)
Out:     a dataset folder; its metadata file is written last
Memory:  one chunk of ids and of document ends, a few MiB; nothing that grows with the files

Files are identified by their content, which is hashed first: an interrupted import resumes only
with the same content, and a file that was merely touched counts as the same.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from lowtide import files
from lowtide.arrays import np
from lowtide.corpus.differences import find_changed_name
from lowtide.dataset import layout
from lowtide.dataset.existing import is_tokenizer_of
from lowtide.dataset.finished import require_whole
from lowtide.dataset.settings import ConvertSettings
from lowtide.dataset.sharding import remove_other_shards
from lowtide.dataset.tokenfiles.shards import (
    ShardInfo,
    documents_path,
    id_chunk,
    shard_from_row,
    shard_name,
    shard_row,
    shard_tag,
    write_shard_stream,
)
from lowtide.dataset.tokenfiles.streams import TokenStream
from lowtide.dataset.tokenfiles.table import (
    list_source_files,
    load_source_tokenizer,
    open_source,
)
from lowtide.dataset.workfolder import begin_work, has_plan, read_facts, remove_work
from lowtide.errors import DataError, UsageError
from lowtide.filenames import METADATA_NAME, METRICS_NAME, TOKENIZER_NAME, WORK_NAME
from lowtide.progress import Progress
from lowtide.tokenizer import Tokenizer

__all__ = ["find_other_conversion", "import_dataset"]

_FILES = "files"


def import_dataset(
    settings: ConvertSettings, progress: Progress
) -> tuple[layout.DatasetInfo, bool]:
    """Import ids; returns (the dataset, whether it existed already)."""
    root = settings.out_path
    tokenizer = load_source_tokenizer(
        settings.in_path, kind=settings.source_kind or "nanogpt", named=settings.tokenizer
    )
    if (root / METADATA_NAME).exists():
        return _require_same(settings, tokenizer, progress), True
    unfinished = has_plan(root, verb="convert")
    names = [*layout.SPLITS, TOKENIZER_NAME]
    if is_tokenizer_of(settings.tokenizer, root):
        names.remove(TOKENIZER_NAME)
    taken = next((name for name in names if (root / name).exists()), None)
    if taken is None and has_plan(root):
        taken = WORK_NAME
    if taken is not None and not unfinished:
        raise UsageError(
            f"{taken} is here already, but no dataset that it belongs to",
            path=root,
            next_step="name another folder",
        )
    sources = open_source(
        settings.in_path,
        kind=settings.source_kind or "nanogpt",
        dtype=None if settings.dtype is None else np.dtype(settings.dtype),
        end_id=tokenizer.end_of_text_id,
        on_notice=progress.note,
    )
    stored = read_facts(root, verb="convert") if unfinished else None
    wanted = _describe(settings, tokenizer, stored, progress)
    plan = _plan_shards(sources, settings)
    _begin(root, stored, wanted, progress)
    progress.metrics_path = root / METRICS_NAME
    shards = _write_shards(root, plan, wanted, tokenizer, progress)
    _require_unchanged(settings, wanted)
    tokenizer.save(root)
    info = _finish(settings, tokenizer, sources, shards, wanted)
    remove_work(root)
    return info, False


def _describe(
    settings: ConvertSettings,
    tokenizer: Tokenizer,
    stored: Mapping[str, Any] | None,
    progress: Progress,
) -> dict[str, Any]:
    """Everything an import depends on; files by name, size, modification time and content hash."""
    kind = settings.source_kind or "nanogpt"
    paths = list_source_files(settings.in_path, kind=kind)
    total = sum(path.stat().st_size for path in paths)
    with progress.phase("hash", total=total, unit="B") as phase:
        rows = _describe_files(paths, (stored or {}).get(_FILES), phase.advance)
    return {
        "from": settings.source_kind,
        "tokenizer": tokenizer.fingerprint,
        "dtype": settings.dtype or "uint16",
        "val-fraction": settings.val_fraction,
        "tokens-per-shard": settings.tokens_per_shard,
        _FILES: rows,
    }


def _describe_files(
    paths: Sequence[Path], known: object, on_done: Callable[[int], None] = lambda _: None
) -> list[list[Any]]:
    """[path, size, mtime, content hash] of each; read only if size or time are new."""
    old = {tuple(row[:3]): row[3] for row in _rows(known) if len(row) == 4}
    rows: list[list[Any]] = []
    for path in paths:
        files.require_file(path)
        status = path.stat()
        row = [os.fspath(path), status.st_size, status.st_mtime_ns]
        rows.append([*row, old.get(tuple(row)) or files.checksum_file(path)])
        on_done(status.st_size)
    return rows


def _rows(value: object) -> list[list[Any]]:
    rows = cast("list[Any]", value) if isinstance(value, list) else []
    return [row for row in rows if isinstance(row, list)]


def find_other_conversion(stored: object, wanted: Mapping[str, Any]) -> str | None:
    """Describe how a conversion differs from the one in a record; None if it does not."""
    if not isinstance(stored, Mapping):
        return "nothing says what it was made of"
    known = cast("Mapping[str, Any]", stored)
    for name, value in wanted.items():
        if name == _FILES:
            if (changed := _find_changed(_rows(known.get(_FILES)), value)) is not None:
                return changed
        elif known.get(name) != value:
            return f"it was made with {name}={known.get(name)}, now {name}={value}"
    return None


def _find_changed(before: list[list[Any]], now: list[list[Any]]) -> str | None:
    """The first file that differs in name or content."""
    names = [[Path(row[0]).name for row in rows] for rows in (before, now)]
    if names[0] != names[1]:
        return find_changed_name(*names)
    for old, new in zip(before, now, strict=True):
        # Earlier versions stored no content hash, so only size and time are compared.
        same = old[1] == new[1] and (old[3] == new[3] if len(old) == 4 else old[2] == new[2])
        if not same:
            return f"{new[0]} holds other ids than then"
    return None


def _require_same(
    settings: ConvertSettings, tokenizer: Tokenizer, progress: Progress
) -> layout.DatasetInfo:
    """Return the existing dataset if this same command would make it; else raise an error."""
    root = settings.out_path
    info = layout.load_dataset_info(root)
    stored = info.metadata.get("conversion")
    wanted = _describe(settings, tokenizer, stored if isinstance(stored, dict) else None, progress)
    difference = find_other_conversion(stored, wanted)
    if difference is not None:
        raise UsageError(
            f"there is a finished dataset here already: {difference}",
            path=root,
            next_step="name another folder",
        )
    require_whole(info)
    if has_plan(root, verb="convert"):
        remove_work(root)  # killed just before
    return info


def _begin(
    root: Path, stored: Mapping[str, Any] | None, wanted: Mapping[str, Any], progress: Progress
) -> None:
    """Resume unfinished work, or remove the leftovers of another command."""
    if stored is not None:
        difference = find_other_conversion(stored, wanted)
        if difference is None:
            progress.note("going on where the last command stopped")
        else:
            progress.note(f"the unfinished import here is begun anew: {difference}")
            remove_work(root)  # its shards are removed at the end, with all of other imports
    begin_work(root, verb="convert", facts=wanted)


def _plan_shards(
    sources: dict[str, TokenStream], settings: ConvertSettings
) -> list[tuple[str, TokenStream, int, int]]:
    """(split, source, first, last) of every shard; of a single stream, the end becomes val."""
    stretches: list[tuple[str, TokenStream, int, int]] = []
    if "all" in sources:
        source = sources["all"]
        total = source.num_tokens
        if total < 2:
            raise DataError(
                f"only {total} ids here, expected 2 at least",
                path=settings.in_path,
                next_step="name the file or folder that holds the ids",
            )
        wanted = round(total * settings.val_fraction)
        val = min(max(wanted, 1), total - 1) if settings.val_fraction else 0
        stretches = [("train", source, 0, total - val), ("val", source, total - val, total)]
    else:
        stretches = [
            (split, sources[split], 0, sources[split].num_tokens)
            for split in layout.SPLITS
            if split in sources
        ]
    return [
        (split, source, begin, min(begin + settings.tokens_per_shard, last))
        for split, source, first, last in stretches
        for begin in range(first, last, settings.tokens_per_shard)
    ]


def _write_shards(
    root: Path,
    plan: list[tuple[str, TokenStream, int, int]],
    wanted: Mapping[str, Any],
    tokenizer: Tokenizer,
    progress: Progress,
) -> dict[str, list[ShardInfo]]:
    """Write every shard that does not exist yet."""
    settings = {name: value for name, value in wanted.items() if name != _FILES}
    tag = shard_tag(tokenizer.fingerprint, settings, [row[3] for row in wanted[_FILES]])
    notes = root / WORK_NAME / "shards"
    notes.mkdir(exist_ok=True)
    shards: dict[str, list[ShardInfo]] = {split: [] for split in layout.SPLITS}
    total = sum(last - first for _, _, first, last in plan)
    with progress.phase("import", total=total, unit="tokens") as phase:
        for number, (split, source, first, last) in enumerate(plan):
            path = root / split / shard_name(number, tag)
            path.parent.mkdir(parents=True, exist_ok=True)
            shard = _write_once(path, notes / f"{number:05d}.json", source, first, last, tokenizer)
            shards[split].append(shard)
            phase.advance(shard.num_tokens)
    remove_other_shards(root, [shard.path for rows in shards.values() for shard in rows])
    return shards


def _write_once(
    path: Path, note: Path, source: TokenStream, first: int, last: int, tokenizer: Tokenizer
) -> ShardInfo:
    """Write a shard and record its row; skip one that is already recorded."""
    root = path.parent.parent
    if note.is_file() and path.is_file() and documents_path(path).is_file():
        return shard_from_row(root, files.read_json(note))
    origin = source.parts[0].path  # the first source if there are several
    chunks = (
        id_chunk(ids, ends, vocab_size=tokenizer.vocab_size, path=origin)
        for ids, ends in source.iter_chunks(first, last)
    )
    shard = write_shard_stream(path, chunks, vocab_size=tokenizer.vocab_size)
    files.write_json(note, shard_row(root, shard))
    return shard


def _require_unchanged(settings: ConvertSettings, wanted: Mapping[str, Any]) -> None:
    """Refuse files that were overwritten while they were read; ones only touched are accepted."""
    paths = list_source_files(settings.in_path, kind=settings.source_kind or "nanogpt")
    if _find_changed(wanted[_FILES], _describe_files(paths, wanted[_FILES])) is not None:
        raise DataError(
            "these files were changed while they were read",
            path=settings.in_path,
            next_step="give the same command again when nothing writes to them any more",
        )


def _finish(
    settings: ConvertSettings,
    tokenizer: Tokenizer,
    sources: Mapping[str, TokenStream],
    shards: Mapping[str, list[ShardInfo]],
    wanted: Mapping[str, Any],
) -> layout.DatasetInfo:
    layout.write_metadata(
        settings.out_path,
        shards=shards,
        vocab_size=tokenizer.vocab_size,
        tokenizer_fingerprint=tokenizer.fingerprint,
        tokenization="char" if tokenizer.kind == "char" else settings.tokenizer,
        tokens_per_shard=settings.tokens_per_shard,
        input_files=[str(settings.in_path)],
        more={
            "split": {
                "mode": "tail" if "all" in sources else "content",
                "val_fraction": settings.val_fraction,
            },
            # Other programs put end-of-text before documents, or nowhere, so verify must not expect
            # it.
            "end_of_text_id": None,
            "imported_from": settings.source_kind,
            "conversion": wanted,
        },
    )
    return layout.load_dataset_info(settings.out_path)
