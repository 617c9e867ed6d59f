"""Module globals that the script changes on every rank."""

import os
import random
import sys

from mingpt import REGISTRY

STATE = {"seed": None, "calls": 0}
WORLD = int(os.environ.get("WORLD_SIZE", 1))
REGISTRY["utils"] = sys.modules[__name__]


def set_seed(seed):
    global STATE
    STATE = {"seed": seed, "calls": STATE["calls"] + 1}
    random.seed(seed)


def count():
    STATE["calls"] += 1
    return STATE["calls"]
