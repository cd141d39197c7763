"""Conversations to token ids with exact segments, reachability of attack strings, masks.

The functions here work on plain transformers tokenizers; nothing here loads a model, and importing
it is cheap.
"""

from __future__ import annotations

from adversariallm.tokenization.chat import ChatTokenizer, SystemPrompt
from adversariallm.tokenization.codec import Codec
from adversariallm.tokenization.formats import TemplateInfo, list_templates
from adversariallm.tokenization.frame import Frame
from adversariallm.tokenization.loading import load_tokenizer
from adversariallm.tokenization.reachability import (
    Reachability,
    ReachabilityFilter,
    ReachabilityStats,
)
from adversariallm.tokenization.segments import Slot
from adversariallm.tokenization.stops import Stops
from adversariallm.tokenization.template import Altered, ChatTemplate, Rendered
from adversariallm.tokenization.vocabulary import vocabulary_mask

__all__ = [
    "Altered",
    "ChatTemplate",
    "ChatTokenizer",
    "Codec",
    "Frame",
    "Reachability",
    "ReachabilityFilter",
    "ReachabilityStats",
    "Rendered",
    "Slot",
    "Stops",
    "SystemPrompt",
    "TemplateInfo",
    "list_templates",
    "load_tokenizer",
    "vocabulary_mask",
]
