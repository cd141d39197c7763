"""Measures what the reachability filter rejects and how long it takes, for each public tokenizer.

Table 1 counts random 20-token suffixes that the isolated check rejects and that the whole
conversation rejects in addition (the seed paper's Table 4). Table 2 filters 512 candidates in a
conversation of about 200 tokens and compares with checking them one by one, where the other side
uses only the tokenizer library (decode, apply_chat_template). Both sides are timed in turn, several
times; the medians are shown. A goal missed gives exit code 1.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from adversariallm.core.types import Conversation, Segments
from adversariallm.tokenization import ChatTokenizer, Slot, load_tokenizer

TEMPLATES = {
    "gpt2": "alpaca",
    "gptoss": "harmony",
    "llama2": "llama-2",
    "mistral_v1": "mistral-v1",
    "mistral_v1_spm": "mistral-v1",
    "mistral_v3_spm": "mistral-v3",
    "tiny_torchtune": "alpaca",
}
WORDS = (
    "the of and a house water river small green tall mountain how can you describe please write "
    "story about cat dog bird tree over under light morning city garden"
).split()
GOAL = 20.0


def talk(draw: random.Random, chat: ChatTokenizer, length: int, slot: Slot) -> Segments:
    """Three turns of plain words, about `length` tokens with the slot."""
    words = length // 3
    while True:

        def text(count: int) -> str:
            return " ".join(draw.choices(WORDS, k=max(1, count))) + "."

        turns = [("user", text(words)), ("assistant", text(words)), ("user", text(words))]
        conversation = Conversation.from_dicts([{"role": r, "content": c} for r, c in turns])
        segments = chat.segments(conversation, slot)
        if len(segments.input_ids) <= length + 4 or words < 4:
            return segments
        words -= max(1, (len(segments.input_ids) - length) // 4)


def one_by_one(chat: ChatTokenizer, segments: Segments, rows: list[list[int]]) -> list[bool]:
    """Verdicts from the tokenizer library alone: decode, place, apply the template, tokenize."""
    tokenizer: Any = chat.tokenizer
    turn = segments.note["slots"]["turn"]
    (place,) = segments.note["slots"]["chars"]
    content = segments.conversation[turn].content
    before = list(segments.before)
    head = len(tokenizer.decode(before, clean_up_tokenization_spaces=False))
    verdicts = []
    for row in rows:
        text = tokenizer.decode([*before, *row], clean_up_tokenization_spaces=False)[head:]
        messages = segments.conversation.to_dicts()
        messages[turn]["content"] = content[: place["start"]] + text + content[place["end"] :]
        ids = tokenizer.apply_chat_template(
            messages, chat_template=chat.template.source, add_generation_prompt=True, tokenize=True
        )["input_ids"]
        ids = [*chat.missing_bos(ids), *ids]
        verdicts.append(tuple(ids) == segments.input_with(row))
    return verdicts


def timed(work: Callable[[], Any]) -> tuple[float, float, Any]:
    """Milliseconds on the wall and of all cores, and the result."""
    wall, cpu = time.perf_counter(), time.process_time()
    result = work()
    return (time.perf_counter() - wall) * 1000, (time.process_time() - cpu) * 1000, result


def speed(
    chat: ChatTokenizer, segments: Segments, batches: list[list[list[int]]]
) -> dict[str, float]:
    """Medians over fresh batches of candidates, both sides in turn."""
    keep = chat.reachability(segments)
    keep(batches[0][:1])  # learns the vocabulary once per tokenizer, not per step
    ours, theirs = [], []
    for rows in batches:
        ours.append(timed(lambda rows=rows: keep(rows, statistics=False)))
        theirs.append(timed(lambda rows=rows: one_by_one(chat, segments, rows)))
        if list(ours[-1][2].kept) != theirs[-1][2]:
            raise SystemExit("the filter and the one-by-one check disagree")
    wall = [statistics.median(t[0] for t in side) for side in (ours, theirs)]
    cpu = [statistics.median(t[1] for t in side) for side in (ours, theirs)]
    return {
        "ours_ms": wall[0],
        "one_by_one_ms": wall[1],
        "ratio": statistics.median(b[0] / a[0] for a, b in zip(ours, theirs, strict=True)),
        "ratio_cpu": cpu[1] / max(cpu[0], 1e-9),
    }


def measure(name: str, folder: Path, args: argparse.Namespace) -> dict[str, Any]:
    """Both tables' rows for one tokenizer."""
    draw = random.Random(name)
    chat = ChatTokenizer(load_tokenizer(folder / name), TEMPLATES.get(name))
    learned = timed(lambda: (chat.codec.pieces, chat.codec.edge, chat.codec.anchors))[0]
    segments = talk(draw, chat, 200, Slot(text=" x" * 20))
    usable: list[int] = chat.mask().nonzero().flatten().tolist()
    n = len(segments.slot_ids)
    counts = chat.reachable(segments, [draw.choices(usable, k=n) for _ in range(args.random)]).stats
    steps, randoms = [], []
    current = list(segments.slot_ids)
    for _ in range(args.repeats):
        rows = []
        for _ in range(512):
            row = [*current]
            row[draw.randrange(n)] = draw.choice(usable)
            rows.append(row)
        steps.append(rows)
        kept = chat.reachable(segments, rows).indices
        current = rows[draw.choice(kept)] if kept else current
        randoms.append([draw.choices(usable, k=n) for _ in range(512)])
    return {
        "tokenizer": name,
        "tokens": len(segments.input_ids),
        "sampled": counts.sampled,
        "isolated": counts.rejected_isolated / counts.sampled,
        "conversation": counts.rejected_conversation / counts.sampled,
        "merged": counts.merged,
        "learn_ms": learned,
        "step": speed(chat, segments, steps),
        "random": speed(chat, segments, randoms),
    }


