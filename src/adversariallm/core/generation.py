"""How a model is asked to answer: decoding options shared by every model, attack and defense.

What a model cannot do with these is the model's business to refuse; nothing here samples.
"""

from __future__ import annotations

from typing import Any

from pydantic import Field, model_validator

from adversariallm.core.config import FrozenConfig


class GenerationConfig(FrozenConfig):
    """Decoding options. Order of the filters: temperature, top-k, top-p, min-p, all in float32."""

    temperature: float = Field(0.0, ge=0, description="0 is greedy")
    top_p: float = Field(1.0, gt=0, le=1, description="nucleus mass kept")
    top_k: int | None = Field(None, ge=1, description="number of tokens kept; null keeps all")
    min_p: float = Field(
        0.0, ge=0, le=1, description="least probability relative to the best token's"
    )
    max_new_tokens: int = Field(256, ge=1, description="token limit of the answer")
    min_new_tokens: int = Field(
        0, ge=0, description="stop tokens are forbidden before this many tokens"
    )
    max_reasoning_tokens: int | None = Field(
        None, ge=1, description="token limit of a reasoning trace, apart from the answer's"
    )
    num_return_sequences: int = Field(1, ge=1, description="completions per step")
    stop: tuple[str, ...] = Field((), description="strings that end an answer; not part of it")
    log_probs: bool = Field(False, description="return the log-probability of each generated id")

    @model_validator(mode="after")
    def _consistent(self) -> GenerationConfig:
        if self.min_new_tokens > self.max_new_tokens:
            raise ValueError(
                f"min_new_tokens={self.min_new_tokens} is above "
                f"max_new_tokens={self.max_new_tokens}"
            )
        if any(not s for s in self.stop):
            raise ValueError("a stop string is empty")
        return self

    def per_sample(self) -> dict[str, Any]:
        """The semantic options: all but how many samples are asked for."""
        out = self.semantic()
        out.pop("num_return_sequences")
        return out
