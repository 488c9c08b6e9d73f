"""Prompts: read from every kind of source, rendered, tokenised, split, and visited once a pass."""

from __future__ import annotations

import gzip
import json
import re
import subprocess
import sys
from collections import Counter
from itertools import islice, pairwise
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow as pa
import pyarrow.parquet
import pyarrow.parquet as pq
import pytest
from apart import ROOT
from hypothesis import given
from hypothesis import strategies as st
from mlx_lm.tokenizer_utils import TokenizerWrapper
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast
from vaderSentiment.vaderSentiment import SentimentIntensityAnalyzer

from trainer.arrays import prompt_indices
from trainer.config.schema import DataConfig
from trainer.data import Prompt, PromptRow, encode_prompts, load_prompts, readers, split_prompts
from trainer.data.readers import read_rows
from trainer.errors import DataError

ROWS = [
    {"prompt": "one, two", "mood": "warm"},
    {"prompt": 'the "third"', "mood": "sad"},
    {"prompt": "grüße, für\u2028dich", "mood": "sad"},
]
WORDS = ["<bos>", "<eos>", "<unk>", "<end>", "<|system|>", "<|user|>", "<|assistant|>", "a", "b", "c", "d", "e", "s"]
BOS, EOS = 0, 1
TEMPLATE = (
    "{{ bos_token }}{% for m in messages %} <|{{ m.role }}|> {{ m.content }} <end>{% endfor %}"
    "{% if add_generation_prompt %} <|assistant|>{% endif %}"
)
NO_SYSTEM = "{% if messages[0].role == 'system' %}{{ raise_exception('no system role') }}{% endif %}" + TEMPLATE
USER_A = [{"role": "user", "content": "a"}]


def word_tokenizer(special: str = "<bos> $A", template: str | None = TEMPLATE) -> PreTrainedTokenizerFast:
    """Return a tokenizer with a token per word of WORDS; `special` is what it puts around plain text."""
    words = {word: number for number, word in enumerate(WORDS)}
    backend = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    backend.post_processor = processors.TemplateProcessing(
        single=special, special_tokens=[("<bos>", BOS), ("<eos>", EOS)]
    )
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend, bos_token="<bos>", eos_token="<eos>", unk_token="<unk>"
    )
    tokenizer.chat_template = template
    return tokenizer


def ids(text: str) -> list[int]:
    return [WORDS.index(word) for word in text.split()]


def rows(*prompts: str | list[dict[str, str]]) -> list[PromptRow]:
    return [PromptRow(index, prompt, {"number": index}) for index, prompt in enumerate(prompts)]


def encoded(prompt: str | list[dict[str, str]], tokenizer: Any = None, **settings: Any) -> Prompt:
    [result] = encode_prompts(rows(prompt), tokenizer or word_tokenizer(), DataConfig(**settings)).prompts
    return result


def loaded(**settings: Any) -> list[tuple[Any, ...]]:
    """Return index, prompt and columns of each prompt that is loaded."""
    return [row[:3] for row in load_prompts(DataConfig(**settings))]


def data_error(config: DataConfig) -> str:
    """Return the message of the one-line DataError that loading raises."""
    with pytest.raises(DataError) as caught:
        load_prompts(config)
    message = str(caught.value)
    assert "\n" not in message
    return message


def encoding_error(prompts: list[PromptRow], tokenizer: Any, **settings: Any) -> str:
    with pytest.raises(DataError) as caught:
        encode_prompts(prompts, tokenizer, DataConfig(**settings))
    message = str(caught.value)
    assert "\n" not in message
    return message


# Sources


def write_source(folder: Path, suffix: str) -> Path:
    path = folder / f"prompts{suffix}"
    if suffix == ".jsonl":
        path.write_text("\n\n".join(json.dumps(row, ensure_ascii=False) for row in ROWS) + "\n", encoding="utf-8")
    elif suffix == ".jsonl.gz":
        path.write_bytes(gzip.compress("\n".join(map(json.dumps, ROWS)).encode()))
    elif suffix == ".json":
        path.write_text(json.dumps(ROWS), encoding="utf-8-sig")
    elif suffix == ".csv":
        lines = ['"' + row["prompt"].replace('"', '""') + f'",{row["mood"]}' for row in ROWS]
        path.write_text("\r\n".join(["prompt,mood", *lines]), encoding="utf-8", newline="")
    elif suffix == ".parquet":
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(ROWS), path)
    return path


