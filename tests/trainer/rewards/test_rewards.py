"""Rewards: each source, the convention of Python functions, and the sum that training gets."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainer.config.schema import RewardConfig
from trainer.errors import RewardError
from trainer.rewards import (
    Overlong,
    RewardInput,
    RewardResult,
    Rewards,
    SourceScores,
    TrainerState,
    WeightedSource,
    build_rewards,
    load_functions,
)

CHAT = [{"role": "user", "content": "Hello?"}]
Load = Callable[..., Rewards]


def sequence(completion: str = "", **fields: Any) -> RewardInput:
    return RewardInput("Once", completion, [], {}, False)._replace(**fields)


def source(kind: str, **settings: Any) -> Rewards:
    return build_rewards(RewardConfig(sources=[{"kind": kind, **settings}]))


class Given:
    """Source that returns given results, batch after batch."""

    def __init__(self, *batches: list[Any], name: str = "given") -> None:
        self.name = name
        self._batches = list(batches)

    def __call__(self, batch: Any) -> SourceScores:
        scores = self._batches.pop(0)
        if isinstance(scores[0], list):
            return SourceScores([sum(tokens) for tokens in scores], scores)
        return SourceScores(scores)


def scored(*batches: list[Any], **settings: Any) -> list[RewardResult]:
    """Return the results of one source of weight 1 over `batches`; the last sequence of each batch is truncated."""
    rewards = Rewards([WeightedSource(Given(*batches))], **settings)
    return [rewards([sequence(truncated=i == len(b) - 1) for i in range(len(b))]) for b in batches]


@pytest.fixture
def load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Load:
    """Load rewards from functions of `rewards.py` in the working directory, which gets the given content."""
    monkeypatch.chdir(tmp_path)

    def loaded(code: str, *functions: str, **settings: Any) -> Rewards:
        (tmp_path / "rewards.py").write_text(code)
        return build_rewards(
            RewardConfig(sources=[f"rewards.py:{name}" for name in functions or ("score",)], **settings)
        )

    return loaded


def reward_error(call: Callable[[], Any]) -> str:
    """Return the message of the one-line RewardError that `call` raises."""
    with pytest.raises(RewardError) as caught:
        call()
    message = str(caught.value)
    assert "\n" not in message
    return message


# Sources


@pytest.mark.parametrize(
    ("text", "score"),
    [
        ("VADER is smart, handsome, and funny.", 0.8316),
        ("The book was good.", 0.4404),
        ("Today SUX!", -0.5461),
        ("", 0),
    ],
)
def test_the_lexicon_gives_a_completion_the_score_that_its_authors_published(text: str, score: float) -> None:
    assert source("lexicon")([sequence(text, prompt="I love this wonderful day")]).scores == [score]


@pytest.mark.parametrize(
    ("length", "score"), [(20, 0.0), (24, -0.5), (16, -0.5), (32, -0.75), (8, -0.75), (0, -20 / 24)]
)
def test_the_length_score_is_half_gone_at_the_tolerance(length: int, score: float) -> None:
    assert source("length", target=20, tolerance=4)([sequence(completion_ids=[7] * length)]).scores == [score]


@pytest.mark.parametrize(
    ("settings", "scores"),
    [({}, [1.0, 0.0]), ({"count": True}, [2.0, 0.0]), ({"count": True, "ignore_case": True}, [3.0, 1.0])],
)
def test_a_pattern_is_found_or_counted_with_or_without_case(settings: dict[str, bool], scores: list[float]) -> None:
    rewards = source("regex", pattern="cat", **settings)
    assert rewards([sequence("a cat Cat\ncat"), sequence("CAT")]).scores == scores


def test_a_configuration_becomes_a_weighted_sum_of_its_sources() -> None:
    config = RewardConfig(
        sources=[
            {"kind": "regex", "pattern": "a", "weight": 2.0},
            {"kind": "regex", "pattern": "b", "weight": -3.0, "count": True},
            {"kind": "length", "target": 2, "tolerance": 2},
            "lexicon",
        ]
    )
    result = build_rewards(config)([sequence("abb", completion_ids=[1, 1]), sequence("good", completion_ids=[1] * 4)])
    assert result.scores == [2.0 - 6.0 + 0.0 + 0.0, 0.0 - 0.0 - 0.5 + 0.4404]
    assert result.parts == {"regex": [1, 0], "regex#2": [2, 0], "length": [0, -0.5], "lexicon": [0, 0.4404]}
    assert result.token_rewards is None


# Python functions


def test_a_function_gets_prompts_completions_ids_and_columns_as_lists(load: Load) -> None:
    rewards = load("seen = {}\ndef score(**kwargs):\n    seen.update(kwargs)\n    return [float(len(seen))] * 2")
    batch = [
        sequence("one", completion_ids=[1, 2], columns={"answer": 3}),
        sequence("two", prompt=CHAT, completion_ids=[5], columns={"mood": "sad"}),
    ]
    assert rewards(batch).scores == [8.0, 8.0]
    (module,) = (m for n, m in sys.modules.items() if n.startswith("_reward_file") and hasattr(m, "seen"))
    assert (module.seen.pop("trainer_state").global_step, module.seen.pop("trainer_state", None)) == (0, None)
    assert callable(module.seen.pop("log_metric"))
    assert callable(module.seen.pop("log_extra"))
    assert module.seen == {
        "prompts": ["Once", CHAT],
        "completions": ["one", [{"role": "assistant", "content": "two"}]],
        "completion_ids": [[1, 2], [5]],
        "answer": [3, None],
        "mood": [None, "sad"],
    }
    del sys.modules[module.__name__]


@pytest.mark.parametrize("signature", ["completions", "*, completions", "completions, other=1", "completions, *rest"])
def test_a_function_gets_only_what_its_signature_has(load: Load, signature: str) -> None:
    rewards = load(f"def score({signature}):\n    return [len(c) for c in completions]")
    assert rewards([sequence("four", columns={"answer": 1})]).scores == [4.0]


def test_changes_that_a_function_makes_to_its_arguments_stay_inside(load: Load) -> None:
    rewards = load(
        "def score(prompts, completion_ids, **_):\n"
        "    prompts[0][0]['content'] = 'changed'; prompts[0].append(1); completion_ids[0].clear()\n"
        "    return [1]"
    )
    row = sequence(prompt=[{"role": "user", "content": "kept"}], completion_ids=[1, 2])
    rewards([row])
    assert row.prompt == [{"role": "user", "content": "kept"}]
    assert row.completion_ids == [1, 2]


@pytest.mark.parametrize(
    "returned",
    [
        "[1, True, 0.5]",
        "np.array([1, 1, 0.5], np.float32)",
        "[np.float16(x) for x in (1, 1, .5)]",
        "[np.array(x) for x in (1, 1, .5)]",
        "np.array([[1], [1], [.5]])",
        "mx.array([[1], [1], [.5]])",
        "(x for x in [1, 1, 0.5])",
    ],
)
def test_numbers_of_any_kind_and_a_column_of_them_are_scores(load: Load, returned: str) -> None:
    code = f"import numpy as np, mlx.core as mx\ndef score(**_):\n    return {returned}"
    scores = load(code)([sequence(completion_ids=[1])] * 3).scores
    assert scores == [1.0, 1.0, 0.5]
    assert {type(score) for score in scores} == {float}


def test_a_function_may_give_no_score_for_some_sequences(load: Load) -> None:
    rewards = load("def score(**_): return [None, 2]\ndef other(**_): return [3, None]", "score", "other")
    result = rewards([sequence(), sequence()])
    assert result.scores == [3.0, 2.0]
    assert result.parts["rewards.py:score"] == pytest.approx([math.nan, 2.0], nan_ok=True)
    assert result.parts["rewards.py:other"] == pytest.approx([3.0, math.nan], nan_ok=True)


@pytest.mark.parametrize("normalize", ["off", "batch", "running"])
def test_a_sequence_that_no_source_applies_to_has_no_score_and_is_in_no_statistic(normalize: Any) -> None:
    settings: dict[str, Any] = {"normalize": normalize, "clip": 1.5, "missing_stop_penalty": 1.0}
    plain = scored([1.0, 4.0], [9.0, 2.0], **settings)
    gaps = scored([1.0, None, 4.0], [9.0, 2.0], [None, None], **settings)
    assert math.isnan(gaps[0].scores[1])
    assert [gaps[0].scores[0], gaps[0].scores[2]] == plain[0].scores
    assert gaps[1].scores == plain[1].scores
    assert all(map(math.isnan, gaps[2].scores))


def test_lists_are_token_rewards_and_add_nothing_to_the_score(load: Load) -> None:
    code = (
        "import numpy as np\n"
        "def score(**_): return [[1, 2], None, np.array([0.5])]\n"
        "def other(**_): return [5, 6, 7]\n"
        "def third(**_): return [(1, -9), [1], [1]]"
    )
    result = load(code, "score", "other", "third", clip=6.0)(
        [sequence(completion_ids=ids) for ids in ([4, 4], [4], [4])]
    )
    assert result.token_rewards == [[2.0, -6.0], [1.0], [1.5]]
    assert result.scores == [5.0, 6.0, 6.0]
    assert result.parts["rewards.py:score"] == pytest.approx([3.0, math.nan, 0.5], nan_ok=True)


def test_two_functions_of_a_file_share_its_globals_and_a_new_build_runs_it_again(load: Load) -> None:
    code = "n = [0]\ndef score(**_):\n    n[0] += 1\n    return [n[0]]\ndef other(**_): return [10 * n[0]]"
    rewards = load(code, "score", "other")
    assert [rewards([sequence()]).scores for _ in range(2)] == [[11.0], [22.0]]
    assert load(code, "score", "other")([sequence()]).scores == [11.0]


@pytest.mark.parametrize("inside", [False, True])
def test_an_edited_neighbour_runs_as_it_is_now(load: Load, tmp_path: Path, inside: bool) -> None:
    name = f"edited_neighbour_{inside}".lower()
    line, head, body = f"from {name} import BONUS", "", ""
    head, body = ("", f"    {line}\n") if inside else (f"{line}\n", "")
    code = f"{head}def score(**_):\n{body}    return [BONUS]"
    found = []
    for bonus in (1, 2, 2):
        (tmp_path / f"{name}.py").write_text(f"BONUS = {bonus}")
        found.append(load(code)([sequence()]).scores)
    assert found == [[1.0], [2.0], [2.0]]
    del sys.modules[name]


def test_a_file_named_like_a_library_does_not_replace_it(tmp_path: Path) -> None:
    path = tmp_path / "json.py"
    path.write_text("def score(**_): return [1]")
    assert build_rewards(RewardConfig(sources=[f"{path}:score"]))([sequence()]).parts == {"json.py:score": [1.0]}
    assert sys.modules["json"] is json


def test_a_function_of_an_installed_module_is_found() -> None:
    rewards = build_rewards(RewardConfig(sources=["json:dumps"]))
    message = reward_error(lambda: rewards([sequence()]))
    assert message.startswith("reward source 'json:dumps' needs 'obj', which is not a column of the data; columns: ")


RUN_ERRORS = {
    "def score(**_):\n    x = 1\n    raise ValueError('two\\nlines')": "raised ValueError: two lines (rewards.py:3)",
    "import json\ndef score(**_):\n    return inner()\ndef inner():\n    return json.loads('[')": (
        "raised JSONDecodeError: Expecting value: line 1 column 2 (char 1) (rewards.py:5)"
    ),
    "def score(**_):\n    exit(3)": "raised SystemExit: 3 (rewards.py:2)",
    "def score(**_):\n    yield 1\n    yield 1 / 0": "raised ZeroDivisionError: division by zero (rewards.py:3)",
    "def score(**_): return [1]": "returned 1 score for 2 completions: must return one each",
    "def score(**_): return None": "returned None: must return a list of 2 scores, one per completion",
    "def score(**_): return 'ab'": "returned str: must return a list of 2 scores",
    "def score(**_): return [1, float('nan')]": "sample 1 ('The second prompt is a rather long one,…') has score nan",
    "def score(**_): return [1, 'good']": "has score 'good': must be a number, or None if the reward does not apply",
    "import numpy as np\ndef score(**_): return np.array([[1.0, 2.0]])": "returned ndarray of shape (1, 2): must "
    "return a list of 2 scores, one per completion",
    "import numpy as np\ndef score(**_): return np.ones((2, 1, 1))": "returned ndarray of shape (2, 1, 1): must return",
    "def score(**_): return [10**400, 1]": "must be a number",
    "def score(**_): return [[1], 1]": "rather long one,…') has 1 where others have lists",
    "def score(**_): return [[1], [1]]": "has 1 token reward for 2 tokens: return one each",
    "def score(answer, **_): return []": "needs 'answer', which is not a column of the data; columns: mood, prompts, "
    "completions, completion_ids, trainer_state, log_metric, log_extra",
    "def score(completion_ids, **_): return [1 / (2 - len(x)) for x in completion_ids]": "raised ZeroDivisionError: "
    "division by zero (rewards.py:1) on sample 1 (",
    "class C:\n    def __call__(self, **_):\n        return [[][1]]\nscore = C()": "raised IndexError: list index out "
    "of range (rewards.py:3) on sample 0 ('Once')",
    "async def score(**_):\n    raise ValueError('later')": "raised ValueError: later (rewards.py:2) on sample 0",
    "import asyncio\nasync def score(**_): raise asyncio.CancelledError": "raised CancelledError (rewards.py:2)",
    "async def score(**_): return 3": "returned int: must return a list of 2 scores, one per completion",
    "def score(log_extra, **_):\n    log_extra('a', [1])\n    return [1, 1]": "logged 1 value of 'a' for 2 completions",
    "def score(log_metric, **_):\n    log_metric('a', [1])\n    return [1, 1]": "raised TypeError: ",
    "def score(trainer_state, **_):\n    trainer_state.global_step = 3": "raised FrozenInstanceError: cannot assign",
}


@pytest.mark.parametrize("code", RUN_ERRORS)
def test_a_failing_function_is_reported_in_one_line_with_source_and_sample(load: Load, code: str) -> None:
    rewards = load(code)
    batch = [
        sequence(completion_ids=[1], columns={"mood": "sad"}),
        sequence(prompt="The second\nprompt is a rather long one, isn't it?", completion_ids=[1, 2]),
    ]
    message = reward_error(lambda: rewards(batch))
    assert message.startswith("reward source 'rewards.py:score' ")
    assert RUN_ERRORS[code] in message


LOAD_ERRORS = {
    "def scores(**_): pass": "rewards.py has no function 'score': did you mean 'scores'?",
    "def quite_other(**_): pass": "rewards.py has no function 'score': it has quite_other",
    "score = 3": "score is int, must be a function",
    "import os\n1 / 0": "fails to load: ZeroDivisionError: division by zero (rewards.py:2)",
    "def score(:": "fails to load: SyntaxError: invalid syntax (rewards.py:1)",
    "import nowhere": "fails to load: ModuleNotFoundError: No module named 'nowhere' (rewards.py:1)",
    "exit()": "fails to load: SystemExit",
    "async def score(**_): yield 1": "is an async generator: return a list of scores",
    "class C:\n    async def __call__(self, **_): yield 1\nscore = C()": "is an async generator: return a list",
    "def score(completions, /): pass": "takes 'completions' by position only",
}


@pytest.mark.parametrize("code", LOAD_ERRORS)
def test_a_file_without_a_usable_function_is_refused_before_training(load: Load, code: str) -> None:
    before = list(sys.path)
    message = reward_error(lambda: load(code))
    assert message.startswith("reward source 'rewards.py:score'")
    assert LOAD_ERRORS[code] in message
    assert sys.path == before


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("gone.py:score", "no file 'gone.py': paths are relative to"),
        ("no.such.module:score", "no module 'no': install it, or name a file, 'no/such/module.py:score'"),
        ("json.nothing:score", "no module 'json.nothing'"),
        ("json:lods", "did you mean 'loads'?"),
    ],
)
def test_a_function_that_is_not_there_is_named(path: str, message: str) -> None:
    assert message in reward_error(lambda: build_rewards(RewardConfig(sources=[path])))


def test_async_functions_are_awaited_together(load: Load) -> None:
    code = (
        "import asyncio\nmet = []\n"
        "async def meet():\n"
        "    met.append(asyncio.get_running_loop())\n"
        "    while len(met) % 3: await asyncio.sleep(0)\n"
        "async def score(completions, **_):\n    await meet()\n    return [float(len(text)) for text in completions]\n"
        "class C:\n    async def __call__(self, **_):\n        await meet()\n        return (None for _ in range(2))\n"
        "other = C()\n"
        "def third(**_): return meet_and([1, 2])\n"
        "async def meet_and(scores):\n    await meet()\n    return scores\n"
        "def loops(**_): return [len(set(met))] * 2"
    )
    rewards = load(code, "score", "other", "third", "loops")
    batch = [sequence("four"), sequence("seven")]
    assert rewards(batch).scores == [4 + 1 + 0, 5 + 2 + 0]
    assert rewards(batch).scores == [4 + 1 + 1, 5 + 2 + 1]  # clients that belong to a loop can be kept


def test_functions_know_how_far_the_training_is_and_what_they_log_goes_with_the_scores(load: Load) -> None:
    code = (
        "def score(completions, trainer_state, log_metric=None, log_extra=None):\n"
        "    log_metric('words', 3); log_metric('words', 4)\n"
        "    for text in completions: log_extra('upper', [text.upper()])\n"
        "    return [trainer_state.global_step / max(1, trainer_state.max_steps), None]\n"
        "async def other(log_extra, **_):\n    log_extra('seen', (True, None))\n    return [1.0, 2.0]"
    )
    rewards = load(code, "score", "other")
    assert rewards([sequence("a"), sequence("b")]).scores == [1.0, 2.0]
    rewards.use_state(TrainerState(3, 4))
    result = rewards([sequence("a"), sequence("b")])
    assert result.scores == [1.75, 2.0]
    assert result.parts["rewards.py:score.words"] == [3.5, 3.5]
    assert result.extra == {"upper": ["A", "B"], "seen": [True, None]}


def test_a_column_that_the_data_lacks_is_refused_at_once_and_one_that_a_batch_lacks_is_none(
    load: Load, tmp_path: Path
) -> None:
    load("def score(answer, mood): return [float(answer is None) for answer in answer]")
    config = RewardConfig(sources=["rewards.py:score"])
    message = reward_error(lambda: load_functions(config, columns=["answer"]))
    assert "needs 'mood', which is not a column of the data; columns: answer, prompts" in message
    load_functions(config, columns=["answer", "mood"])
    rewards = build_rewards(config, columns=["answer", "mood"])
    assert rewards([sequence(), sequence(columns={"answer": 1})]).scores == [1.0, 0.0]


# The sum: normalised, clipped, penalised


def test_batch_normalisation_gives_mean_zero_and_deviation_one() -> None:
    scores = np.array(scored([3.0, 5.0, 100.0, -8.0], normalize="batch")[0].scores)
    assert scores.mean() == pytest.approx(0, abs=1e-12)
    assert scores.std() == pytest.approx(1, abs=1e-12)
    assert np.argsort(scores).tolist() == [3, 0, 1, 2]


@pytest.mark.parametrize("normalize", ["batch", "running"])
@pytest.mark.parametrize("batch", [[5.0], [0.1] * 7])
def test_scores_that_do_not_differ_are_only_centred(normalize: Any, batch: list[float]) -> None:
    assert scored(batch, normalize=normalize)[0].scores == pytest.approx([0.0] * len(batch), abs=1e-12)


numbers = st.floats(-1000, 1000)


@given(st.lists(st.lists(numbers, min_size=1, max_size=9), min_size=1, max_size=5))
def test_running_normalisation_is_by_all_scores_so_far(batches: list[list[float]]) -> None:
    for number, result in enumerate(scored(*batches, normalize="running")):
        seen = np.concatenate([np.array(batch) for batch in batches[: number + 1]])
        wanted = np.array(batches[number]) - seen.mean()
        if seen.std() > 1e-6:
            np.testing.assert_allclose(result.scores, wanted / seen.std(), atol=1e-6, rtol=1e-9)


def test_running_statistics_stay_exact_far_from_zero() -> None:
    far = [1e9 + x for x in (1.0, 2.0, 4.0)]
    results = scored(far, far, normalize="running")
    assert results[1].scores == pytest.approx([(x - 7 / 3) / math.sqrt(14 / 9) for x in (1.0, 2.0, 4.0)])


def test_evaluation_uses_the_running_statistics_and_leaves_them_alone() -> None:
    rewards = Rewards([WeightedSource(Given([7.0], [0.0, 2.0], [5.0]))], normalize="running")
    assert rewards([sequence()], update_statistics=False).scores == [7.0]
    rewards([sequence()] * 2)
    before = rewards.state()
    assert rewards([sequence()], update_statistics=False).scores == [4.0]
    assert rewards.state() == before == {"count": 2, "mean": 1.0, "m2": 2.0}


def test_statistics_restored_from_json_continue_exactly() -> None:
    batches = [[0.1, 0.7], [1 / 3], [2 / 7, 9.1]]
    whole = scored(*batches, normalize="running")
    first = Rewards([WeightedSource(Given(*batches[:2]))], normalize="running")
    for batch in batches[:2]:
        first([sequence()] * len(batch))
    second = Rewards([WeightedSource(Given(batches[2]))], normalize="running")
    second.restore(json.loads(json.dumps(first.state())))
    assert second([sequence()] * 2).scores == whole[2].scores


@pytest.mark.parametrize("state", [{}, {"count": None, "mean": 0, "m2": 0}, {"count": 1, "mean": "x", "m2": 0}])
def test_statistics_of_another_shape_are_refused(state: dict[str, Any]) -> None:
    assert "must be the numbers count, mean, m2" in reward_error(lambda: Rewards([]).restore(state))


def test_clipping_comes_after_normalising_and_the_penalty_after_both() -> None:
    settings: dict[str, Any] = {"clip": 1.5, "missing_stop_penalty": 4.0}
    assert scored([0.0, 0.0, 0.0, 10.0], normalize="batch", **settings)[0].scores == pytest.approx(
        [-1 / math.sqrt(3)] * 3 + [1.5 - 4.0]
    )
    assert scored([-9.0, 9.0], **settings)[0].scores == [-1.5, 1.5 - 4.0]
    rewards = Rewards([WeightedSource(Given([1.0, 1.0], [1e300]))], normalize="running", missing_stop_penalty=5.0)
    assert rewards([sequence(), sequence(truncated=True)]).scores == [0.0, -5.0]
    assert "float32's largest" in reward_error(lambda: rewards([sequence()]))
    assert rewards.state() == {"count": 2, "mean": 1.0, "m2": 0.0}, "neither the penalty nor a batch that fails"


@pytest.mark.parametrize(
    ("overlong", "lengths", "penalties"),
    [
        (Overlong(2.0, 4, 10), [1, 6, 7, 8, 9, 10], [0, 0, 0.5, 1, 1.5, 2]),
        (Overlong(2.0, 0, 10), [1, 9, 10], [0, 0, 2]),
    ],
)
def test_an_overlong_response_pays_in_proportion_over_the_last_tokens_before_the_longest(
    overlong: Overlong, lengths: list[int], penalties: list[float]
) -> None:
    found = Rewards([], overlong=overlong).penalties(np.zeros(len(lengths)), np.array(lengths))
    assert found.tolist() == pytest.approx(penalties)


def test_token_rewards_are_weighted_and_clipped_but_not_normalised() -> None:
    rewards = Rewards([WeightedSource(Given([[1.0, -3.0], [4.0]]), 0.5)], clip=1.0, normalize="batch")
    result = rewards([sequence(completion_ids=[1, 2]), sequence(completion_ids=[3])])
    assert result.token_rewards == [[0.5, -1.0], [1.0]]
    assert result.scores == [0.0, 0.0]


@pytest.mark.parametrize("scores", [[1e39], [1e305], [[1e39]]])
def test_a_reward_that_does_not_fit_float32_is_refused(scores: list[Any]) -> None:
    rewards = Rewards([WeightedSource(Given(scores), 1e6)])
    assert "float32's largest" in reward_error(lambda: rewards([sequence(completion_ids=[1])]))


def test_an_empty_batch_has_no_scores() -> None:
    assert source("lexicon")([]) == ([], None, {"lexicon": []}, {})
