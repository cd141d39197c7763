"""The base of every configuration object and the hash that turns a configuration into an identity.

Options are declared once, as fields of frozen pydantic models that refuse unknown keys; parsing
what a user typed is the business of `runs.overrides`, not of this module.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from enum import Enum
from typing import Any

from pydantic import BaseModel, ConfigDict


class FrozenConfig(BaseModel):
    """Immutable, closed configuration.

    Field marks, given as `json_schema_extra`:
        inert: True where the field cannot change any result (progress, chunk sizes); it stays out
            of identities.
        since: version that added the field; it stays out of identities while it has its default.
    """

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        validate_default=True,
        protected_namespaces=(),
        ser_json_inf_nan="constants",
    )

    def semantic(self) -> dict[str, Any]:
        """The JSON values that can change a result: what identities are made of."""
        out: dict[str, Any] = {}
        for name, field in type(self).model_fields.items():
            extra = field.json_schema_extra if isinstance(field.json_schema_extra, dict) else {}
            value = getattr(self, name)
            if extra.get("inert") or (
                extra.get("since") and value == field.get_default(call_default_factory=True)
            ):
                continue
            out[name] = plain(value)
        return out


def plain(value: Any) -> Any:
    """Turn a configuration value into JSON values; ValueError for what has no canonical form."""
    if value is None or type(value) in (str, bool, int):
        return value  # by far the most frequent: a plan hashes tens of thousands of runs
    if isinstance(value, FrozenConfig):
        return value.semantic()
    if isinstance(value, BaseModel):
        return plain(value.model_dump(mode="json"))
    if isinstance(value, Enum):
        return plain(value.value)
    if isinstance(value, Mapping):
        for key in value:
            if not isinstance(key, str):
                raise TypeError(f"key {key!r} is {type(key).__name__}: expected str")
        return {key: plain(value[key]) for key in sorted(value)}
    if isinstance(value, (list, tuple)):
        return [plain(v) for v in value]
    if isinstance(value, (set, frozenset)):
        return sorted(plain(v) for v in value)
    if isinstance(value, float):
        if not math.isfinite(value):
            raise ValueError(f"{value} has no canonical form; use null or a finite number")
        return value + 0.0  # -0.0 becomes 0.0
    if value is None or isinstance(value, (str, bool, int)):
        return value
    raise TypeError(f"{type(value).__name__} has no canonical JSON form")


def canonical_json(value: Any) -> bytes:
    """Same meaning, same bytes: sorted keys, no spaces, UTF-8, no NaN or infinity."""
    return json.dumps(
        plain(value), sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False
    ).encode("utf-8")


def stable_hash(value: Any, length: int = 32) -> str:
    """First `length` hex digits of the SHA-256 of the canonical JSON."""
    return hashlib.sha256(canonical_json(value)).hexdigest()[:length]
