"""`adversariallm run` that notes what it finished, so that a test can kill it at chosen moments."""

from __future__ import annotations

import os
import sys
from typing import Any

from adversariallm.runs.campaign import Watcher, run

FD = os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)


def mark(*words: object) -> None:
    os.write(FD, (" ".join(map(str, words)) + "\n").encode())


class Marks(Watcher):
    def event(self, task: Any, event: Any) -> None:
        mark(event.kind, task.spec.fit.ids[0], event.step)

    def judging(self, judge: str, count: int) -> None:
        mark("judging", judge, count)

    def judged(self, judge: str, run_id: str, result: Any) -> None:
        mark("judged", judge, run_id)


mark("start")
finished = run(*sys.argv[2:], watcher=Marks())
mark("end", finished.exit_code)
