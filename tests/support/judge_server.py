"""A judge's endpoint on loopback: it answers by a rule, and fails as a test asks it to."""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Self

RUBRIC = """\
instructions = "Answers are for children."
scale = 10
[[criteria]]
name = "kind"
description = "Is it kind?"
weight = 3.0
[[criteria]]
name = "short"
description = "Is it short?"
"""
_RESPONSE = re.compile(r"<(response(?:_[AB])?)>\n(.*?)\n</\1>", re.DOTALL)


def write_rubric(folder: Path, text: str = RUBRIC) -> Path:
    """Write a rubric of two criteria, of which the first counts three times."""
    path = folder / "rubric.toml"
    path.write_text(text)
    return path


def graded(kind: Any, short: Any) -> str:
    """Return an answer in the JSON that the rubric asks for."""
    return json.dumps({"reason": "It is.", "kind": kind, "short": short})


def by_length(response: str) -> str:
    """Return marks that depend on the response alone."""
    return graded(len(response) % 11, 10 - len(response) % 7)


class JudgeServer:
    """Endpoint in a thread. `url` is its base.

    answer: returns the text of the model's answer to a response, or to two, or the name of one of `FAULTS`. faults:
    what happens to the next requests instead, in their order. requests: bodies that were answered by `answer`; keys:
    Authorization headers of all. `let_go` ends the requests that "hang".
    """

    def __init__(self, answer: Callable[..., str] = by_length) -> None:
        self.answer = answer
        self.faults: list[str] = []
        self.requests: list[dict[str, Any]] = []
        self.keys: list[str | None] = []
        self.arrived = threading.Semaphore(0)  # once for each request
        self.times: list[float] = []  # of arrival, on the monotonic clock
        self.let_go = threading.Event()
        self.most = self.now = 0  # requests at a time
        self.lock = threading.Lock()
        owner = self

        class Handler(_Handler):
            judge = owner

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}/v1"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)
        self._thread.start()

    @property
    def responses(self) -> list[str]:
        """Return the responses that it was asked about."""
        return [text for body in self.requests for _, text in _RESPONSE.findall(body["messages"][-1]["content"])]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.let_go.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def source(self, rubric: Path, **changes: Any) -> dict[str, Any]:
        """Return the table of a reward source that asks this judge."""
        return {"kind": "judge", "url": self.url, "model": "tiny", "rubric": str(rubric), **changes}


class _Handler(BaseHTTPRequestHandler):
    judge: JudgeServer

    def do_POST(self) -> None:
        judge, size = self.judge, int(self.headers["Content-Length"])
        body = json.loads(self.rfile.read(size))
        with judge.lock:
            judge.keys.append(self.headers["Authorization"])
            judge.times.append(time.monotonic())
            judge.now += 1
            judge.most = max(judge.most, judge.now)
            fault = judge.faults.pop(0) if judge.faults else ""
        judge.arrived.release()
        found = [text for _, text in _RESPONSE.findall(body["messages"][-1]["content"])]
        text = fault or (judge.answer(*found) if found else "{}")
        with judge.lock:
            judge.now -= 1
            if text not in FAULTS:
                judge.requests.append(body)
        try:
            FAULTS.get(text, _complete)(self, text)
        except (BrokenPipeError, ConnectionResetError):  # the client has gone
            self.close_connection = True

    def send(self, status: int, content: str | bytes, **headers: str) -> None:
        data = content.encode() if isinstance(content, str) else content
        self.send_response(status)
        for name, value in ({"Content-Length": str(len(data))} | headers).items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: Any) -> None:
        """Print nothing."""


def _complete(handler: _Handler, text: str, before: str = "") -> None:
    message = {"role": "assistant", "content": text}
    usage = {"prompt_tokens": 100, "completion_tokens": 20}
    handler.send(200, before + json.dumps({"choices": [{"message": message}], "usage": usage}))


def _hang(handler: _Handler, _: str) -> None:
    handler.judge.let_go.wait()


def _half(handler: _Handler, _: str) -> None:
    handler.send(200, '{"choices": [{"mess', Content_Length="500")
    handler.close_connection = True


def _error(status: int, **headers: str) -> Callable[[_Handler, str], None]:
    def send(handler: _Handler, _: str) -> None:
        said = f"no: {handler.headers['Authorization']}"
        handler.send(status, json.dumps({"error": {"message": said}}), **headers)

    return send


FAULTS: dict[str, Callable[[_Handler, str], None]] = {
    "hang": _hang,
    "half": _half,
    "400": _error(400),
    "401": _error(401),
    "404": _error(404),
    "429": _error(429, Retry_After="2"),
    "429 at a date": _error(429, Retry_After="Wed, 21 Oct 2015 07:28:00 GMT"),
    "429 in words": _error(429, Retry_After="later"),
    "500": _error(500),
    "503": _error(503),
    "redirect": _error(302, Location="/v1/elsewhere"),
    "html": lambda handler, _: handler.send(200, "<html>log in first</html>"),
    "no choices": lambda handler, _: handler.send(200, json.dumps({"choices": []})),
    "endless": lambda handler, _: _complete(handler, graded(1, 1), " " * (2 << 20)),
}
"""What may happen instead of an answer."""


def unused_url() -> str:
    """Return the base of an endpoint where nobody listens."""
    with ThreadingHTTPServer(("127.0.0.1", 0), _Handler) as server:
        return f"http://127.0.0.1:{server.server_address[1]}/v1"
