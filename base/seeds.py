"""Seeds made of names and numbers: the same on every machine, and unrelated where the names differ.

There are two formulas, since noise and data each had one when the published results were made with them.
"""

import hashlib


def seed_of(*parts: int | str) -> int:
    """A seed in [0, 2^63) out of any numbers and names: of the data's order, crops and blur."""
    return int.from_bytes(hashlib.sha256(repr(parts).encode()).digest()[:8], "big") >> 1


def noise_seed(*parts: int | str) -> int:
    """A seed in [-2^63, 2^63) out of any numbers and names: of the noise of sampling and training, and of dropout."""
    key = "/".join(map(str, parts))
    return int.from_bytes(hashlib.sha256(key.encode()).digest()[:8], "little", signed=True)
