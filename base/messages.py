def one_sentence(text): return text
