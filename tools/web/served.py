"""How the page is served. This imports no library, so that app.py shows its help at once."""

import os
from dataclasses import dataclass

LOCAL = ("127.0.0.1", "localhost", "::1")


@dataclass
class Served:
    """How to serve the page, and what visitors may ask for.

    Args:
        host: address to serve at; 127.0.0.1 is reachable from this machine only, 0.0.0.0 from its network. The
            environment variable GRADIO_SERVER_NAME overrides the default.
        port: of the page.
        auth: NAME:PASSWORD that visitors have to give.
        max_size: largest uploaded file in megabytes (1e6 bytes).
        max_pixels: largest photograph in megapixels.
        max_steps: most steps of a sample.
        max_samples: most samples of a photograph.
        max_seconds: longest restoration of a photograph; it ends when it becomes too long.
    """

    host: str = os.environ.get("GRADIO_SERVER_NAME", LOCAL[0])
    port: int = 7860
    auth: str | None = None
    max_size: float = 200
    max_pixels: float = 50
    max_steps: int = 100
    max_samples: int = 16
    max_seconds: float = 3600

    def __post_init__(self):
        for name, value in vars(self).items():
            if name.startswith("max_") and value <= 0:
                raise ValueError(f"--{name} must be above 0, got {value:g}")
        if self.auth is not None and not all(self.auth.partition(":")):
            raise ValueError("--auth is NAME:PASSWORD")