def main() -> int:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    root = Path(__file__).resolve().parents[2] / "shared" / "data"
    data = Path(os.environ.get("ADVERSARIALLM_DATA", root)) / "tokenizers"
    parser.add_argument("--tokenizers", type=Path, default=data, help="folder of tokenizer folders")
    parser.add_argument("--only", nargs="*", help="names of folders")
    parser.add_argument("--random", type=int, default=2000, help="random suffixes for table 1")
    parser.add_argument("--repeats", type=int, default=5, help="batches of 512 candidates timed")
    parser.add_argument("--json", type=Path, help="write the numbers here")
    args = parser.parse_args()
    names = args.only or sorted(p.name for p in args.tokenizers.iterdir() if p.is_dir())
    print(
        f"{'tokenizer':15} {'isolated':>9} {'+whole':>9} | {'one change: ours':>16}"
        f" {'1 by 1':>8} {'ratio':>6} {'cpu':>6} | {'random: ours':>12}"
        f" {'1 by 1':>8} {'ratio':>6} {'cpu':>6}"
    )
    rows = []
    for name in names:
        r = measure(name, args.tokenizers, args)
        rows.append(r)
        one, rnd = r["step"], r["random"]
        print(
            f"{name:15} {r['isolated']:9.1%} {r['conversation']:9.1%} | {one['ours_ms']:13.1f} ms"
            f" {one['one_by_one_ms']:5.0f} ms {one['ratio']:6.1f} {one['ratio_cpu']:6.1f} |"
            f" {rnd['ours_ms']:9.1f} ms {rnd['one_by_one_ms']:5.0f} ms {rnd['ratio']:6.1f}"
            f" {rnd['ratio_cpu']:6.1f}",
            flush=True,
        )
    if args.json:
        args.json.write_text(json.dumps(rows, indent=1), encoding="utf-8")
    worst = min(rows, key=lambda r: float(r["step"]["ratio"]))
    median = statistics.median(r["step"]["ratio"] for r in rows)
    met = worst["step"]["ratio"] >= GOAL
    print(
        f"{'goal met' if met else 'GOAL MISSED'}: an attack step's 512 candidates are filtered"
        f" {median:.0f} times faster than one by one (median), at least"
        f" {worst['step']['ratio']:.1f} ({worst['tokenizer']}); goal {GOAL:.0f}"
    )
    return int(not met)


if __name__ == "__main__":
    sys.exit(main())
