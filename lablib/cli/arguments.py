"""Arguments of the commands of `lab`, as one parser for argparse, with one line of help per command."""

import argparse
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NoReturn

from lablib.course.errors import CourseError


class Parser(argparse.ArgumentParser):
    """argparse, with its errors in one sentence. `commands`: the parser of each command."""

    commands: Mapping[str, "Parser"] = MappingProxyType({})

    def error(self, message: str) -> NoReturn:
        raise CourseError(f"{message}; `{self.prog} --help` lists the arguments.")


def _add_training(command: argparse.ArgumentParser) -> None:
    """Arguments of commands that train."""
    command.add_argument("file", metavar="FILE", help="a .toml or .yaml file, or a DeepSpeed .json")
    command.add_argument("--ranks", type=int, default=1, metavar="N", help="number of ranks; default 1")
    command.add_argument("--backend", default="sim", help="sim (default), gloo or nccl")
    command.add_argument("--cluster", default="dgx-h100", help="the simulated cluster; default dgx-h100")
    command.add_argument("--timeout", type=float, metavar="SECONDS", help="real seconds after which the run is ended")


def make_parser() -> Parser:
    """The parser of `lab`, whose `commands` holds the parser of each command."""
    parser = Parser(prog="lab", description="Labs on the techniques that make large-model training possible.")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", parser_class=Parser)

    def new(name: str, **about: Any) -> tuple[Parser, Callable[..., argparse.Action]]:
        command = commands.add_parser(name, **about)
        return command, command.add_argument

    command, add = new("open", help="open your copy of a lab in JupyterLab", usage="lab open [LAB] [jupyter arguments]")
    add("lab", nargs="?", default="00", metavar="LAB", help='"9", "09" or "09_name"; default 00')

    command, add = new("update", help="bring your copies up to date, and carry your answers over")
    add("labs", nargs="*", metavar="LAB", help="default: all")

    command, add = new("reset", help="a fresh copy of a lab; your earlier copy is kept next to it")
    add("lab", metavar="LAB", help='"9", "09" or "09_name"')

    command, add = new(
        "run",
        help="run a lab from top to bottom into runs/, or a script on several nodes",
        usage="lab run LAB [options]   or   lab run SCRIPT.py --nnodes N [--ranks N] "
        "[--master HOST:PORT --node K | --slurm FILE] [-- the script's own arguments]",
    )
    add("lab", metavar="LAB", help='"9", "09", "09_name" or a path; with --nnodes a script')
    add("--nnodes", type=int, metavar="N", help="run a script on N nodes, under torchrun")
    add("--master", metavar="HOST:PORT", help="an address of node 0; default: all nodes here")
    add("--node", type=int, metavar="K", help="with --master: number of this machine, from 0")
    add("--slurm", metavar="FILE", help="write a job for Slurm's sbatch; nothing is started")
    add("--backend", help="sim, gloo or nccl")
    add("--ranks", help="number of ranks")
    add("--cluster", help="simulated cluster, for example dgx-h100")
    add("--quick", action=argparse.BooleanOptionalAction, help="small sizes; or the full ones")
    add("-p", dest="parameter", nargs=2, action="append", metavar=("NAME", "VALUE"), help="any parameter")
    whose = command.add_mutually_exclusive_group()
    whose.add_argument("--instructor", action="store_true", help="with the solutions; every check must pass")
    whose.add_argument("--mine", action="store_true", help="with your functions of earlier labs, from work/mine")
    add("--out", metavar="FOLDER", help="output folder; default runs/ next to labs/")

    command, add = new(
        "sim",
        help="run a script written for torchrun on a simulated cluster",
        usage="lab sim [--ranks N] [--cluster NAME] [--fidelity shapes] [--assert EXPRESSION] [--out FOLDER] SCRIPT "
        "[the script's own arguments]",
    )
    add("--ranks", type=int, default=8, help="number of ranks; default 8")
    spellings = ("--nproc-per-node", "--nproc_per_node", "--nnodes")
    add(*spellings, dest="torchrun", help=argparse.SUPPRESS)  # refused, with a remedy
    add("--cluster", default="dgx-h100", help="simulated cluster; default dgx-h100")
    add("--out", metavar="FOLDER", help="output folder; default runs/SCRIPT-DATE/")
    add("--timeout", type=float, metavar="SECONDS", help="real seconds after which the run is ended")
    help_text = "values (default), or shapes: no values, for models too large for this machine"
    add("--fidelity", default="values", choices=("values", "shapes"), help=help_text)
    help_text = 'exit code 1 unless it holds, for example "step_s < 0.2 and peak_bytes < 80e9"; 3 if the script fails'
    add("--assert", dest="asserted", metavar="EXPRESSION", help=help_text)
    add("--quiet", action="store_true", help="do not show the output of rank 0 during the run")
    add("script", metavar="SCRIPT", help="the file that torchrun would run")
    arguments = add("arguments", nargs=argparse.REMAINDER, help="passed to the script")
    arguments.required = False  # a script may take none

    command, add = new(
        "train",
        help="train a GPT from a configuration, on simulated ranks, CPU processes or GPUs",
        usage="lab train FILE [NAME=VALUE ...] [--ranks N] [--backend sim|gloo|nccl]",
        description="NAME=VALUE replaces a field of the file, for example optimizer.lr=1e-3; the head of "
        "lablib/train/config.py lists the sections.",
    )
    add("--deepspeed", metavar="FILE", help="a DeepSpeed configuration, which replaces fields of FILE")
    _add_training(command)

    command, add = new(
        "bench",
        help="speed, memory and scaling of a training configuration, with limits",
        usage="lab bench FILE [NAME=VALUE ...] [--ranks N] [--backend sim|gloo|nccl] [--min-tokens-per-s X] "
        "[--max-step-s X] [--max-memory 24GB] [--min-scaling X] [--json FILE]",
        description="Exit code 1 if a limit is broken. NAME=VALUE as in `lab train`.",
    )
    _add_training(command)
    add("--steps", type=int, default=20, metavar="N", help="steps that are measured; default 20")
    add("--warm-up", type=int, default=10, metavar="N", help="steps before them; default 10")
    add("--scaling", action="store_true", help="measure one replica, too")
    add("--min-tokens-per-s", type=float, metavar="X", help="limit, of all ranks together")
    add("--max-step-s", type=float, metavar="X", help="limit for the median step")
    add("--max-memory", metavar="SIZE", help="limit for the peak of any rank, for example 24GB")
    add("--min-scaling", type=float, metavar="X", help="limit, for example 0.8")
    add("--json", metavar="FILE", help="write the result as JSON")

    command, add = new(
        "capstone",
        help="a planned training: brief, report, runs, check, page, leader board",
        usage="lab capstone briefs | new BRIEF FILE.toml | predict FILE.toml [NAME=VALUE ...] | lock FILE.toml | "
        "run FILE.toml [--only small|large] [--backend gloo] [--mine FOLDER | --no-mine] | check FILE.toml | "
        "render FILE.toml [--out PAGE.html] | "
        "board FOLDER",
        description="A report is a TOML file: `new` writes one to fill in, `lock` fixes its predictions, `run` trains "
        "the small configuration and simulates the large one, `check` recomputes every number.",
    )
    actions = ("briefs", "new", "predict", "lock", "run", "check", "render", "board")
    add("action", choices=actions, help="what to do")
    add("words", nargs="*", metavar="FILE", help="a report; for new a brief and a file; or a folder")
    add("--only", choices=("small", "large"), help="one of the two runs")
    add("--backend", default="gloo", help="of the small run: gloo (default) or sim")
    mine = command.add_mutually_exclusive_group()
    help_text = "notebooks with your answers of labs 04, 05, 08 and 09; default: those that you passed, in work/"
    mine.add_argument("--mine", metavar="FOLDER", help=help_text)
    mine.add_argument(
        "--no-mine", dest="mine", action="store_false", default=None, help="the small run with the library's parts"
    )
    add("--out", metavar="PAGE", help="output file, .html or .md; default: next to the report")
    add("--no-simulation", dest="simulation", action="store_false", help="do not simulate the large run again")

    command, add = new("list", help="the labs: question, minutes, labs before it, exercises done")
    add("lab", nargs="?", metavar="LAB", help="the sections of one lab, with their minutes")
    help_text = "the steps of a track, for example performance; without a name: all tracks"
    add("--track", nargs="?", const="", metavar="TRACK", help=help_text)

    command, add = new("progress", help="exercises done, with dates")
    add("--reset", metavar="LAB", help="forget the progress of one lab")
    add("--merge", nargs="+", metavar="FILE", help="one table of many learners, by file name")
    for form, what in {"json": "for programs, and to hand in", "html": "as a page", "csv": "for a spreadsheet"}.items():
        add(f"--{form}", dest="form", action="store_const", const=form, help=what)

    commands.add_parser("doctor", help="check the installation, with a remedy for each failure")

    command, add = new("build", help="make notebooks from masters")
    add("labs", nargs="*", metavar="LAB", help="default: all")
    add("--check", action="store_true", help="write nothing; fail if a notebook is not up to date")
    add("--instructor", metavar="FOLDER", help="write the versions with solutions there")
    add("--nbgrader", metavar="FOLDER", help="write nbgrader assignments there")
    add("--lang", metavar="CODE", help="only the notebooks in this language, such as zh")
    add("--extract", action="store_true", help="with --lang: add new text to the translation's file")

    command, add = new("export", help="copy the course without its solutions, to hand out")
    which = command.add_mutually_exclusive_group(required=True)
    which.add_argument("--students", metavar="FOLDER", help="a new folder, or an earlier copy")
    which.add_argument("--colab", metavar="FOLDER", help="notebooks for Colab, which install lablib there")
    add("--package", default="", help="with --colab: what pip installs; default: the project's address")

    command, add = new("regrade", help="grade earlier submissions with today's checks; list what changes")
    add("folder", metavar="FOLDER", help="an nbgrader course folder, or any folder of notebooks")

    command, add = new("new", help="make a folder for a lab of your own, which builds, runs and passes")
    add("number", metavar="NN", help="0 to 99")
    add("name", metavar="NAME", help="for example mixed_precision")

    command, add = new(
        "prove", help="test a lab's checks with the solution, the stub, unusual right answers and wrong answers"
    )
    add("lab", metavar="LAB", help="number or name of a lab")
    add("exercise", nargs="?", default="", metavar="EXERCISE", help="default: all")
    add("--seeds", type=int, default=1, metavar="N", help="number of draws of the inputs; default 1")

    command, add = new("calibrate", help='measure this machine: the cluster "this-machine" of simulations')
    add("--backend", default="gloo", help="gloo (this CPU, the default) or nccl (its GPUs)")
    add("--ranks", type=int, default=4, help="processes that are busy at once; default 4; at most one per GPU")
    add("--quick", action="store_true", help="half a minute, rougher figures")
    add("--out", metavar="FILE.toml", help='output file; default: the profile of "this-machine"')

    command, add = new(
        "plan",
        help="the best plans for a model on a cluster, and reasons against the others",
        description="Predict every way to split a model over a cluster, print the fastest that fit, and reasons against"
        " the others. For N give one value, some (1,2,4) or a range (4-16); without a value, all sensible ones "
        "are tried (the head of lablib/plan/search_grid.py lists them).",
    )
    _plan_arguments(command)

    command, add = new("site", help="build the course as static pages, with the planner in the browser")
    add("labs", nargs="*", metavar="LAB", help="default: all")
    add("--out", metavar="FOLDER", required=True, help="a new folder, or an earlier site")
    add("--only", choices=("planner",), help="the planner's page alone, without Sphinx")
    add("--notebooks", metavar="FOLDER", help="keep the executed labs there, and take them from there")
    add("--jobs", type=int, default=2, metavar="N", help="labs executed at once; default 2")
    add("--pyodide", metavar="FOLDER", help="the files of Pyodide; default: the cache, filled by npm")

    command, add = new(
        "validate",
        help="compare predictions of the planner with published runs",
        description="Predict the runs of a file, and print the errors: predicted / measured - 1 of the step "
        "time, by source and in total, and of memory if stated. The head of lablib/validation/rows.py describes "
        "the fields of a row.",
    )
    add("file", nargs="?", metavar="FILE.jsonl", help="rows; default: the rows of lablib")
    add("--json", action="store_true", help="the errors in percent, for programs")
    add("--page", metavar="FILE.md", help="write the report there, with its picture next to it")
    add("--cross-validate", action="store_true", help="fit without each source in turn (minutes)")
    add("--readme", metavar="README.md", help="update picture and error between its validation marks")
    parser.commands = commands.choices
    return parser


