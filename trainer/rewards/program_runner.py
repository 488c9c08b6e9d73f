"""Run a program that a model wrote against tests, apart from everything else on this machine. Linux only.

To trust this file means: programs that a model writes run on this machine, as here.

- Each program has its own user, process, network, mount and IPC namespaces: it sees no other process, has no network
  and no capabilities, and sees Python, the system's programs and libraries, all read-only, and an empty folder in
  memory.
- Time, memory, processes and the size of files are limited. When the first process of the namespace ends, or the
  trainer does, the kernel kills all the others and drops their files.
- Tests never share a process with the program. They call its functions over a pipe, and get plain values back, so the
  program cannot patch the tests, know what they expect, return an object that equals everything, or exit early and
  pass.

The trainer runs this text by `python -IS -c`. It reads one line of JSON from stdin (program, tests, limits), and prints
one line of JSON for each test: whether it passed, or why it did not.
"""

from __future__ import annotations

import builtins
import contextlib
import ctypes
import importlib
import io
import json
import linecache
import operator
import os
import pickle
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import IO, Any

_NAMESPACES = 0x10000000 | 0x20000 | 0x20000000 | 0x40000000 | 0x8000000 | 0x4000000  # user, mount, pid, net, ipc, uts
_PRIVATE, _BIND, _NOSUID_NODEV = 0x44000, 0x5000, 6  # flags of mount, the first two recursive
_MOUNT_SETATTR, _RECURSIVE, _READ_ONLY_NOSUID = 442, 0x8000, 3
_DEATH_SIGNAL, _DUMPABLE, _SUBREAPER, _NO_NEW_PRIVILEGES = 1, 4, 36, 38  # of prctl
_NOBODY = 65534
_ROOT = "/proc"  # a folder that every Linux has and the program must not see, to build its file system on
_PYTHON = os.path.realpath(sys.executable)
_SEEN = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/nix", os.path.realpath(sys.base_prefix))
_SEEN_FILES = ("/dev/null", "/dev/zero", "/dev/urandom", "/etc/ld.so.cache")
_LONGEST = 300  # characters of a reason
_libc = ctypes.CDLL(None, use_errno=True)


def main() -> None:
    """Read what to run, and run it in a child of a child, which is the first process of its namespace."""
    request = json.loads(sys.stdin.buffer.readline())
    _die_with_parent()
    (unshared, unsharing), (mapping, mapped) = os.pipe(), os.pipe()
    _call("prctl", _SUBREAPER, 1, 0, 0, 0)
    child = os.fork()
    if not child:
        try:
            _call("unshare", _NAMESPACES)
            _die_with_parent()
            os.write(unsharing, b".")
            if not os.read(mapping, 1):
                os._exit(1)
            _build_root(request)
            if inner := os.fork():
                os.waitpid(inner, 0)
            else:
                _run_tests(request)
        except OSError as error:
            print(json.dumps({"error": str(error)}), flush=True)  # noqa: T201
        os._exit(0)
    signal.signal(signal.SIGALRM, lambda *_: os.kill(child, signal.SIGKILL))  # that ends all the others
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGALRM])
    signal.setitimer(signal.ITIMER_REAL, request["timeout"])
    os.close(unsharing)
    os.close(mapping)
    if os.read(unshared, 1):
        # Root has no limit on processes, so it becomes another user after the mounts.
        own = [(os.geteuid(), "uid_map"), (os.getegid(), "gid_map")]
        try:
            Path(f"/proc/{child}/setgroups").write_text("deny")
            for number, file in own:
                Path(f"/proc/{child}/{file}").write_text(f"1 {number} 1" if number else f"0 0 1\n1 {_NOBODY} 1")
            os.write(mapped, b".")
        except OSError as error:
            print(json.dumps({"error": str(error)}), flush=True)  # noqa: T201
    os.close(mapped)
    with contextlib.suppress(ChildProcessError):
        while True:
            os.wait()


def _call(name: str, *arguments: object) -> None:
    if getattr(_libc, name)(*arguments):
        error = ctypes.get_errno()
        raise OSError(error, f"{name}: {os.strerror(error)}")


