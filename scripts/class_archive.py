"""Make .jars/classes.jsa: the classes of a small run of the whole chain, as Java maps them into memory instead of loading them anew.

The run also leaves the bytecode of what it imports beside the installed packages, so that no later process compiles it again.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
from PIL import Image

from imagelake.paths import CLASS_ARCHIVE, PROJECT


def make_sources(folder: Path) -> Path:
    """A folder of pictures, one of them too small and one a copy, with captions: something for each stage."""
    pictures = folder / "pictures"
    pictures.mkdir()
    random = np.random.default_rng(0)
    for name, side in {"large": 600, "square": 512, "small": 64}.items():
        noise = Image.fromarray(random.integers(0, 256, (8, 8, 3), np.uint8)).resize((side, side))
        noise.save(pictures / f"{name}.jpg")
        (pictures / f"{name}.txt").write_text(name, encoding="utf-8")
    (pictures / "copy.jpg").write_bytes((pictures / "large.jpg").read_bytes())
    sources = folder / "sources.json"
    source = {"name": "pictures", "format": "folder", "path": str(pictures), "captions": {"alt": "txt"}}
    sources.write_text(json.dumps({"sources": [source]}), encoding="utf-8")
    return sources


def main() -> None:
    CLASS_ARCHIVE.unlink(missing_ok=True)  # else the run would use it, and Java can't do both
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        made = folder / "classes.jsa"
        roots = [f"{key}={folder / key}" for key in ("lake.root", "corpus.root")]
        command = [sys.executable, "-m", "imagelake.cli", "run", "--sources", make_sources(folder), "--config", PROJECT / "conf/local.yaml"]
        env = os.environ | {"JAVA_TOOL_OPTIONS": f"-XX:ArchiveClassesAtExit={made}"}
        env.pop("PYTHONDONTWRITEBYTECODE", None)
        done = subprocess.run(
            [*command, *(part for root in roots for part in ("--set", root))], cwd=PROJECT, env=env, capture_output=True, text=True
        )
        if done.returncode != 0 or not made.is_file():
            raise SystemExit(f"class archive: the run ended with {done.returncode}\n{done.stdout[-2000:]}{done.stderr[-4000:]}")
        shutil.move(made, CLASS_ARCHIVE)


if __name__ == "__main__":
    main()
