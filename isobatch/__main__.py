"""`python -m isobatch`."""

import sys

from isobatch.cli import main

sys.exit(main())
