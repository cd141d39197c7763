"""Make more completions of stored inputs."""

from __future__ import annotations

from adversariallm.cli._app import OVERRIDES
from adversariallm.cli._passes import Ids, Overrides, Quiet, Where, carry_out

CONTEXT = OVERRIDES


def command(
    overrides: Overrides, ids: Ids = None, where: Where = None, quiet: Quiet = False
) -> None:
    """More completions: generation_config.num_return_sequences=8, completions=best, ...

    With other decoding (generation_config.temperature=1) the samples become runs of their own.
    """
    from adversariallm.runs.passes import sample

    carry_out(sample, overrides, ids, where, quiet)
