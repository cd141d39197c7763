"""Checks of IFEval's 25 kinds of instructions, written from the descriptions in arXiv 2311.07911.

Sentences are split by punctuation and the language is told by script and frequent words, so counts
at the edge can differ from the authors' program, which uses trained models for both.
"""

from __future__ import annotations

import json
import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

Check = Callable[[str, Mapping[str, Any]], bool]

_CONSTRAINED = ("My answer is yes.", "My answer is no.", "My answer is maybe.")
_SCRIPTS = {
    "ar": "ARABIC",
    "bg": "CYRILLIC",
    "bn": "BENGALI",
    "fa": "ARABIC",
    "gu": "GUJARATI",
    "hi": "DEVANAGARI",
    "kn": "KANNADA",
    "ko": "HANGUL",
    "mr": "DEVANAGARI",
    "ne": "DEVANAGARI",
    "pa": "GURMUKHI",
    "ru": "CYRILLIC",
    "ta": "TAMIL",
    "te": "TELUGU",
    "th": "THAI",
    "ur": "ARABIC",
}
_FREQUENT = {
    "en": "the of and to in is that it for was with as on are this be",
    "de": "der die und in den von zu das mit sich des auf ist nicht ein eine",
    "es": "de la que el en y los se del las un por con una es",
    "fi": "ja on ei se oli ovat mutta joka kun niin olla tai myos ole",
    "fr": "de la le et les des en un du une que est pour dans",
    "it": "di e il la che in un per del una sono non con si",
    "pt": "de a o que e do da em um para com uma os no",
    "sw": "ya na wa kwa ni katika za la kuwa cha hii watu",
    "vi": "va la cua co cac cho mot trong duoc nguoi khong nhung",
}


def failed_instructions(answer: str, reference: Sequence[Mapping[str, Any]]) -> list[str]:
    """Kinds of the instructions that an answer does not follow; empty when it follows all.

    Args:
        answer: text of the model; a blank one follows nothing.
        reference: `reference` of an `ifeval` behavior.
    """
    return [
        str(item["kind"])
        for item in reference
        if not answer.strip() or not CHECKS[item["kind"]](answer, item)
    ]


def _compare(found: int, relation: str, wanted: int) -> bool:
    return found < wanted if relation == "less than" else found >= wanted


def _words(text: str) -> list[str]:
    return re.findall(r"\w+", text)


def _sentences(text: str) -> int:
    protected = re.sub(r"\b(?:Mr|Mrs|Ms|Dr|Prof|St|vs|etc|e\.g|i\.e|[A-Z])\.", " ", text)
    protected = re.sub(r"(?<=\d)\.(?=\d)", "", protected)
    pieces = re.split(r"[.!?]+[\"')\]]*(?:\s+|$)", protected)
    return sum(bool(re.search(r"\w", piece)) for piece in pieces)


def _paragraphs(answer: str, separator: str) -> list[str]:
    return re.split(separator, answer)


def _plain(text: str) -> str:
    return "".join(
        c for c in unicodedata.normalize("NFD", text.casefold()) if not unicodedata.combining(c)
    )


def _is_language(answer: str, language: str) -> bool:
    letters = [c for c in answer if c.isalpha()]
    if not letters:
        return False
    script = _SCRIPTS.get(language, "LATIN")
    share = sum(unicodedata.name(c, "").startswith(script) for c in letters) / len(letters)
    if share < 0.5 or script != "LATIN":
        return share >= 0.5
    words = Counter(_words(_plain(answer)))
    scores = {k: sum(words[w] for w in _plain(v).split()) for k, v in _FREQUENT.items()}
    return scores.get(language, 0) == max(scores.values())


def _keyword_count(answer: str, keyword: str) -> int:
    return len(re.findall(re.escape(keyword), answer, flags=re.IGNORECASE))


def _forbidden(answer: str, item: Mapping[str, Any]) -> bool:
    return not any(
        re.search(rf"\b{re.escape(word)}\b", answer, flags=re.IGNORECASE)
        for word in item["forbidden_words"]
    )


def _section_count(answer: str, item: Mapping[str, Any]) -> bool:
    marker = rf"\s?{re.escape(item['section_spliter'].strip())}\s?\d+\s?"
    return len(re.findall(marker, answer)) >= int(item["num_sections"])


def _bullets(answer: str, item: Mapping[str, Any]) -> bool:
    bullets = re.findall(r"^\s*(?:\*[^*]|-)", answer, flags=re.MULTILINE)
    return len(bullets) == int(item["num_bullets"])


