"""The verbs of the command line: one function each, and the table of them.

In:      a verb's settings, whose class is imported only when that verb is used
Out:     results on stdout; errors are raised, and told by cli
Memory:  whatever the verb's stage takes
"""

from __future__ import annotations

import dataclasses
import faulthandler
import importlib
import os
import signal
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from lowtide import ranks
from lowtide.arguments import parse_settings
from lowtide.errors import DataError, UsageError, printable
from lowtide.packages import require_package

if TYPE_CHECKING:
    from lowtide.dataset.settings import (
        AppendSettings,
        ConvertSettings,
        InspectSettings,
        PrepareSettings,
        PretokenizeSettings,
        VerifySettings,
    )
    from lowtide.demo.stages import DemoSettings
    from lowtide.generation.settings import GenerateSettings
    from lowtide.model.export import ExportSettings
    from lowtide.planning.comparison import CompareSettings
    from lowtide.planning.settings import PlanSettings
    from lowtide.reporting.settings import ReportSettings
    from lowtide.tokenizer.training import TokenizerTrainingSettings
    from lowtide.training.settings import EvaluateSettings, TrainSettings

__all__ = ["VERBS", "Verb"]


@dataclasses.dataclass(frozen=True)
class Verb:
    """One verb: what runs it, and where its settings are (`module:Class`, imported on use)."""

    run: Callable[[Any], None]
    settings: str

    @property
    def summary(self) -> str:
        """The first line of the function's docstring, without its full stop."""
        return (self.run.__doc__ or "").strip().splitlines()[0].rstrip(".")

    @property
    def examples(self) -> list[str]:
        """The other lines of the docstring: commands to start from."""
        return [line.strip() for line in (self.run.__doc__ or "").splitlines()[1:] if line.strip()]

    def parse(self, name: str, words: list[str]) -> Any:
        """Make the verb's settings of the words after its name."""
        module_name, class_name = self.settings.split(":")
        cls = getattr(importlib.import_module(module_name), class_name)
        return parse_settings(
            cls, words, program=f"lowtide {name}", summary=self.summary, examples=self.examples
        )


# To add a verb: write a function here that takes the verb's settings, imports its stage inside
# itself (so that nobody else waits for it), calls it and prints the result to stdout; the first
# line of its docstring is its line in `lowtide --help`, the other lines are examples in its own
# help. Then give it a row in VERBS, in the order of the stages. Help for the flags comes from the
# docstrings of the settings' fields.


def _show(text: object) -> None:
    """Print a result; what files and names bring along is not for the terminal to act on."""
    print(printable(str(text)))


def _train_tokenizer(settings: TokenizerTrainingSettings) -> None:
    """Learn a BPE or character tokenizer from text of any size.

    lowtide train-tokenizer --input books.txt --vocab-size 32000 --out-dir tok/books --memory 1GiB
    lowtide train-tokenizer --input 'wiki/*.jsonl.zst' --out-dir tok/wiki
    """
    from lowtide.tokenizer.training import describe_trained, train_tokenizer

    if settings.out_dir is None:
        raise UsageError("no folder for the tokenizer", next_step="--out-dir tok/mine")
    _show(describe_trained(train_tokenizer(settings), settings.out_dir))


def _compare_memory(settings: CompareSettings) -> None:
    """Do a job the ordinary way and the sparing way, peak memory side by side.

    lowtide compare-memory --input books.txt
    lowtide compare-memory --what loading checkpointing --picture memory.svg
    """
    from lowtide.planning.comparison import compare_ways, describe_pairs

    _show(describe_pairs(compare_ways(settings)))


def _prepare(settings: PrepareSettings) -> None:
    """Turn text of any size into shuffled, deduplicated, checked shards of ids.

    lowtide prepare --input-files books/ --tokenization tok/books --out-dir data/books --memory 1GiB
    lowtide prepare --input-files 'logs/*.jsonl.zst' --text-field body --out-dir data/logs --dry-run
    """
    from lowtide.tokenizer.ahead import TokenizerAhead

    tokenizer = None
    if settings.tokenization != "char" and not settings.dry_run:
        tokenizer = TokenizerAhead(settings.tokenization)

    from lowtide.dataset.preparation import run_preparation
    from lowtide.dataset.summary import describe_preparation

    load = None if tokenizer is None else tokenizer.result
    _show(describe_preparation(run_preparation(settings, load_tokenizer=load)))


