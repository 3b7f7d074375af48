"""What a verification found: figures, faults with their places, notes; as text for people and as JSON."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field

from imagelake.errors import GateError
from imagelake.shardcheck import Fault


@dataclass
class VerifyReport:
    """What was checked and what is wrong. `faults` holds the first ones, `counts` all of them by kind.

    skips: digest of the skip lists that hold, "" when there are none; skipped: samples on them.
    """

    corpus: str
    release: str
    decoded: bool
    max_faults: int
    shards: int = 0
    images: int = 0
    read_bytes: int = 0
    skips: str = ""
    skipped: int = 0
    seconds: float = 0.0
    faults: list[Fault] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    notes: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        return not self.counts

    def add(self, fault: Fault) -> None:
        self.merge([fault], Counter({fault.kind: 1}))

    def merge(self, faults: Iterable[Fault], counts: Counter[str]) -> None:
        self.counts.update(counts)
        self.faults.extend(list(faults)[: max(self.max_faults - len(self.faults), 0)])

    def sort(self) -> None:
        """Order that does not depend on which worker ended first."""
        self.faults.sort(key=lambda f: (f.bucket or "", f.shard or "", -1 if f.index is None else f.index, f.kind, f.detail))
        self.notes.sort()

    def to_json(self) -> str:
        rates = {"images_per_second": self.images / self._seconds, "bytes_per_second": self.read_bytes / self._seconds}
        values = asdict(self) | {"ok": self.ok, "counts": dict(sorted(self.counts.items()))}
        return json.dumps(values | {name: round(rate, 1) for name, rate in rates.items()}, ensure_ascii=False, indent=2)

    def to_text(self, limit: int = 20) -> str:
        """A few lines for people; at most `limit` faults and notes each."""
        how = "decoded" if self.decoded else "not decoded"
        rate = f"{self.images / self._seconds:,.0f} images/s, {self.read_bytes / self._seconds / 1e9:.2f} GB/s"
        lines = [
            f"{self.corpus}: release {self.release}",
            f"{self.images:,} images ({how}) in {self.shards:,} shards, {self.read_bytes / 1e9:.3f} GB, {self.seconds:.1f} s, {rate}",
        ]
        lines += [f"{self.skipped:,} of them skipped, by skip lists {self.skips}"] if self.skips else []
        total = sum(self.counts.values())
        lines.append("no faults" if self.ok else f"{total:,} faults: " + kinds(self.counts))
        lines += [f"  {fault}" for fault in self.faults[:limit]]
        lines += [f"  … {total - limit:,} more"] if total > limit else []
        lines += [f"note: {note}" for note in self.notes[:limit]]
        lines += [f"note: … {len(self.notes) - limit:,} more"] if len(self.notes) > limit else []
        return "\n".join(lines)

    @property
    def _seconds(self) -> float:
        return max(self.seconds, 1e-9)


def kinds(counts: Counter[str]) -> str:
    return ", ".join(f"{kind} {n:,}" for kind, n in sorted(counts.items()))


def gate(report: VerifyReport, shown: int = 5) -> None:
    """Raises GateError, naming the first faults, unless the report is clean."""
    if not report.ok:
        first = "\n".join(f"  {fault}" for fault in report.faults[:shown])
        raise GateError(f"{report.corpus}: {sum(report.counts.values()):,} faults: {kinds(report.counts)}\n{first}")
