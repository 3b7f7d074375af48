"""Fetch the jars of requirements/jars.sha256 into .jars/, once: by the Ivy that pyspark brings, else by Maven.

Each is checked by sha256 before it is moved into place, so that .jars/ never holds anything but the locked files.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[1]
JARS = PROJECT / ".jars"
DIGESTS = PROJECT / "requirements" / "jars.sha256"
GROUP = "io.delta"
MAVEN_PLUGIN = "org.apache.maven.plugins:maven-dependency-plugin:3.9.0"


def locked() -> dict[str, str]:
    """File name -> sha256 in hex."""
    lines = (line.split() for line in DIGESTS.read_text(encoding="utf-8").splitlines() if line.strip())
    return {name: digest for digest, name in lines}


def is_whole(path: Path, digest: str) -> bool:
    return path.is_file() and hashlib.sha256(path.read_bytes()).hexdigest() == digest


def ivy_command(artifact: str, version: str, folder: Path) -> list[str] | None:
    """Ivy's own default repository, a cache of its own: what lies in a user's cache may be half a file."""
    spec = importlib.util.find_spec("pyspark")
    found = sorted((Path(spec.origin).parent / "jars").glob("ivy-*.jar")) if spec and spec.origin else []
    if not found:
        return None
    home = os.environ.get("JAVA_HOME")
    java = f"{home}/bin/java" if home else "java"
    command = [java, "-jar", str(found[0]), "-cache", str(folder / "cache"), "-notransitive", "-types", "jar"]
    return [*command, "-dependency", GROUP, artifact, version, "-retrieve", f"{folder}/[artifact]-[revision].[ext]"]


def maven_command(artifact: str, version: str, folder: Path) -> list[str] | None:
    maven = shutil.which("mvn")
    if maven is None:
        return None
    return [maven, "--batch-mode", f"{MAVEN_PLUGIN}:copy", f"-Dartifact={GROUP}:{artifact}:{version}", f"-DoutputDirectory={folder}"]


def fetch(name: str, digest: str) -> None:
    """Raises SystemExit, with what the tools said, when neither brings the locked file."""
    artifact, _, version = name.removesuffix(".jar").rpartition("-")
    said = []
    with tempfile.TemporaryDirectory(dir=JARS) as temporary:
        folder = Path(temporary)
        for make_command in (ivy_command, maven_command):
            command = make_command(artifact, version, folder)
            if command is None:
                continue
            result = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False, cwd=folder)
            if is_whole(folder / name, digest):
                (folder / name).replace(JARS / name)
                return
            problem = "fetched a file with another sha256" if (folder / name).exists() else f"exit code {result.returncode}"
            said.append(f"{Path(command[0]).name}: {problem}\n" + "\n".join(result.stdout.splitlines()[-15:]))
    raise SystemExit("\n".join([f"{name} could not be fetched from the Maven repository", *said]))


def main() -> None:
    JARS.mkdir(exist_ok=True)
    for name, digest in locked().items():
        if not is_whole(JARS / name, digest):
            print(f"setup: fetching {name}", file=sys.stderr)
            fetch(name, digest)


if __name__ == "__main__":
    main()
