"""The commands and the code that README, docs/ and the cards show, and which of them no test runs."""

import re
import shlex

from tests.conftest import ROOT

CARDS = [ROOT / "pretrained" / name / "README.md" for name in ("lite", "maxim", "swift", "text", "u2net")]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), *CARDS]
# What is not done here, by how a command begins, and why.
EXCEPTIONS = {
    "make ": "installs, or runs what stands below it",
    "python -m pytest": "is what runs this",
    "python -m tools.batch": "a cluster; tests/batch runs it on a local Ray",
    "python sample.py photo.jpg --checkpoint user/name@v1": "downloads",
    "python sample.py photo.jpg --checkpoint deployed/trt": "needs TensorRT",
}
MEASURE = ("sampling", "training")
EXCEPTIONS |= {f"python -m tools.benchmarks.{name} ": "measures for minutes; its own test is small" for name in MEASURE}


def blocks(language):
    """(page, code) of every fenced block in a language; in bash or in none for commands."""
    found = []
    for page in PAGES:
        for block in re.finditer(r"^( *)```(\w*)\n(.*?)^\1```", page.read_text(), re.DOTALL | re.MULTILINE):
            if block[2] in language:
                found.append((page.name, block[3]))
    return found


def lines():
    """Every line that may be a command: of fenced blocks, of indented ones, and code in a sentence."""
    for _, code in blocks(("", "bash")):
        yield from code.replace("\\\n", " ").splitlines()
    for page in PAGES:
        prose = re.sub(r"^( *)```.*?^\1```", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
        yield from re.findall(r"^ {4}(\w.*)$", prose, re.MULTILINE)
        for code in re.findall(r"`([^`]+)`", prose):
            code = " ".join(code.split())
            yield f"python {code}" if re.match(r"(sample|evaluate)\.py .*--output ", code) else code


def commands():
    """Every command once, without what starts several processes, limits its time or chooses a core."""
    found = []
    for line in lines():
        line = re.sub(r"^(torchrun|srun) .*?(?=(train|sample|evaluate)\.py)", "python ", line.strip())
        line = re.sub(r"^(#\s+|OMP_NUM_THREADS=1 |taskset -c 0 |timeout -s TERM 570 |\.venv/bin/)*", "", line)
        line = line.replace("python python", "python")
        # What names a program alone, in a sentence, is no command.
        if re.match(r"make \w|python3? \S+\.py \S|python3? -m \S+ \S|python app.py", line) and "..." not in line:
            found.append(shlex.join(shlex.split(line, comments=True)))
    return list(dict.fromkeys(found))


def reason(line):
    return next((why for start, why in EXCEPTIONS.items() if line.startswith(start)), None)


RUN = [line for line in commands() if reason(line) is None]
APPS = [line for line in RUN if line.startswith("python app.py") and "--help" not in line]
