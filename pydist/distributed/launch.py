"""PyTorch's older name for the launcher: ``python -m pydist.distributed.launch`` is ``python -m pydist.run``."""

import sys

from pydist.run import main

if __name__ == "__main__":
    sys.exit(main())
