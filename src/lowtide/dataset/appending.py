"""Append new text to a finished dataset, with the result of preparing old and new text together.

In:      a dataset, and files of new text (AppendSettings)
Out:     more shards, with the next numbers; new metadata, written last; existing shards unchanged
Memory:  as preparation; existing text is decoded a few MiB at a time

Duplicates of existing text are removed: the dataset's own tokens are decoded and their lines
hashed again, so this works for shards of any origin, without a stored index.
"""

from __future__ import annotations

from typing import Any

from lowtide import files
from lowtide.corpus.blockcleaning import CleanJob
from lowtide.corpus.blocktable import BlockTable
from lowtide.corpus.inputhashes import InputHashes
from lowtide.corpus.inputs import InputList, expand_inputs
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
)
from lowtide.dataset.encoding import Coder, EncodedTotals, EncodeJob
from lowtide.dataset.finished import require_whole
from lowtide.dataset.grown import Added, GrownDataset, first_free_number, unknown_characters
from lowtide.dataset.identity import require_unchanged
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
from lowtide.dataset.tokenfiles.shards import shard_from_row, shard_row
from lowtide.dataset.workfolder import is_outdated, open_work, remove_work
from lowtide.filenames import METRICS_NAME
from lowtide.keywords import takes_keywords
from lowtide.memory import MemoryBudget
from lowtide.progress import Progress
from lowtide.stores.paths import is_stored
from lowtide.tokenizer import Tokenizer

__all__ = ["append_to_dataset"]

_BYTES_PER_TOKEN = 4  # of English; to estimate the disk space of the dataset's own text


@takes_keywords(AppendSettings)
def append_to_dataset(settings: AppendSettings) -> AppendResult:
    """Add files of text to a dataset, with its own tokenizer and settings."""
    if not is_stored(settings.dataset_dir):
        layout.read_metadata(settings.dataset_dir)  # refuses a folder that is not a dataset
    if settings.engine == "files":
        from lowtide.dataset.staged.adding import append_shared

        return append_shared(settings)
    if settings.engine == "ray":
        from lowtide.dataset.staged.onray import append_on_ray

        return append_on_ray(settings)
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
    needs = Inputs.of(found, stored, tokenizer=info.root)  # before the budget is measured
    if stored.decontaminate:  # first, because without these counts nothing can be appended
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
        reading = shares.reading(stored, budget.total_bytes)
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


def _decisive_settings(
    info: layout.DatasetInfo, settings: AppendSettings, stored: PrepareSettings
) -> dict[str, Any]:
    """The settings that have to be the same to resume an interrupted append."""
    return {
        "text_field": settings.text_field,
        "skip_bad_inputs": settings.skip_bad_inputs,
        "total_tokens": info.metadata.get("total_tokens"),
        **({"decontaminate": True} if stored.decontaminate else {}),
    }


