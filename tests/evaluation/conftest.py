"""Fixtures of tests/flags.py."""

from tests.flags import called, known, place  # noqa: F401
