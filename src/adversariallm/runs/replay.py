"""Replay: make a stored run's numbers again and say where they first differ, and probably why.

It reads a store, or anything laid out like one, and writes nothing. Passing means that tokens,
completions and scores came out equal on this machine, with these libraries.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from adversariallm.core.budget import LedgerRows, Meter
from adversariallm.core.config import stable_hash
from adversariallm.core.errors import ConfigError, NeedsError
from adversariallm.core.protocols import Needs
from adversariallm.core.types import Conversation
from adversariallm.evaluation.facts import flatten
from adversariallm.runs.document import header_is_verified
from adversariallm.runs.embeddings import require_owners
from adversariallm.runs.execute import COMPLETION_BATCH, Resources, execute, regenerate
from adversariallm.runs.files import CorruptRunError
from adversariallm.runs.judging import View, judge_id_of, judge_rows
from adversariallm.runs.provenance import environment
from adversariallm.runs.runlog import MemoryEntry, MemoryLog
from adversariallm.runs.stored import end_of, entries_of, lanes_of, no_search, task_of, tensors_of
from adversariallm.runs.worker import Workshop

if TYPE_CHECKING:
    from adversariallm.core.protocols import ChatModel
    from adversariallm.core.records import StepRecord
    from adversariallm.runs.document import Beside
    from adversariallm.runs.journal import Entry
    from adversariallm.runs.spec import RunTask
    from adversariallm.runs.store import Store

_CAUSES = (
    ("clock", "the time that the chat template was told"),
    ("template", "the chat template"),
    ("system", "the system prompt"),
    ("tokenizer", "the tokenizer"),
    ("thinking", "the reasoning mode"),
    ("chat", "how conversations are rendered"),
    ("weights", "the weights"),
    ("adapter", "the adapter"),
    ("dtype", "the number format"),
    ("quantization", "the quantization"),
)


@dataclass(frozen=True)
class Difference:
    """The first thing that came out otherwise.

    Attributes:
        where: what was compared.
        stored: what the artifact says.
        found: what came out now.
        cause: what probably made the difference.
    """

    where: str
    stored: str
    found: str
    cause: str

    def __str__(self) -> str:
        """Three lines for people."""
        return (
            f"first difference: {self.where}\n  stored: {self.stored}\n  found:  {self.found}\n"
            f"  likely cause: {self.cause}"
        )


@dataclass(frozen=True)
class Replayed:
    """What a replay found.

    Attributes:
        run_id: of which run.
        difference: the first one; None where everything came out equal.
        compared: what came out equal, in words.
        notes: what could not be compared, and what differs without effect.
    """

    run_id: str
    difference: Difference | None
    compared: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def passed(self) -> bool:
        """Whether everything that was compared came out equal."""
        return self.difference is None


def replay(
    store: Store,
    run_id: str,
    *,
    models: Mapping[str, str] | None = None,
    judges: Mapping[str, Mapping[str, Any]] | None = None,
    search: bool = False,
    limit: int | None = None,
    workshop: Workshop | None = None,
    say: Callable[[str], None] = lambda text: None,
) -> Replayed:
    """Make the tokens, completions and scores of a stored run again and compare them.

    Args:
        store: where the run is.
        run_id: which run.
        models: where a model of the run is on this machine, by its stored name.
        judges: options of judges by name; those of the stored scores otherwise.
        search: carry out the search as well and compare every step.
        limit: compare only so many completions.
        workshop: models that are loaded already.
        say: told what is being done.

    Raises:
        NeedsError: the run cannot be replayed at all: its model is behind an endpoint, or its
            inputs are embeddings of another model than the one at hand.
        StoreError: there is no such run.
    """
    try:
        document = store.read(run_id)
    except CorruptRunError as error:
        return Replayed(run_id, _edited("the stored files", "what was published", str(error)))
    return _Replay(
        store,
        document,
        dict(models or {}),
        workshop or Workshop(judges=judges or {}),
        dict(judges or {}),
        search,
        limit,
        say,
    ).run()


@dataclass
class _Replay:
    store: Store
    document: Mapping[str, Any]
    names: Mapping[str, str]
    workshop: Workshop
    judges: Mapping[str, Mapping[str, Any]]
    search: bool
    limit: int | None
    say: Callable[[str], None]
    compared: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    changed: dict[str, tuple[Any, Any]] = field(default_factory=dict)

    def run(self) -> Replayed:
        run_id: str = self.document["run_id"]
        difference = self._find()
        if not header_is_verified(self.document):
            self.notes.append(
                "an older release published it: no hash covers its header, so an edit there may "
                "go unnoticed"
            )
        if difference is None and self.changed:
            told = ", ".join(f"{k} {old} -> {new}" for k, (old, new) in self.changed.items())
            self.notes.append(f"equal although these differ: {told}")
        return Replayed(run_id, difference, tuple(self.compared), tuple(self.notes))

    def _find(self) -> Difference | None:
        """The first difference, in the order in which a run is made."""
        run_id: str = self.document["run_id"]
        hashed = stable_hash(self.document["config"])
        if hashed != run_id:
            return _edited("the run id, a hash of the configuration", run_id, hashed)
        task = self._task()
        known = environment()
        self.changed = dict(_changes(self.document.get("provenance", {}), known))
        self.say("loading the model")
        resources = self._resources(task)
        tensors = tensors_of(self.store.tensor_file(run_id))
        require_owners(self.document, tensors, [self.workshop.model(m) for m in task.spec.models])
        checks = [self._identities, self._tokens, self._completions]
        if self.search:
            checks.append(self._search)
        for check in checks:
            found = check(task, resources)
            if found is not None:
                return found
        return self._scores()

    def _task(self) -> RunTask:
        """The task, with models where they are on this machine."""
        task = task_of(self.document)
        moved = tuple(
            m.model_copy(update={"name": self.names.get(m.name, m.name)}) for m in task.spec.models
        )
        return task.model_copy(update={"spec": task.spec.model_copy(update={"models": moved})})

    def _resources(self, task: RunTask) -> Resources:
        spec = task.spec
        for model in spec.models:
            self._require_local(self.workshop.model(model))
        if self.search or spec.defense:
            resources = self.workshop.resources(task)
        else:
            resources = Resources(models=tuple(self.workshop.model(m) for m in spec.models))
        return resources

    @staticmethod
    def _require_local(model: ChatModel) -> None:
        if Needs.TOKENS not in model.gives:
            raise NeedsError(
                f"model {model.name!r} is behind an endpoint: nobody can make its answers again "
                "bit by bit. What was sent and answered stands in the run; ask it anew with "
                "`adversariallm sample`"
            )

    # The checks, in order

    def _identities(self, task: RunTask, resources: Resources) -> Difference | None:
        """Compare what fixes each model's behavior; a difference is told with its first effect."""
        for spec in task.spec.models:
            found = dict(self.workshop.model(spec).identity())
            self.changed |= dict(_changes(spec.identity, found, every=True))
        return None

    def _tokens(self, task: RunTask, resources: Resources) -> Difference | None:
        self.say("tokenizing the stored conversations")
        count = skipped = 0
        for step, lane, row in self._rows():
            model = self.workshop.model(task.spec.models[self._model_of(task, lane)])
            stored = row.get("model_input_tokens")
            if row.get("model_input") is None or stored is None or Needs.TOKENS not in model.gives:
                skipped += 1
                continue
            prefill = row.get("prefill", "")
            messages = row["model_input"][:-1] if prefill else row["model_input"]
            talk = Conversation.from_dicts(messages)
            found = list(model.chat.encode(talk, prefill=prefill))  # type: ignore[attr-defined]
            if found != stored and "unreachable" not in row.get("flags", ()):
                return self._ids("the tokens sent", step, lane, stored, found)
            count += 1
        self.compared.append(f"{count} inputs have the stored tokens")
        if skipped:
            self.notes.append(f"{skipped} inputs have no text, so nothing is tokenized again")
        broken = {k: v for k, v in self.changed.items() if _is_identity(k)}
        for key, (old, new) in broken.items():
            return Difference(f"the model: {key}", str(old), str(new), self._cause())
        return None

    def _completions(self, task: RunTask, resources: Resources) -> Difference | None:
        wanted, kept = [], 0
        for step, lane, row in self._rows():
            for facts in row.get("completions", ()):
                if facts.get("in_loop") or facts.get("error"):
                    kept += 1
                else:
                    wanted.append((step, lane, facts["sample"]))
        if kept:
            self.notes.append(
                f"{kept} answers were given inside the search, or are errors: replay them with "
                "search"
            )
        left = wanted if self.limit is None else wanted[: self.limit]
        self.say(f"generating {len(left)} completions")
        log = MemoryLog([*self._entries(task), end_of(self.document)])
        only_sending = replace(resources, search=no_search)
        for start in range(0, len(left), COMPLETION_BATCH):
            part = left[start : start + COMPLETION_BATCH]
            steps = regenerate(task, only_sending, log, part)
            for step, lane, sample in part:
                found = self._compare(step, lane, sample, steps[step][lane])
                if found is not None:
                    return found
        self.compared.append(f"{len(left)} of {len(wanted)} completions came out equal")
        return None

    def _compare(self, step: int, lane: int, sample: int, found: StepRecord) -> Difference | None:
        row = self.document["runs"][lane]["steps"][step]
        place = [c["sample"] for c in row["completions"]].index(sample)
        now = [c.sample for c in found.completions].index(sample)
        old, new = row["completions"][place], found.completions[now]
        what = f"completion {sample}"
        if old.get("ids") is not None and new.ids is not None and old["ids"] != new.ids:
            return self._ids(f"the tokens of {what}", step, lane, old["ids"], new.ids)
        texts = row["model_completions"][place], found.model_completions[now]
        if texts[0] != texts[1]:
            where = f"{what} of {self._place(step, lane)}"
            return Difference(where, _short(texts[0]), _short(texts[1]), self._cause())
        return None

    def _search(self, task: RunTask, resources: Resources) -> Difference | None:
        if task.spec.parent is not None and task.spec.parent.kind == "inputs":
            self.notes.append("nothing was searched: the inputs are those of the run it names")
            return None
        self.say("searching again")
        document, _ = execute(task, resources, MemoryLog())
        for step, lane, row in self._rows():
            steps = document.runs[lane].steps
            if step >= len(steps):
                where = f"steps of {self._place(step, lane)}"
                stored = len(self.document["runs"][lane]["steps"])
                return Difference(where, f"{stored} steps", f"{len(steps)} steps", self._cause())
            now = steps[step]
            stored_ids, ids = row.get("model_input_tokens"), now.model_input_tokens
            if stored_ids is not None and ids is not None and stored_ids != ids:
                return self._ids("the tokens that the search found", step, lane, stored_ids, ids)
            if row.get("loss") != now.loss:
                where = f"the loss of {self._place(step, lane)}"
                return Difference(where, str(row.get("loss")), str(now.loss), self._cause())
        self.compared.append("every step of the search came out equal")
        return self._costs(document.ledgers)

    def _costs(self, now: LedgerRows) -> Difference | None:
        """Compare what the run cost, phase by phase."""
        stored, found = flatten(self.document["ledgers"]), flatten(now)
        parent = self.document["config"].get("parent")
        for key in [*stored, *(k for k in found if k not in stored)]:
            if parent and key.startswith("diagnosis."):
                continue  # an extended run may have asked a bare model at steps left out since
            if stored.get(key, 0) != found.get(key, 0):
                where = f"the cost of the run: {key}"
                values = str(stored.get(key, 0)), str(found.get(key, 0))
                return Difference(where, *values, self._cause())
        self.compared.append("the cost of the run came out equal")
        return None

    def _scores(self) -> Difference | None:
        for part in self.store.scores(self.document["run_id"]):
            view: View = part.header.get("view", "clean")
            name = str(part.header["judge"]).partition("@")[0]
            self.say(f"judging with {part.header['judge']}")
            try:
                difference = self._rejudge(part, name, view)
            except Exception as error:  # noqa: BLE001  -- a judge that is not here is no difference
                self.notes.append(f"not judged again with {name}: {error}")
                continue
            if difference is not None:
                return difference
        return None

    def _rejudge(self, part: Beside, name: str, view: View) -> Difference | None:
        fingerprint = part.header.get("fingerprint", {})
        options = self.judges.get(name)
        if options is None:
            options = {**fingerprint.get("options", {}), "variant": fingerprint.get("variant")}
            options = {k: v for k, v in options.items() if v is not None}
        judge = Workshop(judges={name: options}).judge_factory(name)(Meter())
        stored, now = part.header["judge_id"], judge_id_of(judge, view)
        if stored != now:
            changes = dict(_changes(fingerprint, judge.fingerprint(), every=True))
            told = next((k for k in changes if k not in ("judgezoo", "observed")), "")
            cause = f"another setting of the judge: {told or 'unknown'}; give judges.{name}.*"
            return Difference(f"the judge {name}", stored, now, cause)
        keys = [(row["run"], row["step"], row.get("start", 0), row["scores"]) for row in part.rows]
        rows, values = [], []
        for run, step, start, columns in keys:
            behavior = self.document["runs"][run]["behavior"]
            record = self.document["runs"][run]["steps"][step]
            for k, value in enumerate(columns[judge.info.score_key]):
                rows.append((behavior, record, start + k))
                values.append((run, step, start + k, value))
        found = judge_rows(judge, rows, view)[judge.info.score_key]
        for (run, step, k, value), score in zip(values, found, strict=True):
            if not _equal(value, score):
                where = f"score of completion {k} of {self._place(step, run)} by {name}"
                return Difference(where, str(value), str(score), self._cause(f"the judge {name}"))
        self.compared.append(f"{len(values)} scores by {part.header['judge']} came out equal")
        return None

    # Helpers

    def _rows(self) -> Iterator[tuple[int, int, Mapping[str, Any]]]:
        """Step, lane and record of everything that was sent."""
        for step, lanes in enumerate(lanes_of(self.document)):
            for lane, row in enumerate(lanes):
                yield step, lane, row

    def _model_of(self, task: RunTask, lane: int) -> int:
        return lane // (len(self.document["runs"]) // len(task.spec.models))

    def _entries(self, task: RunTask) -> list[Entry]:
        """The stored steps as a journal, with only those answers that the search itself got."""
        entries: list[Entry] = []
        whole = entries_of(self.document, self.store.tensor_file(self.document["run_id"]))
        for entry in whole:
            lanes = []
            for row in entry.record["lanes"]:
                facts = row.get("completions", [])
                kept = [k for k, c in enumerate(facts) if c.get("in_loop")]
                completions = [facts[k] for k in kept]
                texts = [row["model_completions"][k] for k in kept]
                lanes.append({**row, "completions": completions, "model_completions": texts})
            record = {**entry.record, "lanes": lanes}
            entries.append(MemoryEntry("step", record, None, entry.tensors()))
        return entries

    def _ids(
        self, what: str, step: int, lane: int, stored: Sequence[int], found: Sequence[int]
    ) -> Difference:
        pairs = zip(stored, found, strict=False)
        first = next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(stored), len(found)))
        where = f"{what} of {self._place(step, lane)}, position {first}"
        shown = [f"{list(ids[first : first + 5])} ({len(ids)} tokens)" for ids in (stored, found)]
        return Difference(where, shown[0], shown[1], self._cause())

    def _place(self, step: int, lane: int) -> str:
        return f"step {step} of {self.document['runs'][lane]['behavior']['id']}"

    def _cause(self, otherwise: str = "") -> str:
        """What differs between then and now, in the order of how likely it matters."""
        for key, words in _CAUSES:
            for path, (old, new) in self.changed.items():
                if _is_identity(path) and key in path:
                    return f"{words}: {path} was {old}, is {new}"
        for path, (old, new) in self.changed.items():
            if path == "device" or path.startswith("packages."):
                words = "another device" if path == "device" else "a library version"
                return f"{words}: {path.removeprefix('packages.')} was {old}, is {new}"
        for path, (old, new) in self.changed.items():
            return f"{path} was {old}, is {new}"
        if otherwise:
            return otherwise
        facts = self.document.get("provenance", {}).get("models", [])
        if any(f.get("invariance") not in (None, "verified") for f in facts):
            return "results may depend on the batch on the machine of the run (invariance flag)"
        return "no recorded fact differs: hardware, environment variables, or a change of this code"


