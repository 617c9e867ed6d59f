"""`lab open`: start JupyterLab on one lab, in the learner's folder.

JupyterLab's prompt about news covers a corner until it is answered, so a settings default (not the user's settings),
found by `JUPYTER_CONFIG_PATH`, turns it off. Jupyter tries other ports if the requested one is taken, and a tunnel or
bookmark would then reach another server: so a requested port is checked first.
"""

import errno
import os
import socket
import subprocess
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

from lablib.course.errors import CourseError, CourseFailure
from lablib.course.places import Lab, find_labs
from lablib.course.work import handed_out, open_copies
from lablib.process.torchrun import free_port

_CONFIG = Path(__file__).parent / "jupyter_config"


def open_lab(lab: Lab, arguments: Sequence[str]) -> int:
    """Replace this process by JupyterLab, open on the copy of `lab` in work/, with `arguments`. Returns only where that
    is not possible.

    Raises:
        CourseFailure: no JupyterLab, a port that is taken, a lab that cannot be made, no place for copies.
        CourseError: an invalid port.
    """
    if find_spec("jupyterlab") is None:
        raise CourseFailure("JupyterLab is not installed here: run `make lab`, or `pip install 'lablib[labs]'`.")
    handed_out(lab)  # this lab must exist
    port = _option(arguments, "--port", "--ServerApp.port")
    if port is not None:
        _check_port(port, _option(arguments, "--ip", "--ServerApp.ip") or "localhost")
    for line in open_copies([each.chosen for each in find_labs(lab.labs)]):
        print(line)
    command, environment = jupyter_command(lab, arguments), jupyter_environment(lab)
    if needs_allow_root(arguments):
        print(
            "JupyterLab runs as root, with --allow-root: whoever reaches it with its token can do everything on this "
            "machine; start it as another user where you can.",
            file=sys.stderr,
        )
    sys.stdout.flush()
    if os.name == "nt":  # there, exec would leave the terminal to the shell while the server still uses it
        return subprocess.run(command, env=environment).returncode
    os.execve(command[0], command, environment)


def jupyter_command(lab: Lab, arguments: Sequence[str]) -> list[str]:
    command = [sys.executable, "-m", "jupyterlab", f"--ServerApp.root_dir={lab.work.parent}"]
    command.append(f"--LabApp.default_url=/lab/tree/{lab.work.name}")
    if _option(arguments, "--port", "--ServerApp.port") is not None:
        command.append("--ServerApp.port_retries=0")
    if _option(arguments, "--log-level", "--ServerApp.log_level", "--Application.log_level") is None:
        command.append("--log-level=WARN")  # still prints the address, without twenty lines on extensions
    if needs_allow_root(arguments):
        command.append("--allow-root")
    return [*command, *arguments]


def needs_allow_root(arguments: Sequence[str]) -> bool:
    """Whether Jupyter would refuse to start: it runs as root without --allow-root."""
    is_said = any(argument.partition("=")[0] in ("--allow-root", "--ServerApp.allow_root") for argument in arguments)
    return hasattr(os, "getuid") and os.getuid() == 0 and not is_said


def jupyter_environment(lab: Lab) -> dict[str, str]:
    """This process's environment, with our default settings after the user's, and the labs folder for the kernels."""
    paths = [path for path in os.environ.get("JUPYTER_CONFIG_PATH", "").split(os.pathsep) if path]
    return {**os.environ, "JUPYTER_CONFIG_PATH": os.pathsep.join([*paths, str(_CONFIG)]), "LAB_LABS": str(lab.labs)}


def _option(arguments: Sequence[str], *names: str) -> str | None:
    """The value of `--name value` or `--name=value`; the last one counts. None if it is absent."""
    value = None
    for position, argument in enumerate(arguments):
        name, equals, text = argument.partition("=")
        if name in names:
            value = text if equals else (arguments[position + 1] if position + 1 < len(arguments) else "")
    return value


def _check_port(text: str, host: str) -> None:
    if not text.isdecimal() or int(text) > 65535:
        raise CourseError(f"a port must be a number up to 65535: got {text!r}; try --port 8899.")
    port = int(text)
    try:
        addresses = socket.getaddrinfo(None if host in ("*", "") else host, port, type=socket.SOCK_STREAM)
    except socket.gaierror:
        raise CourseError(f"--ip must be an address of this machine: got {host!r}; try --ip 127.0.0.1.") from None
    for family, _, _, _, address in addresses:
        try:
            _bind(family, address)
        except PermissionError:
            raise CourseFailure(f"port {port} needs more rights than you have: try --port 8899.") from None
        except OSError as error:
            if family == socket.AF_INET6 and error.errno != errno.EADDRINUSE:
                continue  # no IPv6 on this machine: Jupyter skips it too
            raise CourseFailure(
                f"port {port} is in use by another program: try --port {free_port()}, or stop that program "
                "(`jupyter server list` shows running Jupyter servers)."
            ) from None


def _bind(family: int, address: tuple) -> None:
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        if os.name != "nt":
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as the server does; a listener still counts
        if family == socket.AF_INET6:
            probe.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        probe.bind(address)
