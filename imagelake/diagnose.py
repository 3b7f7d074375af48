"""What works on this machine: each check says what it saw and, when it failed, what to do."""

from __future__ import annotations

import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from rich.table import Table

from imagelake import query, session
from imagelake.config import Config
from imagelake.errors import EXIT_FAILURE, EXIT_OK, ConfigError

MIN_JAVA = 17
PACKAGES = (
    "pyspark",
    "delta-spark",
    "pylance",
    "mosaicml-streaming",
    "pillow",
    "cykooz.resizer",
    "simplejpeg",
    "torch",
)


@dataclass(frozen=True)
class Finding:
    """`remedy` is empty where all is well."""

    what: str
    seen: str
    remedy: str = ""


def report(cfg: Config) -> int:
    """Print every finding; the exit code is 1 when one needs a remedy."""
    findings = [finding for check in CHECKS for finding in check(cfg)]
    table = Table("", "what", "seen", "to do")
    for finding in findings:
        table.add_row("✗" if finding.remedy else "✓", finding.what, finding.seen, finding.remedy)
    query.console(sys.stdout).print(table)
    return EXIT_FAILURE if any(finding.remedy for finding in findings) else EXIT_OK


def python(_: Config) -> Iterator[Finding]:
    seen = ".".join(map(str, sys.version_info[:3]))
    yield Finding("Python", seen, "" if (3, 11) <= sys.version_info < (3, 13) else "use Python 3.11 or 3.12")


def java(_: Config) -> Iterator[Finding]:
    home = os.environ.get("JAVA_HOME")
    binary = f"{home}/bin/java" if home else shutil.which("java")
    remedy = f"install Java {MIN_JAVA} or later: apt-get install openjdk-17-jre-headless"
    if not binary or not Path(binary).exists():
        yield Finding("Java", "none", remedy)
        return
    text = subprocess.run([binary, "-version"], capture_output=True, text=True, check=False).stderr
    match = re.search(r'version "(\d+)', text)
    old = match is None or int(match[1]) < MIN_JAVA
    yield Finding("Java", text.splitlines()[0] if text else binary, remedy if old else "")
    modules = subprocess.run([binary, "--list-modules"], capture_output=True, text=True, check=False).stdout
    if "jdk.incubator.vector" not in modules:
        yield Finding("Java modules", "jdk.incubator.vector is missing", "use a full JDK or JRE, not a trimmed one")


def packages(_: Config) -> Iterator[Finding]:
    for name in PACKAGES:
        try:
            yield Finding(name, importlib.metadata.version(name))
        except importlib.metadata.PackageNotFoundError:
            yield Finding(name, "not installed", "run `make setup`")


def jars(_: Config) -> Iterator[Finding]:
    try:
        yield Finding("Delta jars", ", ".join(path.name for path in session.checked_jars()))
    except ConfigError as error:
        yield Finding("Delta jars", "missing or altered", str(error))


def image_formats(_: Config) -> Iterator[Finding]:
    from PIL import features

    names = {"jpg": "JPEG", "zlib": "PNG", "webp": "WebP", "libtiff": "TIFF", "littlecms2": "ICC", "avif": "AVIF"}
    there = [label for feature, label in names.items() if features.check(feature)]
    lacking = [label for label in ("JPEG", "PNG", "WebP", "TIFF", "ICC") if label not in there]
    yield Finding("image formats", ", ".join(there), f"Pillow lacks {', '.join(lacking)}: install its wheel" if lacking else "")


def folders(cfg: Config) -> Iterator[Finding]:
    for key, root in (("lake.root", cfg.lake.root), ("corpus.root", cfg.corpus.root)):
        path = Path(root).absolute()
        there = next(folder for folder in (path, *path.parents) if folder.exists())
        writable = os.access(there, os.W_OK)
        free = shutil.disk_usage(there).free / 2**30
        yield Finding(key, f"{path}, {free:,.0f} GiB free", "" if writable else f"{there} is not writable; --set {key}=…")


def machine(cfg: Config) -> Iterator[Finding]:
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    yield Finding("machine", f"{os.cpu_count()} cores, {memory:,.0f} GiB", "" if memory >= 6 else "Spark's driver wants 4 GiB")


def spark(cfg: Config) -> Iterator[Finding]:
    try:
        built = session.build(cfg.spark)
    except Exception as error:  # whatever keeps Spark from starting is what the user asked to know
        yield Finding("Spark session", str(error)[:200], "see the lines above")
        return
    yield Finding("Spark session", f"{built.version} on {built.sparkContext.master}")
    built.stop()


CHECKS: tuple[Callable[[Config], Iterator[Finding]], ...] = (
    python,
    java,
    packages,
    jars,
    image_formats,
    folders,
    machine,
    spark,
)
