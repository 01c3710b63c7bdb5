"""The pins fit the declared requirements, and the build files name what is there."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def read_pins() -> dict[str, str]:
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pins = [line.split("==") for line in lines if line and not line.startswith("#")]
    assert all(len(pin) == 2 for pin in pins), "every line is NAME==VERSION"
    names = [canonicalize_name(name) for name, _ in pins]
    assert names == sorted(set(names)), "sorted, each once"
    return dict(zip(names, (version for _, version in pins), strict=True))


def test_everything_make_installs_is_pinned_within_its_range() -> None:
    pins = read_pins()
    extras = PROJECT["project"]["optional-dependencies"]
    declared = [
        *PROJECT["build-system"]["requires"],
        *PROJECT["project"]["dependencies"],
        *extras["test"],
        *extras["torch"],
        *extras["parquet"],
    ]
    for text in declared:
        requirement = Requirement(text)
        pin = pins.get(canonicalize_name(requirement.name))
        assert pin is not None, f"{requirement.name} is not in constraints.txt"
        assert requirement.specifier.contains(pin), f"{requirement} does not allow {pin}"


def test_make_installs_the_torch_that_is_pinned() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    (version,) = set(re.findall(r"torch==([\d.]+)", makefile))
    assert read_pins()["torch"] == version


def test_ci_runs_make_test() -> None:
    script = ROOT / ".ci" / "run"
    assert script.stat().st_mode & 0o111
    assert "make test" in script.read_text(encoding="utf-8")
