"""`lab plan --write`: the best plan as a configuration of DeepSpeed, Megatron-LM or torchtitan."""

import argparse
import sys
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from lablib.configs.writing import DEFAULTS, write
from lablib.hardware.catalogue import find_cluster
from lablib.plan.arguments import find_model
from lablib.plan.parallel import Parallel
from lablib.plan.search_result import SearchResult
from lablib.text.files import write_text


def written_plan(options: argparse.Namespace, found: SearchResult, remarks: Sequence[str]) -> int:
    """Write the best plan to a file, or print it alone; remarks go to stderr.

    Raises ValueError: no plan fits, an unknown tool, or choices that it does not have.
    """
    tool, *files = options.write
    if len(files) > 1:
        raise ValueError(f"--write takes a tool and one file: got {' '.join(options.write)}; try --write {tool} FILE")
    best = found.best
    settings = settings_of(found.plans.arguments(int(found.order[0]))) | {"stack": best.software.name}
    written = write(settings, tool, gpus_per_node=find_cluster(options.cluster).devices_per_node)
    remarks = [best.sentence(), *remarks, *written.remarks]
    if files:
        write_text(Path(files[0]), written.text)
        print("\n".join([*remarks, f"Written: {files[0]}."]))
    else:
        print(written.text, end="")
        print("\n".join(remarks), file=sys.stderr)
    return 0


def settings_of(arguments: dict[str, Any]) -> dict[str, Any]:
    """The keyword arguments of `predict` as the settings that `lablib.configs.write` takes."""
    split = arguments["parallel"]
    settings = {field.name: getattr(split, field.name) for field in fields(Parallel)}
    settings |= {name: value for name, value in arguments.items() if name in DEFAULTS}
    return settings | {"model": find_model(arguments["model"])}
