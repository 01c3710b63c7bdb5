"""Train a classifier that distinguishes good text from other text, inside a memory budget.

In:      files of good text and of other text (ClassifierSettings)
Out:     OUT_DIR/model.bin, a fastText model; classifier.json, written last: settings, inputs,
         metrics on held-out examples, texts it would keep and drop
Memory:  `memory`: current blocks, numbers for each example, tables of words, rows of the model

Every phase writes its files atomically, so a killed command resumes where it was.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from lowtide import _native, files
from lowtide.classifier.examplefiles import gather_examples
from lowtide.classifier.examples import GOOD, OTHER, Examples, Sampler, choose_examples
from lowtide.classifier.judging import measure
from lowtide.classifier.learning import Learning, count_words, learn
from lowtide.classifier.resources import Shares, plan_shares
from lowtide.classifier.settings import ClassifierSettings
from lowtide.corpus.blockcleaning import CleanJob
from lowtide.corpus.blocktable import BlockTable
from lowtide.corpus.differences import find_changed_setting
from lowtide.corpus.inputs import InputList, expand_inputs
from lowtide.corpus.reading import plan_streams
from lowtide.corpus.settings import CleaningSettings
from lowtide.corpus.workers import WorkerPool
from lowtide.dataset.identity import find_other_source, iter_sources, require_unchanged
from lowtide.dataset.phases import naming_folder, noticing_changes, run_cleaning
from lowtide.dataset.workfolder import open_work, remove_work
from lowtide.errors import DataError, UsageError
from lowtide.filenames import CLASSIFIER_MODEL_NAME, CLASSIFIER_NAME, METRICS_NAME, WORK_NAME
from lowtide.keywords import takes_keywords
from lowtide.memory import MemoryBudget
from lowtide.notebooks import shown_in_notebooks
from lowtide.progress import Progress
from lowtide.quickclasses import dataclass
from lowtide.settings import settings_as_json

__all__ = ["TrainedClassifier", "train_classifier"]


_VERB = "train-classifier"
_FREE = ("good", "other", "out_dir", "num_workers", "memory", "restart")


@shown_in_notebooks()
@dataclass(frozen=True)
class TrainedClassifier:
    """A classifier and the record of its training."""

    path: Path
    """The path of the model, for `prepare --score`."""
    record: dict[str, Any]
    """The contents of classifier.json."""
    was_there: bool = False
    """True if the folder had it already, made from the same inputs with the same settings."""


@takes_keywords(ClassifierSettings)
def train_classifier(settings: ClassifierSettings) -> TrainedClassifier:
    """Learn to tell good text from other, in a fixed amount of memory.

    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp())
    >>> for name, word in (("good", "court"), ("other", "click")):
    ...     texts = (f"the {word} number {n} of the {word} here" for n in range(40))
    ...     _ = (folder / f"{name}.txt").write_text("<|endoftext|>".join(texts))
    >>> trained = train_classifier(
    ...     good=folder / "good.txt",
    ...     other=folder / "other.txt",
    ...     out_dir=folder / "model",
    ...     buckets=1000,
    ...     memory="1GiB",
    ... )
    >>> trained.record["held_out"]["auc"]
    1.0
    """
    inputs, num_good = _expand(settings)
    if (settings.out_dir / CLASSIFIER_NAME).exists():
        return _require_same(settings, inputs, num_good)
    budget = MemoryBudget.from_setting(settings.memory)
    shares = plan_shares(settings, budget, inputs)
    with (
        Progress(_VERB, budget_bytes=budget.total_bytes) as progress,
        WorkerPool(shares.num_workers) as pool,
        naming_folder(settings.out_dir),
        files.hold_lock(settings.out_dir, create_folder=True, on_notice=progress.note),
    ):
        if (settings.out_dir / CLASSIFIER_NAME).exists():  # by a command that has just ended
            return _require_same(settings, inputs, num_good)
        if (settings.out_dir / CLASSIFIER_MODEL_NAME).exists() and not settings.restart:
            _refuse_stranger(settings.out_dir)
        return _Training(settings, inputs, num_good, shares, pool, progress).run()


def _expand(settings: ClassifierSettings) -> tuple[InputList, int]:
    """All inputs, the good ones first, and the number of good ones."""
    good, other = expand_inputs(settings.good), expand_inputs(settings.other)
    inputs = expand_inputs([*settings.good, *settings.other])
    if len(inputs) != len(good) + len(other):
        known = {source.path.resolve() for source in good if source.format.is_file}
        both = next((s.path for s in other if s.path.resolve() in known), other[0].path)
        raise UsageError(
            "this file is among --good and among --other",
            path=both,
            next_step="name it once: as an example of what is good, or of what is not",
        )
    return inputs, len(good)


def _decisive(settings: ClassifierSettings, num_good: int) -> dict[str, Any]:
    """The settings that the result depends on."""
    known = {key: item for key, item in settings_as_json(settings).items() if key not in _FREE}
    return {**known, "good_files": num_good}


def _require_same(
    settings: ClassifierSettings, inputs: InputList, num_good: int
) -> TrainedClassifier:
    """Return the existing classifier if this same command would make it; else raise an error."""
    root = settings.out_dir
    record = files.read_json(root / CLASSIFIER_NAME)
    difference = _find_difference(settings, inputs, num_good, record)
    if difference is not None:
        raise UsageError(
            f"there is a classifier here already, and {difference}",
            path=root,
            next_step="choose another --out-dir, or remove this folder",
        )
    path = root / CLASSIFIER_MODEL_NAME
    if not path.is_file() or files.checksum_file(path) != record.get("xxh3_128"):
        raise DataError(
            "the model is not the one that classifier.json describes",
            path=path,
            next_step="remove this folder, and give the command again",
        )
    remove_work(root)  # left by a kill while it was removed
    return TrainedClassifier(path, record, was_there=True)


def _find_difference(
    settings: ClassifierSettings, inputs: InputList, num_good: int, record: Any
) -> str | None:
    known = record.get("settings") if isinstance(record, dict) else None
    rows = record.get("sources") if isinstance(record, dict) else None
    if not isinstance(known, dict) or not isinstance(rows, list):
        return "nothing says what it was made of"
    other = find_changed_setting(known, _decisive(settings, num_good))
    try:
        return other or find_other_source(inputs, rows, settings.reading())
    except (KeyError, TypeError, ValueError, AttributeError):  # rows of another format
        return "its classifier.json is damaged"


def _refuse_stranger(root: Path) -> None:
    if not (root / WORK_NAME).is_dir():
        raise UsageError(
            f"{CLASSIFIER_MODEL_NAME} is here already, and nothing says where it comes from",
            path=root,
            next_step="choose another --out-dir",
        )


class _Training:
    """One run of `lowtide train-classifier`, phase by phase."""

    def __init__(
        self,
        settings: ClassifierSettings,
        inputs: InputList,
        num_good: int,
        shares: Shares,
        pool: WorkerPool,
        progress: Progress,
    ) -> None:
        self.settings = settings
        self.inputs = inputs
        self.num_good = num_good
        self.shares = shares
        self.pool = pool
        self.progress = progress
        self.reading = shares.reading(settings, progress.budget_bytes or 0)
        self.streams = plan_streams(inputs, self.reading)
        self.work, _ = open_work(
            settings.out_dir,
            verb=_VERB,
            settings=_decisive(settings, num_good),
            streams=self.streams,
            restart=settings.restart,
            on_notice=progress.note,
        )
        progress.metrics_path = settings.out_dir / METRICS_NAME

    def run(self) -> TrainedClassifier:
        table, examples = self.sample()
        learned, tested = self.gather(examples)
        counts = (
            examples.count(OTHER, held_out=False),
            examples.count(GOOD, held_out=False),
        )
        trainer = self.learn(learned, counts)
        num_tested = len(examples.labels) - sum(counts)
        with self.progress.phase("test", total=num_tested, unit="examples") as phase:
            held_out = measure(
                trainer, tested, num_workers=self.pool.num_workers, on_done=phase.advance
            )
        path = self.settings.out_dir / CLASSIFIER_MODEL_NAME
        with files.atomic_file(path) as file:
            file.flush()
            trainer.write(file.fileno(), (counts[GOOD], counts[OTHER]))
        record = self.describe(table, examples, counts, trainer, held_out)
        files.write_json(self.settings.out_dir / CLASSIFIER_NAME, record)
        remove_work(self.settings.out_dir)
        return TrainedClassifier(path, record)

    def sample(self) -> tuple[BlockTable, Examples]:
        """Read everything, and choose the examples."""
        settings = self.settings
        sampler = Sampler(
            self.work / "examples", num_good=self.num_good, max_examples=settings.max_examples
        )
        job = CleanJob(
            streams=self.streams,
            reading=self.reading,
            cleaning=CleaningSettings(dedup=False),
            folder=self.work / "clean",
            consumer=sampler,
            is_encoded=lambda path: sampler.path(path).exists(),
        )
        with noticing_changes(self.inputs, lambda: remove_work(settings.out_dir)):
            table = run_cleaning(job, self.pool, self.progress, name="clean, choose")
            require_unchanged(self.inputs, table.contents, self.reading)
        examples = choose_examples(
            [sampler.path(path) for path in table.paths],
            sampler.limits,
            max_examples=settings.max_examples,
            seed=settings.seed,
        )
        return table, examples

    def gather(self, examples: Examples) -> tuple[list[Path], list[Path]]:
        folder = self.work / "gathered"
        with self.progress.phase("gather", total=len(examples.labels), unit="examples") as phase:
            learned = gather_examples(examples, folder, held_out=False, on_done=phase.advance)
            tested = gather_examples(examples, folder, held_out=True, on_done=phase.advance)
        return learned, tested

    def learn(self, paths: list[Path], counts: tuple[int, int]) -> _native.ClassifierTrainer:
        settings = self.settings
        with self.progress.phase("count words", total=sum(counts), unit="examples") as phase:
            words = count_words(
                paths,
                self.pool,
                min_count=settings.min_count,
                max_words=settings.max_words,
                table_bytes=self.shares.table_bytes,
            )
            phase.advance(sum(counts))
        learning = Learning(
            settings.epochs,
            settings.min_count,
            settings.buckets,
            counts,
            self.work / "gathered",
        )
        total = settings.epochs * sum(counts)
        with self.progress.phase("learn", total=total, unit="examples") as phase:

            def done(count: int, loss: float) -> None:
                phase.advance(count, loss=loss)

            return learn(learning, words, paths, num_workers=self.pool.num_workers, on_done=done)

    def describe(
        self,
        table: BlockTable,
        examples: Examples,
        counts: tuple[int, int],
        trainer: _native.ClassifierTrainer,
        held_out: dict[str, Any],
    ) -> dict[str, Any]:
        sources = [
            {"file": path, **row}
            for path, row in iter_sources(self.inputs, self.reading, table.contents)
        ]
        return {
            "version": 1,
            "settings": _decisive(self.settings, self.num_good),
            "sources": sources,
            "documents_in": table.report.documents_in,
            "examples": {
                "good": counts[GOOD],
                "other": counts[OTHER],
                "in_both": examples.in_both,
            },
            "words": trainer.num_words,
            "labels": ["good", "other"],
            "held_out": held_out,
            "xxh3_128": files.checksum_file(self.settings.out_dir / CLASSIFIER_MODEL_NAME),
            "notices": list(table.notices),
        }
