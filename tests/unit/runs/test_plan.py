from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from dataclasses import replace
from importlib.metadata import EntryPoint
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from adversariallm.core import plugins
from adversariallm.core.config import FrozenConfig
from adversariallm.core.errors import ConfigError, DataError, NeedsError, UnknownNameError
from adversariallm.core.protocols import AttackInfo, DatasetInfo, DefenseInfo, Needs, Wanted
from adversariallm.core.types import Behavior, Conversation
from adversariallm.datasets import Dataset, DatasetConfig
from adversariallm.runs.origins import origins
from adversariallm.runs.plan import ModelFacts, Plan, Sources, plan
from adversariallm.runs.settings import read


class ToyConfig(FrozenConfig):
    num_steps: int = 100
    suffix: str = "x"


def toy_attack(name: str, **facts: Any) -> ModuleType:
    module = ModuleType(f"toy_{name}")
    module.INFO = AttackInfo(  # type: ignore[attr-defined]
        name=name, summary="", source="", reference_code=None,
        **{"needs": Needs.TEXT, "modality": "suffix", **facts},
    )  # fmt: skip
    module.Config = ToyConfig  # type: ignore[attr-defined]
    module.Attack = object  # type: ignore[attr-defined]
    module.__file__ = "/nowhere/toy.py"
    return module


def toy_defense(name: str, passes: Needs, wanted: Wanted | None = None) -> Any:
    module: Any = ModuleType(f"toy_{name}")
    module.INFO = DefenseInfo(name, "", "", passes=passes, rewrites=True)
    module.Config = type("Config", (ToyConfig,), {"wanted": lambda self: wanted or Wanted()})
    module.wrap = object
    return module


