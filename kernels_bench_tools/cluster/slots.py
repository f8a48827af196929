"""The workers that a build may use, and what runs on each."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

PATIENCE_SECONDS = 30.0
"""How long to wait for a worker where there is none any more: a lost one may be started anew."""

_LOOK_SECONDS = 0.2
_SHUN_SECONDS = 2.0


class NoPlacesError(Exception):
    """There is no worker left, and none has come."""


@dataclass(eq=False)
class Place:
    """A worker."""

    address: str
    threads: int
    has_device: bool
    """Whether it may hold a device for a session."""
    known: set[str] = field(default_factory=set)
    """Digests of the contents that it has."""
    running: int = 0
    held: bool = False
    """Whether nothing but what holds it may be sent there."""
    shunned: float = 0.0
    """When it was last busy with a session of another build, by the monotonic clock."""


class Places:
    """Workers to choose from; safe to share between threads.

    Args:
        look: Called now and then while a worker is waited for; may call ``add`` and ``remove``, and raise.
    """

    def __init__(self, look: Callable[[], None]) -> None:
        self._look = look
        self._changed = threading.Condition(threading.RLock())
        self._places: dict[str, Place] = {}

    def add(self, place: Place) -> None:
        """Add a worker."""
        with self._changed:
            self._places[place.address] = place
            self._changed.notify_all()

    def remove(self, address: str) -> None:
        """Forget a worker."""
        with self._changed:
            self._places.pop(address, None)

    def get(self, address: str) -> Place | None:
        """Return the worker at an address, if it is one that may be used."""
        return self._places.get(address)

    def with_device(self) -> list[Place]:
        """Return the workers that may hold a device, by address."""
        with self._changed:
            return sorted(
                (one for one in self._places.values() if one.has_device), key=lambda one: one.address
            )

    def wait_for_device(self) -> list[Place]:
        """Return the workers that may hold a device, once there is one.

        Raises:
            NoPlacesError: There is none any more.
        """
        deadline = time.monotonic() + PATIENCE_SECONDS
        while True:
            self._look()
            if found := self.with_device():
                return found
            if time.monotonic() > deadline:
                raise NoPlacesError
            time.sleep(_LOOK_SECONDS)

    @property
    def threads(self) -> int:
        """How many cells that do not measure all workers can run at once."""
        with self._changed:
            return sum(place.threads for place in self._places.values())

    @contextmanager
    def taken(self, alone: bool) -> Iterator[Place]:
        """Take room on the worker with the most of it; ``alone``, on one with nothing else of this build.

        Raises:
            NoPlacesError: There is no worker any more.
        """
        place = self._wait(alone)
        try:
            yield place
        finally:
            with self._changed:
                place.running -= 1
                if alone:
                    place.held = False
                self._changed.notify_all()

    @contextmanager
    def held(self, place: Place) -> Iterator[None]:
        """Send nothing else to a worker meanwhile."""
        with self._changed:
            place.held = True
        try:
            yield
        finally:
            with self._changed:
                place.held = False
                self._changed.notify_all()

    def shun(self, place: Place) -> None:
        """Prefer others for a moment: another build measures there."""
        place.shunned = time.monotonic()

    def _wait(self, alone: bool) -> Place:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while True:
            self._look()
            with self._changed:
                place = self._choose(alone)
                if place is not None:
                    place.running += 1
                    place.held = place.held or alone
                    return place
                if self._places:
                    deadline = time.monotonic() + PATIENCE_SECONDS
                elif time.monotonic() > deadline:
                    raise NoPlacesError
                self._changed.wait(_LOOK_SECONDS)

    def _choose(self, alone: bool) -> Place | None:
        now = time.monotonic()
        free = [
            place
            for place in self._places.values()
            if not place.held
            and place.running < (1 if alone else place.threads)
            # Not at once again: it would answer the same.
            and not (place.shunned and now - place.shunned < _SHUN_SECONDS)
        ]
        return min(free, key=lambda place: (place.running / place.threads, place.address), default=None)
