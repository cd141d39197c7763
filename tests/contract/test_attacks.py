"""The contract of every attack: it runs over the registry, so a new file is tested at once.

Invariants I1 to I10 of the specification, resume after every step, budgets, separation of runs.
"""

from __future__ import annotations

import random
import re
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch

from adversariallm.core.budget import Budget, Ledgers
from adversariallm.core.errors import NeedsError
from adversariallm.core.plugins import ATTACKS
from adversariallm.core.protocols import Needs
from adversariallm.core.records import RunDocument
from adversariallm.models.fakes import ScriptedModel
from adversariallm.models.planted import PlantedModel
from adversariallm.runs.execute import check_needs
from adversariallm.runs.runlog import MemoryLog

sys.path.insert(0, str(Path(__file__).parent))
import harness  # noqa: E402  -- beside this file
import invariants  # noqa: E402
from harness import behaviors, run, stable  # noqa: E402
from witness import NEEDS, SHOWN_ELSEWHERE  # noqa: E402

NAMES = ATTACKS.names()
SINGLE = [n for n in NAMES if ATTACKS.load(n).INFO.fits == "one"]


@pytest.fixture(scope="module")
def tiny() -> Any:
    return harness.contract_model()


@pytest.fixture(scope="module")
def documents(tiny: Any) -> dict[tuple[str, int], RunDocument]:
    """Each single-behavior attack on each kind of conversation, run once."""
    found = {}
    for name in SINGLE:
        for i, behavior in enumerate(behaviors()):
            found[name, i] = run(name, tiny, [behavior], samples=2)
    return found


def steps_of(document: RunDocument) -> list[Any]:
    return document.runs[0].steps


@pytest.mark.parametrize("name", SINGLE)
@pytest.mark.parametrize("i", range(3))
class TestInvariants:
    def test_i1_the_recorded_loss_is_that_of_the_recorded_input(
        self, documents: Any, tiny: Any, name: str, i: int
    ) -> None:
        invariants.recorded_losses(documents[name, i], tiny, behaviors()[i], tolerance=1e-5)

    def test_i2_the_recorded_conversation_gives_the_recorded_ids(
        self, documents: Any, tiny: Any, name: str, i: int
    ) -> None:
        invariants.recorded_ids(documents[name, i], tiny)

    def test_i3_completions_come_from_exactly_the_recorded_ids(
        self, documents: Any, tiny: Any, name: str, i: int
    ) -> None:
        generation = harness.short(name)
        if generation.temperature > 0:
            pytest.skip("sampled; the resume test compares the streams")
        invariants.completions_of_recorded_ids(documents[name, i], tiny, generation, 2)

    def test_i4_i5_the_target_is_never_part_of_the_input(
        self, documents: Any, name: str, i: int
    ) -> None:
        invariants.target_absent(documents[name, i], behaviors()[i])

    def test_i7_no_id_is_outside_tokenizer_and_embedding(
        self, documents: Any, tiny: Any, name: str, i: int
    ) -> None:
        invariants.legal_ids(documents[name, i], tiny)

    def test_i8_what_stands_outside_the_slot_is_never_touched(
        self, documents: Any, tiny: Any, name: str, i: int
    ) -> None:
        info = ATTACKS.load(name).INFO
        invariants.outside_untouched(documents[name, i], behaviors()[i], info)

    def test_i10_the_steps_add_up_to_the_run(self, documents: Any, name: str, i: int) -> None:
        invariants.ledgers_add_up(documents[name, i])

    def test_step_zero_is_the_unoptimized_start(self, documents: Any, name: str, i: int) -> None:
        steps = steps_of(documents[name, i])
        assert [s.step for s in steps] == list(range(len(steps)))
        assert all(len(s.model_completions) >= 2 for s in steps)


