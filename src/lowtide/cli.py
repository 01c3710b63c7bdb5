"""The command line: one function per verb; the only module that prints errors and exits.

In:      arguments; each verb's settings dataclass, imported only when that verb is used
Out:     results on stdout, errors on stderr; exit code 0, 1 (error), 2 (usage), 130 (interrupted)
Memory:  whatever the verb's stage takes
"""

from __future__ import annotations

import atexit
import contextlib
import dataclasses
import faulthandler
import importlib
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

from lowtide.arguments import parse_settings
from lowtide.errors import DataError, LowtideError, UsageError, from_os_error
from lowtide.settings import unknown_name_message

if TYPE_CHECKING:
    from lowtide.dataset.settings import (
        AppendSettings,
        ConvertSettings,
        InspectSettings,
        PrepareSettings,
        PretokenizeSettings,
        VerifySettings,
    )
    from lowtide.demo import DemoSettings
    from lowtide.generation.settings import GenerateSettings
    from lowtide.model.export import ExportSettings
    from lowtide.planning.comparison import CompareSettings
    from lowtide.planning.settings import PlanSettings
    from lowtide.reporting.settings import ReportSettings
    from lowtide.tokenizer.training import TokenizerTrainingSettings
    from lowtide.training.settings import EvaluateSettings, TrainSettings

__all__ = ["main", "run"]

_EXIT_INTERRUPTED = 130


@dataclasses.dataclass(frozen=True)
class _Verb:
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


# To add a verb: write a function here that takes the verb's settings, imports its stage inside
# itself (so that nobody else waits for it), calls it and prints the result to stdout; the first
# line of its docstring is its line in `lowtide --help`, the other lines are examples in its own
# help. Then give it a row in _VERBS, in the order of the stages. Help for the flags comes from the
# docstrings of the settings' fields.


def _train_tokenizer(settings: TokenizerTrainingSettings) -> None:
    """Learn a BPE or character tokenizer from text of any size.

    lowtide train-tokenizer --input books.txt --vocab-size 32000 --out-dir tok/books --memory 1GiB
    lowtide train-tokenizer --input 'wiki/*.jsonl.zst' --out-dir tok/wiki
    """
    from lowtide.tokenizer.training import describe_trained, train_tokenizer

    if settings.out_dir is None:
        raise UsageError("no folder for the tokenizer", next_step="--out-dir tok/mine")
    print(describe_trained(train_tokenizer(settings), settings.out_dir))


def _compare_memory(settings: CompareSettings) -> None:
    """Do a job the ordinary way and the sparing way, peak memory side by side.

    lowtide compare-memory --input books.txt
    lowtide compare-memory --what loading checkpointing --picture memory.svg
    """
    from lowtide.planning.comparison import compare_ways, describe_pairs

    print(describe_pairs(compare_ways(settings)))


def _prepare(settings: PrepareSettings) -> None:
    """Turn text of any size into shuffled, deduplicated, checked shards of ids.

    lowtide prepare --input-files books/ --tokenization tok/books --out-dir data/books --memory 1GiB
    lowtide prepare --input-files 'logs/*.jsonl.zst' --text-field body --out-dir data/logs --dry-run
    """
    from lowtide.dataset.preparation import prepare_dataset
    from lowtide.dataset.summary import describe_preparation

    print(describe_preparation(prepare_dataset(settings)))


def _pretokenize(settings: PretokenizeSettings) -> None:
    """Turn one text file into one .npy of ids beside it.

    lowtide pretokenize books.txt --tokenization gpt2
    """
    from lowtide.dataset.pretokenization import pretokenize_file
    from lowtide.dataset.summary import describe_pretokenization

    print(describe_pretokenization(pretokenize_file(settings)))


def _append(settings: AppendSettings) -> None:
    """Add new text to a finished dataset, without touching what is there.

    lowtide append data/books --input-files more-books/
    """
    from lowtide.dataset.appending import append_to_dataset
    from lowtide.dataset.summary import describe_append

    print(describe_append(append_to_dataset(settings)))


def _verify(settings: VerifySettings) -> None:
    """Check every byte, id and document end of a dataset.

    lowtide verify data/books
    """
    from lowtide.dataset.summary import describe_verification
    from lowtide.dataset.verification import verify_dataset

    result = verify_dataset(settings)
    print(describe_verification(result))
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
    print("\n".join([f"{result.num_tokens:,} tokens", *map(str, result.paths)]))


