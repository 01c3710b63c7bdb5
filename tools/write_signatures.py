"""Write the type stubs of the public names: __init__.pyi and keywordtypes.py.

In:      the public names (lowtide._HOMES), and the settings that their functions take
Out:     src/lowtide/__init__.pyi: every public function with each of its keywords
         src/lowtide/keywordtypes.py: the same as TypedDicts, for `**options: Unpack[…]`

    make signatures         (a test says when it is needed)
"""

from __future__ import annotations

import ast
import dataclasses
import importlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import lowtide
from lowtide import signatures
from lowtide.signatures import option_rows, options_of, passed_options, public_doc

PACKAGE = Path(lowtide.__file__).parent
STUB, OPTIONS = PACKAGE / "__init__.pyi", PACKAGE / "keywordtypes.py"

_MADE = "# Made by `make signatures` from the settings; not to be edited."
_BUILTIN = {"list", "dict", "str", "int", "float", "bool", "None"}
_OWN_OPTIONS = {"optimizer": "Optimizer"}
"""Types that functions with options accept where the settings take a name."""


def write_files() -> None:
    """Write both files; keywordtypes.py first, since the functions import it."""
    OPTIONS.write_text(options_text())
    STUB.write_text(stub_text())


def options_text() -> str:
    """The TypedDicts, one for each row of `signatures.SETTINGS_OF`."""
    lines = [
        '"""Keywords of functions that take settings beside other things, for type checkers."""',
        "",
        _MADE,
        "",
        "from __future__ import annotations",
        "",
        "from collections.abc import Mapping, Sequence",
        "from pathlib import Path",
        "from typing import TYPE_CHECKING, Literal, TypedDict",
        "",
        "if TYPE_CHECKING:",
        "    from torch.optim import Optimizer",
        "",
        f"__all__ = {sorted(signatures.SETTINGS_OF)!r}",
    ]
    for name, home in signatures.SETTINGS_OF.items():
        cls = home.split(":")[1]
        lines += ["", "", f"class {name}(TypedDict, total=False):"]
        lines += [f'    """Any of the settings of {cls}."""']
        for option in passed_options(name):
            also = f" | {_OWN_OPTIONS[option.name]}" if option.name in _OWN_OPTIONS else ""
            lines += ["", f"    {option.name}: {option.kind}{also}"]
            lines += [f'    """{_escaped(option.doc)}"""'] if option.doc else []
    return "\n".join([*lines, ""])


def stub_text() -> str:
    """The stub of the package."""
    functions: list[str] = []
    imports = {
        "from collections.abc import Iterator, Mapping, Sequence",
        "from pathlib import Path",
        "from typing import Literal",
    }
    for name, home in sorted(lowtide._HOMES.items()):
        value = getattr(importlib.import_module(home), name)
        if not hasattr(value, "settings_class"):
            imports.add(f"from {home} import {name} as {name}")
            continue
        imports |= set(_imports_of(value))
        functions += ["", *_function_lines(name, value)]
    return "\n".join(
        [
            '"""Train language models on any amount of text inside a memory budget you choose."""',
            "",
            _MADE,
            "",
            *sorted(imports),
            "",
            "__version__: str",
            f"__all__ = {[*lowtide._HOMES, '__version__']!r}",
            *functions,
            "",
        ]
    )


def _imports_of(function: Any) -> Iterator[str]:
    """Imports for the function's result and settings, unless they are public."""
    returned = ast.parse(function.__annotations__["return"])
    names = {node.id for node in ast.walk(returned) if isinstance(node, ast.Name)}
    for name in sorted((names | {function.settings_class.__name__}) - _BUILTIN):
        value = function.__wrapped__.__globals__[name]
        if name not in lowtide._HOMES and value.__module__.startswith("lowtide"):
            yield f"from {value.__module__} import {name}"


def _function_lines(name: str, function: Any) -> Iterator[str]:
    """One signature for all ways to call it.

    Overloads could tell a call without required arguments from one with settings or a config file,
    but type checkers then report a misspelt keyword only as no matching overload.
    """
    cls, result = function.settings_class, function.__annotations__["return"]
    options = options_of(cls)
    first = options[0]
    yield f"def {name}("
    if first.positional:
        options[0] = dataclasses.replace(first, kind=f"{first.kind} | {cls.__name__}")
    else:
        yield f"    settings: {cls.__name__} | None = None,"
        yield "    /,"
    for place, option in enumerate(options):
        if not option.positional and (place == 0 or options[place - 1].positional):
            yield "    *,"
        yield f"    {option.name}: {option.kind} = {option.default or '...'},"
    yield f") -> {result}:"
    doc = [*public_doc(function).splitlines(), "", *option_rows(options)]
    yield f'    """{_escaped(doc[0])}'
    yield from (f"    {_escaped(line)}".rstrip() for line in doc[1:])
    yield '    """'


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"""', '\\"\\"\\"')


if __name__ == "__main__":
    write_files()
