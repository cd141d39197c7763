"""Go on with finished searches."""

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
    """More steps of finished searches: attacks.gcg.num_steps=1000, or a larger budget.flops=...

    The result is a run that begins with the steps of the stored one and names it.
    """
    carry_out("extend", overrides, ids, where, dry_run, quiet)
