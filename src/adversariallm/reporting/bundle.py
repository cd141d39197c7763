"""A bundle: chosen runs with scores and tensors, as a store that names no person and no machine.

What identifies a run stays byte for byte, so `replay` works on the unpacked bundle. Host names and
paths are taken out of everything else; where one stands in a run's identity the bundle is refused.
"""

from __future__ import annotations

import getpass
import hashlib
import json
import re
import socket
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from adversariallm.core.errors import DataError
from adversariallm.evaluation.facts import flatten
from adversariallm.reporting.load import Where, predicate

if TYPE_CHECKING:
    from adversariallm.runs.store import Store

_ABSOLUTE = re.compile(
    r"(?:(?<=models\.)|(?<![\w.:/\\-]))(?:/|[A-Za-z]:\\)(?:[^/\\\s\"']+[/\\])+([^/\\\s\"']*)"
)
_DROPPED = frozenset({"host", "hostname", "user", "pid", "cwd", "command", "slurm_job_id", "node"})
_FIXED_TIME = (1980, 1, 1, 0, 0, 0)


def write_bundle(store: Store, target: Path, *, where: Where | None = None) -> Path:
    """Write runs as one zip file; equal stores give equal bytes.

    Args:
        store: where the runs are.
        target: the file; `.zip` is appended where it is missing.
        where: which runs, as in `read_documents`.

    Returns:
        The file written.

    Raises:
        DataError: no run, or an identity that holds a path.
    """
    keep = predicate(where)
    ids = sorted(i for i in store.runs() if keep(store.header(i)))
    if not ids:
        raise DataError(f"{store.root} has no published run to bundle")
    files = {"store/store.json": b'{"layout":1}\n'}
    headers = []
    for run_id in ids:
        headers.append(store.header(run_id))
        files |= {f"store/{name}": body for name, body in _run_files(store, run_id)}
    files["requirements.txt"] = _requirements(headers).encode()
    files["README.txt"] = _README.encode()
    manifest = {
        "runs": ids,
        "assets": _assets(store, ids, headers),
        "files": {n: hashlib.sha256(b).hexdigest() for n, b in sorted(files.items())},
    }
    files["manifest.json"] = json.dumps(manifest, indent=1, sort_keys=True).encode() + b"\n"
    path = target if target.suffix == ".zip" else target.with_name(target.name + ".zip")
    path.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, body in sorted(files.items()):
            info = zipfile.ZipInfo(name, _FIXED_TIME)
            info.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(info, body)
    return path


_README = """Unpack, install requirements.txt, then:
  adversariallm report store
  adversariallm replay RUN --out store
manifest.json lists the runs, the assets they need with their hashes, and the SHA-256 of every file.
"""


def _run_files(store: Store, run_id: str) -> Iterator[tuple[str, bytes]]:
    from adversariallm.runs import document as doc

    folder = store.run_dir(run_id)
    base = folder.relative_to(store.root).as_posix()
    published = doc.run_file(folder)
    if published is None:
        raise DataError(f"{store.root} has no run {run_id}")
    document = doc.read_document(published)
    _require_clean(document["config"], run_id)
    head, body = doc.encode_document(_scrubbed(document))
    yield f"{base}/{doc.PLAIN}", head + body
    for part in [*store.scores(run_id), *store.top_ups(run_id)]:
        known = {k: v for k, v in part.header.items() if k not in ("schema_version", "rows_sha256")}
        yield f"{base}/{part.path.name}", doc.encode_beside(scrub(known), part.rows)
    tensors = store.tensor_file(run_id)
    if tensors is not None:
        yield f"{base}/{tensors.name}", tensors.read_bytes()


def _scrubbed(document: Mapping[str, Any]) -> dict[str, Any]:
    """Header and execution facts without names; configuration, inputs and answers as they are."""
    out = {k: v if k in ("config", "runs", "run_id") else scrub(v) for k, v in document.items()}
    out["runs"] = [_scrubbed_run(run) for run in document["runs"]]
    names = {run.get("model", "") for run in document["runs"]}
    if len({scrub(name) for name in names}) < len(names):
        raise DataError(
            f"run {document['run_id']}: its models {sorted(names)} differ in their folder only, "
            "which a bundle leaves out; rename one of the folders"
        )
    return out


def _scrubbed_run(run: Mapping[str, Any]) -> dict[str, Any]:
    steps = [{**s, "execution": scrub(s.get("execution", {}))} for s in run["steps"]]
    return {**run, "steps": steps, "model": scrub(run.get("model", ""))}


def scrub(value: Any) -> Any:
    """The value without host and user fields, and with absolute paths cut to their last part."""
    if isinstance(value, Mapping):
        return {scrub(k): scrub(v) for k, v in value.items() if k not in _DROPPED}
    if isinstance(value, list):
        return [scrub(v) for v in value]
    if isinstance(value, str):
        text = _ABSOLUTE.sub(r"\1", value)
        for name in _own_names():
            text = re.sub(rf"\b{re.escape(name)}\b", "somebody", text)
        return text
    return value


def _own_names() -> list[str]:
    """Names that only occur because of this machine and user; common words are no secret."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        user = ""
    names = {user, socket.gethostname(), Path.home().name}
    return sorted(n for n in names if len(n) > 3 and n not in ("root", "home", "user", "localhost"))


def _require_clean(config: Mapping[str, Any], run_id: str) -> None:
    for path, value in flatten(config).items():
        if isinstance(value, str) and path.split(".")[0] != "imported" and scrub(value) != value:
            raise DataError(
                f"run {run_id}: its identity holds a path or a name at {path} ({value!r}), "
                "which cannot be taken out without making it another run"
            )


def _assets(store: Store, ids: list[str], headers: list[dict[str, Any]]) -> dict[str, str]:
    """SHA-256 of every text that the runs, or the judges that scored them, needed."""
    found: dict[str, str] = {}
    for run_id, header in zip(ids, headers, strict=True):
        found |= header["config"].get("assets", {})
        for part in store.scores(run_id):
            found |= part.header.get("fingerprint", {}).get("assets", {})
    return dict(sorted(found.items()))


def _requirements(headers: list[dict[str, Any]]) -> str:
    """Package versions of the first run that recorded any; what pip cannot take is a remark.

    The part of a version behind `+` names a build of one index, so it is remarked and left out.
    """
    seen: dict[str, list[str]] = {}
    for header in headers:
        for name, number in header.get("provenance", {}).get("packages", {}).items():
            if number and number not in seen.setdefault(name, []):
                seen[name].append(number)
    lines = []
    for name, versions in sorted(seen.items()):
        pinned = versions[0].partition("+")[0]
        remarks = [v for v in versions if v != pinned]
        lines.append(f"{name}=={pinned}" + (f"  # also {', '.join(remarks)}" if remarks else ""))
    return "\n".join(lines) + "\n"
