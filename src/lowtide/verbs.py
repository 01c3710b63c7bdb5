"""The verbs of the command line: one function each, and the table of them.

In:      a verb's settings, whose class is imported only when that verb is used
Out:     Answers, which cli prints; errors are raised, and told by cli
Memory:  whatever the verb's stage takes
"""

from __future__ import annotations

import dataclasses
import faulthandler
import importlib
import os
import signal
import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from lowtide import ranks
from lowtide.answers import Answer, answer, to_json, wants_json
from lowtide.arguments import parse_settings
from lowtide.counts import counted
from lowtide.errors import DataError, UsageError, printable
from lowtide.packages import require_package

if TYPE_CHECKING:
    from lowtide.completion import CompletionSettings
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

    run: Callable[[Any], Answer | None]
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
        return parse_settings(
            self.settings_class(),
            words,
            program=f"lowtide {name}",
            summary=self.summary,
            examples=self.examples,
        )

    def settings_class(self) -> type[Any]:
        """The class of the verb's settings."""
        module_name, class_name = self.settings.split(":")
        return getattr(importlib.import_module(module_name), class_name)


# To add a verb: write a function here that takes the verb's settings, imports its stage inside
# itself (so that nobody else waits for it), calls it and returns the result as an Answer; the first
# line of its docstring is its line in `lowtide --help`, the other lines are examples in its own
# help. Then give it a row in VERBS, in the order of the stages. Help for the flags comes from the
# docstrings of the settings' fields.


def _train_tokenizer(settings: TokenizerTrainingSettings) -> Answer:
    """Learn a BPE or character tokenizer from text of any size.

    lowtide train-tokenizer --input books.txt --vocab-size 32000 --out-dir tok/books --memory 1GiB
    lowtide train-tokenizer --input 'wiki/*.jsonl.zst' --out-dir tok/wiki
    """
    from lowtide.tokenizer.training import describe_trained, train_tokenizer

    if settings.out_dir is None:
        raise UsageError("no folder for the tokenizer", next_step="--out-dir tok/mine")
    trained = train_tokenizer(settings)
    return answer(
        describe_trained(trained, settings.out_dir),
        out_dir=settings.out_dir,
        kind=trained.tokenizer.kind,
        vocab_size=trained.tokenizer.vocab_size,
        fingerprint=trained.tokenizer.fingerprint,
        counts=trained.record["counts"],
        was_there=trained.was_there,
    )


def _compare_memory(settings: CompareSettings) -> Answer:
    """Do a job the ordinary way and the sparing way, peak memory side by side.

    lowtide compare-memory --input books.txt
    lowtide compare-memory --what loading checkpointing --picture memory.svg
    """
    from lowtide.planning.comparison import compare_ways, describe_pairs

    pairs = compare_ways(settings)
    return answer(describe_pairs(pairs), pairs=pairs)


def _prepare(settings: PrepareSettings) -> Answer:
    """Turn text of any size into shuffled, deduplicated, checked shards of ids.

    lowtide prepare --input-files books/ --tokenization tok/books --out-dir data/books --memory 1GiB
    lowtide prepare --input-files 'logs/*.jsonl.zst' --text-field body --out-dir data/logs --dry-run
    """
    from lowtide.tokenizer.ahead import TokenizerAhead

    tokenizer = None
    if settings.tokenization != "char" and not settings.dry_run:
        tokenizer = TokenizerAhead(settings.tokenization)

    from lowtide.dataset.preparation import run_preparation
    from lowtide.dataset.summary import dataset_facts, describe_preparation

    load = None if tokenizer is None else tokenizer.result
    result = run_preparation(settings, load_tokenizer=load)
    return answer(
        describe_preparation(result),
        **dataset_facts(result.info),
        was_there=result.was_there,
        cleaning=result.report,
        notices=result.notices,
        seconds=result.seconds,
        peak_bytes=result.peak_bytes,
        budget_bytes=result.budget_bytes,
    )


def _pretokenize(settings: PretokenizeSettings) -> Answer:
    """Turn text files into .npy files of ids beside them.

    lowtide pretokenize books.txt --tokenization gpt2
    """
    from lowtide.dataset.pretokenization import PretokenizeResult, iter_pretokenized
    from lowtide.dataset.summary import describe_pretokenization

    results: list[PretokenizeResult] = []

    def parts() -> Iterator[str]:
        for result in iter_pretokenized(settings):
            results.append(result)
            yield printable(describe_pretokenization(result))

    return Answer(parts(), lambda: {"files": results})


