"""samples -> duplicates: equal bytes, then equal pictures; the largest copy is kept.

Two pictures are the same when their bytes are (sha256), or when their perceptual hashes are equal (or within dedup.max_distance bits). Flat
pictures have no usable hash: only equal bytes make them duplicates. A picture with transparency is hashed on white and on black, and both
must agree. The keeper of a group has the most pixels, then the most bytes, then the smallest sha256, then the smallest image_id: the same
under any order. Members of one source that was declared to be deduplicated are not compared with each other.

What was judged is kept in an index, in buckets by group. New samples join it there, and only the groups that they meet are judged anew;
where the index does not fit (other settings, other rejects of old samples), all are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.dataset as ds
from pyspark.sql import Column, DataFrame, Row, SparkSession, Window
from pyspark.sql import functions as F

from imagelake import __version__, delta, deltalog, hashindex, ledger, nearpairs, tables
from imagelake import columns as C
from imagelake.config import Config, DedupConfig, digest_of
from imagelake.errors import ConfigError
from imagelake.hashindex import Index
from imagelake.ledger import StageResult
from imagelake.runner import run, unchanged
from udfs.facts import image_facts

KEEPER = "keeper"
KINDS = ("sha256", "phash")
# Whether the member's source was declared to be deduplicated.
APART = "apart"
FACTS = (C.IMAGE_ID, C.SOURCE, C.SHA256, C.BYTE_SIZE, C.WIDTH, C.HEIGHT, C.PHASH, C.PHASH_BLACK, C.PHASH_VERSION, C.IS_FLAT)


def rank() -> Column:
    """A struct whose minimum is the keeper. It carries what a group needs to know of its keeper, and never bytes."""
    pixels = F.col(C.WIDTH).cast("long") * F.col(C.HEIGHT)
    order = ((-pixels).alias("minus_pixels"), (-F.col(C.BYTE_SIZE)).alias("minus_bytes"), F.col(C.SHA256), F.col(C.IMAGE_ID))
    return F.struct(*order, C.SOURCE, C.PHASH, C.PHASH_BLACK, C.PHASH_VERSION)


def candidates(samples: DataFrame, rejects: DataFrame) -> DataFrame:
    """What may be kept: readable samples that no rule rejected."""
    apart = F.coalesce(F.array_contains(C.TRUST, "deduplicated"), F.lit(False)).alias(APART)
    readable = samples.where(F.col(C.DEFECT).isNull()).select(*FACTS, apart)
    return readable.join(rejects.select(C.IMAGE_ID).distinct(), on=C.IMAGE_ID, how="left_anti")


def members_of(candidates: DataFrame, *, perceptual: bool = True) -> DataFrame:
    """candidates -> hashindex.SCHEMA. What is not comparable has no hash, and is known by its bytes.

    `picture` is one number for all copies of a picture, so that a billion of them are counted by a number. Two pictures may share it by
    chance: what is the same is decided by `same_picture`.
    """
    comparable = F.lit(perceptual) & F.col(C.PHASH).isNotNull() & ~F.coalesce(C.IS_FLAT, F.lit(True))
    black = F.coalesce(C.PHASH_BLACK, C.PHASH)
    opaque = F.when(black == F.col(C.PHASH), F.col(C.PHASH)).otherwise(F.xxhash64(C.PHASH, black))
    hashes = {
        C.PICTURE: F.when(comparable, opaque).otherwise(F.xxhash64(C.SHA256)),
        C.PHASH: F.when(comparable, F.col(C.PHASH)),
        C.PHASH_BLACK: F.when(comparable, black),
        C.PHASH_VERSION: F.when(comparable, F.col(C.PHASH_VERSION)),
    }
    return candidates.select(*(hashes.get(name, F.col(name)).alias(name) for name in hashindex.SCHEMA.names))


def same_picture() -> list[Column]:
    """What all members of a group have in common: the hashes of a picture, or its bytes where it has none."""
    return [
        F.col(C.PICTURE),
        F.col(C.PHASH),
        F.col(C.PHASH_BLACK),
        F.col(C.PHASH_VERSION),
        F.when(F.col(C.PHASH).isNull(), F.col(C.SHA256)),
    ]


def group_id(of: str = "") -> Column:
    """The name of a group, by the facts of a member or of a struct of them: "phash-1-…", two hashes where they differ; or "sha256-…"."""
    phash, black, version, sha256 = (F.col(f"{of}{name}") for name in (C.PHASH, C.PHASH_BLACK, C.PHASH_VERSION, C.SHA256))
    white_digits, black_digits = (F.lpad(F.lower(F.hex(value)), 16, "0") for value in (phash, black))
    by_hash = F.concat_ws("-", F.lit("phash"), version, white_digits, F.when(black != phash, black_digits))
    return F.when(phash.isNull(), F.concat(F.lit("sha256-"), sha256)).otherwise(by_hash)


def one_hash_a_file(candidates: DataFrame) -> DataFrame:
    """Give all copies of the same bytes the hash of the best of them: copies that were hashed by two versions would be apart else, since
    hashes of two versions are never compared."""
    hashes = (C.PHASH, C.PHASH_BLACK, C.PHASH_VERSION, C.IS_FLAT)
    best = candidates.groupBy(C.SHA256).agg(F.min(F.struct(rank().alias("rank"), *hashes)).alias("best"))
    known = best.select(C.SHA256, *(F.col(f"best.{name}") for name in hashes))
    return candidates.drop(*hashes).join(known, on=C.SHA256, how="inner")


def with_keepers(members: DataFrame) -> DataFrame:
    """The members of groups of two and more, with the keeper of their group, at distance 0.

    Pictures are counted before anything else of them is looked at. What is left Spark sorts by group, and spills what does not fit, so one
    hash with a million members takes no more memory than a million hashes.
    """
    crowded = members.groupBy(C.PICTURE).count().where("count > 1").select(C.PICTURE)
    twins = members.join(crowded.hint("shuffle_hash"), on=C.PICTURE, how="left_semi")
    best = F.min(rank()).over(Window.partitionBy(*same_picture()))
    return twins.withColumn(KEEPER, best).withColumn(C.DISTANCE, F.lit(0))


def with_near_keepers(members: DataFrame, max_distance: int) -> DataFrame:
    """All members with their keepers: that of their group, or that of a better group within `max_distance` bits.

    The driver holds the groups that lose so, some 300 bytes each.
    """
    named = members.withColumn("group", group_id())
    pictures = named.groupBy("group").agg(F.min(rank()).alias(KEEPER))
    names = {C.PHASH: "white", C.PHASH_BLACK: "black", C.PHASH_VERSION: "version"}
    hashes = pictures.select(F.col("group").alias("id"), *(F.col(f"{KEEPER}.{name}").alias(short) for name, short in names.items()))
    pairs = nearpairs.near_pairs(hashes.where(F.col("white").isNotNull()), max_distance)
    for side in ("first", "second"):
        pairs = pairs.join(pictures.select(F.col("group").alias(side), F.col(KEEPER).alias(f"{side}_rank")), on=side)
    sides = [F.struct(F.col(f"{side}_rank").alias("rank"), F.col(side).alias("id")) for side in ("first", "second")]
    ordered = pairs.select(F.least(*sides).alias("better"), F.greatest(*sides).alias("worse"), C.DISTANCE).orderBy("better")
    lost = nearpairs.elect(ordered.select("better.id", "worse.id", C.DISTANCE).toLocalIterator(prefetchPartitions=True))
    rows = [(loser, *won) for loser, won in lost.items()]
    links = members.sparkSession.createDataFrame(rows, f"group string, winner string, {C.DISTANCE} int")
    stay = pictures.join(links, on="group", how="left_anti").withColumn(C.DISTANCE, F.lit(0))
    lose = links.join(pictures.withColumnRenamed("group", "winner"), on="winner").select("group", KEEPER, C.DISTANCE)
    return named.join(stay.unionByName(lose), on="group", how="inner")


def losers(judged: DataFrame) -> DataFrame:
    """Members with their keepers -> duplicates: all but the keepers, and but members of a deduplicated source whose keeper is of it too."""
    same_bytes = F.col(C.SHA256) == F.col(f"{KEEPER}.{C.SHA256}")
    same_source = F.col(C.SOURCE) == F.col(f"{KEEPER}.{C.SOURCE}")
    return judged.where((F.col(C.IMAGE_ID) != F.col(f"{KEEPER}.{C.IMAGE_ID}")) & ~(F.col(APART) & same_source)).select(
        C.IMAGE_ID,
        F.col(f"{KEEPER}.{C.IMAGE_ID}").alias(C.KEEPER_ID),
        group_id(f"{KEEPER}.").alias(C.GROUP_ID),
        F.when(same_bytes, F.lit(KINDS[0])).otherwise(F.lit(KINDS[1])).alias(C.KIND),
        C.DISTANCE,
        _won_by().alias(C.WON_BY),
        F.lit(ledger.CURRENT_RUN.get()).alias(C.RUN_ID),
    )


def _won_by() -> Column:
    """What decided for the keeper: the first part of the rank in which it and the member differ."""
    pixels = F.col(C.WIDTH).cast("long") * F.col(C.HEIGHT)
    return (
        F.when(F.col(f"{KEEPER}.minus_pixels") != -pixels, F.lit("pixels"))
        .when(F.col(f"{KEEPER}.minus_bytes") != -F.col(C.BYTE_SIZE), F.lit("bytes"))
        .when(F.col(f"{KEEPER}.{C.SHA256}") != F.col(C.SHA256), F.lit("sha256"))
        .otherwise(F.lit("image_id"))
    )


def duplicates(members: DataFrame, max_distance: int = 0) -> DataFrame:
    """members -> duplicates: one row for each that is not kept."""
    return losers(with_near_keepers(members, max_distance) if max_distance else with_keepers(members))


def touched(index: DataFrame, fresh: DataFrame) -> DataFrame:
    """The members of all groups that have a fresh one, and of those that share its number by chance. Neither frame is moved, since both are
    in as many buckets."""
    return index.join(fresh.select(C.PICTURE).distinct().hint("shuffle_hash"), on=C.PICTURE, how="left_semi").unionByName(fresh)


def basis(cfg: Config, read: Mapping[str, int]) -> str:
    """Digest of what the standing of old samples rests on: settings, code, and their rejects. "" when it can't be told without looking.

    The filter judges each sample by itself, so its verdicts on old samples stand while its settings do; the rejects of later stages are
    few, and are compared.
    """
    lake = Path(cfg.lake.root)
    filtered = ledger.last_good(lake, "filter")
    runs = [run for run in (ledger.last_good(lake, name) for name in ("ingest", "filter", "curate")) if run is not None]
    written = max((run["written_versions"].get(tables.REJECTS.name, -1) for run in runs), default=-1)
    if (
        filtered is None
        or filtered["read_versions"] != {tables.SAMPLES.name: read[tables.SAMPLES.name]}
        or written != read[tables.REJECTS.name]
    ):
        return ""
    others = ~ds.field(C.STAGE).isin(["ingest", "filter"])
    ids = deltalog.dataset(lake, tables.REJECTS).to_table([C.IMAGE_ID], filter=others)[C.IMAGE_ID].unique()
    return digest_of([__version__, cfg.digest(("dedup",)), filtered["stage_digest"], sorted(ids.to_pylist())])


def main(spark: SparkSession, cfg: Config) -> StageResult:
    lake = Path(cfg.lake.root)
    read = {table.name: delta.version(lake, table) for table in (tables.SAMPLES, tables.REJECTS)}
    if unchanged(cfg, "dedup", read):
        return StageResult(nothing_to_do=True)
    samples = delta.read(spark, lake, tables.SAMPLES, read[tables.SAMPLES.name])
    rejected = delta.read(spark, lake, tables.REJECTS, read[tables.REJECTS.name])
    counts = samples.where(F.col(C.DEFECT).isNull()).groupBy(C.INGEST_RUN, C.PHASH_VERSION).count().collect()
    rests_on, index = basis(cfg, read), hashindex.current(lake)
    if index is not None and fits(index, rests_on, counts, lake) and not cfg.dedup.max_distance:
        index = extend(lake, index, samples, rejected, counts, perceptual=cfg.dedup.perceptual)
    else:
        index = rebuild(lake, rests_on, candidates(samples, rejected), counts, cfg.dedup)
    losers = deltalog.dataset(lake, tables.DUPLICATES)
    kinds = {kind: count for kind in KINDS if (count := losers.count_rows(filter=ds.field(C.KIND) == kind))}
    written = {tables.DUPLICATES.name: index.duplicates_version}
    return StageResult(index.rows, index.rows - sum(kinds.values()), kinds, read, written)


def fits(index: Index, rests_on: str, counts: list[Row], lake: Path) -> bool:
    """Whether the index says what a rebuild would say of the samples in it."""
    return (
        index.basis == rests_on != ""
        and set(index.batches) <= {row[C.INGEST_RUN] for row in counts}
        and {row[C.PHASH_VERSION] for row in counts} <= {None, index.phash_version}
        and delta.version(lake, tables.DUPLICATES) >= index.duplicates_version
    )


def rebuild(lake: Path, rests_on: str, found: DataFrame, counts: list[Row], cfg: DedupConfig) -> Index:
    """Judge all candidates, and index them. Raises nothing of its own; a repeat after an interruption begins anew."""
    versions = {row[C.PHASH_VERSION] for row in counts} - {None}
    members = members_of(one_hash_a_file(found) if len(versions) > 1 else found, perceptual=cfg.perceptual)
    buckets = hashindex.buckets_for(sum(row["count"] for row in counts))
    folder = hashindex.write(members, lake, buckets)
    indexed = hashindex.frame(found.sparkSession, lake, [folder], buckets)
    version = delta.replace(duplicates(indexed, cfg.max_distance), lake, tables.DUPLICATES)
    batches = tuple(sorted({row[C.INGEST_RUN] for row in counts}))
    one_version = versions.pop() if len(versions) == 1 else None
    index = Index(rests_on, one_version, buckets, (folder,), batches, hashindex.count_rows(lake, folder), version)
    hashindex.commit(lake, index)
    return index


def extend(lake: Path, index: Index, samples: DataFrame, rejected: DataFrame, counts: list[Row], *, perceptual: bool) -> Index:
    """Judge the groups that samples of new batches meet, and add those to the index."""
    new = sorted({row[C.INGEST_RUN] for row in counts} - set(index.batches))
    if new:
        fresh = members_of(candidates(samples.where(F.col(C.INGEST_RUN).isin(new)), rejected), perceptual=perceptual)
        folder = hashindex.write(fresh, lake, index.buckets)
        old, added = (hashindex.frame(samples.sparkSession, lake, folders, index.buckets) for folders in (index.folders, [folder]))
        version = delta.upsert(duplicates(touched(old, added)), lake, tables.DUPLICATES)
        index = replace(
            index,
            folders=(*index.folders, folder),
            batches=(*index.batches, *new),
            rows=index.rows + hashindex.count_rows(lake, folder),
            duplicates_version=version,
        )
        hashindex.commit(lake, index)
    return index


def query(cfg: Config, files: Sequence[Path], count: int) -> tuple[list[dict[str, Any]], dict[Path, str]]:
    """The `count` indexed samples that are most like each image, nearest first, and why the others can't be told; no Spark.

    Raises ConfigError where there is no index yet.
    """
    lake = Path(cfg.lake.root)
    index = hashindex.current(lake)
    if index is None:
        raise ConfigError(f"lake.root: {lake} has no index of pictures yet: `imagelake dedup` makes it")
    found: list[dict[str, Any]] = []
    unreadable: dict[Path, str] = {}
    for file in files:
        try:
            facts = image_facts(file.read_bytes(), cfg.ingest.max_pixels)
        except OSError as error:
            unreadable[file] = str(error.strerror)
            continue
        if facts.defect is not None:
            unreadable[file] = f"{facts.defect}: {facts.defect_detail}"
            continue
        near = hashindex.nearest(lake, index, facts.sha256, None if facts.is_flat else facts.phash, facts.phash_black, count)
        found += [{"file": file, **{name: row[name] for name in (C.DISTANCE, C.IMAGE_ID, C.SOURCE, C.WIDTH, C.HEIGHT)}} for row in near]
    return found, unreadable


if __name__ == "__main__":
    run(main, "dedup")
