"""Separate token limits for a reasoning trace and for the answer after it.

Two requests in a row: the trace up to its end mark or its own limit, then the answer with the limit
of answers. Nothing here knows a model; the marks come from the chat template.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from adversariallm.inference.flops import Architecture
from adversariallm.inference.requests import Generation, Request
from adversariallm.tokenization import ChatTokenizer
from adversariallm.tokenization.thinking import Marks

Run = Callable[[Sequence[Request]], list[Generation]]


def generate_in_two(
    requests: Sequence[Request], chat: ChatTokenizer, marks: Marks, arch: Architecture, run: Run
) -> list[Generation]:
    """Continue every request, the trace limited by `max_reasoning_tokens`.

    A trace that reaches its limit ends the row without an answer. A row that opens no trace has
    only the answer's limit. The answer draws from a stream of its own, so that it does not depend
    on how long the trace is allowed to be.
    """
    traces = run([_for_trace(r, marks) for r in requests])
    answers: dict[int, Request] = {}
    out = list(traces)
    for i, (request, trace) in enumerate(zip(requests, traces, strict=True)):
        _, _, finished = chat.split_reply(request.ids or (), trace.ids)
        begun = not finished or trace.stop_string == marks.end
        left = request.generation.max_new_tokens - (0 if begun else len(trace.ids))
        ended = trace.stop_string == marks.end or (not begun and trace.finish_reason == "length")
        if not begun and left < 0:
            out[i] = _cut(request, trace, arch)
        elif ended and left > 0:
            answers[i] = _for_answer(request, trace, left)
    found = run(list(answers.values())) if answers else []
    for i, answer in zip(answers, found, strict=True):
        out[i] = _joined(requests[i], traces[i], answer, arch)
    return out


def _for_trace(request: Request, marks: Marks) -> Request:
    """The request with the trace's limit, stopping at its end."""
    options = request.generation
    limit = options.max_reasoning_tokens or options.max_new_tokens
    changes = {
        "max_new_tokens": limit,
        "min_new_tokens": min(limit, options.min_new_tokens),
        "stop": (*options.stop, marks.end),
    }
    return replace(request, generation=options.model_copy(update=changes))


def _for_answer(request: Request, trace: Generation, limit: int) -> Request:
    changes = {
        "max_new_tokens": limit,
        "min_new_tokens": min(limit, request.generation.min_new_tokens),
    }
    return replace(
        request,
        ids=(*(request.ids or ()), *trace.ids),
        generation=request.generation.model_copy(update=changes),
        rng=None if request.rng is None else request.rng.child("answer"),
    )


def _joined(
    request: Request, trace: Generation, answer: Generation, arch: Architecture
) -> Generation:
    """One continuation; useful work as if it had been made in one go."""
    ids = (*trace.ids, *answer.ids)
    log_probs = None
    if trace.log_probs is not None and answer.log_probs is not None:
        log_probs = (*trace.log_probs, *answer.log_probs)
    return replace(
        answer,
        ids=ids,
        log_probs=log_probs,
        usage=arch.generation(request.length, len(ids)),
        executed=trace.executed + answer.executed,
    )


def _cut(request: Request, trace: Generation, arch: Architecture) -> Generation:
    """An answer without a trace, cut at the limit of answers."""
    keep = request.generation.max_new_tokens
    return replace(
        trace,
        ids=trace.ids[:keep],
        log_probs=None if trace.log_probs is None else trace.log_probs[:keep],
        finish_reason="length",
        stop_string=None,
        usage=arch.generation(request.length, keep),
    )