def _inspect(settings: InspectSettings) -> None:
    """Show a dataset or a tokenizer at a glance, and text as tokens.

    lowtide inspect data/books --start 1000 --tokens 50
    lowtide inspect tok/books --text 'How is this split?'
    lowtide inspect data/books --test-loading
    lowtide inspect tokens.npy --test-loading
    """
    from lowtide.dataset.inspection import inspect_dataset
    from lowtide.tokenizer.inspection import inspect_tokenizer, is_tokenizer

    if settings.test_loading:
        from lowtide.loader.selftest import check_loading

        print(check_loading(settings.dataset_dir, split=settings.split, dtype=settings.dtype))
    elif settings.dataset_dir.suffix in (".npy", ".bin"):
        from lowtide.loader.selftest import describe_tokens

        print(
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
        print(inspect_dataset(settings))


def _plan(settings: PlanSettings) -> None:
    """Say what a run will need, whether it fits, and which settings do.

    lowtide plan --ram 8GiB --input-files books.txt --size 10M
    lowtide plan --vram 24GiB --tokens 2B --config-file configs/150M_1024.json
    """
    from lowtide.planning import make_plan
    from lowtide.planning.summary import describe_plan, plan_as_json

    plan = make_plan(settings)
    print(plan_as_json(plan) if settings.json else describe_plan(plan))


def _train(settings: TrainSettings) -> None:
    """Train a model on a prepared dataset, a text file, .npy files or a stream.

    lowtide train --dataset-dir data/books --model-name books --target-params 10e6 --memory 4GiB
    lowtide train --input-file notes.txt --tokenization char --model-name notes --max-iters 2000
    """
    if settings.slurm:
        from lowtide.training.slurm import write_slurm_script

        print(f"sbatch {write_slurm_script(settings)}")
        return
    # From now on, not from the first step on: until then a signal nobody waits for is the end.
    faulthandler.register(signal.SIGUSR1, file=2)

    from lowtide.training.start import train

    result = train(settings)
    if os.environ.get("RANK", "0") != "0":  # under torchrun the first process speaks
        return
    line = f"{settings.run_dir}: {result.stopped} at step {result.steps}, loss {result.loss:.4f}"
    if result.best_val_loss is not None:
        line += f", best validation loss {result.best_val_loss:.4f}"
    print(line)


def _generate(settings: GenerateSettings) -> None:
    """Continue a prompt with a trained model.

    lowtide generate --model-name books --prompt 'Once upon a time' --max-new-tokens 200
    lowtide generate --model-name books --prompt-file prompts.txt --each-line --temperature 0
    """
    from lowtide.generation.decoding import generate

    for text in generate(settings):
        print(text, end="", flush=True)


def _evaluate(settings: EvaluateSettings) -> None:
    """Measure a model's loss and bits per byte on datasets.

    lowtide evaluate --model-name books --dataset-dir data/books --dataset-dir general=data/wiki
    """
    from lowtide.training.evaluation import evaluate

    for name, result in evaluate(settings).items():
        bits = "" if result.bits_per_byte is None else f"  {result.bits_per_byte:.4f} bits/byte"
        print(
            f"{name}: loss {result.loss:.4f}  perplexity {result.perplexity:.2f}{bits}  "
            f"({result.num_tokens:,} tokens)"
        )


def _export(settings: ExportSettings) -> None:
    """Write a model as a folder that transformers loads.

    lowtide export --model-name books --out-dir hf/books
    """
    from lowtide.model.export import export_model

    print(export_model(settings))


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
    print(f"{result.path}: {result.kind}, {format_size(result.num_bytes)}")


def _demo(settings: DemoSettings) -> None:
    """Go the whole way on text every machine has: tokenizer, dataset, model, text.

    lowtide demo --text books.txt
    """
    from lowtide.demo import describe_results, run_demo

    results = run_demo(settings)
    print()
    print(describe_results(results, settings.out_dir))


_VERBS: dict[str, _Verb] = {
    "train-tokenizer": _Verb(
        _train_tokenizer, "lowtide.tokenizer.training:TokenizerTrainingSettings"
    ),
    "compare-memory": _Verb(_compare_memory, "lowtide.planning.comparison:CompareSettings"),
    "prepare": _Verb(_prepare, "lowtide.dataset.settings:PrepareSettings"),
    "pretokenize": _Verb(_pretokenize, "lowtide.dataset.settings:PretokenizeSettings"),
    "append": _Verb(_append, "lowtide.dataset.settings:AppendSettings"),
    "verify": _Verb(_verify, "lowtide.dataset.settings:VerifySettings"),
    "inspect": _Verb(_inspect, "lowtide.dataset.settings:InspectSettings"),
    "convert": _Verb(_convert, "lowtide.dataset.settings:ConvertSettings"),
    "plan": _Verb(_plan, "lowtide.planning.settings:PlanSettings"),
    "train": _Verb(_train, "lowtide.training.settings:TrainSettings"),
    "evaluate": _Verb(_evaluate, "lowtide.training.settings:EvaluateSettings"),
    "generate": _Verb(_generate, "lowtide.generation.settings:GenerateSettings"),
    "export": _Verb(_export, "lowtide.model.export:ExportSettings"),
    "report": _Verb(_report, "lowtide.reporting.settings:ReportSettings"),
    "demo": _Verb(_demo, "lowtide.demo:DemoSettings"),
}


_TEXT_VERBS = {"train-tokenizer", "prepare", "pretokenize", "append", "verify", "convert"}


def run() -> NoReturn:
    """Run the command line and end the process; the entry point of `lowtide`."""
    code = main()
    if "torch" in sys.modules or threading.active_count() > 1:
        sys.exit(code)
    # All files are closed by now. Taking the interpreter apart object by object, as it does by
    # itself, takes as long again as importing what was needed: 0.05 to 0.09 s.
    atexit._run_exitfuncs()  # pyright: ignore[reportPrivateUsage]
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(code)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and give its exit code."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    debug = "--debug" in words
    _interrupt_on_sigterm()
    # OpenMP threads that wait by spinning starve each other as soon as anything else runs: 60 small
    # training steps on two shared cores took over 3 minutes, and 34 s with threads that sleep.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    if words and _name(words[0]) in _TEXT_VERBS:
        # NumPy's linear algebra begins with a thread for each core, which spin for nothing.
        os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    try:
        _dispatch(words)
        sys.stdout.flush()
    except BrokenPipeError:
        # The reader of our output went away (`lowtide inspect … | head`): not an error of ours.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except SystemExit as end:  # tyro: 0 after help, 2 after a usage error it has printed
        return end.code if isinstance(end.code, int) else 0
    except KeyboardInterrupt:
        print("\ninterrupted; the same command goes on where it stopped", file=sys.stderr)
        return _EXIT_INTERRUPTED
    except Exception as error:
        if debug:
            traceback.print_exc()
        return _tell(error)
    return 0


def _interrupt_on_sigterm() -> None:
    """Treat a polite request to end (SLURM, systemd, docker stop) like Ctrl-C."""
    owner = os.getpid()

    def interrupt(signal_number: int, frame: object) -> None:
        if os.getpid() == owner:
            raise KeyboardInterrupt
        # A forked worker: whoever ends it wants it gone, without our message.
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGTERM)

    if threading.current_thread() is threading.main_thread():  # Python allows it nowhere else
        signal.signal(signal.SIGTERM, interrupt)


