"""`lab site`: the planner as a static page, which runs in the browser."""

import argparse
from pathlib import Path

from lablib.course.errors import CourseError, cannot_write
from lablib.site.build import build_site
from lablib.text.units import format_quantity


def site_command(options: argparse.Namespace) -> int:
    """Build the page and print its size. Raises CourseError: another folder, no files of Pyodide, a full disk."""
    out = Path(options.out)
    try:
        built = build_site(out, Path(options.pyodide) if options.pyodide else None)
    except ValueError as error:
        raise CourseError(f"{error}.") from None
    except OSError as error:
        raise cannot_write(out, error) from None
    size = format_quantity(built.size_bytes, "B")
    print(f"{out}: {built.num_files} files, {size}, written in {built.time_s:.1f} s. To look at it:")
    print(f"  python -m http.server --bind 127.0.0.1 --directory {out} 8000")
    return 0
