"""The version of the code, and of its dependencies, that made a result."""

import platform
import subprocess
from importlib.metadata import version
from pathlib import Path


def commit(*paths: str) -> str | None:
    """The git commit of this code, with "-dirty" if files differ from it; None outside git.

    Args:
        paths: git pathspecs of the files to compare; none: all.
    """
    try:
        head = _git("rev-parse", "HEAD")
        return head + ("-dirty" if _git("diff", "HEAD", "--name-only", "--", *paths) else "")
    except (OSError, subprocess.CalledProcessError):
        return None


def versions(*packages: str) -> dict[str, str]:
    """The versions of Python and of installed packages."""
    return {"python": platform.python_version()} | {package: version(package) for package in packages}


def _git(*arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=Path(__file__).parent, capture_output=True, text=True, check=True)
    return done.stdout.strip()
