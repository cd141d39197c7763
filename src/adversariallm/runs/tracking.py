"""Optional tracking: what happens in runs is told to hooks, such as Weights & Biases or MLflow.

A hook sees numbers and configuration, never prompts or answers, and nothing depends on it: one that
fails is dropped with a warning. Results are in the store alone.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from adversariallm.core.budget import Ledgers
from adversariallm.core.errors import ConfigError
from adversariallm.evaluation.facts import flatten

if TYPE_CHECKING:
    from adversariallm.runs.execute import Event
    from adversariallm.runs.spec import RunTask
    from adversariallm.runs.store import Store
    from adversariallm.runs.worker import Outcome

Scalars = Mapping[str, float]
PROJECT = "adversariallm"
_TAG = "adversariallm.run_id"
_GOOD = ("done", "already done")
_log = logging.getLogger(__name__)


class Hook(Protocol):
    """Something that wants to know. Calls for different runs may come from different threads."""

    def on_run_start(self, run_id: str, label: str, config: Mapping[str, Any]) -> None:
        """A run begins, or goes on where it was stopped.

        Args:
            run_id: its id, equal whenever the run goes on.
            label: a short text.
            config: its semantic configuration as dotted keys.
        """

    def on_step(self, run_id: str, step: int, values: Scalars) -> None:
        """A step is finished, with its loss and what the attack logged."""

    def on_run_end(self, run_id: str, ending: str, summary: Scalars) -> None:
        """A run has ended: `done`, `failed`, `lost`, with the number of steps and its cost."""


class Tracking:
    """Tells hooks of the runs of one process."""

    def __init__(self, store: Store, hooks: Sequence[Hook]) -> None:
        """Tell these hooks of runs that end up in this store."""
        self._store = store
        self._hooks = list(hooks)
        self._started: set[str] = set()
        self._lock = threading.Lock()

    def event(self, task: RunTask, event: Event) -> None:
        """Hand on a step; the first news of a run is its start."""
        if not self._hooks:
            return
        run_id = task.spec.run_id
        with self._lock:
            new = run_id not in self._started
            self._started.add(run_id)
        if new:
            config = flatten(task.spec.semantic())
            self._tell("on_run_start", run_id, task.spec.label, config)
        if event.kind == "step":
            self._tell("on_step", run_id, event.step, scalars(event.values))

    def outcome(self, outcome: Outcome) -> None:
        """Hand on how a run ended, where its start was told."""
        with self._lock:
            known = outcome.run_id in self._started
            self._started.discard(outcome.run_id)
        if known:
            summary = self._summary(outcome.run_id) if outcome.ending in _GOOD else {}
            self._tell("on_run_end", outcome.run_id, outcome.ending, summary)

    def _summary(self, run_id: str) -> Scalars:
        header = self._store.header(run_id)
        used = Ledgers.from_dict(header.get("ledgers", {})).total().to_dict()
        return {**scalars(used), "total_time": float(header.get("total_time", 0.0))}

    def _tell(self, call: str, *arguments: Any) -> None:
        for hook in list(self._hooks):
            try:
                getattr(hook, call)(*arguments)
            except Exception:  # a tracker that is down must not cost a run  # noqa: BLE001
                _log.exception("tracking ends: %s failed in %s", type(hook).__name__, call)
                self._hooks.remove(hook)


def make_hooks(names: Sequence[str]) -> list[Hook]:
    """The hooks of these names.

    Raises:
        ConfigError: their package is not installed.
    """
    known: dict[str, Callable[[], Hook]] = {"wandb": WandbHook, "mlflow": MlflowHook}
    hooks = []
    for name in names:
        try:
            hooks.append(known[name]())
        except ImportError:
            raise ConfigError(
                f"tracking={name} needs the package {name}: pip install 'adversariallm[{name}]'"
            ) from None
    return hooks


class WandbHook:
    """Weights & Biases: one run of the project per run, set up by the WANDB_* variables."""

    def __init__(self) -> None:
        """Import the package; it connects when a run begins."""
        import wandb

        self._wandb: Any = wandb
        self._runs: dict[str, Any] = {}

    def on_run_start(self, run_id: str, label: str, config: Mapping[str, Any]) -> None:
        """Begin a run, or go on with the one of that id."""
        import os

        self._runs[run_id] = self._wandb.init(
            project=os.environ.get("WANDB_PROJECT", PROJECT),
            id=run_id,
            name=label,
            config=dict(config),
            resume="allow",
            reinit="create_new",
        )

    def on_step(self, run_id: str, step: int, values: Scalars) -> None:
        """Log the step's scalars."""
        self._runs[run_id].log(dict(values), step=step)

    def on_run_end(self, run_id: str, ending: str, summary: Scalars) -> None:
        """Write the summary and close the run."""
        run = self._runs.pop(run_id)
        run.summary.update({**summary, "ending": ending})
        run.finish(exit_code=int(ending not in _GOOD))


class MlflowHook:
    """MLflow: one run of the experiment per run, at MLFLOW_TRACKING_URI."""

    def __init__(self) -> None:
        """Import the package; it connects when a run begins."""
        import mlflow

        self._client: Any = mlflow.MlflowClient()
        self._runs: dict[str, str] = {}
        self._lock = threading.Lock()
        self._experiment: str | None = None

    def _experiment_id(self) -> str:
        import os

        with self._lock:
            if self._experiment is None:
                name = os.environ.get("MLFLOW_EXPERIMENT_NAME", PROJECT)
                found = self._client.get_experiment_by_name(name)
                known = None if found is None else str(found.experiment_id)
                self._experiment = known or str(self._client.create_experiment(name))
            return self._experiment

    def on_run_start(self, run_id: str, label: str, config: Mapping[str, Any]) -> None:
        """Begin a run, or go on with the one that has this id as its tag."""
        experiment = self._experiment_id()
        found = self._client.search_runs([experiment], filter_string=f"tags.`{_TAG}` = '{run_id}'")
        if found:
            self._runs[run_id] = found[0].info.run_id
            self._client.update_run(self._runs[run_id], status="RUNNING")
            return
        made = self._client.create_run(experiment, tags={_TAG: run_id}, run_name=label)
        self._runs[run_id] = made.info.run_id
        for key, value in config.items():
            self._client.log_param(made.info.run_id, _mlflow_key(key), str(value)[:500])

    def on_step(self, run_id: str, step: int, values: Scalars) -> None:
        """Log the step's scalars."""
        for key, value in values.items():
            self._client.log_metric(self._runs[run_id], _mlflow_key(key), value, step=step)

    def on_run_end(self, run_id: str, ending: str, summary: Scalars) -> None:
        """Write the summary and close the run."""
        inner = self._runs.pop(run_id)
        for key, value in summary.items():
            self._client.log_metric(inner, _mlflow_key(key), value)
        self._client.set_tag(inner, "ending", ending)
        status = {"failed": "FAILED", "lost": "KILLED"}.get(ending, "FINISHED")
        self._client.set_terminated(inner, status=status)


def _mlflow_key(key: str) -> str:
    """A name that MLflow takes."""
    return "".join(c if c.isalnum() or c in "_-. /" else "_" for c in key)[:250]


def scalars(values: Mapping[str, Any]) -> dict[str, float]:
    """The numbers among the values."""
    return {
        key: float(value)
        for key, value in values.items()
        if isinstance(value, (int, float)) and not isinstance(value, bool)
    }
