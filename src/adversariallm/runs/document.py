"""The published text of a run: one JSON document (Table 6), readable line by line.

Line 1 is the header, then each evaluated behavior opens with a line of its own and every step is
one line.  This module turns documents into bytes and back and joins what later passes stored
beside them; it opens no store.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import zstandard

from adversariallm.core.budget import Ledgers
from adversariallm.core.errors import SchemaError
from adversariallm.core.records import SCHEMA_VERSION
from adversariallm.runs.files import CorruptRunError, decode, encode

PLAIN, COMPRESSED = "run.json", "run.json.zst"
VOLATILE = frozenset({"time_taken", "total_time", "execution"})
_LEVEL = 6
_CHUNK = 65536
_END = b'},"runs":[\n'  # closes `execution` and opens the list of runs


def _opened(value: Mapping[str, Any], key: str) -> bytes:
    """Return the JSON of a mapping left open at a list under `key`, which comes last."""
    head = encode({k: v for k, v in value.items() if k != key})[:-1]
    comma = b"," if len(head) > 1 else b""
    return b'%b%b"%b":[\n' % (head, comma, key.encode())


def encode_body(runs: Iterable[Mapping[str, Any]]) -> bytes:
    """Return everything after the header line."""
    parts: list[bytes] = []
    for run in runs:
        steps = b",\n".join(encode(step) for step in run["steps"])
        parts.append(_opened(run, "steps") + steps + (b"\n]}" if steps else b"]}"))
    return b",\n".join(parts) + (b"\n]}\n" if parts else b"]}\n")


def encode_document(document: Mapping[str, Any]) -> tuple[bytes, bytes]:
    """Return header line and body of a published run, with the hashes of both in `execution`.

    `execution` comes last, and `header_sha256` last in it, over everything before it: so the
    header is checked as it stands, without writing it anew.

    Args:
        document: Header fields and `runs`, a list of mappings with `steps`, a list of mappings.
    """
    body = encode_body(document["runs"])
    given = document.get("execution", {})
    execution = {k: v for k, v in given.items() if k not in ("body_sha256", "header_sha256")}
    execution["body_sha256"] = hashlib.sha256(body).hexdigest()
    header = {k: v for k, v in document.items() if k not in ("execution", "runs")}
    line = _opened({**header, "execution": execution}, "runs").removesuffix(_END)
    return line + b',"header_sha256":"%b"' % _hash(line) + _END, body


def _hash(data: bytes) -> bytes:
    return hashlib.sha256(data).hexdigest().encode()


def header_is_verified(header: Mapping[str, Any]) -> bool:
    """Whether a hash covers the header; none does in what older releases published."""
    return "header_sha256" in header.get("execution", {})


def _check_header(line: bytes, header: Mapping[str, Any], path: Path) -> None:
    """Compare a header line with its own hash, where it has one that this release can judge."""
    if not header_is_verified(header) or header.get("schema_version") != SCHEMA_VERSION:
        return
    signed, _, rest = line.rpartition(b',"header_sha256":"')
    if rest != _hash(signed) + b'"' + _END:
        raise CorruptRunError(_edited(path, "execution.header_sha256 does not match its header"))


def _edited(path: Path, why: str) -> str:
    return (
        f"{path} was changed after it was published ({why}). Restore it from a copy, or set it "
        "aside with `adversariallm runs gc --set-aside` and run again."
    )


def _check_sums(document: Mapping[str, Any], path: Path) -> None:
    """Hold the costs in a header without a hash against the steps, whose hash is right.

    What was imported has no sum to be held against.
    """
    if not document.get("resolved"):
        return
    try:
        wrong = _wrong_sums(document)
    except (AttributeError, TypeError) as error:
        wrong = [f"{error}"]
    if wrong:
        raise CorruptRunError(_edited(path, f"its ledgers are no sum over steps: {wrong[0]}"))


def _wrong_sums(document: Mapping[str, Any]) -> list[str]:
    """Phases and roles whose cost is not that of steps and remainder; set-up is no step's."""
    found = Ledgers.from_dict(document.get("remainder", {}))
    for run in document["runs"]:
        for step in run["steps"]:
            found = found + Ledgers.from_dict(step.get("ledgers", {}))
    stored = Ledgers.from_dict(document.get("ledgers", {}))
    wrong = []
    for phase in {*stored.usage, *found.usage} - {"setup"}:
        for role in {*stored.usage.get(phase, {}), *found.usage.get(phase, {})}:
            said, sums = (x.total(phase, role=role) for x in (stored, found))
            if not math.isclose(said.cost, sums.cost) or replace(said, cost=sums.cost) != sums:
                wrong.append(f"{phase}.{role}")
    return sorted(wrong)


