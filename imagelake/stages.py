"""The stages in the data's order: one list for the CLI, for `run` and for Airflow."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Stage:
    """`module` holds `main(spark, cfg) -> StageResult`; `sections` are the parts of the configuration that change its result; `checks` are
    the files of sql/checks that must hold after it; `reads` is the table without which there is nothing to do."""

    name: str
    summary: str
    sections: tuple[str, ...]
    checks: tuple[str, ...] = ()
    needs_spark: bool = True
    reads: str | None = None

    @property
    def module(self) -> str:
        return f"jobs.{self.name}"


STAGES = (
    Stage(
        "ingest",
        "sources → samples, rejects: one row a record, with its facts",
        ("sources", "ingest"),
        ("unique_ids", "comparable_hashes"),
    ),
    Stage("filter", "samples → rejects: resolution, shape and licence, by columns", ("filter", "geometry"), reads="samples"),
    Stage(
        "dedup",
        "samples → duplicates: equal bytes, then equal pictures",
        ("dedup",),
        ("living_keepers", "largest_keeper"),
        reads="samples",
    ),
    Stage(
        "curate",
        "samples → curated: upright RGB, bucket shape, one JPEG",
        ("curate", "geometry"),
        ("nothing_lost",),
        reads="samples",
    ),
    Stage("caption", "curated → annotations: one caption a picture", ("caption",), needs_spark=False, reads="curated"),
    Stage("annotate", "annotations → curated: columns added, image bytes untouched", ("caption",), needs_spark=False, reads="curated"),
    Stage(
        "index",
        "curated → curated: compaction, scalar and full-text indices",
        ("index", "caption"),
        needs_spark=False,
        reads="curated",
    ),
    Stage(
        "export",
        "curated → corpus: planned MDS shards by tier and bucket",
        ("export", "caption"),
        ("exported_once",),
        reads="curated",
    ),
    Stage(
        "skips",
        "corpus → skip lists: what is not to be trained on any more",
        ("skips",),
        ("no_stale_exports",),
        reads="curated",
    ),
    Stage("verify", "corpus → report: every shard read back as the trainer would", ("verify",), needs_spark=False),
)


def stage(name: str) -> Stage:
    """Raises KeyError for a name that is no stage."""
    return {known.name: known for known in STAGES}[name]


def writer_of(table: str) -> str:
    """The stage that makes a table of `Stage.reads`."""
    return {"samples": "ingest", "curated": "curate"}[table]
