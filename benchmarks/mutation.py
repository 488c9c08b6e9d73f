"""Measure the mutation score of a file: break it on purpose, one place at a time, and see whether a test fails.

A mutant (see mutants.py) is killed if a test of the file fails, crashes or does not end. Otherwise it survives: either
a test is missing, or the mutant computes the same. Mutants that compute the same are listed, with the reason, in
mutation_equivalents.toml and do not count. Nothing is random; the files are changed in a copy of the project.

Run: .venv/bin/python benchmarks/mutation.py [--file maths steps] [--only 62 90-110] [--jobs 2] [--list]
"""

from __future__ import annotations

import argparse
import gc
import json
import multiprocessing
import os
import queue
import resource
import shutil
import signal
import sys
import tempfile
import time
import tomllib
from collections.abc import Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from types import FrameType

import pytest
from hypothesis import Phase, settings
from mutants import Mutant, mutants_of

ROOT = Path(__file__).parent.parent
COPIED = ("trainer", "tests", "workbench", "pyproject.toml")
# The tests of each file, quickest first.
TESTS = {
    "maths": ("test_maths*.py", "test_preference_losses.py", "test_dpo_losses.py", "test_estimators*.py"),
    "experience": ("test_experience*.py", "test_steps*.py"),
    "steps": ("test_steps*.py", "test_estimators*.py"),
    "estimators": ("test_estimators*.py", "test_steps*.py"),
    "kl_controller": ("test_kl_controller*.py",),
}
# Imported once, by a server process in which MLX has not started any threads; each run is a fork of it. On a Mac, each
# run is a new process instead, because there MLX may already use the GPU in the server.
PRELOADED = ["trainer", "pytest", "hypothesis.strategies", "mlx.nn", "mlx.utils", "mlx_lm.utils", "pydantic"]
IMPORTED_BEFORE = "ignore::pytest.PytestAssertRewriteWarning"
LARGEST_CPU_S, LARGEST_S = 60, 1800  # the tests of a file take a few seconds; anything longer is an endless loop
REACHED = "reached.json"


class Bench:
    """Copies of the project, one per job, in which the mutants of one module are tested."""

    def __init__(self, module: str, jobs: int, folder: Path) -> None:
        self.name = file_of(module)
        self.source = (ROOT / self.name).read_bytes()
        patterns = TESTS.get(module, (f"test_{module}*.py",))
        found = [path for pattern in patterns for path in sorted((ROOT / "tests").rglob(pattern))]
        self._tests = [str(path.relative_to(ROOT)) for path in found]
        if not self._tests:
            sys.exit(f"no tests for {self.name}: none of {', '.join(patterns)} is in tests/")
        copies = [folder / f"{module}-{number}" for number in range(jobs)]
        for copy in copies:
            for part in COPIED:
                copy_part = shutil.copy2 if (ROOT / part).is_file() else shutil.copytree
                copy.mkdir(exist_ok=True)
                copy_part(ROOT / part, copy / part)
        self._copies: queue.Queue[Path] = queue.Queue()
        self._copies.put(copies[0])
        self._quickest: dict[str, list[str]] = self._tests_by_function(copies[0])
        for copy in copies[1:]:
            self._copies.put(copy)

    def _tests_by_function(self, copy: Path) -> dict[str, list[str]]:
        """Return the tests that reach each function, quickest first, found in `copy`, the only one yet.

        Exits if the unchanged file fails its tests or a broken one passes: then a score would mean nothing.
        """
        if self._run(self.source, self._tests, self.name) != "survived":
            sys.exit(f"the tests of {self.name} fail without any mutant: see {' '.join(self._tests)}")
        reached = json.loads((copy / REACHED).read_text())
        if self._run(b"raise RuntimeError\n" + self.source, self._tests) == "survived":
            sys.exit(f"the tests do not import the {self.name} that is changed")
        quickest: dict[str, list[str]] = {}
        for test, (_, functions) in sorted(reached.items(), key=lambda item: item[1][0]):
            for function in functions:
                quickest.setdefault(function, []).append(test)
        return quickest

    def attempt(self, mutant: Mutant) -> str:
        """Return "survived", "killed" or "timed out": run the tests that reach the mutant, then all if it survives."""
        broken = mutant.applied(self.source)
        near = self._quickest.get(mutant.function)
        verdict = self._run(broken, near) if near else "survived"
        return self._run(broken, self._tests) if verdict == "survived" else verdict

    def _run(self, source: bytes, tests: Sequence[str], watched: str = "") -> str:
        copy = self._copies.get()
        try:
            path = copy / self.name
            path.write_bytes(source)
            for stale in (path.parent / "__pycache__").glob(f"{path.stem}.*.pyc"):
                stale.unlink()  # Python compares only size and time in seconds, which mutants share
            process = multiprocessing.Process(target=run_tests, args=(copy, tests, watched))
            process.start()
            process.join(LARGEST_S)
            process.kill()
            process.join()
        finally:
            self._copies.put(copy)
        if process.exitcode in (-signal.SIGXCPU, -signal.SIGKILL):
            return "timed out"
        return "killed" if process.exitcode else "survived"


