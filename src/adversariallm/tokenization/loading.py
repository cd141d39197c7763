"""Loads a tokenizer by name or from a folder, also where files are compressed (`.json.xz`).

Nothing of a model is loaded, and no code from the folder is run.
"""

from __future__ import annotations

import lzma
import shutil
import tempfile
from pathlib import Path
from typing import Any

from adversariallm.core.errors import DataError


def load_tokenizer(path: str | Path) -> Any:
    """A transformers tokenizer from a folder or a hub name.

    Args:
        path: folder with the tokenizer's files; files ending in `.xz` are unpacked to a temporary
            folder first.
    """
    from transformers import AutoTokenizer

    folder = Path(path)
    if not folder.is_dir():
        return AutoTokenizer.from_pretrained(str(path))
    if not any(folder.glob("*.json")) and not any(folder.glob("*.model*")):
        raise DataError(f"{folder} holds no tokenizer files (tokenizer.json, tokenizer.model, ...)")
    packed = list(folder.glob("*.xz"))
    if not packed:
        return AutoTokenizer.from_pretrained(str(folder))
    with tempfile.TemporaryDirectory() as temporary:
        for file in folder.iterdir():
            if file.suffix == ".xz":
                data = lzma.decompress(file.read_bytes())
                Path(temporary, file.stem).write_bytes(data)
            elif file.is_file():
                shutil.copyfile(file, Path(temporary, file.name))
        return AutoTokenizer.from_pretrained(temporary)