def _append(settings: AppendSettings) -> Answer:
    """Add new text to a finished dataset, without touching what is there.

    lowtide append data/books --input-files more-books/
    """
    from lowtide.dataset.appending import append_to_dataset
    from lowtide.dataset.summary import dataset_facts, describe_append

    result = append_to_dataset(settings)
    return answer(
        describe_append(result),
        **dataset_facts(result.info),
        added_tokens=result.added_tokens,
        added_shards=result.added_shards,
        was_there=result.was_there,
        cleaning=result.report,
        notices=result.notices,
    )


def _verify(settings: VerifySettings) -> Answer:
    """Check every byte, id and document end of a dataset.

    lowtide verify data/books
    """
    from lowtide.dataset.summary import describe_verification
    from lowtide.dataset.verification import verify_dataset

    result = verify_dataset(settings)
    error = None
    if result.problems:
        count = counted(len(result.problems), "problem")
        error = DataError(
            "\n  ".join([f"{count}:", *result.problems]),
            path=settings.dataset_dir,
            next_step="bring back the files named, or prepare the text again",
        )
    text = printable(describe_verification(result))
    return Answer([text], lambda: {"ok": error is None, **to_json(result)}, error=error)


def _convert(settings: ConvertSettings) -> Answer:
    """Import ids of other programs as a dataset, or export a dataset for them.

    lowtide convert data/books bin/books --to nanogpt
    lowtide convert openwebtext/ data/owt --from nanogpt --to lowtide
    """
    from lowtide.dataset.conversion import convert_dataset

    result = convert_dataset(settings)
    first = "is there already, nothing was touched: " if result.was_there else ""
    text = "\n".join([f"{first}{result.num_tokens:,} tokens", *map(str, result.paths)])
    return answer(text, **to_json(result))


def _inspect(settings: InspectSettings) -> Answer:
    """Show a dataset or a tokenizer at a glance, and text as tokens.

    lowtide inspect data/books --start 1000 --tokens 50
    lowtide inspect tok/books --text 'How is this split?'
    lowtide inspect data/books --test-loading
    lowtide inspect tokens.npy --test-loading
    """
    from lowtide.dataset.inspection import plan_inspection
    from lowtide.progress import Progress

    with Progress("inspect", budget_bytes=plan_inspection(settings)):
        return _inspect_any(settings)


def _inspect_any(settings: InspectSettings) -> Answer:
    from lowtide.tokenizer.inspection import inspect_tokenizer, is_tokenizer

    path = settings.dataset_dir
    if settings.test_loading:
        from lowtide.loader.selftest import check_loading

        report = check_loading(path, split=settings.split, dtype=settings.dtype)
        return answer(report, kind="loading", **to_json(report))
    if path.suffix in (".npy", ".bin"):
        from lowtide.loader.selftest import describe_tokens

        count = settings.tokens
        text = describe_tokens(
            path, split=settings.split, dtype=settings.dtype, first=settings.start, count=count
        )
        return answer(text, kind="tokens", path=path, description=text)
    if is_tokenizer(path):
        from lowtide.tokenizer.tokenizer import Tokenizer

        color = sys.stdout.isatty() and "NO_COLOR" not in os.environ
        text = inspect_tokenizer(path, sample=settings.sample, text=settings.text, color=color)
        tokenizer = Tokenizer.load(path)
        facts = {
            "kind": f"{tokenizer.kind} tokenizer",
            "path": path,
            "vocab_size": tokenizer.vocab_size,
            "special_tokens": tokenizer.special_tokens,
            "fingerprint": tokenizer.fingerprint,
        }
        return Answer([text], lambda: facts)
    from lowtide.dataset.inspection import inspect_dataset
    from lowtide.dataset.layout import load_dataset_info
    from lowtide.dataset.summary import dataset_facts

    text = printable(inspect_dataset(settings))
    return Answer([text], lambda: {"kind": "dataset", **dataset_facts(load_dataset_info(path))})


def _plan(settings: PlanSettings) -> Answer:
    """Say what a run will need, whether it fits, and which settings do.

    lowtide plan --ram 8GiB --input-files books.txt --size 10M
    lowtide plan --vram 24GiB --tokens 2B --config-file 150M_1024
    """
    from lowtide.planning import make_plan
    from lowtide.planning.summary import describe_plan, plan_as_json

    plan = make_plan(settings)
    return Answer([printable(describe_plan(plan))], lambda: plan_as_json(plan))


