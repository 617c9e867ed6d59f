"""Name the extra of lablib that brings a missing package: `pip install 'lablib[labs]'`.

An installation without extras has `launch`, the simulator, the planner and figures. pyproject.toml lists the extras.
"""

import re

_REQUIREMENT = re.compile(r"([\w.-]+).*\bextra == ['\"](\w+)['\"]")


def remedy_of(error: ModuleNotFoundError) -> str | None:
    """One sentence with the package that an import did not find and the extra that has it. None: no extra has it."""
    from importlib.metadata import PackageNotFoundError, requires  # 40 ms, for each command

    wanted = (error.name or "").partition(".")[0]
    try:
        found = map(_REQUIREMENT.match, requires("lablib") or ())
    except PackageNotFoundError:  # lablib is a folder on the path
        return None
    for name, extra in (match.groups() for match in found if match):
        if name.lower().replace("-", "_") == wanted.lower():
            return f"the package {name} is not installed: pip install 'lablib[{extra}]'"
    return None
