"""SQL predicates that people write into the configuration."""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.errors import AnalysisException, ParseException
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from imagelake.errors import ConfigError


def checked(frame: DataFrame, where: Mapping[str, str], key: str) -> dict[str, Column]:
    """The predicates of `where`, by name, as columns that are true or false: null is false.

    Raises ConfigError that names key.name when one is not a predicate over the columns of `frame`.
    """
    found = {}
    for name, predicate in where.items():
        try:
            frame.where(predicate)
        except (AnalysisException, ParseException) as error:
            raise ConfigError(f"{key}.{name}: {str(error).splitlines()[0]}") from error
        found[name] = F.coalesce(F.expr(predicate), F.lit(False))
    return found
