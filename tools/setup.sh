#!/bin/sh
# Make .venv, with every package of requirements.lock and this project in it. Called by the Makefile; by hand:
#
#     sh tools/setup.sh [stamp file]
#
# From the environment: PYTHON (an interpreter; otherwise the first supported one found), LABLIB_VENV (another folder than
# .venv) and the variables of tools/install.sh. It prints two lines, or one sentence with the remedy where it cannot go on.
# The stamp file is written last: an interrupted set-up is done again, and keeps the packages that it has installed. With
# the word `same-python` it only compares PYTHON, if named, with the Python of the environment.

set -u
cd "$(dirname "$0")/.." || exit 1
venv=${LABLIB_VENV:-.venv}
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

# A Python that is named is the one of the environment, or there is none yet.
if [ -n "${PYTHON:-}" ] && supported "$venv/bin/python"; then
    named=$(version_of "$PYTHON") has=$(version_of "$venv/bin/python")
    [ "$named" = "$has" ] ||
        fail "$venv has $has, and PYTHON=$PYTHON is another one ($named): delete it (make clean), or name another folder, as in make setup PYTHON=$PYTHON LABLIB_VENV=other."
fi
[ "${1:-}" != same-python ] || exit 0

trap '[ ! -t 2 ] || echo >&2; echo "setup: interrupted; run make again to go on." >&2; exit 130' INT TERM

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
sh tools/install.sh "$venv/bin/python" "$log" || exit 1
: >"$stamp"
