"""Make random changes to the source, run the tests of the changed stage, list what they missed.

In:      src/lowtide (by its syntax tree) and, with --native, native/**/*.[ch]pp (by operators)
Out:     one line per change: caught, survived or out of time; the survivors once more at the end.
         With --results a line of JSON each, with the test that noticed it. A native change that
         does not compile is replaced by another
Memory:  a copy of the repository per worker, beside the tests' own

    python tools/mutants.py --count 60 --seed 1 [--stage corpus] [--native] [--workers 16]
    python tools/mutants.py --place corpus/grouping.py:100     every change of one line
    python tools/mutants.py --place corpus/grouping.py --own   by the module's own tests alone
    python tools/mutants.py --again survivors.txt              what an earlier run printed
    python tools/mutants.py --count 300 --workers 14 --minutes 9 --results found.jsonl
        --leave-out failing.txt      as many as end in time, without the tests that fail unchanged
    python tools/mutants.py --map build/testmap …    by the tests that run the changed lines

Each change is made in a copy of the repository, so the working tree is unchanged. The copy's
Python is imported instead of the installed one; a native change is built there first. Lines are
printed as the runs end, so that an interrupted sample has shown its results.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import itertools
import json
import os
import random
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from dataclasses import replace
from pathlib import Path

from changes import ROOT, SOURCE, Mutant, drawn_before, native_mutants, parses, python_mutants
from mappedruns import MappedRuns
from testchoice import Choose, near_tests, own_tests, tests_of
from testruns import (
    NOT_BUILT,
    NOT_JUDGED,
    Copies,
    Limits,
    Verdict,
    check_tests,
    failing_tests,
    read_left_out,
    run_tests,
)  # fmt: skip


def changes_at(place: str) -> list[Mutant]:
    """Every change of a file, or of one line of it."""
    name, _, line = place.partition(":")
    path = Path(name) if (ROOT / name).exists() else SOURCE / name
    make = python_mutants if path.suffix == ".py" else native_mutants
    found = [mutant for mutant in make(path) if not line or mutant.line == int(line)]
    return list(filter(parses, found))


def draw(arguments: argparse.Namespace) -> list[Mutant]:
    """The sample, with spare changes to replace some of it, or all changes of one line."""
    if arguments.place:
        return [mutant for place in arguments.place for mutant in changes_at(place)]
    if arguments.again:
        return drawn_before(Path(arguments.again).read_text(encoding="utf-8"))
    if arguments.native:
        paths = sorted(path.relative_to(ROOT) for path in (ROOT / "native").rglob("*.[ch]pp"))
        mutants = [mutant for path in paths for mutant in native_mutants(path)]
    else:
        paths = sorted(path.relative_to(ROOT) for path in (ROOT / SOURCE).rglob("*.py"))
        mutants = [mutant for path in paths for mutant in python_mutants(path)]
        if arguments.stage:
            stages = {stage.removesuffix(".") for stage in arguments.stage}
            mutants = [mutant for mutant in mutants if mutant.stage in stages]
    random.Random(arguments.seed).shuffle(mutants)
    if arguments.native:
        return mutants
    return list(itertools.islice(filter(parses, mutants), arguments.count))


def try_all(
    mutants: list[Mutant], spare: list[Mutant], copies: Copies, limits: Limits, choose: Choose,
    judge: Callable[[Mutant, Path], Verdict], keep: Callable[[Mutant, Verdict], None],
) -> dict[Mutant, Verdict]:  # fmt: skip
    """Print the result of each change as soon as it is known, pass it to `keep`, and return it.

    A change that does not compile is replaced by the next of `spare` that the same tests judge.
    """
    verdicts: dict[Mutant, Verdict] = {}

    def try_one(mutant: Mutant) -> tuple[Mutant, Verdict]:
        def use(folder: Path) -> tuple[Mutant, Verdict]:
            begin = time.monotonic()
            if begin >= limits.end:
                return mutant, Verdict(NOT_JUDGED)
            verdict = judge(mutant, folder)
            return mutant, replace(verdict, seconds=time.monotonic() - begin)

        return copies.lend(use)

    with ThreadPoolExecutor(copies.count) as pool:
        waiting = {pool.submit(try_one, mutant) for mutant in mutants}
        while waiting:
            ended, waiting = wait(waiting, return_when=FIRST_COMPLETED)
            for mutant, verdict in (done.result() for done in ended):
                if verdict.seconds:
                    print(f"{verdict.word:24} {verdict.seconds:4.0f} s  {mutant}", flush=True)
                    keep(mutant, verdict)
                if verdict.word != NOT_BUILT:
                    verdicts[mutant] = verdict
                    continue
                other = next((one for one in spare if choose(one) == choose(mutant)), None)
                if other is not None:
                    spare.remove(other)
                    waiting.add(pool.submit(try_one, other))
    return verdicts


def write_result(path: str, seed: int, mutant: Mutant, verdict: Verdict) -> None:
    """Add one line of JSON to the file of results, if there is one."""
    row = {
        "seed": seed, "file": mutant.path.as_posix(), "line": mutant.line, "diff": mutant.diff(),
        "verdict": verdict.word, "test": verdict.test, "seconds": round(verdict.seconds, 1),
    }  # fmt: skip
    if path:
        with Path(path).open("a", encoding="utf-8") as file:
            print(json.dumps(row), file=file, flush=True)


def main() -> None:
    """Run the sample and print the score."""
    arguments = read_arguments()
    mutants = draw(arguments)
    whole = bool(arguments.place or arguments.again)
    count = len(mutants) if whole else arguments.count
    sample, spare = mutants[:count], mutants[count:]
    if arguments.list:
        print(*sample, sep="\n")
        return
    choose = functools.cache(chosen_tests(arguments))
    for mutant in [] if arguments.map else sample:
        choose(mutant)  # with the current tests: the working tree may change meanwhile
    end = time.monotonic() + 60 * arguments.minutes if arguments.minutes else float("inf")
    limits = Limits(arguments.seconds, end)
    keep = functools.partial(write_result, arguments.results, arguments.seed)
    with contextlib.ExitStack() as stack:
        temporary = tempfile.TemporaryDirectory(prefix="mutants-", ignore_cleanup_errors=True)
        root = stack.enter_context(temporary)
        # JAX caches compiled code by its content, which most changes do not affect.
        os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", f"{root}/compiled")
        copies = Copies(Path(root), arguments.workers, any(one.is_native for one in sample))
        if arguments.map:
            mapped = MappedRuns(Path(arguments.map), arguments.most, sample)
            stack.callback(mapped.close)
            judge = lambda mutant, folder: mapped.judge(mutant, folder, limits)  # noqa: E731
        else:
            check_unchanged(arguments, sample, copies, choose)
            judge = lambda mutant, folder: run_tests(mutant, copies, folder, limits, choose)  # noqa: E731
        verdicts = try_all(sample, spare, copies, limits, choose, judge, keep)
    sys.exit(bool(print_summary(verdicts)))


def read_arguments() -> argparse.Namespace:
    """Parse the command's arguments."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=60, help="how many changes to draw")
    parser.add_argument("--seed", type=int, default=0, help="which ones")
    parser.add_argument("--stage", nargs="+", help="only these folders of src/lowtide; . its own")
    parser.add_argument("--place", nargs="+", help="FILE[:LINE]: every change there instead")
    parser.add_argument("--again", default="", help="a file of lines printed before: these instead")
    parser.add_argument("--native", action="store_true", help="the C++ core instead of Python")
    parser.add_argument("--workers", type=int, default=1, help="changes tried at a time")
    parser.add_argument("--seconds", type=int, default=1200, help="limit of one run of the tests")
    parser.add_argument("--minutes", type=float, help="begin nothing more, and end, after these")
    parser.add_argument("--results", default="", help="a file to add a line of JSON each to")
    parser.add_argument("--leave-out", help="a file of tests that fail unchanged; made if absent")
    parser.add_argument("--list", action="store_true", help="only print the changes")
    parser.add_argument("--trust", action="store_true", help="the tests pass without a change")
    parser.add_argument("--own", action="store_true", help="only the changed module's own tests")
    parser.add_argument("--near", action="store_true", help="its own and the files that import it")
    parser.add_argument("--tests", nargs="+", help="only these files of tests")
    parser.add_argument("--map", default="", help="judge by the tests that run the changed lines")
    parser.add_argument("--most", type=float, default=float("inf"), help="seconds of those tests")
    return parser.parse_args()