@pytest.mark.parametrize("name", SINGLE)
class TestSeparation:
    def test_i6_neither_earlier_runs_nor_ambient_state_change_a_result(
        self, documents: Any, tiny: Any, name: str
    ) -> None:
        random.seed(99)
        torch.manual_seed(99)
        numpy.random.seed(99)  # noqa: NPY002  -- the ambient state is the point
        before = (random.getstate(), torch.get_rng_state().clone())
        again = run(name, tiny, [behaviors()[2]], samples=2)
        assert stable(again) == stable(documents[name, 2])
        assert random.getstate() == before[0]
        assert torch.equal(torch.get_rng_state(), before[1])

    def test_another_seed_is_another_run(self, documents: Any, tiny: Any, name: str) -> None:
        task = harness.spec(name, tiny, [behaviors()[0]], seed=1)
        assert task.spec.run_id != documents[name, 0].run_id

    def test_more_samples_keep_the_first_ones(self, documents: Any, tiny: Any, name: str) -> None:
        one = run(name, tiny, [behaviors()[0]], samples=1)
        for few, many in zip(steps_of(one), steps_of(documents[name, 0]), strict=True):
            assert few.completions[0] == many.completions[0]

    def test_a_run_cut_anywhere_continues_to_the_same_end(
        self, documents: Any, tiny: Any, name: str
    ) -> None:
        log = MemoryLog()
        counting = harness.Counting(tiny)
        whole = run(name, counting, [behaviors()[1]], samples=2, log=log)
        assert stable(whole) == stable(documents[name, 1])
        for cut in range(1, len(log.entries)):
            rest = harness.Counting(tiny)
            again = run(name, rest, [behaviors()[1]], samples=2, log=MemoryLog(log.entries[:cut]))
            assert stable(again) == stable(whole), f"cut after entry {cut}"
            # what is asked again is exactly what had not been answered yet, in the same order
            assert rest.queries == counting.queries[len(counting.queries) - len(rest.queries) :]
            first = min(k for k, e in enumerate(log.entries) if e.kind == "completion")
            assert cut <= first or len(rest.queries) < len(counting.queries)