def _die_with_parent() -> None:
    _call("prctl", _DEATH_SIGNAL, signal.SIGKILL, 0, 0, 0)


def _build_root(request: dict[str, Any]) -> None:
    """Make what the program is to see the root of the file system."""
    _call("mount", None, b"/", None, _PRIVATE, None)
    options = f"size={request['files']},nr_inodes=4096,mode=755".encode()
    _call("mount", b"tmpfs", _ROOT.encode(), b"tmpfs", _NOSUID_NODEV, options)
    for path in (*_SEEN, *_SEEN_FILES):
        place = Path(f"{_ROOT}{path}")
        if place.exists() or not Path(path).exists():
            continue
        place.parent.mkdir(parents=True, exist_ok=True)
        if Path(path).is_symlink():
            place.symlink_to(Path(path).readlink())
            continue
        place.mkdir() if Path(path).is_dir() else place.touch()
        _call("mount", path.encode(), str(place).encode(), None, _BIND, None)
        attributes = (ctypes.c_uint64 * 4)(_READ_ONLY_NOSUID)
        _call("syscall", _MOUNT_SETATTR, -100, str(place).encode(), _RECURSIVE, attributes, ctypes.sizeof(attributes))
    work = Path(f"{_ROOT}/work")
    work.mkdir()
    work.chmod(0o777)
    Path(f"{_ROOT}/program.py").write_text(request["program"], "utf-8", "replace")
    Path(f"{_ROOT}/runner.py").write_text(request["runner"], "utf-8")
    os.chroot(_ROOT)  # without capabilities, it is not left, and the kernel makes no user namespace in it
    os.chdir("/work")


def _run_tests(request: dict[str, Any]) -> None:
    """Report each test, in the first process of the namespace, which no process inside can kill, stop or trace."""
    os.setresgid(1, 1, 1)
    os.setresuid(1, 1, 1)
    _call("capset", (ctypes.c_uint32 * 2)(0x20080522), (ctypes.c_uint32 * 6)())
    _call("prctl", _NO_NEW_PRIVILEGES, 1, 0, 0, 0)
    _call("prctl", _DUMPABLE, 0, 0, 0, 0)
    _die_with_parent()
    seconds = int(request["timeout"]) + 1
    for name, value in (
        ("CPU", seconds),
        ("AS", request["memory"]),
        ("NPROC", request["processes"] + 1),
        ("FSIZE", request["files"]),
        ("NOFILE", 64),
        ("CORE", 0),
        ("MSGQUEUE", 0),
    ):
        resource.setrlimit(getattr(resource, f"RLIMIT_{name}"), (value, value))
    verdicts = os.fdopen(os.dup(1), "w")
    os.dup2(os.open(os.devnull, os.O_RDWR), 1)
    sys.stdout = sys.stderr = io.StringIO()  # what tests print
    for test in request["tests"]:
        try:
            reason = _calling_test(test) if isinstance(test, str) else _printing_test(test["input"], test["output"])
        except BaseException as error:  # noqa: BLE001  a test may raise anything
            reason = _described(error)
        with contextlib.suppress(OSError):
            os.kill(-1, signal.SIGKILL)  # everything but this process
            while True:
                os.waitpid(-1, 0)
        for folder in os.scandir("/work"):
            shutil.rmtree(folder, ignore_errors=True)
        print(json.dumps({"passed": not reason, "reason": reason[:_LONGEST]}), file=verdicts, flush=True)
        if reason and not request["partial"]:
            break
    os._exit(0)


def _described(error: BaseException) -> str:
    return "".join(traceback.format_exception_only(type(error), error)).strip().splitlines()[-1]


def _started(script: str, stdin: Any, stderr: Any) -> subprocess.Popen[bytes]:
    folder = tempfile.mkdtemp(dir="/work")
    environment = {"HOME": folder, "TMPDIR": folder, "PATH": "/usr/bin:/bin", "LANG": "C.UTF-8"}
    command, pipe = [_PYTHON, "-IS", script], subprocess.PIPE
    return subprocess.Popen(command, cwd=folder, env=environment, stdin=stdin, stdout=pipe, stderr=stderr)


