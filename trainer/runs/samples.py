"""Sequences of an iteration as Parquet: one row per sequence, with texts, scores and every per-token array."""

from __future__ import annotations

import functools
import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import TypeAdapter

from trainer.errors import StorageError, writing
from trainer.files import PRIVATE, open_regular, own_folder, whole_file

if TYPE_CHECKING:  # importing pyarrow takes 0.3 s, which commands that write no samples avoid
    import pyarrow as pa

    from trainer.runs.folder import RunFolder

SAMPLES_VERSION = 1

_TEXTS = {"prompt", "source_prompt", "completion", "stop_reason", "parts", "columns", "extra"}
_TEXTS |= {"token_texts", "top_texts"}
_GROUP_TOKENS = 32_768  # per row group: one sequence of many is read without decoding all the others
_AT_ONCE = 1024 * 1024  # bytes; a file up to this size is read whole, which is faster than column by column
TOKEN_COLUMNS = (
    "sampler_logprobs",  # nats, by the sampler
    "logprobs",  # nats, teacher-forced, old policy
    "ref_logprobs",  # nats, teacher-forced, reference
    "kl",  # nats
    "entropy",  # nats
    "token_scores",  # rewards of single tokens, part of `rewards`
    "rewards",  # token_scores, -kl_coef * kl if kl_in is reward, and the sequence's own score last; perhaps whitened
    "values",
    "td_errors",
    "advantages",  # as the estimator gives them, not whitened
    "returns",  # with a critic advantages + values, else the rewards from the token on
)
"""Columns with one float32 per response token, so each as long as `tokens`; null if the run does not have them.

Without a critic there are no values and no TD errors.
"""


@dataclass(frozen=True, slots=True)
class SampleSettings:
    """Settings used in the iteration of a samples file.

    With them, every number of a token follows from those before it. The moments are those of the whole batch's real
    tokens; the deviation is that of the population.
    """

    kl_coef: float
    kl_estimator: str
    gamma: float
    lam: float
    clip: float
    temperature: float
    epochs: int
    bootstrap_truncated: bool
    whiten_rewards: bool  # if so, `rewards` are whitened
    whiten_advantages: bool  # if so, the loss sees `advantages` whitened
    reward_mean: float  # of the rewards before any whitening
    reward_std: float
    advantage_mean: float
    advantage_std: float
    estimator: str = "gae"
    kl_in: str = "reward"  # or loss: then `rewards` are without the KL
    clip_high: float = 0.0  # the ratio's upper bound is 1 + clip_high; 0: 1 + clip
    dual_clip: float = 0.0  # 0 for none
    loss_aggregation: str = "token"
    group_std: bool = True  # whether grpo divides by the group's deviation
    samples_per_prompt: int = 1
    policy_loss: str = "clip"  # or cispo
    ratio: str = "token"  # or sequence: the loss sees the geometric mean of a response's `ratios`
    importance_cap: float = 0.0  # 0: no weights for the difference of sampler and trainer
    trains_policy: bool = True  # false while the critic alone learns
    has_signal: bool = True  # false if the advantages differ only by rounding errors; the policy's loss leaves them out


_SETTINGS = TypeAdapter(SampleSettings)


@functools.cache
def sample_schema() -> pa.Schema:
    """Return the columns of a samples file. `parts` has the raw score of each reward source, `columns` is JSON.

    token_texts: one per token; joined they are the decoded response. A token in the middle of a character has an empty
    text, and the last token of the character has all of it.

    ratios: pi / pi_old of each token in each epoch's pass, before its own step. The first is 1 if an epoch is one step.
    The ratio is NaN if an epoch took no step on the token. If the run measures it, one more follows for the policy
    after the last epoch.

    top_*: the policy's likeliest tokens at each position, likeliest first.

    Null where no reward source applies to the sequence (what follows from its score), where no step was taken, where no
    alternatives are kept, and without a critic (values, td_errors, final_value) or with one (baseline,
    advantage_scale).
    """
    import pyarrow as pa

    tokens, numbers = pa.list_(pa.int32()), pa.list_(pa.float32())
    return pa.schema(
        [
            ("row", pa.int32()),  # within the batch, from 0
            ("prompt_index", pa.int32()),  # within the prompts
            ("sample", pa.int32()),  # which of the prompt's samples, from 0
            ("prompt", pa.string()),  # as rendered for the model
            ("source_prompt", pa.string()),  # as in the data, JSON: messages, or a text that was rendered; else null
            ("completion", pa.string()),
            ("truncated", pa.bool_()),
            ("stop_reason", pa.string()),  # stop or length
            ("score", pa.float64()),  # of the sequence and its tokens together, without the KL penalty
            ("sequence_score", pa.float64()),  # the part of it on the last token
            ("parts", pa.list_(pa.struct([("source", pa.string()), ("score", pa.float64())]))),
            ("columns", pa.string()),  # the prompt's other columns
            ("extra", pa.string()),  # what reward functions logged about the response, by column, JSON; null if nothing
            ("length", pa.int32()),  # response tokens, including the stop token
            ("kl_sum", pa.float64()),  # nats, k1 summed over the response
            ("final_value", pa.float64()),  # V of the state after the last token
            ("baseline", pa.float64()),  # without a critic: subtracted from the sequence's returns
            ("advantage_scale", pa.float64()),  # with grpo: what the sequence's advantage was divided by
            ("prompt_tokens", tokens),
            ("tokens", tokens),
            ("token_texts", pa.list_(pa.string())),
            *((name, numbers) for name in TOKEN_COLUMNS),
            ("ratios", pa.list_(numbers)),
            ("top_tokens", pa.list_(tokens)),
            ("top_texts", pa.list_(pa.list_(pa.string()))),
            ("top_logprobs", pa.list_(numbers)),  # nats
            ("top_ref_logprobs", pa.list_(numbers)),  # nats
        ]
    )


