"""Every code block of the README and of docs/ does what it says.

python  executed, block after block of a document in one namespace
bash    executed in the same folder as the document's other blocks; one that is too long for a test carries a comment
        above it, `<!-- not run: why -->`, and then its subcommands and options must exist
cpp     a program is one of examples/, letter by letter; anything shorter must compile, with x a batch of tokens
text    pictures and output: nothing to run
Commands in indented blocks are treated like those that are not run.
"""

import functools
import json
import os
import pathlib
import re
import shlex
import shutil
import subprocess
import sys
import typing

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
if str(ROOT / "python") not in sys.path:
    sys.path.insert(0, str(ROOT / "python"))
DBA = pathlib.Path(os.environ.get("DBA_PROGRAM", ROOT / "build" / "release" / "bin" / "dba"))
LIBRARY = pathlib.Path(os.environ.get("DBA_LIBRARY", ROOT / "build" / "release" / "lib" / "libdba.so"))
BUILD = LIBRARY.parents[1]
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
NOT_RUN = re.compile(r"<!-- not run: \S.* -->")
COMMANDS = ("dba", "make", "pip", "python3", "bench/", "cmake", "ctest", "scripts/")


class Block(typing.NamedTuple):
    document: pathlib.Path
    line: int  # of its first line of code, counted from 1
    language: str
    code: str
    not_run: bool

    @property
    def name(self):
        return f"{self.document.relative_to(ROOT)}:{self.line}"


def fenced_blocks(document):
    lines = document.read_text().splitlines()
    blocks, index = [], 0
    while index < len(lines):
        opening = re.match(r"^( *)```(\S*)\s*$", lines[index])
        if not opening:
            index += 1
            continue
        above = next((line for line in reversed(lines[:index]) if line.strip()), "")
        closing = next(i for i in range(index + 1, len(lines)) if lines[i].strip() == "```")
        code = [line.removeprefix(opening.group(1)) for line in lines[index + 1 : closing]]
        blocks.append(Block(document, index + 2, opening.group(2), "\n".join(code) + "\n",
                            bool(NOT_RUN.fullmatch(above.strip()))))
        index = closing + 1
    return blocks


def indented_commands(document):
    """Lines like `    dba bench layer      what it does`, outside fences."""
    inside = False
    for number, line in enumerate(document.read_text().splitlines(), start=1):
        inside ^= line.lstrip().startswith("```")
        if not inside and line.startswith("    dba "):
            yield Block(document, number, "bash", re.split(r"\s{2,}", line.strip())[0] + "\n", True)


BLOCKS = [block for document in DOCUMENTS for block in fenced_blocks(document)]
COMMAND_LINES = [block for document in DOCUMENTS for block in indented_commands(document)]


# For commands of the program that are written in Python.
ENVIRONMENT = {"PYTHONPATH": os.pathsep.join([str(ROOT / "python"), os.environ.get("PYTHONPATH", "")]),
               "DBA_LIBRARY": str(LIBRARY), "DBA_PYTHON": sys.executable, "MPLBACKEND": "Agg",
               "PATH": os.pathsep.join([str(DBA.parent), str(pathlib.Path(sys.executable).parent), os.environ["PATH"]])}


@functools.cache
def help_of(*subcommand):
    result = subprocess.run([DBA, *subcommand, "--help"], capture_output=True, text=True, timeout=60,
                            env={**os.environ, **ENVIRONMENT})
    return result.stdout if result.returncode == 0 else None


def unknown_words(code):
    """Subcommands and options of `dba` in a piece of shell that the program does not know."""
    wrong = []
    for line in code.replace("\\\n", " ").splitlines():
        for command in re.split(r"\||;|&&", line.split(" #")[0]):
            words = shlex.split(command, comments=True)
            if not words or words[0] != "dba":
                continue
            subcommand = []
            for word in words[1:]:
                known = re.findall(r"^ {2,4}([a-z][a-z-]*)(?: |$)", help_of(*subcommand), re.MULTILINE)
                if word not in known:
                    break
                subcommand.append(word)
            text = help_of(*subcommand)
            options = [word.split("=")[0] for word in words if word.startswith("--") and word != "--help"]
            wrong += [f"{command.strip()}: no option {option}" for option in options
                      if not re.search(rf"(?<![\w-]){option}(?![\w-])", text)]
            if not subcommand and len(words) > 1 and not words[1].startswith("-"):
                wrong.append(f"{command.strip()}: no subcommand {words[1]}")
    return wrong


