#!/usr/bin/env bash
# Makes .venv and .jars ready: idempotent, and quick when nothing changed. What is missing is named with the command that installs it;
# as root on Debian or Ubuntu it is installed.
set -euo pipefail
cd "$(dirname "$0")/.."

VENV=.venv
STAMP=$VENV/.setup-stamp
INPUTS=(requirements/uv.txt requirements/dev.txt requirements/jars.sha256 pyproject.toml scripts/setup.sh scripts/fetch_jars.py scripts/class_archive.py)

say() { printf 'setup: %s\n' "$*" >&2; }
die() { say "$*"; exit 1; }

can_install() { [ "$(id -u)" = 0 ] && [ -f /etc/debian_version ] && command -v apt-get >/dev/null; }

APT_UPDATED=
apt_update() {
    [ -n "$APT_UPDATED" ] && return
    say "apt-get update"
    apt-get update -qq
    APT_UPDATED=1
}

# The first of some packages that this release has.
apt_first() {
    local package
    for package in "$@"; do
        if apt-cache show "$package" >/dev/null 2>&1; then echo "$package"; return; fi
    done
    return 1
}

apt_install() {
    say "apt-get install $*"
    mkdir -p /usr/share/man/man1 # slim images lack it, and a JRE's alternatives need it
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$@" >/dev/null
}

# Prints why an interpreter won't do; nothing when it will.
python_fault() {
    local version
    version=$("$1" -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null) || { echo "it does not run"; return; }
    case $version in 3.11 | 3.12) ;; *) echo "it is Python $version"; return ;; esac
    "$1" -c 'import venv, ensurepip' 2>/dev/null || echo "it lacks venv (package python$version-venv)"
}

find_python() {
    local candidate
    for candidate in ${PYTHON:-python3.11 python3.12 python3 python}; do
        command -v "$candidate" >/dev/null && [ -z "$(python_fault "$candidate")" ] && { command -v "$candidate"; return; }
    done
    return 1
}

need_python() {
    PYTHON_FOUND=$(find_python) && return
    if [ -z "${PYTHON:-}" ] && can_install; then
        apt_update
        local version
        for version in 3.11 3.12; do
            if apt_first "python$version-venv" >/dev/null; then apt_install "python$version" "python$version-venv"; break; fi
        done
        PYTHON_FOUND=$(find_python) && return
    fi
    local candidate
    for candidate in ${PYTHON:-python3.11 python3.12 python3}; do
        if command -v "$candidate" >/dev/null; then say "$candidate won't do: $(python_fault "$candidate")"; else say "$candidate: not found"; fi
    done
    die "Python 3.11 or 3.12 with venv is missing. On Debian or Ubuntu: sudo apt-get install python3 python3-venv; or name one: make setup PYTHON=…"
}

# Prints why a Java won't do; nothing when it will.
java_fault() {
    local version
    command -v "$1" >/dev/null || { echo "it is not there"; return; }
    version=$("$1" -version 2>&1 | sed -n 's/.* version "\([0-9]*\).*/\1/p' | head -n 1)
    [ "${version:-0}" -ge 17 ] || { echo "it is version ${version:-unknown}, older than 17"; return; }
    # Spark asks for this module; a trimmed runtime starts and then fails.
    "$1" --list-modules 2>/dev/null | grep -q '^jdk.incubator.vector' || echo "it is trimmed: module jdk.incubator.vector is missing"
}

need_java() {
    # Spark takes JAVA_HOME first, so that a bad one is at fault even when PATH has a good one.
    local java=java fault
    [ -z "${JAVA_HOME:-}" ] || java=$JAVA_HOME/bin/java
    fault=$(java_fault "$java")
    [ -z "$fault" ] && return
    if [ -z "${JAVA_HOME:-}" ] && can_install; then
        apt_update
        local package
        package=$(apt_first openjdk-17-jre-headless openjdk-21-jre-headless openjdk-25-jre-headless default-jre-headless) || package=
        [ -z "$package" ] || apt_install "$package"
        fault=$(java_fault java)
        [ -z "$fault" ] && return
    fi
    say "$java won't do: $fault"
    [ -z "${JAVA_HOME:-}" ] || say "JAVA_HOME is set to it: set it to another, or unset it"
    die "Java 17 or later is missing. On Debian or Ubuntu: sudo apt-get install openjdk-17-jre-headless"
}

stamp_of() { { pwd; "$PYTHON_FOUND" -VV; "${JAVA_HOME:+$JAVA_HOME/bin/}java" -version 2>&1; cat "${INPUTS[@]}"; } | sha256sum | cut -d ' ' -f 1; }

jars_are_whole() { (cd .jars 2>/dev/null && sha256sum --check --status ../requirements/jars.sha256 2>/dev/null); }

is_ready() {
    [ -f $STAMP ] && [ "$(cat $STAMP)" = "$1" ] && "$VENV/bin/python" -c '' 2>/dev/null && jars_are_whole
}

pip_setting() { $VENV/bin/python -m pip config get "global.$1" 2>/dev/null || true; }

install_python_packages() {
    rm -f $STAMP
    # Another interpreter's environment, or one whose interpreter is gone, can't be repaired.
    if [ -d $VENV ] && [ "$("$VENV/bin/python" -c 'import sys; print(sys.version)' 2>/dev/null)" != "$("$PYTHON_FOUND" -c 'import sys; print(sys.version)')" ]; then
        rm -rf $VENV
    fi
    [ -x $VENV/bin/pip ] || "$PYTHON_FOUND" -m venv --clear $VENV
    say "installing the locked packages into $VENV"
    $VENV/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements/uv.txt
    # uv does not read pip's configuration: take index and certificates from there, so that one setting serves both.
    local index certificates
    index=${PIP_INDEX_URL:-$(pip_setting index-url)}
    certificates=${PIP_CERT:-$(pip_setting cert)}
    [ -n "${UV_DEFAULT_INDEX:-}${UV_INDEX_URL:-}" ] || [ -z "$index" ] || export UV_DEFAULT_INDEX=$index
    [ -n "${SSL_CERT_FILE:-}" ] || [ -z "$certificates" ] || export SSL_CERT_FILE=$certificates
    $VENV/bin/uv pip sync --quiet --python $VENV/bin/python --require-hashes requirements/dev.txt
    $VENV/bin/uv pip install --quiet --python $VENV/bin/python --no-deps --no-build-isolation \
        --config-setting editable_mode=compat --editable . # a plain path, where Spark looks for pyspark_lance.py
}

need_python
need_java
stamp=$(stamp_of)
if is_ready "$stamp"; then exit 0; fi
install_python_packages
$VENV/bin/python scripts/fetch_jars.py
$VENV/bin/python -m imagelake.session >/dev/null # Delta and the Lance source for plain spark-submit and spark-sql
say "preparing Java's class archive: runs start some ten seconds sooner with it"
$VENV/bin/python scripts/class_archive.py || say "without it, then: $VENV/bin/python scripts/class_archive.py makes it later"
echo "$stamp" >$STAMP
say "ready: source $VENV/bin/activate"
