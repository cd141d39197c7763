"""A transformers model in this process: chat texts, greedy continuations, label probabilities.

Decoding is greedy and written here, so no sampling flag of a checkpoint applies; results do not
depend on the batch, which only the available memory decides.
"""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from judgezoo.backends.base import ChatChoice, ChatReply, ChatRequest, Usage
from judgezoo.backends.loading import folder_hash, load_model, state_hash, transformers_module
from judgezoo.errors import BackendError
from judgezoo.filling import Filled
from judgezoo.tokens import encode

if TYPE_CHECKING:
    import torch

__all__ = ["LocalBackend"]

_BATCH_TOKENS = 16384


class LocalBackend:
    """A causal language model and its tokenizer, loaded at first use."""

    def __init__(
        self,
        name: str | Path,
        *,
        revision: str | None = None,
        adapter: str | Path | None = None,
        adapter_revision: str | None = None,
        dtype: Literal["float32", "bfloat16", "float16"] = "bfloat16",
        quantization: Literal["none", "8bit", "4bit"] = "none",
        device: str | None = None,
        batch_tokens: int = _BATCH_TOKENS,
        trust_remote_code: bool = False,
        multimodal: bool = False,
    ) -> None:
        """Keep the setup; nothing is loaded.

        Args:
            name: hub id or local folder.
            revision: commit on the hub.
            adapter: PEFT adapter, hub id or local folder.
            adapter_revision: its commit on the hub.
            dtype: number format of the weights.
            quantization: of the weights, with bitsandbytes.
            device: torch device; a GPU when there is one, else the CPU.
            batch_tokens: most padded tokens in one forward pass.
            trust_remote_code: run code from the checkpoint; wants a pinned revision.
            multimodal: load the image-and-text class of the checkpoint; only text is used.

        Raises:
            BackendError: remote code without a pinned revision.
        """
        if trust_remote_code and revision is None and not Path(name).is_dir():
            raise BackendError(f"{name}: remote code runs only from a pinned revision=")
        self.name = str(name)
        self._setup: dict[str, Any] = {
            "revision": revision,
            "adapter": None if adapter is None else str(adapter),
            "adapter_revision": adapter_revision,
            "dtype": dtype,
            "quantization": quantization,
            "trust_remote_code": trust_remote_code,
            "multimodal": multimodal,
        }
        self._device = device
        self._batch_tokens = batch_tokens
        self._model: Any = None
        self._tokenizer: Any = None
        self._in_memory = False

    @classmethod
    def from_objects(cls, model: Any, tokenizer: Any, *, name: str = "in-memory") -> LocalBackend:
        """Wrap a loaded transformers model; it is left as it is.

        Args:
            model: causal language model in evaluation mode.
            tokenizer: its tokenizer.
            name: what to call it in fingerprints.
        """
        backend = cls(name, dtype=str(model.dtype).removeprefix("torch."))  # type: ignore[arg-type]
        backend._model, backend._tokenizer, backend._in_memory = model, tokenizer, True
        return backend

    def __repr__(self) -> str:
        """Return the model's name."""
        return f"LocalBackend({self.name!r})"

    def identity(self) -> Mapping[str, Any]:
        """Return the model and its number format; device and batch size do not belong to it."""
        identity = {"type": "local", "model": self.name, **self._setup}
        if self._in_memory:
            identity["weights"] = state_hash(self._model)
        for key, hashed in (("model", "weights"), ("adapter", "adapter_weights")):
            folder = Path(str(identity[key]))
            if identity[key] is not None and not self._in_memory and folder.is_dir():
                identity |= {key: folder.name, hashed: folder_hash(folder)}
        return identity

    def observed(self) -> Mapping[str, Any]:
        """Return the resolved commit and the chat template's hash, once loaded."""
        if self._model is None:
            return {}
        template = getattr(self._tokenizer, "chat_template", None)
        return {
            "commit": getattr(self._model.config, "_commit_hash", None),
            "chat_template": hashlib.sha256(str(template).encode()).hexdigest(),
        }

    @property
    def tokenizer(self) -> Any:
        """The tokenizer, loaded at first use."""
        if self._tokenizer is None:
            transformers = transformers_module()
            self._tokenizer = transformers.AutoTokenizer.from_pretrained(
                self.name,
                revision=self._setup["revision"],
                trust_remote_code=self._setup["trust_remote_code"],
            )
        return self._tokenizer

    @property
    def context_length(self) -> int:
        """Longest prompt and answer in tokens."""
        config = self._loaded().config.get_text_config()
        return int(getattr(config, "max_position_embeddings", 4096))

    @property
    def num_parameters(self) -> int:
        """Number of weights."""
        return int(sum(p.numel() for p in self._loaded().parameters()))

    def load(self) -> None:
        """Load the model now instead of at first use."""
        self._loaded()

    def unload(self) -> None:
        """Free the model; the next use loads it again."""
        self._model = None

    def label_logprobs(
        self, prompts: Sequence[Sequence[int]], labels: Sequence[int]
    ) -> list[list[float]]:
        """Return natural log-probabilities of the label ids after each prompt.

        Args:
            prompts: token ids, none empty.
            labels: token ids whose probability is wanted.

        Returns:
            Per prompt, one value per label; the softmax runs over the whole vocabulary in float32.
        """
        import torch

        results: list[list[float]] = [[] for _ in prompts]

        def work(batch: Sequence[int]) -> None:
            ids, mask = self._left_padded([prompts[i] for i in batch])
            logits = self._forward(ids, mask, _positions(mask), None).logits[:, -1]
            logprobs = torch.log_softmax(logits.float(), dim=-1)[:, list(labels)]
            for index, row in zip(batch, logprobs.tolist(), strict=True):
                results[index] = row

        self._in_batches([len(p) for p in prompts], work)
        return results

    def generate_ids(
        self, prompts: Sequence[Sequence[int]], *, max_new_tokens: int
    ) -> list[list[int]]:
        """Return greedy continuations, without the end token.

        Args:
            prompts: token ids, none empty.
            max_new_tokens: limit on each continuation.
        """
        results: list[list[int]] = [[] for _ in prompts]

        def work(batch: Sequence[int]) -> None:
            answers = self._greedy([prompts[i] for i in batch], max_new_tokens)
            for index, answer in zip(batch, answers, strict=True):
                results[index] = answer

        self._in_batches([len(p) + max_new_tokens for p in prompts], work)
        return results

    def generate(self, requests: Sequence[ChatRequest]) -> list[ChatReply]:
        """Answer chat requests greedily through the model's chat template.

        Raises:
            BackendError: a request wants sampling, several answers or a schema.
        """
        for request in requests:
            if request.temperature not in (None, 0, 0.0) or request.n != 1 or request.schema:
                raise BackendError(
                    "the local backend answers greedily, once and without a schema; "
                    "use temperature=0 and n=1, or another backend"
                )
        replies: list[ChatReply] = []
        for request in requests:
            replies.extend(self._chat(request))
        return replies

    def _chat(self, request: ChatRequest) -> list[ChatReply]:
        """Answer one request; a template that rejects the roles is this request's failure."""
        from jinja2 import TemplateError

        messages = [{"role": m["role"], "content": m["content"]} for m in request.messages]
        try:
            text = self.tokenizer.apply_chat_template(
                messages, tokenize=False, add_generation_prompt=True
            )
        except (TemplateError, ValueError) as error:
            problem = f"chat template: {error}"
            return [ChatReply(status="provider_error", error=problem, served_model=self.name)]
        ids = encode(self.tokenizer, Filled(text + (request.prefill or ""), ()))
        if len(ids) + request.max_tokens > self.context_length:
            return [ChatReply(status="context_overflow", error=f"{len(ids)} prompt tokens")]
        answer = self.generate_ids([ids], max_new_tokens=request.max_tokens)[0]
        finish = "length" if len(answer) >= request.max_tokens else "stop"
        choice = ChatChoice(
            text=self.tokenizer.decode(answer, skip_special_tokens=True), finish_reason=finish
        )
        usage = Usage(input_tokens=len(ids), output_tokens=len(answer))
        return [ChatReply(choices=(choice,), usage=usage, served_model=self.name)]

    def _loaded(self) -> Any:
        """Load the model and its adapter if need be."""
        if self._model is None:
            self._model = load_model(self.name, self._setup, self._device)
        return self._model

    def _forward(self, ids: Any, mask: Any, positions: Any, cache: Any) -> Any:
        import torch

        model = self._loaded()
        arguments: dict[str, Any] = {"use_cache": cache is not None}
        if cache is not None:
            arguments[_cache_argument(model)] = cache
        with torch.inference_mode():
            return model(
                input_ids=ids,
                attention_mask=mask,
                position_ids=positions,
                logits_to_keep=1,
                **arguments,
            )

    def _left_padded(self, rows: Sequence[Sequence[int]]) -> tuple[torch.Tensor, torch.Tensor]:
        """Return ids and mask, padded on the left; the pad id never reaches attention."""
        import torch

        width = max(len(row) for row in rows)
        ids = [[0] * (width - len(row)) + list(row) for row in rows]
        mask = [[0] * (width - len(row)) + [1] * len(row) for row in rows]
        device = self._loaded().device
        return torch.tensor(ids, device=device), torch.tensor(mask, device=device)

    def _greedy(self, rows: Sequence[Sequence[int]], max_new_tokens: int) -> list[list[int]]:
        """Decode a batch; a finished row keeps its place and its further tokens are ignored."""
        import torch
        from transformers import DynamicCache

        ends = self._end_ids()
        ids, mask = self._left_padded(rows)
        positions, cache = _positions(mask), DynamicCache()
        answers: list[list[int]] = [[] for _ in rows]
        open_rows = set(range(len(rows)))
        for _ in range(max_new_tokens):
            logits = self._forward(ids, mask, positions, cache).logits[:, -1]
            chosen = logits.float().argmax(dim=-1)
            for index, token in enumerate(chosen.tolist()):
                if index in open_rows and token in ends:
                    open_rows.discard(index)
                elif index in open_rows:
                    answers[index].append(token)
            if not open_rows:
                break
            ids, positions = chosen[:, None], positions[:, -1:] + 1
            mask = torch.cat([mask, torch.ones_like(chosen)[:, None]], dim=1)
        return answers

    def _end_ids(self) -> frozenset[int]:
        """Return the ids that end an answer, from the checkpoint and the tokenizer."""
        ends: set[int] = set()
        generation = getattr(self._loaded(), "generation_config", None)
        for value in (getattr(generation, "eos_token_id", None), self.tokenizer.eos_token_id):
            if isinstance(value, int):
                ends.add(value)
            elif value is not None:
                ends.update(value)
        return frozenset(ends)

    def _in_batches(self, lengths: Sequence[int], work: Any) -> None:
        """Run ``work`` on index batches of similar length; halve a batch that runs out of memory.

        Args:
            lengths: padded cost of each row in tokens.
            work: called with indices.
        """
        import torch

        order = sorted(range(len(lengths)), key=lambda index: lengths[index])
        pending = _token_batches(order, lengths, self._batch_tokens)
        while pending:
            batch = pending.pop(0)
            try:
                work(batch)
            except torch.OutOfMemoryError:
                if len(batch) == 1:
                    raise
                torch.cuda.empty_cache()
                half = len(batch) // 2
                pending[:0] = [batch[:half], batch[half:]]


def _token_batches(
    order: Sequence[int], lengths: Sequence[int], budget: int
) -> list[Sequence[int]]:
    """Cut an order into runs whose padded size stays within the budget."""
    batches: list[Sequence[int]] = []
    current: list[int] = []
    for index in order:
        if current and lengths[index] * (len(current) + 1) > budget:
            batches.append(current)
            current = []
        current.append(index)
    if current:
        batches.append(current)
    return batches


def _cache_argument(model: Any) -> str:
    """Return what this version of transformers calls the cache."""
    return "cache" if "cache" in inspect.signature(model.forward).parameters else "past_key_values"


def _positions(mask: Any) -> Any:
    """Return position ids: 0 for the first real token of each row."""
    return (mask.cumsum(dim=-1) - 1).clamp(min=0)