def write_samples(
    path: Path,
    rows: Sequence[dict[str, Any]],
    iteration: int,
    settings: SampleSettings | None = None,
    *,
    mode: int = PRIVATE,
) -> None:
    """Write `rows` (see `sample_schema`; what a row lacks is null) to `path`, whole or not at all.

    Per-token values may be lists or NumPy arrays, [T] or [T, n]. Text that is not Unicode (lone surrogates) is written
    with backslash escapes. The folder is created if only it is missing. settings: those of the iteration, kept in the
    metadata. mode: permissions of the file. Raises StorageError if `path` cannot be written, ValueError for columns
    that are not in the schema.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    schema = sample_schema()
    if unknown := {name for row in rows for name in row} - set(schema.names):
        raise ValueError(f"unknown sample columns {sorted(unknown)}: the schema has {schema.names}")
    columns = [column([row.get(field.name) for row in rows], field.type) for field in schema]
    metadata = {"samples": str(SAMPLES_VERSION), "iteration": str(iteration)}
    if settings is not None:
        metadata["settings"] = json.dumps(asdict(settings))
    table = pa.Table.from_arrays(columns, schema=schema.with_metadata(metadata))
    longest = max((len(tokens) for row in rows if (tokens := row.get("tokens")) is not None), default=0) or 1
    rows_a_group = max(_GROUP_TOKENS // longest, 1)
    with writing(f"samples '{path}'", ", or keep none with --set run.save_samples=false"):
        own_folder(path.parent)
        with whole_file(path, mode=mode) as file:
            pq.write_table(table, file, compression="zstd", write_page_checksum=True, row_group_size=rows_a_group)


def column(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    """Build an array of `kind` from `values`: one per row, None where a row has none.

    A list of pairs is given as a dict. Lists may be NumPy arrays, and lists of lists arrays [T, n]. Lone surrogates in
    texts become backslash escapes.
    """
    import pyarrow as pa

    if pa.types.is_list(kind) and pa.types.is_struct(kind.value_type):
        names = [field.name for field in kind.value_type]
        values = [pairs and [dict(zip(names, pair, strict=True)) for pair in pairs.items()] for pairs in values]
    elif pa.types.is_list(kind) and pa.types.is_list(kind.value_type):
        values = [value if value is None else list(value) for value in values]  # pyarrow takes one dimension
    try:
        return pa.array(values, type=kind)
    except UnicodeEncodeError:
        return pa.array(_escaped(values), type=kind)


def _escaped(value: Any) -> Any:
    match value:
        case str():
            return value.encode("utf-8", "backslashreplace").decode("utf-8")
        case list():
            return [_escaped(item) for item in value]
        case dict():
            return {key: _escaped(item) for key, item in value.items()}
    return value


def kept_iterations(folder: RunFolder) -> list[int]:
    """Return the iterations that have a samples file, ascending; none if the folder cannot be read."""
    # At most nine digits, because iterations are 32-bit numbers.
    names = [re.fullmatch(r"step-([0-9]{6,9})\.parquet", path.name) for path in folder.samples.glob("step-*")]
    return sorted(int(name[1]) for name in names if name)


def read_samples(path: Path, columns: Sequence[str] | None = None) -> pa.Table:
    """Read the table in `path`, or only `columns` of it.

    `table.schema.metadata` has b"iteration"; see also `sample_settings`. Raises StorageError if the file is missing,
    damaged, of a newer version, or lacks one of `columns`.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with open_regular(path) as content:
            small = os.fstat(content.fileno()).st_size <= _AT_ONCE
            source = pa.BufferReader(content.read()) if small else content
            file = pq.ParquetFile(source, page_checksum_verification=True)
            version = (file.schema_arrow.metadata or {}).get(b"samples", b"1")
            if not version.isdigit() or len(version) > 9:
                raise StorageError(f"samples '{path}' are damaged (their version is {version[:20]!r}): delete the file")
            if int(version) > SAMPLES_VERSION:
                raise StorageError(f"samples '{path}' were written by a newer version: update ppo-workbench")
            names = file.schema_arrow.names
            if unknown := [name for name in columns or [] if name not in names]:
                raise StorageError(f"samples '{path}' have no column '{unknown[0]}': they have {', '.join(names)}")
            wanted = names if columns is None else list(columns)
            table = file.read(columns=wanted, use_threads=columns is None or not small)
            for name in _TEXTS.intersection(wanted):
                table[name].validate(full=True)  # UTF-8, which the Parquet reader does not check
            return table.select(wanted)
    except FileNotFoundError:
        raise StorageError(f"no samples '{path}': a run keeps them with run.save_samples = true") from None
    except (OSError, pa.ArrowException) as error:
        if isinstance(error, OSError) and error.errno:
            raise StorageError(f"cannot read samples '{path}': {error.strerror}; check its permissions") from None
        reason = str(error).splitlines()[0]
        raise StorageError(f"samples '{path}' are damaged ({reason}): delete the file") from None


def sample_settings(metadata: Mapping[bytes, bytes] | None) -> SampleSettings | None:
    """Return the settings that a samples file was written with; None if it does not say.

    metadata: `table.schema.metadata`.
    """
    try:
        return _SETTINGS.validate_json((metadata or {})[b"settings"])
    except (KeyError, ValueError):
        return None
