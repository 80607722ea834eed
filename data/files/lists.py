"""Read lists and tables of files as editors and spreadsheets save them."""

import codecs
import csv
import io
from pathlib import Path

from deblur.data.files.search import DataError, on_disk

MARKS = {codecs.BOM_UTF8: "utf-8-sig", codecs.BOM_UTF16_LE: "utf-16", codecs.BOM_UTF16_BE: "utf-16"}
DELIMITERS = ",;\t"  # the second and the third are those of Excel in many countries


def read_text(file: Path) -> str:
    """A text file in UTF-8, or in UTF-16 with a byte order mark; the mark is left out.

    Raises DataError, which names the file, for another encoding.
    """
    content = file.read_bytes()
    encoding = next((encoding for mark, encoding in MARKS.items() if content.startswith(mark)), "utf-8")
    try:
        return content.decode(encoding)
    except UnicodeDecodeError:
        raise DataError(f"{file} is not text in {encoding.upper()}: save it as UTF-8.") from None


def read_table(file: Path) -> tuple[list[str], list[dict[str, str]]]:
    """The columns, in small letters, and rows of a CSV file, separated by commas, semicolons or tabs.

    Its first line has the names of the columns.
    """
    text = read_text(file)
    header = text.partition("\n")[0]
    delimiter = max(DELIMITERS, key=header.count)
    reader = csv.DictReader(io.StringIO(text, newline=""), delimiter=delimiter, skipinitialspace=True)
    try:
        columns = [name.strip().lower() for name in reader.fieldnames or ()]
        reader.fieldnames = columns
        return columns, list(reader)
    except csv.Error as error:
        raise DataError(f"{file} is not a CSV file: {error}.") from None


def read_lines(file: Path) -> list[str]:
    """The lines of a text file that are not empty, without blanks around them."""
    return [line.strip() for line in read_text(file).splitlines() if line.strip()]


def named_files(names: Path, root: Path) -> list[Path]:
    """The files below `root` that a text file lists, one per line, sorted; DataError if one is missing."""
    if not names.is_file():
        raise DataError(f"{names} is no file: give a list of names, one a line.")
    files = sorted(on_disk(root / line) for line in read_lines(names))
    if not files:
        raise DataError(f"{names} lists no file.")
    for file in files:
        if not file.is_file():
            raise DataError(f"{names} lists {file.name}, but {file} is no file.")
    return files