def _pretokenize(settings: PretokenizeSettings) -> None:
    """Turn text files into .npy files of ids beside them.

    lowtide pretokenize books.txt --tokenization gpt2
    """
    from lowtide.dataset.pretokenization import iter_pretokenized
    from lowtide.dataset.summary import describe_pretokenization

    for result in iter_pretokenized(settings):
        _show(describe_pretokenization(result))


def _append(settings: AppendSettings) -> None:
    """Add new text to a finished dataset, without touching what is there.

    lowtide append data/books --input-files more-books/
    """
    from lowtide.dataset.appending import append_to_dataset
    from lowtide.dataset.summary import describe_append

    _show(describe_append(append_to_dataset(settings)))


def _verify(settings: VerifySettings) -> None:
    """Check every byte, id and document end of a dataset.

    lowtide verify data/books
    """
    from lowtide.dataset.summary import describe_verification
    from lowtide.dataset.verification import verify_dataset

    result = verify_dataset(settings)
    _show(describe_verification(result))
    if result.problems:
        raise DataError(
            "\n  ".join([f"{len(result.problems)} problems:", *result.problems]),
            path=settings.dataset_dir,
            next_step="bring back the files named, or prepare the text again",
        )


def _convert(settings: ConvertSettings) -> None:
    """Import ids of other programs as a dataset, or export a dataset for them.

    lowtide convert data/books bin/books --to nanogpt
    lowtide convert openwebtext/ data/owt --from nanogpt --to lowtide
    """
    from lowtide.dataset.conversion import convert_dataset

    result = convert_dataset(settings)
    first = "is there already, nothing was touched: " if result.was_there else ""
    _show("\n".join([f"{first}{result.num_tokens:,} tokens", *map(str, result.paths)]))


def _inspect(settings: InspectSettings) -> None:
    """Show a dataset or a tokenizer at a glance, and text as tokens.

    lowtide inspect data/books --start 1000 --tokens 50
    lowtide inspect tok/books --text 'How is this split?'
    lowtide inspect data/books --test-loading
    lowtide inspect tokens.npy --test-loading
    """
    from lowtide.dataset.inspection import plan_inspection
    from lowtide.progress import Progress

    with Progress("inspect", budget_bytes=plan_inspection(settings)):
        _inspect_any(settings)


def _inspect_any(settings: InspectSettings) -> None:
    from lowtide.dataset.inspection import inspect_dataset
    from lowtide.tokenizer.inspection import inspect_tokenizer, is_tokenizer

    if settings.test_loading:
        from lowtide.loader.selftest import check_loading

        _show(check_loading(settings.dataset_dir, split=settings.split, dtype=settings.dtype))
    elif settings.dataset_dir.suffix in (".npy", ".bin"):
        from lowtide.loader.selftest import describe_tokens

        _show(
            describe_tokens(
                settings.dataset_dir,
                split=settings.split,
                dtype=settings.dtype,
                first=settings.start,
                count=settings.tokens,
            )
        )
    elif is_tokenizer(settings.dataset_dir):
        color = sys.stdout.isatty() and "NO_COLOR" not in os.environ
        print(
            inspect_tokenizer(
                settings.dataset_dir, sample=settings.sample, text=settings.text, color=color
            )
        )
    else:
        _show(inspect_dataset(settings))


def _plan(settings: PlanSettings) -> None:
    """Say what a run will need, whether it fits, and which settings do.

    lowtide plan --ram 8GiB --input-files books.txt --size 10M
    lowtide plan --vram 24GiB --tokens 2B --config-file 150M_1024
    """
    from lowtide.planning import make_plan
    from lowtide.planning.summary import describe_plan, plan_as_json

    plan = make_plan(settings)
    _show(plan_as_json(plan) if settings.json else describe_plan(plan))


def _train(settings: TrainSettings) -> None:
    """Train a model on a prepared dataset, a text file, .npy files or a stream.

    lowtide train --dataset-dir data/books --model-name books --target-params 10e6 --memory 4GiB
    lowtide train --input-file notes.txt --tokenization char --model-name notes --max-iters 2000
    """
    if settings.slurm:
        from lowtide.training.slurm import write_slurm_script

        _show(f"sbatch {write_slurm_script(settings)}")
        return
    # Registered first of all: without a handler SIGUSR1 ends the process, and users send it to see
    # where a run is.
    faulthandler.register(signal.SIGUSR1, file=2)

    from lowtide.training.admission import admit

    admit(settings)  # before torch: what cannot be in its memory is refused without it

    from lowtide.training.start import train

    result = train(settings)
    if not ranks.is_first():  # under torchrun the first process speaks
        return
    line = f"{settings.run_dir}: {result.stopped} at step {result.steps}, loss {result.loss:.4f}"
    if result.best_val_loss is not None:
        line += f", best validation loss {result.best_val_loss:.4f}"
    _show(line)


