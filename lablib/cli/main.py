"""`lab`: build, run, open and check labs from the command line. `lab --help` lists the commands, with one line each.

Exit code 0: done. 1: failed. 2: invalid request, nothing was done. Every error is one sentence. Each command imports
its modules when it runs, so `lab --help` does not import torch.
"""

import argparse
import atexit
import gc
import re
import sys
from collections.abc import Callable, Sequence
from difflib import get_close_matches
from importlib import import_module
from pathlib import Path

from lablib.cli.arguments import make_parser
from lablib.course.errors import CourseError
from lablib.course.places import find_lab, find_labs, find_labs_folder
from lablib.errors import unknown_name
from lablib.extras import remedy_of
from lablib.text.units import plural


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    if arguments is None:
        atexit.register(gc.freeze)  # or the last collection goes through all of torch: 0.3 s
    words = list(sys.argv[1:] if arguments is None else arguments)
    try:
        return _dispatch(words)
    except CourseError as error:
        print(f"lab: {error}", file=sys.stderr)
        return error.exit_code
    except ModuleNotFoundError as error:
        remedy = remedy_of(error)
        if remedy is None:
            raise
        print(f"lab: {remedy}", file=sys.stderr)
        return 2
    except BrokenPipeError:  # `lab list | head`
        sys.stderr.close()
        return 1
    except KeyboardInterrupt:
        print("lab: interrupted.", file=sys.stderr)
        return 130


def _dispatch(words: list[str]) -> int:
    parser = make_parser()
    if not words:
        parser.print_help()
        return 0
    if not words[0].startswith("-") and words[0] not in COMMANDS:
        raise CourseError(str(unknown_name("command", words[0], list(COMMANDS))))
    # Everything after `open [NN]` is passed to JupyterLab unchanged.
    passed_on: list[str] = []
    if words[0] == "open" and not {"-h", "--help"} & set(words):
        split = 2 if len(words) > 1 and not words[1].startswith("-") else 1
        words, passed_on = words[:split], words[split:]
    if words[0] == "run" and "--" in words:  # arguments of a script on several nodes
        split = words.index("--")
        words, passed_on = words[:split], words[split + 1 :]
    # NAME=VALUE is allowed before and after options.
    if words[0] in ("train", "bench") or words[:2] == ["capstone", "predict"]:
        passed_on = [word for word in words if "=" in word and not word.startswith("-")]
        words = [word for word in words if word not in passed_on]
    options, unknown = parser.parse_known_args(words)
    if unknown:
        command = parser.commands.get(options.command, parser)
        known = re.findall(r"(?<![\w-])--[a-z][a-z-]*", command.format_help())
        near = get_close_matches(unknown[0].partition("=")[0], dict.fromkeys(known), n=3)
        hint = f"; did you mean {' or '.join(near)}?" if near else ";"
        text = f"unrecognized arguments: {' '.join(unknown)}{hint} `{command.prog} --help` lists the arguments."
        raise CourseError(text)
    options.passed_on = passed_on
    return COMMANDS[options.command](options)


def _open(options: argparse.Namespace) -> int:
    from lablib.course.running.jupyter import open_lab

    return open_lab(find_lab(options.lab, find_labs_folder()).chosen, options.passed_on)


def _run(options: argparse.Namespace) -> int:
    if options.nnodes is not None:
        from lablib.cli.nodes import run_on_nodes

        return run_on_nodes(options)
    if options.master is not None or options.node is not None or options.slurm is not None or options.passed_on:
        words = "--master, --node, --slurm and words after --"
        raise CourseError(f"{words} are for a script on several nodes: add --nnodes 2")
    from lablib.course.running.execute import run_lab

    values = dict(options.parameter or [])
    flags = {name: getattr(options, name) for name in ("backend", "ranks", "cluster", "quick")}
    values |= {name: value for name, value in flags.items() if value is not None}
    lab = find_lab(options.lab, find_labs_folder()).chosen
    out = Path(options.out) if options.out else None
    written = run_lab(lab, values, instructor=options.instructor, out=out, mine=options.mine)
    print(f"{lab.name} ran to its end: {', '.join(str(path) for path in written)}")
    return 0


