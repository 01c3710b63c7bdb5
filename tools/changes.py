"""Small changes of the source, one at a time: a comparison, an operator, a number, a call left out.

Others omit an argument, replace a value by None, skip a loop, re-raise a handled exception, use
another word for a name or key, or a neighbouring bound.

In:      src/lowtide (by its syntax tree), native/**/*.[ch]pp (by operators)
Out:     changes, each identified by its file and bytes
"""

from __future__ import annotations

import ast
import difflib
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
SOURCE = Path("src/lowtide")

_COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq, ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
}  # fmt: skip
_OPERATORS: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.FloorDiv, ast.FloorDiv: ast.Mult,
    ast.Div: ast.Mult, ast.Mod: ast.Mult, ast.LShift: ast.RShift, ast.RShift: ast.LShift,
    ast.BitOr: ast.BitAnd, ast.BitAnd: ast.BitOr,
}  # fmt: skip
# Arguments whose omission no test could notice.
_SAME_WITHOUT = {"encoding", "name", "daemon", "help", "thread_name_prefix"}
# Spaces on both sides: angle brackets of templates are not comparisons.
_NATIVE_SWAPS = [
    (r" < ", " <= "), (r" <= ", " < "), (r" > ", " >= "), (r" >= ", " > "), (r" == ", " != "),
    (r" != ", " == "), (r" \+ ", " - "), (r" - ", " + "), (r" && ", " || "), (r" \|\| ", " && "),
    (r" \+= ", " -= "), (r" -= ", " += "), (r" << ", " >> "), (r" >> ", " << "),
    (r"\+ 1\b", "+ 2"), (r"\btrue\b", "false"), (r"\bfalse\b", "true"),
    (r"std::min\b", "std::max"), (r"std::max\b", "std::min"),
]  # fmt: skip


@dataclass(frozen=True)
class Mutant:
    """One change of one file: the bytes from `begin` to `end` become `after`."""

    path: Path
    line: int
    begin: int
    end: int
    before: str
    after: str
    lines: range = field(default=range(0), compare=False)
    """The lines of its statement."""

    @property
    def is_native(self) -> bool:
        """True for a change of the C++ core."""
        return self.path.suffix != ".py"

    @property
    def stage(self) -> str:
        """Its folder of src/lowtide; empty for top-level modules and for C++."""
        parts = () if self.is_native else self.path.relative_to(SOURCE).parts
        return parts[0] if len(parts) > 1 else ""

    def apply(self, text: bytes) -> bytes:
        """The file's content with the change."""
        return text[: self.begin] + self.after.encode() + text[self.end :]

    def diff(self) -> str:
        """The change as a unified diff."""
        text = (ROOT / self.path).read_bytes()
        both = [part.decode().splitlines(True) for part in (text, self.apply(text))]
        name = self.path.as_posix()
        return "".join(difflib.unified_diff(*both, f"a/{name}", f"b/{name}", n=2))

    def __str__(self) -> str:
        before, after = (" ".join(part.split())[:100] for part in (self.before, self.after))
        return f"{self.path}:{self.line}: {before}  ->  {after}"


