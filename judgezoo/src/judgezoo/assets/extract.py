"""Reading one text out of a file, without executing the file.

Python is read with `ast`, YAML with ``safe_load``, JSON with `json`; an f-string becomes its
constant parts joined with ``{expression}``.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Callable, Sequence
from typing import Any

import yaml

from judgezoo.errors import AssetError

__all__ = ["TRANSFORMS", "extract"]

_SUBSCRIPT = re.compile(r"\[([^\]]*)\]")


def extract(data: bytes, filename: str, symbol: str | None, transforms: Sequence[Any]) -> bytes:
    """Return the bytes of one text.

    Args:
        data: content of the file.
        filename: its name; the suffix says how to read it.
        symbol: for Python, scopes joined by ``::`` with ``[key]`` subscripts and ``<return>``; for
            YAML and JSON, keys joined by dots; None takes the file as it is.
        transforms: ``[name, arguments ...]`` steps applied in order.

    Raises:
        AssetError: the symbol is not there, or a step does not apply.
    """
    if symbol is None and not transforms:
        return data
    if filename.endswith(".pth"):
        value: Any = _weights_only(data)
    else:
        text = data.decode("utf-8")
        value = text if symbol is None else _symbol_value(text, filename, symbol)
    for step in transforms:
        name, *arguments = step
        if name not in TRANSFORMS:
            raise AssetError(f"unknown transform {name!r}; known: {', '.join(TRANSFORMS)}")
        value = TRANSFORMS[name](value, *arguments)
    if not isinstance(value, str):
        raise AssetError(f"{filename}: {symbol} is {type(value).__name__}, expected a text")
    return value.encode("utf-8")


def _weights_only(data: bytes) -> Any:
    """Plain lists and texts of a torch file, read by torch's restricted loader."""
    import io

    import torch

    return torch.load(io.BytesIO(data), weights_only=True)


def _symbol_value(text: str, filename: str, symbol: str) -> Any:
    """Find the symbol by the kind of file."""
    suffix = filename.rsplit(".", 1)[-1].lower()
    if suffix == "py":
        return _python_value(ast.parse(text), filename, symbol)
    if suffix in {"yaml", "yml"}:
        return _path_value(yaml.safe_load(text), filename, symbol)
    if suffix == "json":
        return _path_value(json.loads(text), filename, symbol)
    raise AssetError(f"{filename}: no way to find {symbol!r} in a .{suffix} file")


def _path_value(value: Any, filename: str, symbol: str) -> Any:
    """Follow a dotted path through mappings and lists."""
    for part in symbol.split("."):
        try:
            value = value[int(part)] if isinstance(value, list) else value[part]
        except (KeyError, IndexError, TypeError, ValueError):
            raise AssetError(f"{filename}: no {part!r} on the path {symbol!r}") from None
    return value


def _python_value(tree: ast.AST, filename: str, symbol: str) -> Any:
    """Walk the scopes of a Python symbol and return the constant at its end."""
    *scopes, last = symbol.split("::")
    node: ast.AST = tree
    for scope in scopes:
        node = _scope(node, scope, filename, symbol)
    name, keys = last.split("[", 1)[0], _SUBSCRIPT.findall(last)
    expression = _assigned(node, name, filename, symbol)
    for key in keys:
        expression = _subscript(expression, key, filename, symbol)
    return _constant(expression, filename, symbol)