def _generate(settings: GenerateSettings) -> None:
    """Continue a prompt with a trained model.

    lowtide generate --model-name books --prompt 'Once upon a time' --max-new-tokens 200
    lowtide generate --model-name books --prompt-file prompts.txt --each-line --temperature 0
    """
    from lowtide.model.inference import refuse_hopeless

    require_package("torch", "generating")
    refuse_hopeless(
        settings.model_name,
        settings.checkpoints_dir,
        settings.memory,
        device=settings.device,
        generates=True,
    )

    from lowtide.generation.decoding import generate

    for text in generate(settings):
        print(printable(text) if sys.stdout.isatty() else text, end="", flush=True)


def _evaluate(settings: EvaluateSettings) -> None:
    """Measure a model's loss and bits per byte on datasets.

    lowtide evaluate --model-name books --dataset-dir data/books --dataset-dir general=data/wiki
    """
    from lowtide.model.inference import refuse_hopeless

    require_package("torch", "evaluating")
    refuse_hopeless(
        settings.model_name,
        settings.checkpoints_dir,
        settings.memory,
        device=settings.device,
        tokens=settings.seq_len,
    )

    from lowtide.training.evaluation import evaluate

    for name, result in evaluate(settings).items():
        bits = "" if result.bits_per_byte is None else f"  {result.bits_per_byte:.4f} bits/byte"
        _show(
            f"{name}: loss {result.loss:.4f}  perplexity {result.perplexity:.2f}{bits}  "
            f"({result.num_tokens:,} tokens)"
        )


def _export(settings: ExportSettings) -> None:
    """Write a model as a folder that transformers loads.

    lowtide export --model-name books --out-dir hf/books
    """
    from lowtide.model.export import export_model

    was_there = (settings.out_dir / "model.safetensors").exists()
    path = export_model(settings)
    _show(f"{path}: is there already, nothing was touched" if was_there else path)


def _report(settings: ReportSettings) -> None:
    """Make a page to look at of a run, a dataset or a tokenizer; --watch keeps it live.

    lowtide report books --watch
    lowtide report data/books
    lowtide report tok/books --sample books.txt
    """
    from lowtide.memory import format_size
    from lowtide.reporting.reports import make_report

    if settings.watch:
        from lowtide.reporting.watching import watch

        watch(settings, announce=lambda url: print(f"{url}  (Ctrl-C ends it)", flush=True))
        return
    result = make_report(settings)
    _show(f"{result.path}: {result.kind}, {format_size(result.num_bytes)}")


def _demo(settings: DemoSettings) -> None:
    """Go the whole way on text every machine has: tokenizer, dataset, model, text.

    lowtide demo --text books.txt
    """
    from lowtide.demo.running import describe_results, run_demo

    require_package("torch", "the demo, which trains a model,")
    results = run_demo(settings)
    print()
    _show(describe_results(results, settings.out_dir))


VERBS: dict[str, Verb] = {
    "train-tokenizer": Verb(
        _train_tokenizer, "lowtide.tokenizer.training:TokenizerTrainingSettings"
    ),
    "compare-memory": Verb(_compare_memory, "lowtide.planning.comparison:CompareSettings"),
    "prepare": Verb(_prepare, "lowtide.dataset.settings:PrepareSettings"),
    "pretokenize": Verb(_pretokenize, "lowtide.dataset.settings:PretokenizeSettings"),
    "append": Verb(_append, "lowtide.dataset.settings:AppendSettings"),
    "verify": Verb(_verify, "lowtide.dataset.settings:VerifySettings"),
    "inspect": Verb(_inspect, "lowtide.dataset.settings:InspectSettings"),
    "convert": Verb(_convert, "lowtide.dataset.settings:ConvertSettings"),
    "plan": Verb(_plan, "lowtide.planning.settings:PlanSettings"),
    "train": Verb(_train, "lowtide.training.settings:TrainSettings"),
    "evaluate": Verb(_evaluate, "lowtide.training.settings:EvaluateSettings"),
    "generate": Verb(_generate, "lowtide.generation.settings:GenerateSettings"),
    "export": Verb(_export, "lowtide.model.export:ExportSettings"),
    "report": Verb(_report, "lowtide.reporting.settings:ReportSettings"),
    "demo": Verb(_demo, "lowtide.demo.stages:DemoSettings"),
}