class _OptimizerNames:
    """Names of the planner's optimizers, imported only when the help is printed."""

    def __str__(self) -> str:
        from lablib.plan.optimizers import OPTIMIZERS

        return ", ".join(OPTIMIZERS)


def _plan_arguments(command: argparse.ArgumentParser) -> None:
    add = command.add_argument
    add("--model", help="a published model, for example gpt3-175b, or a config.json of Hugging Face's transformers")
    add("--cluster", help="a cluster, for example dgx-a100, or a TOML file")
    add("--deepspeed", metavar="FILE", help="a DeepSpeed configuration: its choices, where no option here says another")
    add(
        "--megatron",
        metavar="ARGS",
        help="the arguments of Megatron-LM in quotes, or a file with them: model, split and batch, in the same way",
    )
    add("--torchtitan", metavar="FILE", help="a TOML file of torchtitan, or FILE.py:FUNCTION, in the same way")
    add("--nodes", type=int, help="how many nodes")
    add("--gpus", type=int, help="or how many GPUs")
    add("--batch", help="sequences of a step, on all GPUs together; with k or M, tokens (4M is 4,194,304)")
    add("--seq-len", help="tokens of a sequence, for example 8k (8,192); default: the model's longest")
    add("--tokens", help="tokens of the whole training, for example 300B: days, GPU hours and energy")
    add("--price", type=float, metavar="N", help="with --tokens: the price of a GPU hour")
    add("--list", action="store_true", help="the names of models, clusters, software and all choices")
    add(
        "--write",
        nargs="+",
        metavar=("TOOL", "FILE"),
        help="the best plan as a configuration of deepspeed, megatron or torchtitan; without FILE on stdout",
    )
    add(
        "--why",
        metavar="MEASURED",
        help="compare the best plan with a measured step: seconds, a JSON file of seconds by part, or a trace of "
        "torch's profiler or of lablib; with the changed arguments that come nearest",
    )
    add(
        "--precision",
        help="of the linear layers' products: float32, tfloat32, float16, bfloat16 (default), float8, float4 or int8",
    )
    add(
        "--stack",
        help="training software, for example torch, torch-compile, megatron-2022 or megatron-core; default: usual "
        "today on such GPUs, named in the answer; an unknown name lists all of them",
    )
    optimizer = add("--optimizer", help="%(names)s (default: adamw)")
    vars(optimizer)["names"] = _OptimizerNames()
    add(
        "--offload",
        metavar="NAME",
        help="optimizer, activations, parameters, or several with commas: kept in host memory",
    )
    add("--lora", action="store_true", help="train adapters only: the model's weights have no gradients")
    add("--imbalance", type=float, help="of a mixture: tokens of the busiest expert rank over their mean; default 1")
    add(
        "--compression",
        default="none",
        help="of the data axis's gradients: none (default), fp16, bf16, int8, int4, one-bit, top-k or powersgd",
    )
    counts = {
        "tensor": "ranks that share every matrix product",
        "pipeline": "stages",
        "context": "ranks that share every sequence",
        "expert": "ranks that share the experts of a layer",
        "expert-tensor": "ranks that share the matrices of each expert; default: 1, and as many as tensor",
        "data": "ranks with different sequences",
        "chunks": "pieces of the model on a stage",
        "micro-batch": "sequences that go through a stage at once",
        "zero-stage": "0 to 3: model states split over the data ranks",
    }
    for name, what in counts.items():
        add(f"--{name}", metavar="N", help=what)
    names = {
        "recompute": 'none, selective, full, "every k" or "first k" layers',
        "schedule": "gpipe, 1f1b, interleaved, breadth-first, zb-h1, zb-h2, zb-v, dualpipe-v or v-half",
    }
    for name, what in names.items():
        add(f"--{name}", metavar="NAME", help=f"{what}; one, or several separated by commas")
    help_text = 'exit code 1 unless it holds for the best plan, for example "step_s < 8 and peak_bytes < 70e9"'
    add("--assert", dest="asserted", metavar="EXPRESSION", help=help_text)
    add("--top", type=int, default=10, metavar="N", help="rows of the table; default 10")
    add("--json", action="store_true", help="output for programs, in seconds and bytes, with the inputs")
