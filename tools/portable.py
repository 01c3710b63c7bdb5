"""Compile the native core for other systems: clang, libc++, macOS, musl, ARM.

In:      native/, and the compiler of the package ziglang (clang with the headers of every target)
Out:     a line per target; exit code 1 if a file does not compile for one of them

    pip install ziglang
    python tools/portable.py [TARGET …]

Every file is compiled to an object with all warnings as errors, and discarded: nothing is linked
or run. Python's headers are those of this machine.
"""

from __future__ import annotations

import subprocess
import sys
import sysconfig
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import nanobind

NATIVE = Path(__file__).parent.parent / "native"
TARGETS = (
    "aarch64-macos",
    "x86_64-linux-musl",
    "aarch64-linux-musl",
    "aarch64-linux-gnu",
    "x86_64-linux-gnu.2.28",
)
_FLAGS = ("-std=c++20", "-O0", "-fno-sanitize=all", "-Wall", "-Wextra", "-Werror", "-fopenmp-simd")


def main() -> int:
    """Compile for the given targets, or for all."""
    targets = sys.argv[1:] or TARGETS
    failed = 0
    for target in targets:
        wrong = _compile_all(target)
        for name, words in wrong.items():
            print(f"{name}\n{words}", file=sys.stderr)
        files = len(list(NATIVE.rglob("*.cpp")))
        print(f"{target}: {files - len(wrong)} of {files} files compile", flush=True)
        failed += len(wrong)
    return int(failed > 0)


def _compile_all(target: str) -> dict[str, str]:
    """The compiler's messages for each file that does not compile."""
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(1) as pool:

        def compile_one(source: Path) -> tuple[str, str]:
            done = subprocess.run(
                [
                    sys.executable, "-m", "ziglang", "c++", "-target", target, *_FLAGS,
                    "-I", str(NATIVE), "-isystem", nanobind.include_dir(),
                    "-isystem", sysconfig.get_path("include"),
                    "-c", str(source), "-o", f"{folder}/{source.stem}.o",
                ],
                capture_output=True,
                text=True,
            )  # fmt: skip
            return source.name, done.stderr if done.returncode else ""

        found = pool.map(compile_one, sorted(NATIVE.rglob("*.cpp")))
        return {name: words for name, words in found if words}


if __name__ == "__main__":
    sys.exit(main())