def _highlights(answer: str, item: Mapping[str, Any]) -> bool:
    one, two = r"\*([^\n*]*)\*", r"\*\*([^\n*]*)\*\*"
    marked = [text for stars in (one, two) for text in re.findall(stars, answer)]
    return sum(bool(text.strip()) for text in marked) >= int(item["num_highlights"])


def _paragraph_count(answer: str, item: Mapping[str, Any]) -> bool:
    pieces = _paragraphs(answer, r"\s?\*\*\*\s?")
    inner = pieces[1:-1]
    filled = sum(bool(p.strip()) for p in pieces)
    return all(p.strip() for p in inner) and filled == item["num_paragraphs"]


def _nth_first_word(answer: str, item: Mapping[str, Any]) -> bool:
    pieces = [p for p in _paragraphs(answer, r"\n\n") if p.strip()]
    nth = item["nth_paragraph"]
    if len(pieces) != item["num_paragraphs"] or nth > len(pieces):
        return False
    first = re.match(r"[\"']*([^\s.,?!\"']*)", pieces[nth - 1].strip())
    return first is not None and first[1].lower() == item["first_word"].lower()


def _postscript(answer: str, item: Mapping[str, Any]) -> bool:
    marker = item["postscript_marker"]
    pattern = r"\.\s?".join(re.escape(c) for c in marker if c.isalpha())
    if marker.endswith("."):
        pattern += r"\."
    return re.search(rf"^.*{pattern}", answer, flags=re.IGNORECASE | re.MULTILINE) is not None


def _is_json(answer: str, _item: Mapping[str, Any]) -> bool:
    body = re.sub(r"^```(?:json)?|```$", "", answer.strip(), flags=re.IGNORECASE).strip()
    try:
        json.loads(body)
    except ValueError:
        return False
    return True


def _two_responses(answer: str, _item: Mapping[str, Any]) -> bool:
    pieces = answer.split("******")
    filled = [p.strip() for p in pieces if p.strip()]
    return all(p.strip() for p in pieces[1:-1]) and len(filled) == 2 and filled[0] != filled[1]


def _capital_words(answer: str, item: Mapping[str, Any]) -> bool:
    found = sum(w.isupper() for w in re.findall(r"[^\W\d_](?:[\w'-]*\w)?", answer))
    return _compare(found, item["capital_relation"], item["capital_frequency"])


CHECKS: dict[str, Check] = {
    "change_case:capital_word_frequency": _capital_words,
    "change_case:english_capital": lambda a, _: a.isupper() and _is_language(a, "en"),
    "change_case:english_lowercase": lambda a, _: a.islower() and _is_language(a, "en"),
    "combination:repeat_prompt": lambda a, i: (
        a.strip().lower().startswith(i["prompt_to_repeat"].strip().lower())
    ),
    "combination:two_responses": _two_responses,
    "detectable_content:number_placeholders": lambda a, i: (
        len(re.findall(r"\[.*?\]", a)) >= i["num_placeholders"]
    ),
    "detectable_content:postscript": _postscript,
    "detectable_format:constrained_response": lambda a, _: any(c in a for c in _CONSTRAINED),
    "detectable_format:json_format": _is_json,
    "detectable_format:multiple_sections": _section_count,
    "detectable_format:number_bullet_lists": _bullets,
    "detectable_format:number_highlighted_sections": _highlights,
    "detectable_format:title": lambda a, _: any(
        t.strip("<>").strip() for t in re.findall(r"<<[^\n]+>>", a)
    ),
    "keywords:existence": lambda a, i: all(_keyword_count(a, k) for k in i["keywords"]),
    "keywords:forbidden_words": _forbidden,
    "keywords:frequency": lambda a, i: _compare(
        _keyword_count(a, i["keyword"].strip()), i["relation"], i["frequency"]
    ),
    "keywords:letter_frequency": lambda a, i: _compare(
        a.lower().count(i["letter"].lower()), i["let_relation"], i["let_frequency"]
    ),
    "language:response_language": lambda a, i: _is_language(a, i["language"]),
    "length_constraints:nth_paragraph_first_word": _nth_first_word,
    "length_constraints:number_paragraphs": _paragraph_count,
    "length_constraints:number_sentences": lambda a, i: _compare(
        _sentences(a), i["relation"], i["num_sentences"]
    ),
    "length_constraints:number_words": lambda a, i: _compare(
        len(_words(a)), i["relation"], i["num_words"]
    ),
    "punctuation:no_comma": lambda a, _: "," not in a,
    "startend:end_checker": lambda a, i: (
        a.strip().strip('"').lower().endswith(i["end_phrase"].strip().lower())
    ),
    "startend:quotation": lambda a, _: (
        len(a.strip()) > 1 and a.strip().startswith('"') and a.strip().endswith('"')
    ),
}
