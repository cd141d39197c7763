"""The public surface: what `import adversariallm` gives, and what it costs."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import adversariallm

PROMISED = {
    "load_model", "load_dataset", "load_attack", "list_models", "list_datasets", "list_attacks",
    "list_defenses", "run", "AttackResult", "Behavior", "Conversation", "Message",
}  # fmt: skip


def test_all_names_what_is_exposed() -> None:
    assert sorted(adversariallm.__all__) == sorted({*adversariallm._HOMES, "__version__"})
    assert set(adversariallm.__all__) >= PROMISED
    assert dir(adversariallm) == sorted(adversariallm.__all__)


def test_type_checkers_see_the_same_names() -> None:
    source = ast.parse(Path(str(adversariallm.__file__)).read_text(encoding="utf-8"))
    typed = {
        alias.name: str(node.module).removeprefix("adversariallm.")
        for block in source.body
        if isinstance(block, ast.If)
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert typed == adversariallm._HOMES


@pytest.mark.parametrize("name", adversariallm.__all__)
def test_every_name_can_be_imported(name: str) -> None:
    assert getattr(adversariallm, name) is not None


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'load_atack'"):
        _ = adversariallm.load_atack


def modules_after(statement: str) -> set[str]:
    code = f"import sys; {statement}; print('\\n'.join(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


def test_importing_the_package_loads_no_heavy_library() -> None:
    heavy = {"torch", "transformers", "numpy", "duckdb", "rich", "pydantic"}
    assert not modules_after("import adversariallm") & heavy


def test_the_command_line_starts_without_torch() -> None:
    loaded = modules_after("from adversariallm.cli._app import build; build()")
    assert not loaded & {"torch", "transformers", "duckdb", "scipy"}
