"""One search of one arm on one behavior: where it is kept, and how it is made once."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from adversariallm.core.types import Behavior
from adversariallm.models.local import LocalModel
from gcg_contest import ours
from gcg_contest.arms import INITIAL, TOPK, Arm
from gcg_contest.reenter import reenter

ROOT = Path(__file__).resolve().parents[2]
PINNED = ("nanogcg==0.3.0", "transformers==4.47.1", "tokenizers==0.21.4", "huggingface-hub==0.36.0")


@dataclass(frozen=True)
class Sizes:
    """What every cell of one contest has in common."""

    steps: int
    width: int
    new_tokens: int

    @property
    def name(self) -> str:
        """Part of a cell's file name."""
        return f"w{self.width}-s{self.steps}-t{self.new_tokens}"


@dataclass(frozen=True)
class Cell:
    """One search."""

    model: str
    arm: Arm
    behavior: Behavior
    seed: int
    sizes: Sizes

    def file(self, work: Path) -> Path:
        """Where its result is kept."""
        arm = self.arm.name.replace(" ", "_")
        name = f"{self.behavior.id}-{self.seed}-{self.sizes.name}.json"
        return work / "cells" / self.model.replace("/", "_") / arm / name

    def read(self, work: Path) -> dict[str, Any] | None:
        """The result, or None."""
        path = self.file(work)
        return json.loads(path.read_text(encoding="utf-8")) if path.exists() else None

    def write(self, work: Path, result: dict[str, Any]) -> None:
        """Keep the result; a killed process leaves no half of it."""
        path = self.file(work)
        path.parent.mkdir(parents=True, exist_ok=True)
        half = path.with_suffix(".half")
        half.write_text(json.dumps(result), encoding="utf-8")
        half.replace(path)


def libraries(folder: Path) -> Path:
    """Folder of nanoGCG with the transformers it was made for; all else is this environment's."""
    if not folder.exists():
        command = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target"]
        subprocess.run([*command, str(folder), *PINNED], check=True)
    return folder


def export(model: LocalModel, folder: Path) -> Path:
    """The weights in use, adapter merged, as a folder that both sides can load."""
    if not folder.exists():
        half = folder.with_name(f"{folder.name}.{os.getpid()}")
        model.engine.forward.model.save_pretrained(half)
        model.chat.tokenizer.save_pretrained(half)
        template = model.chat.template.source
        (half / "chat_template.jinja").write_text(template, encoding="utf-8")
        try:
            half.rename(folder)
        except OSError:  # another process was first
            shutil.rmtree(half)
    return folder


class NanoGcg:
    """nanoGCG on one model, in a process that is started with the first search."""

    def __init__(self, model: LocalModel, work: Path, oracle: Path) -> None:
        """Search on `model`; exported weights and a log go to `work`."""
        self.model, self.work, self.oracle = model, work, oracle
        self.process: subprocess.Popen[str] | None = None

    def _start(self) -> subprocess.Popen[str]:
        folder = export(self.model, self.work / "models" / self.model.name.replace("/", "_"))
        inner = self.model.engine.forward
        dtype = str(next(inner.model.parameters()).dtype).removeprefix("torch.")
        worker = Path(__file__).with_name("theirs.py")
        command = [sys.executable, str(worker), "--model", str(folder), "--dtype", dtype]
        environment = {**os.environ, "PYTHONPATH": str(libraries(self.oracle))}
        return subprocess.Popen(
            [*command, "--device", inner.device.type],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=(self.work / "nanogcg.log").open("a"),
            text=True,
        )

    def search(self, cell: Cell) -> dict[str, Any]:
        """One run of nanoGCG with the cell's budget."""
        self.process = self.process or self._start()
        assert self.process.stdin is not None and self.process.stdout is not None
        talk = cell.behavior.conversation
        if len(talk) != 1:
            raise SystemExit(f"behavior {cell.behavior.id}: the contest takes single turns")
        wanted = {
            "prompt": talk[0].content,
            "target": cell.behavior.target,
            "initial": INITIAL,
            "topk": TOPK,
            "draws": ours.draws(cell.behavior, cell.seed, cell.sizes.steps, cell.sizes.width),
            "special": sorted(self.model.chat.codec.special_ids),
            "steps": cell.sizes.steps,
            "width": cell.sizes.width,
            "keep_template": cell.arm.keep_template,
        }
        self.process.stdin.write(json.dumps(wanted) + "\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(f"nanoGCG ended: see {self.work / 'nanogcg.log'}")
        return json.loads(line)

    def close(self) -> None:
        """End the process."""
        if self.process is not None and self.process.stdin is not None:
            self.process.stdin.close()
            self.process.wait()


def make(cell: Cell, model: LocalModel, nano: NanoGcg) -> dict[str, Any]:
    """Search, then send every text back through the package."""
    if cell.arm.who == "nanogcg":
        result = nano.search(cell)
    else:
        sizes = cell.sizes
        result = ours.search(model, cell.behavior, cell.arm, cell.seed, sizes.steps, sizes.width)
    if "error" not in result:
        result["back"] = reenter(model, cell.behavior, result, cell.sizes.new_tokens)
    return {**result, "load": os.getloadavg()[0]}