def _train(settings: TrainSettings) -> Answer | None:
    """Train a model on a prepared dataset, a text file, .npy files or a stream.

    lowtide train --dataset-dir data/books --model-name books --target-params 10e6 --memory 4GiB
    lowtide train --input-file notes.txt --tokenization char --model-name notes --max-iters 2000
    """
    if settings.output.slurm:
        from lowtide.training.slurm import write_slurm_script

        script = write_slurm_script(settings)
        return answer(f"sbatch {script}", script=script)
    # Registered first of all: without a handler SIGUSR1 ends the process, and users send it to see
    # where a run is.
    faulthandler.register(signal.SIGUSR1, file=2)

    from lowtide.training.admission import admit

    admit(settings)  # before torch: what cannot be in its memory is refused without it

    from lowtide.training.start import train

    result = train(settings)
    if not ranks.is_first():  # under torchrun the first process speaks
        return None
    line = f"{settings.run.folder}: {result.stopped} at step {result.steps}, loss {result.loss:.4f}"
    if result.best_val_loss is not None:
        line += f", best validation loss {result.best_val_loss:.4f}"
    return answer(line, run_dir=settings.run.folder, **to_json(result))


def _generate(settings: GenerateSettings) -> Answer:
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

    def parts() -> Iterator[str]:
        for text in generate(settings):
            yield printable(text) if sys.stdout.isatty() and not wants_json() else text

    return Answer(parts(), field="text", end="")


def _evaluate(settings: EvaluateSettings) -> Answer:
    """Measure a model's loss and bits per byte on datasets, and how often it answers right.

    lowtide evaluate --model-name books --dataset-dir data/books --dataset-dir general=data/wiki
    lowtide evaluate --model-name books --tasks arc_easy=tasks/ARC-Easy-Test.jsonl
    """
    from lowtide.model.inference import refuse_hopeless

    require_package("torch", "evaluating")
    refuse_hopeless(
        settings.model_name,
        settings.checkpoints_dir,
        settings.memory,
        device=settings.device,
        tokens=settings.seq_len or (None if settings.dataset_dir else 1),
    )

    from lowtide.training.evaluation import evaluate
    from lowtide.training.likelihood import TaskResult, describe_result

    results = evaluate(settings)
    lines: list[str] = []
    answers: dict[str, Any] = {}
    rows: dict[str, Any] = {}
    for name, result in results.items():
        if isinstance(result, TaskResult):
            lines.append(f"{name}: {describe_result(result)}")
            answers[name] = to_json(result)
            continue
        rows[name] = {**to_json(result), "perplexity": result.perplexity}
        bits = "" if result.bits_per_byte is None else f"  {result.bits_per_byte:.4f} bits/byte"
        lines.append(
            f"{name}: loss {result.loss:.4f}  perplexity {result.perplexity:.2f}{bits}  "
            f"({result.num_tokens:,} tokens)"
        )
    return answer("\n".join(lines), datasets=rows, **({"tasks": answers} if answers else {}))


def _export(settings: ExportSettings) -> Answer:
    """Write a model as a folder that transformers loads, or as a GGUF file for llama.cpp.

    lowtide export --model-name books --out-dir hf/books
    lowtide export --model-name books --out-dir gguf --to gguf --type q8_0
    """
    from lowtide.model.config import find_model_dir
    from lowtide.model.export import export_model

    run_dir = find_model_dir(settings.model_name, settings.checkpoints_dir)
    was_there = settings.target(run_dir).exists()
    path = export_model(settings)
    text = f"{path}: is there already, nothing was touched" if was_there else path
    return answer(text, path=path, was_there=was_there)


def _report(settings: ReportSettings) -> Answer | None:
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
        return None
    result = make_report(settings)
    text = f"{result.path}: {result.kind}, {format_size(result.num_bytes)}"
    return answer(text, **to_json(result))


def _demo(settings: DemoSettings) -> Answer:
    """Go the whole way on text every machine has: tokenizer, dataset, model, text.

    lowtide demo --text books.txt
    """
    from lowtide.demo.running import describe_results, run_demo

    require_package("torch", "the demo, which trains a model,")
    results = run_demo(settings)
    text = "\n" + describe_results(results, settings.out_dir)
    return answer(text, out_dir=settings.out_dir, stages=results)


def _completion(settings: CompletionSettings) -> Answer:
    """Print a script that lets a shell complete verbs and flags.

    lowtide completion bash
    """
    from lowtide.completion import completion_script

    verbs = {name: (verb.summary, verb.settings_class()) for name, verb in VERBS.items()}
    script = completion_script(settings.shell, verbs)
    return answer(script, shell=settings.shell, script=script)


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
    "completion": Verb(_completion, "lowtide.completion:CompletionSettings"),
}
