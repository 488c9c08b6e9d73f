"""Python code of rewards: found and shown without running it, and run only once it is trusted."""

from __future__ import annotations

import json
import os
import py_compile
import stat
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from trainer.config.schema import RewardConfig
from trainer.errors import StorageError, UntrustedCodeError
from trainer.rewards import RewardInput, build_rewards
from trainer.rewards.code import Trust, TrustedCode, code_of, trust_none

BATCH = [RewardInput("Once", " there was joy.", [1], {}, False)]


@pytest.fixture
def store(tmp_path: Path) -> TrustedCode:
    return TrustedCode(tmp_path / "state" / "trusted-code.jsonl")


@pytest.fixture
def code(tmp_path: Path) -> Path:
    """Return a folder for code."""
    (tmp_path / "code").mkdir()
    return tmp_path / "code"


@pytest.fixture(autouse=True)
def _modules_as_before() -> Iterator[None]:
    finders, names = list(sys.meta_path), set(sys.modules)
    yield
    sys.meta_path[:] = finders
    for name in sys.modules.keys() - names:
        del sys.modules[name]


def scored(path: Path | str, trust: Trust) -> float:
    """Return what the function `score` gives, if it may run."""
    return build_rewards(RewardConfig(sources=[f"{path}:score"]), trust=trust)(BATCH).scores[0]


def write(path: Path, value: str, before: str = "") -> Path:
    path.write_text(f"{before}\ndef score(**_): return [{value}]\n")
    return path


def test_untrusted_code_is_not_run_and_the_error_names_file_hash_and_way_out(store: TrustedCode, code: Path) -> None:
    file = write(code / "rewards.py", "1", f"open({str(code / 'executed')!r}, 'w').close()")
    with pytest.raises(UntrustedCodeError) as refused:
        scored(file, store.check)
    (found,) = code_of(f"{file}:score")
    assert str(refused.value).startswith("you have not trusted this version of what reward.sources uses: ")
    assert all(part in str(refused.value) for part in (str(file), found.sha256[:12], "--trust-code"))
    assert not (code / "executed").exists()


def test_trust_applies_to_one_content_at_one_path(store: TrustedCode, code: Path) -> None:
    file = write(code / "rewards.py", "1")
    store.remember(code_of(f"{file}:score"))
    assert scored(file, store.check) == 1
    write(file, "2")
    with pytest.raises(UntrustedCodeError):
        scored(file, store.check)
    write(file, "1")
    assert scored(file, store.check) == 1
    with pytest.raises(UntrustedCodeError):
        scored(write(code / "other.py", "1"), store.check)


def test_a_link_is_trusted_for_what_it_points_to(store: TrustedCode, code: Path) -> None:
    file, link = write(code / "rewards.py", "1"), code / "link.py"
    link.symlink_to(file)
    store.remember(code_of(f"{link}:score"))
    assert scored(file, store.check) == 1
    link.unlink()
    link.symlink_to(write(code / "evil.py", "2"))
    with pytest.raises(UntrustedCodeError, match=r"evil\.py"):
        scored(link, store.check)


def test_the_files_that_a_file_imports_from_its_folder_are_part_of_it(code: Path) -> None:
    (code / "package" / "inner").mkdir(parents=True)
    (code / "loose").mkdir()
    (code / "rewards.py").write_text(
        "import json, nowhere, random\nimport package.one\nfrom loose import part\n"
        "def score(**_):\n    import later\n    return [package.one.VALUE + part.VALUE + later.VALUE]\n"
    )
    (code / "package/__init__.py").write_text("from . import two\nfrom .inner import three\n")
    (code / "package/one.py").write_text("from .two import VALUE\n")
    (code / "package/two.py").write_text("VALUE = 1\n")
    (code / "package/inner/__init__.py").write_text("")
    (code / "package/inner/three.py").write_text("from ..two import VALUE\n")
    (code / "loose/part.py").write_text("VALUE = 10\n")
    (code / "later.py").write_text("VALUE = 100\n")
    for other in ("random.py", "unused.py", "package/unused.py"):
        (code / other).write_text("raise SystemExit\n")
    found = {str(Path(one.name).relative_to(code)) for one in code_of(f"{code}/rewards.py:score")}
    package = {"package/__init__.py", "package/one.py", "package/two.py"}
    assert found == {"rewards.py", "loose/part.py", "later.py", "package/inner/__init__.py"} | package | {
        "package/inner/three.py"
    }
    (code / "rewards.py").write_text((code / "rewards.py").read_text().replace(" nowhere,", ""))
    assert scored(code / "rewards.py", lambda codes: None) == 111


def test_a_changed_neighbour_must_be_trusted_again(store: TrustedCode, code: Path) -> None:
    (code / "neighbour_of_it.py").write_text("VALUE = 1\n")
    file = write(code / "rewards.py", "VALUE", "from neighbour_of_it import VALUE")
    store.remember(code_of(f"{file}:score"))
    assert scored(file, store.check) == 1
    (code / "neighbour_of_it.py").write_text("VALUE = 2\n")
    with pytest.raises(UntrustedCodeError, match=r"neighbour_of_it\.py"):
        scored(file, store.check)


