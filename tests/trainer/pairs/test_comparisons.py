"""From preferences to groups of token sequences: what is read, linked, split, ignored and reported."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from preference_samples import labelled, preference
from wrapped_tokenizer import TEMPLATE, Wrapper

from trainer.config.pairs import PreferenceDataConfig, RewardModelConfig, RewardTrainConfig
from trainer.engine.trainable import step_groups
from trainer.errors import DataError, UsageError
from trainer.pairs.comparisons import Comparisons, load_preferences, reward_comparisons
from trainer.pairs.encoders import Encoder
from trainer.pairs.groups import Group, fingerprint, group_preferences, micro_batches
from trainer.preferences.records import Preference, Text
from trainer.preferences.store import PreferenceStore
from trainer.reward_model.reward_learner import to_batch


def encoder(template: str = "", **settings: Any) -> Encoder:
    return Encoder(Wrapper(template), PreferenceDataConfig(**settings))


def grouped(*preferences: Preference, **settings: Any) -> tuple[list[Group], list[str]]:
    config = PreferenceDataConfig(**settings)
    return group_preferences(preferences, Encoder(Wrapper(), config), config)


HI = [{"role": "user", "content": "hi"}]
YES = "<special0>user: hi<end><special0>assistant: yes"
THOUGHT = [*HI, {"role": "assistant", "content": "<think></think>y"}]
TURNS = [{"role": role, "content": text} for role, text in (("assistant", "a"), ("user", "b"), ("assistant", "c"))]


@pytest.mark.parametrize(
    ("template", "settings", "prompt", "completion", "text", "count"),
    [
        ("", {}, "ab", " c", "ab c", 2),  # as it is, without an end token
        (TEMPLATE, {}, HI, [{"role": "assistant", "content": "yes"}], YES, 3),
        (TEMPLATE, {}, HI, "yes", YES, 3),
        (TEMPLATE, {"chat": "always"}, "hi", "yes", YES, 3),
        (TEMPLATE, {}, THOUGHT, "es", YES.replace("yes", "<think></think>yes"), 2),  # goes on with the last message
        (TEMPLATE, {}, HI, TURNS, YES.replace("yes", "a<end><special0>user: b<end><special0>assistant: c"), 24),
        ("", {"max_tokens": 4}, "abc", "defg", "defg", 4),
    ],
)
def test_a_prompt_and_a_completion_are_one_sequence_up_to_the_last_word(
    template: str, settings: dict[str, Any], prompt: Text, completion: Text, text: str, count: int
) -> None:
    made = encoder(template, **settings).sequence(prompt, completion)
    assert (Wrapper().decode(made.tokens), made.completion) == (text, count)
    assert made.is_cut == ("max_tokens" in settings)


def test_a_template_gets_the_options_of_the_configuration_and_of_the_row() -> None:
    template = "{{ mood }}{{ tools[0].name if tools }} " + TEMPLATE
    columns = {"chat_template_kwargs": {"mood": "sad"}, "tools": [{"name": "saw"}]}
    prompt = [{"role": "user", "content": "hi"}]
    made = Encoder(Wrapper(template), PreferenceDataConfig(template={"mood": "gay"}))
    texts = [Wrapper().decode(made.sequence(prompt, "a", columns=one).tokens) for one in ({}, columns, {})]
    assert [text.partition(" ")[0] for text in texts] == ["gay", "sadsaw", "gay"]


NO_SYSTEM = "{% if messages[0].role == 'system' %}{{ raise_exception('no system turns') }}{% endif %}" + TEMPLATE


def test_a_preference_that_the_template_refuses_is_named_by_its_line_or_skipped(tmp_path: Path) -> None:
    def conversation(*roles: str) -> list[dict[str, str]]:
        return [{"role": role, "content": "be brief"} for role in roles]

    chosen, rejected = ([{"role": "assistant", "content": text}] for text in ("yes", "no"))
    prompts = [conversation("user"), conversation("system", "assistant"), conversation("system", "user")]
    path = tmp_path / "pairs.jsonl"
    lines = [json.dumps({"prompt": prompt, "chosen": chosen, "rejected": rejected}) + "\n\n" for prompt in prompts]
    path.write_text("".join(lines))

    def groups(**settings: Any) -> tuple[list[Group], list[str]]:
        config = PreferenceDataConfig(preferences=str(path), **settings)
        return group_preferences(load_preferences(config), Encoder(Wrapper(NO_SYSTEM), config), config)

    with pytest.raises(DataError, match="skip_broken = true leaves") as error:
        groups()
    refusal = f"{path}:3: the chat template rejects the roles system, assistant: no system turns"
    assert str(error.value).startswith(refusal)
    found, warnings = groups(skip_broken=True)
    assert len(found) == 2
    assert Wrapper().decode(found[1].sequences[0]).startswith("<special0>user: be brief\n\nbe brief<end>")
    assert "knows no system messages" in warnings[0]
    assert warnings[-1].startswith(f"1 comparison skipped as broken; the first: {path}:3: ")
    path.write_text(lines[1])
    with pytest.raises(DataError, match=r"no preference to learn from: .*no system turns"):
        groups(skip_broken=True)


def test_a_prompt_and_a_completion_without_a_token_are_refused_by_their_number() -> None:
    with pytest.raises(DataError, match="preference 1 "):
        grouped(preference("p", ["a", "b"]), preference("", ["", ""]))


def test_judgements_of_one_prompt_are_one_group_only_where_completions_link_them() -> None:
    groups, _ = grouped(
        preference("p", ["a", "b"]),
        preference("p", ["c", "d"]),
        preference("q", ["a", "b"]),
        preference("p", ["b", "x"], "b"),
    )
    assert [(group.prompt, len(group.sequences)) for group in groups] == [(0, 3), (0, 2), (1, 2)]
    first = groups[0]
    assert [(pair.better, pair.worse) for pair in first.pairs] == [(0, 1), (2, 1)]
    assert Wrapper().decode(first.sequences[2]) == "px"


def test_a_ranking_gives_all_its_pairs_and_its_ties() -> None:
    (group,), _ = grouped(preference("p", ["a", "b", "c", "d"], ((2,), (0, 3), (1,)), strength=2))
    pairs = {(pair.better, pair.worse, pair.is_tie) for pair in group.pairs}
    assert pairs == {(2, 0, False), (2, 3, False), (2, 1, False), (0, 1, False), (3, 1, False), (0, 3, True)}
    assert {pair.strength for pair in group.pairs} == {2}
    ranking = group.judged[0][1]
    assert ranking is not None
    assert dict(zip(ranking.places, ranking.ranks, strict=True)) == {2: 0, 0: 1, 3: 1, 1: 2}


def test_ignored_preferences_are_counted_and_reported() -> None:
    groups, warnings = grouped(
        preference("p", ["a", "b"]),
        preference("p", ["a", "b"]),
        preference("p", ["c", "c"]),
        preference("p", ["d", "e"], "skip"),
        preference("p", ["d", "e"], "both_bad"),
        preference("p", ["d" * 30, "e"]),
        max_tokens=20,
        too_long="drop",
    )
    assert [len(group.pairs) for group in groups] == [2]
    assert warnings == [
        "2 judgements skipped or both bad, ignored",
        "1 comparison longer than data.max_tokens = 20, ignored",
        "1 pair of the same tokens twice, ignored",
        "1 judgement of completions judged before; together they count once",
    ]


@pytest.mark.parametrize(
    ("preferences", "reported"),
    [
        ([], "has no preferences"),
        ([preference("p", ["a", "b"], "tie"), preference("p", ["c", "d"], "skip")], "1 tied, 1 skipped"),
        ([preference("p", ["a", "a"])], "of 1 judgement none .*1 between equal completions"),
        ([preference("p", ["a", "b"], "both_bad")], "1 where both are bad"),
    ],
)
def test_where_nothing_can_be_learnt_the_reason_is_given(preferences: list[Preference], reported: str) -> None:
    with pytest.raises(DataError, match=reported):
        grouped(*preferences)


def test_all_comparisons_of_a_prompt_are_on_one_side_of_the_split() -> None:
    model = SimpleNamespace(tokenizer=Wrapper(), context=0)

    def split(fraction: float, seed: int, preferences: list[Preference]) -> tuple[list[Group], list[Group]]:
        config = RewardModelConfig.model_validate({"data": {"eval_fraction": fraction}, "run": {"seed": seed}})
        found = reward_comparisons(preferences, model, config)  # type: ignore[arg-type]
        return found.train, found.held_out

    train, held_out = split(0.25, 3, labelled(100, prompts=20))
    assert not {group.prompt for group in train} & {group.prompt for group in held_out}
    assert (len(train), len(held_out)) == (75, 25)
    assert split(0.25, 3, labelled(100, prompts=20)) == (train, held_out)
    assert split(0.25, 4, labelled(100, prompts=20))[1] != held_out
    assert split(0.0, 3, labelled(100, prompts=20))[1] == []
    assert split(0.5, 0, labelled(5, prompts=1))[1] == [], "never all"


def test_the_fingerprint_detects_other_comparisons_and_another_order() -> None:
    groups, _ = group_preferences(labelled(10), encoder(), PreferenceDataConfig())
    assert fingerprint(groups) == fingerprint(list(groups))
    assert fingerprint(groups) != fingerprint(groups[::-1])
    assert fingerprint(groups) != fingerprint(groups[1:])


def test_an_epoch_visits_every_group_once_and_the_next_in_another_order() -> None:
    groups, _ = group_preferences(labelled(20), encoder(), PreferenceDataConfig())
    config = RewardTrainConfig(batch_size=8, epochs=2)
    epochs = [
        [group.prompt for number in numbers for group in step_groups(groups, number, config, seed=1)]
        for numbers in ((1, 2, 3), (4, 5, 6))
    ]
    assert [sorted(epoch) for epoch in epochs] == [list(range(20))] * 2
    assert epochs[0] != epochs[1]
    assert len(step_groups(groups, 3, config, seed=1)) == 4


def test_micro_batches_hold_whole_groups_of_like_length_within_the_budget() -> None:
    lengths = [5, 30, 7, 28, 6, 100]
    groups = [Group(number, [[1] * length, [1] * (length - 1)]) for number, length in enumerate(lengths)]
    done: list[tuple[int, int]] = []
    parts = list(micro_batches(groups, 64, lambda *progress: done.append(progress)))
    assert [[group.longest for group in part] for part in parts] == [[100], [30], [28], [7, 6, 5]]
    assert done == [(1, 6), (2, 6), (3, 6), (6, 6)]


def test_a_group_counts_once_however_many_judgements_it_has() -> None:
    groups, _ = grouped(
        preference("p", ["a", "b", "c"], ((0,), (1,), (2,))), preference("q", ["a", "b"]), preference("q", ["a", "b"])
    )
    batch = to_batch(groups, RewardTrainConfig())
    np.testing.assert_allclose(np.array(batch.weights), [1 / 3] * 3 + [1 / 2] * 2)
    assert batch.rankings.size == 0
    chosen = to_batch(groups, RewardTrainConfig(rankings="plackett-luce"))
    np.testing.assert_allclose(np.array(chosen.weights), [0, 0, 0, 1 / 2, 1 / 2])
    np.testing.assert_allclose(np.array(chosen.ranking_weights), [1])
    assert chosen.rankings.tolist() == [[0, 1, 2]]


def test_the_margin_grows_with_the_strength_and_a_tie_has_none() -> None:
    groups, _ = grouped(
        preference("p", ["a", "b"]),
        preference("q", ["a", "b"], strength=3),
        preference("r", ["a", "b"], "tie", strength=3),
    )
    batch = to_batch(groups, RewardTrainConfig(margin=0.5))
    np.testing.assert_allclose(np.array(batch.margins), [0, 1, 0])
    assert batch.is_tie.tolist() == [False, False, True]
    assert batch.sequences.shape == (6, 2)
    assert mx.array_equal(batch.lengths, mx.array([2] * 6))


def test_preferences_come_from_a_store_or_a_file(tmp_path: Path) -> None:
    given = labelled(6)
    with PreferenceStore(tmp_path / "preferences.db") as store:
        store.add_many([*given, preference("p", ["a", "b"], "skip")], source="test")
    stored = load_preferences(PreferenceDataConfig(preferences=str(tmp_path / "preferences.db")))
    read = list(stored)
    assert [one.comparison.key for one in read[:6]] == [one.comparison.key for one in given]
    assert (len(read), stored.warnings) == (7, [])
    limited = load_preferences(PreferenceDataConfig(preferences=str(tmp_path / "preferences.db"), limit=2))
    assert len(list(limited)) == 2
    rows = tmp_path / "pairs.jsonl"
    rows.write_text('{"prompt": "p", "chosen": "a", "rejected": "b"}\nbroken\n')
    with pytest.raises(DataError, match=r"pairs\.jsonl:2"):
        list(load_preferences(PreferenceDataConfig(preferences=str(rows))))
    found = load_preferences(PreferenceDataConfig(preferences=str(rows), skip_broken=True))
    assert len(list(found)) == 1
    assert "1 of 2 rows" in found.warnings[0]
    assert "pairs.jsonl:2" in found.warnings[1]
    with pytest.raises((DataError, UsageError)):
        load_preferences(PreferenceDataConfig(preferences=str(tmp_path / "none.db")))


def test_no_more_comparisons_than_asked_for_are_evaluated_and_the_same_are_trained_on() -> None:
    model = SimpleNamespace(tokenizer=Wrapper(), context=0)

    def comparisons(most: int, seed: int = 0) -> Comparisons:
        config = RewardModelConfig.model_validate(
            {"data": {"eval_fraction": 0.5}, "eval": {"comparisons": most}, "run": {"seed": seed}}
        )
        return reward_comparisons(labelled(60), model, config)  # type: ignore[arg-type]

    every, some = comparisons(0), comparisons(7)
    held_out = list(every.held_out)
    assert (len(held_out), len(some.held_out)) == (30, 7)
    assert [one for one in held_out if one in list(some.held_out)] == list(some.held_out), "in the order of the source"
    assert list(some.held_out) != held_out[:7], "not just the first, which may have one source"
    assert list(comparisons(7).held_out) == list(some.held_out)
    assert (list(some.train), some.fingerprint) == (list(every.train), every.fingerprint)
    assert every.fingerprint == fingerprint([*every.train, *held_out])
    assert len(comparisons(30).held_out) == 30
