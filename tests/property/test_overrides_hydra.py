"""Our override parser against hydra-core's own: what Hydra accepts, we read the same way."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from adversariallm.runs.overrides import OverrideError, parse

overrides_parser = pytest.importorskip("hydra.core.override_parser.overrides_parser")
hydra_types = pytest.importorskip("hydra.core.override_parser.types")
HydraException = pytest.importorskip("hydra.errors").HydraException

PARSER = overrides_parser.OverridesParser.create()


def hydra(text: str) -> tuple[str, str, list[Any], bool]:
    """Key, operation, values and whether it is a sweep, as Hydra reads `text`."""
    found = PARSER.parse_override(text)
    operation = {"CHANGE": "", "ADD": "+", "FORCE_ADD": "++", "DEL": "~"}[found.type.name]
    value = found._value
    if isinstance(value, hydra_types.ChoiceSweep):
        return found.key_or_group, operation, [plain(v) for v in value.list], True
    if isinstance(value, hydra_types.RangeSweep):
        return found.key_or_group, operation, list(value.range()), True
    return found.key_or_group, operation, [plain(value)], False


def plain(value: Any) -> Any:
    if isinstance(value, hydra_types.QuotedString):
        return value.text
    if isinstance(value, list):
        return [plain(v) for v in value]
    if isinstance(value, dict):
        return {plain(k): plain(v) for k, v in value.items()}
    return value


def same(a: Any, b: Any) -> bool:
    if type(a) is not type(b):
        return False
    if isinstance(a, float):
        return a == b or (math.isnan(a) and math.isnan(b))
    if isinstance(a, list):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, dict):
        return list(a) == list(b) and all(same(a[k], b[k]) for k in a)
    return bool(a == b)


def agree(text: str) -> None:
    key, operation, values, sweep = hydra(text)
    ours = parse(text)
    assert (ours.key, ours.operation, ours.sweep) == (key, operation, sweep), text
    assert same(list(ours.values), values), (text, ours.values, values)


FIXED = [
    "attack=gcg",
    "attack=gcg,pair",
    "a.b=1",
    "a.b=-1",
    "a=+5",
    "a=1_000",
    "a=1__0",
    "a=00",
    "a=1.5",
    "a=.5",
    "a=5.",
    "a=1e5",
    "a=1E-3",
    "a=1.e3",
    "a=inf",
    "a=-Inf",
    "a=nan",
    "a=infinity",
    "a=null",
    "a=NULL",
    "a=true",
    "a=False",
    "a=tRue,false",
    "a=",
    "~a",
    "~a=1",
    "+a=1",
    "++a=1",
    "a='x, y'",
    'a="x=y"',
    "a='it\\'s'",
    "a='\\\\'",
    'a="a\\\\\\"b"',
    "a=[]",
    "a=[1,2,[3]]",
    "a={}",
    "a={b:1,c:{d:x}}",
    "a={b:x:y}",
    "a=x\\,y",
    "a=\\[x\\]",
    "a=x\\ ",
    "a=a b",
    "a= a , b ",
    "a=range(3)",
    "a=range(1,4)",
    "a=range(1,10,3)",
    "a=range(4,1,-1)",
    "a=range(start=1,stop=4)",
    "a=range(0,1,0.25)",
    "a=choice(a,b,c)",
    "a=choice([1,2],{a:b})",
    "a=choice( a , 1 )",
    "a=[1,2],[3]",
    "a=x/y-z_1.0",
    "a=10m",
    "a=a:b",
    "a=user@host",
    "a=50%",
    "a=\\x",
    "datasets.x.idx=range(0,300)",
    "a.0.b=1",
    "a='a','b'",
    "a=[a b,c]",
    "a={a b:1}",
    "a=-",
    "a=--5",
    "a=1 2",
    "a=x\\=y",
]


@pytest.mark.parametrize("text", FIXED)
def test_agrees_on_what_users_type(text: str) -> None:
    agree(text)


BAD = [
    "a",
    "=1",
    "a=[1",
    "a=1]",
    "a={a}",
    "a={a:1",
    "a='x",
    'a="x',
    "a=x'y",
    "a=(1)",
    "a=f(1)",
    "a=range()",
    "a=range(a)",
    "a=1,,2",
    "a=1,",
    "a=,1",
    "a=[,]",
    "a=[1,]",
    "a=[range(3)]",
    "a=range(3),4",
    "a=choice()",
    "a=range(1,2,0)",
    "a b=1",
    "a=['x'y]",
    "a='x''y'",
    "a={:1}",
    "a=[1]2",
    "a=x(",
]


@pytest.mark.parametrize("text", BAD)
def test_refuses_what_hydra_refuses(text: str) -> None:
    with pytest.raises(OverrideError):
        parse(text)


@pytest.mark.parametrize(
    "text", ["a=x=y", "a=~/out", "a=\u00fcber", "a=<x>", "a={'k':1}", "a=choice(null)"]
)
def test_accepts_more_than_hydra_where_nothing_is_ambiguous(text: str) -> None:
    with pytest.raises(HydraException):
        hydra(text)
    assert len(parse(text).values) == 1


def test_fractions_in_ranges_are_the_decimals_that_were_typed() -> None:
    assert parse("a=range(0,0.5,0.1)").values == (0.0, 0.1, 0.2, 0.3, 0.4)
    assert len(hydra("a=range(0,0.5,0.1)")[2]) == 5


WORDS = st.sampled_from(
    [
        "gcg",
        "null",
        "True",
        "0",
        "-1",
        "1_0",
        "1e3",
        ".5",
        "-inf",
        "a-b",
        "_x",
        "a/b",
        "x.y",
        "a b",
        "a:b",
        "%",
        "\\,",
        "\\\\",
        "\\ x",
        "'q, \"x'",
        '"q]"',
        "'\\''",
        "''",
    ]
)
VALUES = st.recursive(
    WORDS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3).map(lambda v: f"[{', '.join(v)}]"),
        st.lists(st.tuples(st.sampled_from(["k", "1", "k k", "true"]), inner), max_size=3).map(
            lambda v: "{" + ",".join(f"{k}: {x}" for k, x in v) + "}"
        ),
    ),
    max_leaves=6,
)
NUMBERS = st.one_of(st.integers(-9, 9).map(str), st.sampled_from(["0.5", "-1.5", "2e0"]))
SWEEPS = st.one_of(
    st.lists(VALUES, min_size=1, max_size=3).map(",".join),
    st.lists(VALUES, min_size=1, max_size=3).map(lambda v: f"choice({','.join(v)})"),
    st.lists(NUMBERS, min_size=1, max_size=3).map(lambda v: f"range({','.join(v)})"),
)
KEYS = st.sampled_from(["a", "a.b", "attacks.gcg.num_steps", "+a", "++a.b", "a_1.b-2"])


@settings(max_examples=300, deadline=None)
@given(KEYS, SWEEPS)
def test_agrees_on_generated_overrides(key: str, value: str) -> None:
    text = f"{key}={value}"
    try:
        expected = hydra(text)
    except (HydraException, ValueError):  # null in choice(), a step of 0
        return
    if not expected[2]:  # an empty range: an error for us, no run for Hydra
        return
    agree(text)


@settings(max_examples=400, deadline=None)
@given(st.text(alphabet="ab1.,:[]{}()'\"\\ =-+_etru/", max_size=12))
def test_never_disagrees_on_random_text(value: str) -> None:
    text = f"a={value}"
    try:
        expected = hydra(text)
    except (HydraException, ValueError, ArithmeticError):
        expected = None
    try:
        ours = parse(text)
    except OverrideError:
        ours = None
    if expected is None or not expected[2]:
        return
    if value.rstrip(" ") != value and value.rstrip(" ").endswith((":", "=")):
        return  # Hydra keeps blanks after a final colon, we do not
    assert ours is not None, text
    agree(text)
