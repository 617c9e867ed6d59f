#!/bin/sh
# Write requirements.lock: every package that pyproject.toml asks for, pinned, for every supported Python and system;
# requirements-grading.lock: what nbgrader needs beside them (in the first file it would add its buttons to the JupyterLab
# of every learner); and requirements-site.lock: what `lab site` needs beside them.
#
#     sh tools/lock.sh [--upgrade]
#
# Versions already in the lock stay where they can; --upgrade takes the newest. Needs a network.
#
# torch's CUDA packages are taken out of the result: torch pins them itself, so a GPU machine gets the same ones, and
# the CPU build of torch, which does without, does not drag them in. Triton stays, in the version that torch pins: its
# interpreter runs kernels where no GPU is.

set -eu
cd "$(dirname "$0")/.."
torch=2.13.0

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
if ! command -v uv >/dev/null 2>&1; then
    "${PYTHON:-python3}" -m venv "$work/venv"
    "$work/venv/bin/python" -m pip --disable-pip-version-check install --quiet uv
    PATH="$work/venv/bin:$PATH"
fi
compile() { # the packages of pyproject.toml and one extra, into a file that may hold versions to stay with
    extra=$1 constraints=$2 into=$3
    shift 3
    uv pip compile --quiet --universal --python-version 3.11 --extra "$extra" --constraints "$constraints" --no-header \
        --no-annotate --no-emit-index-url --no-emit-find-links --output-file "$into" "$@" pyproject.toml
}

without_cuda() { grep -vE "^(nvidia|cuda)[-=]|sys_platform == '(win32|emscripten)'$|os_name == 'nt'$" "$1"; }

write() { # standard input, under a heading, as the file
    { echo "# $2 Written by \`make lock\`; install with \`pip install -r $1\`." && cat; } >"$work/$1"
    mv "$work/$1" "$1"
    echo "$1: $(grep -c == "$1") packages"
}

# jsonschema 4.25 began to compile 38 grammars at its import: 1.5 s more for every process of Jupyter that starts.
printf 'torch==%s\njsonschema<4.25\n' "$torch" >"$work/constraints.txt"
cp requirements.lock "$work/lock.txt" 2>/dev/null || : # the versions to stay with
cp requirements-grading.lock "$work/grading.txt" 2>/dev/null || :
cp requirements-site.lock "$work/site.txt" 2>/dev/null || :
compile test "$work/constraints.txt" "$work/lock.txt" "$@"
without_cuda "$work/lock.txt" | write requirements.lock "Every package, pinned."
compile grading requirements.lock "$work/grading.txt" "$@"
without_cuda "$work/grading.txt" | grep -vxFf requirements.lock |
    write requirements-grading.lock "What nbgrader needs beside requirements.lock, pinned."
compile site requirements.lock "$work/site.txt" "$@"
without_cuda "$work/site.txt" | grep -vxFf requirements.lock |
    write requirements-site.lock "What \`lab site\` needs beside requirements.lock, pinned."
