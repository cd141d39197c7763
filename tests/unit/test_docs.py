"""Documents point at things that exist, and every page can be reached."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
PAGES = sorted(
    p
    for pattern in ("*.md", "docs/**/*.md", "design/*.md", "judgezoo/*.md", "judgezoo/docs/**/*.md")
    for p in REPOSITORY.glob(pattern)
)
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
NAMED = re.compile(r"`((?:src|docs|tests|design|examples|benchmarks|scripts)/[\w./-]+)`")


def anchors(page: Path) -> set[str]:
    """The fragments that a page's headings give."""
    heads = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return {re.sub(r"[^\w -]", "", h.lower()).strip().replace(" ", "-") for h in heads}


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.relative_to(REPOSITORY).as_posix())
def test_every_link_and_named_file_exists(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    missing = []
    for target in LINK.findall(text):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, fragment = target.partition("#")
        file = page if not path else (page.parent / path).resolve()
        if not file.exists() or (fragment and fragment not in anchors(file)):
            missing.append(target)
    named = [n for n in NAMED.findall(text) if not Path(n).name.startswith("my_")]  # examples
    missing += [name for name in named if not (REPOSITORY / name).exists()]
    assert not missing


def test_every_page_of_the_docs_is_linked_from_another_page() -> None:
    linked = set()
    for page in PAGES:
        for target in LINK.findall(page.read_text(encoding="utf-8")):
            linked.add((page.parent / target.partition("#")[0]).resolve())
    folders = {p for p in linked if p.is_dir()}
    alone = [
        p.relative_to(REPOSITORY).as_posix()
        for p in sorted((REPOSITORY / "docs").rglob("*.md"))
        if p not in linked and not folders & set(p.parents)
    ]
    assert not alone
