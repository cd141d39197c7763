"""Errors of the package, each saying what was given, what was expected and what to do.

It deliberately knows nothing of judges, backends or assets.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable

__all__ = [
    "AssetError",
    "AssetMissing",
    "BackendError",
    "HashMismatch",
    "InvalidOption",
    "JudgezooError",
    "MissingExtra",
    "OfflineError",
    "UnknownName",
    "UnparsableReply",
]


class JudgezooError(Exception):
    """Base of every error that the package raises on purpose."""


class UnknownName(JudgezooError, KeyError):
    """A judge, asset or option name that does not exist."""

    def __init__(self, what: str, given: str, known: Iterable[str]) -> None:
        """Build the message with the nearest valid names.

        Args:
            what: kind of name, for example ``"judge"``.
            given: the name the caller used.
            known: all valid names.
        """
        names = sorted(known)
        near = difflib.get_close_matches(given, names, n=3, cutoff=0.5)
        hint = f"did you mean {', '.join(near)}?" if near else f"known: {', '.join(names)}"
        super().__init__(f"unknown {what} {given!r}; {hint}")

    def __str__(self) -> str:
        """Return the message without the quotes that KeyError adds."""
        return str(self.args[0])


class InvalidOption(JudgezooError, ValueError):
    """An option with a wrong name, type or value."""


class MissingExtra(JudgezooError, ImportError):
    """An optional dependency that is not installed."""

    def __init__(self, needed_for: str, module: str, extra: str) -> None:
        """Build the message with the pip command.

        Args:
            needed_for: what the caller tried to do.
            module: the module that could not be imported.
            extra: name of the extra that brings it.
        """
        super().__init__(
            f"{needed_for} needs {module!r}, which is not installed; "
            f"run: pip install 'judgezoo[{extra}]'"
        )


class UnparsableReply(JudgezooError):
    """A judge model's reply that the published parser cannot read."""


class BackendError(JudgezooError):
    """A backend that cannot do what was asked of it."""


class AssetError(JudgezooError):
    """An asset that could not be obtained or read."""


class AssetMissing(AssetError):
    """An asset that is not in the cache."""


class HashMismatch(AssetError):
    """Bytes whose SHA-256 is not the pinned one."""

    def __init__(self, what: str, expected: str, got: str) -> None:
        """Build the message with both hashes.

        Args:
            what: name of the bytes that were hashed.
            expected: pinned SHA-256 in hexadecimal.
            got: SHA-256 of the bytes at hand.
        """
        self.expected = expected
        self.got = got
        super().__init__(
            f"{what}: SHA-256 is {got}, expected {expected}; the bytes are refused. "
            "Delete the file and fetch it again, or report that the source has changed"
        )


class OfflineError(AssetError):
    """A network access that the offline switch forbids."""
