"""sources -> samples, rejects: one row per record met, with its facts from one decode.

Every record of every source file becomes a row of samples: readable ones with their facts, the others with a defect, which is repeated in
rejects. A batch of files is planned to disk before its first byte is read, so that an interrupted run is finished as it was planned,
under the same batch name, and Delta skips what that name has written already.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from imagelake import columns as C
from imagelake import delta, deltalog, ledger, logs, progress, tables
from imagelake.captions import clean_caption
from imagelake.config import Config, digest_of
from imagelake.errors import ConfigError
from imagelake.ledger import StageResult
from imagelake.runner import run
from imagelake.sources import Record, SourceFile, SourceSpec, Unit, list_files, load_sources, plan_units, read_unit, unread_metadata
from imagelake.sources.manifest import Comparison, compare, spec_digest
from imagelake.storage import write_atomic
from udfs.facts import image_facts
from udfs.phash import PHASH_VERSION

if TYPE_CHECKING:
    from pyspark import Accumulator

BATCH_ROWS = 256
BATCH_BYTES = 16 << 20


def image_id(source: str, source_key: str) -> str:
    """First 128 bits of sha256(source, NUL, source_key) in hex: the same under re-download."""
    return hashlib.sha256(f"{source}\0{source_key}".encode()).hexdigest()[:32]


def sample_row(spec: SourceSpec, record: Record, max_pixels: int, batch: str) -> dict[str, Any]:
    """One row of samples. A record that is at fault, or whose bytes are no readable image, has a defect."""
    row: dict[str, Any] = dict.fromkeys(tables.SAMPLES.schema.names)
    row |= {
        C.IMAGE_ID: image_id(spec.name, record.source_key),
        C.SOURCE: spec.name,
        C.SOURCE_KEY: record.source_key,
        C.SOURCE_URI: record.source_uri,
        C.IMAGE: record.image,
        C.CAPTIONS: list({name: clean_caption(text) for name, text in record.captions.items()}.items()),
        C.LICENSE: record.license,
        C.ATTRIBUTION: record.attribution,
        C.TRUST: list(spec.trust),
        C.INGEST_RUN: batch,
        C.DEFECT: record.fault,
        C.DEFECT_DETAIL: record.fault_detail,
    }
    if record.image is not None and record.fault is None:
        facts = image_facts(record.image, max_pixels)
        row |= {
            C.SHA256: facts.sha256,
            C.BYTE_SIZE: facts.byte_size,
            C.FORMAT: facts.format,
            C.WIDTH: facts.width,
            C.HEIGHT: facts.height,
            C.EXIF_ORIENTATION: facts.exif_orientation,
            C.MODE: facts.mode,
            C.PHASH: facts.phash,
            C.PHASH_BLACK: facts.phash_black,
            C.PHASH_VERSION: PHASH_VERSION if facts.phash is not None else None,
            C.IS_FLAT: facts.is_flat,
            C.DEFECT: facts.defect,
            C.DEFECT_DETAIL: facts.defect_detail,
        }
    return row


def reader(
    specs: Sequence[SourceSpec], units: Sequence[str], max_pixels: int, batch: str, done: Accumulator[int]
) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """The task: numbers of units (JSON) in, rows of samples out, in Arrow batches of bounded bytes."""
    by_name = {spec.name: spec for spec in specs}
    schema = tables.SAMPLES.schema

    def read(numbers: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        rows: list[dict[str, Any]] = []
        buffered = 0
        for number in (number for chunk in numbers for number in chunk.column("id").to_pylist()):
            unit = Unit.from_json(units[number])
            for record in read_unit(by_name[unit.source], unit):
                rows.append(sample_row(by_name[unit.source], record, max_pixels, batch))
                buffered += len(record.image or b"")
                if len(rows) >= BATCH_ROWS or buffered >= BATCH_BYTES:
                    done.add(len(rows))
                    yield pa.RecordBatch.from_pylist(rows, schema)
                    rows, buffered = [], 0
        if rows:
            done.add(len(rows))
            yield pa.RecordBatch.from_pylist(rows, schema)

    return read


def new_files(found: Comparison) -> list[SourceFile]:
    """The files that were never ingested. Raises ConfigError that names files whose images changed since, and sources that are declared
    otherwise now: what is in the lake was read as it was declared then."""
    if found.redeclared:
        name, origin = min(found.redeclared.items())
        raise ConfigError(
            f"{origin}: source {name!r} was ingested as it was declared then; its captions, licence or columns are declared "
            "otherwise now. Give it another name, or ingest into a new lake.root"
        )
    if found.changed:
        changed = [f"{file.path}: changed since source {file.source!r} was ingested" for file in found.changed]
        raise ConfigError(
            "\n".join([*changed, "put the old files back, or give the new ones other names: what was ingested stays as it was"])
        )
    return found.new


def batches(files: Sequence[SourceFile], batch_bytes: int) -> Iterator[list[SourceFile]]:
    """Files in order, cut where a batch reaches `batch_bytes`."""
    batch: list[SourceFile] = []
    size = 0
    for file in files:
        batch.append(file)
        size += file.size
        if size >= batch_bytes:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def rejects_of(samples: DataFrame, batch: str) -> DataFrame:
    """samples -> rejects: the defects of one batch."""
    return samples.where((F.col(C.INGEST_RUN) == batch) & F.col(C.DEFECT).isNotNull()).select(
        C.IMAGE_ID,
        C.SOURCE,
        C.SOURCE_KEY,
        F.lit("ingest").alias(C.STAGE),
        F.col(C.DEFECT).alias(C.REASON),
        F.col(C.DEFECT_DETAIL).alias(C.DETAIL),
        F.lit(ledger.CURRENT_RUN.get()).alias(C.RUN_ID),
    )


def write_plan(lake: Path, specs: Sequence[SourceSpec], files: Sequence[SourceFile], cfg: Config) -> Path:
    """Pin one batch to disk: its files, the sources they belong to, and the pieces of work."""
    used = [spec for spec in specs if any(file.source == spec.name for file in files)]
    digests = {spec.name: spec_digest(spec) for spec in used}
    body = {
        "max_pixels": cfg.ingest.max_pixels,
        "specs": [spec.model_dump(mode="json") for spec in used],
        "files": [[file.source, file.key, file.size, file.mtime_ns, digests[file.source]] for file in files],
        "units": [
            unit.to_json()
            for spec in used
            for unit in plan_units(spec, [file for file in files if file.source == spec.name], cfg.ingest.unit_bytes)
        ],
    }
    path = lake / "plans" / f"ingest-{digest_of(body)}.json"
    write_atomic(path, json.dumps(body).encode())
    return path


def begun(spark: SparkSession, lake: Path) -> list[Path]:
    """Plans of interrupted runs whose samples are in the lake, to be finished. The others wrote nothing: they are dropped and made anew."""
    plans = {plan.stem.removeprefix("ingest-"): plan for plan in sorted((lake / "plans").glob("ingest-*.json"))}
    if not plans:
        return []
    written = delta.read(spark, lake, tables.SAMPLES).where(F.col(C.INGEST_RUN).isin(list(plans)))
    batches = {row[C.INGEST_RUN] for row in written.select(C.INGEST_RUN).distinct().collect()}
    for batch, plan in plans.items():
        if batch not in batches:
            plan.unlink()
    return [plan for batch, plan in plans.items() if batch in batches]


def ingest_batch(spark: SparkSession, lake: Path, plan: Path) -> tuple[str, dict[str | None, int]]:
    """Carry out a plan; safe to repeat from any point. Returns the batch's name, and its rows by defect (None: readable)."""
    body = json.loads(plan.read_text(encoding="utf-8"))
    batch = plan.stem.removeprefix("ingest-")
    specs = [SourceSpec.model_validate(spec) for spec in body["specs"]]
    units = body["units"]
    done = spark.sparkContext.accumulator(0)
    frame = spark.range(0, len(units), 1, max(len(units), 1))  # one unit a task
    samples = frame.mapInArrow(reader(specs, units, body["max_pixels"], batch, done), delta.spark_schema(tables.SAMPLES))
    with progress.meter("ingest", poll=lambda: int(done.value)):
        delta.append(samples, lake, tables.SAMPLES, batch=batch, parquet=delta.IMAGE_PARQUET)
    written = delta.read(spark, lake, tables.SAMPLES)
    by_defect = counted(written, specs, batch)
    if any(by_defect):
        delta.append(rejects_of(written, batch), lake, tables.REJECTS, batch=batch)
    pinned = [dict(zip(tables.SOURCE_FILES.schema.names, (*file, batch), strict=True)) for file in body["files"]]
    files = spark.createDataFrame(pa.Table.from_pylist(pinned, tables.SOURCE_FILES.schema))
    delta.append(files.coalesce(1), lake, tables.SOURCE_FILES, batch=batch)
    plan.unlink()
    return batch, by_defect


