"""The command line: help, verbs by name, errors and exit codes."""

from __future__ import annotations

import io
import json
import os
import re
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from lowtide import cli
from lowtide.answers import is_quiet, wants_json
from lowtide.errors import BudgetError, BudgetPassedError, DataError
from lowtide.progress import Progress
from lowtide.verbs import VERBS, Verb

ROOT = Path(__file__).parent.parent
SETTINGS_SOURCE = '''
from __future__ import annotations
import dataclasses
from pathlib import Path
from lowtide.errors import UsageError

@dataclasses.dataclass(frozen=True)
class CountSettings:
    input_files: tuple[Path, ...]
    """Text files to count."""
    num_rounds: int = 1
    """How often to count."""
    memory: str | None = None
    """Memory budget."""
    normalize: bool = True
    """Clean the text first."""
    def __post_init__(self) -> None:
        if self.num_rounds < 0:
            raise UsageError(f"num_rounds is {self.num_rounds}, expected at least 0")
'''


class Recorder:
    """A verb that keeps the settings it was given, and fails as told."""

    def __init__(self) -> None:
        """Count things."""
        self.settings: Any = None
        self.error: BaseException | None = None
        self.__doc__ = "Count things."

    def __call__(self, settings: Any) -> None:
        self.settings = settings
        if self.error is not None:
            raise self.error


@pytest.fixture
def verb(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Recorder:
    (tmp_path / "count_settings_module.py").write_text(SETTINGS_SOURCE)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "count_settings_module", raising=False)
    recorder = Recorder()
    row = Verb(recorder, "count_settings_module:CountSettings")
    monkeypatch.setattr(cli, "VERBS", {"count-words": row})
    return recorder


def run_python(*arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments], capture_output=True, text=True, check=False, **options
    )


def test_help_lists_every_verb_with_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--help"]) == 0
    out = capsys.readouterr().out
    for name, row in VERBS.items():
        assert f"  {name} " in out
        assert row.summary
        assert row.summary in out


def test_help_imports_neither_torch_nor_tyro() -> None:
    program = (
        "import sys; from lowtide.cli import main; main(['--help']);"
        "print([n for n in ('torch', 'tyro', 'numpy', 'rich') if n in sys.modules])"
    )
    assert run_python("-c", program).stdout.splitlines()[-1] == "[]"


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    from lowtide import __version__

    assert cli.main(["--version"]) == 0
    assert capsys.readouterr().out == f"lowtide {__version__}\n"


def test_dashes_and_underscores_are_the_same(verb: Recorder) -> None:
    words = ["count_words", "--input_files", "a", "b", "--num_rounds", "3", "--no_normalize"]
    assert cli.main(words) == 0
    first = verb.settings
    assert cli.main([word.replace("_", "-") for word in words]) == 0
    assert verb.settings == first
    assert first.input_files == (Path("a"), Path("b"))
    assert (first.num_rounds, first.normalize) == (3, False)


@pytest.mark.parametrize(
    "words",
    [
        ["count-words"],  # a required flag is missing
        ["count-words", "--input-files", "a", "--num-round", "2"],
        ["count-words", "--input-files", "a", "--num-rounds", "two"],
        ["count-words", "--input-files", "a", "--num-rounds", "-2"],
        ["count-word"],
        ["--hlep"],
    ],
)
def test_usage_errors_exit_with_2(
    verb: Recorder, capsys: pytest.CaptureFixture[str], words: list[str]
) -> None:
    assert cli.main(words) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err
    assert "Traceback" not in captured.err
    assert verb.settings is None


