"""`python -m adversariallm` is the same as `adversariallm`."""

from __future__ import annotations

import sys

from adversariallm.cli import main

if __name__ == "__main__":
    sys.exit(main())