def compress(header: bytes, body: bytes) -> bytes:
    """Return the zstd form: the header is a frame of its own, so that it can be read alone."""
    compressor = zstandard.ZstdCompressor(level=_LEVEL, write_checksum=True)
    return compressor.compress(header) + compressor.compress(body)


def run_file(directory: Path) -> Path | None:
    """Return the run's file in its directory, plain or compressed; None when there is none."""
    for name in (PLAIN, COMPRESSED):
        if (directory / name).exists():
            return directory / name
    return None


def read_header(path: Path) -> dict[str, Any]:
    """Read only the header of a published run; `runs` is an empty list in it.

    Raises:
        CorruptRunError: The file does not begin with a whole header line, or the line was edited.
    """
    with open(path, "rb") as file:
        line = _first_frame(file.read, path) if path.name == COMPRESSED else file.readline()
    if not line.endswith(b'"runs":[\n'):
        raise CorruptRunError(f"{path} does not begin with a header line: it is cut off or edited")
    header: dict[str, Any] = decode(line + b"]}", path)
    _check_header(line, header, path)
    return header


def _first_frame(read: Any, path: Path) -> bytes:
    decompressor = zstandard.ZstdDecompressor().decompressobj()
    parts: list[bytes] = []
    try:
        while not decompressor.eof and (chunk := read(_CHUNK)):
            parts.append(decompressor.decompress(chunk))
    except zstandard.ZstdError as error:
        raise CorruptRunError(f"{path} is damaged ({error})") from error
    return b"".join(parts)


def read_text(path: Path) -> bytes:
    """Return the bytes of `run.json`, whichever way it is stored."""
    if path.name != COMPRESSED:
        return path.read_bytes()
    with open(path, "rb") as file:
        reader = zstandard.ZstdDecompressor().stream_reader(file, read_across_frames=True)
        try:
            return bytes(reader.read())
        except zstandard.ZstdError as error:
            raise CorruptRunError(f"{path} is damaged ({error})") from error


def read_document(path: Path) -> dict[str, Any]:
    """Read and verify a published run, without what later passes stored beside it.

    Raises:
        CorruptRunError: The file is cut off, or its header or steps differ from what was
            published.
        SchemaError: It was written under another schema version.
    """
    text = read_text(path)
    document = decode(text, path)
    if not isinstance(document, dict) or "schema_version" not in document:
        raise SchemaError(f"{path} is no published run: it has no schema_version")
    require_schema(document["schema_version"], path, document)
    line, newline, body = text.partition(b"\n")
    recorded = document.get("execution", {}).get("body_sha256")
    if hashlib.sha256(body).hexdigest() != recorded:
        raise CorruptRunError(_edited(path, "execution.body_sha256 does not match"))
    _check_header(line + newline, document, path)
    if not header_is_verified(document):
        _check_sums(document, path)
    return document


def require_schema(version: Any, path: Path, header: Mapping[str, Any]) -> None:
    """Refuse another schema version, naming the release that wrote the file where that is known."""
    if version == SCHEMA_VERSION:
        return
    writer = header.get("execution", {}).get("adversariallm", "another release")
    raise SchemaError(
        f"{path} has schema version {version!r}; this release reads {SCHEMA_VERSION}. "
        f"It was written by {writer}: read it with that release; nothing was changed."
    )


