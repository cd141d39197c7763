"""One attempt of one request: what a wire driver must do, and how it reports a failure.

Retries and pacing are not decided here; a driver calls its SDK with the SDK's own retries off.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, Protocol, TypeVar

from judgezoo.backends.base import ChatReply, ChatRequest

__all__ = ["CallFailed", "Driver", "attempt", "failure", "scrub"]

T = TypeVar("T")

RETRY_STATUS = frozenset({408, 409, 429, 500, 502, 503, 504, 529})
_OVERFLOW = re.compile(
    r"context[ _](?:length|size|window)|maximum context|too many tokens|prompt is too long",
    re.IGNORECASE,
)
_KEY_LIKE = re.compile(r"\b(?:sk|key|pk|hf|gsk|xai|AIza)[-_][A-Za-z0-9_*.-]{6,}|Bearer\s+\S+")


class CallFailed(Exception):  # noqa: N818
    """A failed attempt.

    Attributes:
        message: what went wrong, free of secrets.
        status: the reply's status when no further attempt is made.
        retryable: whether another attempt may help.
        overloaded: whether the server asked us to slow down.
        retry_after_s: the server's own wish, or None.
    """

    def __init__(
        self,
        message: str,
        *,
        status: str = "provider_error",
        retryable: bool = False,
        overloaded: bool = False,
        retry_after_s: float | None = None,
    ) -> None:
        """Keep the facts."""
        super().__init__(message)
        self.message = message
        self.status = status
        self.retryable = retryable
        self.overloaded = overloaded
        self.retry_after_s = retry_after_s


class Driver(Protocol):
    """Speaks one provider's protocol."""

    def call(self, request: ChatRequest, timeout_s: float) -> ChatReply:
        """Make one attempt.

        Raises:
            CallFailed: the attempt failed.
        """
        ...


def attempt(sdk: Any, base: type[Exception], key: str | None, send: Callable[[], T]) -> T:
    """Make one call through a vendor's SDK and translate whatever goes wrong.

    Args:
        sdk: the vendor's module, for its ``APIStatusError``.
        base: what all of the SDK's errors derive from.
        key: the secret in use, kept out of every message.
        send: makes the call and reads its result.

    Raises:
        CallFailed: the call failed, or its result cannot be read.
    """
    try:
        return send()
    except sdk.APIStatusError as error:
        message = str(error.body or error.message)
        raise failure(error.status_code, message, error.response.headers, key) from None
    except base as error:
        raise failure(None, f"{type(error).__name__}: {error}", {}, key) from None
    except (ValueError, TypeError, AttributeError, KeyError) as error:
        message = f"malformed response ({type(error).__name__})"
        raise CallFailed(message, retryable=True) from None


def scrub(text: str, secret: str | None) -> str:
    """Remove the key and whatever looks like one, and shorten.

    Args:
        text: a provider's message.
        secret: the key in use.
    """
    if secret:
        text = text.replace(secret, "[key]")
    return _KEY_LIKE.sub("[key]", " ".join(text.split()))[:300]


def failure(
    status: int | None, message: str, headers: Mapping[str, Any], secret: str | None
) -> CallFailed:
    """Classify a failed attempt.

    Args:
        status: HTTP status, None when there was no response.
        message: the SDK's or server's message.
        headers: response headers.
        secret: the key in use, to be scrubbed.
    """
    text = scrub(message, secret)
    if status is None:
        return CallFailed(f"no response: {text}", retryable=True)
    if status in {400, 413, 422} and _OVERFLOW.search(message):
        return CallFailed(f"HTTP {status}: {text}", status="context_overflow")
    if status == 400 and re.search(r"content[_ ]filter|content management", message):
        return CallFailed(f"HTTP {status}: {text}", status="content_filter")
    return CallFailed(
        f"HTTP {status}: {text}",
        retryable=status in RETRY_STATUS,
        overloaded=status in {429, 529},
        retry_after_s=_retry_after_s(headers),
    )


def _retry_after_s(headers: Mapping[str, Any]) -> float | None:
    """Return the wait that the server asks for, in seconds."""
    for name, unit in (("retry-after-ms", 1000.0), ("retry-after", 1.0)):
        try:
            return max(0.0, float(headers[name]) / unit)
        except (KeyError, TypeError, ValueError):
            continue
    return None
