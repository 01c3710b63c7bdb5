"""The command line: one function per verb; the only module that prints errors and exits.

In:      arguments; each verb's settings dataclass, imported only when that verb is used
Out:     results on stdout, errors on stderr; exit code 0, 1 (error), 2 (usage), 130 (interrupted)
Memory:  whatever the verb's stage takes
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import os
import signal
import sys
import threading
import traceback
import types
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Union, get_args

from lowtide.errors import DataError, LowtideError, UsageError, from_os_error
from lowtide.settings import read_config_file, read_preset, unknown_name_message

if TYPE_CHECKING:
    from tyro.constructors import ConstructorRegistry

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

__all__ = ["main"]

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


# To add a verb: write a function here that takes the verb's settings, imports its stage inside
# itself (so that nobody else waits for it), calls it and prints the result to stdout; the first
# line of its docstring is its line in `lowtide --help`. Then give it a row in _VERBS, in the order
# of the stages. Help for the flags comes from the docstrings of the settings' fields.


def _train_tokenizer(settings: TokenizerTrainingSettings) -> None:
    """Learn a BPE or character tokenizer from text of any size."""
    from lowtide.tokenizer.training import describe_trained, train_tokenizer

    if settings.out_dir is None:
        raise UsageError("no folder for the tokenizer", next_step="--out-dir tok/mine")
    print(describe_trained(train_tokenizer(settings), settings.out_dir))


def _compare_memory(settings: CompareSettings) -> None:
    """Do a job the ordinary way and the sparing way, peak memory side by side."""
    from lowtide.planning.comparison import compare_ways, describe_pairs

    print(describe_pairs(compare_ways(settings)))


def _prepare(settings: PrepareSettings) -> None:
    """Turn text of any size into shuffled, deduplicated, checked shards of ids."""
    from lowtide.dataset.preparation import prepare_dataset
    from lowtide.dataset.summary import describe_preparation

    print(describe_preparation(prepare_dataset(settings)))


def _pretokenize(settings: PretokenizeSettings) -> None:
    """Turn one text file into one .npy of ids beside it."""
    from lowtide.dataset.pretokenization import pretokenize_file
    from lowtide.dataset.summary import describe_pretokenization

    print(describe_pretokenization(pretokenize_file(settings)))


def _append(settings: AppendSettings) -> None:
    """Add new text to a finished dataset, without touching what is there."""
    from lowtide.dataset.appending import append_to_dataset
    from lowtide.dataset.summary import describe_append

    print(describe_append(append_to_dataset(settings)))


def _verify(settings: VerifySettings) -> None:
    """Check every byte, id and document end of a dataset."""
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
    """Import ids of other programs as a dataset, or export a dataset for them."""
    from lowtide.dataset.conversion import convert_dataset

    result = convert_dataset(settings)
    print("\n".join([f"{result.num_tokens:,} tokens", *map(str, result.paths)]))


def _inspect(settings: InspectSettings) -> None:
    """Show a dataset or a tokenizer at a glance, and text as tokens."""
    from lowtide.dataset.inspection import inspect_dataset
    from lowtide.tokenizer.inspection import inspect_tokenizer, is_tokenizer

    if is_tokenizer(settings.dataset_dir):
        color = sys.stdout.isatty() and "NO_COLOR" not in os.environ
        print(
            inspect_tokenizer(
                settings.dataset_dir, sample=settings.sample, text=settings.text, color=color
            )
        )
    elif settings.test_loading:
        from lowtide.loader.selftest import check_loading

        print(check_loading(settings.dataset_dir, split=settings.split))
    else:
        print(inspect_dataset(settings))


def _plan(settings: PlanSettings) -> None:
    """Say what a run will need, whether it fits, and which settings do."""
    from lowtide.planning import make_plan
    from lowtide.planning.summary import describe_plan, plan_as_json

    plan = make_plan(settings)
    print(plan_as_json(plan) if settings.json else describe_plan(plan))


def _train(settings: TrainSettings) -> None:
    """Train a model on a prepared dataset, a text file, .npy files or a stream."""
    if settings.slurm:
        from lowtide.training.slurm import write_slurm_script

        print(f"sbatch {write_slurm_script(settings)}")
        return

    from lowtide.training.start import train

    result = train(settings)
    if os.environ.get("RANK", "0") != "0":  # under torchrun the first process speaks
        return
    line = f"{settings.run_dir}: {result.stopped} at step {result.steps}, loss {result.loss:.4f}"
    if result.best_val_loss is not None:
        line += f", best validation loss {result.best_val_loss:.4f}"
    print(line)


def _generate(settings: GenerateSettings) -> None:
    """Continue a prompt with a trained model."""
    from lowtide.generation.decoding import generate

    for text in generate(settings):
        print(text, end="", flush=True)


def _evaluate(settings: EvaluateSettings) -> None:
    """Measure a model's loss and bits per byte on datasets."""
    from lowtide.training.evaluation import evaluate

    for name, result in evaluate(settings).items():
        bits = "" if result.bits_per_byte is None else f"  {result.bits_per_byte:.4f} bits/byte"
        print(
            f"{name}: loss {result.loss:.4f}  perplexity {result.perplexity:.2f}{bits}  "
            f"({result.num_tokens:,} tokens)"
        )


