"""The queue: threads share batches, and results are as if each had been alone."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from adversariallm.core.errors import ContextLengthError
from adversariallm.core.generation import GenerationConfig
from adversariallm.core.rng import Rng
from adversariallm.inference import Engine, MicroBatcher, Request
from adversariallm.inference.decode import Decoder

from .conftest import random_ids

Engines = Callable[..., Engine]
OPTIONS = GenerationConfig(max_new_tokens=6, temperature=1.0, log_probs=True)


def jobs() -> list[list[Request]]:
    prompts = random_ids([4, 30, 61, 9, 45, 7, 88, 12])
    stream = Rng.root(0)
    return [
        [Request(p, generation=OPTIONS, rng=stream.child(i, k)) for k in range(1 + i % 3)]
        for i, p in enumerate(prompts)
    ]


def test_many_threads_get_what_each_would_get_alone(engines: Engines) -> None:
    engine = engines("llama")
    expected = [engine.generate(job) for job in jobs()]
    queue = MicroBatcher(engine)
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(queue.generate, jobs()))
    strip = [[(r.ids, r.log_probs, r.usage) for r in rows] for rows in found]
    assert strip == [[(r.ids, r.log_probs, r.usage) for r in rows] for rows in expected]


def test_requests_that_wait_are_run_together(
    engines: Engines, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = MicroBatcher(engines("llama"))
    sizes = []
    step = Decoder.step

    def counting(self: Decoder) -> object:
        out = step(self)
        sizes.append(len(self.rows))
        return out

    monkeypatch.setattr(Decoder, "step", counting)
    with queue._running, ThreadPoolExecutor(4) as pool:  # nobody can start before all are here
        waiting = [pool.submit(queue.generate, job) for job in jobs()[:4]]
        while len(queue._arrived) < sum(len(j) for j in jobs()[:4]):
            pass
        queue._advance()
        queue._running.release()
        results = [w.result() for w in waiting]
        queue._running.acquire()
    assert sizes[0] == sum(len(r) for r in results) == 7


def test_a_bad_request_fails_its_own_caller_only(engines: Engines) -> None:
    engine = engines("llama")
    queue = MicroBatcher(engine)
    with pytest.raises(ContextLengthError):
        queue.generate([Request(random_ids([engine.context_length])[0])])
    assert queue.generate([]) == []
    assert len(queue.generate(jobs()[0])) == 1


def test_a_failing_model_fails_every_caller_and_the_queue_recovers(
    engines: Engines, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = MicroBatcher(engines("llama"))
    with monkeypatch.context() as patch:
        patch.setattr(Decoder, "step", lambda self: (_ for _ in ()).throw(RuntimeError("broken")))
        with pytest.raises(RuntimeError, match="broken"):
            queue.generate(jobs()[0])
    assert len(queue.generate(jobs()[1])) == 2
