"""annotations -> curated: columns added or changed by image_id; image bytes stay where they are."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from imagelake import captioner, lance, tables
from imagelake import columns as C
from imagelake.config import Config
from imagelake.ledger import StageResult
from imagelake.runner import run


def caption_columns(parts: pa.Table, column: str, fingerprint: str) -> pa.Table:
    """Finished rows -> image_id, the caption, its status, and the fingerprint that it came from."""
    stamp = pa.array([fingerprint] * len(parts), pa.string())
    names = [C.IMAGE_ID, column, f"{column}_status", f"{column}_fingerprint"]
    return pa.table([parts[C.IMAGE_ID], parts["text"], parts["status"], stamp], names)


def main(cfg: Config) -> StageResult:
    lake, column = Path(cfg.lake.root), cfg.caption.column
    engine = captioner.ENGINES[cfg.caption.engine]()
    fingerprint = captioner.fingerprint(engine, column)
    parts = captioner.read_parts(captioner.parts_folder(lake, column, fingerprint))
    before = lance.version(lake, tables.CURATED)
    live = lance.scan(lake, tables.CURATED, [C.IMAGE_ID], at=before)
    # A picture may have left the curated table since it was captioned.
    parts = parts.filter(pc.is_in(parts[C.IMAGE_ID], live[C.IMAGE_ID].combine_chunks()))
    version, changed = lance.set_columns(lake, tables.CURATED, C.IMAGE_ID, caption_columns(parts, column, fingerprint))
    if not changed:
        return StageResult(nothing_to_do=True)
    return StageResult(changed, changed, {}, {tables.CURATED.name: before}, {tables.CURATED.name: version}, {"column": column})


if __name__ == "__main__":
    run(main, "annotate")