def test_unknown_verb_names_the_nearest(verb: Recorder, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["cont-words"]) == 2
    assert "unknown verb 'cont-words'; did you mean count-words?" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (
            DataError("no tokens", path="a.bin", next_step="prepare again"),
            "error: no tokens\n  file: a.bin\n  next: prepare again\n",
        ),
        (
            FileNotFoundError(2, "No such file or directory", "a.txt"),
            "error: no such file or folder\n  file: a.txt\n  next: check the path",
        ),
        (OSError(28, "No space left on device", "a.bin"), "error: the disk is full\n  file: a.bin"),
        (MemoryError(), "error: out of memory"),
        (ZeroDivisionError("x"), "error: unexpected ZeroDivisionError: x"),
        (
            RuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 9 bytes.\nmore"),
            "error: the device has no memory left: RESOURCE_EXHAUSTED: Out of memory allocating "
            "9 bytes.\n  next: end other programs on it (nvidia-smi names them), ",
        ),
    ],
)
def test_errors_are_printed_without_traceback(
    verb: Recorder, capsys: pytest.CaptureFixture[str], error: Exception, expected: str
) -> None:
    verb.error = error
    assert cli.main(["count-words", "--input-files", "a"]) == 1
    captured = capsys.readouterr()
    assert captured.err.startswith(expected)
    assert "Traceback" not in captured.err
    assert captured.out == ""


def test_debug_shows_the_traceback(verb: Recorder, capsys: pytest.CaptureFixture[str]) -> None:
    verb.error = DataError("no tokens")
    assert cli.main(["count-words", "--input-files", "a", "--debug"]) == 1
    err = capsys.readouterr().err
    assert "Traceback" in err
    assert err.endswith("error: no tokens\n")


def test_debug_may_stand_before_the_verb(verb: Recorder) -> None:
    assert cli.main(["--debug", "count-words", "--input-files", "a"]) == 0
    assert verb.settings.input_files == (Path("a"),)


def test_a_verb_with_a_debug_setting_gets_it(verb: Recorder, tmp_path: Path) -> None:
    source = SETTINGS_SOURCE.replace("normalize: bool = True", "debug: bool = False")
    (tmp_path / "count_settings_module.py").write_text(source)
    assert cli.main(["count-words", "--input-files", "a", "--debug"]) == 0
    assert verb.settings.debug is True


