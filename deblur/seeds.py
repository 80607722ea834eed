"""Seeds computed from names and numbers: the same on every machine, and unrelated for different names.

There are two formulas because the published results were made with one for noise and another for data.
"""

import hashlib
import unicodedata


def seed_of(*parts: int | str) -> int:
    """A seed in [0, 2^63) from numbers and names, for the data's order, crops and blur."""
    return int.from_bytes(hashlib.sha256(repr(_in_one_form(parts)).encode()).digest()[:8], "big") >> 1


def noise_seed(*parts: int | str) -> int:
    """A seed in [-2^63, 2^63) from numbers and names, for the noise of sampling and training, and for dropout.

    Of a file's name that is not UTF-8 its bytes count.
    """
    key = "/".join(map(str, _in_one_form(parts))).encode("utf-8", "surrogateescape")
    return int.from_bytes(hashlib.sha256(key).digest()[:8], "little", signed=True)


def _in_one_form(parts: tuple[int | str, ...]) -> tuple[int | str, ...]:
    """The parts with names in Unicode's NFC: a file that macOS named gets the noise that it gets elsewhere."""
    return tuple(unicodedata.normalize("NFC", part) if isinstance(part, str) else part for part in parts)
