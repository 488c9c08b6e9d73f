"""Export of samples: JSON lines with everything known, Markdown to read, and plain text for the clipboard."""

from __future__ import annotations

import contextlib
import json
import math
import re
import string
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from trainer.errors import StorageError
from workbench.kit.file_names import unused
from workbench.run.sample_records import TokenSample
from workbench.text import visible

_PAIRS = {  # keys of `trainer.rollout.experience.sa_pairs`, and their columns in a samples file
    "policy_logprob": "logprobs",
    "ref_logprob": "ref_logprobs",
    "kl": "kl",
    "reward": "rewards",
    "value": "values",
    "td_error": "td_errors",
    "advantage": "advantages",
    "return": "returns",
}
_TABLE = {  # headings of the Markdown table
    "logprobs": "log-prob",
    "ref_logprobs": "reference",
    "kl": "KL",
    "entropy": "entropy",
    "rewards": "reward",
    "values": "value",
    "td_errors": "TD error",
    "advantages": "advantage",
    "returns": "return",
}
_ENTITIES = {ord(mark): f"&#{ord(mark)};" for mark in string.punctuation}


def copy_text(sample: TokenSample) -> str:
    """Return prompt and response as plain text, with control characters shown as symbols."""
    return visible(sample.prompt + sample.completion, keep_newlines=True)


def sa_pairs(sample: TokenSample) -> Iterator[dict[str, Any]]:
    """Yield the state-action pairs of the response, one dict per token, as `trainer.rollout.experience.sa_pairs` does.

    The state is text: the prompt and the response before the token. Numbers that the file lacks are left out.
    """
    numbers = {key: sample.numbers[column] for key, column in _PAIRS.items() if column in sample.numbers}
    state = sample.prompt
    for step, (token, text) in enumerate(zip(sample.tokens, sample.texts, strict=True)):
        pair = {"sequence": sample.key.row, "step": step, "state": state, "action": text, "token": token}
        yield pair | {key: values[step] for key, values in numbers.items()}
        state += text


def export_jsonl(samples: Iterable[TokenSample], path: Path) -> Path:
    """Write one line per sample: its record, then `sa_pairs`. NaN and infinities become null.

    Returns the path written: `path`, or with a number after its name where that exists. Raises StorageError when the
    file cannot be written; nothing is left behind then.
    """
    return write_new(path, (piece for sample in samples for piece in _json_line(sample)))


def export_markdown(samples: Iterable[TokenSample], path: Path) -> Path:
    """Write prompts, responses, scores and a table of the tokens. Text of a sample is never read as markup.

    Returns the path and raises errors like `export_jsonl`.
    """
    return write_new(path, (piece for sample in samples for piece in _markdown(sample)))


def check_place(path: Path) -> None:
    """Raise StorageError if `write_new` would; leave no file behind."""
    write_new(path, ()).unlink(missing_ok=True)


def write_new(path: Path, pieces: Iterable[str]) -> Path:
    """Write `pieces` to a new file named after `path` (see `unused`), whole or not at all, and return its path.

    Creates the folder. Raises StorageError when the folder or the file cannot be written.
    """
    try:
        if path.is_dir():
            raise StorageError(f"cannot write '{path}': it is a folder; give the file a name")
        temporary = path.with_name(f".{path.name}.tmp")
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with temporary.open("w", encoding="utf-8", errors="backslashreplace", newline="") as file:
                file.writelines(pieces)
            free = unused(path)
            temporary.replace(free)
        finally:
            with contextlib.suppress(OSError):
                temporary.unlink()
    except OSError as error:
        raise StorageError(f"cannot write '{path}': {error.strerror or error}; choose another place") from None
    return free