@pytest.mark.parametrize("suffix", [".jsonl", ".jsonl.gz", ".json", ".csv", ".parquet"])
def test_every_file_format_gives_the_same_rows(tmp_path: Path, suffix: str) -> None:
    path = write_source(tmp_path, suffix)
    assert loaded(prompts=str(path)) == [
        (index, row["prompt"], {"mood": row["mood"]}) for index, row in enumerate(ROWS)
    ]


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.tsv", "prompt\tmood\none, two\twarm\n"),
        ("a.csv", "\ufeffprompt;mood\r\none, two;warm\r\n"),
        ("a.csv", "prompt\tmood\none, two\twarm\n"),
        ("a.csv", 'prompt,mood\r"one, two",warm\r'),
        ("a.csv", "sep=|\r\nprompt|mood\r\none, two|warm\r\n"),
        ("a.csv", '\n"prompt;long",prompt,mood,,\n\n,,,,\nx,"one, two",warm,,\n,,\n'),
        ("a.csv", "prompt; mood;\none, two;warm;\n"),
        ("a.csv", 'prompt,mood,"a;b;c;d"\n"one, two",warm,x\n'),
        ("a.csv", 'prompt;mood;"a,b,c,d"\none, two;warm;x\n'),
    ],
)
def test_csv_is_read_as_spreadsheets_write_it(tmp_path: Path, name: str, content: str) -> None:
    (tmp_path / name).write_bytes(content.encode())
    [row] = load_prompts(DataConfig(prompts=str(tmp_path / name)))
    assert (row.prompt, row.columns["mood"]) == ("one, two", "warm")


MESSAGES = [{"role": "assistant", "content": "hello"}, {"role": "critic", "content": ""}]


@pytest.mark.parametrize(
    ("name", "content", "settings", "prompts"),
    [
        ("book.csv", f'prompt\n"{"a " * 500_000}"\n', {}, ["a " * 500_000]),
        ("lines.txt", "one \r\n\r\n  \r\n two\u2028three", {}, ["one ", " two\u2028three"]),
        ("end.jsonl", '{"prompt": "one"}\n{"prompt": "two"}\nnot JSON\n', {"limit": 2}, ["one", "two"]),  # not read
        ("roles.jsonl", json.dumps({"chat": MESSAGES}), {"column": "chat"}, [MESSAGES]),
    ],
)
def test_prompts_are_read_as_they_are(
    tmp_path: Path, name: str, content: str, settings: dict[str, Any], prompts: list[Any]
) -> None:
    (tmp_path / name).write_bytes(content.encode())
    found = loaded(prompts=str(tmp_path / name), **settings)
    assert found == [(index, prompt, {}) for index, prompt in enumerate(prompts)]


def test_two_columns_of_one_name_are_refused_in_parquet_too(tmp_path: Path) -> None:
    path = tmp_path / "prompts.parquet"
    pyarrow.parquet.write_table(pyarrow.table([["one"], ["two"]], names=["prompt", "prompt"]), path)
    assert "the column 'prompt' twice" in data_error(DataConfig(prompts=str(path)))


