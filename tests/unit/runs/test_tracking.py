"""Hooks are told of runs in order; a hook that fails costs nothing; real trackers where installed.

The tests with Weights & Biases (offline) and MLflow (a folder) are skipped without the packages.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from adversariallm.core.errors import ConfigError
from adversariallm.runs import campaign
from adversariallm.runs.tracking import MlflowHook, WandbHook, make_hooks
from adversariallm.runs.worker import Workshop


class Recording:
    """Remembers what it is told."""

    def __init__(self, fails: str = "") -> None:
        self.told: list[tuple[Any, ...]] = []
        self._fails = fails

    def on_run_start(self, run_id: str, label: str, config: Mapping[str, Any]) -> None:
        self._tell("start", run_id, config["attack.name"], config["seed"])

    def on_step(self, run_id: str, step: int, values: Mapping[str, float]) -> None:
        self._tell("step", run_id, step, "loss" in values)

    def on_run_end(self, run_id: str, ending: str, summary: Mapping[str, float]) -> None:
        self._tell("end", run_id, ending, summary["queries"])

    def _tell(self, *what: Any) -> None:
        self.told.append(what)
        if what[0] == self._fails:
            raise ConnectionError("nobody listens")


@pytest.fixture
def words(search: tuple[str, ...], tmp_path: Path) -> tuple[str, ...]:
    return (*search, "attacks.random_search.num_steps=1", f"out={tmp_path / 'out'}")


def test_a_hook_is_told_of_start_steps_and_end(words: tuple[str, ...], workshop: Workshop) -> None:
    hook = Recording()
    finished = campaign.run(*words, workshop=workshop, hooks=[hook])
    assert len(finished.run_ids) == 2
    for run_id in finished.run_ids:
        told = [(kind, *rest) for kind, run, *rest in hook.told if run == run_id]
        assert told[0] == ("start", "random_search", 0)
        assert told[1:-1] == [("step", 0, True), ("step", 1, True)]
        assert told[-1][:2] == ("end", "done")
        assert told[-1][2] > 0
    again = Recording()
    campaign.run(*words, workshop=workshop, hooks=[again])
    assert again.told == []


@pytest.mark.parametrize("call", ["start", "step", "end"])
def test_a_hook_that_fails_is_dropped_and_costs_no_run(
    words: tuple[str, ...], workshop: Workshop, call: str, caplog: pytest.LogCaptureFixture
) -> None:
    bad, good = Recording(fails=call), Recording()
    finished = campaign.run(*words, workshop=workshop, hooks=[bad, good])
    assert finished.exit_code == 0
    assert [t[0] for t in bad.told].count(call) == 1
    assert [t[0] for t in good.told].count("end") == 2
    assert "tracking ends: Recording failed" in caplog.text


def test_a_tracker_that_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("wandb", "mlflow"):
        monkeypatch.setitem(sys.modules, name, None)
        with pytest.raises(ConfigError, match=rf"pip install 'adversariallm\[{name}\]'"):
            make_hooks([name])


def test_an_unknown_tracker_is_a_bad_configuration(words: tuple[str, ...]) -> None:
    with pytest.raises(ConfigError, match="tracking"):
        campaign.run(*words, "tracking=tensorbard")


@pytest.mark.filterwarnings("ignore")
def test_mlflow_gets_parameters_metrics_and_status(
    words: tuple[str, ...], workshop: Workshop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mlflow = pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", (tmp_path / "mlruns").as_uri())
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    finished = campaign.run(*words, "tracking=mlflow", workshop=workshop)
    client = mlflow.MlflowClient((tmp_path / "mlruns").as_uri())
    experiment = client.get_experiment_by_name("adversariallm")
    found = client.search_runs([experiment.experiment_id])
    by_id = {run.data.tags["adversariallm.run_id"]: run for run in found}
    assert set(by_id) == set(finished.run_ids)
    for run_id, run in by_id.items():
        assert run.info.status == "FINISHED"
        assert run.data.params["attack.name"] == "random_search"
        stored = finished.store.read(run_id)["runs"][0]["steps"]
        history = client.get_metric_history(run.info.run_id, "loss")
        assert [m.value for m in history] == pytest.approx([s["loss"] for s in stored])
    hook = MlflowHook()  # a run that goes on finds its earlier part
    run_id = finished.run_ids[0]
    hook.on_run_start(run_id, "again", {})
    hook.on_step(run_id, 2, {"loss": 0.5})
    hook.on_run_end(run_id, "failed", {})
    assert len(client.search_runs([experiment.experiment_id])) == 2
    assert client.get_run(by_id[run_id].info.run_id).info.status == "FAILED"


@pytest.mark.filterwarnings("ignore")
def test_weights_and_biases_offline(
    words: tuple[str, ...], workshop: Workshop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("wandb")
    for name, value in {"MODE": "offline", "DIR": str(tmp_path), "SILENT": "true"}.items():
        monkeypatch.setenv(f"WANDB_{name}", value)
    finished = campaign.run(*words, "tracking=wandb", workshop=workshop)
    logs = {
        path.stem.removeprefix("run-") for path in tmp_path.glob("wandb/offline-run-*/run-*.wandb")
    }
    assert logs == set(finished.run_ids)
    assert all(p.stat().st_size > 0 for p in tmp_path.glob("wandb/offline-run-*/run-*.wandb"))
    hook = WandbHook()
    hook.on_run_start("b" * 32, "two at once", {"seed": 1})
    hook.on_run_start("c" * 32, "two at once", {"seed": 2})
    for run_id, value in (("b" * 32, 1.0), ("c" * 32, 2.0)):
        hook.on_step(run_id, 0, {"loss": value})
        hook.on_run_end(run_id, "done", {"queries": 3})
    assert len(list(tmp_path.glob("wandb/offline-run-*/run-*.wandb"))) == 4
