"""Inputs of a stored run that are embeddings, read back for the model that they belong to.

A continuous attack sends rows of `tensors.safetensors`; no text stands for them, and only the model
that they were found on reads them. Nothing here generates or compares.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

from adversariallm.core.errors import NeedsError
from adversariallm.core.protocols import ChatModel, Needs
from adversariallm.core.types import ModelInput
from adversariallm.runs.files import CorruptRunError
from adversariallm.runs.spec import ModelSpec
from adversariallm.runs.stored import lanes_of, spec_of, tensors_of

if TYPE_CHECKING:
    import torch

    from adversariallm.core.protocols import WhiteBoxModel
    from adversariallm.runs.store import Store

SPACE = ("weights", "adapter", "dtype", "quantization")
"""Parts of a model's identity that decide what its embeddings mean."""


def embedded_inputs(
    store: Store, run_id: str, models: Sequence[ChatModel]
) -> Iterator[tuple[int, int, ModelInput]]:
    """Step, lane and input of everything that a run sent as embeddings.

    A lane is a model and an evaluated behavior: `runs[lane]` of the document. `model.generate` of
    such an input under the run's decoding gives the stored completions bit for bit.

    Args:
        store: where the run is.
        run_id: which run.
        models: those of the run, in its order.

    Raises:
        NeedsError: a model is not the one whose embeddings were stored; names both.
        CorruptRunError: the document names a tensor that the file does not have.
        StoreError: there is no such run.
    """
    document = store.read(run_id)
    path = store.tensor_file(run_id)
    tensors = tensors_of(path)
    require_owners(document, tensors, models)
    for number, steps in enumerate(lanes_of(document)):
        for lane, row in enumerate(steps):
            where = row.get("model_input_embeddings")
            if where is None:
                continue
            key = where.partition("#")[2]
            if key not in tensors:
                raise CorruptRunError(
                    f"run {run_id}: step {number} names the tensor {key!r}, which "
                    f"{path or 'no file'} holds"
                )
            yield number, lane, ModelInput(embeddings=tensors[key])


def require_owners(
    document: Mapping[str, Any], tensors: Mapping[str, torch.Tensor], models: Sequence[ChatModel]
) -> None:
    """Refuse models that stored embeddings do not belong to.

    Raises:
        NeedsError: width or identity differ; names the model of the run and the one given.
    """
    specs = spec_of(document).models
    per_model = len(document["runs"]) // len(specs)
    for key, rows in tensors.items():
        index = int(key.rpartition(".")[2]) // per_model
        _require_owner(document["run_id"], specs[index], int(rows.shape[-1]), models[index])


def _require_owner(run_id: str, spec: ModelSpec, width: int, model: ChatModel) -> None:
    start = f"run {run_id[:8]} holds embeddings of {spec.name!r}"
    remedy = "; give the model that they were found on"
    if Needs.EMBEDDINGS not in model.gives:
        raise NeedsError(f"{start}, and {model.name!r} does not take embeddings{remedy}")
    own = int(cast("WhiteBoxModel", model).embed([0]).shape[1])
    if own != width:
        raise NeedsError(f"{start} of width {width}, those of {model.name!r} have {own}{remedy}")
    found = model.identity()
    for part in SPACE:
        stored, now = spec.identity.get(part), found.get(part)
        if stored != now:
            raise NeedsError(
                f"{start} ({part} {stored}), which mean nothing to {model.name!r} "
                f"({part} {now}){remedy}"
            )
