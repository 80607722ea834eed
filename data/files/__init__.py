"""Images in and out of files."""
