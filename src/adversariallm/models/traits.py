"""What can be found out about a model by looking at it: vocabulary, stops, BOS, embedding scale.

Everything is probed from the objects at hand, nothing from a name.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from adversariallm.core.errors import TemplateError
from adversariallm.core.types import Conversation

if TYPE_CHECKING:
    from adversariallm.tokenization import ChatTokenizer


@dataclass(frozen=True)
class Traits:
    """Probed facts about a model and its tokenizer.

    Attributes:
        num_embeddings: V, rows of the input embedding.
        embedding_size: d.
        tokenizer_size: one more than the largest id of the tokenizer.
        ids_without_row: ids of the tokenizer for which the embedding has no row.
        rows_without_id: rows of the embedding that no id of the tokenizer reaches.
        embedding_scale: factor between the stored rows and what the module returns; None where it
            is not one number.
        tied_head: whether the output head uses the embedding's weights.
        context_length: positions the model was made for; None where its configuration is silent.
        sliding_layers: number of layers that attend to a window only.
        pad_id: padding id of the tokenizer; masks never depend on it.
        eos_id: end id of the tokenizer.
        stop_ids: every id that ends an answer.
        stop_strings: strings that end an answer, where turns end with plain text.
        bos_ids: what the tokenizer puts before plain text.
        bos_count: how often that stands at the start of an encoded conversation.
        system_role: whether the template takes a system message.
        parameters: number of weights, however many bits each is stored in.
    """

    num_embeddings: int
    embedding_size: int
    tokenizer_size: int
    ids_without_row: tuple[int, ...]
    rows_without_id: int
    embedding_scale: float | None
    tied_head: bool
    context_length: int | None
    sliding_layers: int
    pad_id: int | None
    eos_id: int | None
    stop_ids: tuple[int, ...]
    stop_strings: tuple[str, ...]
    bos_ids: tuple[int, ...]
    bos_count: int
    system_role: bool
    parameters: int

    def to_dict(self) -> dict[str, Any]:
        """JSON form."""
        return asdict(self)


def probe(model: Any, chat: ChatTokenizer) -> Traits:
    """Look at a transformers model and its chat tokenizer; costs a few embedding look-ups."""
    embedding, head = model.get_input_embeddings(), model.get_output_embeddings()
    config = model.config.get_text_config()
    weight = embedding.weight
    rows, size = int(weight.shape[0]), int(weight.shape[1])
    length = len(chat.codec)
    stops = chat.stops(model.generation_config)
    known = {i for i in chat.codec.tokenizer.get_vocab().values() if i >= rows}
    return Traits(
        num_embeddings=rows,
        embedding_size=size,
        tokenizer_size=length,
        ids_without_row=tuple(sorted(known)),
        rows_without_id=max(0, rows - length),
        embedding_scale=_scale(embedding),
        tied_head=head is not None and head.weight is weight,
        context_length=getattr(config, "max_position_embeddings", None),
        sliding_layers=_sliding_layers(config),
        pad_id=chat.tokenizer.pad_token_id,
        eos_id=chat.tokenizer.eos_token_id,
        stop_ids=stops.ids,
        stop_strings=stops.strings,
        bos_ids=chat.codec.bos_ids,
        bos_count=_bos_count(chat),
        system_role=_takes_system(chat),
        parameters=model.num_parameters(),
    )


def _scale(embedding: Any) -> float | None:
    """The one factor between an embedding's stored rows and its output; None if there is none."""
    import torch

    ids = torch.arange(min(16, embedding.weight.shape[0]), device=embedding.weight.device)
    with torch.no_grad():
        given, stored = embedding(ids).double(), embedding.weight[ids].double()
    used = stored.abs() > stored.abs().mean() / 10
    factors = given[used] / stored[used]
    if not len(factors) or float((factors / factors.mean() - 1).abs().max()) > 0.02:
        return None
    return float(factors.mean())


def _sliding_layers(config: Any) -> int:
    """Number of layers with a window, from what the configuration says of each layer."""
    kinds = getattr(config, "layer_types", None)
    if kinds is not None:
        return sum(kind == "sliding_attention" for kind in kinds)
    window = getattr(config, "sliding_window", None)
    return int(config.num_hidden_layers) if window else 0


def _bos_count(chat: ChatTokenizer) -> int:
    """How often the tokenizer's BOS stands at the start of a conversation: once, if it has one."""
    bos, ids, count = chat.codec.bos_ids, chat.encode(Conversation.user("a")), 0
    while bos and tuple(ids[: len(bos)]) == bos:
        ids, count = ids[len(bos) :], count + 1
    return count


def _takes_system(chat: ChatTokenizer) -> bool:
    try:
        rendered = chat.render(Conversation.user("a", system="b"))
    except TemplateError:
        return False
    return not rendered.altered
