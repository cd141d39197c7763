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
from judgezoo.backends.config import Capabilities, EndpointConfig
from judgezoo.backends.endpoint import EndpointBackend
from judgezoo.backends.local import LocalBackend
from judgezoo.backends.scripted import ScriptedBackend
from judgezoo.backends.spec import backend_from_spec

__all__ = [
    "Backend",
    "Capabilities",
    "ChatBackend",
    "ChatChoice",
    "ChatReply",
    "ChatRequest",
    "EndpointBackend",
    "EndpointConfig",
    "LocalBackend",
    "ScriptedBackend",
    "TokenBackend",
    "Usage",
    "backend_from_spec",
    "backend_identity",
]
