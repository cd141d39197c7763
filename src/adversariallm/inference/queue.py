"""A queue in which threads that run many behaviors share batches on one engine.

There is no thread of its own: whoever waits for an answer advances the common batch. Results do not
depend on who shares it.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence

import torch

from adversariallm.inference.decode import Decoder
from adversariallm.inference.engine import Engine
from adversariallm.inference.requests import Generation, Request


class MicroBatcher:
    """Collects the generation requests of several threads into one running batch."""

    def __init__(self, engine: Engine) -> None:
        """Share `engine`."""
        self.engine = engine
        self._running = threading.Lock()  # held by the thread that advances the batch
        self._state = threading.Lock()  # guards what follows
        self._decoder: Decoder | None = None
        self._arrived: dict[int, Request] = {}
        self._done: dict[int, Generation] = {}
        self._failed: dict[int, BaseException] = {}
        self._next_key = 0

    def generate(self, requests: Sequence[Request]) -> list[Generation]:
        """As `Engine.generate`, sharing batches with the calls of other threads.

        Raises:
            ContextLengthError: a prompt of this call does not fit; other calls are not affected.
        """
        for request in requests:
            self.engine.check_prompt(request)
        keys = self._enter(requests)
        while not self._finished(keys):
            with self._running:
                if not self._finished(keys):
                    self._advance()
        return self._leave(keys)

    def _enter(self, requests: Sequence[Request]) -> list[int]:
        with self._state:
            keys = list(range(self._next_key, self._next_key + len(requests)))
            self._next_key += len(requests)
            self._arrived.update(zip(keys, requests, strict=True))
            return keys

    def _finished(self, keys: Sequence[int]) -> bool:
        with self._state:
            return all(k in self._done or k in self._failed for k in keys)

    def _leave(self, keys: Sequence[int]) -> list[Generation]:
        with self._state:
            failures = [self._failed.pop(k) for k in keys if k in self._failed]
            found = [self._done.pop(k) for k in keys if k in self._done]
        if failures:
            raise failures[0]
        return found

    @torch.no_grad()
    def _advance(self) -> None:
        """Let new requests in and run one step; a failure is handed to everyone in the batch."""
        with self._state:
            arrived, self._arrived = self._arrived, {}
        try:
            with self.engine.session():
                decoder = self._join(arrived)
                finished = decoder.step()
        except Exception as error:  # noqa: BLE001  every caller in the batch raises it
            with self._state:
                members = [r.index for r in self._decoder.rows] if self._decoder else []
                waiting = list(self._decoder.waiting) if self._decoder else []
                for key in {*members, *waiting, *arrived} - self._done.keys():
                    self._failed[key] = error
                self._decoder = None
            return
        with self._state:
            self._done.update(finished)

    def _join(self, arrived: dict[int, Request]) -> Decoder:
        """The running batch with the new requests waiting; a fresh one where nothing runs."""
        decoder = self._decoder
        if decoder is None or not decoder.busy:
            decoder = self._decoder = self.engine.decoder(list(arrived.values()))
        elif arrived:
            fits = self.engine.decoder(list(arrived.values())).max_rows
            decoder.max_rows = min(decoder.max_rows, fits)
        for key, request in arrived.items():
            decoder.submit(key, request)
        return decoder
