"""Image files, layouts of datasets, pairs, and synthetic blur."""
