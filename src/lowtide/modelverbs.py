"""The verbs for models: plan, train, measure and use them, and look at what came out.

In:      a verb's settings
Out:     Answers; each stage is imported when its verb runs
"""

from __future__ import annotations

import contextlib
import faulthandler
import shlex
import signal
import sys
from collections.abc import Generator, Iterator
from typing import TYPE_CHECKING, Any

from lowtide import ranks
from lowtide.answers import Answer, answer, to_json, wants_json
from lowtide.errors import BudgetError, DataError, printable
from lowtide.packages import require_package

if TYPE_CHECKING:
    from lowtide.demo.stages import DemoSettings
    from lowtide.generation.settings import GenerateSettings
    from lowtide.model.export import ExportSettings
    from lowtide.planning.comparison import CompareSettings
    from lowtide.planning.settings import PlanSettings
    from lowtide.reporting.settings import ReportSettings
    from lowtide.training.settings import EvaluateSettings, TrainSettings

__all__ = [
    "run_compare_memory",
    "run_demo",
    "run_evaluate",
    "run_export",
    "run_generate",
    "run_plan",
    "run_report",
    "run_train",
]


def run_compare_memory(settings: CompareSettings) -> Answer:
    """Compare the peak memory of the ordinary way of doing a job with lowtide's.

    lowtide compare-memory --input books.txt
    lowtide compare-memory --what loading checkpointing --picture memory.svg
    """
    from lowtide.planning.comparison import compare_memory, describe_pairs

    pairs = compare_memory(settings)
    return answer(describe_pairs(pairs), pairs=pairs)


def run_plan(settings: PlanSettings) -> Answer:
    """Estimate memory, disk and time of a run, and find settings that fit the machine.

    lowtide plan --ram 8GiB --input-files books.txt --size 10M
    lowtide plan --vram 24GiB --tokens 2B --config-file 150M_1024
    """
    from lowtide.planning import make_plan
    from lowtide.planning.summary import describe_plan, plan_as_json, plan_error

    plan = make_plan(settings)
    text = printable(describe_plan(plan))
    return Answer([text], lambda: plan_as_json(plan), error=plan_error(plan))


def run_train(settings: TrainSettings) -> Answer | None:
    """Train a model on a prepared dataset, a text file, .npy files or a stream.

    lowtide train --dataset-dir data/books --model-name books --target-params 10e6 --memory 4GiB
    lowtide train --input-file notes.txt --tokenization char --model-name notes --max-iters 2000
    """
    if settings.output.slurm:
        from lowtide.training.slurm import write_slurm_script

        script = write_slurm_script(settings)
        return answer(f"sbatch {shlex.quote(str(script))}", script=script)
    # Registered first: users send SIGUSR1 to see where a run is, and without a handler it ends the
    # process.
    faulthandler.register(signal.SIGUSR1, file=2)

    from lowtide.training.admission import admit

    with _naming_prepare():
        admit(settings)  # before torch is imported: reject a budget that is too small early

        from lowtide.training.start import train

        result = train(settings)
    if not ranks.is_first():  # under torchrun only the first process prints
        return None
    line = f"{settings.run.folder}: {result.stopped} at step {result.steps}, loss {result.loss:.4f}"
    if result.best_val_loss is not None:
        line += f", best validation loss {result.best_val_loss:.4f}"
    return answer(line, run_dir=settings.run.folder, **to_json(result))


@contextlib.contextmanager
def _naming_prepare() -> Generator[None]:
    """Name the verb in what readers of text advise: train has none of these flags."""
    try:
        yield
    except DataError as error:
        for flag in ("--skip-bad-inputs", "--encoding utf-16"):
            if error.next_step is not None:
                error.next_step = error.next_step.replace(flag, f"lowtide prepare {flag}")
        raise


