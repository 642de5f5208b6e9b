"""What the pages show can be done: commands and flags exist, files parse, code compiles."""

import argparse
import ast
import builtins
import importlib.util
import re
import tomllib
from pathlib import Path

import pytest
from doc_blocks import DOCS, OF_OTHERS, PAGES, ROOT, SHELLS, all_blocks, blocks, commands

import isobatch
from isobatch import cli, exchange, language
from isobatch.cli.flags import Parser
from isobatch.errors import UserError
from isobatch.recipe import Recipe
from isobatch.study import design

OTHERS = ("make", "pip", "python", ".", "git")
"""First words of commands that are not Isobatch's."""
OWN_FLAGS = {"--spo-penalty", "--advantage-bound"}
"""Of the objective and the algorithm that the pages on extending register."""
OWN_NAMES = {
    "my-ppo": "ppo",
    "gated": "mlp",
    "Corridor-v0": "CartPole-v1",
    "python:corridors": "CartPole-v1",
}
"""What those pages register, and what may stand in its place."""


FOREIGN = {"--key", "--logdir", "--num-envs"}
"""In running text: flags of other libraries and programs."""


ELSEWHERE = (".zip", ".cleanrl_model")
"""Files that others than `exchange` read."""
LANGUAGE = ["rescale", "--from", "verl"]
"""A command with flags of its own."""


class Parsed(Exception):
    """Stops a command once its arguments are read."""


@pytest.fixture
def parse(monkeypatch, tmp_path):
    """Return a function that reads a command's words as the command line does, and stops there."""
    monkeypatch.chdir(tmp_path)
    read = argparse.ArgumentParser.parse_known_args

    def parse_args(parser, words):
        _, rest = read(parser, words)
        if rest:
            parser.error(f"unrecognized arguments: {' '.join(rest)}")
        raise Parsed

    def parse_known_args(parser, words):
        """Of import and rescale, which leave others' settings to `exchange` or `language`."""
        parsed, rest = read(parser, words)
        if parsed.format in language.LIBRARIES:
            found = language.find(parsed.format)
            found.read(found.settings(language.parse(rest)))
        elif parsed.format is None:
            assert [word.startswith("-") for word in rest] == [False]
        elif not any(word.endswith(ELSEWHERE) for word in rest):
            said = exchange.parse_words(parsed.format, rest)
            env = parsed.env or said.env
            exchange.read(parsed.format, exchange.settings(parsed.format, said), env)
        raise Parsed

    monkeypatch.setattr(Parser, "parse_args", parse_args)
    monkeypatch.setattr(Parser, "parse_known_args", parse_known_args)

    def run(words):
        with pytest.raises((Parsed, SystemExit)) as stopped:  # --help exits.
            cli._dispatch(words)
        assert stopped.type is Parsed or "--help" in words

    return run


def shown_commands():
    """Return every isobatch command of the pages, in shell blocks and in running text."""
    found = [
        (block.place, words)
        for block in all_blocks(*SHELLS)
        for words in commands(block)
        if words[0] == "isobatch"
    ]
    assert len(found) > 60
    return found


@pytest.mark.parametrize(("place", "words"), shown_commands(), ids=lambda each: str(each)[-60:])
def test_a_command_has_the_name_and_flags_shown(place, words, parse):
    words = _without_imports(words[1:])
    for file, text in OF_OTHERS.items():
        Path(file).write_text(text)
    if "--recipe" in words:
        Path(words[words.index("--recipe") + 1]).write_text('env = "CartPole-v1"\n')
    parse(words)


def _without_imports(words):
    """Leave out what only the pages on extending register."""
    rest, words = [], list(words)
    while words:
        word = words.pop(0)
        if word in {"--import", *OWN_FLAGS}:
            words.pop(0)
        else:
            rest.append(OWN_NAMES.get(word, word))
    return rest


def test_a_flag_that_does_not_exist_is_noticed(parse):
    for words in (["train", "CartPole-v1", "--n-env", "3"], ["eval", "runs/x", "--episode", "3"]):
        with pytest.raises(UserError):
            cli._dispatch(words)


def test_shell_blocks_have_nothing_else():
    for block in all_blocks(*SHELLS):
        for words in commands(block):
            assert words[0] in ("isobatch", *OTHERS), block.place


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_commands_and_flags_in_running_text_exist(page):
    text = re.sub(r"^( *)```.*?^\1```$", "", page.read_text(encoding="utf-8"), flags=re.M | re.S)
    for command in re.findall(r"`isobatch ([a-z-]+)", text):
        assert command in cli.COMMANDS, command
    known = _all_flags() | OWN_FLAGS | FOREIGN
    for span in re.findall(r"`(?:isobatch )?[^`]*--[^`]*`", text):
        if "benchmarks/" in span or "tests/" in span or "mpiexec" in span:
            continue  # Programs of their own.
        for flag in re.findall(r"(?<![\w-])--[a-z][a-z-]*", span):
            assert flag in known, f"{flag} in {span}"