def chosen_tests(arguments: argparse.Namespace) -> Choose:
    """The function that chooses the test files for a change."""
    if arguments.tests:
        return lambda mutant: [arguments.tests]
    if arguments.own:
        return lambda mutant: [[own_tests(mutant)]]
    return near_tests if arguments.near else tests_of


def check_unchanged(
    arguments: argparse.Namespace, sample: list[Mutant], copies: Copies, choose: Choose
) -> None:
    """Run the tests without a change: leave out tests that fail, or stop."""
    if arguments.leave_out:
        find = functools.partial(failing_tests, sample, copies, choose)
        read_left_out(Path(arguments.leave_out), find)
    elif not arguments.trust:
        check_tests(sample, copies, choose)


def print_summary(verdicts: dict[Mutant, Verdict]) -> list[Mutant]:
    """Print and return the changes that survived, after the score."""
    judged = {one: verdict for one, verdict in verdicts.items() if verdict.word != NOT_JUDGED}
    survivors = [mutant for mutant, verdict in judged.items() if not verdict.is_caught]
    caught, left = len(judged) - len(survivors), len(verdicts) - len(judged)
    print(f"\n{caught} of {len(judged)} caught ({caught / max(len(judged), 1):.0%})", end="")
    print(f", {left} not judged in time" if left else "", "survivors:", sep="; ")
    print(*survivors, sep="\n")
    return survivors


if __name__ == "__main__":
    main()
