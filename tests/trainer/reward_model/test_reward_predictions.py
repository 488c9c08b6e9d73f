"""The file of a run's held-out pairs: written whole, read back, and consistent with the model that the run left."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from preference_samples import labelled, preference, reward_config
from reward_pane_app import REPORT, pair, some_pairs
from runs_helper import Recorder

from trainer.engine.training import train
from trainer.errors import StorageError
from trainer.events import Event, RewardModelEvaluation, RewardModelStep
from trainer.preferences.records import Text
from trainer.preferences.store import PreferenceStore
from trainer.reward_model.loaded import load_reward_model
from trainer.reward_model.predictions import (
    HELD_OUT,
    Predictions,
    read_predictions,
    report_from_dict,
    sorted_predictions,
    write_predictions,
)


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


def test_a_full_disk_leaves_the_file_of_the_evaluation_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = written(tmp_path / "x.parquet", pair(1), iteration=1)

    def full(table: object, where: BinaryIO, **_: object) -> None:
        where.write(b"PAR1 a part")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(pq, "write_table", full)
    with pytest.raises(StorageError, match=r"No space left on device; free space, then continue with --resume"):
        written(path, pair(2), iteration=2)
    assert read_predictions(path).iteration == 1
    assert [file.name for file in tmp_path.iterdir()] == ["x.parquet"]


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
