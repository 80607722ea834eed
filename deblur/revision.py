"""The version of the code, and of its dependencies, that made a result."""

import platform
import subprocess
from importlib.metadata import version
from pathlib import Path

CHECKOUT = Path(__file__).parents[1]


def commit(*paths: str) -> str | None:
    """The git commit of this code, with "-dirty" if files differ from it; None outside git, as where pip installed it.

    Args:
        paths: git pathspecs of the files to compare; none: all.
    """
    if not (CHECKOUT / ".git").exists():  # git would name the commit of a project around an installed package
        return None
    try:
        head = _git("rev-parse", "HEAD")
        return head + ("-dirty" if _git("diff", "HEAD", "--name-only", "--", *paths) else "")
    except (OSError, subprocess.CalledProcessError):
        return None


def versions(*packages: str) -> dict[str, str]:
    """The versions of Python and of installed packages."""
    return {"python": platform.python_version()} | {package: version(package) for package in packages}


def _git(*arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=CHECKOUT, capture_output=True, text=True, check=True)
    return done.stdout.strip()