def _export(settings: ExportSettings) -> None:
    """Write a model as a folder that transformers loads."""
    from lowtide.model.export import export_model

    print(export_model(settings))


def _report(settings: ReportSettings) -> None:
    """Make a page to look at of a run, a dataset or a tokenizer; --watch keeps it live."""
    from lowtide.memory import format_size
    from lowtide.reporting.reports import make_report

    if settings.watch:
        from lowtide.reporting.watching import watch

        watch(settings, announce=lambda url: print(f"{url}  (Ctrl-C ends it)", flush=True))
        return
    result = make_report(settings)
    print(f"{result.path}: {result.kind}, {format_size(result.num_bytes)}")


def _demo(settings: DemoSettings) -> None:
    """Go the whole way on text every machine has: tokenizer, dataset, model, text."""
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


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and give its exit code; the entry point of `lowtide`."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    debug = "--debug" in words
    _interrupt_on_sigterm()
    # OpenMP threads that wait by spinning starve each other as soon as anything else runs: 60 small
    # training steps on two shared cores took over 3 minutes, and 34 s with threads that sleep.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
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
    name = words[0].replace("_", "-")
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


def _parse_settings(name: str, verb: _Verb, words: list[str]) -> Any:
    """Make the verb's settings: flags over the config file over the defaults."""
    module_name, class_name = verb.settings.split(":")
    cls = getattr(importlib.import_module(module_name), class_name)

    import tyro  # a tenth of a second; `lowtide --help` does without

    names = {field.name for field in dataclasses.fields(cls)}
    words = _rename_flags(words, getattr(cls, "flag_aliases", {}))
    config_path: Path | None = None
    also = ""
    if "config_file" not in names:
        config_path, words = _take_config_file(words)
        also += " --config-file FILE.json (flags beat it)"
    if "debug" not in names:  # else the verb shows more than a traceback
        words = [word for word in words if word != "--debug"]
        also += " --debug (traceback on error)"
    options: dict[str, Any] = {}
    if hasattr(cls, "presets_dir"):
        preset, words = _take_word(words, "--preset")
        also += " --preset NAME (settings that belong together; config file and flags beat it)"
        options = {} if preset is None else read_preset(preset, for_settings=cls)
    default: Any = tyro.MISSING_NONPROP
    if config_path is not None:
        options |= read_config_file(config_path, for_settings=cls)
    if options:
        default = _partial_settings(cls, options, missing=tyro.MISSING)
    description = f"{verb.summary}." + (f"\n\nAlso:{also}" if also else "")
    return tyro.cli(
        cls,
        args=words,
        default=default,
        prog=f"lowtide {name}",
        description=description,
        registry=_plain_values(),
    )


