"""Where the project's own files lie: configuration, SQL, jars."""

from __future__ import annotations

from pathlib import Path

PROJECT = Path(__file__).resolve().parents[1]
CONF = PROJECT / "conf"
SQL = PROJECT / "sql"
JARS = PROJECT / ".jars"
CLASS_ARCHIVE = JARS / "classes.jsa"
JAR_DIGESTS = PROJECT / "requirements" / "jars.sha256"