def strip_volatile(value: Any) -> Any:
    """Return a copy without clock times and `execution` objects: what equal runs have equal."""
    if isinstance(value, Mapping):
        return {k: strip_volatile(v) for k, v in value.items() if k not in VOLATILE}
    if isinstance(value, list):
        return [strip_volatile(v) for v in value]
    return value


@dataclass(frozen=True)
class Beside:
    """A file of a later pass: its header line and its rows, in the order written."""

    path: Path
    header: dict[str, Any]
    rows: list[dict[str, Any]]


def encode_beside(header: Mapping[str, Any], rows: Iterable[Mapping[str, Any]]) -> bytes:
    """Return a header line with the rows' SHA-256, then one line a row."""
    body = b"".join(encode(row) + b"\n" for row in rows)
    digest = hashlib.sha256(body).hexdigest()
    return (
        encode({"schema_version": SCHEMA_VERSION, **header, "rows_sha256": digest}) + b"\n" + body
    )


def read_beside(path: Path) -> Beside:
    """Read and verify a file of a later pass.

    Raises:
        CorruptRunError: The file is cut off or edited.
        SchemaError: It was written under another schema version.
    """
    first, _, body = path.read_bytes().partition(b"\n")
    header = decode(first, path)
    require_schema(header.get("schema_version"), path, header)
    if hashlib.sha256(body).hexdigest() != header.get("rows_sha256"):
        raise CorruptRunError(
            f"{path} was changed after it was written (rows_sha256 does not match)"
        )
    return Beside(path, header, [decode(line, path) for line in body.splitlines()])


def parts(directory: Path, stem: str) -> list[Path]:
    """Return `<stem>.jsonl`, `<stem>.2.jsonl`, ... sorted by judge, then by number."""

    def order(path: Path) -> tuple[str, int]:
        head, _, number = path.name.removesuffix(".jsonl").rpartition(".")
        return (head, int(number)) if number.isdecimal() and "." in head else (path.stem, 1)

    return sorted({*directory.glob(f"{stem}.jsonl"), *directory.glob(f"{stem}.*.jsonl")}, key=order)


def join(document: dict[str, Any], top_ups: Iterable[Beside], scores: Iterable[Beside]) -> None:
    """Add later completions and scores to a document, in place.

    A top-up row is `{"run": i, "step": j, "append": {field: [values]}}`; its lists extend the
    step's.  A score row is `{"run": i, "step": j, "start": k, "scores": {type: [values]}}` and
    fills `scores[judge][type][k:]`; what was not scored is None.  Positions count from 0.
    """
    for part in top_ups:
        for row in part.rows:
            step = _step(document, row, part.path)
            for name, values in row["append"].items():
                step[name] = [*step.get(name, []), *values]
    parts = list(scores)
    labels = _labels(parts)
    for part in parts:
        for row in part.rows:
            step = _step(document, row, part.path)
            table = step.setdefault("scores", {}).setdefault(labels[part.header["judge_id"]], {})
            for kind, values in row["scores"].items():
                _fill(table.setdefault(kind, []), row.get("start", 0), values)


def _labels(parts: list[Beside]) -> dict[str, str]:
    """Name each judge id by its judge's name, with the id where two share the name."""
    names = {part.header["judge_id"]: part.header["judge"] for part in parts}
    taken = list(names.values())
    return {i: name if taken.count(name) == 1 else f"{name}:{i}" for i, name in names.items()}


def _fill(table: list[Any], start: int, values: list[Any]) -> None:
    table.extend([None] * (start + len(values) - len(table)))
    for k, value in enumerate(values, start):
        if table[k] is None:
            table[k] = value


def _step(document: dict[str, Any], row: Mapping[str, Any], path: Path) -> dict[str, Any]:
    try:
        step: dict[str, Any] = document["runs"][row["run"]]["steps"][row["step"]]
    except (IndexError, KeyError) as error:
        raise CorruptRunError(f"{path} has a row for a step that the run does not have") from error
    return step
