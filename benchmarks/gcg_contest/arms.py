"""The arms of the contest: who searches, with which options, and which single switch differs.

Every ablation differs from `ours` in one switch. Altered templates act on the search only: what it
finds is sent through the model's own template afterwards, like the texts of every other arm.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

INITIAL = " ".join("x" * 20)
TOPK = 256

# One template inside another: the inner one's text, without its BOS or without the stop token that
# closes the user's turn.
NO_BOS = (
    "{%% set text %%}%s{%% endset %%}{{ text[bos_token|length:] if text.startswith(bos_token) else"
    " text }}"
)
NO_END = "{%% set text %%}%s{%% endset %%}{{ text.rsplit(eos_token, 1) | join }}"


@dataclass(frozen=True)
class Arm:
    """A contestant.

    Attributes:
        name: how the tables call it.
        who: our package or nanoGCG.
        shows: what differs from `ours`.
        options: options of our `gcg` beside the common ones.
        template: Jinja text around the model's own template (`%s`) during the search.
        rounded: the search is guided by a loss computed in bfloat16.
        keep_template: for nanoGCG: whether its removal of BOS texts is prevented.
    """

    name: str
    who: Literal["ours", "nanogcg"]
    shows: str
    options: Mapping[str, Any] = field(default_factory=dict)
    template: str = "%s"
    rounded: bool = False
    keep_template: bool = True


OURS = Arm("ours", "ours", "whole-conversation filter, all else as in nanoGCG")
NANO = Arm("nanogcg", "nanogcg", "nanoGCG, its template handling repaired")
MAIN = (OURS, NANO)
AS_IS = Arm("nanogcg as is", "nanogcg", "nanoGCG as released", keep_template=False)
ABLATIONS = (
    AS_IS,
    Arm("filter isolated", "ours", "candidates survive alone", {"filter": "isolated"}),
    Arm("filter none", "ours", "every candidate counts", {"filter": "none"}),
    Arm("joined by space", "ours", "a space before the suffix", {"join": "space"}),
    Arm("bos missing", "ours", "search without the first BOS", template=NO_BOS),
    Arm("end of turn missing", "ours", "search without the user's end of turn", template=NO_END),
    Arm("loss in bfloat16", "ours", "candidates compared in bfloat16", rounded=True),
    Arm("positions even", "ours", "positions as in llm-attacks", {"position_sampling": "even"}),
)
