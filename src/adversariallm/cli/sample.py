"""Make more completions of stored inputs."""

from __future__ import annotations

from adversariallm.cli._app import OVERRIDES
from adversariallm.cli._passes import DryRun, Ids, Overrides, Quiet, Where, carry_out

CONTEXT = OVERRIDES


def command(
    overrides: Overrides,
    ids: Ids = None,
    where: Where = None,
    dry_run: DryRun = False,
    quiet: Quiet = False,
) -> None:
    """More completions: generation_config.num_return_sequences=8, completions=best, ...

    With other decoding (generation_config.temperature=1) the samples become runs of their own.
    """
    carry_out("sample", overrides, ids, where, dry_run, quiet)
