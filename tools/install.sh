#!/bin/sh
# Install every package of requirements.lock, and this project, into the environment of a Python. By hand:
#
#     sh tools/install.sh path/to/python path/to/log
#
# uv installs, and takes the build of torch that this machine can use: the CPU build (200 MB) where there is no NVIDIA
# driver, the CUDA build (gigabytes) where there is one, the only build on macOS. pip installs as it always did, where
#   - PIP_ARGS is set: further arguments of `pip install`;
#   - uv cannot be had, or cannot fetch what it needs: PyTorch has an index of its own, which a network may close.
# One line says which of these it was. UV_TORCH_BACKEND names a build oneself: cpu, cu130, rocm7.2, ...
#
# pip's settings of where packages come from (a mirror, a folder of wheels) are handed to uv, unless uv has its own; torch
# then comes from there, too. Where that is only the CUDA build and this machine has no NVIDIA driver, uv takes the CPU
# build of PyTorch's own index, if pip's settings name no index instead of the usual one, or if LABLIB_TORCH=cpu asks for
# it. Where only the CUDA build can be had, a terminal is asked first; LABLIB_TORCH=cuda takes it, LABLIB_TORCH=cpu
# refuses it. A terminal sees a line of progress.

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
    "$python" -m pip --disable-pip-version-check --no-input install --progress-bar off "$@" >>"$log" 2>&1
}

# The needs of the torch that pip would install. Nothing is installed, and nothing large is fetched, if the index has
# metadata apart (PEP 658) and pip is 23.3 or newer; otherwise torch's wheel is, 0.5 GB, and stays in pip's cache.
pip_looks() {
    # shellcheck disable=SC2086  # PIP_ARGS is a list of words
    "$python" -m pip --disable-pip-version-check --no-input install --quiet --dry-run --report - --no-deps \
        --retries 1 --timeout 10 --constraint requirements.lock torch ${PIP_ARGS:-} >>"$log" 2>&1
}

uv_install() {
    "$uv" pip install --python "$python" --no-progress --color never ${backend:+"--torch-backend=$backend"} \
        --requirement requirements.lock "$@" >>"$log" 2>&1
}

# The settings of pip that say where packages come from, "name value" in each line: in its files, then in the environment.
pip_sources() {
    "$python" -m pip config list 2>/dev/null | awk '
        {
            at = index($0, "=")
            name = substr($0, 1, at - 1)
            value = substr($0, at + 1)
            gsub(/^'"'"'|'"'"'$/, "", value)
            gsub(/\\n/, " ", value) # one of several lines of a file
        }
        value ~ /[^ ]/ && match(name, /(extra-index-url|index-url|find-links|no-index|constraint)$/) { found[substr(name, RSTART)] = value }
        END { for (name in found) print name, found[name] }'
}

# Give them to uv in its own variables, and its names to `sources`; a package is then the best of all sources, as pip's.
hand_over() {
    sources=
    while read -r name value; do
        [ -n "$name" ] || continue
        case $name in
            index-url) export UV_DEFAULT_INDEX="$value" ;;
            extra-index-url) export UV_INDEX="$value" ;;
            find-links) UV_FIND_LINKS=$(echo "$value" | sed 's/  */,/g') && export UV_FIND_LINKS ;;
            no-index) export UV_NO_INDEX=1 ;;
            constraint) export UV_CONSTRAINT="$value" ;;
        esac
        sources=${sources:+$sources, }$name
    done <<SETTINGS
$(pip_sources)
SETTINGS
    [ -z "$sources" ] || export UV_INDEX_STRATEGY="${UV_INDEX_STRATEGY:-unsafe-best-match}"
}

# Run a command under a label. On a terminal, a line shows the label and the seconds; with the label `installing`, also
# the bytes and packages still to be downloaded, or those in the environment.
watched() {
    label=$1
    shift
    if [ ! -t 1 ]; then
        "$@"
        return
    fi
    progress &
    watcher=$!
    "$@"
    status=$?
    kill "$watcher" 2>/dev/null
    wait "$watcher" 2>/dev/null
    printf "\r%$(($(columns) - 1))s\r" ''
    return "$status"
}

