"""Add new text to a finished dataset, as if it had come after what is there.

In:      a dataset, and files of new text (AppendSettings)
Out:     more shards, numbered on; new metadata, written last; no existing shard is touched
Memory:  as preparation; what is there is decoded a few MiB at a time

Duplicates of existing text are left out: the dataset's own tokens are decoded and their lines
hashed again, so this works for shards of any origin, without a stored index.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import chain
from typing import Any

from lowtide import files
from lowtide.corpus.blockcleaning import CleanJob
from lowtide.corpus.blocktable import BlockTable
from lowtide.corpus.inputhashes import InputHashes
from lowtide.corpus.inputs import InputList, expand_inputs
from lowtide.corpus.ranking import ScoreCut, read_cut
from lowtide.corpus.reading import plan_streams
from lowtide.corpus.workers import WorkerPool
from lowtide.dataset import layout
from lowtide.dataset.addedtext import AddedText, Findings, read_stored_counts
from lowtide.dataset.appendable import (
    NOTES_NAME,
    AppendResult,
    find_new,
    finish_cleaning_up,
    give_up,
    stored_settings,
    unknown_characters,
)
from lowtide.dataset.encoding import Coder, EncodeJob, SourceCounts, add_up_blocks
from lowtide.dataset.finished import require_whole
from lowtide.dataset.identity import iter_sources, list_contents, require_unchanged
from lowtide.dataset.phases import (
    naming_folder,
    noticing_changes,
    run_cleaning,
    run_deduplication,
    run_encoding,
    run_sharding,
)
from lowtide.dataset.rehashing import ExistingText, hash_existing, load_existing
from lowtide.dataset.removed import RemovedText, leave_out_with
from lowtide.dataset.resources import Inputs, Shares, check_disk, plan_shares
from lowtide.dataset.seen import write_seen
from lowtide.dataset.settings import AppendSettings, PrepareSettings
from lowtide.dataset.sharding import ShardJob, plan_shards
from lowtide.dataset.workfolder import is_outdated, open_work, remove_work
from lowtide.errors import DataError
from lowtide.filenames import METRICS_NAME, TOKENIZER_NAME
from lowtide.keywords import takes_keywords
from lowtide.longjson import Rows
from lowtide.memory import MemoryBudget
from lowtide.progress import Progress
from lowtide.tokenizer import END_OF_TEXT, Tokenizer

__all__ = ["append_to_dataset"]

_BYTES_PER_TOKEN = 4  # of English; for the disk that the dataset's own text takes


@takes_keywords(AppendSettings)
def append_to_dataset(settings: AppendSettings) -> AppendResult:
    """Add files of text to a dataset, with its own tokenizer and settings."""
    layout.read_metadata(settings.dataset_dir)  # refuses a folder that is not a dataset
    with naming_folder(settings.dataset_dir), files.hold_lock(settings.dataset_dir):
        return _append(settings)


def _append(settings: AppendSettings) -> AppendResult:
    finish_cleaning_up(settings.dataset_dir)
    if settings.restart or is_outdated(settings.dataset_dir, verb="append"):
        give_up(settings.dataset_dir)
    info = layout.load_dataset_info(settings.dataset_dir)
    stored = stored_settings(info, settings)
    notices: list[str] = []
    found = expand_inputs(settings.input_files, on_notice=notices.append)
    needs = Inputs.of(found, stored, tokenizer=info.root)  # before the budget: it imports
    if stored.decontaminate:  # before all work: without these counts nothing can be appended
        read_stored_counts(info.root, info.metadata, stored)
    budget = MemoryBudget.from_setting(settings.memory)
    shares = plan_shares(stored, budget, needs)
    with (
        Progress(
            "append",
            budget_bytes=budget.total_bytes,
            metrics_path=info.root / METRICS_NAME,
        ) as progress,
        WorkerPool(shares.num_workers) as pool,
    ):
        for notice in notices:
            progress.note(notice)
        reading = stored.reading(reader_bytes=shares.reader_bytes, budget_bytes=budget.total_bytes)
        inputs = find_new(info, found, stored, reading, progress.note)
        if not inputs:
            require_whole(info)
            progress.metrics_path = None
            if settings.restart:
                remove_work(info.root)
            return AppendResult(info, {}, [], 0, 0, was_there=True)
        check_disk(
            info.root,
            inputs,
            progress,
            one_pass_bytes=0,
            near_copies=stored.near is not None,
            existing_bytes=(
                _BYTES_PER_TOKEN * int(info.metadata.get("total_tokens", 0)) if stored.near else 0
            ),
        )
        return _Append(info, settings, stored, shares, inputs, pool, progress).run()


class _Append:
    """One run of `lowtide append`, phase by phase."""

    def __init__(
        self,
        info: layout.DatasetInfo,
        settings: AppendSettings,
        stored: PrepareSettings,
        shares: Shares,
        inputs: InputList,
        pool: WorkerPool,
        progress: Progress,
    ) -> None:
        self.root = info.root
        self.metadata = info.metadata
        self.stored = stored
        self.shares = shares
        self.inputs = inputs
        self.pool = pool
        self.progress = progress
        self.reading = stored.reading(
            reader_bytes=shares.reader_bytes, budget_bytes=progress.budget_bytes
        )
        self.streams = plan_streams(inputs, self.reading)
        # Shards of this command that a kill left behind would look like ones moved in by hand.
        before = [shard for split in layout.SPLITS for shard in info.shards[split]]
        numbers = [layout.shard_number(shard.path) for shard in before]
        self.work, facts = open_work(
            info.root,
            verb="append",
            settings={
                "text_field": settings.text_field,
                "skip_bad_inputs": settings.skip_bad_inputs,
                "total_tokens": info.metadata.get("total_tokens"),
                **({"decontaminate": True} if stored.decontaminate else {}),
            },
            streams=self.streams,
            restart=settings.restart,
            on_notice=progress.note,
            facts={
                "num_appended": len(info.metadata.get("appended", [])),
                "first_number": 1 + max((n for n in numbers if n is not None), default=-1),
                "shards": {
                    split: [layout.shard_row(info.root, shard) for shard in info.shards[split]]
                    for split in layout.SPLITS
                },
            },
        )
        self.first_number = int(facts["first_number"])
        self.before = {
            split: [layout.shard_from_row(info.root, row) for row in facts["shards"][split]]
            for split in layout.SPLITS
        }
        self.info = info
        self.seen: list[Any] = list(info.metadata.get("seen", []))
        if self.stored.dedup and not self.seen and "cleaning" in info.metadata:
            progress.note(
                "this dataset keeps no hashes of its documents, as those of earlier versions: "
                "short lines of a document that is there already may be added"
            )

    def run(self) -> AppendResult:
        tokenizer = Tokenizer.load(self.root)
        if tokenizer.fingerprint != self.info.tokenizer_fingerprint:
            raise DataError(
                f"{TOKENIZER_NAME} is not the one the ids were made with",
                path=self.info.tokenizer_path,
                next_step=f"lowtide verify {self.root}",
            )
        job = CleanJob(
            streams=self.streams,
            reading=self.reading,
            cleaning=self.stored.cleaning,
            cut=self.find_cut(),
            folder=self.work / "clean",
            collect_characters=tokenizer.kind == "char",
        )
        with noticing_changes(self.inputs, lambda: remove_work(self.root)):
            table = run_cleaning(job, self.pool, self.progress)
            require_unchanged(self.inputs, table.contents, self.reading)
        contents = table.contents
        unknown = unknown_characters(tokenizer, table)
        found = self.find_in(table, tokenizer)
        notices = [*table.notices, *unknown, *found.notices()]
        for notice in found.notices():
            self.progress.note(notice)
        lines, first_block = None, 0
        if self.stored.dedup:
            existing = hash_existing(self.existing("existing"), tokenizer, self.pool, self.progress)
            table, first_block = table.after(existing), len(existing)
            lines = run_deduplication(
                table,
                self.work / "duplicates",
                self.pool,
                self.progress,
                self.shares,
                leave_out=leave_out_with(found.finders, first_block=first_block),
            )
        removed = lines
        if found.finders:
            removed = RemovedText(lines, found.finders, first_block=-first_block)
        encode_job = EncodeJob(
            cleaning=self.stored.cleaning,
            coder=Coder(tokenizer, end_id=self.end_id(tokenizer)),
            shuffle=self.stored.shuffle,
            seed=self.stored.seed,
            folder=self.work / "encoded",
        )
        run_encoding(encode_job, table, removed, self.pool, self.progress, first_block=first_block)
        return self.write(
            encode_job,
            table,
            notices,
            contents,
            first_block=first_block,
            unknown=bool(unknown),
            logs=found.write_logs(self.root, 1 + len(self.metadata.get("appended", []))),
        )

    def find_in(self, table: BlockTable, tokenizer: Tokenizer) -> Findings:
        """Near copies and evaluation items in the new text."""
        added = AddedText(
            table,
            self.stored,
            self.root,
            self.metadata,
            self.work / "near",
            self.shares.table_bytes,
        )
        return added.find(
            lambda: load_existing(self.existing("there"), tokenizer, self.pool, self.progress),
            self.pool,
            self.progress,
        )

    def find_cut(self) -> ScoreCut | None:
        """The dataset's own score cut: new inputs alone do not show which documents are best."""
        if self.stored.keep_top is None:
            return None
        cut = read_cut(self.metadata.get("cleaning", {}).get("score"))
        self.progress.note(
            f"documents stay whose score is at least the dataset's own cut, {cut.score:.6g}"
        )
        return cut

    def end_id(self, tokenizer: Tokenizer) -> int | None:
        """The id that ends documents here; earlier versions did not store it."""
        written = self.info.metadata.get("end_of_text_id")
        return tokenizer.special_tokens.get(END_OF_TEXT) if written is None else int(written)

    def shard_tag(self, contents: InputHashes) -> str:
        """A tag by content: that of the new texts, and of what they were added to."""
        before = [
            [shard.num_tokens, shard.checksum or shard.path.name]
            for split in layout.SPLITS
            for shard in self.before[split]
        ]
        return layout.shard_tag(
            self.info.tokenizer_fingerprint, before, list_contents(self.inputs, contents)
        )

    def existing(self, folder: str) -> ExistingText:
        """What the dataset holds, to be read into blocks before those of the new text."""
        return ExistingText(
            root=self.root,
            shards=self.before,
            dtype=self.info.dtype,
            seen=self.seen,
            reading=self.reading,
            cleaning=self.stored.cleaning,
            folder=self.work / folder,
        )

    def write(
        self,
        encode_job: EncodeJob,
        table: BlockTable,
        notices: list[str],
        contents: InputHashes,
        *,
        first_block: int,
        unknown: bool,
        logs: dict[str, Any],
    ) -> AppendResult:
        paths = [encode_job.path(path) for path in table.paths[first_block:]]
        new_files = Rows(len(self.inputs), lambda: (str(row.path) for row in self.inputs))
        first_index = len(self.metadata.get("input_files", []))
        sources = SourceCounts(len(self.inputs), first_index=first_index)
        add_up_blocks(paths, table.report, sources)
        split = self.metadata.get("split", {})
        job = ShardJob(
            root=self.work / "new",
            encoded=paths,
            shuffle=self.stored.shuffle,
            val_fraction=float(split.get("val_fraction", self.stored.val_fraction)),
            tokens_per_shard=self.stored.tokens_per_shard,
            vocab_size=self.info.vocab_size,
            tag=self.shard_tag(contents),
            first_number=self.first_number,
            split_mode=split.get("mode", "content"),
            range_bytes=self.shares.range_bytes,
            done_folder=self.work / NOTES_NAME,
            first_block=first_block,
        )
        plan = plan_shards(job)
        seen = self.seen
        if self.stored.dedup and seen:
            new = table.paths[first_block:]
            # Lines with unknown characters cannot be decoded from the ids, so all hashes are kept.
            seen = [*seen, write_seen(self.root, len(seen), new, paths, all_lines=unknown)]
        added = self.move_in(run_sharding(job, plan, self.pool, self.progress))
        tokens = sum(shard.num_tokens for shards in added.values() for shard in shards)
        report = table.report.as_json()
        metadata = self.metadata
        known = {
            "format_version", "total_tokens", "total_documents", "total_shards", "train_shards",
            "val_shards", "train_tokens", "val_tokens", "tokens_per_shard", "tokenization",
            "vocab_size", "dtype", "tokenizer_fingerprint", "input_files", "shards",
        }  # fmt: skip
        event = {
            "input_files": new_files,
            "first_shard": self.first_number,
            "tokens": tokens,
            "cleaning": report,
            "notices": notices,
            **logs,
        }
        info = layout.write_metadata(
            self.root,
            shards={name: self.before[name] + added[name] for name in layout.SPLITS},
            vocab_size=self.info.vocab_size,
            tokenizer_fingerprint=self.info.tokenizer_fingerprint,
            tokenization=metadata.get("tokenization", "unknown"),
            tokens_per_shard=self.stored.tokens_per_shard,
            input_files=_joined(metadata.get("input_files", []), new_files),
            more={
                **{key: value for key, value in metadata.items() if key not in known},
                "sources": _joined(
                    metadata.get("sources", []),
                    Rows(
                        len(self.inputs),
                        lambda: sources.iter_json(
                            iter_sources(self.inputs, self.reading, contents)
                        ),
                    ),
                ),
                **({"seen": seen} if seen else {}),
                "appended": [*metadata.get("appended", []), event],
            },
        )
        remove_work(self.root)
        return AppendResult(info, report, notices, tokens, sum(map(len, added.values())))

    def move_in(
        self, added: dict[str, list[layout.ShardInfo]]
    ) -> dict[str, list[layout.ShardInfo]]:
        """Move finished shards into the dataset; until then no reader sees them."""
        moved: dict[str, list[layout.ShardInfo]] = {}
        for split, shards in added.items():
            moved[split] = []
            for shard in shards:
                path = self.root / split / shard.path.name
                layout.documents_path(shard.path).replace(layout.documents_path(path))
                shard.path.replace(path)
                moved[split].append(replace(shard, path=path))
            if shards:
                files.sync_directory(self.root / split)
        return moved


def _joined(first: Sequence[Any], second: Sequence[Any]) -> Rows:
    return Rows(len(first) + len(second), lambda: chain(first, second))