def _build(options: argparse.Namespace) -> int:
    from lablib.course.building.build import build, build_instructor, build_nbgrader, check_built, translate

    folder = find_labs_folder()
    labs = [find_lab(text, folder) for text in options.labs] or find_labs(folder)
    if not labs:
        raise CourseError(f"no masters in {folder / 'masters'}: `lab new NN name` makes one.")
    if (options.check or options.instructor or options.nbgrader) and not any(lab.master.exists() for lab in labs):
        raise CourseError(f"no masters in {folder / 'masters'}: this copy of the course has no solutions.")
    if options.check:
        lines = check_built(labs)
        print("\n".join([*lines, f"Up to date with the masters: {plural(len(labs), 'labs')}."]))
    elif options.lang:
        print("\n".join(translate([lab for lab in labs if lab.master.exists()], options.lang, options.extract)))
    elif options.instructor or options.nbgrader:
        lines = build_instructor(labs, Path(options.instructor)) if options.instructor else []
        lines += build_nbgrader(labs, Path(options.nbgrader)) if options.nbgrader else []
        print("\n".join(lines))
    else:
        for line in build([lab for lab in labs if lab.master.exists() or options.labs]):
            print(line)
    return 0


def _export(options: argparse.Namespace) -> int:
    labs = find_labs(find_labs_folder())
    if options.colab:
        from lablib.course.building.colab import export_colab

        print(export_colab(labs, Path(options.colab), options.package))
        return 0
    from lablib.course.building.export import export_students

    print(export_students(labs, Path(options.students)))
    return 0


def _update(options: argparse.Namespace) -> int:
    from lablib.course.work import update

    folder = find_labs_folder()
    failed = False
    for lab in [find_lab(text, folder) for text in options.labs] or find_labs(folder):
        try:
            print("\n".join(update(lab.chosen)))
        except CourseError as error:  # a damaged copy must not prevent updating the others
            print(f"lab: {error}", file=sys.stderr)
            failed = True
    return 1 if failed else 0


def _reset(options: argparse.Namespace) -> int:
    from lablib.course.work import reset

    print("\n".join(reset(find_lab(options.lab, find_labs_folder()).chosen)))
    return 0


def _regrade(options: argparse.Namespace) -> int:
    from lablib.course.grading.regrade import regrade

    submissions = grades = changed = left_out = 0
    for one in regrade(Path(options.folder)):
        if one.reason:
            print(f"lab: {one.name} is not graded: {one.reason}.", file=sys.stderr, flush=True)
        print("".join(f"{line}\n" for line in one.lines), end="", flush=True)
        submissions, grades = submissions + 1, grades + len(one.points)
        changed, left_out = changed + len(one.lines), left_out + bool(one.reason)
    print(f"{changed} of {plural(grades, 'grades')} in {plural(submissions, 'notebooks')} changed.")
    return 1 if left_out else 0


def _new(options: argparse.Namespace) -> int:
    from lablib.course.building.build import build, new_lab

    lab = new_lab(find_labs_folder(), options.number, options.name)
    build([lab])
    print(f"{lab.folder}: written. Edit lab.py, checks.py and wrong_answers.py there; then:")
    print(f"  lab build {lab.number}   lab run {lab.number}   lab prove {lab.number}")
    return 0


def _prove(options: argparse.Namespace) -> int:
    from lablib.course.checks.proof import prove

    if options.seeds < 1:
        raise CourseError(f"--seeds must be at least 1: got {options.seeds}.")
    wrong = 0
    for proof in prove(find_lab(options.lab, find_labs_folder()), options.exercise, range(options.seeds)):
        state = "proven" if not proof.findings else f"{len(proof.findings)} findings"
        print(f"{proof.exercise}: {state}, {proof.tried} answers tried in {proof.time_s:.1f} s", flush=True)
        print("".join(f"\n{finding}\n" for finding in proof.findings), end="")
        wrong += len(proof.findings)
    return 1 if wrong else 0


