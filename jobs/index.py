"""curated -> curated: indices brought up to date, then small fragments compacted towards a size in bytes."""

from __future__ import annotations

from pathlib import Path

from imagelake import columns as C
from imagelake import lance, tables
from imagelake.config import Config
from imagelake.ledger import StageResult
from imagelake.runner import run

SCALAR = {C.IMAGE_ID: "BTREE", C.SHA256: "BTREE", C.TIER: "BITMAP", C.BUCKET: "BITMAP", C.SOURCE: "BITMAP"}


def main(cfg: Config) -> StageResult:
    lake = Path(cfg.lake.root)
    before = lance.version(lake, tables.CURATED)
    columns = lance.column_names(lake, tables.CURATED)
    full_text = [cfg.caption.column] if cfg.caption.column in columns else []
    # Indices first: compaction does not merge fragments that an index covers with such that it doesn't.
    touched = lance.index(lake, tables.CURATED, SCALAR, full_text)
    fragments = lance.compact(
        lake,
        tables.CURATED,
        fragment_bytes=cfg.index.fragment_bytes,
        max_rows=cfg.index.max_fragment_rows,
        min_fragments=cfg.index.min_fragments,
    )
    after = lance.version(lake, tables.CURATED)
    if after == before:
        return StageResult(nothing_to_do=True)
    rows = lance.open_table(lake, tables.CURATED).count_rows()
    notes = {"indices": ",".join(touched)} | {name: str(count) for name, count in fragments.items()}
    return StageResult(rows, rows, {}, {tables.CURATED.name: before}, {tables.CURATED.name: after}, notes)


if __name__ == "__main__":
    run(main, "index")
