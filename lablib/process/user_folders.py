"""User folders for settings, data and cache: XDG base directories if set, otherwise the platform's.

    settings   $XDG_CONFIG_HOME    the profile of this machine
    data       $XDG_DATA_HOME      progress
    cache      $XDG_CACHE_HOME     corpora

A variable is used on every platform if it is an absolute path, as the specification requires.
Source: XDG Base Directory Specification, version 0.8, freedesktop.org.
"""

import os
from pathlib import Path
from typing import Literal


def user_folder(kind: Literal["config", "data", "cache"]) -> Path:
    """This user's folder of lablib for settings, data or the cache; it need not exist."""
    chosen = os.environ.get(f"XDG_{kind.upper()}_HOME", "")
    if os.path.isabs(chosen):
        return Path(chosen) / "lablib"
    import platformdirs

    find = {"config": platformdirs.user_config_dir, "data": platformdirs.user_data_dir}
    return Path(find.get(kind, platformdirs.user_cache_dir)("lablib", appauthor=False))
