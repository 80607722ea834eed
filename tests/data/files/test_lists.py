"""Lists and tables as editors and spreadsheets save them."""

import pytest
import torch

from deblur.data.files import images
from deblur.data.files.lists import named_files, read_table
from deblur.data.files.search import DataError
from deblur.data.layouts import find_pairs

ENCODINGS = ["utf-8", "utf-8-sig", "utf-16"]


@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize("delimiter", [",", ";", "\t", ", "])
def test_a_table_of_a_spreadsheet_names_the_same_pairs(tmp_path, encoding, delimiter):
    for side in ("blur", "sharp"):
        images.write(tmp_path / side / "Müller, 1, 2, 3.png", torch.zeros(3, 2, 2))
    rows = [("blurry", "sharp", "split"), ('"blur/Müller, 1, 2, 3.png"', '"sharp/Müller, 1, 2, 3.png"', "train")]
    (tmp_path / "pairs.csv").write_bytes("\r\n".join(map(delimiter.join, rows)).encode(encoding))
    (pair,) = find_pairs(tmp_path / "pairs.csv", "train")
    assert (pair.blurry, pair.sharp) == (tmp_path / "blur/Müller, 1, 2, 3.png", tmp_path / "sharp/Müller, 1, 2, 3.png")


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_a_list_of_an_editor_names_the_same_files(tmp_path, encoding):
    files = [tmp_path / "a.png", tmp_path / "ü.png"]
    for file in files:
        file.touch()
    (tmp_path / "train.txt").write_bytes("a.png\r\n\r\n ü.png\r\n".encode(encoding))
    assert named_files(tmp_path / "train.txt", tmp_path) == files


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("blurry,sharp\nü.png,b.png".encode("cp1252"), "pairs.csv is not text in UTF-8: save it as UTF-8."),
        (b"blurry,sharp\n" + b"x" * 200_000, "pairs.csv is not a CSV file: field larger than field limit"),
    ],
)
def test_what_cannot_be_read_is_named(tmp_path, content, words):
    (tmp_path / "pairs.csv").write_bytes(content)
    with pytest.raises(DataError) as error:
        read_table(tmp_path / "pairs.csv")
    assert words in str(error.value)
