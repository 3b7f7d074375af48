"""The guides' code, run as it stands there, on a small corpus."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from demo.textmodels import make_qwen3_vl
from imagelake.paths import PROJECT
from tests.corpus_fixture import make_corpus


def test_the_training_guide_trains(tmp_path: Path) -> None:
    places = {"/data/corpus": tmp_path / "corpus", "/models/Qwen3-VL-2B-Instruct": tmp_path / "model"}
    make_corpus(places["/data/corpus"])
    make_qwen3_vl(places["/models/Qwen3-VL-2B-Instruct"], ["a picture of a bucket"])
    text = (PROJECT / "docs/guides/training.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    for named, place in places.items():
        assert f'"{named}"' in code
        code = code.replace(f'"{named}"', repr(str(place)))
    script = tmp_path / "train.py"
    script.write_text(code, encoding="utf-8")
    done = subprocess.run([sys.executable, str(script)], cwd=PROJECT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    printed = re.fullmatch(r"(\d+) steps, loss ([\d.]+) → ([\d.]+)\n24 captions, 0.0% truncated\n", done.stdout)
    assert printed and int(printed[1]) == 7 + 3 + 2
    assert float(printed[3]) < float(printed[2])
