"""A judge behind an OpenAI-compatible endpoint: concurrent requests, bounded, and repeated when they fail."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import queue
import random
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from http import HTTPStatus
from typing import Any, NamedTuple

import httpx2

from trainer.config.reward_sources import JudgeSource
from trainer.errors import RewardError, one_line, shortened
from trainer.reward_types import Wait, refuse_to_wait
from trainer.rewards.judge_answers import Messages, Reply

_POLL = 0.1  # seconds
_FIRST_DELAY, _LONGEST_DELAY = 0.5, 30.0  # seconds before a request is repeated
_LONGEST_RETRY_AFTER = 600.0  # seconds
_LARGEST = 1 << 20  # bytes of an answer with everything around it
_REFUSED = (400, 413, 422)  # one request, as for its length
_BUSY = (429, 503)
_NEVER = (401, 403, 404)  # repeating it does not help
_PROBE_TOKENS = 16
_PROBE: Messages = [{"role": "user", "content": "Answer with the JSON object {}."}]


class Failure(NamedTuple):
    """Why a request has no answer."""

    why: str
    after: float = 0.0  # seconds for which the endpoint wants to be left alone
    is_busy: bool = False
    is_final: bool = False


@dataclass(slots=True)
class Endpoint:
    """Sends requests to an endpoint and returns its replies.

    A request that fails is repeated with growing delays, as `Retry-After` wants it. After `source.retries` failures of
    one, the judge is down if a short request fails too, and `wait` is called; else only this one has no answer. One
    that the endpoint refuses has none either. between: called several times a second; may raise to end the asking.

    schema: of the answers, in JSON Schema; None not to send it. Raises RewardError without the key.
    """

    source: JudgeSource
    schema: dict[str, Any] | None
    between: Callable[[], None] = lambda: None
    wait: Wait = refuse_to_wait
    key: str = field(default="", repr=False)

    def __post_init__(self) -> None:
        name = self.source.key_env
        self.key = os.environ.get(name, "").strip() if name else ""
        if name and not self.key:
            raise RewardError(
                f"reward source 'judge': the environment variable {name} has no API key: export it before the start, "
                "or leave key_env empty if the endpoint needs none"
            )
        if not (self.key.isascii() and self.key.isprintable()):
            raise RewardError(f"reward source 'judge': the key in {name} has characters that no header can carry")

    def body(self, messages: Messages) -> dict[str, Any]:
        """Return a request: what the answer depends on, besides the endpoint."""
        source = self.source
        found: dict[str, Any] = {"model": source.model, "messages": messages, "temperature": source.temperature}
        if self.schema is not None:
            schema = {"name": "grades", "strict": True, "schema": self.schema}
            found["response_format"] = {"type": "json_schema", "json_schema": schema}
        return found | {"max_tokens": source.max_tokens} | source.options

    def check(self) -> None:
        """Raise RewardError if the endpoint does not answer, or wants a key, or lacks the model."""
        wait, self.wait = self.wait, refuse_to_wait
        try:
            self([_PROBE], lambda place, reply: self._raise(reply.problem))
        finally:
            self.wait = wait

    def _raise(self, problem: str) -> None:
        if problem:
            raise RewardError(problem)

    def __call__(self, requests: Sequence[Messages], done: Callable[[int, Reply], None]) -> None:
        """Ask all of `requests`; `done` gets the place and the reply of each, on this thread, as they come."""
        asking = _Asking(self, requests)
        try:
            for _ in requests:
                while (found := asking.next()) is None:
                    self.between()
                    if asking.down:
                        self.wait(next(iter(asking.down.values())), lambda: not asking.down)
                        asking.repeat_now()
                done(*found)
        finally:
            asking.end()


class _Asking:
    """Requests under way on a thread of their own, because sockets must not wait for the trainer, nor it for them."""

    def __init__(self, endpoint: Endpoint, requests: Sequence[Messages]) -> None:
        self.down: dict[int, str] = {}  # by place: why a request waits for the endpoint to come back
        self._endpoint = endpoint
        self._source = endpoint.source
        self._requests = requests
        self._replies: queue.SimpleQueue[tuple[int, Reply] | BaseException] = queue.SimpleQueue()
        self._loop = asyncio.new_event_loop()
        self._task = self._loop.create_task(self._all())
        self._now = asyncio.Event()
        self._thread = threading.Thread(target=self._run, name="judge", daemon=True)
        self._thread.start()

    # On the caller's thread

    def next(self) -> tuple[int, Reply] | None:
        """Return a reply and its place; None if none has come for a moment."""
        try:
            found = self._replies.get(timeout=_POLL)
        except queue.Empty:
            return None
        if isinstance(found, BaseException):
            raise found
        return found

    def repeat_now(self) -> None:
        """Repeat what waits, at once."""
        self.down.clear()
        self._soon(self._wake)

    def end(self) -> None:
        """End the requests under way, and the thread."""
        self._soon(self._task.cancel)
        self._thread.join()

    def _soon(self, call: Callable[[], object]) -> None:
        with contextlib.suppress(RuntimeError):  # it has ended
            self._loop.call_soon_threadsafe(call)

    # On its own

    def _run(self) -> None:
        with contextlib.closing(self._loop):
            try:
                self._loop.run_until_complete(self._task)
            except asyncio.CancelledError:
                pass
            except BaseException as error:  # noqa: BLE001  it is raised on the caller's thread
                self._replies.put(error)

    def _wake(self) -> None:
        self._now.set()
        self._now.clear()

    async def _all(self) -> None:
        limit = asyncio.Semaphore(self._source.concurrency)
        key = self._endpoint.key
        headers = {"Accept-Encoding": "identity", "Content-Type": "application/json"}
        headers |= {"Authorization": f"Bearer {key}"} if key else {}
        limits = httpx2.Limits(max_connections=None)  # `limit` bounds them, and waits outside of the timeout
        proxies = not self._source.is_here  # to this machine itself none
        # No redirects: they could take the key elsewhere.
        async with (
            httpx2.AsyncClient(headers=headers, limits=limits, timeout=None, trust_env=proxies) as client,
            asyncio.TaskGroup() as group,
        ):
            for place, messages in enumerate(self._requests):
                group.create_task(self._answer(client, limit, place, messages))

    async def _answer(
        self, client: httpx2.AsyncClient, limit: asyncio.Semaphore, place: int, messages: Messages
    ) -> None:
        failures, retries = 0, self._source.retries
        while True:
            async with limit:
                found = await self._attempt(client, messages)
                if isinstance(found, Failure):
                    failures = retries + 1 if found.is_final else failures + 1
                    if failures > retries and not (found.is_busy or found.is_final):
                        probed = await self._attempt(client, _PROBE)
                        found = Reply("", found.why) if isinstance(probed, Reply) and not probed.problem else found
            if isinstance(found, Reply):
                break
            if failures > retries:
                self.down[place] = found.why
            delay = min(_FIRST_DELAY * 2 ** min(failures, 10), _LONGEST_DELAY) * random.uniform(0.5, 1.0)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(max(delay, found.after)):
                    await self._now.wait()
                failures = 0
        self._replies.put((place, found))
        self.down.pop(place, None)

    async def _attempt(self, client: httpx2.AsyncClient, messages: Messages) -> Reply | Failure:
        source, content = self._source, b""
        place, body = f"{source.url}/chat/completions", self._endpoint.body(messages)
        if messages is _PROBE:  # whatever it says: a small model would go on and on
            body["max_tokens"] = _PROBE_TOKENS
        try:
            async with (
                asyncio.timeout(source.timeout),
                client.stream("POST", place, content=json.dumps(body)) as response,
            ):
                async for part in response.aiter_raw():
                    content += part
                    if len(content) > _LARGEST:
                        return self._failure(f"answered more than {_LARGEST >> 10} KiB")
        except TimeoutError:
            return self._failure(f"did not answer in {source.timeout:g} s (timeout)")
        except (httpx2.HTTPError, httpx2.InvalidURL, OSError) as error:
            return self._failure(f"cannot be reached: {one_line(error)}")
        if self._endpoint.key:
            content = content.replace(self._endpoint.key.encode(), b"(the key)")
        status = response.status_code
        if status == HTTPStatus.OK:
            return _reply(content) or self._failure("did not answer with a chat completion: does url end in /v1?")
        with contextlib.suppress(ValueError):
            status = HTTPStatus(status)
        said = " ".join(f"answered {int(status)} {getattr(status, 'phrase', '')}: {_message(content)}".split())
        hint = "" if status not in _NEVER else f"; is '{source.model}' there, and does url end in /v1?"
        if status in (401, 403):
            hint = f"; check the key in {source.key_env}" if source.key_env else "; name the key's variable in key_env"
        failure = self._failure(said, hint)
        if status in _REFUSED:
            return Reply("", failure.why)
        after = _seconds(response.headers.get("Retry-After", ""))
        return failure._replace(after=after, is_busy=status in _BUSY, is_final=status in _NEVER)

    def _failure(self, what: str, hint: str = "") -> Failure:
        return Failure(f"the judge at {self._source.url} {shortened(' '.join(what.split()), 200)}{hint}")


def _reply(content: bytes) -> Reply | None:
    """Return the reply in the body of an answer; None if that is no chat completion."""
    try:
        values = json.loads(content)
        text = values["choices"][0]["message"].get("content") or ""
        usage = values.get("usage") or {}
        read, written = (float(usage.get(name, "nan")) for name in ("prompt_tokens", "completion_tokens"))
        return Reply.of(text, read, written)
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError):
        return None


def _message(content: bytes) -> str:
    """Return what an endpoint says of an error."""
    try:
        found = json.loads(content)
        found = found.get("error", found)
        return str(found.get("message", found) if isinstance(found, dict) else found)
    except (ValueError, AttributeError, RecursionError):
        return content[:1000].decode("utf-8", "replace")


def _seconds(retry_after: str) -> float:
    """Return the seconds of a Retry-After header, which has them, or a date; 0 without one."""
    try:
        found = float(retry_after)
    except ValueError:
        try:
            found = parsedate_to_datetime(retry_after).timestamp() - time.time()
        except (ValueError, TypeError, OverflowError):
            return 0.0
    return min(max(found, 0.0), _LONGEST_RETRY_AFTER) if found == found else 0.0
