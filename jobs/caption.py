"""curated -> annotations: one caption a picture, in part files that an interrupted run takes up again.

Imports no Spark: with a vision-language model this stage runs in an environment of its own, one process a GPU.
"""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from imagelake import captioner, lance, progress, tables
from imagelake import columns as C
from imagelake.config import Config
from imagelake.ledger import StageResult
from imagelake.runner import run


def unfinished(rows: pa.Table, finished: pa.Table) -> pa.Table:
    """rows without a finished result, in the table's order."""
    return rows.filter(pc.invert(pc.is_in(rows[C.IMAGE_ID], finished[C.IMAGE_ID].combine_chunks())))


def main(cfg: Config) -> StageResult:
    lake = Path(cfg.lake.root)
    engine = captioner.ENGINES[cfg.caption.engine]()
    folder = captioner.parts_folder(lake, cfg.caption.column, captioner.fingerprint(engine, cfg.caption.column))
    version = lance.version(lake, tables.CURATED)
    rows = lance.scan(lake, tables.CURATED, engine.columns, at=version)
    todo = unfinished(rows, captioner.read_parts(folder))
    if len(todo) == 0:
        return StageResult(nothing_to_do=True)
    statuses: dict[str, int] = {}
    with progress.meter("caption", total=len(todo)) as meter:
        for start in range(0, len(todo), cfg.caption.part_rows):
            chunk = todo.slice(start, cfg.caption.part_rows)
            results = list(engine.caption(chunk.to_pylist()))
            captioner.write_part(folder, results)
            meter.add(len(results))
            for result in results:
                statuses[result.status] = statuses.get(result.status, 0) + 1
    kept = statuses.pop("ok", 0)
    return StageResult(len(todo), kept, statuses, {tables.CURATED.name: version}, {}, {"fingerprint": folder.name})


if __name__ == "__main__":
    run(main, "caption")
