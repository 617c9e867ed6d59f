"""`lab site`: the course as static pages; `--only planner`: the planner's page alone."""

import argparse
from pathlib import Path

from lablib.course.errors import CourseError, cannot_write
from lablib.course.places import find_lab, find_labs, find_labs_folder
from lablib.site.build import build_site
from lablib.text.units import format_quantity


def site_command(options: argparse.Namespace) -> int:
    """Build the pages and print their size. Raises CourseError: another folder, no Sphinx, a failed lab, full disk."""
    out, pyodide = Path(options.out), Path(options.pyodide) if options.pyodide else None
    if options.jobs < 1:
        raise CourseError(f"--jobs must be 1 or more: got {options.jobs}; try 2.")
    try:
        if options.only == "planner":
            built = build_site(out, pyodide)
        else:
            from lablib.site.book.build import build_book

            folder = find_labs_folder()
            labs = [find_lab(lab, folder) for lab in options.labs] or find_labs(folder)
            notebooks = Path(options.notebooks) if options.notebooks else None
            built = build_book(out, labs, pyodide, notebooks, options.jobs)
    except CourseError:
        raise
    except ValueError as error:
        raise CourseError(f"{error}.") from None
    except OSError as error:
        raise cannot_write(out, error) from None
    size = format_quantity(built.size_bytes, "B")
    print(f"{out}: {built.num_files} files, {size}, written in {built.time_s:.1f} s. To look at it:")
    print(f"  python -m http.server --bind 127.0.0.1 --directory {out} 8000")
    return 0
