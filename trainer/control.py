"""How another thread tells the trainer to stop."""

from __future__ import annotations

import threading


class Interrupted(Exception):  # noqa: N818  nothing went wrong
    """Raised inside the trainer, between two token steps or micro-batches, when it was told to stop."""

    def __init__(self, reason: str, *, save: bool) -> None:
        self.reason = reason
        self.save = save
        super().__init__(reason)


class Control:
    """Requests to a running trainer; every method may be called from any thread and returns at once."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._request: tuple[str, bool] | None = None

    def stop(self, reason: str = "stopped by the user") -> None:
        """End the run after a checkpoint of the last whole iteration; honoured within a token step or micro-batch."""
        with self._lock:
            self._request = self._request or (reason, True)

    def abort(self, reason: str = "aborted by the user") -> None:
        """End the run at once, without a checkpoint."""
        with self._lock:
            self._request = (reason, False)

    def check(self) -> None:
        """Raise Interrupted if the run was told to end. Called by the trainer between its smallest steps."""
        with self._lock:
            request = self._request
        if request is not None:
            raise Interrupted(request[0], save=request[1])
