"""Spark imports modules named `pyspark_*` by itself: this one makes `USING lance` known to plain spark-sql."""

from imagelake.lance_source import LanceDataSource as DefaultSource

__all__ = ["DefaultSource"]
