"""Prefilling: what the answer is begun with, and what is refused."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest

from adversariallm.core.errors import ConfigError, NeedsError
from adversariallm.models.planted import PlantedModel
from adversariallm.runs.settings import configure

sys.path.insert(0, str(Path(__file__).parents[2] / "contract"))
from harness import run  # noqa: E402


@pytest.mark.parametrize(("given", "expected"), [(None, "Sure, here is the list"), (" A", " A")])
def test_the_answer_is_begun_with_the_option_or_else_the_target(
    given: str | None, expected: str
) -> None:
    planted = PlantedModel()
    document = run("prefilling", planted, [planted.behavior()], options={"prefill": given})
    (step,) = document.runs[0].steps
    assert step.prefill == expected
    assert step.model_input[-1] == {"role": "assistant", "content": expected}


def test_an_empty_prefill_is_refused_before_the_run() -> None:
    with pytest.raises(ConfigError, match=r"attacks\.prefilling\.prefill=''.* is empty: give"):
        configure("attacks", "prefilling", {"prefill": ""})


def test_without_target_and_prefill_the_remedy_is_named() -> None:
    planted = PlantedModel()
    bare = replace(planted.behavior(), target=None)
    with pytest.raises(NeedsError, match=r"has no target.*set attacks\.prefilling\.prefill"):
        run("prefilling", planted, [bare])
