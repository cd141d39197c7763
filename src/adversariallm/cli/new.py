"""Start a new attack, dataset, judge or defense: its file and a test that fails."""

from __future__ import annotations

import keyword
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import Annotated

import typer

PLACES = {
    "attack": ("src/adversariallm/attacks", "tests/unit/attacks"),
    "dataset": ("src/adversariallm/datasets", "tests/unit/datasets"),
    "defense": ("src/adversariallm/defenses", "tests/unit/defenses"),
    "judge": ("judgezoo/src/judgezoo/judges", "judgezoo/tests"),
}


def command(
    kind: Annotated[str, typer.Argument(help="attack, dataset, judge or defense")],
    name: Annotated[str, typer.Argument(help="its name, which is the file's name")],
    root: Annotated[Path, typer.Option(help="the checkout to write to")] = Path("."),
) -> None:
    """Write the skeleton of a plug-in and a failing test into a checkout."""
    from adversariallm.cli._console import say

    for path in create(kind, name, root):
        say(f"wrote {path}")
    say(f"next: fill in every TODO, then pytest {PLACES[kind][1]}/test_{name}.py")
    say(f"docs/adding/{kind}.md says what the tests will judge")


def create(kind: str, name: str, root: Path) -> list[Path]:
    """Write the two files; nothing that exists is touched.

    Raises:
        ConfigError: no such kind, a name that cannot be a module's, a name that is taken, or a
            folder that is no checkout.
    """
    from adversariallm.core.errors import ConfigError, UnknownNameError

    if kind not in PLACES:
        raise UnknownNameError("kind", kind, PLACES)
    if not name.isidentifier() or keyword.iskeyword(name) or name != name.lower() or name[0] == "_":
        raise ConfigError(f"{name!r} cannot be a name: expected lower_case_with_underscores")
    code, tests = (root / place for place in PLACES[kind])
    if not code.is_dir():
        raise ConfigError(
            f"{root.absolute()} is no checkout of this project ({code} is missing): give "
            "--root DIR. Outside it, a package with an entry point works as well, see docs/adding"
        )
    wanted = {code / f"{name}.py": f"{kind}.py", tests / f"test_{name}.py": f"{kind}_test.py"}
    for path in wanted:
        if path.exists():
            raise ConfigError(f"{path} exists already: choose another name")
    values = {"name": name, "class_name": "".join(p.title() for p in name.split("_"))}
    for path, template in wanted.items():
        text = files("adversariallm.cli").joinpath("templates", f"{template}.tmpl").read_text()
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(Template(text).substitute(values), encoding="utf-8")
    return list(wanted)