def _list(options: argparse.Namespace) -> int:
    from lablib.course.overview import list_labs, list_sections, list_track, list_tracks

    folder = find_labs_folder()
    if options.track is not None:
        if options.lab:
            raise CourseError(f"lab list takes a lab or --track: got {options.lab} and --track; leave out one.")
        print(list_track(folder, options.track) if options.track else list_tracks(folder))
    else:
        print(list_sections(find_lab(options.lab, folder)) if options.lab else list_labs(folder))
    return 0


def _progress(options: argparse.Namespace) -> int:
    from lablib.course import report
    from lablib.course.overview import exercises_of_labs, own_progress, reset, show_progress

    folder = find_labs_folder()
    if options.merge:
        from lablib.course.class_page import class_html

        exercises = exercises_of_labs(find_labs(folder))
        learners, left_out = report.read_learners([Path(file) for file in options.merge])
        made = {"csv": report.class_csv, "html": class_html, "json": report.class_json}
        print(made.get(options.form, report.class_text)(exercises, learners).rstrip("\n"))
        for sentence in left_out:
            print(f"lab: {sentence}", file=sys.stderr)
        return 1 if left_out else 0
    if options.form == "csv":
        raise CourseError("--csv is a table of learners: name their files, as in lab progress --csv --merge *.json")
    if options.reset:
        print(reset(folder, options.reset))
    elif options.form:
        made = {"html": report.as_html, "json": report.as_json}[options.form]
        print(made(exercises_of_labs(find_labs(folder)), own_progress()))
    else:
        print(show_progress(folder))
    return 0


def _doctor(options: argparse.Namespace) -> int:
    from lablib.course.running.doctor import examine

    return examine()


def _calibrate(options: argparse.Namespace) -> int:
    from lablib.cli.calibrate import calibrate_command

    out = Path(options.out) if options.out else None
    return calibrate_command(options.backend, options.ranks, options.quick, out)


def _validate(options: argparse.Namespace) -> int:
    from lablib.cli.validate import validate_command

    file, page, readme = (Path(path) if path else None for path in (options.file, options.page, options.readme))
    return validate_command(file, options.json, page, readme, options.cross_validate)


def _sim(options: argparse.Namespace) -> int:
    from lablib.cli.assertion import NUMBERS_OF_A_RUN, Assertion
    from lablib.hardware.catalogue import find_cluster
    from lablib.launch_checks import checked_size
    from lablib.script.program import compiled

    if options.torchrun is not None:
        raise CourseError(
            "lab sim takes the number of all ranks, which fill the nodes of --cluster in order: got torchrun's "
            "--nproc-per-node or --nnodes; try --ranks 16"
        )
    try:  # before torch is imported
        checked_size(options.ranks, "sim")
    except ValueError as error:
        raise CourseError(f"--{error}") from error
    try:
        find_cluster(options.cluster)
        if options.asserted is not None:
            Assertion(options.asserted, NUMBERS_OF_A_RUN)
        compiled(Path(options.script))
    except ValueError as error:
        raise CourseError(str(error)) from error
    from lablib.cli.sim import simulate

    return simulate(options)


def _later(name: str) -> Callable[[argparse.Namespace], int]:
    """The command in a file of its name, which is imported when it is called."""
    return lambda options: getattr(import_module(f"lablib.cli.{name}"), f"{name}_command")(options)


_FUNCTIONS = (_open, _update, _reset, _run, _sim, _list, _progress, _doctor, _build, _export, _regrade, _new, _prove)
_OTHERS = ("train", "bench", "capstone", _calibrate, "plan", "site", _validate)
COMMANDS = dict(
    (each, _later(each)) if isinstance(each, str) else (each.__name__.strip("_"), each)
    for each in (*_FUNCTIONS, *_OTHERS)
)
