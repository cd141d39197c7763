"""Reads `key=value` overrides in Hydra's grammar: sweeps, lists, dicts, quotes, escapes.

It knows the grammar only: which keys exist and what their values may be is the business of
`runs.settings`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Literal

from adversariallm.core.errors import ConfigError

Operation = Literal["", "+", "++", "~"]

_BLANK = " \t"
_ESCAPABLE = "\\()[]{}:=,\"' \t"
_INT = re.compile(r"[+-]?(?:0|[1-9](?:_?[0-9])*)")
_POINT = r"(?:(?:0|[1-9](?:_?[0-9])*)\.|(?:0|[1-9](?:_?[0-9])*)?\.[0-9](?:_?[0-9])*)"
_EXPONENT = rf"(?:{_POINT}|0|[1-9](?:_?[0-9])*)[eE][+-]?[0-9](?:_?[0-9])*"
_FLOAT = re.compile(rf"[+-]?(?:{_EXPONENT}|{_POINT}|[Ii][Nn][Ff]|[Nn][Aa][Nn])")
_WORDS = {"null": None, "true": True, "false": False}
_CALL = re.compile(r"([A-Za-z_][\w-]*)[ \t]*\(")
_KEY = re.compile(r"(\+\+|\+|~)?([\w$][^=\s~+,()\[\]{}'\"]*)", re.ASCII)
_NAMED = re.compile(r"([A-Za-z_]\w*)[ \t]*=")


class OverrideError(ConfigError):
    """An argument is not an override in the grammar; the text says where and what to write."""


@dataclass(frozen=True, slots=True)
class Override:
    """One parsed argument.

    Attributes:
        key: dotted path, as typed.
        operation: empty, `+` or `++` to set (one meaning), `~` to go back to the default.
        values: one value, or the values of a sweep in order.
        sweep: whether the values are alternatives.
        text: the argument as typed.
    """

    key: str
    operation: Operation
    values: tuple[Any, ...]
    sweep: bool
    text: str


@dataclass(frozen=True, slots=True)
class _Sweep:
    values: tuple[Any, ...]


def parse(text: str) -> Override:
    """Parse one argument such as `attacks.gcg.num_steps=5,10`.

    Raises:
        OverrideError: the text is not in the grammar.
    """
    left, equals, right = text.partition("=")
    match = _KEY.fullmatch(left.strip(_BLANK))
    if match is None:
        raise OverrideError(
            f"{text!r}: {left!r} is not a key; write key=value, as in attacks.gcg.num_steps=500"
        )
    operation: Any = match[1] or ""
    if not equals:
        if operation != "~":
            raise OverrideError(f"{text!r} has no '='; write {match[2]}=VALUE")
        return Override(match[2], "~", (None,), False, text)
    values, sweep = _Reader(right, text).whole()
    return Override(match[2], operation, values, sweep, text)


class _Reader:
    """A cursor over the right-hand side of one override."""

    def __init__(self, source: str, argument: str) -> None:
        self.source = source.strip("\n\r")
        self.argument = argument
        self.at = 0

    def fail(self, problem: str) -> OverrideError:
        return OverrideError(
            f"{self.argument!r}: {problem} (at character {self.at + 1} of the value)"
        )

    def skip_blanks(self) -> None:
        while self.peek() and self.peek() in _BLANK:
            self.at += 1

    def peek(self) -> str:
        return self.source[self.at : self.at + 1]

    def take(self, expected: str, what: str) -> None:
        self.skip_blanks()
        if self.peek() != expected:
            found = f"found {self.peek()!r}" if self.peek() else "the value ends"
            raise self.fail(f"expected {expected!r} {what}, {found}")
        self.at += 1

    def whole(self) -> tuple[tuple[Any, ...], bool]:
        """The values of the whole text and whether they are a sweep."""
        self.skip_blanks()
        if not self.peek():
            return ("",), False
        values = self.elements("")
        if self.peek():
            raise self.fail(
                f"unexpected {self.peek()!r}; put quotes around the value, or \\ before it"
            )
        if len(values) == 1 and isinstance(values[0], _Sweep):
            return values[0].values, True
        self.refuse_sweeps(values)
        return tuple(values), len(values) > 1

    def refuse_sweeps(self, values: Sequence[Any]) -> None:
        if any(isinstance(v, _Sweep) for v in values):
            raise self.fail("range() or choice() must be the whole value")

    def elements(self, end: str) -> list[Any]:
        """Elements between commas, up to `end` (which stays)."""
        found = [self.element()]
        self.skip_blanks()
        while self.peek() == ",":
            self.at += 1
            found.append(self.element())
            self.skip_blanks()
        if end and self.peek() != end:
            problem = f"unexpected {self.peek()!r}" if self.peek() else f"a {end!r} is missing"
            raise self.fail(problem)
        return found

    def element(self) -> Any:
        self.skip_blanks()
        call = _CALL.match(self.source, self.at)
        if call:
            self.at = call.end()
            return self.call(call[1])
        start = self.peek()
        if start == "[":
            return self.bracketed()
        if start == "{":
            return self.braced()
        if start and start in "'\"":
            return self.quoted()
        return self.plain(",()[]{}")

    def bracketed(self) -> list[Any]:
        self.at += 1
        self.skip_blanks()
        if self.peek() == "]":
            self.at += 1
            return []
        values = self.elements("]")
        self.refuse_sweeps(values)
        self.at += 1
        return values

    def braced(self) -> dict[Any, Any]:
        self.at += 1
        self.skip_blanks()
        out: dict[Any, Any] = {}
        while self.peek() != "}":
            key = self.quoted() if self.peek() and self.peek() in "'\"" else self.plain(":,()[]{}")
            self.take(":", "after a key in {...}")
            value = self.element()
            self.refuse_sweeps([value])
            out[key] = value
            self.skip_blanks()
            if self.peek() == ",":
                self.at += 1
                self.skip_blanks()
                if self.peek() == "}":
                    raise self.fail("expected another key after ','")
            elif self.peek() != "}":
                raise self.fail("a '}' or ',' is missing")
        self.at += 1
        return out

    def quoted(self) -> str:
        """A quoted text; backslashes are special only right before the quote character."""
        quote = self.peek()
        start = self.at + 1
        i, out = start, ""
        while i < len(self.source):
            run = len(self.source) - i - len(self.source[i:].lstrip("\\"))
            after = self.source[i + run : i + run + 1]
            if run and after == quote:
                out += "\\" * (run // 2)
                i += run
                if run % 2:
                    out, i = out + quote, i + 1
            elif run:
                out, i = out + "\\" * run, i + run
            elif after == quote:
                self.at = i + 1
                return out
            else:
                out, i = out + after, i + 1
        raise self.fail(f"the {quote} quote is not closed")

    def plain(self, stops: str) -> Any:
        """An unquoted value: a number, null, true, false, or text."""
        characters: list[str] = []
        escaped: set[int] = set()
        while self.peek() and self.peek() not in stops:
            character = self.peek()
            following = self.source[self.at + 1 : self.at + 2]
            if character == "\\" and following and following in _ESCAPABLE:
                escaped.add(len(characters))
                characters.append(following)
                self.at += 2
                continue
            if character in "'\"":
                raise self.fail(
                    f"a {character} inside an unquoted value; put quotes around the value"
                )
            if character == "$" and following == "{":
                raise self.fail("${...} is not supported; write the value itself")
            characters.append(character)
            self.at += 1
        start, end = 0, len(characters)
        while start < end and characters[start] in _BLANK and start not in escaped:
            start += 1
        while end > start and characters[end - 1] in _BLANK and end - 1 not in escaped:
            end -= 1
        if start == end:
            raise self.fail("a value is missing")
        text = "".join(characters[start:end])
        return text if escaped else scalar(text)

    def call(self, name: str) -> _Sweep:
        if name not in ("range", "choice"):
            raise self.fail(f"{name}() is not supported; there are range() and choice()")
        self.skip_blanks()
        named: dict[str, Any] = {}
        values: list[Any] = []
        while self.peek() != ")":
            keyword = _NAMED.match(self.source, self.at) if name == "range" else None
            if keyword:
                self.at = keyword.end()
                named[keyword[1]] = self.element()
            elif named:
                raise self.fail("a positional value follows a named one")
            else:
                values.append(self.element())
            self.skip_blanks()
            if self.peek() == ",":
                self.at += 1
                self.skip_blanks()
                if self.peek() != ")":
                    continue
                raise self.fail("a value is missing")
            if self.peek() != ")":
                raise self.fail(f"{name}( is not closed")
        self.at += 1
        self.refuse_sweeps(values)
        if name == "choice":
            if not values:
                raise self.fail("choice() needs at least one value")
            return _Sweep(tuple(values))
        return _Sweep(self.numbers(values, named))

    def numbers(self, values: list[Any], named: dict[str, Any]) -> tuple[Any, ...]:
        """The numbers of `range(stop)`, `range(start,stop)` or `range(start,stop,step)`."""
        names = ("start", "stop", "step")
        given: dict[str, Any] = dict(
            zip(("stop",) if len(values) == 1 else names, values, strict=False)
        )
        if len(values) > 3 or set(named) - set(names) or set(given) & set(named):
            raise self.fail("range() takes start, stop and step, each once")
        bounds = {"start": 0, "step": 1, **given, **named}
        found = [
            v for v in bounds.values() if isinstance(v, (int, float)) and not isinstance(v, bool)
        ]
        if "stop" not in bounds or len(found) != 3 or not all(map(math.isfinite, found)):
            raise self.fail("range() takes one to three numbers")
        kind = int if all(isinstance(v, int) for v in found) else float
        start, stop, step = (Decimal(str(bounds[name])) for name in names)
        if step == 0:
            raise self.fail("range() with a step of 0")
        size = math.ceil((stop - start) / step)
        if not 0 < size <= 1_000_000:
            raise self.fail("range() is empty" if size <= 0 else "range() is longer than a million")
        return tuple(kind(start + i * step) for i in range(size))


def scalar(text: str) -> Any:
    """The number, null, true or false that an unquoted text stands for; else the text."""
    lowered = text.lower()
    if lowered in _WORDS:
        return _WORDS[lowered]
    if _INT.fullmatch(text):
        return int(text)
    if _FLOAT.fullmatch(text):
        return float(text)
    return text


def translate_hydra(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """Map what Hydra's users type (`-m`, `hydra.launcher.*`) to ours.

    Returns:
        The arguments to parse, and one note per kind of mapping for the user.
    """
    kept: list[str] = []
    notes: dict[str, None] = {}
    for argument in arguments:
        key = argument.partition("=")[0].lstrip("+~")
        if argument in ("-m", "--multirun"):
            notes["-m is not needed: commas always sweep"] = None
        elif key.startswith("hydra.launcher."):
            kept.append(argument.replace("hydra.launcher.", "launcher.", 1))
            notes["hydra.launcher.* is read as launcher.*"] = None
        elif key == "hydra/launcher":
            kind = "slurm" if "slurm" in argument else "local"
            kept.append(f"launcher.kind={kind}")
            notes[f"{argument} is read as launcher.kind={kind}"] = None
        elif key.startswith(("hydra.", "hydra/")):
            notes[f"{argument} is ignored: it configures Hydra itself; results go to out=DIR"] = (
                None
            )
        else:
            kept.append(argument)
    return kept, list(notes)
