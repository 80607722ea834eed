"""Train on blurry/sharp pairs, or on sharp photographs with synthetic blur.

python train.py fit --config configs/demo.yaml
python train.py --help
"""

import sys

from deblur.training.command import main

if __name__ == "__main__":
    sys.exit(main())
