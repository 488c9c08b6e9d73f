"""The numbers of an evaluation, against some worked out by hand and closed forms, and their file in a run."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from preference_samples import labelled, preference, reward_config
from reward_pane_app import REPORT, pair, some_pairs
from runs_helper import Recorder

from trainer.confidence import Interval, wilson_interval
from trainer.engine.training import train
from trainer.errors import StorageError
from trainer.events import Event, RewardModelEvaluation, RewardModelStep
from trainer.pairs.groups import Group, Pair
from trainer.preferences.records import Text
from trainer.preferences.store import PreferenceStore
from trainer.reward_model.loaded import evaluate, load_reward_model
from trainer.reward_model.pair_evaluation import (
    Outcomes,
    baseline,
    calibration,
    calibration_error,
    fit_length_slope,
    outcomes_of,
    paired_difference,
    report_on,
)
from trainer.reward_model.predictions import (
    HELD_OUT,
    Baseline,
    Predictions,
    read_predictions,
    report_from_dict,
    sorted_predictions,
    write_predictions,
)
from trainer.runs.folder import RunFolder
from workbench.cli.reward_model import evaluation_lines


def found(leads: list[float], longer_by: list[float] | None = None, **more: object) -> Outcomes:
    count = len(leads)
    values = {
        "rows": np.arange(2 * count).reshape(-1, 2),
        "lengths": np.full(count, 10.0),
        "is_tie": np.zeros(count, dtype=bool),
        **more,
        "sources": np.array(more.get("sources", [""] * count), dtype=object),
    }
    return Outcomes(leads=np.array(leads), longer_by=np.array(longer_by or [0.0] * count), **values)  # type: ignore[arg-type]


def test_accuracy_counts_even_pairs_as_half_and_log_loss_is_minus_log_sigmoid() -> None:
    leads = np.array([2.0, -1.0, 0.0, 3.0])
    assert baseline(leads) == Baseline(2.5 / 4, pytest.approx(np.mean(np.log1p(np.exp(-leads)))))  # type: ignore[arg-type]
    assert baseline(np.zeros(5)).log_loss == pytest.approx(math.log(2))
    assert math.isnan(baseline(np.array([])).accuracy)
    assert math.isfinite(baseline(np.array([-1e4])).log_loss)


def test_the_accuracy_of_a_report_comes_with_wilsons_interval_and_leaves_ties_out() -> None:
    leads = [1.0] * 30 + [-1.0] * 10 + [5.0] * 3
    result = report_on(found(leads, is_tie=np.array([False] * 40 + [True] * 3)), length_slope=0.0)
    accuracy = result.accuracy
    assert (accuracy.pairs, accuracy.value) == (40, 0.75)
    assert (accuracy.low, accuracy.high) == wilson_interval(30, 40)
    assert result.ties is None, "the model knows of no ties"


def test_the_bins_of_the_calibration_are_those_worked_out_by_hand() -> None:
    logit = lambda p: math.log(p / (1 - p))  # noqa: E731
    leads = np.array([logit(0.52), -logit(0.54), logit(0.97), logit(0.99)])
    low, high = calibration(leads)
    assert (low.low, low.high, low.pairs, low.accuracy) == (0.5, 0.55, 2, 0.5)
    assert low.confidence == pytest.approx(0.53)
    assert (high.low, high.pairs, high.accuracy) == (0.95, 2, 1.0)
    assert calibration_error([low, high]) == pytest.approx((2 * 0.03 + 2 * 0.02) / 4)
    assert sum(one.pairs for one in calibration(np.array([0.0, 1e3, -1e3]))) == 3
    assert math.isnan(calibration_error([]))


def test_pairs_are_grouped_by_length_and_by_source() -> None:
    result = report_on(
        found(
            [1.0, -1.0, 1.0, 1.0, -1.0],
            [-6.0, -2.0, 0.0, 2.0, 6.0],
            sources=["x", "x", "y", "", "y"],
        ),
        length_slope=0.0,
    )
    assert [(row.name, row.pairs, row.value) for row in result.by_length] == [
        ("half as long or less", 1, 1.0),
        ("shorter", 1, 0.0),
        ("about as long", 1, 1.0),
        ("longer", 1, 1.0),
        ("twice as long or more", 1, 0.0),
    ]
    assert [(row.name, row.pairs, row.value) for row in result.by_source] == [
        ("not known", 1, 1.0),
        ("x", 2, 0.5),
        ("y", 2, 0.5),
    ]


def test_the_length_baseline_is_the_best_of_all_slopes() -> None:
    x = np.random.default_rng(2).normal(size=500) * 8 + 2
    slope = fit_length_slope(x)
    best = baseline(slope * x).log_loss
    assert all(baseline(factor * slope * x).log_loss >= best - 1e-4 for factor in (0.0, 0.8, 1.2, 2.0))
    assert fit_length_slope(-x) == pytest.approx(-slope)
    assert fit_length_slope(np.array([])) == fit_length_slope(np.zeros(4)) == 0
    assert math.isfinite(fit_length_slope(np.array([1.0, 5.0, 9.0]))), "where length decides every pair"


def test_the_lead_over_length_is_paired_and_has_an_interval() -> None:
    longer_by = [1.0] * 60 + [-1.0] * 40
    as_length = found([1.0] * 60 + [-1.0] * 40, longer_by)
    same = report_on(as_length, length_slope=0.5).over_length
    assert same == Interval(0.0, pytest.approx(-0.0272, abs=1e-4), pytest.approx(0.0272, abs=1e-4))  # type: ignore[arg-type]
    better = report_on(found([1.0] * 80 + [-1.0] * 20, longer_by), length_slope=0.5).over_length
    assert better is not None
    assert better.value == pytest.approx(0.2)
    assert (better.low, better.high) == pytest.approx((0.1144, 0.2778), abs=1e-4)
    assert report_on(found([]), length_slope=0.5).over_length is None


@pytest.mark.parametrize("gains", [[1.0] * 5, [-1.0] * 6, [0.0] * 5, [0.5, -1.0]])
def test_the_interval_of_few_pairs_has_a_width_and_stays_within_all_or_none(gains: list[float]) -> None:
    found = paired_difference(np.array(gains))
    assert found.value == np.mean(gains)
    assert -1 <= found.low < found.high <= 1
    assert found.low <= found.value <= found.high


def test_the_probability_of_a_tie_is_davidsons() -> None:
    result = report_on(found([0.0, 2.0], is_tie=np.array([True, False])), length_slope=0.0, log_nu=0.5)
    nu = math.exp(0.5)
    assert result.ties is not None
    assert result.ties.on_ties == pytest.approx(nu / (nu + 2), rel=1e-5)
    assert result.ties.on_decided == pytest.approx(nu / (nu + math.e + 1 / math.e), rel=1e-5)


def test_outcomes_are_read_from_the_scores_of_each_group_in_turn() -> None:
    groups = [
        Group(0, [[1], [2]], [5, 3], [([Pair(1, 0, False, 1, "x")], None)]),
        Group(1, [[1], [2], [3]], [1, 2, 3], [([Pair(0, 2, False, 1, "y"), Pair(0, 1, True, 1, "y")], None)]),
    ]
    result = outcomes_of(groups, np.array([1.0, 4.0, 10.0, 20.0, 40.0]), logit_std=2.0)
    assert result.leads.tolist() == [1.5, -15.0, -5.0]
    assert result.longer_by.tolist() == [-2.0, -2.0, -1.0]
    assert result.lengths.tolist() == [5.0, 3.0, 2.0]
    assert result.is_tie.tolist() == [False, False, True]
    assert result.sources.tolist() == ["x", "y", "y"]
    assert result.rows.tolist() == [[1, 0], [2, 4], [2, 3]]
    assert result.decided().rows.tolist() == [[1, 0], [2, 4]]


def test_a_report_without_a_decided_pair_is_still_readable_json() -> None:
    result = report_on(found([1.0], is_tie=np.array([True])), length_slope=0.1, log_nu=0.0)
    values = json.loads(json.dumps(result.as_dict(), allow_nan=False))
    assert values["log_loss"] is None
    assert values["ties"]["on_decided"] is None
    assert "reward model  " in "\n".join(evaluation_lines(values))


def test_the_table_has_the_baselines_beside_the_model_and_hides_control_characters() -> None:
    result = report_on(
        found([1.0, -1.0, 2.0], [3.0, 1.0, -2.0], sources=["\x1b[31mred", "b", "b"]),
        length_slope=0.2,
        untrained=Baseline(0.4, 0.9),
    )
    lines = list(evaluation_lines(result.as_dict()))
    assert lines[0].split() == ["3", "held-out", "pairs", "accuracy", "95%", "interval", "log-loss"]
    assert lines[1].split()[:3] == ["reward", "model", "66.7%"]
    assert lines[2].split() == ["length", "alone", "66.7%", f"{result.length.log_loss:.3f}"]
    assert lines[3].split() == ["untrained", "40.0%", "0.900"]
    assert lines[4].startswith("difference from length alone on the same pairs: 0.0 points, 95% interval -")
    assert not any("\x1b" in line for line in lines)
    earlier = result.as_dict()
    del earlier["over_length"]
    assert not any("difference from" in line for line in evaluation_lines(earlier))
    assert report_from_dict(earlier).over_length is None


@pytest.mark.parametrize("settings", [[], ["train.states=last+mean", "train.head=fitted"]])
def test_a_saved_model_evaluates_to_what_its_training_reported(tmp_path: Path, settings: list[str]) -> None:
    from trainer.preferences.store import PreferenceStore

    store = tmp_path / "preferences.db"
    with PreferenceStore(store) as opened:
        opened.add_many([*labelled(60), preference("t", ["ab", "ba"], "tie")], source="test")
    config = reward_config(tmp_path, "run.name=a", f"data.preferences={store}", "data.eval_fraction=0.3", *settings)
    train(config)
    loaded = load_reward_model(tmp_path / "runs/a")
    result, warnings = evaluate(loaded, RunFolder(tmp_path / "runs/a"))
    reported = loaded.card["evaluation"]
    assert warnings == []
    assert result.accuracy.value == reported["accuracy"]["value"]
    assert result.log_loss == pytest.approx(reported["log_loss"], abs=1e-4)
    assert result.untrained is not None
    assert result.untrained.log_loss == pytest.approx(reported["untrained"]["log_loss"], abs=1e-4)
    before = loaded.score([loaded.encode("say 1: ", "abc")])
    everything, _ = evaluate(loaded, str(store))
    assert everything.accuracy.pairs == 60
    assert loaded.score([loaded.encode("say 1: ", "abc")]) == before, "the untrained model was only there for a moment"
    with PreferenceStore(store) as opened:
        opened.add_many(labelled(5, seed=8), source="test")
    assert "not those of the training" in evaluate(loaded, RunFolder(tmp_path / "runs/a"))[1][0]


def written(path: Path, *pairs: Any, iteration: int = 7) -> Path:
    write_predictions(path, sorted_predictions(list(pairs), REPORT, iteration))
    return path


def kept(run: Path) -> Predictions:
    return read_predictions(run / HELD_OUT)


def test_predictions_are_read_back_with_the_most_wrong_pair_first_and_ties_last(tmp_path: Path) -> None:
    messages: Text = [{"role": "user", "content": "hi\n\x1b[31m \u202e"}, {"role": "assistant", "content": "你好"}]
    given = [
        pair(0, 2.0, prompt=messages, chosen=messages[1:], rejected="lone \udc80 surrogate, \x00"),
        pair(1, -3.5, strength=3),
        pair(2, 0.5, is_tie=True),
        pair(3, -4.0, is_tie=True),
        pair(4, math.nan),
        pair(5, -0.1, source=""),
    ]
    found = read_predictions(written(tmp_path / "x.parquet", *given))
    assert [one.prompt for one in found.pairs] == [given[place].prompt for place in (4, 1, 5, 0, 3, 2)]
    assert found.pairs[1:] == [given[place] for place in (1, 5, 0, 3, 2)]
    assert (found.iteration, found.report, found.total) == (7, REPORT, 6)
    assert list(found.chosen)[1:] == [given[place].chosen_reward for place in (1, 5, 0)]
    assert len(found.rejected) == 4, "the decided pairs"


def test_the_first_pairs_are_read_without_the_others_and_the_rewards_of_all(tmp_path: Path) -> None:
    path = written(tmp_path / "x.parquet", *some_pairs(1300))
    whole, some = read_predictions(path), read_predictions(path, 700)
    assert (len(some.pairs), some.total, len(some.chosen)) == (700, 1300, 1300)
    assert some.pairs == whole.pairs[:700]
    assert some.chosen == whole.chosen
    assert [one.lead for one in whole.pairs] == sorted(one.lead for one in some_pairs(1300))
    assert read_predictions(written(tmp_path / "none.parquet"), 5).pairs == []


def test_a_report_that_lacks_numbers_comes_back_as_it_was() -> None:
    empty = REPORT.as_dict() | {"log_loss": None, "untrained": None, "ties": {"ties": 3, "on_ties": 0.4}}
    empty["ties"]["on_decided"] = None
    found = report_from_dict(json.loads(json.dumps(empty)))
    assert math.isnan(found.log_loss)
    assert found.untrained is None
    assert found.ties is not None
    assert math.isnan(found.ties.on_decided)
    assert report_from_dict(REPORT.as_dict()) == REPORT
    for broken in (None, [], {}, REPORT.as_dict() | {"accuracy": 3}):
        with pytest.raises(ValueError, match="validation error"):
            report_from_dict(broken)


def test_a_missing_or_damaged_file_is_reported_in_one_line(tmp_path: Path) -> None:
    path = tmp_path / "x.parquet"
    with pytest.raises(StorageError, match="the first evaluation on held-out pairs writes it"):
        read_predictions(path)
    good = written(path, pair(1)).read_bytes()
    table = pq.read_table(path)
    metadata = table.schema.metadata
    broken_text = table.set_column(4, table.schema.field(4), pa.array(['{"role": 1}']))
    for reported, damage in (
        ("damaged", lambda: path.write_bytes(b"PAR1 and nothing of use PAR1")),
        ("damaged", lambda: path.write_bytes(good[:-200])),
        ("damaged", lambda: pq.write_table(table.drop_columns(["lead"]), path)),
        ("damaged", lambda: pq.write_table(table.replace_schema_metadata({}), path)),
        ("damaged", lambda: pq.write_table(table.replace_schema_metadata({**metadata, b"report": b"{"}), path)),
        ("damaged", lambda: pq.write_table(broken_text.replace_schema_metadata(metadata), path)),
        ("newer version", lambda: pq.write_table(table.replace_schema_metadata({**metadata, b"held_out": b"2"}), path)),
        ("not a regular file", lambda: (path.unlink(), os.mkfifo(path))),
    ):
        damage()
        with pytest.raises(StorageError, match=reported) as caught:
            read_predictions(path)
        assert "\n" not in str(caught.value)


def test_importing_the_reader_loads_neither_mlx_nor_pyarrow() -> None:
    program = "import sys, trainer.reward_model.predictions, workbench.reward_model.pane; print(*sys.modules)"
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=300, check=True)
    assert not {"mlx", "mlx_lm", "numpy", "pyarrow", "transformers"} & set(result.stdout.split())


def trained(folder: Path, *overrides: str, count: int = 60, **how: Any) -> Recorder:
    recorder = Recorder(how.pop("watch", lambda event: None))
    config = reward_config(folder, "run.name=a", "data.eval_fraction=0.3", *overrides)
    how.setdefault("preferences", labelled(count))
    train(config, sinks=[recorder], **how)
    return recorder


def test_a_run_saves_its_models_predictions_for_the_held_out_pairs(tmp_path: Path) -> None:
    recorder = trained(tmp_path)
    reported, found = recorder.of(RewardModelEvaluation)[-1], kept(tmp_path / "runs/a")
    assert (found.iteration, found.total) == (reported.iteration, reported.pairs) == (6, 18)
    assert found.report.accuracy.value == reported.accuracy
    leads = [one.lead for one in found.pairs]
    assert sum(lead > 0 for lead in leads) / len(leads) == pytest.approx(reported.accuracy)
    assert sum(math.log(1 + math.exp(-lead)) for lead in leads) / len(leads) == pytest.approx(reported.log_loss)
    model = load_reward_model(tmp_path / "runs/a")
    for one in found.pairs:
        rewards = model.score([model.encode(one.prompt, text) for text in (one.chosen, one.rejected)])
        assert rewards == pytest.approx([one.chosen_reward, one.rejected_reward], abs=1e-4), "in the final scale"
        assert (one.chosen_tokens, one.rejected_tokens) == (len(one.chosen), len(one.rejected))


def test_each_pair_has_the_key_and_the_texts_that_the_store_has(tmp_path: Path) -> None:
    store = tmp_path / "preferences.db"
    ranking = [preference(f"r{i}", ["aa", "ab", "bb"], ((0,), (1,), (2,)), strength=2) for i in range(9)]
    ties = [preference(f"t{i}", ["ab", "ba"], "tie") for i in range(9)]
    with PreferenceStore(store) as opened:
        opened.add_many([*labelled(40), *ranking, *ties], source="test")
        by_key = {one.comparison.key: one for one in opened.preferences()}
    trained(tmp_path, f"data.preferences={store}", preferences=None)
    found = kept(tmp_path / "runs/a").pairs
    assert len({one.key for one in found}) < len(found), "those of a ranking have one key"
    assert any(one.is_tie for one in found)
    for one in found:
        stored = by_key[one.key]
        assert one.prompt == stored.comparison.prompt
        texts, ranks = stored.comparison.completions, stored.judgement.ranking
        rank = {texts[place]: number for number, group in enumerate(ranks) for place in group}
        assert (rank[one.chosen] == rank[one.rejected]) if one.is_tie else (rank[one.chosen] < rank[one.rejected])
        assert (one.strength, one.source) == (stored.judgement.strength, "test")


def test_there_is_a_file_from_the_first_evaluation_on_and_each_replaces_the_one_before(tmp_path: Path) -> None:
    seen: list[int] = []

    def watch(event: Event) -> None:
        if isinstance(event, RewardModelStep):
            seen.append(kept(tmp_path / "runs/a").iteration)

    trained(tmp_path, "eval.every=2", watch=watch)
    assert seen == [0, 0, 2, 2, 4, 4]
    assert kept(tmp_path / "runs/a").iteration == 6
    trained(tmp_path, "run.name=b", "data.eval_fraction=0")
    assert not (tmp_path / "runs/b" / HELD_OUT).exists()
