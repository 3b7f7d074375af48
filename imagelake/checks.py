"""Rules of sql/checks: each file is one statement that returns the offending rows, none where the rule holds."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from imagelake import ledger, logs, views
from imagelake.config import Config
from imagelake.errors import GateError
from imagelake.paths import SQL

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SHOWN = 5


@dataclass(frozen=True)
class Check:
    """`rule` is the sentence that must hold; severity "error" stops the run, "warning" is logged."""

    name: str
    rule: str
    severity: str
    sql: str


def load(name: str) -> Check:
    text = (SQL / "checks" / f"{name}.sql").read_text(encoding="utf-8")
    header = dict(re.findall(r"^-- (rule|severity): (.+)$", text, re.MULTILINE))
    return Check(name, header["rule"], header["severity"], text)


def names() -> list[str]:
    return sorted(Path(path).stem for path in (SQL / "checks").glob("*.sql"))


def enforce(spark: SparkSession, cfg: Config, check_names: Sequence[str], *, stage: str) -> None:
    """Run the checks after a stage and write down what was found; raises GateError that names the first broken rule of severity "error" and
    its first offending rows."""
    roots = shlex.join(["--set", f"lake.root={cfg.lake.root}", "--set", f"corpus.root={cfg.corpus.root}"])
    views.register(spark, cfg, pushdown=False)
    checks = [load(name) for name in check_names]
    found = [
        spark.sql(check.sql).limit(SHOWN + 1).select(F.lit(check.name).alias("name"), F.to_json(F.struct("*")).alias("row"))
        for check in checks
    ]
    # One query for all: most of a small lake's time is planning.
    rows = reduce(DataFrame.unionByName, found).collect()
    results = [(check, [row["row"] for row in rows if row["name"] == check.name]) for check in checks]
    ledger.record_checks(
        Path(cfg.lake.root),
        stage,
        ({"check": check.name, "severity": check.severity, "rule": check.rule, "holds": not rows, "first_rows": rows[:SHOWN]}
         for check, rows in results),
    )  # fmt: skip
    for check, offending in results:
        if not offending:
            continue
        shown = "\n".join(f"  {row}" for row in offending[:SHOWN]) + ("\n  …" if len(offending) > SHOWN else "")
        command = f"imagelake sql --file {SQL / 'checks' / check.name}.sql {roots}"
        message = f"check {check.name}: broken rule: {check.rule}\n{shown}\nAll of them: {command}"
        if check.severity == "error":
            raise GateError(message)
        logs.logger().warning(message, check=check.name)