def _printing_test(given: str, expected: str) -> str:
    """Return why the program does not print what is expected, or nothing if it does."""
    with tempfile.TemporaryFile(dir="/work") as stdin, tempfile.TemporaryFile(dir="/work") as stderr:
        stdin.write(given.encode())
        stdin.seek(0)
        child = _started("/program.py", stdin, stderr)
        assert child.stdout is not None
        most = 2 * len(expected.encode()) + 65536
        printed = child.stdout.read(most)
        if len(printed) == most:
            return f"printed more than {most:,} bytes"
        if status := child.wait():
            stderr.seek(max(0, stderr.seek(0, os.SEEK_END) - 2000))
            lines = stderr.read().decode(errors="replace").strip().splitlines()
            return lines[-1] if lines and status > 0 else f"ended with status {status}"
    found = printed.decode(errors="replace")
    wanted, lines = ([line.rstrip() for line in text.strip().splitlines()] for text in (expected, found))
    if wanted == lines:
        return ""
    place = 0
    while place < min(len(wanted), len(lines)) and wanted[place] == lines[place]:
        place += 1
    one, other = (repr(text[place][:100]) if place < len(text) else "the end" for text in (wanted, lines))
    return f"line {place + 1} of the output: expected {one}, found {other}"


def _calling_test(test: str) -> str:
    """Return why statements such as `assert add(2, 2) == 4` fail, or nothing if they pass."""
    child = _started("/runner.py", subprocess.PIPE, subprocess.DEVNULL)
    program = _Program(child)
    names: dict[str, Any] = {"__name__": "test"}
    for name, value in program.reply().items():
        if type(name) is str and not hasattr(builtins, name) and not name.startswith("__"):
            # A module that a test uses is the real one, even if the program has something of the name.
            is_module = name in sys.stdlib_module_names and re.search(rf"\b{re.escape(name)}\s*\.", test)
            names[name] = importlib.import_module(name) if is_module else value
    linecache.cache["test"] = (len(test), None, test.splitlines(keepends=True), "test")
    try:
        exec(compile(test, "test", "exec"), names)  # noqa: S102
    except AssertionError as error:
        frame = traceback.extract_tb(error.__traceback__)[-1]
        told = f": {error}" if str(error) else ""
        return f"{frame.line}{told}" + "".join(f"; found {value!r}"[:100] for value in program.returned)
    return ""


# The program's own process answers requests: an operation, an object, and arguments. Plain values are copied both ways,
# everything else stays there and is named by a number.

_PLAIN: set[type] = {
    *(type(None), bool, int, float, complex, str, bytes, bytearray, tuple, list, dict, set, frozenset, range, slice),
}
_FROM = {
    "collections": ["Counter", "OrderedDict", "defaultdict", "deque"],
    "datetime": ["date", "datetime", "time", "timedelta", "timezone"],
    "decimal": ["Decimal"],
    "fractions": ["Fraction"],
}
_PLAIN |= {getattr(importlib.import_module(module), name) for module, names in _FROM.items() for name in names}
_OPERATIONS: dict[str, Callable[..., Any]] = {
    "call": lambda of, /, *arguments, **keywords: of(*arguments, **keywords),
    "getattr": getattr,
    "len": len,
    "iter": iter,
    "next": next,
    "getitem": operator.getitem,
    "setitem": operator.setitem,
    "contains": operator.contains,
    "str": str,
    "repr": repr,
}


class _Reader(pickle.Unpickler):
    """Reader of plain values, which makes no other object, and of numbers for objects."""

    def __init__(self, file: IO[bytes], object_of: Callable[[int], Any]) -> None:
        super().__init__(file)
        self._object_of = object_of

    def persistent_load(self, number: int) -> Any:
        return self._object_of(number)

    def find_class(self, module: str, name: str) -> Any:
        for plain in _PLAIN:
            if (plain.__module__, plain.__qualname__) == (module, name):
                return plain
        raise TypeError(f"{module}.{name} is not a plain value")


