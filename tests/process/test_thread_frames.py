"""Asking where threads are does not stop the process, whatever the garbage collector finds meanwhile."""

import gc
import subprocess
import sys
import threading

from lablib.process.thread_frames import thread_frames

# Garbage that holds a `threading.local`, and a collection that is due while the frames of new threads are listed: where
# it may run then, CPython 3.11 stands still.
PROGRAM = """
import gc, sys, threading
from lablib.process.thread_frames import thread_frames

class Node:
    pass

def litter():
    node = Node()
    node.me, node.local = node, threading.local()
    node.local.value = 1

for allocations in range(2, 26, 2):
    gc.disable()
    done = threading.Event()
    threads = [threading.Thread(target=done.wait, daemon=True) for _ in range(32)]
    for thread in threads:
        thread.start()
    gc.collect()
    for _ in range(20):
        litter()
    gc.set_threshold(gc.get_count()[0] + allocations)
    gc.enable()
    assert len(FRAMES()) >= 32
    done.set()
print("ended", gc.isenabled())
"""


def test_frames_are_told_while_there_is_garbage_with_a_local_of_a_thread():
    code = PROGRAM.replace("FRAMES()", "thread_frames()")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout.split() == ["ended", "True"], done.stderr


def test_the_collector_is_left_as_it_was():
    for is_on in (True, False):
        try:
            gc.enable() if is_on else gc.disable()
            assert threading.get_ident() in thread_frames() and gc.isenabled() == is_on
        finally:
            gc.enable()