def run_tests(copy: Path, tests: Sequence[str], watched: str) -> None:
    """Run the tests of `copy` up to the first that fails, and end this process with pytest's status.

    watched: a file; the functions of it that each test calls are written to REACHED.
    """
    resource.setrlimit(resource.RLIMIT_CPU, (LARGEST_CPU_S, LARGEST_CPU_S + 1))
    for name in [name for name in sys.modules if name.partition(".")[0] == "trainer"]:
        del sys.modules[name]
    gc.freeze()  # pytest collects garbage, which would search all loaded modules
    sys.dont_write_bytecode = False  # only one file changes between runs
    os.chdir(copy)
    sys.path.insert(0, str(copy))
    disabled = [f"-pno:{plugin}" for plugin in ("cacheprovider", "xdist", "anyio")]
    arguments = ["-x", "--tb=no", f"--basetemp={copy}-temporary", *disabled, "-W", IMPORTED_BEFORE, *tests]
    watch = Watch(str(copy / watched))
    with Path("output.txt").open("w") as output, redirect_stdout(output), redirect_stderr(output):
        status = pytest.main(arguments, plugins=[watch if watched else Unshrunk()])
    if watched:
        Path(REACHED).write_text(json.dumps(watch.reached))
    os._exit(status)  # without MLX's cleanup, which is slow


class Unshrunk:
    """Pytest plugin that stops hypothesis from shrinking failing examples, which would take most of the time."""

    def pytest_collection_finish(self) -> None:
        """Change the settings that the tests have loaded by now."""
        now = settings()
        phases = [phase for phase in now.phases if phase not in (Phase.shrink, Phase.explain)]
        settings.register_profile("unshrunk", now, phases=phases)
        settings.load_profile("unshrunk")


class Watch:
    """Pytest plugin that records the CPU time of each test, and the functions of one file that it calls."""

    def __init__(self, file: str) -> None:
        self._file = file
        self.reached: dict[str, tuple[float, list[str]]] = {}  # by test: seconds of CPU, dotted names

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        """Trace a test, including its fixtures."""
        functions: set[str] = set()

        def called(frame: FrameType, event: str, argument: object) -> None:
            if event == "call" and frame.f_code.co_filename == self._file:
                functions.add(frame.f_code.co_qualname.replace(".<locals>", ""))

        start = time.process_time()
        sys.setprofile(called)
        try:
            return (yield)
        finally:
            sys.setprofile(None)
            self.reached[item.nodeid] = (time.process_time() - start, sorted(functions))


def file_of(module: str) -> str:
    """Return the path of a module of the trainer, relative to the root."""
    return str(next((ROOT / "trainer").rglob(f"{module}.py")).relative_to(ROOT))


def equivalents_of(module: str) -> dict[tuple[str, str], str]:
    """Return the reasons of the listed equivalent mutants, by function and changed line."""
    listed = tomllib.loads((Path(__file__).parent / "mutation_equivalents.toml").read_text())
    return {(each["function"], line): each["why"] for each in listed.get(module, []) for line in each["lines"]}


def chosen(mutants: Sequence[Mutant], lines: Sequence[str]) -> list[Mutant]:
    """Return the mutants on `lines`, given as numbers or ranges, or all mutants if there are none."""
    ranges = [range(int(first), int(last or first) + 1) for first, _, last in (text.partition("-") for text in lines)]
    return [mutant for mutant in mutants if not ranges or any(mutant.line in each for each in ranges)]


def score(module: str, options: argparse.Namespace, folder: Path) -> None:
    """Test the mutants of a module; print those that survive, then the score."""
    name, listed = file_of(module), equivalents_of(module)
    mutants = chosen(mutants_of((ROOT / name).read_bytes()), options.only)
    if options.list:
        print("\n".join(f"{name}:{mutant.line}: {mutant.shown}" for mutant in mutants))
        return
    bench = Bench(module, options.jobs, folder)
    start, survived, equivalent, timed_out = time.monotonic(), 0, 0, 0
    with ThreadPoolExecutor(options.jobs) as pool:
        verdicts = pool.map(bench.attempt, mutants)
        for number, (mutant, verdict) in enumerate(zip(mutants, verdicts, strict=True), 1):
            print(f"\r{bench.name}: {number} of {len(mutants)}", end="\r", file=sys.stderr, flush=True)
            known = (mutant.function, mutant.shown) in listed
            equivalent += known
            timed_out += verdict == "timed out"
            if verdict != "survived" and known:
                print(f"{bench.name}:{mutant.line}: listed as equivalent, but {verdict}: {mutant.shown}", flush=True)
            elif verdict == "survived" and not known:
                survived += 1
                print(f"{bench.name}:{mutant.line}: {mutant.function}: {mutant.shown}", flush=True)
    if not options.only:
        current = {(mutant.function, mutant.shown) for mutant in mutants}
        for function, line in sorted(set(listed) - current):
            print(f"{bench.name}: listed as equivalent, but not a mutant: {function}: {line}")
    counted = len(mutants) - equivalent
    killed = counted - survived
    print(
        f"{bench.name}: {killed} of {counted} killed, {killed / max(counted, 1):.1%} ({timed_out} timed out); "
        f"{equivalent} more are equivalent; {time.monotonic() - start:.0f} s",
        flush=True,
    )


def main() -> None:
    """Score each requested file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--file", nargs="+", default=list(TESTS), help="modules of trainer (default: %(default)s)")
    parser.add_argument("--only", nargs="+", default=[], metavar="LINE", help="lines or ranges of lines: 62 90-110")
    parser.add_argument("--jobs", type=int, default=1, help="mutants at a time (default: %(default)s)")
    parser.add_argument("--list", action="store_true", help="show the mutants and run nothing")
    options = parser.parse_args()
    multiprocessing.set_start_method("forkserver" if sys.platform == "linux" else "spawn")
    multiprocessing.set_forkserver_preload(PRELOADED)
    with tempfile.TemporaryDirectory(prefix="mutation-") as folder:
        for module in options.file:
            score(Path(module).stem, options, Path(folder))


if __name__ == "__main__":
    main()