def test_there_are_blocks_and_each_says_what_it_is():
    assert {"python", "bash", "cpp"} <= {block.language for block in BLOCKS}
    for block in BLOCKS:
        commands = [line for line in block.code.splitlines() if line.startswith(COMMANDS)]
        assert block.language or not commands, f"{block.name}: commands stand in a block without a language; say bash"
        assert block.language in ("", "python", "bash", "cpp", "text"), \
            f"{block.name}: no test knows what to do with a block of {block.language}"
        assert block.language == "bash" or not block.not_run, f"{block.name}: only bash may stay unrun"


def to_run(document):
    return [block for block in fenced_blocks(document) if block.language in ("python", "bash") and not block.not_run]


@pytest.mark.parametrize("document", list(filter(to_run, DOCUMENTS)), ids=lambda path: path.name)
def test_python_and_bash_blocks_run(document, tmp_path, monkeypatch):
    blocks = to_run(document)
    sources = "".join(block.code for block in blocks)
    for package in ("sklearn", "matplotlib"):
        if package in sources:
            pytest.importorskip(package, reason=f"a block needs {package}")
    # What a checkout has, as far as the documents name it.
    (tmp_path / "build").mkdir()
    (tmp_path / "build" / "release").symlink_to(BUILD)
    for folder in ("configs", "bench", "examples", "python"):
        (tmp_path / folder).symlink_to(ROOT / folder)
    monkeypatch.chdir(tmp_path)
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    names = {"__name__": "__main__"}
    for block in blocks:
        if block.language == "python":
            exec(compile("\n" * (block.line - 1) + block.code, str(block.document), "exec"), names)
        else:
            result = subprocess.run(["bash", "-euo", "pipefail", "-c", block.code], capture_output=True, text=True,
                                    timeout=120)
            assert result.returncode == 0, f"{block.name}\n{result.stdout}{result.stderr}"


def test_commands_that_are_not_run_exist():
    commands = [block for block in BLOCKS if block.not_run] + COMMAND_LINES
    assert commands
    for block in commands:
        assert not unknown_words(block.code), block.name
    assert unknown_words("dba fly --high") and unknown_words("dba bench layer --sideways 3 | dba predict x")
    assert not unknown_words("dba bench layer --lengths 8 --json   # words --here")


def test_programs_in_cpp_are_the_examples():
    programs = [block for block in BLOCKS if block.language == "cpp" and "int main" in block.code]
    examples = [path.read_text() for path in (ROOT / "examples").glob("*.cc")]
    assert programs
    for block in programs:
        assert any(text.endswith(block.code) for text in examples), f"{block.name}: no program of examples/ ends so"


def test_snippets_of_cpp_compile(tmp_path):
    snippets = [block for block in BLOCKS if block.language == "cpp" and "int main" not in block.code]
    entries = BUILD / "compile_commands.json"
    if not snippets or not entries.is_file():
        pytest.skip("no snippet, or no compile_commands.json beside the library that says how to compile")
    command = next((entry for entry in json.loads(entries.read_text()) if entry["file"].endswith("ten_lines.cc")), None)
    words = shlex.split(command["command"]) if command else []
    if not words or shutil.which(words[0]) is None:
        pytest.skip("the compiler that built the examples is not here")
    source = tmp_path / "snippets.cc"
    functions = [f"void snippet_{i}([[maybe_unused]] const torch::Tensor& x) {{\n#line {block.line} \"{block.name}\"\n"
                 f"{block.code}}}\n" for i, block in enumerate(snippets)]
    source.write_text("#include <dba/dba.h>\n#include <torch/torch.h>\n" + "".join(functions))
    place = words.index("-o")
    flags = [word for word in words[1:place] if word != "-Werror"]
    result = subprocess.run([words[0], *flags, "-Wno-unused-variable", "-fsyntax-only", str(source)],
                            capture_output=True, text=True, cwd=command["directory"], timeout=240)
    assert result.returncode == 0, result.stderr
