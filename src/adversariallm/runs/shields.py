"""Defenses of a run: what they need while planning, and the defended model when it is carried out.

A stack is a list that a question meets in order: the first one stands outermost.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from adversariallm.core.budget import Meter, Usage
from adversariallm.core.config import FrozenConfig
from adversariallm.core.errors import ConfigError, NeedsError
from adversariallm.core.plugins import DEFENSES
from adversariallm.core.protocols import (
    AttackInfo,
    ChatModel,
    DefenseInfo,
    Needs,
    SafetyJudge,
    Supplies,
    Verdict,
    Wanted,
)
from adversariallm.core.types import Conversation
from adversariallm.runs.judging import JudgeFactory

if TYPE_CHECKING:
    from adversariallm.runs.spec import PluginSpec


@dataclass(frozen=True)
class Shield:
    """A defense with its options."""

    info: DefenseInfo
    config: FrozenConfig

    @property
    def wanted(self) -> Wanted:
        """What it needs besides the model."""
        return self.info.supplies(self.config)


def check_stack(shields: Sequence[Shield], models: Mapping[str, Needs]) -> None:
    """Refuse a stack that cannot work on these models.

    Raises:
        ConfigError: a defense stands in it twice.
        NeedsError: a defense needs what the model, or the defenses inside it, do not let through.
    """
    names = [s.info.name for s in shields]
    twice = sorted({n for n in names if names.count(n) > 1})
    if twice:
        raise ConfigError(
            f"defense=[{','.join(names)}]: {twice[0]} stands in it twice; name each defense once "
            f"and strengthen it with defenses.{twice[0]}.OPTION=VALUE"
        )
    for model, gives in models.items():
        passing = gives
        for shield in reversed(shields):
            wanted = shield.wanted
            _require(shield, wanted.model, gives, f"model {model!r} gives", "use a local model")
            inner = "what stands inside it gives" if passing != gives else f"model {model!r} gives"
            _require(
                shield, wanted.inside, passing, inner,
                "use a local model, and put this defense last in the list",
            )  # fmt: skip
            passing &= shield.info.passes


def _require(shield: Shield, needed: Needs, given: Needs, who: str, remedy: str) -> None:
    missing = needed & ~given
    if missing:
        raise NeedsError(
            f"defense {shield.info.name!r} needs {_words(missing)}, but {who} only "
            f"{_words(given)}; {remedy}, or choose an option of it that needs less"
        )


def check_knowledge(
    info: AttackInfo, knowledge: str, shields: Sequence[Shield], *, soft: bool
) -> None:
    """Refuse an attack that an attacker with this knowledge cannot carry out.

    Args:
        info: the attack.
        knowledge: `unaware`, `black_box` or `adaptive`.
        shields: the stack.
        soft: whether the attack's inputs are embeddings.

    Raises:
        NeedsError: with the reason and the remedy.
    """
    for shield in shields:
        name, passes = shield.info.name, shield.info.passes
        if knowledge == "adaptive":
            _allow(info, passes, f"defense {name!r} lets through",
                   "use knowledge=unaware, which attacks the model without it")  # fmt: skip
        elif soft and (shield.info.rewrites or Needs.EMBEDDINGS not in passes):
            known = "use knowledge=adaptive, or " if Needs.EMBEDDINGS in passes else ""
            raise NeedsError(
                f"attack {info.name!r} sends embeddings, and those found without defense "
                f"{name!r} do not go through it, which works on text; {known}choose an attack "
                "whose inputs are text"
            )
    if knowledge == "black_box" and shields:
        _allow(info, Needs.TEXT, "knowledge=black_box gives", "use knowledge=unaware or adaptive")


def _allow(info: AttackInfo, given: Needs, who: str, remedy: str) -> None:
    missing = info.needs & ~given
    if missing:
        raise NeedsError(
            f"attack {info.name!r} needs {_words(missing)}, but {who} only {_words(given)}; "
            f"{remedy}, or choose an attack that needs less"
        )


def _words(needs: Needs) -> str:
    return ", ".join(str(n.name).lower() for n in needs) or "nothing"


class DefenseJudge:
    """A judge of judgezoo inside a defense; it tells what each verdict cost."""

    def __init__(self, make: JudgeFactory) -> None:
        """Make the judge, with a meter of its own."""
        self._meter = Meter()
        self._judge = make(self._meter)
        self._lock = threading.Lock()

    @property
    def threshold(self) -> float:
        """Score from which the judge's authors call a conversation harmful."""
        return float(self._judge.info.threshold)

    def verdicts(self, conversations: Sequence[Conversation]) -> list[Verdict]:
        """Asked one by one, so that a verdict's cost is that of its conversation alone."""
        return [self._verdict(conversation) for conversation in conversations]

    def _verdict(self, conversation: Conversation) -> Verdict:
        goal = conversation[conversation.last_user].content
        with self._lock:
            columns = self._judge([conversation.to_dicts()], [{"goal": goal}])
            usage: Usage = self._meter.take().total()
        score = columns[self._judge.info.score_key][0]
        return Verdict(None if score is None else float(score), columns["error"][0], usage)


def defended(
    model: ChatModel,
    defenses: Sequence[PluginSpec],
    *,
    helpers: Mapping[str, ChatModel],
    judge: Callable[[str], SafetyJudge],
    texts: Callable[[Sequence[str]], Mapping[str, str]],
) -> ChatModel:
    """The model behind a stack.

    Args:
        model: the bare model.
        defenses: outermost first.
        helpers: further models by role.
        judge: makes the judge of that name.
        texts: gives texts by others by asset id.
    """
    from adversariallm.datasets import load_dataset

    for spec in reversed(defenses):
        module = DEFENSES.load(spec.name)
        config: Any = module.Config(**spec.options)
        wanted: Wanted = module.INFO.supplies(config)
        supplies = Supplies(
            helpers={role: helpers[role] for role in wanted.helpers},
            judges={name: judge(name) for name in wanted.judges},
            datasets={n: tuple(load_dataset(n, **o)) for n, o in wanted.datasets.items()},
            assets=texts(wanted.assets),
        )
        model = module.wrap(model, config, supplies)
    return model