def _all_flags(cache=[]):  # noqa: B006
    """Return the flags of all commands."""
    if not cache:
        flags = {"--import", "--help", "--version", "--batch-size"}
        seen = []
        original = argparse.ArgumentParser.parse_known_args

        def keep(self, *words, **settings):
            seen.append(self)
            raise Parsed

        argparse.ArgumentParser.parse_known_args = keep
        try:
            for words in (*([command, "CartPole-v1"] for command in cli.COMMANDS), LANGUAGE):
                with pytest.raises(Parsed):
                    cli._dispatch(words)
        finally:
            argparse.ArgumentParser.parse_known_args = original
        for parser in seen:
            flags.update(parser._option_string_actions)
        cache.append(flags)
    return cache[0]


@pytest.mark.parametrize("block", all_blocks("toml"), ids=lambda block: block.place)
def test_toml_is_a_study_or_a_recipe(block):
    tables = tomllib.loads(block.text)
    if "study" in tables or "arms" in tables:
        design.from_toml(block.text, "shown").check()
    else:
        Recipe.from_toml(block.text if "env" in tables else f'env = "CartPole-v1"\n{block.text}')


@pytest.mark.parametrize("block", all_blocks("python"), ids=lambda block: block.place)
def test_python_compiles_and_its_names_exist(block):
    tree = ast.parse(block.text)
    modules = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            modules |= {each.asname or each.name: each.name for each in node.names}
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("isobatch"):
            source = importlib.import_module(node.module or "")
            for each in node.names:
                assert _has(source, each.name), f"{node.module}.{each.name}"
    if "README" in block.page.name or block.title == "":
        _refuse_undefined(tree)
    for node in ast.walk(tree):
        path = _dotted(node)
        if path and path[0] == "isobatch" and "isobatch" in modules:
            found = isobatch
            for name in path[1:]:
                assert hasattr(found, name), ".".join(path)
                found = getattr(found, name)


def _has(module, name):
    if hasattr(module, name):
        return True
    return importlib.util.find_spec(f"{module.__name__}.{name}") is not None


def _dotted(node):
    """Return the names of a.b.c, None of anything else."""
    names = []
    while isinstance(node, ast.Attribute):
        names.insert(0, node.attr)
        node = node.value
    return [node.id, *names] if isinstance(node, ast.Name) and names else None


def _refuse_undefined(tree):
    """Every name is defined in the block itself: a reader pastes it whole."""
    bound = set(dir(builtins))
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            bound |= {(each.asname or each.name).split(".")[0] for each in node.names}
        elif isinstance(node, ast.FunctionDef | ast.ClassDef):
            bound.add(node.name)
        elif isinstance(node, ast.arg):
            bound.add(node.arg)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            bound.add(node.id)
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            assert node.id in bound, node.id


def test_links_between_files_lead_somewhere():
    for page in PAGES:
        text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.S)
        for target in re.findall(r"\]\(([^)#\s]+)[^)]*\)", text):
            if not target.startswith(("http:", "https:")) and target not in LATER:
                assert (page.parent / target).exists(), f"{page.relative_to(ROOT)}: {target}"


LATER = {"CONTRIBUTING.md", "CHANGELOG.md"}
"""Files at the top of the repository, which the site does not need."""


def test_the_glossary_is_in_order_and_has_each_term_once():
    text = (DOCS / "glossary.md").read_text(encoding="utf-8")
    terms = re.findall(r"^### (.+)$", text, re.M)
    assert len(terms) >= 40
    assert terms == sorted(set(terms), key=str.lower)
    for entry in re.split(r"^### .+$", text, flags=re.M)[1:]:
        assert 1 <= len(re.findall(r"[.:](?=\s|$)", entry)) <= 5, entry


def test_every_page_is_in_the_navigation():
    listed = set(re.findall(r"[\w/-]+\.md", (ROOT / "mkdocs.yml").read_text(encoding="utf-8")))
    pages = {str(page.relative_to(DOCS)) for page in DOCS.rglob("*.md")}
    assert pages == listed


def test_nothing_is_fetched_from_elsewhere():
    """A link may lead out; images, scripts and styles may not."""
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        assert not re.search(r"!\[[^\]]*\]\(https?:|<(img|script|link)\b[^>]*https?:", text), page
    assert blocks(DOCS / "index.md", "sh")