def _json_line(sample: TokenSample) -> Iterator[str]:
    """Yield the line in pieces, because the states of all pairs together grow with the square of the length."""
    record = {
        "iteration": sample.key.iteration,
        "row": sample.key.row,
        "prompt_index": sample.prompt_index,
        "sample": sample.sample,
        "prompt": sample.prompt,
        "completion": sample.completion,
        "score": sample.score,
        "sequence_score": sample.sequence_score,
        "parts": dict(sample.parts),
        "columns": _columns(sample.columns),
        "truncated": sample.truncated,
        "length": len(sample),
        "final_value": sample.final_value,
        "baseline": sample.baseline,
        "advantage_scale": sample.advantage_scale,
        "prompt_tokens": list(sample.prompt_tokens),
        "tokens": list(sample.tokens),
        "token_texts": list(sample.texts),
        **{name: list(values) for name, values in sample.numbers.items()},
        "ratios": [list(passes) for passes in sample.ratios],
        "alternatives": [[one._asdict() for one in place] for place in sample.alternatives],
        "settings": None if sample.settings is None else asdict(sample.settings),
    }
    yield _json(record)[:-1] + ', "sa_pairs": ['
    for pair in sa_pairs(sample):
        yield (", " if pair["step"] else "") + _json(pair)
    yield "]}\n"


def _json(value: Any) -> str:
    return json.dumps(_finite(value), allow_nan=False)


def _finite(value: Any) -> Any:
    """Return `value` with None for every number that JSON does not support."""
    match value:
        case float():
            return value if math.isfinite(value) else None
        case dict():
            return {key: _finite(one) for key, one in value.items()}
        case list():
            return [_finite(one) for one in value]
    return value


def _columns(text: str) -> Any:
    """Parse the prompt's other columns; text that is not JSON is returned as it is."""
    try:
        return json.loads(text) if text else {}
    except ValueError:
        return text


def _markdown(sample: TokenSample) -> Iterator[str]:
    yield f"## Iteration {sample.key.iteration}, sample {sample.key.row + 1}\n\n"
    yield "### Prompt\n\n" + _fenced(sample.prompt)
    yield "### Completion" + (", cut short" if sample.truncated else "") + "\n\n" + _fenced(sample.completion)
    scores = {"score": sample.score, **sample.parts, "KL of the sequence, nats": _kl(sample.numbers)}
    more = {"baseline": sample.baseline, "the advantage is divided by": sample.advantage_scale}
    scores |= {name: value for name, value in more.items() if not math.isnan(value)}
    yield "### Scores\n\n" + _row("", "value") + _row("---", "---:")
    for name, value in scores.items():
        yield _row(_cell(name), f"{value:+.4f}")
    shown = [name for name in _TABLE if name in sample.numbers]
    yield "\n### Tokens\n\n" + _row("", "token", "id", *(_TABLE[name] for name in shown))
    yield _row("---:", "---", *["---:"] * (1 + len(shown)))
    for place, (token, text) in enumerate(zip(sample.tokens, sample.texts, strict=True)):
        numbers = (f"{sample.numbers[name][place]:+.4f}" for name in shown)
        yield _row(str(place + 1), _cell(text), str(token), *numbers)
    yield "\n"


def _kl(numbers: Mapping[str, Sequence[float]]) -> float:
    """Return the k1 KL of the response in nats, NaN where the file has no log-probs."""
    if not {"logprobs", "ref_logprobs"} <= numbers.keys():
        return math.nan
    return sum(mine - theirs for mine, theirs in zip(numbers["logprobs"], numbers["ref_logprobs"], strict=True))


def _row(*cells: str) -> str:
    return f"| {' | '.join(cells)} |\n"


def _cell(text: str) -> str:
    """Return `text` as the cell of a table: as code, or with its punctuation as entities where code cannot hold it."""
    shown = visible(text).replace(" ", "␣")
    if not shown:
        return ""
    return shown.translate(_ENTITIES) if re.search(r"[`|\\]", shown) else f"`{shown}`"


def _fenced(text: str) -> str:
    """Return `text` as a code block whose fence is longer than any run of backticks in it."""
    longest = max((len(run) for run in re.findall("`+", text)), default=0)
    fence = "`" * max(longest + 1, 3)
    return f"{fence}text\n{visible(text, keep_newlines=True)}\n{fence}\n\n"
