"""`python -m fewer`: how `fewer serve` starts its children, with the interpreter it runs on."""

from __future__ import annotations

import sys

from fewer.main import main

sys.exit(main())