def test_neither_bytecode_nor_files_that_were_not_read_are_run(code: Path) -> None:
    """Bytecode that claims to be a file's own would run in its place, and a package's folder may hold anything."""
    (code / "helper_of_it").mkdir()
    evil = code / "evil.txt"
    evil.write_text("VALUE = score = lambda **_: [666]\n")
    file = write(code / "rewards.py", "VALUE", "from helper_of_it import VALUE")
    (code / "helper_of_it/__init__.py").write_text(
        "VALUE = 1\n__import__('importlib').import_module(__name__ + '.more')"
    )
    for place in (code / "rewards.py", code / "helper_of_it/__init__.py"):
        cached = py_compile.compile(str(place))
        assert cached
        py_compile.compile(str(evil), cached, invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH)
    (code / "helper_of_it/more.py").write_text(f"open({str(code / 'executed')!r}, 'w').close()")
    with pytest.raises(Exception, match=r"No module named 'helper_of_it\.more'"):
        scored(file, lambda codes: None)
    (code / "helper_of_it/__init__.py").write_text("VALUE = 1\n")
    assert scored(file, lambda codes: None) == 1
    assert not (code / "executed").exists()


def test_the_code_that_runs_is_the_code_that_was_shown_even_if_the_file_changes(code: Path) -> None:
    file = write(code / "rewards.py", "1")
    assert scored(file, lambda codes: write(file, "2") and None) == 1


def test_code_is_shown_as_python_decodes_it(code: Path) -> None:
    """A comment in one encoding may be a statement in another."""
    (code / "rewards.py").write_text("# coding: unicode_escape\n# harmless \\u000aimport os\n")
    (found,) = code_of(f"{code}/rewards.py:score")
    assert "\nimport os" in found.source


def test_a_module_is_found_without_importing_it_and_trusted_with_its_function(
    store: TrustedCode, code: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(code)
    (code / "installed_one").mkdir()
    marker = f"open({str(code / 'executed')!r}, 'w').close()"
    (code / "installed_one/__init__.py").write_text(marker)
    write(code / "installed_one/rewards.py", "1", marker + "\ndef other(**_): return [2]")
    with pytest.raises(UntrustedCodeError, match="installed_one"):
        scored("installed_one.rewards", store.check)
    assert not (code / "executed").exists()
    (found,) = code_of("installed_one.rewards:score")
    assert found.source == (code / "installed_one/rewards.py").read_text()
    store.remember([found])
    assert scored("installed_one.rewards", store.check) == 1
    with pytest.raises(UntrustedCodeError):
        store.check(code_of("installed_one.rewards:other"))


@pytest.mark.parametrize(
    "path", ["subprocess:Popen", "os:system", "builtins:exec", "trainer.evaluation.held_out:evaluate"]
)
def test_modules_found_on_every_machine_are_not_trusted_automatically(path: str) -> None:
    with pytest.raises(UntrustedCodeError):
        build_rewards(RewardConfig(sources=[path]), trust=trust_none)


def test_trust_is_kept_in_a_private_file_and_deleting_a_line_revokes_it(store: TrustedCode, code: Path) -> None:
    codes = [*code_of(f"{write(code / 'a.py', '1')}:score"), *code_of(f"{write(code / 'b.py', '2')}:score")]
    store.remember(codes)
    store.remember(codes)
    assert stat.S_IMODE(store.file.stat().st_mode) == 0o600
    assert stat.S_IMODE(store.file.parent.stat().st_mode) == 0o700
    lines = [line for line in store.file.read_text().splitlines() if line]
    assert [json.loads(line) for line in lines] == [{"code": one.name, "sha256": one.sha256} for one in codes]
    assert TrustedCode(store.file).untrusted(codes) == []
    store.file.write_text(f"{{'half\n[]\n{{}}\n{lines[1]}\n")
    assert TrustedCode(store.file).untrusted(codes) == codes[:1]
    store.file.unlink()
    assert TrustedCode(store.file).untrusted(codes) == codes


def test_a_list_that_others_could_have_written_is_refused(store: TrustedCode, code: Path) -> None:
    codes = code_of(f"{write(code / 'a.py', '1')}:score")
    store.remember(codes)
    elsewhere = code / "elsewhere"
    elsewhere.write_bytes(store.file.read_bytes())
    elsewhere.chmod(0o600)
    store.file.chmod(0o666)
    for reported, change in (
        ("chmod 600", lambda: None),
        ("remove it", lambda: store.file.symlink_to(elsewhere)),
        ("not a file", lambda: os.mkfifo(store.file, 0o600)),
        ("not a file", lambda: store.file.mkdir(0o700)),
    ):
        if reported != "chmod 600":
            store.file.unlink()
        change()
        with pytest.raises(StorageError, match=reported):
            TrustedCode(store.file).check(codes)


def test_trust_that_cannot_be_saved_lasts_for_this_process(code: Path) -> None:
    store = TrustedCode(write(code / "a.py", "1") / "trusted-code.jsonl")  # a file where a folder should be
    codes = code_of(f"{code}/a.py:score")
    with pytest.raises(StorageError):
        store.remember(codes)
    store.check(codes)


def test_what_is_passed_on_trusts_the_same_version_only(code: Path) -> None:
    file = write(code / "a.py", "1") / "trusted-code.jsonl"
    store, codes = TrustedCode(file), [*code_of(f"{code}/a.py:score"), *code_of("time:sleep")]
    with pytest.raises(StorageError):
        store.remember(codes)
    child = TrustedCode(file, store.passed_on())
    child.check(codes)
    assert child.passed_on() == store.passed_on()
    write(code / "a.py", "2")
    with pytest.raises(UntrustedCodeError):
        child.check(code_of(f"{code}/a.py:score"))
    with pytest.raises(UntrustedCodeError):
        TrustedCode(code / "other.jsonl", "not JSON\n[]\n{}").check(codes)
