"""The losses that may guide a search, by name; the functions themselves are in `inference.losses`.

Attack files may not import `inference`; this is their way to it.
"""

from __future__ import annotations

from typing import Literal

from torch import Tensor

from adversariallm.core.protocols import Objective
from adversariallm.inference import losses
from adversariallm.inference.losses import token_weighted

ObjectiveName = Literal[
    "ce",
    "cw",
    "mellowmax",
    "entropy_first",
    "entropy_all",
    "entropy_adaptive",
    "entropy_allowed",
    "max_logit",
    "max_probability",
    "kl_uniform_model",
    "kl_model_uniform",
]

__all__ = ["ObjectiveName", "make_objective", "token_weighted"]


def make_objective(name: ObjectiveName, scale: float, allowed: Tensor) -> Objective | None:
    """The objective of that name; None stands for the mean target cross-entropy.

    Args:
        name: which one.
        scale: alpha of mellowmax.
        allowed: `[V]` bool, the ids that the label-free losses are about.
    """
    made: dict[str, Objective | None] = {
        "ce": None,
        "cw": losses.carlini_wagner(),
        "mellowmax": losses.mellowmax(scale),
        "entropy_first": losses.entropy_first,
        "entropy_all": losses.entropy_all,
        "entropy_adaptive": losses.entropy_adaptive,
        "entropy_allowed": losses.entropy_allowed(allowed),
        "max_logit": losses.max_logit,
        "max_probability": losses.max_probability,
        "kl_uniform_model": losses.kl_uniform_model(allowed),
        "kl_model_uniform": losses.kl_model_uniform(allowed),
    }
    return made[name]
