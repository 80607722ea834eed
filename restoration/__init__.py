"""sample.py: files in, files out."""
