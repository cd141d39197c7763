"""The judge contract: conversations in, one list per key out, an error code per bad row.

This file owns validation, constant keys, fingerprints and warnings; how a row is scored belongs to
the files in ``judges/``, and how a model answers belongs to ``backends/``.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from judgezoo.assets import AssetStore
from judgezoo.backends.base import Backend, backend_identity
from judgezoo.conversation import Conversation, Row, RowContext, build_row
from judgezoo.deviation import report_deviations
from judgezoo.errors import InvalidOption, UnknownName
from judgezoo.registry import judge_class, list_judges

__all__ = ["ERROR_CODES", "Judge", "JudgeInfo", "JudgeOptions", "Progress", "Variant"]

Variant = Literal["official", "judgezoo"]
Progress = Callable[[int, int], None]

ERROR_CODES = {
    "invalid_chat": "the conversation is malformed or does not end with an assistant answer",
    "missing_context": "the row lacks a fact that the judge needs, such as a target",
    "empty": "there is no text to read: a blank answer or a blank reply of the judge model",
    "unparsable": "the judge model's reply is not in the published format",
    "prompt_too_long": "the behavior alone does not fit into the judge's context",
    "provider_error": "the backend failed for this row after all retries",
    "out_of_scope": "the published judge does not apply to this kind of row",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgeInfo:
    """What is known about a judge before anything is loaded.

    Attributes:
        name: name for `Judge.from_name`.
        summary: one line.
        kind: rule, prompted, classifier (token probabilities), generative (parsed answer of a
            fine-tuned model) or wrapper.
        source: paper or origin.
        semantics: what a high score means: harm, compliance (not refused) or utility.
        score_key: result key that aggregations read; a row is unscored when it is None.
        keys: result keys beside ``p_harmful`` and ``error``.
        needs: context keys that a row must have.
        baseline: published model with its aliases, or empty for rules.
        decoding: published sampling settings, empty when there are none.
        success: the paper's rule for calling a row successful.
        threshold: ``score >= threshold`` is that rule on our scale.
        variants: supported variants.
        assets: ids of the texts fetched by the asset store.
        reference_code: reference implementation, with its pin.
        license: license of the prompt or of our own rules.
        version: raised when the same input may score differently.
    """

    name: str
    summary: str
    kind: Literal["rule", "prompted", "classifier", "generative", "wrapper"]
    source: str
    semantics: Literal["harm", "compliance", "utility"]
    score_key: str = "p_harmful"
    keys: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()
    baseline: tuple[str, ...] = ()
    decoding: str = ""
    success: str = ""
    threshold: float = 0.5
    variants: tuple[Variant, ...] = ("official",)
    assets: tuple[str, ...] = ()
    reference_code: str = ""
    license: str = "MIT (ours)"
    version: int = 1


class JudgeOptions(BaseModel):
    """Options that every judge accepts.

    Attributes:
        execution: names of fields that change no score and stay out of fingerprints.
        on_unparsable: None with an error code, the paper's fallback, or an exception.
        reasoning: judge the answer alone, or its reasoning trace and the answer.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    execution: ClassVar[frozenset[str]] = frozenset()

    on_unparsable: Literal["none", "official", "raise"] = "none"
    reasoning: Literal["answer", "both"] = "answer"


def _parse_options(model: type[JudgeOptions], judge: str, options: Mapping[str, Any]) -> Any:
    """Validate options; the error names the option, the value and what is allowed."""
    for name in options:
        if name not in model.model_fields:
            raise UnknownName(f"option of judge {judge!r}", name, model.model_fields)
    try:
        return model(**options)
    except ValidationError as error:
        problems = "; ".join(
            f"{'.'.join(map(str, e['loc']))}={e['input']!r}: {e['msg']}" for e in error.errors()
        )
        raise InvalidOption(f"judge {judge!r}: {problems}") from None


