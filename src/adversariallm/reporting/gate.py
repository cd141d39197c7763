"""Thresholds for continuous integration: which rates must hold, checked against a store, as JUnit.

A rule that finds nothing to check fails; an unmeasured model is not a robust one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal
from xml.etree import ElementTree

import yaml
from pydantic import Field, TypeAdapter, ValidationError, model_validator

from adversariallm.core.config import FrozenConfig
from adversariallm.core.errors import ConfigError
from adversariallm.evaluation.facts import METRIC_TITLES, Document, Metric
from adversariallm.evaluation.intervals import Rate
from adversariallm.reporting.load import predicate
from adversariallm.reporting.summary import summarize
from adversariallm.reporting.text import percent, rate_text, visible_line


class Rule(FrozenConfig):
    """One line of a gate: rates of these runs must stay within bounds."""

    name: str
    measure: Metric
    where: dict[str, Any] = Field({}, description="facets, as in load_results")
    judge: str | None = Field(None, description="judge id; every judge that measures it if none")
    max: float | None = Field(None, ge=0, le=1)
    min: float | None = Field(None, ge=0, le=1)
    use: Literal["value", "low", "high"] = Field(
        "value", description="the estimate, or the end of its interval that is compared"
    )
    max_unscored: float = Field(0.05, ge=0, le=1, description="share of answers without a score")
    min_behaviors: int = Field(1, ge=1)

    @model_validator(mode="after")
    def _has_a_bound(self) -> Rule:
        if self.max is None and self.min is None:
            raise ValueError(f"rule {self.name!r} has neither max nor min")
        return self


@dataclass(frozen=True, slots=True)
class Verdict:
    """One rule applied to one row of the summary."""

    rule: str
    row: str
    passed: bool
    detail: str


def read_gate(path: Path) -> list[Rule]:
    """Read a YAML list of rules.

    Raises:
        ConfigError: not readable, no rule at all, or a rule is wrong; the message names it.
    """
    try:
        data = yaml.safe_load(path.read_text("utf-8"))
        rules = TypeAdapter(list[Rule]).validate_python(data)
    except OSError as error:
        raise ConfigError(f"cannot read the gate {path}: {error.strerror}") from error
    except yaml.YAMLError as error:
        raise ConfigError(f"{path} is not YAML: {error}") from error
    except ValidationError as error:
        problems = "; ".join(f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors())
        raise ConfigError(f"{path} is no list of gate rules: {problems}") from error
    if not rules:
        raise ConfigError(f"{path} has no rule, so it would pass whatever was measured: add one")
    return rules


def check_gate(
    documents: Sequence[Document], rules: Sequence[Rule], *, threshold: float | None = None
) -> list[Verdict]:
    """Apply every rule to the rows of the summary that it selects."""
    verdicts = []
    for rule in rules:
        keep = predicate(rule.where)
        table = summarize([d for d in documents if keep(d)], threshold=threshold)
        rows = [
            r
            for r in table.rows
            if r.get("metric") == rule.measure and rule.judge in (None, r["judge"])
        ]
        if not rows:
            what = METRIC_TITLES[rule.measure]
            verdicts.append(
                Verdict(rule.name, "no run", False, f"no stored run measures {what} here")
            )
        verdicts.extend(_check(rule, row) for row in rows)
    return verdicts


def _check(rule: Rule, row: Mapping[str, Any]) -> Verdict:
    rate: Rate = row["rate"]
    name = f"{row['attack']} on {row['model']}, {row['dataset']} ({row['judge']})"
    problems = []
    if rate.value is None or rate.interval is None:
        problems.append("nothing was scored")
    else:
        value = {"value": rate.value, "low": rate.interval.low, "high": rate.interval.high}[
            rule.use
        ]
        if rule.max is not None and value > rule.max:
            problems.append(f"{rule.use} {percent(value)} is above {percent(rule.max)}")
        if rule.min is not None and value < rule.min:
            problems.append(f"{rule.use} {percent(value)} is below {percent(rule.min)}")
    if rate.n + rate.unscored < rule.min_behaviors:
        problems.append(f"{rate.n + rate.unscored} behaviors, expected {rule.min_behaviors}")
    share = row["unscored"] / row["answers"] if row["answers"] else 0.0
    if share > rule.max_unscored:
        problems.append(f"{percent(share)} unscored is above {percent(rule.max_unscored)}")
    return Verdict(rule.name, name, not problems, "; ".join(problems) or rate_text(rate))


def junit(verdicts: Sequence[Verdict]) -> str:
    """The verdicts as a JUnit test suite."""
    failed = sum(not v.passed for v in verdicts)
    suite = ElementTree.Element(
        "testsuite", name="adversariallm gate", tests=str(len(verdicts)), failures=str(failed)
    )
    for v in verdicts:
        case = ElementTree.SubElement(
            suite, "testcase", classname=visible_line(v.rule), name=visible_line(v.row)
        )
        if not v.passed:
            ElementTree.SubElement(case, "failure", message=visible_line(v.detail))
    return ElementTree.tostring(suite, encoding="unicode", xml_declaration=True) + "\n"
