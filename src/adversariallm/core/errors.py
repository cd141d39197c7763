"""The errors a user can meet: what was given, what was expected and what to do.

This module deliberately holds no logic beyond wording; anything not derived from
`AdversariaLLMError` is a bug of ours.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class AdversariaLLMError(Exception):
    """Base of every error that is meant for the user; its text is complete on its own."""


class ConfigError(AdversariaLLMError):
    """A configuration value, key or name is wrong; the command line exits with status 2."""


class UnknownNameError(ConfigError):
    """A name that nothing is registered under."""

    def __init__(self, kind: str, given: str, valid: Iterable[str]) -> None:
        """Build the message.

        Args:
            kind: what is being looked up, e.g. "attack".
            given: the name as typed.
            valid: all names that exist.
        """
        names = sorted(valid)
        close = difflib.get_close_matches(given, names, n=3, cutoff=0.5)
        shown = ", ".join(names[:40]) + (" ..." if len(names) > 40 else "")
        hint = f" Did you mean {' or '.join(repr(c) for c in close)}?" if close else ""
        super().__init__(f"unknown {kind} {given!r}.{hint} Valid: {shown or '(none)'}")
        self.kind, self.given, self.close = kind, given, tuple(close)


class NeedsError(ConfigError):
    """An attack needs something that the model, defense or behavior at hand cannot give."""


class DataError(AdversariaLLMError):
    """A data file is missing, damaged, or not what its pin says."""


class StoreError(AdversariaLLMError):
    """The run store cannot be read or written."""


class SchemaError(StoreError):
    """An artifact was written under another schema version or is not an artifact."""


class LostLeaseError(StoreError):
    """Another worker took over this run; this one stops and writes nothing more."""


class ModelError(AdversariaLLMError):
    """A model cannot be loaded or gave something unusable."""


class ContextLengthError(ModelError):
    """An input plus the requested new tokens does not fit the context window."""


class TemplateError(ModelError):
    """A chat template cannot render a conversation, or alters its content."""


class BudgetExceededError(AdversariaLLMError):
    """A limit of the budget is reached; the run stops and keeps its finished steps."""

    def __init__(self, limit: str, allowed: float, used: float, wanted: float = 0) -> None:
        """Build the message.

        Args:
            limit: its name.
            allowed: its value.
            used: what is used so far.
            wanted: what the next call needs, where that is why it stops short of the limit.
        """
        left = f"; the next call needs {wanted:g}, {allowed - used:g} are left"
        more = left if used < allowed and wanted else ""
        super().__init__(f"budget.{limit}={allowed:g} is reached ({used:g} used{more})")
        self.limit, self.allowed, self.used = limit, allowed, used


BudgetExceeded = BudgetExceededError
