"""Path of the profile of this machine: `lab calibrate` writes it, `cluster="this-machine"` reads it.

The file is `$LAB_MACHINE`, or `this-machine.toml` in the user's settings folder.
"""

import os
from pathlib import Path

from lablib.hardware.cluster import Cluster
from lablib.hardware.toml_file import load_cluster
from lablib.process.user_folders import user_folder

THIS_MACHINE = "this-machine"


def profile_path() -> Path:
    """Path of the profile, which need not exist."""
    if chosen := os.environ.get("LAB_MACHINE"):
        return Path(os.path.expanduser(chosen)).absolute()
    return user_folder("config") / f"{THIS_MACHINE}.toml"


def this_machine() -> Cluster:
    """The measured cluster of this machine.

    Raises ValueError: nothing was measured yet, or `lab calibrate` did not write the file.
    """
    path = profile_path()
    if not path.is_file():
        raise ValueError(
            f'cluster "{THIS_MACHINE}" is what was measured here, and nothing was yet ({path} does not exist): '
            "run `lab calibrate`, or name a cluster of the catalogue."
        )
    return load_cluster(path)