class Judge:
    """Base of all judges; build one with `Judge.from_name`."""

    info: ClassVar[JudgeInfo]
    Options: ClassVar[type[JudgeOptions]] = JudgeOptions

    def __init__(
        self,
        *,
        variant: Variant = "official",
        backend: Backend | str | None = None,
        assets: AssetStore | None = None,
        prompts: Mapping[str, str] | None = None,
        **options: Any,
    ) -> None:
        """Check the setup; nothing is downloaded and no model is loaded.

        Args:
            variant: ``official`` follows the paper's code, ``judgezoo`` the released package.
            backend: what answers the judge's prompts: an object of `judgezoo.backends`, or a text
                such as ``openai:gpt-4o``.
            assets: store of the prompt texts; the user's cache by default.
            prompts: own texts by asset id; the scores are then of another instrument.
            **options: fields of this judge's `Options`.

        Raises:
            UnknownName: an option that the judge does not have.
            InvalidOption: an option or variant with a wrong value.
        """
        if variant not in self.info.variants:
            raise InvalidOption(
                f"judge {self.info.name!r} has no variant {variant!r}; "
                f"it has {', '.join(self.info.variants)}"
            )
        self.variant: Variant = variant
        self.options: Any = _parse_options(self.Options, self.info.name, options)
        self._assets = AssetStore() if assets is None else assets
        self._prompts = dict(prompts or {})
        for asset_id in self._prompts:
            if asset_id not in self.asset_ids():
                raise UnknownName(f"asset of judge {self.info.name!r}", asset_id, self.asset_ids())
        self._selftest: dict[str, Any] | None = None
        self.backend = self._resolve_backend(backend)
        self.deviations: list[str] = self._find_deviations()
        report_deviations(self.info.name, self.deviations)

    @staticmethod
    def from_name(
        name: str,
        *,
        variant: Variant = "official",
        backend: Backend | str | None = None,
        **options: Any,
    ) -> Judge:
        """Build a judge by name.

        Args:
            name: a key of `Judge.available`.
            variant: ``official`` or, where it exists, ``judgezoo``.
            backend: see `Judge`.
            **options: `assets`, `prompts` and the judge's own options.

        Raises:
            UnknownName: no such judge or option.
            InvalidOption: a wrong value.
        """
        return judge_class(name)(variant=variant, backend=backend, **options)

    @staticmethod
    def available() -> dict[str, JudgeInfo]:
        """Return the row of every judge by name, without importing torch."""
        return list_judges()

    def __call__(
        self,
        conversations: Sequence[Conversation],
        contexts: Sequence[RowContext | str | None] | None = None,
        *,
        goals: Sequence[str | None] | None = None,
        target_chats: Sequence[Any] | None = None,
        progress: Progress | None = None,
    ) -> dict[str, list[Any]]:
        """Score conversations.

        Args:
            conversations: each a list of messages that ends with the assistant answer to judge.
            contexts: per row, a mapping with any of ``goal``, ``target``, ``reference``,
                ``category``, ``context`` (a text alone is the ``context``), or None.
            goals: per row, the original behavior; shorthand for ``contexts[i]["goal"]``.
            target_chats: accepted for callers of the released package; ignored.
            progress: called with the number of rows done and in all.

        Returns:
            ``p_harmful``, ``error`` and the judge's own keys, each a list as long as
            ``conversations``.

        Raises:
            ValueError: a per-row argument of another length.
            AssetMissing: a prompt text is not in the cache.
        """
        facts = self._row_facts(len(conversations), contexts, goals, target_chats)
        self.prepare()
        columns: dict[str, list[Any]] = {
            key: [None] * len(conversations) for key in ("p_harmful", "error", *self.info.keys)
        }
        rows = []
        for index, conversation in enumerate(conversations):
            row = build_row(index, conversation, facts[index], reasoning=self.options.reasoning)
            if row is None:
                columns["error"][index] = "invalid_chat"
                continue
            problem = self._precheck(row)
            columns["error"][index] = problem
            if problem is None:
                rows.append(row)
        done = len(conversations) - len(rows)
        for row, result in self._score(rows) if rows else ():
            self._store(columns, row, result)
            done += 1
            if progress is not None:
                progress(done, len(conversations))
        return columns

    def prepare(self) -> None:
        """Check that every prompt text is at hand, before the first model call.

        Raises:
            AssetMissing: with the command that supplies the text.
        """
        for asset_id in self.asset_ids():
            self.prompt(asset_id)

    def asset_ids(self) -> tuple[str, ...]:
        """Return the ids of the texts that this variant with these options reads."""
        return self.info.assets

    def prompt(self, asset_id: str) -> str:
        """Return a prompt text: the caller's own, or the cached asset after a hash check."""
        if asset_id in self._prompts:
            return self._prompts[asset_id]
        return self._assets.text(asset_id)

    def fingerprint(self) -> dict[str, Any]:
        """Return all that identifies this measuring instrument, as JSON values."""
        hashes = {}
        for asset_id in self.asset_ids():
            if asset_id in self._prompts:
                digest = hashlib.sha256(self._prompts[asset_id].encode()).hexdigest()
                hashes[asset_id] = f"custom:{digest}"
            else:
                hashes[asset_id] = self._assets.row(asset_id).sha256 or "unverified"
        return {
            "name": self.info.name,
            "variant": self.variant,
            "judge_version": self.info.version,
            "options": self.options.model_dump(mode="json", exclude=set(self.options.execution)),
            "assets": hashes,
            "backend": None if self.backend is None else backend_identity(self.backend),
            "deviations": list(self.deviations),
            "judgezoo": version("judgezoo"),
            "observed": self.observed(),
        }

    def observed(self) -> dict[str, Any]:
        """Return what only use reveals: served model strings, resolved commits, self-test."""
        observe = getattr(self.backend, "observed", None)
        seen = dict(observe()) if callable(observe) else {}
        return seen if self._selftest is None else {**seen, "selftest": self._selftest}

    def record_selftest(self, record: Mapping[str, Any]) -> None:
        """Keep the outcome of a self-test for the fingerprint."""
        self._selftest = dict(record)

    def fingerprint_id(self) -> str:
        """Return 16 hexadecimal digits that do not change with use or with a package release."""
        volatile = {"judgezoo", "observed"}
        content = {k: v for k, v in self.fingerprint().items() if k not in volatile}
        text = json.dumps(content, sort_keys=True, ensure_ascii=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def _row_facts(
        self,
        count: int,
        contexts: Sequence[RowContext | str | None] | None,
        goals: Sequence[str | None] | None,
        target_chats: Sequence[Any] | None,
    ) -> list[dict[str, Any]]:
        """Merge the per-row arguments, after checking their lengths."""
        given = {"contexts": contexts, "goals": goals, "target_chats": target_chats}
        for name, values in given.items():
            if values is not None and len(values) != count:
                raise ValueError(
                    f"{name} has {len(values)} entries for {count} conversations; give one per row"
                )
        facts: list[dict[str, Any]] = []
        for index in range(count):
            context = None if contexts is None else contexts[index]
            fact: dict[str, Any] = (
                {"context": context} if isinstance(context, str) else dict(context or {})
            )
            goal = None if goals is None else goals[index]
            if goal is not None:
                fact["goal"] = goal
            facts.append(fact)
        return facts

    def _precheck(self, row: Row) -> str | None:
        """Return an error code for a row that the judge cannot read, else None."""
        for key in self.info.needs:
            if getattr(row, key) is None:
                return "missing_context"
        return None

    def _store(self, columns: dict[str, list[Any]], row: Row, result: Mapping[str, Any]) -> None:
        """Write one row's values into the columns."""
        for key, value in result.items():
            columns[key][row.index] = value

    def _resolve_backend(self, backend: Backend | str | None) -> Backend | None:
        """Return the backend object; rules have none."""
        if backend is not None:
            raise InvalidOption(
                f"judge {self.info.name!r} is a rule and takes no backend; leave it out"
            )
        return None

    def _find_deviations(self) -> list[str]:
        """Return one sentence per difference from the published setup."""
        found = []
        if self.variant != "official":
            found.append(f"variant {self.variant!r} follows the released package, not the paper")
        found.extend(f"prompt {asset_id!r} is the caller's own" for asset_id in self._prompts)
        if self.options.reasoning != "answer":
            found.append("the reasoning trace is judged together with the answer")
        return found

    def _score(self, rows: Sequence[Row]) -> Iterable[tuple[Row, Mapping[str, Any]]]:
        """Yield every row once, in any order, with the values of its keys."""
        raise NotImplementedError
