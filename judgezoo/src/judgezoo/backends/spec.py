"""A backend written as one text, for command lines and configuration files.

``openai:MODEL``, ``anthropic:MODEL``, ``local:NAME`` and, for a compatible server,
``openai:MODEL@http://HOST/v1``; options that a text cannot hold need the classes.
"""

from __future__ import annotations

from judgezoo.backends.base import Backend
from judgezoo.backends.config import EndpointConfig
from judgezoo.backends.endpoint import EndpointBackend
from judgezoo.backends.local import LocalBackend
from judgezoo.errors import InvalidOption

__all__ = ["backend_from_spec"]


def backend_from_spec(spec: str) -> Backend:
    """Build a backend from a text.

    Args:
        spec: ``openai:MODEL[@URL]``, ``anthropic:MODEL[@URL]`` or ``local:NAME``.

    Raises:
        InvalidOption: another form.
        BackendError: the provider's key is not set.
    """
    kind, _, rest = spec.partition(":")
    if not rest:
        kind = ""
    if kind == "local":
        return LocalBackend(rest)
    model, _, url = rest.partition("@")
    if kind == "openai":
        return EndpointBackend(EndpointConfig(model=model, base_url=url or None))
    if kind == "anthropic":
        config = EndpointConfig(model=model, base_url=url or None, provider="anthropic")
        return EndpointBackend(config)
    raise InvalidOption(
        f"backend {spec!r} is none of openai:MODEL, openai:MODEL@URL, anthropic:MODEL, local:NAME"
    )
