"""The stages in the data's order: one list for the CLI, for `run` and for Airflow."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Stage:
    """`module` holds `main(spark, cfg) -> StageResult`; `sections` are the parts of the configuration that change its result; `checks` are
    the files of sql/checks that must hold after it."""

    name: str
    summary: str
    sections: tuple[str, ...]
    checks: tuple[str, ...] = ()
    needs_spark: bool = True

    @property
    def module(self) -> str:
        return f"jobs.{self.name}"


STAGES = (
    Stage(
        "ingest",
        "sources → samples, rejects: one row per record, facts from one decode",
        ("sources", "ingest"),
        ("unique_ids",),
    ),
    Stage("filter", "samples → rejects: resolution, shape and licence, by columns", ("filter", "geometry")),
    Stage(
        "dedup",
        "samples → duplicates: equal bytes, then equal pictures",
        ("dedup",),
        ("living_keepers", "largest_keeper"),
    ),
    Stage(
        "curate",
        "samples → curated: upright RGB, bucket shape, Lanczos, JPEG once",
        ("curate", "geometry"),
        ("nothing_lost",),
    ),
    Stage("caption", "curated → annotations: one caption a picture", ("caption",), needs_spark=False),
    Stage("annotate", "annotations → curated: columns added, image bytes untouched", ("caption",), needs_spark=False),
    Stage(
        "index",
        "curated → curated: compaction by bytes, scalar and full-text index",
        ("index", "caption"),
        needs_spark=False,
    ),
    Stage(
        "export", "curated → corpus: planned MDS shards by tier and bucket", ("export", "caption"), ("exported_once", "no_stale_exports")
    ),
    Stage("verify", "corpus → report: every shard read back as the trainer would", ("verify",), needs_spark=False),
)


def stage(name: str) -> Stage:
    """Raises KeyError for a name that is no stage."""
    return {known.name: known for known in STAGES}[name]