def _tell(error: Exception) -> int:
    """Print what went wrong and what to do next; give the exit code."""
    if isinstance(error, OSError):
        error = from_os_error(error)
    elif isinstance(error, MemoryError):
        error = LowtideError(
            "out of memory", next_step="close other programs, or give a smaller --memory"
        )
    elif not isinstance(error, LowtideError):
        error = LowtideError(
            f"unexpected {type(error).__name__}: {error}",
            next_step="the same command with --debug shows where; please report it",
        )
    print(f"error: {error}", file=sys.stderr)
    return error.exit_code


def _name(word: str) -> str:
    return word.replace("_", "-")


def _dispatch(words: list[str]) -> None:
    if words[:1] == ["--debug"]:
        words = [*words[1:], "--debug"]
    if not words or words[0] in ("-h", "--help", "help", "--debug"):
        print(_overview())
        return
    if words[0] == "--version":
        from lowtide import __version__

        print(f"lowtide {__version__}")
        return
    name = _name(words[0])
    if name not in _VERBS:
        kind = "flag" if name.startswith("-") else "verb"
        raise UsageError(
            unknown_name_message(words[0], _VERBS, kind=kind), next_step="lowtide --help"
        )
    verb = _VERBS[name]
    settings = _parse_settings(name, verb, words[1:])
    if getattr(settings, "memory", None) is not None:
        from lowtide.memory import parse_size

        parse_size(settings.memory)  # a size that is none must not cost a minute's work first
    verb.run(settings)


def _parse_settings(name: str, verb: _Verb, words: list[str]) -> Any:
    module_name, class_name = verb.settings.split(":")
    cls = getattr(importlib.import_module(module_name), class_name)
    return parse_settings(
        cls, words, program=f"lowtide {name}", summary=verb.summary, examples=verb.examples
    )


def _overview() -> str:
    width = max(map(len, _VERBS), default=0)
    rows = [f"  {name:<{width}}  {verb.summary}" for name, verb in _VERBS.items()]
    return "\n".join(
        [
            "usage: lowtide VERB [flags]",
            "",
            "Train language models on any amount of text inside a memory budget you choose.",
            "",
            "verbs:",
            *rows,
            "",
            "lowtide VERB --help shows a verb's flags; - and _ are the same in them.",
            "With every verb: --config-file FILE.json (flags beat it), --debug (traceback).",
            "lowtide --version shows the version.",
        ]
    )
