"""What `import lablib` adds to `import torch`.

python benchmarks/import_time.py [--repeats 7]
"""

import argparse
import statistics
import subprocess
import sys

PROGRAM = """
import time
began = time.perf_counter()
import torch, torch.distributed
middle = time.perf_counter()
import lablib
print(middle - began, time.perf_counter() - middle)
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=7)
    args = parser.parse_args()
    command = [sys.executable, "-c", PROGRAM]
    rows = [
        subprocess.run(command, check=True, capture_output=True, text=True).stdout.split() for _ in range(args.repeats)
    ]
    torch_s, lablib_s = (statistics.median(float(row[i]) for row in rows) for i in (0, 1))
    print(
        f"import torch {torch_s:.2f} s, import lablib {lablib_s:.3f} s more (median of {args.repeats})   target: 0.3 s"
    )


if __name__ == "__main__":
    main()
