"""The pins fit the declared requirements, and the build files name what is there."""

from __future__ import annotations

import importlib.util
import re
import tomllib
from pathlib import Path
from types import ModuleType

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


def test_every_extra_is_explained() -> None:
    """But for those that only developers install, and GPT-2's vocabulary, which is always there."""
    extras = set(PROJECT["project"]["optional-dependencies"])
    text = (ROOT / "docs" / "installing.md").read_text(encoding="utf-8")
    table = text.partition("## Optional extras")[2].partition("##")[0]
    rows = [line.split("|")[1] for line in table.splitlines() if line.startswith("| `")]
    named = {name for row in rows[1:] for name in re.findall(r"`([\w]+)`", row)}
    assert named == extras - {"benchmark", "docs", "gpt2", "test"}


def test_ci_runs_make_test() -> None:
    script = ROOT / ".ci" / "run"
    assert script.stat().st_mode & 0o111
    assert "make test" in script.read_text(encoding="utf-8")


def _publish_links() -> ModuleType:
    spec = importlib.util.spec_from_file_location("links", ROOT / "tools" / "publish_links.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_an_index_page_has_links_that_lead_somewhere() -> None:
    links, at = _publish_links(), "https://host.example/lowtide"
    text = links.absolute_links((ROOT / "README.md").read_text(encoding="utf-8"), at, "v1")
    found = re.findall(r"\]\(([^)]+)\)", text)
    assert len(found) > 20
    assert all(link.startswith(("https://", "#")) for link in found)
    assert re.search(rf"!\[[^]]+\]\({at}/raw/v1/docs/pictures/", text)
    project = tomllib.loads(
        links.with_urls((ROOT / "pyproject.toml").read_text(encoding="utf-8"), at, "v1")
    )
    assert project["project"]["urls"]["Issues"] == f"{at}/issues"
    assert project["project"]["scripts"] == PROJECT["project"]["scripts"]


def test_wheels_are_built_for_every_python_that_is_declared() -> None:
    named = {row.split()[-1] for row in PROJECT["project"]["classifiers"] if ":: 3." in row}
    built = PROJECT["tool"]["cibuildwheel"]["build"].split()
    assert {f"cp{version.replace('.', '')}-*" for version in named} == set(built)
    workflow = (ROOT / ".github" / "workflows" / "wheels.yml").read_text(encoding="utf-8")
    assert "tools/publish_links.py" in workflow and "cibuildwheel" in workflow