def run_generate(settings: GenerateSettings) -> Answer:
    """Continue a prompt with a trained model.

    lowtide generate --model-name books --prompt 'Once upon a time' --max-new-tokens 200
    lowtide generate --model-name books --prompt-file prompts.txt --each-line --temperature 0
    """
    from lowtide.model.inference import refuse_hopeless

    backend = settings.chosen_backend()
    refuse_hopeless(
        settings.model_name,
        settings.checkpoints_dir,
        settings.memory,
        device=settings.device,
        generates=True,
        backend=backend,
    )

    from lowtide.generation.generating import generate

    def parts() -> Iterator[str]:
        for text in generate(settings):
            yield printable(text) if sys.stdout.isatty() and not wants_json() else text

    return Answer(parts(), field="text", end="")


def _refuse_evaluation(settings: EvaluateSettings) -> None:
    """Reject an insufficient budget before torch is loaded, by what all questions need."""
    from lowtide.model.inference import LONGEST_USUAL, refuse_hopeless
    from lowtide.training.evaluating import fetched_bytes
    from lowtide.training.questions import held_text_bytes, longest_line

    fetched = fetched_bytes(settings)

    def refuse(tokens: int | None, text_bytes: int = 0) -> None:
        refuse_hopeless(
            settings.model_name,
            settings.checkpoints_dir,
            settings.memory,
            device=settings.device,
            tokens=tokens,
            text_bytes=max(text_bytes, fetched),
            backend=settings.chosen_backend(),
            tokenization=settings.tokenization,
        )

    try:
        refuse(settings.seq_len or (None if settings.dataset_dir else 1))
    except BudgetError:  # a token has at least one byte, and the model's context is the maximum
        longest = max(map(longest_line, settings.task_files().values()), default=0)
        most = min(longest, settings.seq_len or longest)
        if settings.dataset_dir:
            most = max(most, settings.seq_len or LONGEST_USUAL)
        if longest:
            refuse(most, held_text_bytes(longest))
        raise


def run_evaluate(settings: EvaluateSettings) -> Answer:
    """Measure a model's loss and bits per byte on datasets, and its accuracy on questions.

    lowtide evaluate --model-name books --dataset-dir data/books --dataset-dir general=data/wiki
    lowtide evaluate --model-name books --tasks arc_easy=tasks/ARC-Easy-Test.jsonl
    """
    settings.chosen_backend()  # report a missing package first
    _refuse_evaluation(settings)

    from lowtide.training.evaluating import evaluate
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


def run_export(settings: ExportSettings) -> Answer:
    """Write a model as a folder that transformers loads, or as a GGUF file for llama.cpp.

    lowtide export --model-name books --out-dir hf/books
    lowtide export --model-name books --out-dir gguf --to gguf --type q8_0
    """
    from lowtide.model.export import write_export

    path, was_there = write_export(settings)
    text = f"{path}: is there already, nothing was touched" if was_there else path
    return answer(text, path=path, was_there=was_there)


def run_report(settings: ReportSettings) -> Answer | None:
    """Write an HTML report of runs, datasets or a tokenizer; --watch updates it live.

    lowtide report books --watch
    lowtide report books novels poems
    lowtide report data/books
    lowtide report tok/books --sample books.txt
    """
    from lowtide.memory import format_size
    from lowtide.reporting.reports import report

    if settings.watch:
        from lowtide.reporting.watching import watch

        watch(settings, announce=lambda url: print(f"{url}  (Ctrl-C ends it)", flush=True))
        return None
    result = report(settings)
    text = f"{result.path}: {result.kind}, {format_size(result.num_bytes)}"
    if result.was_there:
        text += "; was there already, nothing was touched"
    return answer(text, **to_json(result))


def run_demo(settings: DemoSettings) -> Answer:
    """Run the whole pipeline on text every machine has: tokenizer, dataset, model, sample.

    lowtide demo --text books.txt
    """
    from lowtide.demo.running import describe_results, run_demo

    require_package("torch", "the demo, which trains a model,")
    results = run_demo(settings)
    text = "\n" + describe_results(results, settings.out_dir)
    return answer(text, out_dir=settings.out_dir, stages=results)
