"""One SQL statement over the views, and its result as a table, CSV or JSON lines."""

from __future__ import annotations

import csv
import json
from typing import TYPE_CHECKING, Any, TextIO

from rich.console import Console
from rich.table import Column, Table

from imagelake.config import Config
from imagelake.errors import ConfigError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row, SparkSession

FORMATS = ("table", "csv", "json")
TABLE_ROWS = 1000
UNBOUNDED_WIDTH = 1_000_000


def ask(spark: SparkSession, cfg: Config, statement: str) -> DataFrame:
    """The result of `statement`. Raises ConfigError with Spark's own words when it is not valid."""
    from pyspark.errors import AnalysisException, ParseException

    from imagelake import views

    views.register(spark, cfg)
    try:
        return spark.sql(statement.strip().rstrip(";"))
    except (AnalysisException, ParseException) as error:
        raise ConfigError(f"sql: {str(error).split('JVM stacktrace')[0].strip()}\nviews: {', '.join(views.NAMES)}") from error


def check_format(format_: str) -> None:
    """Raises ConfigError for an unknown output format; callers ask before they start Spark."""
    if format_ not in FORMATS:
        raise ConfigError(f"sql: unknown format {format_!r}; one of {', '.join(FORMATS)}")


def show(result: DataFrame, format_: str, out: TextIO) -> None:
    """Write rows to `out`; a table shows the first 1,000, the others all, one at a time."""
    check_format(format_)
    if format_ == "table":
        _show_table(result, out)
    elif format_ == "csv":
        writer = csv.writer(out)
        writer.writerow(result.columns)
        writer.writerows(_cells(row) for row in result.toLocalIterator())
    else:
        for row in result.toLocalIterator():
            out.write(json.dumps(row.asDict(recursive=True), ensure_ascii=False, default=str) + "\n")


def console(out: TextIO) -> Console:
    """For tables. A file or a pipe has no width: nothing is cut or folded for it."""
    return Console(file=out, markup=False, soft_wrap=False, width=None if out.isatty() else UNBOUNDED_WIDTH)


def _show_table(result: DataFrame, out: TextIO) -> None:
    rows = result.limit(TABLE_ROWS + 1).collect()
    table = Table(*(Column(name, overflow="fold") for name in result.columns))
    for row in rows[:TABLE_ROWS]:
        table.add_row(*_cells(row))
    screen = console(out)
    screen.print(table)
    if len(rows) > TABLE_ROWS:
        screen.print(f"the first {TABLE_ROWS} rows; --format csv gives all")


def _cells(row: Row) -> list[str]:
    """One text a column, nested values as JSON. By position: a join may give two columns of one name."""
    return [_flat(value) for value in row]


def _flat(value: Any) -> str:
    if value is None:
        return ""
    return json.dumps(_plain(value), ensure_ascii=False, default=str) if isinstance(value, dict | list | tuple) else str(value)


def _plain(value: Any) -> Any:
    """Rows as objects; a Row is a tuple, which JSON would write as a list."""
    if isinstance(value, list):
        return [_plain(item) for item in value]
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    return value.asDict(recursive=True) if hasattr(value, "asDict") else value
