"""`python -m workbench` is `ppo-workbench`."""

import sys

from workbench.cli import main

sys.exit(main())
