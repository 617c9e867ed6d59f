#!/bin/sh
# Write requirements.lock: every package that pyproject.toml asks for, pinned, for every supported Python and system.
#
#     sh tools/lock.sh [--upgrade]
#
# Versions already in the lock stay where they can; --upgrade takes the newest. Needs a network.
#
# torch's CUDA packages are taken out of the result: torch pins them itself, so a GPU machine gets the same ones, and
# the CPU build of torch, which does without, does not drag them in.

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
echo "torch==$torch" >"$work/constraints.txt"
cp requirements.lock "$work/lock.txt" 2>/dev/null || : # the versions to stay with
uv pip compile --quiet --universal --python-version 3.11 --extra test --constraints "$work/constraints.txt" \
    --no-header --no-annotate --no-emit-index-url --no-emit-find-links --output-file "$work/lock.txt" "$@" pyproject.toml
{
    echo "# Every package, pinned. Written by \`make lock\`; install with \`pip install -r requirements.lock\`."
    grep -vE "^(nvidia|cuda|triton)[-=]|sys_platform == '(win32|emscripten)'$|os_name == 'nt'$" "$work/lock.txt"
} >"$work/requirements.lock"
mv "$work/requirements.lock" requirements.lock
echo "requirements.lock: $(grep -c == requirements.lock) packages, torch $torch"
