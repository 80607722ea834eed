"""Seeds from names."""

import unicodedata

import pytest

from deblur.seeds import noise_seed, seed_of


@pytest.mark.parametrize("seed", [seed_of, noise_seed])
def test_a_name_gives_the_same_seed_in_every_form_of_unicode(seed):
    composed, decomposed = (unicodedata.normalize(form, "Müller") for form in ("NFC", "NFD"))
    assert composed != decomposed
    assert seed(0, composed, 1) == seed(0, decomposed, 1) != seed(0, "Muller", 1)
    assert seed(0, "M\udcfcller") != seed(0, composed), "a name that is not UTF-8 is another"
