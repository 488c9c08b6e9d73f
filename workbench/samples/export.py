"""Export of samples: JSON lines with everything known, Markdown to read, and pictures."""

from __future__ import annotations

import contextlib
import io
import json
import math
import re
import string
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import asdict
from html import escape
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.cells import cell_len

from trainer.errors import StorageError
from trainer.runs.folder import RunFolder
from workbench.kit.file_names import unused
from workbench.run.sample_reader import read_token_sample
from workbench.run.sample_table import SampleKey, TokenSample
from workbench.samples.channels import CHANNELS
from workbench.text import visible

if TYPE_CHECKING:  # the command line exports without them
    from rich.segment import Segment
    from rich.style import Style

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
PICTURE_SUFFIXES = (".svg", ".html")

_NOT_XML = re.compile("[\ufffe\uffff]")  # the only text from `visible` that XML does not allow
_FONT_FACE = re.compile(r"@font-face \{.*?\}\s*", re.DOTALL)  # rich's SVG fetches its font from the network
_HTML = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="UTF-8">
<title>{title}</title>
<style>
body {{{{ color: {{foreground}}; background-color: {{background}}; }}}}
pre {{{{ font-family: Menlo, 'DejaVu Sans Mono', Consolas, monospace; }}}}
{{stylesheet}}
</style>
</head>
<body>
<pre><code>{{code}}</code></pre>
</body>
</html>
"""


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


def export_samples(folder: RunFolder, keys: Collection[SampleKey], path: Path, *, markdown: bool) -> Path:
    """Write samples of a run to a new file, as Markdown or else as JSON lines; return its path.

    Raises StorageError as `export_jsonl` does, and when a sample cannot be read.
    """
    write = export_markdown if markdown else export_jsonl
    return write((read_token_sample(folder, key) for key in keys), path)


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
        temporary.unlink(missing_ok=True)  # not followed if it is a link
        try:
            with temporary.open("x", encoding="utf-8", errors="backslashreplace", newline="") as file:
                file.writelines(pieces)
            free = unused(path)
            temporary.replace(free)
        finally:
            with contextlib.suppress(OSError):
                temporary.unlink()
    except OSError as error:
        raise StorageError(f"cannot write '{path}': {error.strerror or error}; choose another path") from None
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
        "columns": json_columns(sample.columns),
        "extra": json_columns(sample.extra),
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


def json_columns(text: str) -> Any:
    """Parse the columns of a prompt or those that functions logged; text that is not JSON is returned as it is."""
    try:
        return json.loads(text) if text else {}
    except (ValueError, RecursionError):
        return text


def _markdown(sample: TokenSample) -> Iterator[str]:
    yield f"## Iteration {sample.key.iteration}, sample {sample.key.row + 1}\n\n"
    yield "### Prompt\n\n" + _fenced(sample.prompt)
    yield "### Response" + (", cut short" if sample.truncated else "") + "\n\n" + _fenced(sample.completion)
    kl = CHANNELS["kl"].values(sample)
    scores = {"score": sample.score, **sample.parts, "KL (nats)": sum(kl) if kl else math.nan}
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


def save_picture(path: Path, lines: Sequence[Sequence[tuple[str, Style]]], title: str, width: int) -> Path:
    """Draw `lines` of styled text, at least `width` columns, in the format that the suffix of `path` names.

    Returns the path written: `path`, or with a number after its name where that exists. Raises StorageError for
    another suffix, or when the file cannot be written.
    """
    if path.suffix not in PICTURE_SUFFIXES:
        raise StorageError(f"cannot draw '{path}': use a name that ends in {' or '.join(PICTURE_SUFFIXES)}")
    from rich.console import Console
    from rich.segment import Segments
    from rich.terminal_theme import SVG_EXPORT_THEME

    safe = [[(_drawable(text), style) for text, style in line] for line in lines]
    width = max([width, *(sum(cell_len(text) for text, _ in line) for line in safe)])
    console = Console(record=True, width=width, file=io.StringIO())
    for line in safe:
        console.print(Segments(list(_segments(line))))
    title = _drawable(title)
    if path.suffix == ".svg":
        picture = _FONT_FACE.sub("", console.export_svg(title=title, theme=SVG_EXPORT_THEME))
    else:
        title = escape(title).replace("{", "{{").replace("}", "}}")  # rich calls str.format on it
        picture = console.export_html(theme=SVG_EXPORT_THEME, code_format=_HTML.format(title=title))
    return write_new(path, [picture])


def _drawable(text: str) -> str:
    return _NOT_XML.sub("\ufffd", visible(text))


def _segments(line: Sequence[tuple[str, Style]]) -> Iterator[Segment]:
    """Yield the line as segments.

    A cluster that is not a single character of one column gets its own segment, because rich sizes a segment as if
    every character took one column.
    """
    from rich.segment import Segment

    for text, style in line:
        plain = style.update_link(None)
        for narrow, group in groupby(_clusters(text), key=lambda cluster: len(cluster) == cell_len(cluster) == 1):
            clusters = list(group)
            yield from (Segment(stretch, plain) for stretch in (["".join(clusters)] if narrow else clusters))
    yield Segment.line()


def _clusters(text: str) -> list[str]:
    """Split `text` into characters, each with the marks that combine with it."""
    clusters: list[str] = []
    for character in text:
        if clusters and cell_len(character) == 0:
            clusters[-1] += character
        else:
            clusters.append(character)
    return clusters
