"""Build the native core once, and for a change of one file rebuild only its dependents.

In:      an unchanged copy of the repository, and others with one file changed
Out:     a changed native module beside each of those
Memory:  that of a compiler for one file at a time

The commands are those of the first build, with the changed copy's folder instead of its own:
unaffected objects are linked unchanged, for every copy.
"""

from __future__ import annotations

import functools
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path


class NativeBuilds:
    """The unchanged core, built in `root` from `source`, and changed builds made from it."""

    def __init__(self, source: Path, root: Path) -> None:
        self._source, self._objects = source / "native", root / "objects"
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        self._environment = os.environ | {"PATH": path}
        command = [
            sys.executable, "-m", "pip", "install", "-q", "--disable-pip-version-check",
            "--no-build-isolation", "--no-deps", "--target", str(root / "built"),
            f"--config-settings=build-dir={self._objects}",
            "--config-settings=cmake.args=-GNinja", str(source),
        ]  # fmt: skip
        subprocess.run(command, check=True, env=self._environment)
        self._compile, self._link = self._read_commands()

    def _read_commands(self) -> tuple[dict[str, str], str]:
        """The command of each source by its name under native/, and the module's link command."""
        command = ["ninja", "-C", str(self._objects), "-t", "commands"]
        done = subprocess.run(
            command, check=True, capture_output=True, text=True, env=self._environment
        )
        by_source: dict[str, str] = {}
        for line in done.stdout.splitlines():
            words = shlex.split(line)
            if "-c" in words and Path(words[-1]).is_relative_to(self._source):
                by_source[Path(words[-1]).relative_to(self._source).as_posix()] = line
        link = next(line for line in done.stdout.splitlines() if " -shared " in line)
        return by_source, link

    def build(self, folder: Path, changed: Path) -> Path | None:
        """The module of a copy in which `changed` differs; None if it does not compile."""
        link = self._link
        for name in self._readers(changed.relative_to("native").as_posix()):
            old, new = f"CMakeFiles/_native.dir/{name}.o", folder / "objects" / f"{name}.o"
            new.parent.mkdir(parents=True, exist_ok=True)
            command = self._compile[name].replace(str(self._source), str(folder / "native"))
            if not self._run(command.replace(old, str(new))):
                return None
            link = link.replace(f" {old} ", f" {new} ")
        output = re.search(r" -o (\S+)", link)
        assert output is not None
        module = folder / "built" / Path(output[1]).name
        module.parent.mkdir(exist_ok=True)
        return module if self._run(link.replace(output[0], f" -o {module}", 1)) else None

    def _run(self, command: str) -> bool:
        done = subprocess.run(
            command, shell=True, check=False, capture_output=True, cwd=self._objects,
            env=self._environment,
        )  # fmt: skip
        return done.returncode == 0

    def _readers(self, changed: str) -> list[str]:
        """The sources that are the changed file, or include it directly or indirectly."""
        return [name for name in self._compile if name == changed or changed in self._read(name)]

    @functools.cache  # noqa: B019 (there is one for a whole run)
    def _read(self, name: str) -> frozenset[str]:
        """The files under native/ that a file includes, directly or indirectly."""
        text = (self._source / name).read_text(encoding="utf-8")
        named = re.findall(r'^#include "([^"]+)"', text, re.MULTILINE)
        return frozenset(named).union(*map(self._read, named))