def _edited(where: str, stored: str, found: str) -> Difference:
    return Difference(where, stored, found, "the artifact was edited or damaged")


def _is_identity(path: str) -> bool:
    return path.startswith("identity.")


def _changes(
    stored: Mapping[str, Any], found: Mapping[str, Any], *, every: bool = False
) -> Iterator[tuple[str, tuple[Any, Any]]]:
    """Dotted paths whose values differ; of the environment, only what both recorded."""
    prefix = "identity." if every else ""
    old, new = flatten(stored), flatten(found)
    for path in (
        [*old, *(p for p in new if p not in old)] if every else [p for p in old if p in new]
    ):
        if old.get(path) != new.get(path):
            yield f"{prefix}{path}", (old.get(path), new.get(path))


def _equal(one: Any, other: Any) -> bool:
    if isinstance(one, float) and isinstance(other, float):
        return math.isclose(one, other, rel_tol=1e-6, abs_tol=1e-9)
    return bool(one == other)


def _short(text: str) -> str:
    return repr(text if len(text) < 80 else f"{text[:77]}...")


def model_places(texts: Sequence[str]) -> dict[str, str]:
    """`NAME=PLACE` texts as a mapping.

    Raises:
        ConfigError: a text is something else.
    """
    found = {}
    for text in texts:
        name, equals, place = text.partition("=")
        if not equals or not place:
            raise ConfigError(f"--model {text!r}: expected NAME=PLACE, the stored name first")
        found[name] = place
    return found
