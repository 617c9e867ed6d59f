"""`python -m lablib.cli`: the `lab` command where no script of that name is on the path."""

import sys

from lablib.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