columns() {
    wide=$(stty size 2>/dev/null <&3 | cut -d ' ' -f 2)
    [ "${wide:-0}" -gt 0 ] || wide=80
    echo "$wide"
}

progress() {
    trap 'exit 0' TERM
    site=$("$python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
    seconds=0
    while :; do
        sleep 1 &
        wait "$!"
        seconds=$((seconds + 1))
        set -- "$site"/*.dist-info
        awk -v label="$label" -v seconds="$seconds" -v number="$#" -v columns="$(columns)" \
            -v total="$(grep -c == requirements.lock)" '
            function megabytes(text) {
                gsub(/[()]/, "", text)
                return substr(text, 1) * (text ~ /GiB/ ? 1074 : text ~ /MiB/ ? 1.049 : 0.001)
            }
            BEGIN { about = "about " }
            /^Resolved [0-9]+/ { total = $2; about = "" } # uv
            /^Downloading / { left[$2] = megabytes($3) }
            /^ Downloaded / { delete left[$2] }
            /^Collecting / { collected++ } # pip
            /^  Downloading / { split($2, words, "-"); file = ", " words[1] " " $3 " " $4 }
            /^Installing collected / { collected = 0 }
            END {
                for (name in left) {
                    sum += left[name]
                    packages++
                }
                state = label ", " seconds " s"
                if (label == "installing") {
                    if (packages) state = sprintf("downloading, %d s: %.0f MB in %d packages to go", seconds, sum, packages)
                    else if (collected) state = sprintf("downloading, %d s: package %d of %s%d%s", seconds, collected, about, total, file)
                    else state = sprintf("%s: %d of %s%d packages", state, number < total ? number : total, about, total)
                }
                state = substr(state, 1, columns - 1)
                printf "\r%-" (columns - 1) "s\r%s", state, state
            }' "$log"
    done
}

nvidia_driver() {
    [ -e /proc/driver/nvidia/version ] || [ -n "${UV_CUDA_DRIVER_VERSION:-}" ] || nvidia-smi -L >/dev/null 2>&1
}

# Why uv is not asked at all; nothing where it is.
uv_is_left_out() {
    if [ -n "${PIP_ARGS:-}" ]; then
        echo "PIP_ARGS are arguments of pip"
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
    if [ -n "$sources" ]; then
        backend=
        build="the build of the sources in pip's settings ($sources)"
    elif [ -n "${UV_TORCH_BACKEND:-}" ]; then
        backend=$UV_TORCH_BACKEND
        build="the build that UV_TORCH_BACKEND names, $backend"
    elif [ "$(uname -s)" = Darwin ]; then
        backend=
        build="the one build there is for macOS"
    elif [ "${LABLIB_TORCH:-}" = cpu ]; then
        backend=cpu
        build="the CPU build, as LABLIB_TORCH asks"
    elif nvidia_driver; then
        backend=auto
        build="the build for this machine's NVIDIA driver"
    elif [ "${LABLIB_TORCH:-}" = cuda ]; then
        backend=
        build="the CUDA build, as LABLIB_TORCH asks"
    else
        backend=cpu
        build="the CPU build, since this machine has no NVIDIA driver"
    fi
}

# The CPU build of PyTorch's own index, for a uv whose sources have only the CUDA build.
pytorch_has() {
    [ "$tool" = uv ] && [ -z "${UV_NO_INDEX:-}" ] || return 1
    case ${LABLIB_TORCH:-} in
        cpu) ;;
        cuda) return 1 ;;
        *) [ -z "${UV_DEFAULT_INDEX:-}" ] || return 1 ;;
    esac
    backend=cpu
    if ! watched "looking at PyTorch's index" uv_can; then
        backend=
        return 1
    fi
    build="the CPU build of PyTorch's index"
}

# Only the CUDA build can be had, and this machine has no use for it: LABLIB_TORCH decides, or the person at the terminal.
check_cuda() {
    if [ "${LABLIB_TORCH:-}" != cpu ] && nvidia_driver; then
        return
    fi
    if [ "$tool" = pip ] && [ "${LABLIB_TORCH:-}" != cuda ] && [ "$(uname -s)" = Linux ]; then
        watched "looking for torch" pip_looks
    fi
    grep -qE '^ \+ nvidia-|^ *"nvidia-' "$log" || return
    pytorch_has && return
    size="the package sources in use have only the CUDA build of torch: 2.5 GB more to download and 3 GB more on the disk than the CPU build"
    remedy="name a source of torch's CPU build in pip's settings (extra-index-url or find-links), such as the CPU index on PyTorch's page of installation"
    case ${LABLIB_TORCH:-} in
        cuda) ;;
        cpu) fail "$size, and LABLIB_TORCH=cpu refuses it: $remedy." ;;
        *)
            if [ -t 0 ] && [ -t 1 ]; then
                echo "$size."
                printf 'Install it all the same? [y/N] '
                read -r answer
                case $answer in
                    [yY]*) ;;
                    *) fail "nothing was installed: $remedy, or set LABLIB_TORCH=cuda." ;;
                esac
            else
                echo "$size. It is installed; LABLIB_TORCH=cpu would refuse it."
            fi
            ;;
    esac
}

# Can uv find everything? It looks, and installs nothing; patience is for the installation, and for who asks for it.
uv_can() {
    UV_HTTP_RETRIES=${UV_HTTP_RETRIES:-1} UV_HTTP_TIMEOUT=${UV_HTTP_TIMEOUT:-10} \
        UV_HTTP_CONNECT_TIMEOUT=${UV_HTTP_CONNECT_TIMEOUT:-5} uv_install --dry-run
}

case ${LABLIB_TORCH:-} in
    "" | cpu | cuda) ;;
    *) fail "LABLIB_TORCH must be cpu or cuda: got $LABLIB_TORCH." ;;
esac
exec 3>&1 # the terminal, also in a command whose output goes elsewhere
: >"$log" || fail "$log cannot be written to."
backend=
sources=
why=$(uv_is_left_out)
own=${UV_TORCH_BACKEND:-}${UV_DEFAULT_INDEX:-}${UV_INDEX_URL:-}${UV_INDEX:-}${UV_EXTRA_INDEX_URL:-}${UV_FIND_LINKS:-}
[ -n "$why$own" ] || hand_over
if [ -n "$why" ]; then
    :
elif ! watched "looking for uv" find_uv; then
    why="uv cannot be downloaded"
elif choose_backend && watched "looking for packages" uv_can; then
    tool=uv
    [ -n "${UV_TORCH_BACKEND:-}" ] || check_cuda
else
    # shellcheck disable=SC2016
    address=$(sed -n 's/.*[Ff]ailed to fetch: *`*\([^` ]*\).*/\1/p' "$log" | tail -n 1)
    why="uv says \"$(grep -E '^ *(error|cause|hint)' "$log" | tail -n 1 | sed 's/^ *//' | cut -c 1-200)\""
    [ -z "$address" ] || why="uv cannot fetch $address"
fi

[ "$tool" = uv ] || check_cuda
# What they have said by now would be taken for what goes wrong from here on.
mv "$log" "${log%.log}-uv.log"
if [ "$tool" = uv ]; then
    echo "uv installs the lock. torch: $build."
    watched installing uv_install || explain
else
    echo "pip installs the lock, since $why. torch: the build that pip finds, which on Linux is mostly CUDA's (gigabytes)."
    # shellcheck disable=SC2086  # PIP_ARGS is a list of words
    watched installing pip_install --requirement requirements.lock ${PIP_ARGS:-} || explain
fi
tool=pip
# Without build isolation: the setuptools of the lock builds it, and nothing more is downloaded.
watched "installing lablib" pip_install --no-deps --no-build-isolation --editable . || explain
