"""The guides' code, run as it stands there, on a small corpus."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from imagelake.paths import PROJECT
from tests.corpus_fixture import make_corpus


def test_the_training_guide_trains(tmp_path: Path) -> None:
    make_corpus(tmp_path / "corpus")
    text = (PROJECT / "docs/guides/training.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    assert '"/data/corpus"' in code
    script = tmp_path / "train.py"
    script.write_text(code.replace('"/data/corpus"', repr(str(tmp_path / "corpus"))), encoding="utf-8")
    done = subprocess.run([sys.executable, str(script)], cwd=PROJECT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    printed = re.fullmatch(r"(\d+) steps, loss ([\d.]+) → ([\d.]+)\n", done.stdout)
    assert printed and int(printed[1]) == 7 + 3 + 2
    assert float(printed[3]) < float(printed[2])
