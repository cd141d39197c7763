"""The report as a file: self-contained, inert whatever a model said, and equal for equal runs."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from adversariallm.evaluation.fakes import fake_document
from adversariallm.reporting import write_report
from adversariallm.reporting.html import render_report
from adversariallm.reporting.transcripts import chosen_steps

HOSTILE = (
    "</script><script>alert(1)</script><img src=x onerror=alert(2)> \x1b[31m \u202e <!-- ]]> &lt;"
)


class _Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))


def _tags(page: str) -> list[tuple[str, dict[str, str | None]]]:
    parser = _Tags()
    parser.feed(page)
    return parser.tags


def _data(page: str) -> dict[str, object]:
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.S)
    assert found is not None
    data: dict[str, object] = json.loads(found[1])
    return data


def _hostile_page() -> str:
    return render_report(
        [
            fake_document(
                [[1.0]],
                texts=[[HOSTILE + "\ud800"]],
                behavior=HOSTILE,
                model=HOSTILE,
                attack=HOSTILE,
                dataset=HOSTILE,
                defense=HOSTILE,
                judge=HOSTILE,
                options={HOSTILE: HOSTILE},
            )
        ]
    )


def test_hostile_text_adds_no_element() -> None:
    plain = render_report(
        [
            fake_document(
                [[1.0]],
                behavior="b",
                model="m",
                attack="a",
                dataset="d",
                defense="x",
                judge="j",
                options={"k": "v"},
            )
        ]
    )
    assert [t for t, _ in _tags(_hostile_page())] == [t for t, _ in _tags(plain)]


def test_hidden_characters_do_not_reach_the_page() -> None:
    page = _hostile_page()
    assert not re.search(
        r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]", page
    )
    assert "\\\\x1b[31m" in page


def test_nothing_is_loaded_and_only_the_pinned_script_and_style_may_run() -> None:
    page = _hostile_page()
    for tag, attrs in _tags(page):
        assert not any(name.startswith("on") or name == "style" for name in attrs)
        assert tag not in {"iframe", "object", "embed", "form", "base"}
        for name in ("src", "href"):
            assert (attrs.get(name) or "#").startswith(("#", "data:,"))
    policy = next(
        a["content"] for t, a in _tags(page) if a.get("http-equiv") == "Content-Security-Policy"
    )
    assert policy is not None and "default-src 'none'" in policy and "unsafe" not in policy
    for pattern in (r"<style>(.*?)</style>", r"<script>(.*?)</script>"):
        found = re.search(pattern, page, re.S)
        assert found is not None
        digest = base64.b64encode(hashlib.sha256(found[1].encode()).digest()).decode()
        assert f"'sha256-{digest}'" in policy


def test_answers_scored_harmful_or_not_scored_are_marked_hidden() -> None:
    documents = [
        fake_document([[1.0, 0.0, None]], behavior="harmful"),
        fake_document([[1.0]], behavior="benign", harmful=False),
    ]
    found = {t["id"]: t for t in _data(render_report(documents))["transcripts"]}  # type: ignore[attr-defined]
    hidden = [a["hide"] for a in found["harmful"]["steps"][0]["answers"]]
    assert hidden == ["scored harmful", None, "not scored"]
    assert found["benign"]["steps"][0]["answers"][0]["hide"] is None
    assert (found["harmful"]["mark"], found["benign"]["mark"]) == ("attack succeeded", "")


def test_equal_runs_in_any_order_give_equal_bytes(tmp_path: Path) -> None:
    documents = [fake_document([[float(i % 2)]], behavior=f"b{i}") for i in range(6)]
    first = write_report(documents, tmp_path / "deep" / "a.html")
    second = write_report(reversed(documents), tmp_path / "b.html")
    assert first.read_bytes() == second.read_bytes()


@pytest.mark.parametrize(
    "documents",
    [
        [],
        [fake_document([[1.0]], judge=None)],
        [fake_document([[None]])],
        [fake_document([])],
        [fake_document([[]])],
        [fake_document([[1.0], [], [0.0]])],
    ],
    ids=["no runs", "unjudged", "all unscored", "no step", "no completion", "missing completions"],
)
def test_thin_results_still_give_a_sensible_page(documents: list[dict[str, object]]) -> None:
    page = render_report(documents)
    assert not re.search(
        r"\bnan\b", re.sub(r"<(script|style).*?</\1>", "", page, flags=re.S).lower()
    )
    assert "<h1>Robustness report</h1>" in page


def test_summary_curves_costs_and_commands_are_in_the_page() -> None:
    documents = [fake_document([[0.0], [1.0]], behavior=f"b{i}") for i in range(5)]
    page = render_report(documents)
    assert "100.0 % [56.6, 100.0]" in page
    assert "by step" in page and "by FLOPs" in page
    assert "adversariallm run model=toy attack=gcg" in page
    assert "optimization" in page and "config" not in _data(page)


def test_long_runs_keep_the_steps_that_matter() -> None:
    document = fake_document(
        [[float(i == 77)] for i in range(200)], losses=[5.0 - (i == 120) for i in range(200)]
    )
    run = document["runs"][0]
    kept = chosen_steps(run["steps"], run["behavior"], 8)
    assert len(kept) == 8
    assert {0, 77, 120, 199} <= set(kept)


def test_more_curves_than_colors_get_a_chart_for_each_model() -> None:
    attacks, models = ("gcg", "bon", "pair", "beast", "tap"), ("first", "second")
    few = render_report([fake_document([[1.0], [0.0]], attack=a, model="first") for a in attacks])
    many = render_report(
        [fake_document([[1.0], [0.0]], attack=a, model=m) for a in attacks for m in models]
    )
    assert few.count("judged by refusal_prefix</h3>") == 1
    for model in models:
        assert many.count(f"judged by refusal_prefix, {model}</h3>") == 1


def test_a_budget_has_a_chart_where_it_is_known() -> None:
    own = render_report([fake_document([[1.0], [0.0]], attack="bon", timing="exclusive")])
    shared = render_report([fake_document([[1.0], [0.0]], attack="bon")])
    for page, expected in ((own, 1), (shared, 0)):
        assert page.count("Attack success by queries") == 1
        assert page.count("Attack success by seconds of search") == expected
