"""Backends: what answers a judge's prompts.

Importing this package loads neither torch nor any provider's SDK.
"""

from __future__ import annotations

from judgezoo.backends.base import (
    Backend,
    ChatBackend,
    ChatChoice,
    ChatReply,
    ChatRequest,
    TokenBackend,
    Usage,
    backend_identity,
)
from judgezoo.backends.scripted import ScriptedBackend

__all__ = [
    "Backend",
    "ChatBackend",
    "ChatChoice",
    "ChatReply",
    "ChatRequest",
    "ScriptedBackend",
    "TokenBackend",
    "Usage",
    "backend_identity",
]