def _scope(node: ast.AST, name: str, filename: str, symbol: str) -> ast.AST:
    for child in ast.walk(node):
        named = isinstance(child, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        if named and getattr(child, "name", None) == name:
            return child
    raise AssetError(f"{filename}: no class or function {name!r} for {symbol!r}")


def _assigned(node: ast.AST, name: str, filename: str, symbol: str) -> ast.expr:
    """Return the last expression assigned to a name, or returned for ``<return>``."""
    found: ast.expr | None = None
    for child in ast.walk(node):
        if name == "<return>" and isinstance(child, ast.Return):
            found = child.value
        elif isinstance(child, ast.Assign):
            if any(ast.unparse(target) == name for target in child.targets):
                found = child.value
        elif isinstance(child, ast.AnnAssign) and ast.unparse(child.target) == name:
            found = child.value
    if found is None:
        raise AssetError(f"{filename}: no {name!r} for {symbol!r}")
    return found


def _subscript(node: ast.expr, key: str, filename: str, symbol: str) -> ast.expr:
    if isinstance(node, ast.List | ast.Tuple) and key.isdecimal() and int(key) < len(node.elts):
        return node.elts[int(key)]
    if isinstance(node, ast.Dict):
        for item_key, value in zip(node.keys, node.values, strict=True):
            if item_key is not None and _key_text(item_key) == key:
                return value
    if isinstance(node, ast.Call):
        for keyword in node.keywords:
            if keyword.arg == key:
                return keyword.value
    raise AssetError(f"{filename}: no [{key}] in {symbol!r}")


def _key_text(node: ast.expr) -> str:
    """A dictionary key as a symbol names it: the constant itself, or the source of an attribute."""
    return str(node.value) if isinstance(node, ast.Constant) else ast.unparse(node)


def _constant(node: ast.expr, filename: str, symbol: str) -> Any:
    """Return a literal; never evaluates anything else."""
    if isinstance(node, ast.JoinedStr):
        return "".join(_fstring_part(part) for part in node.values)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return _constant(node.left, filename, symbol) + _constant(node.right, filename, symbol)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        method = node.func.attr
        if method in {"strip", "rstrip", "lstrip"} and not node.args:
            return getattr(_constant(node.func.value, filename, symbol), method)()
    try:
        return ast.literal_eval(node)
    except (ValueError, TypeError):
        kind = type(node).__name__
        raise AssetError(f"{filename}: {symbol!r} is no constant but {kind}") from None


def _fstring_part(part: ast.expr) -> str:
    if isinstance(part, ast.FormattedValue):
        return "{" + ast.unparse(part.value) + "}"
    return str(part.value) if isinstance(part, ast.Constant) else ""


def _replace_nth(text: str, old: str, number: int, new: str) -> str:
    """Replace the number-th occurrence, counted from 0."""
    pieces = text.split(old)
    if len(pieces) <= number + 1:
        raise AssetError(f"{old!r} occurs {len(pieces) - 1} times, wanted number {number}")
    return old.join(pieces[: number + 1]) + new + old.join(pieces[number + 1 :])


def _reindent(text: str, leading: list[int], trailing: list[int]) -> str:
    """Give every line its number of leading and trailing spaces."""
    lines = text.split("\n")
    if not len(lines) == len(leading) == len(trailing):
        raise AssetError(f"{len(lines)} lines for {len(leading)} indents")
    return "\n".join(
        (" " * left + line.strip() + " " * right)
        for line, left, right in zip(lines, leading, trailing, strict=True)
    )


_JINJA = re.compile(
    r"\{% raw %\}(.*?)\{% endraw %\}|\{\{ \"(.*?)\" \}\}|(\{\{ \w+ \}\})|(\{[{%])", re.DOTALL
)


def _plain_jinja(text: str) -> str:
    """A template without its raw marks and quoted texts; slots like ``{{ prompt }}`` stay."""

    def plain(found: re.Match[str]) -> str:
        if found[4] is not None:
            raise AssetError(f"a template does more than fill slots, at {found.start()}")
        return next(part for part in found.groups() if part is not None)

    return _JINJA.sub(plain, text)


TRANSFORMS: dict[str, Callable[..., Any]] = {
    "append": lambda text, tail: text + tail,
    "each_yaml": lambda text, key: [
        yaml.safe_load(part)[key] for part in json.loads(text).values()
    ],
    "join": lambda items, glue: glue.join(items),
    "json": lambda value: json.dumps(value, ensure_ascii=True),
    "jinja_plain": lambda items: [_plain_jinja(item) for item in items],
    "lower": lambda items: (
        items.lower() if isinstance(items, str) else [item.lower() for item in items]
    ),
    "prefix_items": lambda items, head, numbers: [
        head + item if index in numbers else item for index, item in enumerate(items)
    ],
    "prepend": lambda text, head: head + text,
    "regex": lambda text, pattern, new: re.sub(pattern, lambda _: new, text),
    "reindent": _reindent,
    "replace": lambda text, old, new: text.replace(old, new),
    "replace_nth": _replace_nth,
    "rstrip_newline": lambda text: text.rstrip("\n"),
    "unescape_braces": lambda text: text.replace("{{", "{").replace("}}", "}"),
}
