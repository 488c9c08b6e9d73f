"""Export of samples: JSON lines with everything known, and Markdown to read."""

from __future__ import annotations

import json
import math
import re
import string
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from trainer.errors import StorageError
from trainer.events import plain
from trainer.files import unused, whole_file
from workbench.run.sample_table import TokenSample
from workbench.text import visible

_PAIRS = {  # keys of `sa_pairs`, and their columns in a samples file
    "policy_logprob": "logprobs",
    "ref_logprob": "ref_logprobs",
    "kl": "kl",
    "reward": "rewards",
    "value": "values",
    "td_error": "td_errors",
    "advantage": "advantages",
    "return": "returns",
}
_FIELDS = (  # of a sample in its JSON line
    *("prompt_index", "sample", "prompt", "completion", "score", "sequence_score", "truncated", "length"),
    *("final_value", "baseline", "advantage_scale"),
)
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


def sa_pairs(sample: TokenSample) -> Iterator[dict[str, Any]]:
    """Yield the state-action pairs of the response, one dict per token.

    The state is text: the prompt and the response before the token. Numbers that the file lacks are omitted.
    """
    numbers = {key: sample.numbers[column] for key, column in _PAIRS.items() if column in sample.numbers}
    state = sample.prompt
    for step, (token, text) in enumerate(zip(sample.tokens, sample.texts, strict=True)):
        pair = {"sequence": sample.key.row, "step": step, "state": state, "action": text, "token": token}
        yield pair | {key: values[step] for key, values in numbers.items()}
        state += text


def exported(sample: TokenSample, *, markdown: bool) -> Iterator[str]:
    """Yield a sample as a JSON line in pieces: its record, then `sa_pairs`; NaN and infinities become null.

    markdown: yield prompt, response, scores and a table of the tokens instead; texts are never read as markup.
    """
    return _markdown(sample) if markdown else _json_line(sample)


def export_samples(samples: Iterable[TokenSample], path: Path, *, markdown: bool) -> Path:
    """Write samples to a new file, whole or not at all, and return its path: see `unused`. Creates the folder.

    Raises StorageError when the file cannot be written.
    """
    try:
        if path.is_dir():
            raise StorageError(f"cannot write '{path}': it is a folder; give the file a name")
        path.parent.mkdir(parents=True, exist_ok=True)
        path = unused(path)
        with whole_file(path) as file:
            for sample in samples:
                file.writelines(
                    piece.encode("utf-8", "backslashreplace") for piece in exported(sample, markdown=markdown)
                )
    except OSError as error:
        raise StorageError(f"cannot write '{path}': {error.strerror or error}; choose another path") from None
    return path


def _json_line(sample: TokenSample) -> Iterator[str]:
    """Yield the line in pieces, because the states of all pairs together grow with the square of the length."""
    record = {
        "iteration": sample.key.iteration,
        "row": sample.key.row,
        **{name: getattr(sample, name) for name in _FIELDS},
        "parts": dict(sample.parts),
        "columns": parsed(sample.columns),
        "extra": parsed(sample.extra),
        "prompt_tokens": list(sample.prompt_tokens),
        "tokens": list(sample.tokens),
        "token_texts": list(sample.texts),
        **{name: list(values) for name, values in sample.numbers.items()},
        "ratios": [list(passes) for passes in sample.ratios],
        "alternatives": [[one._asdict() for one in place] for place in sample.alternatives],
        "settings": None if sample.settings is None else asdict(sample.settings),
    }
    yield json.dumps(plain(record), allow_nan=False)[:-1] + ', "sa_pairs": ['
    for pair in sa_pairs(sample):
        yield (", " if pair["step"] else "") + json.dumps(plain(pair), allow_nan=False)
    yield "]}\n"


def parsed(text: str) -> Any:
    """Parse JSON of a samples file; {} where there is none, and text that is not JSON as it is."""
    try:
        return json.loads(text) if text else {}
    except (ValueError, RecursionError):
        return text


def _markdown(sample: TokenSample) -> Iterator[str]:
    yield f"## Iteration {sample.key.iteration}, sample {sample.key.row + 1}\n\n"
    yield "### Prompt\n\n" + _fenced(sample.prompt)
    yield "### Response" + (", cut short" if sample.truncated else "") + "\n\n" + _fenced(sample.completion)
    scores = {"score": sample.score, **sample.parts, "KL (nats)": sample.kl}
    more = {"baseline": sample.baseline, "advantage divisor": sample.advantage_scale}
    scores |= {name: value for name, value in more.items() if not math.isnan(value)}
    yield "### Scores\n\n" + _table_row("", "value") + _table_row("---", "---:")
    for name, value in scores.items():
        yield _table_row(_cell(name), "not scored" if math.isnan(value) else f"{value:+.4f}")
    shown = [name for name in _TABLE if name in sample.numbers]
    yield "\n### Tokens\n\n" + _table_row("", "token", "id", *(_TABLE[name] for name in shown))
    yield _table_row("---:", "---", *["---:"] * (1 + len(shown)))
    for place, (token, text) in enumerate(zip(sample.tokens, sample.texts, strict=True)):
        numbers = (f"{sample.numbers[name][place]:+.4f}" for name in shown)
        yield _table_row(str(place + 1), _cell(text), str(token), *numbers)
    yield "\n"


def _table_row(*cells: str) -> str:
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
