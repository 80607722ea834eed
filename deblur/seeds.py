"""Seeds computed from names and numbers: the same on every machine, and unrelated for different names.

There are two formulas because the published results were made with one for noise and another for data.
"""

import hashlib


def seed_of(*parts: int | str) -> int:
    """A seed in [0, 2^63) from numbers and names, for the data's order, crops and blur."""
    return int.from_bytes(hashlib.sha256(repr(parts).encode()).digest()[:8], "big") >> 1


def noise_seed(*parts: int | str) -> int:
    """A seed in [-2^63, 2^63) from numbers and names, for the noise of sampling and training, and for dropout.

    Of a file's name that is not UTF-8 its bytes count.
    """
    key = "/".join(map(str, parts)).encode("utf-8", "surrogateescape")
    return int.from_bytes(hashlib.sha256(key).digest()[:8], "little", signed=True)
