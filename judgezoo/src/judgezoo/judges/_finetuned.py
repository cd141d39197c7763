"""Judges that are fine-tuned models: loading, prompt ids, truncation, label probabilities.

Which prompt, labels and parser apply stands in the judges' own files.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar, Literal

from pydantic import Field

from judgezoo.backends import Backend, LocalBackend, backend_from_spec
from judgezoo.base import Judge, JudgeOptions
from judgezoo.conversation import Conversation, Row, build_row
from judgezoo.deviation import ReproductionWarning
from judgezoo.errors import InvalidOption
from judgezoo.filling import Filled
from judgezoo.tokens import encode, fit_response, plain_ids

__all__ = ["ClassifierJudge", "FinetunedJudge", "FinetunedOptions"]

_CHUNK = 256
_LOW_MASS = 0.9


class FinetunedOptions(JudgeOptions):
    """Options of all fine-tuned judges.

    Attributes:
        checkpoint: hub id or local folder instead of the published model.
        revision: commit on the hub instead of the pinned one.
        dtype: number format of the weights.
        quantization: of the weights.
        device: torch device; a GPU when there is one.
        batch_tokens: most padded tokens in one forward pass.
        max_response_tokens: longer responses are shortened; None takes the published limit.
        trust_remote_code: run code from the checkpoint.
    """

    execution: ClassVar[frozenset[str]] = frozenset({"device", "batch_tokens"})

    checkpoint: str | None = None
    revision: str | None = None
    dtype: Literal["float32", "bfloat16", "float16"] = "bfloat16"
    quantization: Literal["none", "8bit", "4bit"] = "none"
    device: str | None = None
    batch_tokens: int = Field(default=16384, ge=1)
    max_response_tokens: int | None = Field(default=None, ge=1)
    trust_remote_code: bool = False


class FinetunedJudge(Judge):
    """Base of the fine-tuned judges."""

    Options: ClassVar[type[JudgeOptions]] = FinetunedOptions
    adapter: ClassVar[str | None] = None
    revision: ClassVar[str | None] = None
    response_limit: ClassVar[int | None] = None
    new_tokens: ClassVar[int] = 1
    doubles_bos: ClassVar[bool] = False
    multimodal: ClassVar[bool] = False

    def filled(self, row: Row, response: str) -> Filled:
        """Return the judge's prompt for a row with the given response text."""
        raise NotImplementedError

    def hub_id(self) -> str:
        """Return the published model."""
        return self.info.baseline[0]

    def hub_revision(self) -> str | None:
        """Return the pinned commit of the published model, None when nobody has verified one."""
        return self.revision

    def prompt_ids(self, row: Row, response: str) -> list[int]:
        """Return the ids of the judge's prompt for a row with the given response text."""
        filled = self.filled(row, response)
        bos = self.tokenizer.bos_token
        if bos is None or self.variant == "official" or not self.doubles_bos:
            return encode(self.tokenizer, filled)
        if not filled.text.startswith(bos):
            filled = filled.after(bos)
        return [self.tokenizer.bos_token_id, *encode(self.tokenizer, filled)]

    @property
    def tokenizer(self) -> Any:
        """The judge model's tokenizer."""
        return self._model().tokenizer

    @property
    def num_parameters(self) -> int:
        """Number of weights of the judge model."""
        return int(self._model().num_parameters)

    def load(self) -> None:
        """Load the judge model now instead of at first use."""
        self._model().load()

    def unload(self) -> None:
        """Free the judge model."""
        self._model().unload()

    def build_inputs(
        self, conversations: Sequence[Conversation], contexts: Sequence[Any] | None = None
    ) -> list[list[int]]:
        """Return the prompt ids per conversation; an empty list for a row that cannot be judged."""
        facts = self._row_facts(len(conversations), contexts, None, None)
        result = []
        for index, conversation in enumerate(conversations):
            row = build_row(index, conversation, facts[index], reasoning=self.options.reasoning)
            judged = row is not None and self._precheck(row) is None
            fitted = self._fit_or_code(row) if row is not None and judged else ""
            result.append([] if isinstance(fitted, str) else fitted[0])
        return result

    def count_tokens(
        self, conversations: Sequence[Conversation], contexts: Sequence[Any] | None = None
    ) -> list[int]:
        """Return the number of prompt tokens per conversation."""
        return [len(ids) for ids in self.build_inputs(conversations, contexts)]

    def clip_response(self, response: str) -> tuple[str, bool]:
        """Return the response within the judge's limit, and whether it was shortened."""
        limit = self.options.max_response_tokens or self.response_limit
        if limit is None or self.variant == "judgezoo":
            return response, False
        if len(plain_ids(self.tokenizer, response)) <= limit:
            return response, False
        return self._shortened(response, limit), True

    def _shortened(self, response: str, limit: int) -> str:
        """Return the first tokens of a response as text."""
        ids = plain_ids(self.tokenizer, response)[:limit]
        return str(self.tokenizer.decode(ids, skip_special_tokens=True))

    def _fit_or_code(self, row: Row) -> tuple[list[int], bool] | str:
        """Return what `_fit` does, or the error code of a row whose prompt cannot be built."""
        from jinja2 import TemplateError

        try:
            fitted = self._fit(row)
        except TemplateError:
            return "invalid_chat"
        return "prompt_too_long" if fitted is None else fitted

    def _fit(self, row: Row) -> tuple[list[int], bool] | None:
        """Return prompt ids that fit and whether the response was shortened, or None."""
        response, clipped = self.clip_response(row.response)
        room = self._model().context_length - self.new_tokens
        fitted = fit_response(
            lambda text: self.prompt_ids(row, text), self.tokenizer, response, room
        )
        return None if fitted is None else (fitted[0], clipped or fitted[1])

    def _model(self) -> Any:
        """Return the backend, which the constructor has checked."""
        return self.backend

    def _resolve_backend(self, backend: Backend | str | None) -> Backend:
        if isinstance(backend, str):
            backend = backend_from_spec(backend)
        if backend is None:
            options = self.options
            own = options.checkpoint is not None
            return LocalBackend(
                options.checkpoint or self.hub_id(),
                revision=options.revision or (None if own else self.hub_revision()),
                adapter=None if own else self.adapter_id(),
                dtype=options.dtype,
                quantization=options.quantization,
                device=options.device,
                batch_tokens=options.batch_tokens,
                trust_remote_code=options.trust_remote_code,
                multimodal=self.multimodal and not own,
            )
        if not callable(getattr(backend, "label_logprobs", None)):
            raise InvalidOption(
                f"judge {self.info.name!r} reads token probabilities and needs a local model "
                f"(label_logprobs and generate_ids), got {type(backend).__name__}"
            )
        return backend

    def adapter_id(self) -> str | None:
        """Return the published adapter, if the model is one."""
        return self.adapter

    def _find_deviations(self) -> list[str]:
        found = super()._find_deviations()
        options = self.options
        if options.checkpoint is not None:
            found.append(f"the published model is {self.hub_id()}, this is {options.checkpoint}")
        pin = self.hub_revision()
        if options.revision is not None and options.revision != pin:
            found.append(f"the pinned revision is {pin or 'unverified'}, not {options.revision}")
        if options.quantization != "none":
            found.append(f"the weights are quantized to {options.quantization}")
        if options.max_response_tokens not in (None, self.response_limit):
            limit = self.response_limit or "the context"
            found.append(
                f"responses are cut at {options.max_response_tokens} tokens, the paper's at {limit}"
            )
        return found

    def _score(self, rows: Sequence[Row]) -> Iterable[tuple[Row, Mapping[str, Any]]]:
        for start in range(0, len(rows), _CHUNK):
            ready: list[tuple[Row, list[int]]] = []
            shortened = 0
            for row in rows[start : start + _CHUNK]:
                fitted = self._fit_or_code(row)
                if isinstance(fitted, str):
                    yield row, {"error": fitted}
                else:
                    ready.append((row, fitted[0]))
                    shortened += fitted[1]
            if shortened:
                self._warn(f"{shortened} responses were shortened to fit")
            yield from self._score_ids(ready)

    def _score_ids(
        self, ready: Sequence[tuple[Row, list[int]]]
    ) -> Iterable[tuple[Row, Mapping[str, Any]]]:
        """Yield the results of rows whose prompt ids are ready."""
        raise NotImplementedError

    def _warn(self, text: str) -> None:
        warnings.warn(f"judge {self.info.name!r}: {text}", ReproductionWarning, stacklevel=6)


