"""Mutants of a module: copies of its source with one expression or statement changed.

An operator or a comparison is swapped; an operand, a sign, a mask, a bound, a keyword argument or a call is removed; a
number changes by one or becomes 0; a branch is always or never taken; a statement is removed if all names are still
defined without it. Not changed: annotations, docstrings and other text, asserts, raised errors, `filled`, `strict` of
zip; and outside functions everything except the numbers of constants.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

OPERATORS: dict[type[ast.AST], tuple[Any, ...]] = {
    ast.Add: (ast.Sub,),
    ast.Sub: (ast.Add,),
    ast.Mult: (ast.Div,),
    ast.Div: (ast.Mult,),
    ast.FloorDiv: (ast.Div,),
    ast.Pow: (ast.Mult,),
    ast.BitAnd: (ast.BitOr,),
    ast.BitOr: (ast.BitAnd,),
    ast.And: (ast.Or,),
    ast.Or: (ast.And,),
    ast.Lt: (ast.LtE, ast.GtE),
    ast.LtE: (ast.Lt, ast.Gt),
    ast.Gt: (ast.GtE, ast.LtE),
    ast.GtE: (ast.Gt, ast.Lt),
    ast.Eq: (ast.NotEq,),
    ast.NotEq: (ast.Eq,),
    ast.Is: (ast.IsNot,),
    ast.IsNot: (ast.Is,),
    ast.In: (ast.NotIn,),
    ast.NotIn: (ast.In,),
}
PAIRS = ("maximum minimum", "max min", "argmax argmin", "sum mean", "any all", "exp expm1", "zeros_like ones_like")
CALLS = {one: other for pair in map(str.split, PAIRS) for one, other in (pair, pair[::-1])}
CHOICES = ("where", "maximum", "minimum", "max", "min")  # any of the arguments may be the result
GUARDS = ("filled",)  # they only reject None, so a call without them returns the same
LEFT_ALONE = (ast.JoinedStr, ast.Assert, ast.Raise)


@dataclass(frozen=True)
class Mutant:
    """Replacement of `source[start:end]`, in bytes."""

    function: str  # dotted name of the function that contains it
    line: int
    start: int
    end: int
    replacement: bytes
    shown: str  # the line after the change

    def applied(self, source: bytes) -> bytes:
        """Return `source` with the replacement."""
        return source[: self.start] + self.replacement + source[self.end :]


def mutants_of(source: bytes) -> list[Mutant]:
    """Return all mutants of a module, in the order of the source."""
    tree = ast.parse(source)
    starts = [0]
    for line in source.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom)]
    modules = {alias.asname or alias.name for node in imports for alias in node.names}
    found: dict[tuple[int, int, bytes], Mutant] = {}
    for function, node, new in _changes(tree, modules):
        start, end = starts[node.lineno - 1] + node.col_offset, starts[node.end_lineno - 1] + node.end_col_offset
        text = ast.unparse(new)
        if isinstance(new, ast.BinOp | ast.UnaryOp | ast.BoolOp | ast.Compare | ast.IfExp | ast.Lambda | ast.Tuple):
            text = f"({text})"
        replacement = text.encode()
        before, after = source[starts[node.lineno - 1] : start], source[end : starts[node.end_lineno]].split(b"  #")[0]
        old = b"  # in place of " + source[start:end] if isinstance(new, ast.Pass) else b""
        shown = " ".join((before + replacement + after + old).decode().split())
        if replacement != source[start:end]:
            mutant = Mutant(function, node.lineno, start, end, replacement, shown)
            found.setdefault((start, end, replacement), mutant)
    return _numbered(sorted(found.values(), key=lambda mutant: (mutant.start, -mutant.end)))


def _numbered(mutants: list[Mutant]) -> list[Mutant]:
    """Add numbers to the mutants of a function that show the same line."""
    seen: Counter[tuple[str, str]] = Counter()
    for place, mutant in enumerate(mutants):
        seen[mutant.function, mutant.shown] += 1
        if (number := seen[mutant.function, mutant.shown]) > 1:
            mutants[place] = replace(mutant, shown=f"{mutant.shown} ({number})")
    return mutants


def _changes(tree: ast.Module, modules: set[str]) -> Iterator[tuple[str, Any, ast.AST]]:
    """Yield (function, node, replacement) of all functions and numeric constants of a module."""
    effects: set[ast.AST] = set()  # calls whose result is unused, so that another result changes nothing

    def visit(node: ast.AST, function: str, scope: str) -> Iterator[tuple[str, Any, ast.AST]]:
        if isinstance(node, LEFT_ALONE) or (isinstance(node, ast.keyword) and node.arg == "strict"):
            return
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            scope = f"{scope}.{node.name}" if scope else node.name
        if isinstance(node, ast.FunctionDef):
            function = scope
            yield from ((scope, statement, ast.Pass()) for statement in _removable_statements(node))
        if isinstance(node, ast.Expr):
            effects.add(node.value)
        if function:
            for old, new in _replacements(node, modules):
                if old not in effects or isinstance(new, ast.Call):
                    yield function, old, new
        for name, field in ast.iter_fields(node):
            if name not in ("annotation", "returns", "decorator_list"):
                for child in field if isinstance(field, list) else [field]:
                    if isinstance(child, ast.AST):
                        yield from visit(child, function, scope)

    for statement in tree.body:
        match statement:
            case ast.FunctionDef() | ast.ClassDef():
                yield from visit(statement, "", "")
            case ast.Assign([ast.Name(name)], ast.Constant() as value):
                yield from ((name, value, new) for new in _other_expressions(value))


def _removable_statements(function: ast.FunctionDef) -> Iterator[ast.stmt]:
    """Yield the statements that can be removed with all names still defined: calls for an effect, and reassignments."""
    bound = {argument.arg: 0 for argument in ast.walk(function.args) if isinstance(argument, ast.arg)}
    for node in ast.walk(function):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            bound[node.id] = min(node.lineno, bound.get(node.id, node.lineno))
    for node in ast.walk(function):
        match node:
            case ast.AugAssign() | ast.Expr(ast.Call()):
                yield node
            case ast.Assign([ast.Name(name)]) if bound[name] < node.lineno:
                yield node
            case ast.Assign([ast.Subscript() | ast.Attribute()]):
                yield node


def _replacements(node: ast.AST, modules: set[str]) -> Iterator[tuple[ast.AST, ast.AST]]:
    """Yield pairs of `node` or a part of it, and a replacement."""
    match node:
        case ast.If(test) | ast.While(test):
            yield from ((test, ast.Constant(constant)) for constant in (True, False))
        case ast.comprehension(ifs=[*tests]):
            yield from ((test, ast.Constant(True)) for test in tests)
        case ast.Slice(lower, upper):
            yield from ((node, other) for other in _other_slices(lower, upper))
        case ast.Call():
            yield from ((node, other) for other in _other_calls(node, modules))
        case ast.AugAssign(target, op, value):
            yield from ((node, ast.AugAssign(target, other(), value)) for other in OPERATORS.get(type(op), ()))
        case ast.expr():
            yield from ((node, other) for other in _other_expressions(node))


def _other_expressions(node: ast.expr) -> Iterator[ast.expr]:
    """Yield the expression with its operator swapped, one operand or branch alone, or a number changed."""
    match node:
        case ast.BinOp(left, op, right):
            yield from (ast.BinOp(left, other(), right) for other in OPERATORS.get(type(op), ()))
            yield from (left, right)
        case ast.UnaryOp(ast.USub() | ast.Not() | ast.Invert(), operand):
            yield operand
        case ast.Compare(left, [op], [right]):
            yield from (ast.Compare(left, [other()], [right]) for other in OPERATORS[type(op)])
        case ast.BoolOp(op, values):
            yield ast.BoolOp(OPERATORS[type(op)][0](), values)
        case ast.IfExp(_, body, orelse):
            yield from (body, orelse)
        case ast.Constant(bool(value)):
            yield ast.Constant(not value)
        case ast.Constant(int(value)):
            yield from (ast.Constant(value + 1), ast.Constant(value - 1))
        case ast.Constant(float(value)):
            yield from (ast.Constant(value + 1), ast.Constant(0.0))


def _other_slices(lower: ast.expr | None, upper: ast.expr | None) -> Iterator[ast.AST]:
    """Yield the slice without a bound, or with a bound changed by one. Numbers are changed as expressions instead."""
    if lower is not None:
        yield ast.Slice(None, upper)
    if upper is not None:
        yield ast.Slice(lower, None)
    one = ast.Constant(1)
    if lower is not None and not isinstance(lower, ast.Constant | ast.UnaryOp):
        yield ast.Slice(ast.BinOp(lower, ast.Add(), one), upper)
    if upper is not None and not isinstance(upper, ast.Constant | ast.UnaryOp):
        yield ast.Slice(lower, ast.BinOp(upper, ast.Sub(), one))


def _other_calls(call: ast.Call, modules: set[str]) -> Iterator[ast.AST]:
    """Yield the counterpart of a call, its receiver or an argument alone, and the call without a keyword argument."""
    name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
    if name in CALLS:
        func = call.func
        other = ast.Attribute(func.value, CALLS[name]) if isinstance(func, ast.Attribute) else ast.Name(CALLS[name])
        yield ast.Call(other, call.args, call.keywords)
    root = call.func
    while isinstance(root, ast.Attribute):
        root = root.value
    if isinstance(call.func, ast.Attribute) and not (isinstance(root, ast.Name) and root.id in modules):
        yield call.func.value
    elif call.args and name not in GUARDS:
        choices = call.args[1 if name == "where" else 0 :] if name in CHOICES else call.args[:1]
        yield from (argument for argument in choices if not isinstance(argument, ast.GeneratorExp | ast.Starred))
    for dropped in call.keywords:
        if dropped.arg is not None and dropped.arg != "strict":
            yield ast.Call(call.func, call.args, [keyword for keyword in call.keywords if keyword is not dropped])
