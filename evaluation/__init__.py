"""evaluate.py: grids, scores, and their report."""
