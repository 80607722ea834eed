"""The promises of the pages, and for each the tests that fail where it is broken: the table promises.yaml."""

import ast
from collections import Counter
from functools import cache

import pytest
import yaml

from tests.conftest import ROOT

PROMISES = yaml.safe_load((ROOT / "tests" / "promises.yaml").read_text())
NAMED = sorted({test for entries in PROMISES.values() for entry in entries for test in entry["tests"]})


@cache
def functions_of(file):
    """The functions of a test file, those of a class as CLASS::NAME."""
    names = set()
    for node in ast.parse((ROOT / file).read_text()).body:
        if isinstance(node, ast.FunctionDef):
            names.add(node.name)
        elif isinstance(node, ast.ClassDef):
            names |= {f"{node.name}::{part.name}" for part in node.body if isinstance(part, ast.FunctionDef)}
    return names


@pytest.mark.parametrize("page", PROMISES)
def test_a_page_says_what_the_table_quotes(page):
    text = " ".join((ROOT / page).read_text().split())
    for entry in PROMISES[page]:
        assert entry["promise"] in text
        assert 4 <= len(entry["promise"].split()) <= 15, entry["promise"]
        assert entry["tests"], entry["promise"]


@pytest.mark.parametrize("test", NAMED)
def test_a_test_that_the_table_names_is_there(test):
    file, _, name = test.partition("::")
    assert name.split("::")[-1].startswith("test_")
    assert name in functions_of(file)


def test_no_promise_stands_in_the_table_twice():
    promises = [(page, entry["promise"]) for page, entries in PROMISES.items() for entry in entries]
    assert [one for one, count in Counter(promises).items() if count > 1] == []
