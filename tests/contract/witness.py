"""Settings under which an option shows its effect, where the quick run is too small for it.

An option that no run on the tiny model can show names the test that shows it elsewhere.
"""

from __future__ import annotations

from typing import Any

NEEDS: dict[tuple[str, str], dict[str, Any]] = {
    ("gcg", "objective_scale"): {"objective": "mellowmax"},
    ("gcg", "buffer_size"): {"buffer_size": 2, "num_steps": 5, "search_width": 4},
    ("gcg", "exclude_current"): {"topk": 1, "search_width": 24, "num_steps": 6},
    ("gcg_reinforce", "exploit_above"): {"exploit_above": 0.5, "num_steps": 3},
    ("bon", "ascii_perturbation"): {"sigma": 0.95},
    ("bon", "reference_seed"): {"augmentation": "reference"},
    ("autodan", "num_points"): {"crossover": 1.0, "num_points": 1, "num_steps": 4},
    ("autodan", "patience"): {"patience": 1, "num_steps": 8, "crossover": 0.0, "mutation": 0.0},
    ("autodan", "paragraph_every"): {"variant": "hga", "paragraph_every": 1},
    ("autodan", "num_words"): {"variant": "hga", "num_words": 1, "mutation": 0.0},
    ("pgd", "epsilon"): {"projection": "l2", "epsilon": 0.02},
    ("pgd", "norm_over"): {"projection": "l2", "epsilon": 0.02},
    ("pgd", "restart_epsilon"): {"restart_every": 2},
    ("pgd", "allow_non_ascii"): {"space": "one_hot", "optimizer": "normalized"},
    ("pgd_discrete", "constant_steps"): {"constant_steps": 1},
    ("pgd_discrete", "cycle_steps"): {"constant_steps": 0, "cycle_steps": 2},
    ("pgd_discrete", "patience"): {"patience": 1, "learning_rate": 1e-6},
    ("crescendo", "stop_on_success"): {"success_threshold": 0.5},
    ("crescendo", "max_backtracks"): {"max_turns": 4},
    ("crescendo", "meta_scorer"): {"success_threshold": 0.5},
    ("tap", "depth"): {"stop_on_success": False},
    ("tap", "stop_on_success"): {"cutoff": 8},
    ("pair", "num_iterations"): {"stop_on_success": False},
    ("pair", "stop_on_success"): {"cutoff": 8},
    ("pair", "keep_last"): {"num_iterations": 3},
    ("beast", "allow_non_ascii"): {"temperature": 4.0, "k1": 8, "k2": 8},
}

DIRECTIONS = (
    "tests/unit/models/test_directions.py::test_the_choice_and_its_measures_equal_the_plain_search"
)
LIMITS = (
    "tests/unit/models/test_directions.py::"
    "test_the_error_names_the_limit_that_admits_a_direction_and_that_limit_does"
)
SHOWN_ELSEWHERE = {
    ("actor", "attempts"): "tests/unit/attacks/test_actor.py::test_failed_stages_send_nothing",
    ("actor", "unknown"): "tests/unit/attacks/test_actor.py::test_an_unclear_verdict",
    ("actor", "still_refused"): "tests/unit/attacks/test_actor.py::test_a_declined_replacement",
    ("actor", "stop_on_success"): "tests/unit/attacks/test_actor.py::test_success_ends_the_run",
    ("autodan", "mutation_tokens"): (
        "tests/unit/attacks/test_autodan.py::test_a_paraphrase_that_was_cut_off_keeps_its_parent"
    ),
    # the contract model's direction is made up, so nothing that finds one can matter
    (
        "gcg_refusal",
        "num_train",
    ): DIRECTIONS,
    (
        "gcg_refusal",
        "num_validation",
    ): DIRECTIONS,
    (
        "gcg_refusal",
        "refusal_tokens",
    ): DIRECTIONS,
    ("gcg_refusal", "max_divergence"): LIMITS,
    ("gcg_refusal", "min_induced"): LIMITS,
    (
        "crescendo",
        "attempts",
    ): "tests/unit/attacks/test_crescendo.py::test_an_attacker_that_cannot_be_read_ends_the_trial",
    ("tap", "attempts"): "tests/unit/attacks/test_tap.py::test_failures_drop_a_child_only",
    ("tap", "scorer_attempts"): "tests/unit/attacks/test_tap.py::test_failures_drop_a_child_only",
    (
        "tap",
        "keep_last",
    ): "tests/unit/attacks/test_tap.py::test_a_leaf_is_rewritten_from_its_own_past",
    ("pair", "attempts"): "tests/unit/attacks/test_pair.py::test_replies_are_asked_for_again",
    (
        "pair",
        "scorer_attempts",
    ): "tests/unit/attacks/test_pair.py::test_replies_are_asked_for_again",
    (
        "pair",
        "open_json",
    ): (
        "tests/unit/attacks/test_pair.py::test_the_attackers_json_is_begun_where_nothing_else_holds_it"
    ),
    ("pair", "paper_exact_scorer"): "tests/unit/attacks/test_pair.py::test_a_forged_verdict",
    # they take a helper, which only runs that ask for it have
    (
        "pgd",
        "tie_logits",
    ): "tests/unit/attacks/test_ties.py::test_a_strong_tie_keeps_the_models_closer",
    (
        "pgd",
        "tie_features",
    ): "tests/unit/attacks/test_ties.py::test_a_strong_tie_keeps_the_models_closer",
    (
        "pgd",
        "tie_benign",
    ): "tests/unit/attacks/test_ties.py::test_a_strong_tie_keeps_the_models_closer",
    ("pgd", "benign"): "tests/unit/attacks/test_ties.py::test_the_harmless_request_matters",
    ("gcg", "early_stop"): "tests/unit/attacks/test_gcg.py::test_early_stop",
}
