"""A real prompter from a folder: loaded once, before any clock runs, and never moved."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from adversariallm.core.budget import Ledgers, Meter
from adversariallm.models import loading as model_loading
from adversariallm.runs import campaign
from adversariallm.runs.store import Store
from adversariallm.runs.worker import Workshop

from .conftest import loading


class Watch:
    """What happens to models, in order: `load`, `meter` for each run that starts, `move`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.events: list[str] = []
        self.loaded: dict[str, Any] = {}
        self.places: dict[str, list[int]] = {}
        self._inside = False
        load, start = model_loading.load_model, Meter.__init__
        apply: Any = torch.nn.Module._apply

        def loads(name: str, **options: Any) -> Any:
            self._inside = True
            model = load(name, **options)
            self._inside = False
            self.events.append("load")
            self.loaded[name], self.places[name] = model, self.where(model)
            return model

        def starts(meter: Meter, *args: Any, **options: Any) -> None:
            self.events.append("meter")
            start(meter, *args, **options)

        def applies(module: torch.nn.Module, *args: Any, **options: Any) -> Any:
            if not self._inside:
                self.events.append("move")
            return apply(module, *args, **options)

        monkeypatch.setattr(model_loading, "load_model", loads)
        monkeypatch.setattr(Meter, "__init__", starts)
        monkeypatch.setattr(torch.nn.Module, "_apply", applies)

    @staticmethod
    def where(model: Any) -> list[int]:
        """Addresses of the weights: another device, or a copy, has others."""
        return [p.data_ptr() for p in model.engine.forward.model.parameters()]


def test_it_is_loaded_once_for_all_behaviors_before_the_clock_and_never_moved(
    models: tuple[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    attacked, prompter = models
    watch = Watch(monkeypatch)
    result = campaign.run(
        *loading(attacked),
        *loading(prompter)[1:],
        f"helpers.prompter={prompter}",
        "dataset=starter_harmful",
        "datasets.starter_harmful.idx=[0,1]",
        "generation_config.max_new_tokens=4",
        "attack=ample_gcg",
        "attacks.ample_gcg.num_suffixes=3",
        "attacks.ample_gcg.num_tokens=2",
        f"out={tmp_path / 'out'}",
        workshop=Workshop(),
    )
    assert result.exit_code == 0
    assert sorted(watch.loaded) == sorted(models)
    assert watch.events[:2] == ["load", "load"]
    assert watch.events.count("load") == 2 and "move" not in watch.events
    assert watch.events.count("meter") >= 2
    for name, model in watch.loaded.items():
        assert watch.where(model) == watch.places[name]
    store = Store(tmp_path / "out")
    spent = [Ledgers.from_dict(store.header(i)["ledgers"]) for i in store.runs()]
    assert [s.total("optimization", role="prompter").queries for s in spent] == [3, 3]
