"""The command line: run a verb and set the exit code; the only module that prints errors.

In:      arguments
Out:     results on stdout, errors on stderr; exit code 0, 1 (error), 2 (usage), 3 (done, but the
         peak exceeded the budget), 130 (interrupted)
Memory:  that of the verb's stage
"""

from __future__ import annotations

import atexit
import contextlib
import os
import signal
import sys
import threading
import traceback
from collections.abc import Sequence
from typing import NoReturn

from lowtide.answers import print_answer, shown_as
from lowtide.errors import (
    BudgetError,
    BudgetPassedError,
    LowtideError,
    UsageError,
    from_device_error,
    from_lost_process,
    from_os_error,
    printable,
)
from lowtide.flatsettings import setting_values
from lowtide.memory import PeakMeter, format_size, parse_size, round_up_mib
from lowtide.packages import naming_missing_packages
from lowtide.scratch import remove_leftovers
from lowtide.settings import unknown_name_message
from lowtide.standardstreams import outlive_readers
from lowtide.tables import table_lines
from lowtide.verbs import VERBS
from lowtide.waiting import sleep_while_waiting

__all__ = ["main", "run"]

_EXIT_INTERRUPTED = 130


_TEXT_VERBS = {
    *("train-tokenizer", "train-classifier"),
    *("prepare", "pretokenize", "append", "verify", "convert"),
}


def run() -> NoReturn:
    """Run the command line and end the process; the entry point of `lowtide`."""
    outlive_readers()
    code = main(whole_process=True)
    for number in (signal.SIGTERM, signal.SIGINT):  # done: a signal now just ends the process
        signal.signal(number, signal.SIG_DFL)
    # All files are closed by now. os._exit skips the interpreter's own teardown, which takes as
    # long as the imports did: 0.05 to 0.09 s. With CUDA's torch it takes 1.5 s, and it touches 110
    # MiB of libraries that the work did not need, after the peak was reported. Threads are joined
    # first, as the interpreter does: thread pools that a library left open (torch.compile does)
    # are then told that there is no more work.
    threading._shutdown()  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType]
    atexit._run_exitfuncs()  # pyright: ignore[reportPrivateUsage]
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(code)


def main(arguments: Sequence[str] | None = None, *, whole_process: bool = False) -> int:
    """Run the command line and return its exit code.

    With `whole_process`, the peak compared with the budget is that of the process since it started;
    otherwise since this call, for a program that runs commands inside itself.
    """
    words = list(sys.argv[1:] if arguments is None else arguments)
    try:
        with PeakMeter(whole_process=whole_process) as meter:
            code = _run_words(words, meter)
            if meter.excess_bytes:
                passed = _tell(_budget_passed(meter))
                code = code or passed
    except KeyboardInterrupt:  # a second signal, while the first one is reported
        return _tell_interrupted()
    return code


def _budget_passed(meter: PeakMeter) -> BudgetPassedError:
    """The error for a command that exceeded its budget; its output is complete."""
    return BudgetPassedError(
        f"peak memory {format_size(meter.peak_bytes)} passed the budget of "
        f"{format_size(meter.budget_bytes or 0)} by {format_size(meter.excess_bytes)}",
        next_step=f"what was written is complete; --memory {round_up_mib(meter.peak_bytes)}MiB "
        "would have been enough. Please report it: a command should keep its budget or refuse it",
    )


def _run_words(words: list[str], meter: PeakMeter) -> int:
    debug = "--debug" in words
    sleep_while_waiting()
    if words and _name(words[0]) in _TEXT_VERBS:
        # NumPy's linear algebra starts a thread for each core, and these spin without work.
        os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    stop = _StopRequest()
    try:
        stop.heed_signals()
        with naming_missing_packages(f"lowtide {words[0] if words else ''}"):
            _dispatch(words)
        sys.stdout.flush()
    except SystemExit as end:  # 0 after help, 2 if tyro has printed what has no other explanation
        if end.code is None or isinstance(end.code, int):
            return end.code or 0
        return _tell(LowtideError(str(end.code)))
    except KeyboardInterrupt:
        return _tell_interrupted()
    except Exception as error:
        if stop.asked:  # a signal can surface as another error, for example inside an import
            return _tell_interrupted()
        if debug:
            traceback.print_exc()
        if isinstance(error, BudgetError):  # one message about the budget is enough
            meter.budget_bytes = None
        return _tell(error)
    return 0


class _StopRequest:
    """Whether this process was asked to end; SIGTERM (SLURM, docker stop) counts as Ctrl-C."""

    def __init__(self) -> None:
        self.asked = False
        self._owner = os.getpid()

    def heed_signals(self) -> None:
        """Let SIGTERM and SIGINT raise KeyboardInterrupt in this process."""
        if threading.current_thread() is not threading.main_thread():
            return  # Python allows this only in the main thread
        signal.signal(signal.SIGTERM, self._interrupt)
        if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            signal.signal(signal.SIGINT, self._interrupt)

    def _interrupt(self, number: int, frame: object) -> None:
        if os.getpid() == self._owner:
            self.asked = True
            raise KeyboardInterrupt
        # A forked worker ends at once, without a message.
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)


def _tell_interrupted() -> int:
    print("\ninterrupted; the same command goes on where it stopped", file=sys.stderr)
    return _EXIT_INTERRUPTED


def _tell(error: Exception) -> int:
    """Print the error and the next step; return the exit code."""
    if isinstance(error, OSError):
        error = from_os_error(error)
    elif isinstance(error, MemoryError):
        error = LowtideError(
            "out of memory", next_step="close other programs, or give a smaller --memory"
        )
    elif not isinstance(error, LowtideError):
        known = from_device_error(error) or from_lost_process(error)
        error = known or LowtideError(
            f"unexpected {type(error).__name__}: {error}",
            next_step="the same command with --debug shows where; please report it",
        )
    print(printable(f"error: {error}"), file=sys.stderr)
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
    if name not in VERBS:
        kind = "flag" if name.startswith("-") else "verb"
        raise UsageError(
            unknown_name_message(words[0], VERBS, kind=kind), next_step="lowtide --help"
        )
    verb = VERBS[name]
    given = [word for word in words[1:] if word not in ("--json", "--quiet")]
    settings = verb.parse(name, given)
    memory = setting_values(settings).get("memory")
    if memory is not None:
        parse_size(memory)  # reject a malformed size before any work starts
    remove_leftovers()
    with shown_as(as_json="--json" in words, quiet="--quiet" in words):
        answer = verb.run(settings)
        if answer is not None:
            print_answer(answer)


def _overview() -> str:
    names = [("  " + name, verb.summary) for name, verb in VERBS.items()]
    rows = table_lines(names, align="<<")
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
            "With every verb: --config-file FILE (flags override it), --json (one object on",
            "stdout), --quiet (no progress), --debug (traceback on error).",
            "lowtide --version shows the version.",
        ]
    )
