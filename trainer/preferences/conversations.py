"""Prompts and completions as plain text, transcripts or chat messages: recognise, split and convert them."""

from __future__ import annotations

import re
from collections.abc import Sequence

from trainer.preferences.records import Messages, Text, contents

HUMAN, ASSISTANT = "\n\nHuman:", "\n\nAssistant:"  # how a turn of an HH-RLHF transcript begins
_TURN = re.compile(r"\n\n(Human|Assistant):")
_ROLES = {"Human": "user", "Assistant": "assistant"}


def split_transcripts(first: str, second: str) -> tuple[str, str, str] | None:
    """Split two transcripts into (prompt, first completion, second completion).

    The cut is after the last "Assistant:" of their common beginning. Prompt and completion together are the transcript,
    character by character. Returns None if the two share no assistant turn.
    """
    start = first.rfind(ASSISTANT, 0, common_length(first, second))
    end = start + len(ASSISTANT)
    return (first[:end], first[end:], second[end:]) if start >= 0 else None


def split_texts(first: str, second: str) -> tuple[str, str, str] | None:
    """Split two texts that begin alike into (prompt, first completion, second completion).

    The cut is before the last word boundary of what they share. A word that differs only after its first letters goes
    to the completions, whole, with the white space in front of it; so does the last shared word if one text ends there.
    Returns None if no word would be left for the prompt.
    """
    beginning = first[: common_length(first, second)]
    after = first[len(beginning) :][:1], second[len(beginning) :][:1]
    if not beginning[-1:].isspace() and not all(one == "" or one.isspace() for one in after):
        beginning = _without_last_word(beginning)
    if min(len(first.rstrip()), len(second.rstrip())) <= len(beginning):
        beginning = _without_last_word(beginning)
    end = len(beginning.rstrip())
    return (first[:end], first[end:], second[end:]) if end else None


def split_messages(first: Messages, second: Messages) -> tuple[Messages, Messages, Messages]:
    """Split two conversations into (prompt, first completion, second completion).

    The prompt is the messages that both begin with; each completion keeps at least one message, and begins with one of
    the assistant if any of those that both have is.
    """
    room = min(len(first), len(second)) - 1
    cut = next((place for place in range(room) if first[place] != second[place]), room)
    answers = (place for place in range(cut, 0, -1) if first[place]["role"] == second[place]["role"] == "assistant")
    cut = next(answers, cut)
    return first[:cut], first[cut:], second[cut:]


def common_length(first: str, second: str) -> int:
    """Return how many characters two texts have in common at their beginning, by bisection."""
    low, high = 0, min(len(first), len(second))
    while low < high:
        middle = (low + high + 1) // 2
        if first[low:middle] == second[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def as_messages(prompt: Text, completions: Sequence[Text]) -> tuple[Messages, tuple[Messages, ...]]:
    """Convert `prompt` and `completions` to chat messages.

    Messages stay as they are. A transcript is split into its turns, without the white space around them; neighbouring
    turns of one role are joined. Any other text prompt becomes a user message, and a text completion an assistant
    message.
    """
    if isinstance(prompt, str) and prompt.startswith(HUMAN) and prompt.endswith(ASSISTANT):
        turns = _turns(prompt.removesuffix(ASSISTANT))
        return turns, tuple(_turns(ASSISTANT + text) if isinstance(text, str) else text for text in completions)
    messages = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt
    return messages, tuple(
        [{"role": "assistant", "content": text}] if isinstance(text, str) else text for text in completions
    )


def answered(prompt: Messages, answer: Messages) -> Messages:
    """Return the conversation of `prompt` and `answer`, which goes on with a last message of the assistant in it."""
    if prompt[-1]["role"] == answer[0]["role"] == "assistant":
        whole = prompt[-1]["content"] + answer[0]["content"]
        return [*prompt[:-1], {**answer[0], "content": whole}, *answer[1:]]
    return [*prompt, *answer]


def length_in_characters(text: Text) -> int:
    """Return the number of characters of a text, or of the contents of messages."""
    return sum(map(len, contents(text)))


def _without_last_word(text: str) -> str:
    return text.rsplit(None, 1)[0] if len(text.split(None, 1)) > 1 else ""


def _turns(transcript: str) -> Messages:
    """Split a transcript that begins with a turn into messages.

    Neighbouring turns of one role are joined, because many chat templates refuse them.
    """
    pieces = _TURN.split(transcript)[1:]
    messages: Messages = []
    for speaker, text in zip(pieces[::2], pieces[1::2], strict=True):
        role, content = _ROLES[speaker], text.strip()
        if messages and messages[-1]["role"] == role:
            messages[-1]["content"] = f"{messages[-1]['content']}\n\n{content}".strip()
        else:
            messages.append({"role": role, "content": content})
    return messages