class _Writer(pickle.Pickler):
    """Writer of plain values, and of numbers for objects."""

    def __init__(self, file: IO[bytes], number_of: Callable[[Any], int]) -> None:
        self._whole, self._to, self._number_of = io.BytesIO(), file, number_of
        super().__init__(self._whole, 5)

    def persistent_id(self, value: Any) -> int | None:
        is_plain = type(value) in _PLAIN or (type(value) is type and value in _PLAIN)
        return None if is_plain else self._number_of(value)

    def write(self, value: Any) -> None:
        self.dump(value)
        self._to.write(self._whole.getbuffer())
        self._to.flush()


class _Program:
    """The program's process, as a test sees it."""

    def __init__(self, child: subprocess.Popen[bytes]) -> None:
        assert child.stdin is not None
        assert child.stdout is not None
        self._requests, self._replies = child.stdin, child.stdout
        self.returned: list[Any] = []  # by the last call

    def reply(self, arguments: tuple[Any, ...] = ()) -> Any:
        """Return what the program returned, or raise what it raised; lists and the like that it changed are changed."""
        try:
            kind, value, after = _Reader(self._replies, lambda number: _Remote(self, number)).load()
        except EOFError:
            raise RuntimeError("the program ended") from None
        for given, changed in zip(arguments, after, strict=False):
            if type(given) is type(changed) and isinstance(given, list | dict | set):
                given.clear()
                given.extend(changed) if isinstance(given, list) else given.update(changed)
        if kind == "value":
            return value
        name, message = map(str, value)
        error = getattr(builtins, name, None)
        raised: Exception = RuntimeError(f"{name}: {message}")
        if isinstance(error, type) and issubclass(error, Exception):
            with contextlib.suppress(TypeError):  # an error that is made of more
                raised = error(message)
        raise raised

    def ask(self, operation: str, number: int, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
        """Have the program apply an operation to one of its objects, and return its reply."""

        def number_of(value: Any) -> int:
            if type(value) is _Remote:
                return value._number
            raise TypeError(f"a test can pass plain values to the program, not {type(value).__name__}")

        try:
            _Writer(self._requests, number_of).write((operation, number, arguments, keywords))
        except BrokenPipeError:
            raise RuntimeError("the program ended") from None
        value = self.reply(arguments)
        if operation == "call":
            self.returned = [value]
        return value


class _Remote:
    """An object of the program. It equals only itself, so the program cannot claim that it is what a test expects."""

    def __init__(self, program: _Program, number: int) -> None:
        self._program, self._number = program, number


def _forward(operation: str) -> None:
    def ask(self: _Remote, /, *arguments: Any, **keywords: Any) -> Any:
        return self._program.ask(operation, self._number, arguments, keywords)

    setattr(_Remote, f"__{operation}__", ask)


def serve() -> None:
    """Run the program, and answer what tests ask, in the program's own process."""
    requests, replies = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    nothing = os.open(os.devnull, os.O_RDWR)
    os.dup2(nothing, 0)
    os.dup2(nothing, 1)
    objects: list[Any] = []

    def number_of(value: Any) -> int:
        objects.append(value)
        return len(objects) - 1

    def answer(work: Callable[[], Any], arguments: tuple[Any, ...] = ()) -> None:
        try:
            found: tuple[str, Any, Any] = ("value", work(), arguments)
        except BaseException as error:  # noqa: BLE001  a program may raise anything
            found = ("raised", (type(error).__name__, str(error)[:_LONGEST]), arguments)
        _Writer(replies, number_of).write(found)

    def load() -> dict[str, Any]:
        names: dict[str, Any] = {"__name__": "program"}
        exec(compile(Path("/program.py").read_bytes(), "program.py", "exec"), names)  # noqa: S102
        return {name: value for name, value in names.items() if not name.startswith("__")}

    answer(load)
    while True:
        try:
            operation, number, arguments, keywords = _Reader(requests, objects.__getitem__).load()
        except EOFError:
            return
        answer(partial(_OPERATIONS[operation], objects[number], *arguments, **keywords), arguments)


if __name__ == "__main__":
    if sys.argv[0] == "-c":
        for _operation in _OPERATIONS:
            _forward(_operation)
        main()
    else:
        serve()
