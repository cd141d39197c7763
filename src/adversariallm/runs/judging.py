"""Judging stored completions: each judge writes a file of its own beside a published run.

A completion that failed, or that a judge could not read, is unscored and never zero. Which judges
exist and how they score is judgezoo's business.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from adversariallm.core.budget import Meter
from adversariallm.core.records import StepRecord
from adversariallm.core.types import Behavior

if TYPE_CHECKING:
    from adversariallm.runs.store import Store
    from judgezoo import Judge

View = Literal["clean", "attacked", "undefended"]
JUDGE_BATCH = 256  # completions per call of a judge

JudgeFactory = Callable[[Meter], "Judge"]
"""Makes the judge for one pass; a judge with a local model charges the meter it is given."""


@dataclass(frozen=True)
class Judged:
    """What a judging pass did: completions scored now, of them unscored, and how it ended."""

    status: Literal["judged", "already judged", "held elsewhere"]
    num_scored: int = 0
    num_unscored: int = 0


def judge_rows(
    judge: Judge, rows: Sequence[tuple[Mapping[str, Any], Mapping[str, Any], int]], view: View
) -> dict[str, list[Any]]:
    """Score completions, given as (behavior, step, completion index).

    Args:
        judge: a judgezoo judge.
        rows: behavior and step as stored, and which completion of the step.
        view: whether the judge reads the original prompt or the one that was sent; `undefended`
            reads the original prompt with what the bare model said.

    Returns:
        One list per key of the judge, aligned with `rows`; rows whose completion failed have only
        an `error`.
    """
    usable, conversations, contexts = [], [], []
    failed: dict[int, str] = {}
    for i, (behavior, step, k) in enumerate(rows):
        said, why = _said(step, k, view)
        if said is None:
            failed[i] = f"completion:{why}"
            continue
        asked = behavior["conversation"]
        if view == "attacked" and step.get("model_input"):
            asked = step["model_input"][:-1] if step.get("prefill") else step["model_input"]
        prefill = step.get("prefill", "") if step.get("prefill_judged") else ""
        answer = prefill + said
        usable.append(i)
        conversations.append([*asked, {"role": "assistant", "content": answer}])
        contexts.append(_facts(behavior))
    columns = judge(conversations, contexts)
    out: dict[str, list[Any]] = {key: [None] * len(rows) for key in columns}
    for key, values in columns.items():
        for i, value in zip(usable, values, strict=True):
            out[key][i] = value
    for i, code in failed.items():
        out["error"][i] = code
    return out


def _said(step: Mapping[str, Any], k: int, view: View) -> tuple[str | None, str]:
    """The text to judge, or why there is none."""
    facts = (step.get("completions") or [{}] * (k + 1))[k]
    if view == "undefended":
        return facts.get("undefended"), facts.get("error") or "undefended_unknown"
    if facts.get("error"):
        return None, facts["error"]
    return step["model_completions"][k], ""


def _facts(behavior: Mapping[str, Any]) -> dict[str, Any]:
    names = ("goal", "target", "reference", "category", "context")
    return {name: behavior[name] for name in names if behavior.get(name) is not None}


def judge_run(
    store: Store, run_id: str, make_judge: JudgeFactory, *, view: View = "clean"
) -> Judged:
    """Score the completions of one published run that this judge has not scored yet.

    Where the model was defended, what it would have said without is scored as well, apart.

    Args:
        store: where the run is.
        run_id: which run.
        make_judge: makes the judge.
        view: what the judge reads as the request.
    """
    found = _judge_view(store, run_id, make_judge, view)
    if view != "clean" or not store.header(run_id).get("config", {}).get("defense"):
        return found
    raw = _judge_view(store, run_id, make_judge, "undefended")
    if raw.status != "judged":
        return found
    counts = (found.num_scored + raw.num_scored, found.num_unscored + raw.num_unscored)
    return Judged("judged", *counts)


def _judge_view(store: Store, run_id: str, make_judge: JudgeFactory, view: View) -> Judged:
    meter = Meter()
    judge = make_judge(meter)
    judge_id = judge_id_of(judge, view)
    claim = store.claim(
        run_id, {"judge": judge.fingerprint()}, task=f"judge.{judge_id}", retry=True
    )
    if isinstance(claim, str):
        return Judged("held elsewhere")
    with claim:
        document = store.read(run_id)
        parts = store.scores(run_id, judge_id)
        done = _already(parts)
        wanted = [
            (i, j, k)
            for i, run in enumerate(document["runs"])
            for j, step in enumerate(run["steps"])
            for k in range(len(step.get("model_completions", ())))
            if k >= done.get((i, j), 0)
        ]
        if not wanted:
            claim.finish()
            return Judged("already judged")
        columns = _score(judge, document, wanted, view, meter, claim.heartbeat)
        header = {
            "judge": judge.info.name if view == "clean" else f"{judge.info.name}@{view}",
            "score_key": judge.info.score_key,
            "semantics": judge.info.semantics,
            "threshold": judge.info.threshold,
            "view": view,
            "fingerprint": judge.fingerprint(),
            "ledgers": meter.take().to_dict(),
        }
        store.write_scores(run_id, judge_id, _rows(wanted, columns), header, after=len(parts))
        claim.finish()
    unscored = sum(value is None for value in columns[judge.info.score_key])
    return Judged("judged", len(wanted), unscored)


def judge_id_of(judge: Judge, view: View = "clean") -> str:
    """What the scores of a judge are stored under."""
    return f"{judge.info.name}-{judge.fingerprint_id()}" + ("" if view == "clean" else f"-{view}")


def settled(store: Store, run_id: str, judge_id: str) -> bool:
    """Whether a judge has scored every completion of a run.

    A run without later completions is not read, so that thousands of finished runs cost little.
    """
    if not store.has_scores(run_id, judge_id):
        return False
    if not store.top_ups(run_id):
        return True
    done = _already(store.scores(run_id, judge_id))
    return all(
        len(step.get("model_completions", ())) <= done.get((i, j), 0)
        for i, run in enumerate(store.read(run_id)["runs"])
        for j, step in enumerate(run["steps"])
    )


def _score(
    judge: Judge,
    document: Mapping[str, Any],
    wanted: Sequence[tuple[int, int, int]],
    view: View,
    meter: Meter,
    heartbeat: Callable[[], None],
) -> dict[str, list[Any]]:
    columns: dict[str, list[Any]] = {}
    for start in range(0, len(wanted), JUDGE_BATCH):
        heartbeat()
        batch = [
            (document["runs"][i]["behavior"], document["runs"][i]["steps"][j], k)
            for i, j, k in wanted[start : start + JUDGE_BATCH]
        ]
        with meter.phase("judging"):
            part = judge_rows(judge, batch, view)
        for key, values in part.items():
            columns.setdefault(key, []).extend(values)
    return columns


def _already(parts: Sequence[Any]) -> dict[tuple[int, int], int]:
    """How many completions of each (run, step) earlier passes scored."""
    done: dict[tuple[int, int], int] = {}
    for part in parts:
        for row in part.rows:
            end = row.get("start", 0) + max((len(v) for v in row["scores"].values()), default=0)
            key = (row["run"], row["step"])
            done[key] = max(done.get(key, 0), end)
    return done


def _rows(
    wanted: Sequence[tuple[int, int, int]], columns: Mapping[str, list[Any]]
) -> list[dict[str, Any]]:
    rows: dict[tuple[int, int], dict[str, Any]] = {}
    for n, (i, j, k) in enumerate(wanted):
        row = rows.setdefault((i, j), {"run": i, "step": j, "start": k, "scores": {}})
        for key, values in columns.items():
            row["scores"].setdefault(key, []).append(values[n])
    return list(rows.values())


class StepJudge:
    """A judge as a stopping rule: scores of the completions of one step."""

    def __init__(self, make_judge: JudgeFactory) -> None:
        """Keep how to make the judge; each run's meter gets its own."""
        self._make_judge = make_judge

    def verdicts(
        self, behavior: Behavior, step: StepRecord, meter: Meter
    ) -> Sequence[float | None]:
        """One score per completion, None where it could not be scored."""
        judge = self._make_judge(meter)
        stored = step.model_dump(mode="json")
        rows = [(behavior.to_dict(), stored, k) for k in range(len(step.model_completions))]
        scores: list[float | None] = judge_rows(judge, rows, "clean")[judge.info.score_key]
        return scores
