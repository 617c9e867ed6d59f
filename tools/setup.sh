#!/bin/sh
# Make .venv, with every package of requirements.lock and this project in it. Called by the Makefile; by hand:
#
#     sh tools/setup.sh [stamp file]
#
# From the environment: PYTHON (an interpreter; else the first supported one found) and PIP_ARGS (further arguments of
# `pip install`). It prints one line, and one sentence with the remedy where it cannot go on. The stamp file is written
# last, so a set-up that was interrupted is done again, and what was installed by then is kept.

set -u
cd "$(dirname "$0")/.." || exit 1
venv=.venv
stamp=${1:-$venv/.stamp-setup}
log=$venv/setup.log

fail() {
    echo "setup: $1" >&2
    exit 1
}

# Is this a Python we support? Older ones are not asked anything that they could not parse.
supported() {
    "$1" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' >/dev/null 2>&1
}

find_python() {
    if [ -n "${PYTHON:-}" ]; then
        supported "$PYTHON" || fail "PYTHON=$PYTHON is not Python 3.11, 3.12 or 3.13 ($(version_of "$PYTHON")): name one that is, as in make lab PYTHON=python3.12."
        python=$PYTHON
        return
    fi
    for python in python3 python3.13 python3.12 python3.11 python; do
        supported "$python" && return
    done
    fail "Python 3.11, 3.12 or 3.13 is needed and none was found (python3: $(version_of python3)): install one, or name it, as in make lab PYTHON=/path/to/python3.12."
}

version_of() {
    "$1" --version 2>&1 | head -n 1 | grep '^Python [0-9]' || echo "no such program"
}

# The lines of pip's log that say what went wrong.
explain_pip() {
    if grep -qi 'no space left' "$log"; then
        fail "the disk is full: free about 3 GB (10 GB with the CUDA build of torch), then run make again."
    fi
    if grep -qiE 'from versions: none|connection ?(error|refused|reset)|NewConnectionError|name resolution|timed out|proxy ?error' "$log"; then
        package=$(sed -n 's/.*satisfies the requirement \([^ ]*\).*/\1/p' "$log" | tail -n 1)
        fail "the packages cannot be downloaded${package:+ (the first one missing is $package)}: connect this machine to the network or set pip's own options for your mirror or proxy, then run make again."
    fi
    echo "setup: pip could not install the packages; its own words, and all of them in $log:" >&2
    { grep -iE '^ *(error|fatal|×|╰)' "$log" || tail -n 5 "$log"; } | tail -n 8 | cut -c 1-300 | sed 's/^/    /' >&2
    exit 1
}

pip_install() {
    # --quiet: what is worth reading is in the log, and is read from there.
    "$venv/bin/python" -m pip --disable-pip-version-check --no-input install --quiet "$@" >>"$log" 2>&1 || explain_pip
}

trap 'echo "setup: interrupted; run make again to go on." >&2; exit 130' INT TERM

rm -f "$stamp"
if ! supported "$venv/bin/python"; then
    find_python
    "$python" -c 'import venv, ensurepip' >/dev/null 2>&1 ||
        fail "$(version_of "$python") has no venv module: install it (on Debian and Ubuntu: apt install python3-venv), or name another Python, as in make lab PYTHON=/path/to/python3.12."
fi
echo "Setting up $venv with $(version_of "${python:-$venv/bin/python}") (once; some minutes) ..."
if [ -n "${python:-}" ]; then
    "$python" -m venv --clear "$venv" 2>/dev/null || fail "$venv cannot be made here ($(pwd)): is the folder writable and the disk not full?"
fi
"$venv/bin/python" -m pip --version >/dev/null 2>&1 || "$venv/bin/python" -m ensurepip >/dev/null 2>&1
: >"$log" || fail "$venv cannot be written to: give it back to yourself, or delete it, then run make again."
# shellcheck disable=SC2086  # PIP_ARGS is a list of words
pip_install --requirement requirements.lock ${PIP_ARGS:-}
# Without build isolation: the setuptools of the lock builds it, and nothing more is downloaded.
pip_install --no-deps --no-build-isolation --editable .
: >"$stamp"
