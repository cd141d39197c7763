"""NF4 and int8 on a real model: near the whole weights, batch-invariant, differentiable."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from adversariallm.core.generation import GenerationConfig
from adversariallm.inference import Engine, Prefix, Request
from adversariallm.models.loading import load_model
from adversariallm.models.local import LocalModel

pytest.importorskip("bitsandbytes", reason="needs adversariallm[quantized]")
pytestmark = pytest.mark.slow
TEXTS = (
    "The river rises in the hills, passes three villages and a mill, and reaches the sea.",
    "Bread is made of flour, water, salt and yeast. Knead the dough for ten minutes.",
    "The town began at a ford, where traders met in summer. Later came a bridge, then a mill.",
)
FARTHEST = {"nf4": 0.3, "int8": 0.05}
"""Nats per token, of the mean over all texts [measured: 0.07 and 0.03]."""


@pytest.fixture(scope="module", params=FARTHEST)
def quantized(request: pytest.FixtureRequest) -> LocalModel:
    model = load_model("smollm2-135m", quantization=request.param)
    assert isinstance(model, LocalModel)
    return model


def _losses(engine: Engine, texts: list[list[int]], chunk: int | None = None) -> Any:
    found = engine.losses(Prefix(), [t[:2] for t in texts], [t[2:] for t in texts], chunk=chunk)
    return torch.cat(found.per_token)


def test_losses_generation_and_gradients(quantized: LocalModel, smollm2: LocalModel) -> None:
    engine, whole = quantized.engine, smollm2.engine
    assert engine.report.invariant and not engine.report.flags
    assert engine.arch == whole.arch
    texts = [smollm2.chat.tokenizer(text)["input_ids"] for text in TEXTS]

    together, single = _losses(engine, texts, 3), _losses(engine, texts, 1)
    assert torch.equal(together, single)
    kind = str(quantized.identity()["quantization"])
    distance = together.mean() - _losses(whole, texts).mean()
    assert 0 < abs(float(distance)) < FARTHEST[kind]

    options = GenerationConfig(max_new_tokens=8, log_probs=True)
    requests = [Request(tuple(t), generation=options) for t in texts]
    batch = [(g.ids, g.log_probs) for g in engine.generate(requests)]
    assert [(g.ids, g.log_probs) for r in requests for g in engine.generate([r])] == batch

    model = engine.forward.model
    ids, target = texts[0][:12], texts[1][:6]
    found = engine.gradient(engine.prefix(ids[:4]), ids[4:], range(3), target)
    rows = engine.embed([*ids, *target[:-1]]).requires_grad_(True)
    with engine.forward.plain():
        logits = model(inputs_embeds=rows[None]).logits[0, -len(target) :]
    loss = torch.nn.functional.cross_entropy(logits, torch.tensor(target))
    (gradient,) = torch.autograd.grad(loss, rows)
    wanted = gradient[4:7]
    assert found.loss == pytest.approx(float(loss.detach()), abs=1e-4)
    torch.testing.assert_close(found.slot, wanted, rtol=1e-3, atol=1e-4 * float(wanted.abs().max()))