@pytest.mark.parametrize("name", SINGLE)
class TestBudgets:
    def test_queries_are_what_the_model_saw(self, tiny: Any, name: str) -> None:
        counting = harness.Counting(tiny)
        document = run(name, counting, [behaviors()[0]])
        total = Ledgers.from_dict(document.ledgers).total(role="model")
        assert total.queries == len(counting.queries)

    @pytest.mark.parametrize("queries", [1, 5])
    def test_a_query_limit_is_never_passed_and_keeps_finished_steps(
        self, documents: Any, tiny: Any, name: str, queries: int
    ) -> None:
        document = run(name, tiny, [behaviors()[0]], budget=Budget(queries=queries))
        ledgers = Ledgers.from_dict(document.ledgers)
        info = ATTACKS.load(name).INFO
        counted = ledgers.total("setup", "optimization").queries
        if info.cost == "sampling":
            counted += len(steps_of(document))
        assert counted <= queries
        whole = steps_of(documents[name, 0])
        for few, many in zip(steps_of(document), whole, strict=False):
            assert (few.model_input, few.loss) == (many.model_input, many.loss)
        if len(steps_of(document)) < len(whole):
            assert document.status.startswith("stopped: budget.queries")

    def test_a_flop_limit_stops_cleanly(self, documents: Any, tiny: Any, name: str) -> None:
        whole = documents[name, 0]
        used = Ledgers.from_dict(whole.ledgers).total("setup", "optimization").flops
        document = run(name, tiny, [behaviors()[0]], budget=Budget(flops=max(1, used // 2)))
        if used:
            assert document.status.startswith("stopped: budget.flops")
        assert len(steps_of(document)) <= len(steps_of(whole))
        for few, many in zip(steps_of(document), steps_of(whole), strict=False):
            assert (few.model_input, few.loss) == (many.model_input, many.loss)


@pytest.mark.parametrize("name", SINGLE)
def test_it_never_ends_above_its_start_on_the_planted_problem(name: str) -> None:
    planted = PlantedModel()
    if ATTACKS.load(name).INFO.needs & ~planted.gives:
        pytest.skip("needs what the planted model does not have")
    document = run(name, planted, [planted.behavior()])
    losses = [s.loss for s in steps_of(document) if s.loss is not None]
    if len(losses) > 1:
        assert min(losses) <= losses[0]
        assert min(losses) >= planted.best_loss - 1e-6


@pytest.mark.parametrize("name", NAMES)
def test_an_unmet_need_is_refused_with_the_reason(name: str) -> None:
    info = ATTACKS.load(name).INFO
    if info.needs == Needs.TEXT:
        return
    with pytest.raises(NeedsError, match=rf"attack '{name}' needs .*of the model"):
        check_needs(info, [ScriptedModel(["x"])], harness.helpers_for(name), behaviors())


@pytest.mark.parametrize("name", NAMES)
def test_a_missing_target_is_refused_where_one_is_required(name: str) -> None:
    info = ATTACKS.load(name).INFO
    if info.target != "required":
        return
    planted = PlantedModel()
    without = [replace(planted.behavior(), target=None)]
    with pytest.raises(NeedsError, match="needs a target"):
        check_needs(info, [planted], harness.helpers_for(name), without)


@pytest.mark.parametrize("name", NAMES)
def test_the_header_tells_source_and_deviations(name: str) -> None:
    module = ATTACKS.load(name)
    text = module.__doc__ or ""
    assert module.INFO.summary and module.INFO.source
    if module.INFO.reference_code:
        assert re.search(r"^Source:", text, re.M)
        assert re.search(r"^Deviations from", text, re.M)
    for field_name, field in module.Config.model_fields.items():
        assert field.description, f"{name}.{field_name} has no description"


def changed(value: Any, annotation: Any) -> list[Any]:
    """Other values of an option, to see whether it does anything."""
    if isinstance(value, bool):
        return [not value]
    if isinstance(value, int):
        return [value + 1, value * 2, max(1, value - 1)]
    if isinstance(value, float):
        return [value * 0.5, value * 2 + 0.1, value + 0.45]
    choices = [c for c in getattr(annotation, "__args__", ()) if isinstance(c, str)]
    if choices:
        return [c for c in choices if c != value]
    if isinstance(value, str):
        return [value + " y", "z"]
    return []


@pytest.mark.parametrize("name", SINGLE)
def test_every_option_changes_something_or_is_declared_inert(
    documents: Any, tiny: Any, name: str
) -> None:
    module = ATTACKS.load(name)
    base = documents[name, 0]
    start = module.Config(**module.INFO.quick)
    dead = []
    for field_name, field in module.Config.model_fields.items():
        extra = field.json_schema_extra if isinstance(field.json_schema_extra, dict) else {}
        if extra.get("inert") or (name, field_name) in SHOWN_ELSEWHERE:
            continue
        with_it = NEEDS.get((name, field_name), {})
        reference = base if not with_it else run(name, tiny, [behaviors()[0]], options=with_it)
        value = with_it.get(field_name, getattr(start, field_name))
        tried = changed(value, field.annotation) or extra.get("examples", [])
        if not tried:
            continue
        for other in tried:
            try:
                document = run(name, tiny, [behaviors()[0]], options={**with_it, field_name: other})
            except (ValueError, NeedsError):
                continue
            if _shape(document) != _shape(reference):
                break
        else:
            dead.append(field_name)
    assert not dead, f"options of {name} that change nothing: {dead}"


def _shape(document: RunDocument) -> list[Any]:
    return [(s.model_input, s.loss, s.flags, s.note, s.ledgers.get("optimization"))
            for s in steps_of(document)]  # fmt: skip


@pytest.mark.parametrize("where", SHOWN_ELSEWHERE.values())
def test_an_option_shown_elsewhere_names_a_test_that_exists(where: str) -> None:
    path, _, function = where.partition("::")
    assert f"def {function}" in (Path(__file__).parents[2] / path).read_text(encoding="utf-8")
