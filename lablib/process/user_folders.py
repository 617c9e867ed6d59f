"""Where what is kept for a user goes: the folders that the XDG base directory rules name, else the platform's own.

    settings   $XDG_CONFIG_HOME    the profile of this machine
    data       $XDG_DATA_HOME      progress
    cache      $XDG_CACHE_HOME     corpora

A variable counts on every platform, for whoever sets it means it, and only where it is an absolute path, as the rules
have it. Source: XDG Base Directory Specification, version 0.8, freedesktop.org.
"""

import os
from pathlib import Path
from typing import Literal


def user_folder(kind: Literal["config", "data", "cache"]) -> Path:
    """The folder of lablib for settings, data or the cache of this user; it need not exist."""
    chosen = os.environ.get(f"XDG_{kind.upper()}_HOME", "")
    if os.path.isabs(chosen):
        return Path(chosen) / "lablib"
    import platformdirs

    find = {"config": platformdirs.user_config_dir, "data": platformdirs.user_data_dir}
    return Path(find.get(kind, platformdirs.user_cache_dir)("lablib", appauthor=False))
