#!/bin/sh
# Install every package of requirements.lock, and this project, into the environment of a Python. By hand:
#
#     sh tools/install.sh path/to/python path/to/log
#
# uv installs, and takes the build of torch that this machine can use: the CPU build (200 MB) where there is no NVIDIA
# driver, the CUDA build (gigabytes) where there is one, the only build on macOS. pip installs as it always did, where
#   - PIP_ARGS is set: further arguments of `pip install`;
#   - pip's settings say where packages come from, and no setting of uv does: uv does not read them;
#   - uv cannot be had, or cannot fetch what it needs: PyTorch has an index of its own, which a network may close.
# One line says which of these it was. UV_TORCH_BACKEND names a build oneself: cpu, cu130, rocm7.2, ...

set -u
cd "$(dirname "$0")/.." || exit 1
python=${1:?"name a Python and a log, as in: sh tools/install.sh .venv/bin/python setup.log"}
log=${2:?"name a log, as in: sh tools/install.sh .venv/bin/python setup.log"}
tool=pip

fail() {
    echo "setup: $1" >&2
    exit 1
}

# Ends with one sentence, or the lines of the log, that say what went wrong.
explain() {
    if grep -qiE 'no space left|os error 28' "$log"; then
        fail "the disk is full: free about 3 GB (10 GB with the CUDA build of torch), then run make again."
    fi
    if grep -qiE 'from versions: none|connection ?(error|refused|reset)|NewConnectionError|name resolution|timed out|proxy ?error|failed to (fetch|download)|error sending request' "$log"; then
        # shellcheck disable=SC2016  # uv quotes names in backticks
        package=$(sed -n -e 's/.*satisfies the requirement \([^ ]*\).*/\1/p' -e 's/.*[Ff]ailed to download `\([^`]*\)`.*/\1/p' "$log" | tail -n 1)
        fail "the packages cannot be downloaded${package:+ (the first one missing is $package)}: connect this machine to the network or set $tool's own options for your mirror or proxy, then run make again."
    fi
    echo "setup: $tool could not install the packages; its own words, and all of them in $log:" >&2
    { grep -iE '^ *(error|fatal|cause|hint|×|╰)' "$log" || tail -n 5 "$log"; } | tail -n 8 | cut -c 1-300 | sed 's/^/    /' >&2
    exit 1
}

pip_install() {
    # --quiet: what is worth reading is in the log, and is read from there.
    "$python" -m pip --disable-pip-version-check --no-input install --quiet "$@" >>"$log" 2>&1
}

uv_install() {
    "$uv" pip install --python "$python" --no-progress --color never ${backend:+"--torch-backend=$backend"} \
        --requirement requirements.lock "$@" >>"$log" 2>&1
}

# The settings of pip that say where packages come from, by name: in its files and in the environment.
pip_sources() {
    "$python" -m pip config list 2>/dev/null | awk -F= '
        $2 ~ /[^'"'"' ]/ && match($1, /(index-url|extra-index-url|find-links|no-index|constraint)$/) {
            name = substr($1, RSTART)
            if (!seen[name]++) { printf "%s%s", comma, name; comma = ", " }
        }'
}

nvidia_driver() {
    [ -e /proc/driver/nvidia/version ] || [ -n "${UV_CUDA_DRIVER_VERSION:-}" ] || nvidia-smi -L >/dev/null 2>&1
}

# Why uv is not asked at all; nothing where it is.
uv_is_left_out() {
    if [ -n "${PIP_ARGS:-}" ]; then
        echo "PIP_ARGS are arguments of pip"
    elif [ -z "${UV_TORCH_BACKEND:-}${UV_DEFAULT_INDEX:-}${UV_INDEX_URL:-}${UV_INDEX:-}${UV_EXTRA_INDEX_URL:-}${UV_FIND_LINKS:-}" ]; then
        sources=$(pip_sources)
        [ -z "$sources" ] || echo "pip's settings here say where packages come from ($sources)"
    fi
}

# A uv that chooses torch's build: the environment's, the user's, or one that pip brings. It gives up within seconds.
find_uv() {
    for uv in "$(dirname "$python")/uv" uv; do
        "$uv" pip install --help 2>/dev/null | grep -q -e --torch-backend && return
    done
    uv=$(dirname "$python")/uv
    pip_install --retries 1 --timeout 10 uv && "$uv" --version >/dev/null 2>&1
}

# Which build, and why. Not `auto` where there is no NVIDIA driver: for the graphics of most laptops that is Intel's build,
# gigabytes again, and no lab uses it. On macOS there is one build, in the usual index.
choose_backend() {
    if [ -n "${UV_TORCH_BACKEND:-}" ]; then
        backend=$UV_TORCH_BACKEND
        build="the build that UV_TORCH_BACKEND names, $backend"
    elif [ "$(uname -s)" = Darwin ]; then
        backend=
        build="the one build there is for macOS"
    elif nvidia_driver; then
        backend=auto
        build="the build for this machine's NVIDIA driver"
    else
        backend=cpu
        build="the CPU build, since this machine has no NVIDIA driver"
    fi
}

# Can uv find everything? It looks, and installs nothing; patience is for the installation, and for who asks for it.
uv_can() {
    UV_HTTP_RETRIES=${UV_HTTP_RETRIES:-1} UV_HTTP_TIMEOUT=${UV_HTTP_TIMEOUT:-10} \
        UV_HTTP_CONNECT_TIMEOUT=${UV_HTTP_CONNECT_TIMEOUT:-5} uv_install --dry-run
}

: >"$log" || fail "$log cannot be written to."
backend=
why=$(uv_is_left_out)
if [ -n "$why" ]; then
    :
elif ! find_uv; then
    why="uv cannot be downloaded"
elif choose_backend && uv_can; then
    tool=uv
else
    # shellcheck disable=SC2016
    address=$(sed -n 's/.*[Ff]ailed to fetch: *`*\([^` ]*\).*/\1/p' "$log" | tail -n 1)
    why="uv says \"$(grep -E '^ *(error|cause|hint)' "$log" | tail -n 1 | sed 's/^ *//' | cut -c 1-200)\""
    [ -z "$address" ] || why="uv cannot fetch $address"
fi

# What uv has said by now would be taken for what goes wrong from here on.
mv "$log" "${log%.log}-uv.log"
if [ "$tool" = uv ]; then
    echo "uv installs the lock. torch: $build."
    uv_install || explain
else
    echo "pip installs the lock, since $why. torch: the build that pip finds, which on Linux is mostly CUDA's (gigabytes)."
    # shellcheck disable=SC2086  # PIP_ARGS is a list of words
    pip_install --requirement requirements.lock ${PIP_ARGS:-} || explain
fi
tool=pip
# Without build isolation: the setuptools of the lock builds it, and nothing more is downloaded.
pip_install --no-deps --no-build-isolation --editable . || explain
