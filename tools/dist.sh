#!/bin/sh
# Build the sdist and the wheel into dist/, check them, and try the wheel in two environments without anything else:
#
#     sh tools/dist.sh
#
# The first has the core: a plan, a launch, and a sentence on the extra that `lab open` needs. The second has lablib[labs]:
# in an empty folder a copy of lab 00, and its run. Versions are those of requirements.lock. pip installs, with
# PIP_ARGS; or uv, where UV_TORCH_BACKEND names a build of torch: UV_TORCH_BACKEND=cpu leaves 3 GB of CUDA out.

set -eu
cd "$(dirname "$0")/.."
python=${PYTHON:-python3}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

say() { echo "dist: $1"; }

environment() { # a folder, and what to install into it
    "$python" -m venv "$work/$1"
    if [ -n "${UV_TORCH_BACKEND:-}" ]; then
        uv pip install --quiet --python "$work/$1/bin/python" --constraint requirements.lock "$2"
    else
        # shellcheck disable=SC2086  # PIP_ARGS is a list of words
        "$work/$1/bin/python" -m pip --disable-pip-version-check install --quiet --constraint requirements.lock ${PIP_ARGS:-} "$2"
    fi
    say "$2 is installed: $(du -sm "$work/$1" | cut -f 1) MB"
}

"$python" -m venv "$work/tools"
"$work/tools/bin/python" -m pip --disable-pip-version-check install --quiet build twine
rm -rf dist
"$work/tools/bin/python" -m build --outdir dist . >"$work/build.log" 2>&1 || { tail -n 20 "$work/build.log"; exit 1; }
"$work/tools/bin/python" -m twine check --strict dist/*
wheel=$(pwd)/$(ls dist/*.whl)
if { "$python" -m tarfile -l dist/*.tar.gz; "$python" -m zipfile -l "$wheel"; } | grep -E '(/masters/[^/]*/lab|wrong_answers)\.py([[:space:]]|$)'; then
    say "a package must not hold masters: see the files above"
    exit 1
fi

export PYTHONPATH= LAB_PROGRESS=off OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}"
unset LAB_LABS LAB_WORK
mkdir "$work/empty"
environment core "$wheel"
cd "$work/empty"
"$work/core/bin/lab" plan --model gpt3-175b --cluster dgx-h100 --gpus 1024 --batch 1536 --top 1 | sed -n 1,4p
cat >program.py <<'PROGRAM'
import torch
import torch.distributed as dist
from lablib import launch


def step():
    x = torch.ones(1000)
    dist.all_reduce(x)
    return x.sum().item()


print(launch(step, ranks=8))
PROGRAM
"$work/core/bin/python" program.py
if "$work/core/bin/lab" open 00 2>message; then exit 1; fi
cat message
grep -qF "pip install 'lablib[labs]'" message
cd - >/dev/null

rm -r "$work/core"
environment labs "$wheel[labs]"
cd "$work/empty"
"$work/labs/bin/lab" update 00
"$work/labs/bin/lab" run 00
ls work runs
say "all of it works"
