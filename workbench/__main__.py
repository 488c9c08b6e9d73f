"""`python -m workbench` is `ppo-workbench`."""

import sys

from workbench.cli.main import main

sys.exit(main())