def counted(samples: DataFrame, specs: Sequence[SourceSpec], batch: str) -> dict[str | None, int]:
    """A batch's rows by defect. Warns of captions that were declared and that no sample of a source has: a name misspelt is silent else."""
    names = sorted({name for spec in specs for name in spec.captions})
    captions = [F.count(F.col(C.CAPTIONS)[name]).alias(f"captions {name}") for name in names]
    counts = (
        samples.where(F.col(C.INGEST_RUN) == batch).groupBy(C.SOURCE, C.DEFECT).agg(F.count(F.lit(1)).alias("rows"), *captions).collect()
    )
    for spec in specs:
        of_source = [row for row in counts if row[C.SOURCE] == spec.name]
        for name, rule in spec.captions.items():
            if of_source and not any(row[f"captions {name}"] for row in of_source):
                logs.logger().warning("no_captions", source=spec.name, why=f"captions.{name}: {rule} was found with none of its samples")
    by_defect: Counter[str | None] = Counter()
    for row in counts:
        by_defect[row[C.DEFECT]] += row["rows"]
    return dict(by_defect)


def main(spark: SparkSession, cfg: Config) -> StageResult:
    if cfg.sources is None:
        raise ConfigError("sources: no sources file given; use --sources sources.yaml")
    lake = Path(cfg.lake.root)
    specs = load_sources(Path(cfg.sources))
    files = [file for spec in specs for file in list_files(spec)]
    done = [ingest_batch(spark, lake, plan) for plan in begun(spark, lake)]
    for hint in (hint for spec in specs for hint in unread_metadata(spec, files)):
        logs.logger().warning("hint", why=hint)
    found = compare(specs, files, deltalog.read(lake, tables.SOURCE_FILES))
    for batch in batches(new_files(found), cfg.ingest.batch_bytes):
        done.append(ingest_batch(spark, lake, write_plan(lake, specs, batch, cfg)))
    if not done:
        return StageResult(nothing_to_do=True)
    return result(lake, done)


def result(lake: Path, done: Sequence[tuple[str, Mapping[str | None, int]]]) -> StageResult:
    counts: Counter[str | None] = Counter()
    for _, by_defect in done:
        counts.update(by_defect)
    kept = counts.pop(None, 0)
    written = {table.name: delta.version(lake, table) for table in (tables.SAMPLES, tables.REJECTS, tables.SOURCE_FILES)}
    rejected = {str(reason): rows for reason, rows in counts.items()}
    return StageResult(kept + sum(counts.values()), kept, rejected, {}, written, {"batches": ",".join(batch for batch, _ in done)})


if __name__ == "__main__":
    run(main, "ingest")
