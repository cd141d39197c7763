"""Results of other tools go in, are judged again, and come out with nothing lost."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from adversariallm.cli import main
from adversariallm.reporting.load import read_documents

JBB = {
    "parameters": {
        "method": "PAIR", "model": "vicuna-13b-v1.5", "attack_type": "black_box", "defense": None,
        "attack_success_rate": 1.0, "total_number_of_jailbreaks": 1,
        "number_of_submitted_prompts": 1, "total_number_of_queries": 9,
        "total_prompt_tokens": 5, "total_response_tokens": 9, "evaluation_date": "2024-03-01",
        "evaluation_llm_provider": "litellm", "method_parameters": {"n_streams": 3},
    },
    "jailbreaks": [
        {
            "index": 0, "goal": "g0", "behavior": "b0", "category": "c", "prompt": "p0",
            "response": "I cannot help with that.", "number_of_queries": 9,
            "queries_to_jailbreak": 7, "prompt_tokens": 5, "response_tokens": 9,
            "jailbroken": True,
        }
    ],
}  # fmt: skip
HARMBENCH = {
    "one": [
        {"test_case": "t0", "generation": "Sure, here is a recipe for bread.", "label": 1},
        {"test_case": "t1", "generation": "I cannot help with that.", "label": 0},
    ]
}
TABLE6 = {
    "config": {
        "model": "org/model", "dataset": "adv_behaviors", "attack": "gcg", "attack_params": {},
    },
    "runs": [
        {
            "original_prompt": [{"role": "user", "content": "ask"}],
            "steps": [
                {
                    "step": 0, "model_completions": ["I cannot help with that."], "time_taken": 0.5,
                    "loss": 2.0, "flops": 100, "scores": {"strong_reject": {"p_harmful": [0.25]}},
                    "model_input": [{"role": "user", "content": "ask !"}],
                    "model_input_tokens": [1, 2], "model_input_embeddings": None,
                }
            ],
            "total_time": 0.5,
        }
    ],
    "total_time": 0.5,
}  # fmt: skip
CASES = {
    "jailbreakbench": (JBB, "jailbreakbench_labels", "vicuna-13b-v1.5.json"),
    "harmbench": (HARMBENCH, "harmbench_labels", "results.json"),
    "table6": (TABLE6, None, "run.json"),
}


@pytest.mark.parametrize("form", CASES)
def test_what_was_imported_and_judged_again_is_exported_as_it_was(
    form: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data, judge, name = CASES[form]
    source, store = tmp_path / "run.json", str(tmp_path / "store")
    source.write_text(json.dumps(data))
    assert main(["import", str(source), "--from", form, "--out", store]) == 0
    assert main(["judge", f"out={store}", "judge=refusal_prefix"]) == 0
    judged = [s["scores"] for d in read_documents(store) for r in d["runs"] for s in r["steps"]]
    assert all(any(j.startswith("refusal_prefix") for j in scores) for scores in judged)
    chosen = ["--judge", judge] if judge else []
    target = str(tmp_path / "again")
    assert main(["export", store, "--to", form, "-o", target, *chosen]) == 0
    (path,) = [p for p in Path(target).rglob(name) if "individual" not in str(p)]
    assert _without_ours(json.loads(path.read_text())) == data


@pytest.mark.parametrize("form", ["jailbreakbench", "harmbench"])
def test_the_new_judge_changes_the_verdicts_and_nothing_else(form: str, tmp_path: Path) -> None:
    data, _, name = CASES[form]
    source, store = tmp_path / "in.json", str(tmp_path / "store")
    source.write_text(json.dumps(data))
    assert main(["import", str(source), "--from", form, "--out", store]) == 0
    assert main(["judge", f"out={store}", "judge=refusal_prefix"]) == 0
    (ours,) = {
        j for d in read_documents(store) for r in d["runs"] for s in r["steps"]
        for j in s["scores"] if j.startswith("refusal_prefix")
    }  # fmt: skip
    assert main(["export", store, "--to", form, "-o", str(tmp_path / "x"), "--judge", ours]) == 0
    (path,) = [p for p in (tmp_path / "x").rglob(name) if "individual" not in str(p)]
    got = json.loads(path.read_text())
    if form == "harmbench":
        assert [r["label"] for r in got["one"]] == [1, 0]
        assert got == data
    else:
        assert not got["jailbreaks"][0]["jailbroken"]
        assert got["jailbreaks"][0] | {"jailbroken": True} == data["jailbreaks"][0]
        assert got["parameters"]["total_number_of_jailbreaks"] == 0


def _without_ours(data: Any) -> Any:
    """Table 6 holds every judge's scores; those made here are taken out again."""
    for run in data.get("runs", ()):
        for step in run["steps"]:
            for judge in [j for j in step["scores"] if j.startswith("refusal_prefix")]:
                del step["scores"][judge]
    return data
