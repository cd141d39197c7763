"""Send stored inputs to other models, system prompts or defenses."""

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
    """Send stored inputs elsewhere: model=..., models.NAME.system_prompt=..., defense=...

    The results are runs that name the stored ones; inputs that are embeddings are refused.
    """
    carry_out("transfer", overrides, ids, where, dry_run, quiet)
