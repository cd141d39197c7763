"""What an attack costs and may cost: usage, ledgers by phase and role, limits.

The meter only adds up; who charges it is the metered model, and what a call costs is counted by
`inference.flops`. Wall time is kept beside the ledgers because it is the one measure that differs
between equal runs.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from typing import Literal, cast

from pydantic import Field

from adversariallm.core.config import FrozenConfig
from adversariallm.core.errors import BudgetExceededError, NeedsError

Phase = Literal["setup", "optimization", "sampling", "diagnosis", "judging"]
PHASES: tuple[Phase, ...] = ("setup", "optimization", "sampling", "diagnosis", "judging")
ROLES = (
    "model", "attacker", "scorer", "refusal_scorer", "planner", "mutator", "prompter", "reference",
    "defense", "judge",
)  # fmt: skip
LIMITED_PHASES: tuple[Phase, ...] = ("setup", "optimization")

UsageRow = dict[str, int | float | None]
"""JSON form of a usage: measures that are zero left out, unknown ones null."""
LedgerRows = dict[str, dict[str, UsageRow]]
"""JSON form of ledgers: phase, then role."""


@dataclass(frozen=True, slots=True)
class Usage:
    """Useful work of some model calls; padding, retries and repeated rows are not in it.

    Attributes:
        queries: sequences sent.
        forward_passes: sequence-level evaluations, each decode step included.
        backward_passes: sequence-level backward evaluations.
        tokens_processed: positions computed by forward passes, prompt positions included.
        tokens_cached: positions that were in a shared prefix and not computed again.
        tokens_generated: ids sampled.
        flops: by architecture, DESIGN section 6; None where nobody knows (models behind an
            endpoint), and then in every sum with it.
        flops_2n: the 2N-per-token figure (4N with backward) for comparison with published numbers;
            None where nobody knows.
        cost: money, in US dollars.
    """

    queries: int = 0
    forward_passes: int = 0
    backward_passes: int = 0
    tokens_processed: int = 0
    tokens_cached: int = 0
    tokens_generated: int = 0
    flops: int | None = 0
    flops_2n: int | None = 0
    cost: float = 0.0

    def __add__(self, other: Usage) -> Usage:
        """Field-wise sum; with something unknown it is unknown."""
        return Usage(
            queries=self.queries + other.queries,
            forward_passes=self.forward_passes + other.forward_passes,
            backward_passes=self.backward_passes + other.backward_passes,
            tokens_processed=self.tokens_processed + other.tokens_processed,
            tokens_cached=self.tokens_cached + other.tokens_cached,
            tokens_generated=self.tokens_generated + other.tokens_generated,
            flops=known_sum(self.flops, other.flops),
            flops_2n=known_sum(self.flops_2n, other.flops_2n),
            cost=self.cost + other.cost,
        )

    @property
    def tokens(self) -> int:
        """Positions computed plus ids sampled, the measure of `budget.tokens`."""
        return self.tokens_processed + self.tokens_generated

    def to_dict(self) -> UsageRow:
        """JSON form without zero entries; null is unknown."""
        rows = ((f.name, getattr(self, f.name)) for f in fields(self))
        return {name: value for name, value in rows if value is None or value}

    @classmethod
    def from_dict(cls, row: Mapping[str, float | None]) -> Usage:
        """Inverse of `to_dict`."""
        return cls(**cast("dict[str, int]", dict(row)))


def known_sum(*values: int | None) -> int | None:
    """The sum; None where a part is unknown."""
    total = 0
    for value in values:
        if value is None:
            return None
        total += value
    return total


@dataclass(frozen=True)
class Ledgers:
    """Usage by phase and role, and seconds by phase.

    Attributes:
        usage: `usage[phase][role]`.
        seconds: wall seconds by phase; not part of what must be equal between equal runs.
        executed: floating-point operations the machine really did, by phase.
    """

    usage: Mapping[str, Mapping[str, Usage]] = field(default_factory=dict)
    seconds: Mapping[str, float] = field(default_factory=dict)
    executed: Mapping[str, int] = field(default_factory=dict)

    def total(self, *phases: str, role: str | None = None) -> Usage:
        """Sum over the given phases (all if none) and one role (all if None)."""
        out = Usage()
        for phase, by_role in self.usage.items():
            if not phases or phase in phases:
                for name, used in by_role.items():
                    if role is None or name == role:
                        out = out + used
        return out

    def search(self) -> Usage:
        """Work of the search: set-up and optimization, without preparing a defense."""
        used = self.total("optimization")
        for role in self.usage.get("setup", {}):
            if not _preparation("setup", role):
                used = used + self.total("setup", role=role)
        return used

    def __add__(self, other: Ledgers) -> Ledgers:
        """Entry-wise sum."""
        usage: dict[str, dict[str, Usage]] = {p: dict(r) for p, r in self.usage.items()}
        for phase, by_role in other.usage.items():
            for role, used in by_role.items():
                row = usage.setdefault(phase, {})
                row[role] = row.get(role, Usage()) + used
        seconds = {p: self.seconds.get(p, 0.0) + other.seconds.get(p, 0.0)
                   for p in {*self.seconds, *other.seconds}}  # fmt: skip
        executed = {p: self.executed.get(p, 0) + other.executed.get(p, 0)
                    for p in {*self.executed, *other.executed}}  # fmt: skip
        return Ledgers(usage, seconds, executed)

    def to_dict(self) -> LedgerRows:
        """JSON form of the usage, phases and roles in fixed order, empty ones left out."""
        out: LedgerRows = {}
        for phase in PHASES:
            rows = {
                r: u.to_dict() for r, u in sorted(self.usage.get(phase, {}).items()) if u != Usage()
            }
            if rows:
                out[phase] = rows
        return out

    @classmethod
    def from_dict(cls, row: Mapping[str, Mapping[str, Mapping[str, float | None]]]) -> Ledgers:
        """Inverse of `to_dict`."""
        return cls({p: {r: Usage.from_dict(u) for r, u in by.items()} for p, by in row.items()})


class Limits(FrozenConfig):
    """Limits on what is used; None means no limit."""

    queries: int | None = Field(None, ge=1, description="sequences sent")
    flops: float | None = Field(
        None, gt=0, description="useful floating-point operations; not of models behind endpoints"
    )
    tokens: int | None = Field(None, ge=1, description="positions computed plus ids sampled")
    seconds: float | None = Field(None, gt=0, description="wall seconds")
    cost: float | None = Field(None, gt=0, description="US dollars")


class Budget(Limits):
    """Limits of a run over all roles, and by role.

    They count the phases `setup` and `optimization`; for attacks whose samples are the search
    (`INFO.cost` is `sampling`) the first completion of every step counts as well. Further samples,
    diagnosis and judging never do.
    """

    model: Limits = Limits()
    attacker: Limits = Limits()
    scorer: Limits = Limits()
    refusal_scorer: Limits = Limits()
    planner: Limits = Limits()
    mutator: Limits = Limits()
    prompter: Limits = Limits()
    reference: Limits = Field(Limits(), json_schema_extra={"since": "1.0"})
    defense: Limits = Limits()
    judge: Limits = Limits()

    @property
    def limited(self) -> bool:
        """Whether any limit is set."""
        return self != Budget()


class Meter:
    """Adds up what the calls of one run cost and says when a limit is reached.

    One run has one meter. `phase` says what the calls inside it are for; `take` closes a step.
    """

    def __init__(
        self, budget: Budget | None = None, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Start at zero."""
        self.budget = budget or Budget()
        self._clock = clock
        self._lock = threading.Lock()
        self._phases: list[Phase] = ["optimization"]
        self._mark = clock()
        self._step = Ledgers()
        self._done = Ledgers()
        self._counted: dict[str, Usage] = {}
        self._counted_seconds = 0.0
        self.once_keys: set[str] = set()

    @property
    def current(self) -> Phase:
        """The phase that calls are charged to now."""
        return self._phases[-1]

    @property
    def total(self) -> Ledgers:
        """Everything so far."""
        return self._done + self._step

    def restore(self, done: Ledgers, once_keys: set[str]) -> None:
        """Continue after `done`, e.g. the ledgers of the steps in a journal."""
        self._done = self._done + done
        self.once_keys |= once_keys
        for phase in LIMITED_PHASES:
            for role, used in done.usage.get(phase, {}).items():
                if not _preparation(phase, role):
                    self._counted[role] = self._counted.get(role, Usage()) + used
            self._counted_seconds += done.seconds.get(phase, 0.0)

    @contextmanager
    def phase(self, name: Phase) -> Iterator[None]:
        """Charge the calls and the time inside to `name` instead of the surrounding phase."""
        if name not in PHASES:
            raise ValueError(f"phase {name!r}: expected one of {', '.join(PHASES)}")
        self._tick()
        self._phases.append(name)
        try:
            yield
        finally:
            self._tick()
            self._phases.pop()

    def _tick(self) -> None:
        now = self._clock()
        with self._lock:
            passed, self._mark = now - self._mark, now
            self._step = self._step + Ledgers(seconds={self.current: passed})
            if self.current in LIMITED_PHASES:
                self._counted_seconds += passed

    def start_clock(self) -> None:
        """Forget the time since the last tick (waiting that belongs to nobody)."""
        self._mark = self._clock()

    def charge(self, role: str, usage: Usage, *, executed: int = 0) -> None:
        """Book a finished call under the current phase.

        Args:
            role: whose call it was, e.g. "model" or "attacker".
            usage: the useful work.
            executed: floating-point operations really done, padding included.
        """
        if role not in ROLES:
            raise ValueError(f"role {role!r}: expected one of {', '.join(ROLES)}")
        with self._lock:
            self._step = self._step + Ledgers(
                {self.current: {role: usage}}, {}, {self.current: executed}
            )
        if self.current in LIMITED_PHASES and not _preparation(self.current, role):
            self.count(role, usage)

    def count(self, role: str, usage: Usage) -> None:
        """Let the limits see work that is booked elsewhere: the samples that are the search."""
        with self._lock:
            self._counted[role] = self._counted.get(role, Usage()) + usage

    def first(self, key: str) -> bool:
        """True the first time this run asks for `key`, also across a resume."""
        with self._lock:
            if key in self.once_keys:
                return False
            self.once_keys.add(key)
            return True

    def check(self, role: str | None = None, *, queries: int = 0) -> None:
        """Raise `BudgetExceededError` where a limit is reached, or `queries` more would pass it."""
        self._tick()
        if self.current not in LIMITED_PHASES:
            return
        total = Usage()
        for used in self._counted.values():
            total = total + used
        self._check(self.budget, "", total, self._counted_seconds, queries)
        if role is not None:
            limits = getattr(self.budget, role, Limits())
            used = self._counted.get(role, Usage())
            self._check(limits, f"{role}.", used, self._counted_seconds, queries)

    @staticmethod
    def _check(limits: Limits, prefix: str, used: Usage, seconds: float, queries: int) -> None:
        now = {"queries": used.queries, "flops": used.flops, "tokens": used.tokens,
               "seconds": seconds, "cost": used.cost}  # fmt: skip
        for name, value in now.items():
            allowed = getattr(limits, name)
            if allowed is None:
                continue
            if value is None:
                raise NeedsError(
                    f"budget.{prefix}{name}={allowed:g} cannot be held: a model behind an endpoint "
                    "took part, whose FLOPs are unknown; limit queries, tokens or cost, or the "
                    "FLOPs of a local role (budget.ROLE.flops)"
                )
            if value >= allowed or (name == "queries" and value + queries > allowed):
                wanted = queries if name == "queries" else 0
                raise BudgetExceededError(prefix + name, allowed, value, wanted)

    def take(self) -> Ledgers:
        """The ledgers since the last `take`: those of the step that ends here."""
        self._tick()
        with self._lock:
            step, self._step = self._step, Ledgers()
            self._done = self._done + step
            return step


def _preparation(phase: str, role: str) -> bool:
    """Whether it is a defense's set-up, which no attacker pays for."""
    return phase == "setup" and role == "defense"
