"""The record of a rollout: its rows can be taken apart, joined again and cut."""

from __future__ import annotations

import mlx.core as mx
from batches import random_batch
from hypothesis import given
from hypothesis import strategies as st

from trainer.fitting.optimisation import micro_batch_rows
from trainer.rollout.experience import Experience

LENGTHS = [(3, 4), (5, 1), (2, 6), (4, 2)]  # of prompt and response


def filled() -> Experience:
    batch = random_batch(LENGTHS)
    arrays = mx.random.normal((7, *batch.mask.shape), key=mx.random.key(0))
    names = ("logprobs", "ref_logprobs", "kl", "rewards", "values", "td_errors", "advantages")
    return batch._replace(**dict(zip(names, arrays, strict=True)), scores=mx.arange(4.0))


# Taking rows


def test_taken_rows_keep_their_order_and_are_cut_to_the_longest_of_them() -> None:
    batch = filled()
    part = batch.take([3, 1])
    assert part.sequences.shape == (2, 6)
    assert part.responses.shape == part.mask.shape == part.values.shape == (2, 2)
    assert part.texts == [batch.texts[3], batch.texts[1]]
    assert part.prompt_indices == [3, 1]
    assert part.scores.tolist() == [3.0, 1.0]
    assert part.entropy is None
    assert batch.take(range(1, 3)).texts == batch.take([1, 2]).texts


def test_cutting_loses_no_real_token() -> None:
    batch = filled()
    for rows in ([0], [2, 0], [1, 3, 2]):
        part = batch.take(rows)
        for place, row in enumerate(rows):
            start, count = LENGTHS[row]
            assert part.sequences[place, : start + count].tolist() == batch.sequences[row, : start + count].tolist()
            assert part.values[place, :count].tolist() == batch.values[row, :count].tolist()
            assert part.mask[place].sum().item() == count


def test_one_token_is_one_column_and_a_response_without_any_keeps_one() -> None:
    batch = random_batch([(3, 1), (2, 0), (2, 5)])
    for rows in ([0], [1], [1, 0]):
        part = batch.take(rows)
        assert part.responses.shape == part.mask.shape == (len(rows), 1)
        assert part.mask[:, 0].tolist() == [1.0 if row == 0 else 0.0 for row in rows]


def test_alternatives_are_taken_and_cut_like_the_tokens_they_belong_to() -> None:
    tops = mx.arange(4 * 6 * 3).reshape(4, 6, 3)
    batch = random_batch(LENGTHS)._replace(top_tokens=tops, top_logprobs=-tops.astype(mx.float32))
    part = batch.take([3, 0])
    assert part.top_tokens.tolist() == tops[mx.array([3, 0]), :4].tolist()
    assert part.top_logprobs.shape == (2, 4, 3)


# Putting together


@given(st.permutations(range(4)), st.integers(1, 4), st.integers(0, 1), st.booleans())
def test_fields_computed_for_parts_in_any_order_join_to_those_of_the_batch(
    order: list[int], size: int, extra: int, deep: bool
) -> None:
    batch = random_batch(LENGTHS)
    shape = (4, 6 + extra, 3) if deep else (4, 6 + extra)
    wanted = mx.arange(4 * (6 + extra) * (3 if deep else 1), dtype=mx.int32).reshape(shape) + 1
    groups = [order[start : start + size] for start in range(0, 4, size)]
    widths = [max(LENGTHS[row][1] for row in group) + extra for group in groups]
    parts = [wanted[mx.array(group), :width] for group, width in zip(groups, widths, strict=True)]
    together = batch.gathered(parts, order, extra=extra)
    assert (together.shape, together.dtype) == (wanted.shape, wanted.dtype)
    for row, (_, count) in enumerate(LENGTHS):
        assert together[row, : count + extra].tolist() == wanted[row, : count + extra].tolist()
        assert not together[row, count + extra :].any()


# Cuts


@given(st.lists(st.integers(1, 30), max_size=12), st.integers(1, 100))
def test_micro_batches_hold_every_row_once_within_the_budget_longest_first(lengths: list[int], budget: int) -> None:
    groups = list(micro_batch_rows(lengths, budget))
    assert sorted(row for group in groups for row in group) == list(range(len(lengths)))
    for group in groups:
        assert len(group) == 1 or len(group) * max(lengths[row] for row in group) <= budget
    flat = [lengths[row] for group in groups for row in group]
    assert flat == sorted(flat, reverse=True)
    for group in groups[:-1]:
        assert (len(group) + 1) * lengths[group[0]] > budget  # not even one more would have fitted