def changed_nodes(node: ast.AST) -> Iterator[ast.AST]:
    """Every small change of one node of a syntax tree, as a new node."""
    if isinstance(node, ast.Compare) and len(node.ops) == 1:
        other = _COMPARISONS.get(type(node.ops[0]))
        if other is not None:
            yield ast.Compare(node.left, [other()], node.comparators)
    elif isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
        if not isinstance(node.left, ast.JoinedStr) and not isinstance(node.right, ast.JoinedStr):
            yield ast.BinOp(node.left, _OPERATORS[type(node.op)](), node.right)
    elif isinstance(node, ast.BoolOp):
        yield ast.BoolOp(ast.Or() if isinstance(node.op, ast.And) else ast.And(), node.values)
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        yield node.operand
    elif isinstance(node, ast.Constant) and isinstance(node.value, bool):
        yield ast.Constant(not node.value)
    elif isinstance(node, ast.Constant) and type(node.value) in (int, float):
        yield ast.Constant(node.value + 1)
        yield ast.Constant(node.value - 1)
    elif isinstance(node, ast.IfExp):
        yield ast.IfExp(node.test, node.orelse, node.body)
    elif isinstance(node, ast.If | ast.While):
        yield type(node)(ast.UnaryOp(ast.Not(), node.test), node.body, node.orelse)
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
        if node.func.id in ("min", "max"):
            other = "max" if node.func.id == "min" else "min"
            yield ast.Call(ast.Name(other, ast.Load()), node.args, node.keywords)
    elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call | ast.Await):
        yield ast.Pass()
    elif isinstance(node, ast.Return) and isinstance(node.value, ast.expr):
        if not (isinstance(node.value, ast.Constant) and node.value.value is None):
            yield ast.Return(ast.Constant(None))
    elif isinstance(node, ast.Assign | ast.AugAssign) and any(
        isinstance(target, ast.Attribute)
        for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
    ):
        yield ast.Pass()
    elif isinstance(node, ast.Break):
        yield ast.Continue()
    elif isinstance(node, ast.Continue):
        yield ast.Break()


def changed_meaning(node: ast.AST) -> Iterator[tuple[Any, Any, str]]:
    """Changes of data flow: arguments, values, names, bounds, loops and exceptions.

    Each is the first and the last node to be replaced, and the new text.
    """
    if isinstance(node, ast.Call):
        for one in node.keywords:
            if one.arg not in _SAME_WITHOUT:
                others = [other for other in node.keywords if other is not one]
                yield node, node, f"({ast.unparse(ast.Call(node.func, node.args, others))})"
    elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
        if not (isinstance(node.value, ast.Constant) and node.value.value is None):
            yield node.value, node.value, "None"
    elif isinstance(node, ast.Slice):
        for bound in (node.lower, node.upper):
            if bound is not None and not isinstance(bound, ast.Constant):
                yield bound, bound, f"(({ast.unparse(bound)}) + 1)"
    elif isinstance(node, ast.Constant) and isinstance(node.value, str):
        if re.fullmatch(r"[\w./=*-]+", node.value):  # a name or a key, not a message
            yield node, node, ascii(f"{node.value}x")
    elif isinstance(node, ast.For):
        yield node.iter, node.iter, "()"
    elif isinstance(node, ast.ExceptHandler) and not isinstance(node.body[0], ast.Raise):
        yield node.body[0], node.body[-1], "raise"


def skipped_parts(tree: ast.Module) -> set[int]:
    """Ids of nodes not worth changing: annotations, __all__, texts of kernels and messages."""
    skipped: set[int] = set()
    for node in ast.walk(tree):
        parts: list[ast.AST | None] = []
        if isinstance(node, ast.AnnAssign):
            parts = [node.annotation]
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            given = node.args
            every = (*given.posonlyargs, *given.args, given.vararg, *given.kwonlyargs, given.kwarg)
            parts = [node.returns, *(one.annotation for one in every if one is not None)]
        elif isinstance(node, ast.ClassDef):
            parts = list(node.decorator_list)  # frozen, slots: only for programmers
        elif isinstance(node, ast.JoinedStr | ast.Assert | ast.Raise):
            parts = [node]  # texts, and what only programmers see
        elif isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            parts = [node]
        elif isinstance(node, ast.keyword) and node.arg == "strict":
            parts = [node]  # of zip: also an assertion
        elif isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            parts = [node]
        for part in parts:
            skipped.update(map(id, ast.walk(part)) if part is not None else ())
    return skipped