def _facts_of(info: layout.DatasetInfo) -> dict[str, Any]:
    """Facts of the dataset before anything is moved in."""
    return {
        "num_appended": len(info.metadata.get("appended", [])),
        "first_number": first_free_number(info),
        "shards": {
            split: [shard_row(info.root, shard) for shard in info.shards[split]]
            for split in layout.SPLITS
        },
    }


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
        self.stored = stored
        self.shares = shares
        self.inputs = inputs
        self.pool = pool
        self.progress = progress
        self.reading = shares.reading(stored, progress.budget_bytes or 0)
        self.streams = plan_streams(inputs, self.reading)
        # Shards left by a killed append would look like ones moved in by hand.
        self.work, facts = open_work(
            info.root,
            verb="append",
            settings=_decisive_settings(info, settings, stored),
            streams=self.streams,
            restart=settings.restart,
            on_notice=progress.note,
            facts=_facts_of(info),
        )
        self.grown = GrownDataset(
            info,
            stored,
            shards={
                split: [shard_from_row(info.root, row) for row in facts["shards"][split]]
                for split in layout.SPLITS
            },
            first_number=int(facts["first_number"]),
        )
        for notice in self.grown.notices():
            progress.note(notice)

    def run(self) -> AppendResult:
        tokenizer = self.grown.tokenizer
        table = self.clean()
        contents = table.contents
        unknown = unknown_characters(tokenizer, table.list_characters())
        found = self.find_in(table, tokenizer)
        notices = [*table.notices, *unknown, *found.notices()]
        for notice in found.notices():
            self.progress.note(notice)
        removed, first_block = None, 0
        if self.stored.dedup:
            existing = hash_existing(self.existing("existing"), tokenizer, self.pool, self.progress)
            table, first_block = table.after(existing), len(existing)
            removed = run_deduplication(
                table,
                self.work / "duplicates",
                self.pool,
                self.progress,
                self.shares,
                leave_out=leave_out_with(found.finders, first_block=first_block),
            )
        if found.finders:
            removed = RemovedText(removed, found.finders, first_block=-first_block)
        encode_job = EncodeJob(
            cleaning=self.stored.cleaning,
            coder=Coder(tokenizer, end_id=self.grown.end_id),
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
            logs=found.write_logs(self.root, 1 + self.grown.num_appended),
        )

    def clean(self) -> BlockTable:
        """Clean the new text into blocks."""
        job = CleanJob(
            streams=self.streams,
            reading=self.reading,
            cleaning=self.stored.cleaning,
            cut=self.grown.cut,
            folder=self.work / "clean",
            collect_characters=self.grown.tokenizer.kind == "char",
        )
        with noticing_changes(self.inputs, lambda: remove_work(self.root)):
            table = run_cleaning(job, self.pool, self.progress)
            require_unchanged(self.inputs, table.contents, self.reading)
        return table

    def find_in(self, table: BlockTable, tokenizer: Tokenizer) -> Findings:
        """Near copies and evaluation items in the new text."""
        added = AddedText(
            table,
            self.stored,
            self.root,
            self.grown.info.metadata,
            self.work / "near",
            self.shares.table_bytes,
        )
        return added.find(
            lambda: load_existing(self.existing("there"), tokenizer, self.pool, self.progress),
            self.pool,
            self.progress,
        )

    def existing(self, folder: str) -> ExistingText:
        """The dataset's text, to be read into blocks before those of the new text."""
        return ExistingText(
            root=self.root,
            shards=self.grown.shards,
            dtype=self.grown.info.dtype,
            seen=self.grown.seen,
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
        grown = self.grown
        paths = [encode_job.path(path) for path in table.paths[first_block:]]
        totals = EncodedTotals(len(self.inputs), first_index=grown.first_input)
        totals.finish(paths, table.report)
        job = ShardJob(
            root=self.work / "new",
            encoded=paths,
            shuffle=self.stored.shuffle,
            val_fraction=grown.val_fraction,
            tokens_per_shard=self.stored.tokens_per_shard,
            vocab_size=grown.info.vocab_size,
            num_documents=totals.num_documents,
            num_workers=self.pool.num_workers,
            tag=grown.shard_tag(self.inputs, contents),
            first_number=grown.first_number,
            split_mode=grown.split_mode,
            range_bytes=self.shares.range_bytes,
            done_folder=self.work / NOTES_NAME,
            first_block=first_block,
        )
        plan = plan_shards(job)
        seen = None
        if grown.keeps_hashes:
            new = table.paths[first_block:]
            # Lines with unknown characters cannot be decoded from the ids, so all hashes are kept.
            seen = write_seen(self.root, len(grown.seen), new, paths, all_lines=unknown)
        added = Added(
            inputs=self.inputs,
            reading=self.reading,
            contents=contents,
            sources=totals.sources,
            shards=grown.move_in(run_sharding(job, plan, self.pool, self.progress)),
            report=table.report.as_json(),
            notices=notices,
            seen=seen,
            logs=logs,
        )
        info = grown.write(added)
        remove_work(self.root)
        num_shards = sum(map(len, added.shards.values()))
        return AppendResult(info, added.report, notices, added.num_tokens, num_shards)
