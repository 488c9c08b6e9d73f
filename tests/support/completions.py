"""Completions that a model wrote on request, one of them hostile."""

from __future__ import annotations

from typing import Any

from trainer.questions import WrittenResponse

HOSTILE = "[/x] \x1b[31m [@click=app.quit]go[/]\x9b\u202e\r\n日本語 🎉\ttab"


def completion(text: str = "so much joy", **changes: Any) -> WrittenResponse:
    values: dict[str, Any] = {
        "text": text,
        "tokens": [1, 2, 3],
        "token_texts": ["so", " much", " joy"],
        "logprobs": [-1.0, -0.5, -2.0],
        "ref_logprobs": [-1.5, -0.75, -2.5],
        "score": 0.5,
        "parts": {"lexicon": 0.5},
        "truncated": False,
    }
    return WrittenResponse(**values | changes)