BROKEN = {
    "empty.jsonl": (b"\n \n", "has no prompts"),
    "broken.jsonl": (b'{"prompt": "one"}\n{"prompt": }\n', "broken.jsonl:2: not JSON: Expecting value at column 12"),
    "list.jsonl": (b"[1, 2]", 'list.jsonl:1: must be an object such as {"prompt": "..."}, is a list'),
    "lines.json": (
        b'{"prompt": "one"}\n{"prompt": "two"}',
        "lines.json:2: not JSON: Extra data at column 1; name a file with one object per line ",
    ),
    "object.json": (b'{"prompt": "one"}', "must be a list of objects, is an object"),
    "digits.json": (b"[" + b"1" * 5000 + b"]", "digits.json: has a number of thousands of digits"),
    "deep.jsonl": (b"[" * 100_000, "deep.jsonl:1: JSON nested too deeply"),
    "quote.csv": (b'prompt\n"one\n', "not CSV: unexpected end of data"),
    "wide.csv": (b"prompt\none, two\n", "wide.csv:2: has more fields than the header"),
    "open.csv": (b'prompt\none\n\n"two\nthree\n"four"\n', "open.csv:4: not CSV: ',' expected after '\"' in line 6"),
    "twice.csv": (b"prompt,n, prompt\none,1,two\n", "twice.csv:1: the header has the column 'prompt' twice"),
    "utf16.csv": ("prompt\nö\n".encode("utf-16"), "utf16.csv: is UTF-16: save the file as UTF-8"),
    "bare.jsonl": ('{"prompt": "ö"}\n'.encode("utf-16-le"), "bare.jsonl: is UTF-16: save the file as UTF-8"),
    "latin.json": (b'[{"prompt":\n"gr\xfcn"}]', "latin.json:2: byte 0xfc is not UTF-8 (in Windows-1252 it is 'ü')"),
    "latin.txt": (b"one\ngr\xfc\xdfe\n", "latin.txt:2: byte 0xfc is not UTF-8"),
    "text.parquet": (b"one two", "not a Parquet file"),
    "prompts.xlsx": (b"PK", "unknown suffix '.xlsx': must be one of .jsonl, .jsonl.gz, .json, .csv, .tsv, .parq"),
    "cut.jsonl.gz": (gzip.compress(b'{"prompt": "one"}')[:-9], "cut.jsonl.gz: incomplete or damaged gzip file"),
    "plain.jsonl.gz": (b'{"prompt": "one"}', "plain.jsonl.gz: incomplete or damaged gzip file"),
    "close.jsonl": (b'{"promt": "one", "x": 1}', "no column 'prompt' (data.column): the columns are promt, x; did you"),
    "number.jsonl": (b'{"prompt": 3}', "number.jsonl:1: column 'prompt' is 3: must be a string, or a list of messages"),
    "roleless.jsonl": (b'{"prompt": [{"content": "a"}]}', "is [{'content': 'a'}]: must be a string, or a list"),
    "parts.jsonl": (b'{"prompt": [{"role": "user", "content": []}]}', "must be a string, or a list of messages"),
    "blank.jsonl": (b'{"prompt": "one"}\n{"prompt": " "}', "blank.jsonl:2: column 'prompt' is empty"),
    "messageless.jsonl": (b'{"prompt": []}', "column 'prompt' is empty"),
    "surrogate.jsonl": (b'{"prompt": "a\\ud800"}', "half a surrogate pair (\\ud800)"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_file_is_refused_in_one_line_that_names_the_place(tmp_path: Path, name: str) -> None:
    content, message = BROKEN[name]
    (tmp_path / name).write_bytes(content)
    assert message in data_error(DataConfig(prompts=str(tmp_path / name)))


@pytest.mark.parametrize(
    ("name", "content", "place"),
    [
        ("rows.jsonl", b'{"prompt": "one"}\n{"prompt": }\n{"prompt": "two"}\n', "rows.jsonl:2: not JSON"),
        ("rows.jsonl", b'{"prompt": "one"}\n[]\n{"prompt": "two"}\n', "rows.jsonl:2: must be an object"),
        ("rows.json", b'[{"prompt": "one"}, 3, {"prompt": "two"}]', "rows.json[1]: must be an object"),
        ("rows.csv", b"prompt\none\na,b\ntwo\n", "rows.csv:3: has more fields"),
    ],
)
def test_a_broken_row_can_be_skipped_and_the_rows_after_it_are_read(
    tmp_path: Path, name: str, content: bytes, place: str
) -> None:
    (tmp_path / name).write_bytes(content)
    problems: list[DataError] = []
    rows = list(read_rows(tmp_path / name, broken=problems.append))
    assert [row.columns for row in rows] == [{"prompt": "one"}, {"prompt": "two"}]
    [problem] = problems
    assert place in str(problem)


@pytest.mark.parametrize("name", ["gone.jsonl", "folder/gone.txt", "/a/b/gone", "a//b", "~nobody-here/x"])
def test_a_missing_file_is_named_and_a_mistyped_set_guessed(name: str) -> None:
    config = DataConfig().model_copy(update={"prompts": name})  # the schema refuses the home folder of an unknown user
    assert f"data.prompts = '{name}'" in data_error(config)
    assert data_error(DataConfig(prompts="story-opening")).endswith("did you mean 'story-openings'?"), "asks no hub"


def test_a_saved_dataset_is_read_by_split_and_an_unreachable_name_says_why(tmp_path: Path) -> None:
    import datasets

    splits = {name: datasets.Dataset.from_list([{"prompt": name, "n": 1}] * 3) for name in ("train", "test")}
    datasets.disable_progress_bars()
    datasets.DatasetDict(splits).save_to_disk(tmp_path / "both")
    splits["test"].save_to_disk(tmp_path / "single")
    both = loaded(prompts=str(tmp_path / "both"), split="test", limit=2)
    assert both == [(0, "test", {"n": 1}), (1, "test", {"n": 1})]
    assert len(load_prompts(DataConfig(prompts=str(tmp_path / "single")))) == 3

    assert "has the splits train, test" in data_error(DataConfig(prompts=str(tmp_path / "both"), split="dev"))
    assert "a folder must be one that Dataset.save_to_disk wrote" in data_error(DataConfig(prompts=str(tmp_path)))
    unreachable = data_error(DataConfig(prompts="nobody/no-such-prompts"))
    assert "neither a file nor a shipped set (story-openings), and datasets cannot load it" in unreachable
    assert "connect to the hub, or give a file" in unreachable


def test_reading_prompts_loads_neither_mlx_nor_datasets() -> None:
    code = (
        "import sys; from trainer.data import load_prompts; from trainer.config.schema import DataConfig; "
        "load_prompts(DataConfig()); print(sorted({'mlx.core', 'datasets', 'transformers'} & set(sys.modules)))"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"


# Encoding


either = pytest.mark.parametrize("wrap", [lambda one: one, TokenizerWrapper], ids=["transformers", "mlx-lm"])
CHAT, OWN = "<bos> <|user|> a <end> <|assistant|>", [{"role": "system", "content": "b"}, *USER_A]
WITH_SYSTEM = "<bos> <|system|> {} <end> <|user|> a <end> <|assistant|>"


@either
@pytest.mark.parametrize(
    ("prompt", "settings", "special", "text", "tokens"),
    [
        ("a b", {}, "<bos> $A", "a b", "<bos> a b"),
        ("a", {"system": "s"}, "<bos> $A", "a", "<bos> a"),
        ("<bos> a", {}, "<bos> $A", "<bos> a", "<bos> a"),  # not doubled
        ("a b", {}, "<bos> $A <eos>", "a b", "<bos> a b"),  # the model goes on
        ("a <eos>", {}, "<bos> $A", "a <eos>", "<bos> a <eos>"),
        (USER_A, {}, "<bos> $A", CHAT, CHAT),
        ("a", {"chat": "always"}, "<bos> $A", CHAT, CHAT),
        (USER_A, {"system": "s"}, "<bos> $A", WITH_SYSTEM.format("s"), WITH_SYSTEM.format("s")),
        (OWN, {"system": "s"}, "<bos> $A", WITH_SYSTEM.format("b"), WITH_SYSTEM.format("b")),
    ],
)
def test_plain_text_stays_with_a_begin_token_and_messages_go_through_the_template(
    wrap: Any, prompt: Any, settings: dict[str, Any], special: str, text: str, tokens: str
) -> None:
    before = json.dumps(prompt)
    assert encoded(prompt, wrap(word_tokenizer(special)), **settings) == (0, prompt, text, ids(tokens), {"number": 0})
    assert json.dumps(prompt) == before


def test_messages_without_a_template_are_refused() -> None:
    plain = word_tokenizer(template=None)
    assert "prompt 1 (counted from 0) is a list of messages, but the tokenizer has no chat template" in (
        encoding_error(rows("a", USER_A), plain)
    )
    assert "data.chat = 'always', but the tokenizer has no chat template" in (
        encoding_error(rows("a"), plain, chat="always")
    )
    assert "set data.chat = 'auto'" in encoding_error(rows(USER_A), word_tokenizer(), chat="never")


ALTERNATING = (
    "{% for m in messages %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('turns must alternate') }}{% endif %}{% endfor %}" + TEMPLATE
)
THINKING = (  # drops the thoughts of past turns, and writes an empty one where thinking is off, as Qwen3's
    "{% for m in messages %} <|{{ m.role }}|> {{ m.content.split('</think>')[-1].strip() }} <end>{% endfor %}"
    "{% if add_generation_prompt %} <|assistant|>\n{% if enable_thinking is defined and not enable_thinking %}"
    "<think>\n\n</think>\n\n{% endif %}{% endif %}"
)
TOOLS = "{% for tool in tools or [] %}{{ tool.name }} {% endfor %}{{ mood }} " + TEMPLATE


def written(path: Path, *prompts: Any) -> Path:
    path.write_text("".join(json.dumps({"prompt": prompt}) + "\n\n" for prompt in prompts))
    return path


@either
def test_a_row_that_the_template_refuses_is_named_by_its_line_or_skipped(tmp_path: Path, wrap: Any) -> None:
    path = written(tmp_path / "rows.jsonl", USER_A, [*USER_A, *USER_A], "b", "", [*USER_A, *USER_A, *USER_A])
    tokenizer = wrap(word_tokenizer(template=ALTERNATING))
    config = DataConfig(prompts=str(path), skip_broken=True)
    skipped: list[DataError] = []
    rows = load_prompts(config, skipped.append)
    encoded = encode_prompts(rows, tokenizer, config)
    assert [prompt.prompt for prompt in encoded.prompts] == [USER_A, "b"]
    assert [str(error).partition(": ")[0] for error in [*skipped, *encoded.skipped]] == [
        f"{path}:{line}" for line in (7, 3, 9)
    ]
    message = encoding_error(rows, tokenizer)
    assert message.startswith(f"{path}:3: the chat template rejects the roles user, user: turns must alternate")
    assert "data.skip_broken" in message
    assert ":3: the chat template rejects" in encoding_error([rows[1]], tokenizer, skip_broken=True)


@pytest.mark.parametrize("template", [NO_SYSTEM, "{% set messages = messages | rejectattr('role', 'eq', 'system') %}"])
def test_a_system_message_is_put_before_the_first_user_message_where_the_template_has_none(template: str) -> None:
    tokenizer = word_tokenizer(template=template if template == NO_SYSTEM else template + TEMPLATE)
    result = encode_prompts(rows(USER_A, "b"), tokenizer, DataConfig(system="s d", chat="always"))
    assert [prompt.text for prompt in result.prompts] == [
        f"<bos> <|user|> s d\n\n{text} <end> <|assistant|>" for text in "ab"
    ]
    assert [prompt.prompt for prompt in result.prompts] == [USER_A, "b"]
    [note] = result.notes
    assert "knows no system messages" in note
    assert encode_prompts(rows(USER_A), tokenizer, DataConfig()).notes == []
    assert encode_prompts(rows(USER_A), word_tokenizer(), DataConfig(system="s d")).notes == []


@either
def test_thinking_is_switched_off_for_all_rows_or_by_a_column(wrap: Any) -> None:
    tokenizer = wrap(word_tokenizer(template=THINKING))
    prompt = PromptRow(0, USER_A, {})
    off, none = DataConfig(template={"enable_thinking": False}), "<think>\n\n</think>\n\n"
    by_column = [
        prompt._replace(columns={"chat_template_kwargs": options})
        for options in ({"enable_thinking": False, "mood": None}, '{"enable_thinking": false}', None, "")
    ]
    [without] = encode_prompts([prompt], tokenizer, off).prompts
    assert without.text == f" <|user|> a <end> <|assistant|>\n{none}"
    think = DataConfig(template={"enable_thinking": True})
    texts = [one.text for one in encode_prompts(by_column, tokenizer, think).prompts]
    assert [text.endswith(none) for text in texts] == [True, True, False, False]
    on = [prompt._replace(columns={"chat_template_kwargs": {"enable_thinking": True}})]
    assert encode_prompts(on, tokenizer, off).prompts[0].text.endswith("<|assistant|>\n")


def test_tools_and_other_options_reach_the_template() -> None:
    tokenizer = word_tokenizer(template=TOOLS)
    tools = [{"name": "b", "parameters": {"x": None}}, {"name": "c"}]
    for cell in (tools, json.dumps(tools)):
        row = PromptRow(0, USER_A, {"tools": cell, "number": 1})
        [prompt] = encode_prompts([row], tokenizer, DataConfig(template={"mood": "d"})).prompts
        assert prompt.text.startswith("b c d <bos>")
        assert prompt.columns == row.columns
    for name, value in (("tools", "hammer"), ("tools", {}), ("chat_template_kwargs", [1])):
        message = encoding_error([PromptRow(0, USER_A, {name: value}, "a.jsonl:1")], tokenizer)
        assert message.startswith(f"a.jsonl:1: column '{name}' is ")
    reserved = PromptRow(0, USER_A, {"chat_template_kwargs": {"tokenize": True}})
    assert "'tokenize', which the program sets" in encoding_error([reserved], tokenizer)


@either
@pytest.mark.parametrize("thinking", [True, False])
@pytest.mark.parametrize(
    "prefix", ["<think>\n\n</think>\n\n", "<think>\nb", "b c", "b ", "i", "<think>\nb\n</think>\n\nc", ""]
)
def test_an_assistant_message_at_the_end_is_never_lost(wrap: Any, prefix: str, *, thinking: bool) -> None:
    prompt = encoded(
        [*USER_A, {"role": "assistant", "content": prefix}],
        wrap(word_tokenizer(template=THINKING)),
        template={"enable_thinking": thinking},
    )
    start, _, end = prompt.text.partition("<|assistant|>")
    assert start == " <|user|> a <end> "
    assert end.endswith(prefix)
    if thinking or prefix.startswith("<think>\n\n"):
        assert end.strip() == prefix.strip()


def test_a_template_that_refuses_an_answer_at_the_end_gets_its_beginning_after_the_prompt() -> None:
    refusing = "{% if messages[-1].role == 'assistant' %}{{ raise_exception('no answer yet') }}{% endif %}" + TEMPLATE
    tokenizer = word_tokenizer(template=refusing)
    answer = [{"role": "assistant", "content": "b c"}]
    start = encoded(USER_A, tokenizer).text
    assert encoded([*USER_A, *answer], tokenizer).text == f"{start}b c"
    refused = PromptRow(0, [*USER_A, *answer, *answer], {}, "a.jsonl:1")
    assert "rejects the roles user, assistant, assistant: no answer yet" in encoding_error([refused], tokenizer)


@pytest.mark.parametrize(
    ("texts", "too_long", "kept", "dropped", "truncated"),
    [
        (["a b c", "d", "a b c d"], "drop", ["<bos> d"], 2, 0),
        (["a b c d", "e"], "truncate", ["<bos> c d", "<bos> e"], 0, 1),
        (["a b"], "error", ["<bos> a b"], 0, 0),  # exactly the maximum
    ],
)
def test_long_prompts_are_dropped_or_cut_to_the_begin_token_and_their_end(
    texts: list[str], too_long: Any, kept: list[str], dropped: int, truncated: int
) -> None:
    config = DataConfig(max_prompt_tokens=3, too_long=too_long)
    result = encode_prompts(rows(*texts), word_tokenizer(), config)
    assert [prompt.tokens for prompt in result.prompts] == list(map(ids, kept))
    assert all(prompt.prompt == texts[prompt.index] for prompt in result.prompts)
    assert (result.dropped, result.truncated) == (dropped, truncated)
    if truncated:
        assert result.prompts[0].text == "<bos> c d"
        assert encode_prompts(rows("a b c d"), word_tokenizer("$A"), config).prompts[0].tokens == ids("b c d")


@pytest.mark.parametrize(
    ("texts", "settings", "message"),
    [
        (
            ("a", "a b c"),
            {"max_prompt_tokens": 3, "too_long": "error"},
            "prompt 1 (counted from 0) has 4 tokens, data.max_prompt_tokens = 3: raise it",
        ),
        (
            ("a b c", "a b c d e"),
            {"max_prompt_tokens": 2},
            "every prompt is longer than data.max_prompt_tokens = 2: prompts have 4 to 6 tokens; raise it",
        ),
    ],
)
def test_prompts_that_are_too_long_are_named(texts: tuple[str, ...], settings: dict[str, Any], message: str) -> None:
    assert encoding_error(rows(*texts), word_tokenizer(), **settings).startswith(message)


# Splitting


def prompts_of(*tokens: int) -> list[Prompt]:
    return [Prompt(index, str(token), str(token), [token], {}) for index, token in enumerate(tokens)]


@given(
    st.lists(st.integers(0, 12), min_size=1, max_size=60),
    st.floats(0, 1, exclude_max=True),
    st.integers(0, 2**32 - 1),
)
def test_a_split_loses_nothing_and_keeps_equal_prompts_together(tokens: list[int], fraction: float, seed: int) -> None:
    prompts = prompts_of(*tokens)
    training, evaluation = split_prompts(prompts, fraction, seed)
    assert training
    assert sorted([*training, *evaluation]) == prompts
    assert [training, evaluation] == [sorted(training), sorted(evaluation)]
    assert not {prompt.text for prompt in training} & {prompt.text for prompt in evaluation}
    assert len(evaluation) <= max(1, round(fraction * len(prompts)))


@pytest.mark.parametrize(("count", "fraction", "held_out"), [(100, 0.1, 10), (5, 0.1, 1), (2, 0.99, 1), (9, 0.0, 0)])
def test_exactly_the_share_is_held_out_by_the_seed_alone(count: int, fraction: float, held_out: int) -> None:
    prompts = prompts_of(*range(count))
    first, again, other = (split_prompts(prompts, fraction, seed)[1] for seed in (1, 1, 2))
    assert len(first) == held_out
    assert first == again
    assert first != other or held_out < 2


# The walk


@given(st.integers(1, 20), st.integers(0, 100), st.lists(st.integers(0, 30), max_size=6), st.integers(0, 2**32 - 1))
def test_a_walk_in_pieces_equals_the_walk_in_one(total: int, start: int, pieces: list[int], seed: int) -> None:
    whole = prompt_indices(start, sum(pieces), total, seed=seed, shuffle=True)
    joined: list[int] = []
    for piece in pieces:
        joined += prompt_indices(start + len(joined), piece, total, seed=seed, shuffle=True)
    assert joined == whole


def test_every_pass_visits_every_prompt_once_each_in_its_own_order_or_in_that_of_the_source() -> None:
    walk = prompt_indices(0, 300, 100, seed=0, shuffle=True)
    passes = [list(range(100)), walk[:100], walk[100:200], walk[200:]]
    passes.append(prompt_indices(0, 100, 100, seed=1, shuffle=True))
    assert all(sorted(one) == passes[0] for one in passes)
    assert all(one != other for one, other in pairwise(passes))
    assert passes[1] != passes[-1]
    assert prompt_indices(5, 6, 4, seed=0, shuffle=False) == [1, 2, 3, 0, 1, 2]


def not_utf8(path: Path, texts: list[bytes]) -> Path:
    """Write a Parquet file with a column `prompt` of `texts`, of any bytes: its writer does not check them."""
    stored = pyarrow.array(texts, pyarrow.binary())
    column = pyarrow.Array.from_buffers(pyarrow.string(), len(texts), stored.buffers())
    pyarrow.parquet.write_table(pyarrow.table({"id": range(len(texts)), "prompt": column}), path)
    return path


def test_parquet_text_that_is_not_utf8_is_refused_by_its_row_or_skipped(tmp_path: Path) -> None:
    path = not_utf8(tmp_path / "rows.parquet", [b"one", b"gr\xfc\xdfe", b"two", b"\xff"])
    message = data_error(DataConfig(prompts=str(path)))
    assert message.startswith(f"{path}[1]: column 'prompt' cannot be read ('utf-8' codec can't decode byte 0xfc")
    problems: list[DataError] = []
    rows = list(read_rows(path, broken=problems.append))
    assert [(row.place, row.columns["prompt"]) for row in rows] == [(f"{path}[0]", "one"), (f"{path}[2]", "two")]
    assert [str(problem).partition(": ")[0] for problem in problems] == [f"{path}[1]", f"{path}[3]"]


CONTENT = {
    ".jsonl": "".join(json.dumps({"prompt": f"row {number}", "n": "é\u2028"}) + "\r\n" for number in range(50_000)),
    ".csv": "prompt,n\n" + "".join(f'"row\n{number}",é\r\n' for number in range(50_000)),
    ".txt": "\ufeff" + "".join(f"row {number}\r\n" for number in range(50_000)),
}


@pytest.mark.parametrize("suffix", [".jsonl", ".jsonl.gz", ".csv", ".txt"])
def test_the_first_rows_of_a_file_do_not_wait_for_its_end_and_errors_still_name_the_line(
    tmp_path: Path, suffix: str
) -> None:
    path, content = tmp_path / f"rows{suffix}", CONTENT[suffix.removesuffix(".gz")].encode()
    compressed = gzip.compress if suffix.endswith(".gz") else bytes
    path.write_bytes(compressed(content))
    expected = [row.columns["prompt"] for row in read_rows(path, "prompt")]
    assert len(expected) == 50_000
    assert expected[1] == "row\n1" if suffix == ".csv" else "row 1"

    path.write_bytes(compressed(content + b"\xff"))
    assert [row.columns["prompt"] for row in islice(read_rows(path, "prompt"), 3)] == expected[:3]
    line = content.count(b"\n") + 1
    with pytest.raises(DataError, match=rf"rows{suffix}:{line}: byte 0xff is not UTF-8"):
        list(read_rows(path, "prompt"))


def zipped(path: Path, parts: list[bytes]) -> Path:
    with gzip.open(path, "wb") as file:
        for part in parts:
            file.write(part)
    return path


def repeated(path: Path, text: str, rows: int, *, categories: bool = False) -> Path:
    """Write a Parquet file that has `text` once, as the value of all `rows`, which are of categories or plain text."""
    texts = pa.DictionaryArray.from_arrays(pa.array([0] * rows, pa.int32()), [text])
    table = pa.table({"prompt": texts})
    with pq.ParquetWriter(
        path, table.schema, compression="zstd", dictionary_pagesize_limit=1 << 30, store_schema=categories
    ) as file:
        file.write_table(table)
    return path


def test_a_row_that_is_too_large_is_refused_before_it_fills_the_memory(tmp_path: Path) -> None:
    million = b"a" * (1 << 20)
    line = zipped(tmp_path / "line.jsonl.gz", [b'{"prompt": "one"}\n{"prompt": "', *[million] * 20, b'"}\n'])
    text = "a" * (17 << 20)
    for path, message in (
        (line, "line.jsonl.gz:2: is longer than 16 MiB: shorten it"),
        (repeated(tmp_path / "one.parquet", text, 1), "one.parquet: column 'prompt' has rows of more than 16 MiB"),
        (repeated(tmp_path / "all.parquet", text, 10_000), "all.parquet[0]: has rows of more than 16 MiB"),
        (repeated(tmp_path / "kinds.parquet", text, 10_000, categories=True), "kinds.parquet[0]: has rows of more"),
    ):
        with pytest.raises(DataError, match=re.escape(message)):
            list(read_rows(path, "prompt"))


def test_a_small_file_with_many_rows_is_refused_before_it_fills_the_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(readers, "UNPACKED_BYTES", 8 << 20)
    for path, most in (
        (zipped(tmp_path / "lines.jsonl.gz", [b'{"prompt": "a"}\n' * 100_000]), 30_000),
        (repeated(tmp_path / "large.parquet", "a" * 100_000, 2_000), 90),
        (repeated(tmp_path / "kinds.parquet", "a" * 100_000, 2_000, categories=True), 90),
        (repeated(tmp_path / "small.parquet", "a", 100_000), 30_000),
    ):
        rows = read_rows(path)
        with pytest.raises(DataError, match=f"{path.name}: unpacks to more than"):
            next(islice(rows, most, None))
    plain = tmp_path / "plain.jsonl"
    plain.write_bytes(b'{"prompt": "a"}\n' * 100_000)
    assert sum(1 for _ in read_rows(plain)) == 100_000


STORY_OPENINGS = ROOT / "trainer" / "presets" / "prompts" / "story-openings.jsonl"


def test_the_openings_are_many_different_beginnings_of_sentences_without_a_mood_of_their_own() -> None:
    rows = [json.loads(line) for line in STORY_OPENINGS.read_text(encoding="utf-8").splitlines()]
    assert len(rows) >= 40 * 8, "batches of the quickstart"
    moods = Counter(row["mood"] for row in rows)
    assert set(moods) == {"neutral", "tense", "warm", "sad"}
    assert moods["warm"] <= moods["tense"] + moods["sad"]
    starts = [tuple(row["prompt"].lower().split()[:4]) for row in rows]
    assert len(set(starts)) == len(starts)
    assert max(Counter(start[0] for start in starts).values()) <= len(rows) / 4
    for row in rows:
        prompt = row["prompt"]
        assert list(row) == ["prompt", "setting", "mood"], row
        assert 6 <= len(prompt.split()) <= 16
        assert prompt == " ".join(prompt.split())
        assert prompt[-1].isalpha(), "it goes on"
    lexicon = SentimentIntensityAnalyzer()
    scores = [lexicon.polarity_scores(row["prompt"])["compound"] for row in rows]
    assert sum(abs(score) <= 0.5 for score in scores) >= 0.9 * len(scores)
    assert abs(sum(scores) / len(scores)) < 0.05