def test_ctrl_c_exits_with_130_and_says_how_to_go_on(
    verb: Recorder, capsys: pytest.CaptureFixture[str]
) -> None:
    verb.error = KeyboardInterrupt()
    assert cli.main(["count-words", "--input-files", "a"]) == 130
    assert capsys.readouterr().err.strip() == (
        "interrupted; the same command goes on where it stopped"
    )


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signals_reach_a_running_verb(number: signal.Signals) -> None:
    program = (
        "import sys, time; from lowtide import cli; from lowtide.verbs import Verb\n"
        "def wait(settings):\n"
        "    'Wait.'\n"
        "    print('ready', flush=True)\n"
        "    while True: time.sleep(0.02)\n"  # a signal just before pause() would be missed
        "cli.VERBS['wait'] = Verb(wait, 'lowtide.demo.stages:DemoSettings')\n"
        "sys.exit(cli.main(['wait']))"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(number)
        err = process.stderr.read()
        assert process.wait() == 130
    assert "the same command goes on" in err
    assert "Traceback" not in err


def test_ending_a_forked_worker_is_quiet() -> None:
    program = (
        "import multiprocessing, sys, time\n"
        "from lowtide import cli; from lowtide.verbs import Verb\n"
        "def run(ready):\n"
        "    ready.set()\n"
        "    while True: time.sleep(0.02)\n"
        "def work(settings):\n"
        "    'Work.'\n"
        "    context = multiprocessing.get_context('fork')\n"
        "    ready = context.Event()\n"
        "    worker = context.Process(target=run, args=(ready,))\n"
        "    worker.start(); ready.wait(60)\n"
        "    worker.terminate(); worker.join(); print(worker.exitcode)\n"
        "cli.VERBS['work'] = Verb(work, 'lowtide.demo.stages:DemoSettings')\n"
        "sys.exit(cli.main(['work']))"
    )
    done = run_python("-c", program)
    assert (done.returncode, done.stdout, done.stderr) == (0, "-15\n", "")


def test_a_reader_that_goes_away_is_no_error() -> None:
    program = (
        "import sys; from lowtide import cli\n"
        "cli._overview = lambda: 'x' * 10_000_000\n"
        "sys.argv[1:] = ['--help']; cli.run()"
    )
    writing = closed_pipe()
    try:
        done = subprocess.run(
            [sys.executable, "-c", program], stdout=writing, stderr=subprocess.PIPE, check=False
        )
    finally:
        os.close(writing)
    assert done.returncode == 0
    assert done.stderr == b""


@pytest.mark.parametrize("log", ["pipe", "disk"])
def test_work_outlives_the_reader_of_its_progress(tmp_path: Path, log: str) -> None:
    if log == "disk" and not Path("/dev/full").exists():
        pytest.skip("no /dev/full on this system")
    (tmp_path / "a.txt").write_text("some words to learn from\n" * 40)
    lost = closed_pipe() if log == "pipe" else os.open("/dev/full", os.O_WRONLY)
    words = [*("-m", "lowtide", "prepare", "--input-files", "a.txt", "--out-dir", "out")]
    words += ["--tokenization", "char", "--memory", "256MiB"]
    try:
        done = subprocess.run(
            [sys.executable, *words], cwd=tmp_path, stdout=subprocess.PIPE, stderr=lost, check=False
        )
    finally:
        os.close(lost)
    assert done.returncode == 0 and b"Total shards" in done.stdout
    assert (tmp_path / "out" / "dataset_metadata.json").exists()


def test_work_outlives_the_reader_of_its_results(tmp_path: Path) -> None:
    names = [f"{number}.txt" for number in range(3)]
    for name in names:
        (tmp_path / name).write_text("some words to encode\n")
    lost = closed_pipe()
    words = ["-u", "-m", "lowtide", "pretokenize", *names, "--memory", "256MiB"]
    try:
        done = subprocess.run(
            [sys.executable, *words], cwd=tmp_path, stdout=lost, stderr=subprocess.PIPE, check=False
        )
    finally:
        os.close(lost)
    assert done.returncode == 0, done.stderr
    assert sorted(path.name for path in tmp_path.glob("*.npy")) == ["0.npy", "1.npy", "2.npy"]


def test_a_pipe_that_breaks_elsewhere_is_an_error(
    verb: Recorder, capsys: pytest.CaptureFixture[str]
) -> None:
    verb.error = BrokenPipeError(32, "Broken pipe")
    assert cli.main(["count-words", "--input-files", "a"]) == 1
    assert "Broken pipe" in capsys.readouterr().err


def closed_pipe() -> int:
    """The end to write to of a pipe that nobody reads."""
    reading, writing = os.pipe()
    os.close(reading)
    return writing


def test_python_dash_m_runs_it() -> None:
    done = run_python("-m", "lowtide", "--version")
    assert (done.returncode, done.stdout.split()[0]) == (0, "lowtide")


def test_a_name_that_no_terminal_can_show_is_no_error(tmp_path: Path) -> None:
    bad = Path(os.fsdecode(bytes(tmp_path) + b"/bad\xff.txt"))
    bad.write_bytes(b"\0 no text at all")
    (tmp_path / "good.txt").write_text("Übung: enough words to be kept as a document")
    words = [sys.executable, "-m", "lowtide", "prepare", "--input-files", str(tmp_path)]
    words += ["--out-dir", str(tmp_path / "out"), "--tokenization", "char", "--skip-bad-inputs"]
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    done = subprocess.run(words, capture_output=True, check=False, env=environment, timeout=120)
    assert done.returncode == 0, done.stderr
    assert b"bad\\udcff.txt" in done.stdout


# A verb with a budget of 64 MiB that holds 80 before its job begins, inside of it, or never.
HOLDING = """
import os, sys
from pathlib import Path
from lowtide import cli, progress
from lowtide.verbs import Verb
when = os.environ["WHEN"]
def hold(now):
    if now == when:
        block = bytearray(80 << 20)
        block[::4096] = b"x" * len(block[::4096])
def work(settings):
    "Work."
    hold("before")
    with progress.Progress("work", budget_bytes=64 << 20, metrics_path=Path("metrics.jsonl")):
        hold("inside")
    hold("after")
    print("the result")
    if os.environ.get("FAIL"):
        raise ValueError("x")
cli.VERBS["work"] = Verb(work, "lowtide.demo.stages:DemoSettings")
sys.argv[1:] = ["work"]
cli.run()
"""


def run_holding(folder: Path, when: str, **more: str) -> tuple[Any, dict[str, Any]]:
    environment = {**os.environ, "WHEN": when, **more}
    done = run_python("-c", HOLDING, cwd=folder, env=environment)
    last = json.loads((folder / "metrics.jsonl").read_text().splitlines()[-1])
    return done, last


@pytest.mark.parametrize("when", ["before", "inside", "after"])
def test_a_peak_over_the_budget_is_told_wherever_it_was_and_never_a_success(
    when: str, tmp_path: Path
) -> None:
    done, last = run_holding(tmp_path, when)
    assert done.returncode == BudgetPassedError.exit_code == 3
    assert done.stdout == "the result\n"  # the work is done, and whole
    error = done.stderr[done.stderr.index("error: ") :]
    assert re.match(
        r"error: peak memory \d+\.\d MiB passed the budget of 64\.0 MiB by \d+\.\d MiB\n  next: ",
        error,
    )
    if when != "after":  # what comes later cannot be in the job's own summary
        assert re.search(r"work: .* of 64\.0 MiB budget: OVER BUDGET by \d+\.\d MiB", done.stderr)
        assert last["over_budget_bytes"] == last["peak_memory_bytes"] - (64 << 20) > 16 << 20


def test_a_kept_budget_is_a_plain_success(tmp_path: Path) -> None:
    done, last = run_holding(tmp_path, "never")
    assert (done.returncode, done.stdout) == (0, "the result\n")
    assert "OVER" not in done.stderr
    assert last["over_budget_bytes"] == 0


def test_an_error_keeps_its_own_exit_code_and_the_peak_is_told_too(tmp_path: Path) -> None:
    done, _ = run_holding(tmp_path, "inside", FAIL="1")
    assert done.returncode == 1
    assert "unexpected ValueError" in done.stderr
    assert "passed the budget of 64.0 MiB" in done.stderr


def test_escape_sequences_never_reach_the_terminal(
    verb: Recorder, capsys: pytest.CaptureFixture[str]
) -> None:
    verb.error = DataError("\x1b[2Jgone", path="a\x1b]0;title\x07.txt", next_step="b\x9b")
    assert cli.main(["count-words", "--input-files", "a"]) == 1
    err = capsys.readouterr().err
    assert err == "error: \\x1b[2Jgone\n  file: a\\x1b]0;title\\x07.txt\n  next: b\\x9b\n"


def test_a_signal_while_modules_are_imported_is_an_interruption(
    verb: Recorder, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(settings: Any) -> None:
        """Count things."""
        try:
            signal.raise_signal(signal.SIGTERM)
        except KeyboardInterrupt:
            raise ImportError("numpy failed to import") from None  # as extension modules do

    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    row = Verb(interrupted, "count_settings_module:CountSettings")
    cli.VERBS["count-words"] = row
    try:
        assert cli.main(["count-words", "--input-files", "a"]) == 130
    finally:
        signal.signal(signal.SIGINT, before[0])
        signal.signal(signal.SIGTERM, before[1])
    assert "unexpected" not in capsys.readouterr().err


def test_sigterm_at_any_moment_of_a_start_ends_without_a_traceback(tmp_path: Path) -> None:
    text = tmp_path / "a.txt"
    text.write_text("some words to learn from\n" * 50)
    for number in range(6):
        words = ["lowtide", "train-tokenizer", "--input", str(text), "--vocab-size", "280"]
        words += ["--out-dir", str(tmp_path / f"out{number}")]
        # A debugger's hook sends the signal at the nth import: early, later, and in the verb.
        program = (
            "import builtins, os, signal, sys\n"
            f"sys.argv = {words!r}\n"
            "count = 0\n"
            "from lowtide import cli\n"
            "original = builtins.__import__\n"
            "def importing(*args, **kwargs):\n"
            "    global count\n"
            "    count += 1\n"
            f"    if count == {1 + 40 * number}: os.kill(os.getpid(), signal.SIGTERM)\n"
            "    return original(*args, **kwargs)\n"
            "heed = cli._StopRequest.heed_signals\n"
            "def start(self):\n"
            "    heed(self)\n"
            "    builtins.__import__ = importing\n"
            "cli._StopRequest.heed_signals = start\n"
            "cli.run()\n"
        )
        done = run_python("-c", program)
        assert done.returncode in (0, 130), done.stderr
        assert "Traceback" not in done.stderr
        assert "unexpected" not in done.stderr
        if done.returncode == 130:
            assert "interrupted" in done.stderr


def test_a_pool_of_threads_that_is_left_open_does_not_keep_the_command_from_ending():
    code = (
        "import sys, threading\n"
        "from concurrent.futures import ThreadPoolExecutor\n"
        "from lowtide import cli\n"
        "pool = ThreadPoolExecutor(1)\n"
        "pool.submit(int).result()\n"
        "threading.Thread(target=lambda: print('joined')).start()\n"
        "sys.argv = ['lowtide', '--version']\n"
        "cli.run()"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == 0 and "joined" in done.stdout


def test_a_command_ends_its_process_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """Signals end it as they end any program; then threads, exit functions, streams, the end."""
    calls: list[Any] = []
    monkeypatch.setattr(cli, "main", lambda *, whole_process: calls.append(whole_process) or 5)
    monkeypatch.setattr(signal, "signal", lambda *given: calls.append(given))
    monkeypatch.setattr(cli.threading, "_shutdown", lambda: calls.append("threads"))
    monkeypatch.setattr(cli.atexit, "_run_exitfuncs", lambda: calls.append("exit functions"))

    def leave(code: int) -> None:
        calls.append(code)
        raise SystemExit

    monkeypatch.setattr(os, "_exit", leave)
    stdout, stderr = (io.TextIOWrapper(io.BytesIO(), encoding="ascii") for _ in range(2))
    monkeypatch.setattr(sys, "stdout", stdout)
    monkeypatch.setattr(sys, "stderr", stderr)
    stderr.close()  # which is no error by now
    with pytest.raises(SystemExit):
        cli.run()
    ends = [(number, signal.SIG_DFL) for number in (signal.SIGTERM, signal.SIGINT)]
    assert calls == [True, *ends, "threads", "exit functions", 5]


def test_what_is_printed_last_is_flushed(monkeypatch: pytest.MonkeyPatch) -> None:
    flushed: list[str] = []

    class Stream(io.StringIO):
        def flush(self) -> None:
            flushed.append(self.getvalue())

    monkeypatch.setattr(sys, "stdout", Stream())
    assert cli.main(["--version"]) == 0
    assert flushed[-1].startswith("lowtide ")
    flushed.clear()
    monkeypatch.setattr(cli, "main", lambda *, whole_process: 0)
    monkeypatch.setattr(cli.threading, "_shutdown", lambda: None)
    monkeypatch.setattr(cli.atexit, "_run_exitfuncs", lambda: print("last words"))
    monkeypatch.setattr(signal, "signal", lambda *given: None)
    monkeypatch.setattr(os, "_exit", lambda code: None)
    cli.run()
    assert flushed[-1].endswith("last words\n")


def test_only_verbs_of_text_keep_numpy_to_one_thread(
    verb: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = cli.VERBS["count-words"]
    monkeypatch.setattr(cli, "VERBS", {"count-words": row, "train-tokenizer": row})
    for words, threads in (
        (["count-words", "--input-files", "a"], None),
        (["train_tokenizer", "--input-files", "a"], "1"),
        ([], None),
    ):
        for name in ("OPENBLAS_NUM_THREADS", "OMP_WAIT_POLICY"):
            monkeypatch.setenv(name, "")
            monkeypatch.delenv(name)
        assert cli.main(words) == 0
        assert os.environ.get("OPENBLAS_NUM_THREADS") == threads
        assert os.environ["OMP_WAIT_POLICY"] == "passive"
    monkeypatch.setenv("OPENBLAS_NUM_THREADS", "7")
    assert cli.main(["train-tokenizer", "--input-files", "a"]) == 0
    assert os.environ["OPENBLAS_NUM_THREADS"] == "7"


def test_a_forked_worker_ends_by_the_signal_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[Any] = []
    monkeypatch.setattr(signal, "signal", lambda *given: calls.append(given))
    monkeypatch.setattr(os, "kill", lambda *given: calls.append(given))
    stop = cli._StopRequest()
    with pytest.raises(KeyboardInterrupt):
        stop._interrupt(signal.SIGTERM, None)
    assert stop.asked and calls == []
    stop = cli._StopRequest()
    stop._owner = -1  # as after a fork
    stop._interrupt(signal.SIGTERM, None)
    assert not stop.asked
    assert calls == [(signal.SIGTERM, signal.SIG_DFL), (os.getpid(), signal.SIGTERM)]


def test_signals_are_heeded_by_the_main_thread_and_never_instead_of_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls: list[int] = []
    monkeypatch.setattr(signal, "signal", lambda number, handler: calls.append(number))
    stop = cli._StopRequest()
    thread = threading.Thread(target=stop.heed_signals)
    thread.start()
    thread.join()
    assert calls == []
    monkeypatch.setattr(signal, "getsignal", lambda number: signal.default_int_handler)
    stop.heed_signals()
    assert calls == [signal.SIGTERM, signal.SIGINT]
    monkeypatch.setattr(signal, "getsignal", lambda number: signal.SIG_IGN)
    stop.heed_signals()
    assert calls[2:] == [signal.SIGTERM]


def test_a_size_that_is_none_is_refused_before_the_verb_runs(
    verb: Recorder, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["count-words", "--input-files", "a", "--memory", "much"]) == 2
    assert "'much' is not a size" in capsys.readouterr().err
    assert verb.settings is None
    assert cli.main(["count-words", "--input-files", "a", "--memory", "1GiB"]) == 0
    assert verb.settings.memory == "1GiB"


@pytest.mark.parametrize(
    ("words", "as_json", "quiet"),
    [([], False, False), (["--json"], True, False), (["--quiet"], False, True),
     (["--quiet", "--json"], True, True)],
)  # fmt: skip
def test_a_verb_is_shown_as_its_flags_say(
    verb: Recorder, monkeypatch: pytest.MonkeyPatch, words: list[str], as_json: bool, quiet: bool
) -> None:
    shown: list[tuple[bool, bool]] = []

    def look(settings: Any) -> None:
        """Look."""
        shown.append((wants_json(), is_quiet()))

    row = Verb(look, "count_settings_module:CountSettings")
    monkeypatch.setattr(cli, "VERBS", {"count-words": row})
    assert cli.main(["count-words", "--input-files", "a", *words]) == 0
    assert shown == [(as_json, quiet)]
    assert (wants_json(), is_quiet()) == (False, False)


def test_an_end_without_a_number_is_a_success(verb: Recorder) -> None:
    for given, expected in ((SystemExit(4), 4), (SystemExit(None), 0), (SystemExit(0), 0)):
        verb.error = given
        assert cli.main(["count-words", "--input-files", "a"]) == expected


def test_an_end_with_a_message_is_an_error(
    verb: Recorder, capsys: pytest.CaptureFixture[str]
) -> None:
    verb.error = SystemExit("no room left")
    assert cli.main(["count-words", "--input-files", "a"]) == 1
    assert "error: no room left" in capsys.readouterr().err


def test_a_budget_that_was_refused_is_told_once(
    verb: Recorder, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """And one that was passed is told after what else went wrong, whose exit code counts."""

    def work(settings: Any) -> None:
        """Work."""
        with Progress("work", budget_bytes=1, stream=None):
            if verb.error is not None:
                raise verb.error

    row = Verb(work, "count_settings_module:CountSettings")
    monkeypatch.setattr(cli, "VERBS", {"count-words": row})
    for error, code, passed in (
        (None, 3, True),
        (BudgetError("too small", next_step="more"), 1, False),
        (DataError("no tokens"), 1, True),
    ):
        verb.error = error
        assert cli.main(["count-words", "--input-files", "a"]) == code
        assert ("passed the budget of 1 B" in capsys.readouterr().err) is passed
