"""Pacing of remote calls: a token bucket, an adaptive gate, backoff times.

It counts and waits; it sends nothing. Jitter comes from a hash of the request, not from a
generator, so a run is the same when repeated.
"""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

__all__ = ["AdaptiveGate", "Clock", "SystemClock", "TokenBucket", "backoff_s"]


class Clock(Protocol):
    """Time, replaceable in tests."""

    def now(self) -> float:
        """Return seconds on a monotonic clock."""
        ...

    def sleep(self, seconds: float) -> None:
        """Wait."""
        ...


class SystemClock:
    """The machine's monotonic clock."""

    def now(self) -> float:
        """Return seconds on a monotonic clock."""
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        """Wait."""
        time.sleep(seconds)


class TokenBucket:
    """Lets at most ``per_minute`` units pass in a minute; None lets everything pass."""

    def __init__(self, per_minute: float | None, clock: Clock) -> None:
        """Start with a full bucket.

        Args:
            per_minute: units per minute.
            clock: source of time.
        """
        self._rate = None if per_minute is None else per_minute / 60.0
        self._capacity = per_minute or 0.0
        self._level = self._capacity
        self._clock = clock
        self._last = clock.now()
        self._lock = threading.Lock()

    def take(self, units: float) -> float:
        """Book units and return the seconds to wait before using them.

        A request larger than the bucket waits for a full one.
        """
        if self._rate is None:
            return 0.0
        with self._lock:
            now = self._clock.now()
            self._level = min(self._capacity, self._level + (now - self._last) * self._rate)
            self._last = now
            self._level -= min(units, self._capacity)
            return max(0.0, -self._level / self._rate)


class AdaptiveGate:
    """Bounds the calls in flight: the bound halves on overload and recovers by one at a time."""

    def __init__(self, limit: int) -> None:
        """Start at the upper bound.

        Args:
            limit: most calls in flight.
        """
        self._max = limit
        self._limit = limit
        self._active = 0
        self._good = 0
        self._condition = threading.Condition()

    @property
    def limit(self) -> int:
        """Present bound."""
        return self._limit

    @contextmanager
    def slot(self) -> Iterator[None]:
        """Hold one of the slots."""
        with self._condition:
            while self._active >= self._limit:
                self._condition.wait()
            self._active += 1
        try:
            yield
        finally:
            with self._condition:
                self._active -= 1
                self._condition.notify_all()

    def overloaded(self) -> None:
        """Halve the bound."""
        with self._condition:
            self._limit = max(1, self._limit // 2)
            self._good = 0

    def succeeded(self) -> None:
        """Raise the bound by one after as many successes as the bound is high."""
        with self._condition:
            self._good += 1
            if self._good >= self._limit and self._limit < self._max:
                self._limit += 1
                self._good = 0
                self._condition.notify_all()


def backoff_s(key: str, attempt: int, longest_s: float) -> float:
    """Return the wait before the next attempt: full jitter below 1, 2, 4 ... seconds.

    Args:
        key: what identifies the request.
        attempt: number of attempts made, from 1.
        longest_s: upper bound.
    """
    digest = hashlib.sha256(f"{key}:{attempt}".encode()).digest()
    fraction = (int.from_bytes(digest[:8], "big") + 1) / 2**64
    return float(min(longest_s, 2.0 ** (attempt - 1)) * fraction)
