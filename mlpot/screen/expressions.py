"""Filters such as ``gap < 3 and MW < 500``: parsed and checked, never run as code."""

from __future__ import annotations

import ast
import math
import operator
from collections.abc import Callable, Mapping
from typing import Any

from mlpot.errors import UserError, suggestion

_ARITHMETIC: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}
_COMPARED: dict[type[ast.cmpop], Callable[[Any, Any], bool]] = {
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
}
LONGEST = 1000  # characters


class Expression:
    """A condition on the columns of a row: comparisons, and, or, not, + - * /, numbers and names.

    Names with signs in them stand in backquotes: ```boiling point` > 300``. A row that lacks a value, or where a
    division is by zero, does not meet the condition.
    Raises UserError for anything else, with the place.
    """

    def __init__(self, text: str) -> None:
        self.text = text
        self._quoted: dict[str, str] = {}
        if len(text) > LONGEST:
            raise UserError(f"the filter has {len(text)} characters; at most {LONGEST} are read.")
        try:
            self._tree = ast.parse(self._plain(text), mode="eval").body
        except (SyntaxError, ValueError, RecursionError) as error:
            raise UserError(f'filter "{text}": not an expression ({getattr(error, "msg", error)}).') from None
        self.names: set[str] = set()
        self._check(self._tree)

    def _plain(self, text: str) -> str:
        """The text with names in backquotes replaced by plain ones."""
        parts = text.split("`")
        if len(parts) % 2 == 0:
            raise UserError(f'filter "{text}": a backquote is not closed.')
        for place in range(1, len(parts), 2):
            name = f"quoted_{place}_"
            self._quoted[name] = parts[place]
            parts[place] = name
        return "".join(parts)

    def _check(self, node: ast.AST) -> None:
        if isinstance(node, ast.BoolOp):
            inner: list[ast.AST] = [*node.values]
        elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not | ast.USub):
            inner = [node.operand]
        elif isinstance(node, ast.BinOp) and type(node.op) in _ARITHMETIC:
            inner = [node.left, node.right]
        elif isinstance(node, ast.Compare) and all(type(op) in _COMPARED for op in node.ops):
            inner = [node.left, *node.comparators]
        elif isinstance(node, ast.Constant) and isinstance(node.value, int | float | str) and node.value is not None:
            inner = []
        elif isinstance(node, ast.Name):
            self.names.add(self._quoted.get(node.id, node.id))
            inner = []
        else:
            place = getattr(node, "col_offset", 0)
            raise UserError(
                f'filter "{self.text}": {type(node).__name__} at place {place} is not allowed; expected comparisons '
                f"of columns and numbers, joined by and, or, not."
            )
        for child in inner:
            self._check(child)

    def known(self, columns: Mapping[str, Any] | list[str]) -> None:
        """UserError for a name that is no column, with the nearest one."""
        for name in sorted(self.names):
            if name not in columns:
                raise UserError(f'filter "{self.text}": there is no column "{name}".{suggestion(name, list(columns))}')

    def holds(self, row: Mapping[str, Any]) -> bool:
        """Whether a row meets the condition."""
        try:
            return bool(self._value(self._tree, row))
        except (TypeError, ZeroDivisionError, OverflowError):
            return False

    def _value(self, node: ast.AST, row: Mapping[str, Any]) -> Any:
        if isinstance(node, ast.BoolOp):
            met = (self._value(value, row) for value in node.values)
            return all(met) if isinstance(node.op, ast.And) else any(met)
        if isinstance(node, ast.UnaryOp):
            value = self._value(node.operand, row)
            return not value if isinstance(node.op, ast.Not) else -value
        if isinstance(node, ast.BinOp):
            return _ARITHMETIC[type(node.op)](self._value(node.left, row), self._value(node.right, row))
        if isinstance(node, ast.Compare):
            values = [self._value(part, row) for part in (node.left, *node.comparators)]
            return all(_COMPARED[type(op)](a, b) for op, a, b in zip(node.ops, values, values[1:], strict=False))
        if isinstance(node, ast.Name):
            value = row.get(self._quoted.get(node.id, node.id))
            if value is None or value == "" or (isinstance(value, float) and math.isnan(value)):
                raise TypeError("missing")
            return value
        assert isinstance(node, ast.Constant)
        return node.value
