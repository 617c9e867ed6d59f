"""Where the profile of this machine is kept: what `lab calibrate` writes and `cluster="this-machine"` reads.

The file is `$LAB_MACHINE`, else `this-machine.toml` in the user's folder of settings.
"""

import os
from pathlib import Path

from lablib.hardware.cluster import Cluster
from lablib.hardware.toml_file import load_cluster
from lablib.process.user_folders import user_folder

THIS_MACHINE = "this-machine"


def profile_path() -> Path:
    """Where the profile is, or would be."""
    if chosen := os.environ.get("LAB_MACHINE"):
        return Path(os.path.expanduser(chosen)).absolute()
    return user_folder("config") / f"{THIS_MACHINE}.toml"


def this_machine() -> Cluster:
    """The cluster that was measured here.

    Raises:
        ValueError: nothing was measured yet, or the file is not what `lab calibrate` wrote.
    """
    path = profile_path()
    if not path.is_file():
        raise ValueError(
            f'cluster "{THIS_MACHINE}" is what was measured here, and nothing was yet ({path} does not exist): '
            "run `lab calibrate`, or name a cluster of the catalogue."
        )
    return load_cluster(path)
