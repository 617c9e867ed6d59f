"""`python -m lablib.cli`: the `lab` command without a script on the path."""

import sys

from lablib.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
