"""`python -m adversariallm.models.fetch NAME ...` puts models into the cache.

The Makefile calls it; it says nothing when all is there already, and loads nothing.
"""

from __future__ import annotations

import sys

from adversariallm.core.errors import AdversariaLLMError
from adversariallm.models.card import get_card
from adversariallm.models.sources import fetch, plain_lines


def main(names: list[str]) -> int:
    """Fetch each named model; 1 where one cannot be had."""
    with plain_lines():
        return _fetch_all(names)


def _fetch_all(names: list[str]) -> int:
    for name in names:
        try:
            card = get_card(name)
            fetch(card)
        except AdversariaLLMError as error:
            sys.stderr.write(f"{error}\n")
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