def _plain_values() -> ConstructorRegistry:
    """Let tyro show an optional number or path as one (`INT`, not `{None}|INT`), and read 1e6."""
    from tyro.constructors import (
        ConstructorRegistry,
        PrimitiveConstructorSpec,
        PrimitiveTypeInfo,
    )

    readers: dict[Any, tuple[str, Callable[[str], Any]]] = {
        str: ("TEXT", str),
        Path: ("PATH", Path),
        int: ("INT", _read_int),
        float: ("FLOAT", float),
    }

    def rule(info: PrimitiveTypeInfo) -> PrimitiveConstructorSpec[Any] | None:
        is_union = info.type_origin in (Union, types.UnionType)
        choices: set[Any] = set(get_args(info.type)) if is_union else {info.type}
        choices -= {type(None)}
        if choices == {str, int}:  # a size, read as it was written
            choices = {str}
        if len(choices) != 1 or not choices <= readers.keys():
            return None
        (kind,) = choices
        metavar, read = readers[kind]
        return PrimitiveConstructorSpec(
            nargs=1,
            metavar=metavar,
            instance_from_str=lambda words: read(words[0]),
            is_instance=lambda value: value is None or isinstance(value, (kind, int)),
            str_from_instance=lambda value: ["none" if value is None else str(value)],
        )

    registry = ConstructorRegistry()
    registry.primitive_rule(rule)
    return registry


def _read_int(word: str) -> int:
    """Read a whole number, also as people write large ones: 1_000_000, 1e6."""
    try:
        return int(word)
    except ValueError:
        with contextlib.suppress(ValueError):
            if float(word).is_integer():
                return int(float(word))
    raise ValueError(f"{word!r} is not a whole number")


def _rename_flags(words: list[str], aliases: Mapping[str, str]) -> list[str]:
    """Replace flags that other programs call differently by ours."""
    renamed: list[str] = []
    for word in words:
        flag, equals, value = word.partition("=")
        ours = aliases.get(flag.replace("_", "-"))
        renamed.append(word if ours is None else f"{ours}{equals}{value}")
    return renamed


def _take_config_file(words: list[str]) -> tuple[Path | None, list[str]]:
    """Take `--config-file FILE` out of the arguments."""
    path: Path | None = None
    rest: list[str] = []
    remaining = iter(words)
    for word in remaining:
        flag, equals, value = word.partition("=")
        if flag not in ("--config-file", "--config_file"):
            rest.append(word)
            continue
        if not equals:
            value = next(remaining, "")
        if not value:
            raise UsageError("--config-file names no file", next_step="--config-file FILE.json")
        path = Path(value)
    return path, rest


def _take_word(words: list[str], wanted: str) -> tuple[str | None, list[str]]:
    """Take `--wanted VALUE` out of the arguments."""
    found: str | None = None
    rest: list[str] = []
    remaining = iter(words)
    for word in remaining:
        flag, equals, value = word.partition("=")
        if flag != wanted:
            rest.append(word)
            continue
        found = value if equals else next(remaining, "")
        if not found:
            raise UsageError(f"{wanted} names nothing", next_step=f"{wanted} NAME")
    return found, rest


def _partial_settings(cls: type[Any], options: dict[str, Any], *, missing: object) -> Any:
    """Give an instance that holds `options` and defaults, and `missing` for what has neither.

    Its checks (`__post_init__`) do not run: they belong to the whole settings, which tyro makes.
    """
    settings = object.__new__(cls)
    for field in dataclasses.fields(cls):
        value = missing
        if field.name in options:
            value = options[field.name]
        elif field.default is not dataclasses.MISSING:
            value = field.default
        elif field.default_factory is not dataclasses.MISSING:
            value = field.default_factory()
        object.__setattr__(settings, field.name, value)
    return settings