def lines_of_statements(tree: ast.Module) -> dict[int, range]:
    """The lines of the innermost statement of each line; for an `if`, those of its condition."""
    found: dict[int, range] = {}
    for node in ast.walk(tree):  # outermost first
        if isinstance(node, ast.stmt | ast.ExceptHandler):
            body = getattr(node, "body", None)
            end = max(node.lineno, body[0].lineno - 1) if body else node.end_lineno
            decorators = getattr(node, "decorator_list", [])
            parts = [(node.lineno, end), *((one.lineno, one.end_lineno) for one in decorators)]
            for lines in (range(first, last + 1) for first, last in parts):
                found.update(dict.fromkeys(lines, lines))
    for node in ast.walk(tree):  # a single jump is compiled into its condition
        if isinstance(node, ast.If) and isinstance(node.body[0], ast.Continue | ast.Break):
            place = node.body[0].lineno
            found[place] = range(node.lineno, place + 1)
    return found


def python_mutants(path: Path) -> list[Mutant]:
    """All changes of one module, in the order of its lines."""
    data = (ROOT / path).read_bytes()
    starts = [0, *(match.end() for match in re.finditer(b"\n", data))]
    tree = ast.parse(data)
    skipped = skipped_parts(tree)
    statements = lines_of_statements(tree)
    found: list[Mutant] = []

    def where(node: Any) -> tuple[int, int]:
        begin = starts[node.lineno - 1] + node.col_offset
        return begin, starts[node.end_lineno - 1] + node.end_col_offset

    for node in ast.walk(tree):
        if id(node) in skipped or not hasattr(node, "lineno"):
            continue
        changes = list(changed_meaning(node))
        for changed in changed_nodes(node):
            place: Any = node.test if isinstance(node, ast.If | ast.While) else node
            after = ast.unparse(changed)
            if place is not node:
                after = f"not ({ast.unparse(place)})"
            changes.append((place, place, f"({after})" if isinstance(place, ast.expr) else after))
        for first, last, after in changes:
            begin, end = where(first)[0], where(last)[1]
            before, line = data[begin:end].decode(), first.lineno
            found.append(Mutant(path, line, begin, end, before, after, statements[line]))
    return sorted(found, key=lambda mutant: (mutant.begin, mutant.end, mutant.after))


def native_mutants(path: Path) -> list[Mutant]:
    """All changes of operators in one C++ file, except in comments and strings.

    The whole line is stored, so that it is found again if lines have moved.
    """
    found: list[Mutant] = []
    start = 0
    for number, line in enumerate((ROOT / path).read_text(encoding="ascii").splitlines(True), 1):
        code = re.sub(r'"[^"]*"', lambda text: "_" * len(text[0]), line).split("//")[0]
        if not code.lstrip().startswith(("#", "template", "static_assert")):
            for pattern, other in _NATIVE_SWAPS:
                for match in re.finditer(pattern, code):
                    after = line[: match.start()] + other + line[match.end() :]
                    found.append(Mutant(path, number, start, start + len(line), line, after))
        start += len(line)
    return found


def parses(mutant: Mutant) -> bool:
    """False for a change that is not valid Python."""
    if mutant.is_native:
        return True
    try:
        ast.parse(mutant.apply((ROOT / mutant.path).read_bytes()))
    except SyntaxError:
        return False
    return True


def drawn_before(text: str) -> list[Mutant]:
    """The changes listed in the output of an earlier run, also if their lines have moved."""
    found: dict[Mutant, None] = {}
    for line in text.splitlines():
        match = re.search(r"((?:src|native)/\S+):(\d+): (.*)", line)
        if match is None or line.startswith("caught"):
            continue
        path, number, change = Path(match[1]), int(match[2]), match[3]
        make = python_mutants if path.suffix == ".py" else native_mutants
        every = make(path) if (ROOT / path).exists() else []
        same = [mutant for mutant in every if str(mutant).partition(": ")[2] == change]
        if not same:
            print(f"not there any more       {line}", flush=True)
            continue
        found[min(same, key=lambda mutant: abs(mutant.line - number))] = None
    return list(found)
