from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import Field, ValidationError

from adversariallm.core.config import FrozenConfig, canonical_json, stable_hash


class Inner(FrozenConfig):
    a: float = 1.0


class Example(FrozenConfig):
    steps: int = 5
    rate: float = 0.5
    names: tuple[str, ...] = ("x",)
    inner: Inner = Inner()
    chunk: int = Field(8, json_schema_extra={"inert": True})
    later: int = Field(0, json_schema_extra={"since": "1.1"})


def test_golden_hash() -> None:
    assert Example().semantic() == {
        "steps": 5, "rate": 0.5, "names": ["x"], "inner": {"a": 1.0}
    }  # fmt: skip
    assert stable_hash(Example()) == "95ce0b22b75a028c6182b18d3dca82b8"


def test_inert_fields_and_later_defaults_stay_out_of_the_hash() -> None:
    assert stable_hash(Example(chunk=16)) == stable_hash(Example())
    assert stable_hash(Example(later=0)) == stable_hash(Example())
    assert stable_hash(Example(later=1)) != stable_hash(Example())


def test_equal_meaning_equal_hash() -> None:
    assert stable_hash(Example(rate=-0.0)) == stable_hash(Example(rate=0))
    assert stable_hash({"b": 1, "a": [1, 2]}) == stable_hash({"a": (1, 2), "b": 1})


def test_values_without_a_canonical_form_are_refused() -> None:
    with pytest.raises(ValueError, match="no canonical form"):
        canonical_json({"x": math.nan})
    with pytest.raises(TypeError, match="expected str"):
        canonical_json({1: 2})
    with pytest.raises(TypeError, match="no canonical JSON form"):
        canonical_json({"x": object()})


def test_unknown_keys_and_changes_are_refused() -> None:
    with pytest.raises(ValidationError, match="Extra inputs"):
        Example(step=3)  # type: ignore[call-arg]
    with pytest.raises(ValidationError, match="frozen"):
        Example().steps = 6  # type: ignore[misc]


@given(st.dictionaries(st.text(max_size=5), st.integers() | st.text(max_size=5), max_size=5))
def test_key_order_does_not_matter(value: dict[str, int | str]) -> None:
    turned = dict(reversed(list(value.items())))
    assert canonical_json(value) == canonical_json(turned)
