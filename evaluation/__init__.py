"""evaluate.py: grids, scores, and their report."""

from deblur.moved import require_new_name

require_new_name(__name__)
