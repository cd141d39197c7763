"""Filter expressions over the headers of stored runs, such as `attack=gcg,seed>=2`.

A term is a dotted path, an operator and a value; terms are joined by commas outside brackets or
given one by one, and all must hold; `attack=[gcg,beast]` is any of them and `defense=none` the
absence of one.  Every command that takes `--where` reads this grammar.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pydantic_core import from_json

from adversariallm.core.errors import ConfigError

_TERM = re.compile(r"\s*([\w./:-]+?)\s*(!=|<=|>=|=|<|>|~)\s*(.*?)\s*", re.DOTALL)
_ALIASES = {"model": "models.name"}  # the words that `run` takes
_WORDS = (
    "attack", "budget", "dataset", "defense", "fit", "generation", "model", "parent", "resolved",
    "run_id", "seed", "setting", "status",
)  # fmt: skip
_OPERATORS = "=  !=  <  <=  >  >=  ~ (contains)"


@dataclass(frozen=True)
class Term:
    """One condition.

    Attributes:
        path: Keys below the header's `config`, `resolved` or top, in that order.
        operator: One of = != < <= > >= ~.
        values: What to compare with; several alternatives for = and != (`seed=[0,1]`).
    """

    path: tuple[str, ...]
    operator: str
    values: tuple[Any, ...]

    def __str__(self) -> str:
        """As typed."""
        shown = ",".join(map(str, self.values))
        listed = f"[{shown}]" if len(self.values) > 1 else shown
        return f"{self.name}{self.operator}{listed}"

    @property
    def name(self) -> str:
        """The path as typed."""
        path = ".".join(self.path)
        return next((word for word, full in _ALIASES.items() if full == path), path)

    def holds(self, found: Any) -> bool:
        """Return whether the value at the path (None when missing) satisfies the term."""
        if found in ([], {}):
            found = None
        if self.operator == "!=":
            return not replace(self, operator="=").holds(found)
        if isinstance(found, dict) and "name" in found:
            found = found["name"]  # attack=gcg means attack.name=gcg
        if isinstance(found, list):
            return any(self.holds(item) for item in found)
        if self.operator == "=":
            return any(_equal(found, value) for value in self.values)
        if self.operator == "~":
            return found is not None and any(str(value) in str(found) for value in self.values)
        return _ordered(found, self.operator, self.values[0])


def _equal(found: Any, value: Any) -> bool:
    if found is None:
        return value in (None, "", "none")  # `none` is what `run` takes, as in defense=none
    if isinstance(found, bool) or isinstance(value, bool):
        return found is value
    return bool(found == value) or (isinstance(found, str) and found == str(value))


def _ordered(found: Any, operator: str, value: Any) -> bool:
    numbers = all(isinstance(v, (int, float)) and not isinstance(v, bool) for v in (found, value))
    if not numbers and not (isinstance(found, str) and isinstance(value, str)):
        return False
    if operator[0] == "<":
        return bool(found < value or (operator == "<=" and found == value))
    return bool(found > value or (operator == ">=" and found == value))


def parse(expression: str | Iterable[str]) -> list[Term]:
    """Parse terms.

    Args:
        expression: `attack=gcg,seed=[0,1]`, or such texts one by one.

    Raises:
        ConfigError: A term has no operator or an unreadable value.
    """
    texts = [expression] if isinstance(expression, str) else expression
    return [_parse_term(part) for text in texts for part in _split(text) if part.strip()]


def _split(text: str) -> list[str]:
    """Split at commas outside brackets and quotes."""
    return re.findall(r"(?:\[[^\]]*\]|\"[^\"]*\"|'[^']*'|[^,])+", text)


def _parse_term(text: str) -> Term:
    match = _TERM.fullmatch(text)
    if match is None:
        raise ConfigError(
            f"filter {text!r} has no operator: expected for example attack=gcg or "
            f"attack.options.num_steps>=100; operators: {_OPERATORS}. A comma means `and`; one of "
            "several values is attack=[gcg,beast]"
        )
    path, operator, value = match.groups()
    path = _ALIASES.get(path, path)
    values = tuple(_values(value))
    if operator[0] in "<>" and len(values) != 1:
        raise ConfigError(f"filter {text!r}: {operator} compares with one value, not with a list")
    return Term(tuple(path.split(".")), operator, values)


def _values(text: str) -> list[Any]:
    if text.startswith("[") and text.endswith("]"):
        return [_value(part.strip()) for part in _split(text[1:-1])]
    return [_value(text)]


def _value(text: str) -> Any:
    if len(text) > 1 and text[0] == text[-1] and text[0] in "'\"":
        return text[1:-1]
    try:
        return from_json(text.encode())
    except ValueError:
        return text


def fits(terms: Iterable[Term], header: Mapping[str, Any]) -> bool:
    """Return whether all terms hold of a header."""
    return all(term.holds(lookup(header, term.path)) for term in terms)


def why_none(terms: Sequence[Term], headers: Sequence[Mapping[str, Any]]) -> str:
    """Say why no run fits: which term none satisfies, and what there is instead."""
    for term in terms:
        found = [lookup(header, term.path) for header in headers]
        if any(map(term.holds, found)):
            continue
        if all(value is None for value in found):
            near = difflib.get_close_matches(term.name, _WORDS, n=1)
            hint = f"; did you mean {near[0]}?" if near and near[0] != term.name else ""
            return f"no stored run has a value for {term.name!r}{hint}"
        shown = sorted({text for value in found for text in _texts(value)})
        more = ", ..." if len(shown) > 10 else ""
        return f"no stored run has {term}; {term.name} is one of {', '.join(shown[:10])}{more}"
    return f"no stored run has {' and '.join(map(str, terms))} at once"


def _texts(value: Any) -> list[str]:
    if isinstance(value, list):
        return [text for item in value for text in _texts(item)] or ["none"]
    if isinstance(value, dict):
        return [str(value.get("name", value))]
    return ["none" if value is None else str(value)]


def lookup(header: Mapping[str, Any], path: tuple[str, ...]) -> Any:
    """Return the value at a path below `config`, `resolved` or the top; None without one.

    `dataset` is where the evaluated behaviors are from, `setting` the key of `evaluation.facts`.
    """
    if path == ("dataset",):
        path = ("evaluated" if lookup(header, ("evaluated",)) else "fit", "dataset")
    elif path == ("setting",):
        from adversariallm.evaluation.facts import setting_of

        return setting_of(header).key if "resolved" in header else None
    for top in (header.get("config"), header.get("resolved"), header):
        found: Any = top
        for key in path:
            found = found.get(key) if type(found) is dict else _child(found, key)
            if found is None:
                break
        else:
            return found
    return None


def _child(value: Any, key: str) -> Any:
    if isinstance(value, dict):
        return value.get(key)
    if isinstance(value, list) and not key.isdecimal():
        return [found for item in value if (found := _child(item, key)) is not None] or None
    if isinstance(value, list) and int(key) < len(value):
        return value[int(key)]
    return None
