"""Make the sources of `make demo`: one folder, one WebDataset tar, one Parquet file, and what the pipeline owes each sample.

    python -m demo.sources OUT

No network: the pictures come with scikit-image. Two runs write the same bytes and the same modification times, so that a repeat of the
demo finds its sources unchanged.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import sys
import tarfile
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import yaml

from demo.cases import all_samples
from demo.samples import PARQUET, TAR, Sample, expectations, of_source

MTIME_S = 1_577_836_800  # 2020-01-01, whenever the demo is made
ROW_GROUP_ROWS = 8

SOURCES = [
    {
        "name": "photos",
        "format": "folder",
        "path": "photos",
        "captions": {"alt": "metadata.jsonl:caption"},
        "license_column": "metadata.jsonl:license",
        "attribution_column": "metadata.jsonl:attribution",
    },
    {
        "name": "web",
        "format": "webdataset",
        "path": "web/*.tar",
        "captions": {"alt": "txt", "title": "json:title"},
        "license_column": "json:license",
        "attribution_column": "json:attribution",
    },
    {
        "name": "hub",
        "format": "parquet",
        "path": "hub/*.parquet",
        "image": "image",
        "captions": {"alt": "caption"},
        "license_column": "license",
        "attribution_column": "attribution",
    },
]


def write(path: Path, data: bytes) -> None:
    """Whole or not at all, with a modification time that is the same in every run."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.tmp")
    temporary.write_bytes(data)
    os.utime(temporary, (MTIME_S, MTIME_S))
    temporary.replace(path)


def rights(sample: Sample) -> dict[str, object]:
    return {"license": sample.license, "attribution": sample.attribution}


def write_folder(folder: Path, samples: Sequence[Sample]) -> None:
    """One file a sample, and metadata.jsonl for those that have a caption."""
    lines = []
    for sample in samples:
        write(folder / sample.file_name, sample.data)
        if sample.caption is not None:
            record = {
                "file_name": sample.file_name,
                "caption": sample.caption,
                "license": sample.license,
                "attribution": sample.attribution,
            }
            lines.append(json.dumps(record, ensure_ascii=False) + "\n")
    write(folder / "metadata.jsonl", "".join(lines).encode())


def write_tar(path: Path, samples: Sequence[Sample]) -> None:
    """Image, .txt and .json of each sample; a second member of a name comes last."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        for sample in sorted(samples, key=lambda sample: (sample.member is not None, sample.name)):
            members = {sample.file_name: sample.data}
            if sample.member is None:
                about = {"title": sample.name.replace("-", " ")} | rights(sample)
                members[f"{sample.name}.json"] = json.dumps(about, ensure_ascii=False).encode()
                if sample.caption is not None:
                    members[f"{sample.name}.txt"] = sample.caption.encode()
            for name, data in members.items():
                member = tarfile.TarInfo(name)
                member.size = len(data)
                tar.addfile(member, io.BytesIO(data))
    write(path, out.getvalue())


def write_parquet(path: Path, samples: Sequence[Sample]) -> None:
    """Images as a struct of bytes and path, as Hugging Face writes them."""
    image = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    text = pa.string()
    schema = pa.schema([("image", image), ("caption", text), ("license", text), ("attribution", text)])
    images = [{"bytes": sample.data, "path": sample.file_name} for sample in samples]
    rows = [{"image": image, "caption": s.caption} | rights(s) for image, s in zip(images, samples, strict=True)]
    out = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(rows, schema), out, row_group_size=ROW_GROUP_ROWS, compression="none", use_dictionary=False)
    write(path, out.getvalue())


def make_sources(out: Path) -> list[Sample]:
    """Write sources.yaml, expected.json and the three sources below `out`; returns the samples."""
    samples = all_samples()
    write_folder(out / "photos", of_source(samples, "photos"))
    write_tar(out / "web" / TAR, of_source(samples, "web"))
    write_parquet(out / "hub" / PARQUET, of_source(samples, "hub"))
    write(out / "expected.json", (json.dumps(expectations(samples), ensure_ascii=False, indent=1) + "\n").encode())
    write(out / "sources.yaml", yaml.safe_dump({"sources": SOURCES}, sort_keys=False).encode())
    return samples


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    out: Path = parser.parse_args().out
    samples = make_sources(out)
    planted = sum(bool(sample.case) for sample in samples)
    size = sum(path.stat().st_size for path in out.rglob("*") if path.is_file())
    print(f"{out}: {len(samples)} samples ({planted} planted cases) in 3 sources, {size / 1e6:.1f} MB", file=sys.stderr)


if __name__ == "__main__":
    main()
