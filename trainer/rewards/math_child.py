"""Child process that compares answers by math-verify, one pair a line, and may die of one that is hostile.

`9^9^9^9` takes for ever inside one operation on a number, where no exception can end it: the kernel ends the process.
A script of its own, so that it starts without the trainer.
"""

import contextlib
import json
import logging
import resource
import signal
import sys

SECONDS = 5  # of processor time, so that a busy machine changes no score
_MEMORY = 2 << 30  # bytes; not enforced on a Mac


def main() -> None:
    """Answer each line `[reference, answer]` by true, false, or null if the reference cannot be read."""
    from math_verify import LatexExtractionConfig, parse, verify

    logging.disable(logging.CRITICAL)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_AS, (_MEMORY, _MEMORY))

    def read(answer: str) -> list[object]:
        # Without the library's timeouts, which are alarms that an operation on a large number does not notice.
        return list(parse(f"\\boxed{{{answer}}}", [LatexExtractionConfig()], parsing_timeout=None))

    verify(read("x^2 - 1"), read("(x - 1)(x + 1)"), timeout_seconds=None)  # sympy loads what it needs
    print("ready", flush=True)  # noqa: T201
    for line in sys.stdin:
        signal.setitimer(signal.ITIMER_PROF, SECONDS)  # without a handler, its signal ends the process
        reference, answer = map(read, json.loads(line))
        right = verify(reference, answer, timeout_seconds=None) if reference else None
        signal.setitimer(signal.ITIMER_PROF, 0)
        print(json.dumps(right), flush=True)  # noqa: T201


if __name__ == "__main__":
    main()
