"""Progress of a stage: a live line on a terminal, a log line now and then elsewhere."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from imagelake.logs import logger

LOG_EVERY_SECONDS = 30.0


class Meter:
    """Counts what a stage has done; `add` may be called from any thread."""

    def __init__(self, total: int | None, unit: str) -> None:
        self.total = total
        self.unit = unit
        self.done = 0
        self.started = time.monotonic()
        self._lock = threading.Lock()

    def add(self, n: int) -> None:
        with self._lock:
            self.done += n

    def set(self, done: int) -> None:
        with self._lock:
            self.done = done

    @property
    def per_second(self) -> float:
        return self.done / max(time.monotonic() - self.started, 1e-9)


@contextmanager
def meter(name: str, total: int | None = None, unit: str = "images", poll: Callable[[], int] | None = None) -> Iterator[Meter]:
    """Show progress while the block runs. `poll` gives the count done so far, where nobody calls `add` (Spark: an accumulator)."""
    counter = Meter(total, unit)
    stop = threading.Event()
    show = _show_bar if sys.stderr.isatty() else _show_log
    thread = threading.Thread(target=show, args=(name, counter, poll, stop), daemon=True)
    thread.start()
    try:
        yield counter
    finally:
        if poll is not None:
            counter.set(poll())
        stop.set()
        thread.join()


def _show_bar(name: str, counter: Meter, poll: Callable[[], int] | None, stop: threading.Event) -> None:
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[rate]}"),
    )
    with Progress(*columns, TimeElapsedColumn(), console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(name, total=counter.total, rate="")
        while not stop.wait(0.2):
            if poll is not None:
                counter.set(poll())
            bar.update(task, completed=counter.done, rate=f"{counter.per_second:,.0f} {counter.unit}/s")


def _show_log(name: str, counter: Meter, poll: Callable[[], int] | None, stop: threading.Event) -> None:
    while not stop.wait(LOG_EVERY_SECONDS):
        if poll is not None:
            counter.set(poll())
        logger().info("progress", stage=name, done=counter.done, total=counter.total, per_second=round(counter.per_second, 1))
