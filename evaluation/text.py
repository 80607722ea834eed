"""How much of a page's text a machine reads wrongly: the character error rate of Tesseract."""

import hashlib
import os
import unicodedata
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch
from PIL import Image
from torch import Tensor

try:
    import pytesseract
    from rapidfuzz.distance import Levenshtein
except ImportError:  # they are optional
    pytesseract = None

from deblur.data.files import lists, search
from deblur.evaluation.pixels import IMAGE, MetricError, require_finite, whole_numbers

PAGE_MODE = 3  # Tesseract's own: find columns, blocks and lines


class ErrorRate:
    """The edit distance of what Tesseract reads to the text that is printed, over the text's length; 0 is perfect.

    It may exceed 1. It is called as `evaluation.metrics.Metric`; MetricError without the texts, Tesseract or a package.

    Args:
        folder: the dataset; folder/text/NAME.txt has the text of the image NAME, which may be SCENE/NAME.
        language: Tesseract's, such as eng, or eng+deu.
    """

    inputs: ClassVar = ("restored", "names")

    def __init__(self, folder: Path, language: str = "eng"):
        self.texts, self.language = folder / "text", language
        if (reason := _missing(self.texts, language)) is not None:
            raise MetricError(reason)
        digest = hashlib.sha256()
        for file in sorted(self.texts.rglob("*.txt")):
            digest.update(f"{file.relative_to(self.texts)} {file.stat().st_size} ".encode("utf-8", "surrogateescape"))
            digest.update(file.read_bytes())
        self.recipe = (
            f"character error rate: {IMAGE}; Tesseract {pytesseract.get_tesseract_version()}, language {language}, "
            f"page mode {PAGE_MODE}; Unicode NFKC, white space as single spaces; edit distance by rapidfuzz "
            f"{version('rapidfuzz')} over the number of characters in the text (texts {digest.hexdigest()[:12]})"
        )

    def __call__(self, restored: Tensor, names: Sequence[str]) -> Tensor:
        """(N, 3, H, W) of about [0, 1] and the images' names -> (N,). MetricError where a text is missing or empty."""
        require_finite(restored)
        values = []
        for image, name in zip(whole_numbers(restored).byte().movedim(1, -1).cpu().numpy(), names, strict=True):
            printed = self._text(name)
            values.append(Levenshtein.distance(_read(image, self.language), printed) / len(printed))
        return torch.tensor(values, device=restored.device)

    def _text(self, name: str) -> str:
        file = search.on_disk(self.texts / f"{name}.txt")
        if not file.is_file():
            raise MetricError(f"{file} is missing: it should have the text on the image")
        try:
            text = _normalised(lists.read_text(file))
        except search.DataError as error:
            raise MetricError(str(error)) from None
        if not text:
            raise MetricError(f"{file} is empty: an error rate needs some text")
        return text


def _missing(texts: Path, language: str) -> str | None:
    """Why there can be no error rate, or None."""
    if not texts.is_dir():
        return f"{texts} is no folder: it should have a text file for each image, as tools.make_pages writes them"
    for package in ("pytesseract", "rapidfuzz"):
        try:
            version(package)
        except PackageNotFoundError:
            return f"the package {package} is not installed: pip install -r requirements-extra.txt"
    try:
        languages = pytesseract.get_languages()
    except (pytesseract.TesseractNotFoundError, OSError):
        return "the program tesseract is not installed (on Debian: apt install tesseract-ocr)"
    lacking = [part for part in language.split("+") if part not in languages]
    return f"Tesseract has no language {lacking[0]}; it has {', '.join(languages)}" if lacking else None


def _read(pixels: np.ndarray, language: str) -> str:
    os.environ.setdefault("OMP_THREAD_LIMIT", "1")  # Tesseract's threads slow each other down
    try:
        return _normalised(pytesseract.image_to_string(Image.fromarray(pixels), language, f"--psm {PAGE_MODE}"))
    except pytesseract.TesseractError as error:
        raise MetricError(f"Tesseract cannot read the image: {error.message.strip()}") from error


def _normalised(text: str) -> str:
    return " ".join(unicodedata.normalize("NFKC", text).split())
