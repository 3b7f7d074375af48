"""A Python worker stays below 1 GB with 4 MP images: each task runs in a process of its own, whose peak is asked of the system."""

from __future__ import annotations

import io
import json
import subprocess
import sys
import tarfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from imagelake.paths import PROJECT

LIMIT_MB = 1000
IMAGES = 64

TASKS = {
    "ingest": """
from jobs import ingest
from imagelake.sources import list_files, load_sources, plan_units
specs = load_sources(root / "sources.yaml")
units = [unit.to_json() for unit in plan_units(specs[0], list_files(specs[0]))]
task = ingest.reader(specs, units, 200_000_000, "batch", Done())
samples = root / "samples.parquet"
with pq.ParquetWriter(samples, tables.SAMPLES.schema) as writer:
    for batch in task([pa.RecordBatch.from_pydict({"id": range(len(units))})]):
        writer.write_batch(batch)
""",
    "curate": """
from jobs import curate
lance.create(root, tables.CURATED)
names = [*curate.CARRIED, "width", "height"]
file = root / "samples.parquet"
planned = [row | {"captions": [], "file": str(file)} for row in pq.read_table(file, columns=names).to_pylist()]
task = curate.curator(root, cfg.curate, cfg.geometry, 200_000_000, Done())
[result] = list(task([pa.RecordBatch.from_pylist(planned)]))
assert json.loads(result["failures"][0].as_py()) == []
lance.commit_append(root, tables.CURATED, json.loads(result["fragments"][0].as_py()), "batch")
""",
    "export": """
from jobs import export
columns = export.mds_columns([], "caption")
names = ["image_id", "tier", "bucket", "width", "height", "original_width", "original_height", "source", "source_key"]
version = lance.version(root, tables.CURATED)
rows = lance.head(root, tables.CURATED, names, 10_000, at=version)
planned = [row | {"id": row["image_id"], "license": "", "caption": "", "shard": 0, "place": place} for place, row in enumerate(rows)]
task = export.shard_writer(export.Export("00000-memory", root, root / "corpus", version, columns, [], 1 << 30), Done())
assert len(list(task([pa.RecordBatch.from_pylist(planned)]))) == 1
""",
}
HEAD = """
import json, re, sys
from pathlib import Path
import pyarrow as pa
import pyarrow.parquet as pq
from imagelake import config, lance, tables
root, cfg = Path(sys.argv[1]), config.load()
class Done:
    def add(self, n): pass
"""
# Not getrusage: its peak counts the parent that was forked, before this program was loaded.
TAIL = """
print(int(re.search(r"VmHWM:\\s+(\\d+) kB", Path("/proc/self/status").read_text())[1]) // 1024)
"""


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One tar of 4 MP photographs-like JPEGs of about 2 MB."""
    folder = tmp_path_factory.mktemp("memory")
    colours = np.random.default_rng(0).integers(0, 255, (60, 80, 3), np.uint8)
    smooth = Image.fromarray(colours).resize((2308, 1732), Image.Resampling.BICUBIC)
    noise = np.random.default_rng(1).normal(0, 9, (1732, 2308, 3))
    out = io.BytesIO()
    Image.fromarray(np.clip(np.asarray(smooth, float) + noise, 0, 255).astype(np.uint8)).save(out, "JPEG", quality=92)
    with tarfile.open(folder / "a.tar", "w") as tar:
        for number in range(IMAGES):
            # A comment makes each file another one: equal bytes would be stored once.
            data = out.getvalue()[:2] + b"\xff\xfe\x00\x06%04d" % number + out.getvalue()[2:]
            member = tarfile.TarInfo(f"{number:04}.jpg")
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    (folder / "sources.yaml").write_text(json.dumps({"sources": [{"name": "big", "format": "webdataset", "path": "a.tar"}]}))
    return folder


@pytest.mark.parametrize("task", TASKS)
def test_peak_memory_of_a_task_stays_below_1_gb(root: Path, task: str) -> None:
    command = [sys.executable, "-c", HEAD + TASKS[task] + TAIL, str(root)]
    done = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    assert int(done.stdout.split()[-1]) < LIMIT_MB
