from __future__ import annotations

import json

import pytest

from adversariallm.core.budget import Budget, Ledgers, Limits, Meter, Usage, known_sum
from adversariallm.core.errors import BudgetExceededError, NeedsError


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_phases_nest_and_get_their_own_time_and_usage() -> None:
    clock = Clock()
    meter = Meter(clock=clock)
    with meter.phase("optimization"):
        clock.now = 2.0
        meter.charge("model", Usage(queries=3, flops=10))
        with meter.phase("diagnosis"):
            clock.now = 5.0
            meter.charge("model", Usage(queries=1, flops=7))
        clock.now = 6.0
    step = meter.take()
    assert step.total("optimization") == Usage(queries=3, flops=10)
    assert step.total("diagnosis") == Usage(queries=1, flops=7)
    assert step.seconds == {"optimization": 3.0, "diagnosis": 3.0}


def test_steps_add_up_to_the_total() -> None:
    meter = Meter(clock=Clock())
    steps = []
    for k in range(4):
        with meter.phase("sampling" if k % 2 else "optimization"):
            meter.charge(
                "attacker" if k == 2 else "model", Usage(queries=k, tokens_generated=2 * k)
            )
        steps.append(meter.take())
    total = Ledgers()
    for step in steps:
        total = total + step
    assert total.to_dict() == meter.total.to_dict()
    assert meter.total.total(role="attacker") == Usage(queries=2, tokens_generated=4)


def test_ledgers_survive_json() -> None:
    ledgers = Ledgers({"optimization": {"model": Usage(queries=2, cost=0.5), "judge": Usage()}})
    assert ledgers.to_dict() == {"optimization": {"model": {"queries": 2, "cost": 0.5}}}
    assert Ledgers.from_dict(ledgers.to_dict()).to_dict() == ledgers.to_dict()


def test_queries_never_pass_their_limit() -> None:
    meter = Meter(Budget(queries=10), clock=Clock())
    meter.check("model", queries=8)
    meter.charge("model", Usage(queries=8))
    said = r"queries=10 is reached \(8 used; the next call needs 3, 2 are left\)"
    with pytest.raises(BudgetExceededError, match=said):
        meter.check("model", queries=3)
    meter.check("model", queries=2)


@pytest.mark.parametrize(
    ("budget", "usage"),
    [
        (Budget(flops=100), Usage(flops=100)),
        (Budget(tokens=10), Usage(tokens_processed=6, tokens_generated=4)),
        (Budget(cost=0.1), Usage(cost=0.2)),
    ],
)
def test_a_reached_limit_ends_the_run_at_the_next_call(budget: Budget, usage: Usage) -> None:
    meter = Meter(budget, clock=Clock())
    meter.check("model")
    meter.charge("model", usage)
    with pytest.raises(BudgetExceededError):
        meter.check("model")


def test_seconds_count_search_time_only() -> None:
    clock = Clock()
    meter = Meter(Budget(seconds=5), clock=clock)
    with meter.phase("sampling"):
        clock.now = 100.0
    meter.check("model")
    clock.now = 106.0
    with pytest.raises(BudgetExceededError, match="seconds"):
        meter.check("model")


def test_sampling_and_judging_do_not_count_unless_the_samples_are_the_search() -> None:
    meter = Meter(Budget(queries=3), clock=Clock())
    with meter.phase("sampling"):
        meter.charge("model", Usage(queries=50))
        meter.check("model", queries=50)
    meter.check("model", queries=3)
    meter.count("model", Usage(queries=3))
    with pytest.raises(BudgetExceededError):
        meter.check("model")


def test_a_role_has_its_own_limit() -> None:
    meter = Meter(Budget(attacker=Limits(queries=2)), clock=Clock())
    meter.charge("model", Usage(queries=50))
    meter.charge("attacker", Usage(queries=2))
    meter.check("model", queries=1)
    with pytest.raises(BudgetExceededError, match="attacker.queries"):
        meter.check("attacker")


def test_a_restored_meter_goes_on_where_the_journal_ended() -> None:
    whole = Meter(Budget(queries=5), clock=Clock())
    whole.charge("model", Usage(queries=3))
    assert whole.first("prefix:1")
    done = whole.take()
    resumed = Meter(Budget(queries=5), clock=Clock())
    resumed.restore(done, whole.once_keys)
    assert not resumed.first("prefix:1")
    assert resumed.total.to_dict() == done.to_dict()
    with pytest.raises(BudgetExceededError):
        resumed.check("model", queries=3)


def test_unknown_roles_and_phases_are_refused() -> None:
    meter = Meter(clock=Clock())
    with pytest.raises(ValueError, match="role 'target'"):
        meter.charge("target", Usage())
    with pytest.raises(ValueError, match="phase 'optimise'"), meter.phase("optimise"):  # type: ignore[arg-type]
        pass


def test_what_is_unknown_stays_unknown_in_sums_and_files() -> None:
    local, remote = Usage(queries=1, flops=10, flops_2n=8), Usage(queries=1, flops=None)
    total = local + remote
    assert (total.queries, total.flops, total.flops_2n) == (2, None, 8)
    assert sum([local, local], Usage()).flops == 20
    assert remote.to_dict() == {"queries": 1, "flops": None}
    assert Usage.from_dict(json.loads(json.dumps(total.to_dict()))) == total
    ledgers = Ledgers({"optimization": {"attacker": remote, "model": local}})
    assert ledgers.total("optimization").flops is None
    assert ledgers.total("optimization", role="model").flops == 10
    assert known_sum(1, 2) == 3 and known_sum(1, None) is None


def test_a_limit_on_flops_that_nobody_counts_is_an_error_never_passed_over() -> None:
    meter = Meter(Budget(flops=100, model=Limits(flops=50)), clock=Clock())
    meter.charge("attacker", Usage(queries=1, flops=None))
    with pytest.raises(NeedsError, match=r"budget.flops=100 cannot be held"):
        meter.check("model")
    one_role = Meter(Budget(model=Limits(flops=50)), clock=Clock())
    one_role.charge("attacker", Usage(queries=1, flops=None))
    one_role.charge("model", Usage(queries=1, flops=49))
    one_role.check("model")
    one_role.charge("model", Usage(queries=1, flops=1))
    with pytest.raises(BudgetExceededError):
        one_role.check("model")


def test_preparing_a_defense_is_no_part_of_the_search_and_meets_no_limit() -> None:
    meter = Meter(Budget(queries=2))
    with meter.phase("setup"):
        meter.charge("defense", Usage(queries=40))
        meter.charge("model", Usage(queries=1))
    meter.check(queries=1)
    ledgers = meter.take()
    assert ledgers.search() == Usage(queries=1)
    again = Meter(Budget(queries=2))
    again.restore(ledgers, set())
    again.check(queries=1)
    with pytest.raises(BudgetExceededError):
        again.check(queries=2)
