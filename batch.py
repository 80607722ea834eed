"""python -m batch has another name since version 0.4.0."""

import sys

sys.exit("python -m batch is now python -m tools.batch")