class ClassifierJudge(FinetunedJudge):
    """Base of judges that read two groups of label tokens after the prompt."""

    def labels(self) -> tuple[list[int], list[int]]:
        """Return the ids that mean harmful and those that mean harmless."""
        raise NotImplementedError

    def result(self, harmful: Sequence[float], harmless: Sequence[float]) -> dict[str, Any]:
        """Return a row's result from the probabilities of its label tokens."""
        positive = math.fsum(harmful)
        mass = positive + math.fsum(harmless)
        return {"p_harmful": min(1.0, positive), "label_mass": min(1.0, mass)}

    def _score_ids(
        self, ready: Sequence[tuple[Row, list[int]]]
    ) -> Iterable[tuple[Row, Mapping[str, Any]]]:
        if not ready:
            return
        harmful, harmless = self.labels()
        logprobs = self._model().label_logprobs([ids for _, ids in ready], [*harmful, *harmless])
        low = 0
        for (row, _), values in zip(ready, logprobs, strict=True):
            probabilities = [math.exp(value) for value in values]
            found = self.result(probabilities[: len(harmful)], probabilities[len(harmful) :])
            low += found["label_mass"] < _LOW_MASS
            yield row, found
        if low:
            self._warn(
                f"in {low} rows the label tokens hold under {_LOW_MASS:.0%} of the probability"
            )
