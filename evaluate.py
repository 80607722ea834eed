"""Score a checkpoint over a grid of sampling settings: tables, the perception-distortion plot and a report.

python evaluate.py --checkpoint runs/demo/checkpoint --data GoPro --grid configs/grid/paper.yaml --output scores
python evaluate.py --help
"""

import sys

from deblur.evaluation.command import main

if __name__ == "__main__":
    sys.exit(main())