@pytest.fixture(autouse=True)
def toys(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    """Attacks that exist for these tests only."""
    modules = [
        toy_attack("toy", generation={"temperature": 1.0}),
        toy_attack("greedy_gradient", needs=Needs.GRADIENTS, target="required"),
        toy_attack("universal", fits="many"),
        toy_attack("chatty", helpers={"attacker": "writes the prompts"}),
        toy_attack("refined", helpers={"attacker": "writes", "scorer": "rates"}),
        toy_attack("rewarded", judge=True),
        toy_attack("soft", needs=Needs.EMBEDDINGS, modality="embedding"),
    ]
    for module in modules:
        module.__file__ = str(tmp_path / "toy.py")
        monkeypatch.setitem(sys.modules, module.__name__, module)
    shields = [
        toy_defense("shield", Needs.TEXT),
        toy_defense("steering", Needs.white_box(), Wanted(inside=Needs.HIDDEN)),
        toy_defense("helped", Needs.TEXT, Wanted(helpers={"defense": "rewrites prompts"})),
    ]
    for module in shields:
        monkeypatch.setitem(sys.modules, module.__name__, module)
    points = {
        "adversariallm.attacks": [
            EntryPoint(m.INFO.name, m.__name__, "adversariallm.attacks") for m in modules
        ],
        "adversariallm.defenses": [
            EntryPoint(m.INFO.name, m.__name__, "adversariallm.defenses") for m in shields
        ],
    }
    monkeypatch.setattr(plugins, "entry_points", lambda group: points.get(group, []))
    yield tmp_path


def items(count: int, *, target: str | None = "Sure") -> tuple[Behavior, ...]:
    return tuple(
        Behavior(id=f"b{i}", conversation=Conversation.user(f"ask {i}"), goal=f"ask {i}",
                 harmful=True, target=target)
        for i in range(count)
    )  # fmt: skip


def sources(
    count: int = 4,
    *,
    gives: Needs | None = None,
    target: str | None = "Sure",
    done: Any = (),
    uncounted: tuple[str, ...] = (),
) -> Sources:
    def data(name: str, options: Mapping[str, Any]) -> Dataset:
        info = DatasetInfo(name, "", "", "MIT", "harmfulness", True, count)
        rows = items(count, target=target)
        config = DatasetConfig(**options)
        if config.idx is not None:
            rows = tuple(rows[i] for i in config.idx)
        return Dataset(info, config, rows, {name: "0" * 64})

    return Sources(
        model=lambda name, options: ModelFacts(
            {"weights": name, **options},
            Needs.white_box() if gives is None else gives,
            counts_flops=name not in uncounted,
        ),
        dataset=data,
        judge=lambda name, options: f"fingerprint of {name}",
        asset=lambda name: "1" * 64,
        status=lambda run_id: "done" if run_id in done else "new",
    )


BASE = ["model=m", "dataset=starter_harmful", "attack=toy"]


def planned(*arguments: str, where: Sources | None = None) -> Plan:
    given = {a.partition("=")[0] for a in arguments}
    base = [a for a in BASE if a.partition("=")[0] not in given]
    return plan(read([*base, *arguments]), where or sources())


def absent(*names: str) -> Sources:
    """Nothing of these is in the cache, and no model may be asked for."""

    def asset(name: str) -> str:
        if name in names:
            raise DataError(f"asset {name!r} is not in CACHE; run: fetch {name}")
        return "1" * 64

    def model(name: str, options: Mapping[str, Any]) -> ModelFacts:
        raise AssertionError(f"{name} was looked at")

    return replace(sources(), asset=asset, model=model)


TRAIN, VAL = "refusal_direction/harmful_train", "refusal_direction/harmless_val"


def test_all_missing_texts_are_named_at_once_before_a_model_is_looked_at() -> None:
    where = absent(TRAIN, VAL, "human/harmbench")
    with pytest.raises(NeedsError) as caught:
        planned("attack=direct,gcg_refusal,human_jailbreaks", where=where)
    assert str(caught.value) == (
        f"3 texts by others are not at hand, the first because asset '{TRAIN}' is not in CACHE; "
        f"run: adversariallm assets fetch {TRAIN} {VAL} human/harmbench"
    )
    with pytest.raises(NeedsError, match=r"^asset 'human/harmbench' is not in CACHE; run: fetch"):
        planned("attack=human_jailbreaks", where=where)


def test_all_attacks_leave_out_those_whose_texts_are_missing() -> None:
    where = replace(absent(TRAIN, VAL), model=sources().model)
    found = planned("attack=all", where=where)
    assert "direct" in {run.task.spec.attack.name for run in found.todo}
    (skipped,) = [s for s in found.skipped if s.label == "gcg_refusal"]
    assert skipped.reason.startswith("2 texts by others are not at hand")


def test_words_that_say_where_a_run_is_made_are_not_kept_with_it() -> None:
    words = ("out=elsewhere", "launcher.workers=2", "retry=true", "store.ttl_s=60")
    (run, *_) = planned(*words).todo
    assert run.task.spec.overrides == tuple(BASE)
    (other, *_) = planned("attack=toy", "seed=3").todo
    assert "seed=3" in other.task.spec.overrides


def test_the_planned_id_is_the_id_of_the_specification() -> None:
    for run in planned("seed=0,1", "attack=toy,universal", "budget.queries=5").todo:
        assert run.run_id == run.task.spec.run_id


def test_one_run_per_behavior_or_one_for_all() -> None:
    assert [len(r.task.fit) for r in planned().todo] == [1, 1, 1, 1]
    assert [len(r.task.fit) for r in planned("attack=universal").todo] == [4]


def test_held_out_items_are_evaluated_beside_the_fit_set() -> None:
    fit = "datasets.starter_harmful.idx=range(0,2)"
    (run,) = planned("attack=universal", fit, "held_out=[1,3]").todo
    assert run.task.spec.fit.ids == ("b0", "b1")
    assert run.task.spec.evaluated.ids == ("b0", "b1", "b3")
    assert [b["id"] for b in run.task.evaluated] == ["b0", "b1", "b3"]
    assert run.run_id == run.task.spec.run_id
    (without,) = planned("attack=universal", fit).todo
    assert without.run_id != run.run_id
    with pytest.raises(NeedsError, match="held_out is for attacks that fit many"):
        planned("attack=toy", "held_out=[3]")


def test_sweeps_multiply_and_equal_runs_count_once() -> None:
    found = planned("attack=toy,universal", "seed=range(3)", "attacks.toy.num_steps=5,10")
    # toy: 4 behaviors x 3 seeds x 2; universal: 3 seeds, whatever toy's steps
    assert len(found.todo) == 24 + 3
    assert any("3 runs of the sweep are equal" in n for n in found.notes)


def test_idx_selects_items_instead_of_multiplying_runs() -> None:
    by_range = planned("attack=universal", "datasets.starter_harmful.idx=range(0,3)")
    assert [r.task.spec.fit.ids for r in by_range.todo] == [("b0", "b1", "b2")]
    by_comma = planned("datasets.starter_harmful.idx=0,2")
    assert [r.task.spec.fit.ids for r in by_comma.todo] == [("b0",), ("b2",)]


def test_selecting_an_item_differently_does_not_change_its_run() -> None:
    every = {r.run_id for r in planned().todo}
    assert planned("datasets.starter_harmful.idx=2").todo[0].run_id in every


def test_an_attacks_decoding_holds_where_the_user_sets_nothing() -> None:
    def decoding(*arguments: str) -> Any:
        return planned(*arguments).todo[0].task.spec.generation

    assert decoding().temperature == 1.0
    assert decoding("generation_config.temperature=0.5").temperature == 0.5
    assert decoding("generation_config={temperature:0.5,top_p:0.9}").top_p == 0.9
    assert decoding("attack=universal").temperature == 0.0


def test_amounts_do_not_change_the_run() -> None:
    plain = planned().todo
    more = planned("generation_config.num_return_sequences=8", "completions=best", "judge=none")
    assert [r.run_id for r in more.todo] == [r.run_id for r in plain]
    assert more.todo[0].task.spec.amounts.num_return_sequences == 8
    assert more.todo[0].task.spec.amounts.judges == ()
    assert plain[0].task.spec.amounts.judges == ("refusal_prefix",)


def test_what_is_stored_is_skipped_with_its_place() -> None:
    first = planned().todo[0].run_id
    again = planned("out=results", where=sources(done={first}))
    assert len(again.todo) == 3
    assert [s.reason for s in again.skipped] == [
        f"already done in results/runs/{first[:2]}/{first}"
    ]
    assert [r.run_id for r in again.done] == [first]


def test_unmet_needs_are_refused_with_reason_and_remedy() -> None:
    with pytest.raises(NeedsError, match="needs gradients, but model 'm' gives only text"):
        planned("attack=greedy_gradient", where=sources(gives=Needs.TEXT))
    with pytest.raises(NeedsError, match="helpers.attacker=MODEL"):
        planned("attack=chatty")
    with pytest.raises(NeedsError, match="give helpers.attacker=MODEL helpers.scorer=MODEL"):
        planned("attack=refined")
    with pytest.raises(NeedsError, match="reward=JUDGE"):
        planned("attack=rewarded")
    with pytest.raises(NeedsError, match="needs a target"):
        planned("attack=greedy_gradient", where=sources(target=None))
    with pytest.raises(NeedsError, match="one model per run"):
        planned("model=[a,b]")


def test_all_attacks_leaves_out_what_cannot_run(monkeypatch: pytest.MonkeyPatch) -> None:
    names = ["broken", "direct", "greedy_gradient", "toy", "universal"]
    monkeypatch.setattr(plugins.Registry, "names", lambda self: names)
    monkeypatch.setattr(plugins.Registry, "broken", lambda self: {"broken": "no library"})
    found = planned("attack=all", where=sources(gives=Needs.TEXT))
    assert {"toy", "universal", "direct"} == {r.task.spec.attack.name for r in found.todo}
    assert any("greedy_gradient" in s.reason for s in found.skipped)
    assert any(s.reason == "no library" for s in found.skipped)


def test_ensembles_and_helpers_are_part_of_the_run() -> None:
    spec = planned("attack=universal", "model=[a,b]").todo[0].task.spec
    assert [m.name for m in spec.models] == ["a", "b"]
    spec = (
        planned("attack=chatty", "helpers.attacker=h", "models.h.dtype=float32").todo[0].task.spec
    )
    assert spec.helpers["attacker"].identity == {"weights": "h", "dtype": "float32"}
    assert planned("helpers.attacker=h").todo[0].task.spec.helpers == {}


def test_a_gradient_attack_needs_a_defense_that_lets_gradients_through() -> None:
    attack = ("attack=greedy_gradient", "defense=shield")
    assert len(planned(*attack).todo) == 4  # unaware: the bare model is attacked
    with pytest.raises(NeedsError, match="defense 'shield' lets through only text"):
        planned(*attack, "knowledge=adaptive")
    with pytest.raises(NeedsError, match="knowledge=black_box gives only text"):
        planned(*attack, "knowledge=black_box")
    assert len(planned("defense=shield", "knowledge=black_box").todo) == 4


def test_defenses_and_what_is_known_of_them_are_part_of_the_run() -> None:
    def ids(*arguments: str) -> set[str]:
        return {r.run_id for r in planned(*arguments).todo}

    bare = ids()
    assert ids("defense=none") == bare == ids("knowledge=adaptive")
    assert len(ids("defense=none,shield")) == 8
    assert not bare & ids("defense=shield")
    assert not ids("defense=shield") & ids("defense=shield", "knowledge=adaptive")
    assert not ids("defense=shield") & ids("defense=shield", "defenses.shield.num_steps=7")
    stacked = planned("defense=[shield,system_prompt]").todo[0].task.spec.defense
    assert [d.name for d in stacked] == ["shield", "system_prompt"]


def test_a_stack_that_cannot_work_is_refused_before_anything_is_loaded() -> None:
    with pytest.raises(ConfigError, match="shield stands in it twice"):
        planned("defense=[shield,system_prompt,shield]")
    with pytest.raises(NeedsError, match="'steering' needs hidden, but what stands inside it"):
        planned("defense=[steering,shield]")
    assert len(planned("defense=[shield,steering]").todo) == 4


def test_embeddings_found_without_a_defense_do_not_go_through_one_that_reads_text() -> None:
    with pytest.raises(NeedsError, match="'soft' sends embeddings.*on text; choose an attack"):
        planned("attack=soft", "defense=shield")
    with pytest.raises(NeedsError, match="'soft' sends embeddings.*knowledge=adaptive"):
        planned("attack=soft", "defense=system_prompt")
    assert len(planned("attack=soft", "defense=system_prompt", "knowledge=adaptive").todo) == 4


def test_a_defense_names_the_helper_that_it_lacks() -> None:
    with pytest.raises(NeedsError, match=r"defense 'helped' needs a helper.*helpers\.defense"):
        planned("defense=helped")
    spec = planned("defense=helped", "helpers.defense=m").todo[0].task.spec
    assert set(spec.helpers) == {"defense"}


def test_judges_and_data_of_a_defense_are_part_of_the_run() -> None:
    [smooth] = planned("defense=smooth_llm").todo[0].task.spec.defense
    assert smooth.supplies == {"judges": {"refusal_prefix": "fingerprint of refusal_prefix"}}


def test_stopping_judges_are_part_of_the_run_by_their_fingerprint() -> None:
    spec = planned("stopping.judge=target_prefix", "stopping.threshold=0.7").todo[0].task.spec
    assert spec.stopping.judge_fingerprint == "fingerprint of target_prefix"
    assert spec.run_id not in {r.run_id for r in planned().todo}


def test_models_with_dots_and_slashes_take_options() -> None:
    where = "model=org/Some-3.1-8B", "models.org/Some-3.1-8B.dtype=bfloat16"
    assert planned(*where).todo[0].task.spec.models[0].options == {"dtype": "bfloat16"}


@pytest.mark.parametrize(
    ("argument", "part"),
    [
        ("attacks.toy.num_step=5", "Did you mean attacks.toy.num_steps?"),
        ("attacks.tov.num_steps=5", "Did you mean 'toy'"),
        ("attackk=toy", "Did you mean attack"),
        ("models.m.dtpe=float32", "Did you mean models.m.dtype"),
        ("helpers.atacker=m", "Did you mean helpers.attacker?"),
        ("judge=refusal_prefx", "refusal_prefix"),
        ("defense=no_such", "unknown defense 'no_such'"),
    ],
)
def test_unknown_names_come_with_the_nearest_ones(argument: str, part: str) -> None:
    with pytest.raises(UnknownNameError) as error:
        planned(argument)
    assert part in str(error.value)


@pytest.mark.parametrize(
    ("argument", "part"),
    [
        ("attacks.toy.num_steps=abc", "attacks.toy.num_steps='abc': Input should be a valid int"),
        ("attacks.toy.num_steps=1.5", "attacks.toy.num_steps=1.5"),
        ("attacks.toy.suffix=[1]", "attacks.toy.suffix=[1]"),
        ("generation_config.top_p=2", "generation_config.top_p=2"),
        ("budget.queries=0", "budget.queries=0: Input should be greater than or equal to 1"),
        ("completions=some", "'geometric'"),
        ("attacks.toy.num_steps.x=5", "is a value, it has no part 'x'"),
        ("model=none", "name at least one model"),
        ("attacks.toy=5", "write attacks.toy.NAME=VALUE"),
        ("preset=nothing", "no attack of this command has it"),
    ],
)
def test_wrong_values_name_path_value_and_what_is_allowed(argument: str, part: str) -> None:
    with pytest.raises(ConfigError) as error:
        planned(argument)
    assert part in str(error.value)


def test_a_key_given_twice_is_an_error() -> None:
    with pytest.raises(ConfigError, match="seed is given twice"):
        planned("seed=1", "seed=2")


def test_a_tilde_takes_a_setting_back() -> None:
    assert planned("budget.queries=5", "~budget.queries").todo[0].task.spec.budget.queries is None


def test_settings_without_effect_are_pointed_out() -> None:
    notes = planned("attacks.universal.num_steps=5").notes
    assert notes == ("attacks.universal.num_steps=5 has no effect: this command does not use "
                     "attacks.universal",)  # fmt: skip


def write_preset(folder: Path) -> None:
    (folder / "presets").mkdir()
    (folder / "presets" / "toy.yaml").write_text(
        "adversariallm: {source: the paper, options: {num_steps: 250}, "
        "generation_config: {temperature: 0.7}}\n"
    )


def test_presets_stand_between_defaults_and_arguments(toys: Path) -> None:
    write_preset(toys)
    spec = planned("preset=adversariallm").todo[0].task.spec
    assert spec.attack.options == {"num_steps": 250, "suffix": "x"}
    assert spec.generation.temperature == 0.7
    spec = planned("preset=adversariallm", "attacks.toy.num_steps=3").todo[0].task.spec
    assert spec.attack.options["num_steps"] == 3
    mixed = planned("preset=adversariallm", "attack=toy,universal")
    assert any("universal has no preset" in n for n in mixed.notes)


def test_a_part_of_an_option_is_typed_with_a_dot_and_leaves_the_presets_other_parts() -> None:
    key = "attacks.gcg_refusal.gcg"
    words = ("attack=gcg_refusal", "preset=adversariallm")
    spec = planned(*words, f"{key}.num_steps=5").todo[0].task.spec
    assert (spec.attack.options["gcg"]["num_steps"], spec.attack.options["num_train"]) == (5, 512)
    assert spec.attack.options["gcg"]["initial"].startswith("x x")
    as_dict = planned(*words, key + "={num_steps:5}").todo[0].task.spec
    assert as_dict.run_id == spec.run_id
    swept = planned("attack=gcg_refusal", f"{key}.num_steps=5,6").todo
    assert {r.task.spec.attack.options["gcg"]["num_steps"] for r in swept} == {5, 6}
    with pytest.raises(ConfigError, match=r"gcg\.num_steps is given twice"):
        planned(*words, f"{key}.num_steps=5", key + "={num_steps:6}")
    with pytest.raises(ConfigError, match=r"Did you mean attacks\.gcg_refusal\.gcg\.num_steps"):
        planned(*words, f"{key}.num_step=5")
    with pytest.raises(ConfigError, match=r"gcg has parts; write attacks\.gcg_refusal\.gcg\.NAME="):
        planned(*words, f"{key}=5")
    with pytest.raises(ConfigError, match=r"attacks\.gcg_refusal\.gcg\.topk=0: .*greater"):
        planned(*words, f"{key}.topk=0")


def test_the_origin_of_a_part_of_an_option_is_told() -> None:
    key = "attacks.gcg_refusal.gcg"
    request = read([*BASE, "preset=adversariallm", f"{key}.num_steps=5"])
    by_key = {o.key.removeprefix(f"{key}."): o for o in origins(request, key)}
    assert by_key["num_steps"].source == f"the argument '{key}.num_steps=5'"
    assert "preset 'adversariallm'" in by_key["initial"].source
    assert by_key["initial"].value.startswith("x x")
    assert "attacks/gcg.py:" in by_key["buffer_size"].source and by_key["buffer_size"].value == 0


def test_the_origin_of_a_value_is_told(toys: Path) -> None:
    write_preset(toys)
    request = read([*BASE, "preset=adversariallm", "attacks.toy.suffix=y"])
    by_key = {o.key: o for o in origins(request, "attacks.toy")}
    assert by_key["attacks.toy.suffix"].source == "the argument 'attacks.toy.suffix=y'"
    assert "preset 'adversariallm'" in by_key["attacks.toy.num_steps"].source
    temperature = origins(read(BASE), "generation_config.temperature")[0]
    assert (temperature.value, temperature.attack) == (1.0, "toy")
    assert "INFO.generation" in temperature.source
    seed = origins(request, "seed")[0]
    assert seed.value == 0
    assert "runs/settings.py:" in seed.source


def test_runs_that_need_the_same_things_stand_together() -> None:
    found = planned("seed=0,1", "model=a,b", "attack=toy,universal")
    assert len(found.groups()) == 2
    names = [r.task.spec.models[0].name for r in found.todo]
    assert names == sorted(names)


def test_every_run_of_a_large_sweep_has_its_own_id() -> None:
    found = planned("seed=range(20)", where=sources(100))
    assert len({r.run_id for r in found.todo}) == len(found.todo) == 2000


@pytest.mark.parametrize(
    ("words", "uncounted", "said"),
    [
        (["budget.flops=1e12"], ("m",), "budget.flops cannot be held: 'm' (model)"),
        (["budget.model.flops=1e12"], ("m",), "budget.model.flops cannot be held"),
        (
            ["budget.flops=1e12", "attack=chatty", "helpers.attacker=h"],
            ("h",),
            "budget.flops cannot be held: 'h' (attacker)",
        ),
        (["budget.flops=1e12"], (), None),
        (["budget.queries=9"], ("m",), None),
        (["budget.model.flops=1e12", "attack=chatty", "helpers.attacker=h"], ("h",), None),
    ],
)
def test_a_limit_on_flops_that_nobody_counts_is_refused(
    words: list[str], uncounted: tuple[str, ...], said: str | None
) -> None:
    where = sources(uncounted=uncounted)
    if said is None:
        assert planned(*words, where=where).todo
        return
    with pytest.raises(NeedsError) as refused:
        planned(*words, where=where)
    assert said in str(refused.value) and "budget.queries" in str(refused.value)
