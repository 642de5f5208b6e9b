"""Text as plain data: what parsers choke on is one line with its place."""

import json
import os

import pytest

from isobatch import cli, exchange
from isobatch.errors import LONGEST, UserError, shown
from isobatch.plain import DEEPEST, LARGEST, MOST_TOML, from_json, from_toml, from_yaml, literal
from isobatch.recipe import Recipe
from isobatch.study.design import Study, load
from isobatch.study.design import from_toml as read_study

BOMB = "a: &a [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{each}: &{each} [{', '.join([f'*{before}'] * 10)}]\n"
    for before, each in zip("abcdefgh", "bcdefghi", strict=True)
)
MERGED = "a: &a {k: 1}\n" + "".join(
    f"{each}: &{each} {{<<: [{', '.join([f'*{before}'] * 10)}]}}\n"
    for before, each in zip("abcdefgh", "bcdefghi", strict=True)
)
MALFORMED = [
    (from_toml, "a = 1\nb = [", r"line 2: not valid TOML"),
    (from_toml, "a = 1\na = 2", r"line 2: not valid TOML: Cannot overwrite"),
    (from_toml, "a = " + "[" * 5000, f"more than {DEEPEST} tables or lists"),
    (from_toml, "a = " + "{a=" * 5000, f"more than {DEEPEST} tables or lists"),
    (from_toml, "a = " + "[" * 40 + "]" * 40, f"more than {DEEPEST} tables or lists"),
    (from_toml, "a = 1\nb = " + "9" * 5000, "line 2: a number of more than 64 bits"),
    (from_toml, "b = 0x" + "f" * 5000, "line 1: 'b' is a number of more than 64 bits"),
    (from_toml, f"a = 1\nb = {2**63}", "line 2: 'b' is a number of more than 64 bits"),
    (from_toml, "a = 1\n" + "a." * 300 + "b = 1", "line 2: more than 200 dots"),
    (from_toml, "# " + "x" * MOST_TOML, "characters, more than the"),
    (from_toml, "a = 1979-13-27", "not valid TOML"),
    (from_toml, "a = 1\x00", "not valid TOML"),
    (from_json, '{"a": 1,\n}', "line 2: not valid JSON"),
    (from_json, "", "line 1: not valid JSON"),
    (from_json, "[" * 100_000, f"more than {DEEPEST} tables or lists"),
    (from_json, "[" * 40 + "]" * 40, f"more than {DEEPEST} tables or lists"),
    (from_json, '{"a": 1, "a": 2}', "'a' appears twice"),
    (from_json, "9" * 5000, "more than 64 bits"),
    (from_json, str(2**63), "more than 64 bits"),
    (from_yaml, "a: 1\nb: [", "line 2: not valid YAML"),
    (from_yaml, "a: 1\nb: 2\na: 3", "line 3: 'a' appears twice"),
    (from_yaml, "[" * 5000, f"more than {DEEPEST} tables or lists"),
    (from_yaml, BOMB, "expands to more than"),
    (from_yaml, MERGED, "expands to more than"),
    (from_yaml, "a: &a [*a]", "line 1: an alias that contains itself"),
    (from_yaml, "x: 1\na: !!python/object/apply:os.system [ls]", "line 2: not valid YAML: the tag"),
    (from_yaml, "a: !!bool maybe", "not valid YAML"),
    (from_yaml, "a: !!int ''", "not valid YAML"),
    (from_yaml, "a: " + "9" * 5000, "line 1: a number of more than 64 bits"),
    (from_yaml, "a: 1" + ":59" * 3000 + ".5", "not valid YAML"),
    (from_yaml, "a: \x00", "not valid YAML"),
    (from_yaml, "a: 1\n---\nb: 2", "not valid YAML"),
]


@pytest.mark.parametrize(("read", "text", "message"), MALFORMED)
def test_what_a_parser_chokes_on_is_one_line(read, text, message):
    with pytest.raises(UserError, match=message) as caught:
        read(text, "file")
    assert str(caught.value).isprintable()
    assert str(caught.value).startswith("file")


def test_good_text_is_plain_data():
    assert from_toml(f"a = {LARGEST - 1}\n[b]\nc = [1.5]", "x") == {
        "a": LARGEST - 1,
        "b": {"c": [1.5]},
    }
    assert from_json('{"a": [1, null, true, "x"]}', "x") == {"a": [1, None, True, "x"]}
    anchored = "a: &a {n: 1, d: 2024-01-31}\nb:\n  <<: *a\n  n: 2"
    assert from_yaml(anchored, "x")["b"] == {"n": 2, "d": "2024-01-31"}


@pytest.mark.parametrize(
    "text", ["{[]: 1}", "{{}}", "-" * 9000 + "1", "[" * 5000, "9" * 5000, "\x00", "1" * 20_000]
)
def test_a_literal_that_is_none_is_its_text(text):
    assert literal(text) == text
    assert Recipe(env="x").replace(env_options=(f"a={text}",)).environment.options["a"] == (
        text.strip()
    )


def test_values_are_shown_short_whatever_they_are():
    endless: list = []
    endless.append(endless)
    assert shown(10**5000) == "a int too large to show"
    assert shown("a\x1b[2Jb") == r"'a\x1b[2Jb'"
    assert len(shown("x" * 10_000)) < 100
    assert shown(endless) == "[[...]]"
    assert len(str(UserError("x" * 10**6))) < LONGEST + 10
    assert str(UserError("a\nb\x1b")) == r"a\nb\x1b"


RECIPES = [
    (b'env = "CartPole-v1"\nalgo = 0\n', "line 2: algo must be a text, got 0"),
    (b'env = "CartPole-v1"\n[batch]\nn_envs = true\n', "line 3: n_envs must be a whole number"),
    (b'env = "CartPole-v1"\nbatch = 3\n', r"line 2: batch must be a table \[batch\], got 3"),
    (b'env = "CartPole-v1"\n[[batch]]\n', r"line 2: batch must be a table \[batch\]"),
    (b'env = { a = 1 }\n', "line 1: env must be a text"),
    (b'env = "CartPole-v1"\nseed = nan\n', "line 2: seed must be a whole number, got nan"),
    (b'env = "CartPole-v1"\n[objective]\ngamma = nan\n', "line 3: gamma must be a finite number"),
    (b'env = "CartPole-v1"\n[objective]\ngamma = 1979-05-27\n', "line 3: gamma must be a finite"),
    (b'env = "CartPole-v1"\ntotal_timesteps = 1000000000000000000000\n', "more than 64 bits"),
    (b'env = "x\xff"', "it is not UTF-8"),
    (b"", "the field env is missing"),
    (b"\x00", "not valid TOML"),
    (b'env = "C"\n[phasic]\nphase_memory = "' + b"9" * 400 + b'GB"', "line 3: phase_memory must"),
    (b'env = "C"\n[reshape]\nbatch_schedule = "_:8x8"', "line 3: batch_schedule must read like"),
    (b'env = "C"\n[reshape]\nbatch_schedule = "0:1x' + b"9" * 5000 + b'"', "batch_schedule must"),
]  # fmt: skip


@pytest.mark.parametrize(("content", "message"), RECIPES)
def test_a_recipe_that_is_none_is_one_line_of_the_command(content, message, tmp_path, capsys):
    file = tmp_path / "recipe.toml"
    file.write_bytes(content)
    refused(["rescale", str(file), "--n-envs", "4"], message, capsys)


def refused(words, message, capsys):
    assert cli.main(words) == 2
    told = capsys.readouterr().err
    assert told.count("\n") == 1
    assert told.startswith("isobatch: ")
    with pytest.raises(UserError, match=message):
        raise UserError(told)


GOOD = """[study]
envs = ["CartPole-v1"]
budget = 4096
seeds = 2
[arms]
a = { n_envs = 8 }
b = { n_envs = 4 }
"""
STUDIES = [
    ("budget = 4096", 'budget = "x"', "line 3: budget must be a whole number"),
    ("seeds = 2", "seeds = 1000000000000", "line 4: 1,000,000,000,000 seeds are more than 10,000"),
    ("seeds = 2", "seeds = [true]", "line 4: seeds must be a list of whole numbers"),
    ("seeds = 2", "seeds = [-1]", "line 4: seeds must be a number of them"),
    ("a = { n_envs = 8 }", "a = 3", "line 5: arm 'a' must be a table"),
    ("n_envs = 8", "algo = 0", "arm 'a' in 'CartPole-v1': algo must be a text, got 0"),
    ("n_envs = 8", "self = 0", "arm 'a' in 'CartPole-v1': unknown recipe field 'self'"),
    ("n_envs = 8", 'rescale_from = "b", hold = 3', "hold must be a list of fields, got 3"),
    ("n_envs = 8", 'rescale_from = ["b"]', "rescaled from .*not an arm"),
    ("n_envs = 8", 'rescale_from = "b", scale_envs = 1e308', "not a whole number"),
    ("n_envs = 8", 'rescale_from = "b", n_envs = 1.5', "n_envs must be a whole number"),
    ("a = {", f"{'a' * 300} = {{", "line 5: arms: the name 'aaa.*is too long"),
    ("CartPole-v1", "x" * 300, "line 2: envs: the name 'xxx.*is too long"),
    ('"CartPole-v1"', '"a\\u001b[2J"', "line 2: envs: .*invalid characters"),
    ("[arms]", "[grid]\nn_envs = " + str([*range(1, 41)]) + "\nn_steps = " + str([*range(1, 41)])
     + "\n[arms]", r"line 5: \[grid\]: 1,600 arms are more than 1,000"),
    ("[arms]", "[[claims]]\ntext = 3\n[arms]", "line 5: claim 1 has no better"),
    ("[arms]", "[scores]\nx = { random = 0, reference = nan }\n[arms]", "line 5: scores of 'x'"),
    ("[arms]", "claims = 3\n[arms]", "line 5: unknown field 'claims'"),
]  # fmt: skip


@pytest.mark.parametrize(("before", "after", "message"), STUDIES)
def test_a_study_that_is_none_is_one_line_of_the_command(before, after, message, tmp_path, capsys):
    assert before in GOOD
    file = tmp_path / "study.toml"
    file.write_text(GOOD.replace(before, after))
    refused(["study", str(file), "--dry-run"], message, capsys)


def test_a_scales_mistake_has_the_scales_line():
    with pytest.raises(UserError, match="line 9: seeds must be"):
        read_study(GOOD + '[paper]\nseeds = "x"\n', "x", "paper")


def test_too_many_runs_are_refused():
    many = GOOD.replace("seeds = 2", "seeds = 10_000").replace(
        '["CartPole-v1"]', str([f"e{place}" for place in range(9)])
    )
    with pytest.raises(UserError, match="line 4: 180,000 runs are more than 100,000"):
        read_study(many, "x")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[1]", "is not a table"),
        ("null", "is not a table"),
        ("{", "not valid JSON"),
        ("[" * 100_000, "tables or lists in each other"),
        ('{"name": "x"}', "arms is missing"),
        ('{"self": 1}', "unknown field 'self'"),
    ],
)
def test_a_study_json_that_is_none_is_refused(text, message):
    with pytest.raises(UserError, match=message):
        Study.from_json(text)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("arms", {"a": 1}, "arm 'a' must be a table"),
        ("arms", [], "arms must be a table"),
        ("envs", "CartPole-v1", "envs must be a list"),
        ("seeds", [1, 10**30], "more than 64 bits"),
        ("claims", {}, "claims are tables"),
        ("claims", [3], "claim 1 must be a table"),
        ("scores", {"x": 10}, "scores of 'x' must be"),
        ("base", None, "base must be a table"),
        ("budget", 1e400, "budget must be a whole number"),
    ],
)
def test_a_study_json_with_a_wrong_value_names_it(name, value, message):
    data = json.loads(read_study(GOOD, "x").to_json())
    with pytest.raises(UserError, match=message):
        Study.from_json(json.dumps(data | {name: value}))


FORMATS = [
    ("zoo", ".yml", "CartPole-v1: {n_envs: 8, 3: 4}", "zoo has no 3"),
    ("zoo", ".yml", "a: {n_envs: 8}\nenv: [1]", "env must be an environment's id"),
    ("zoo", ".yml", "- 1", "does not contain a dictionary"),
    ("zoo", ".yml", BOMB, "expands to more than"),
    ("sb3", ".json", '{"n_envs": 1e400}', "n_envs must be a whole number"),
    ("sb3", ".json", '{"gamma": ' + "9" * 300 + "}", "more than 64 bits"),
    ("sb3", ".json", '{"policy_kwargs": {"net_arch": "64"}}', "net_arch must be a list of widths"),
    ("sb3", ".json", '{"policy_kwargs": "{[]: 1}"}', "policy_kwargs must be a dictionary"),
    ("sb3", ".json", '{"env": "\\ud800"}', "env must be a text of whole characters"),
    ("cleanrl", ".json", '{"total_timesteps": "' + "9" * 5000 + '"}', "must be a whole number"),
    (
        "rsl_rl",
        ".json",
        '{"num_envs": 0, "num_steps_per_env": 8, "actor": {"activation": "elu"}}',
        "num_envs must be at least 1",
    ),
    ("rsl_rl", ".yml", "num_envs: 8\nrunner: {3: 4}", "rsl_rl has no 3"),
    ("ppo-ewma", ".json", '{"aux_mbsize": Infinity}', "aux_mbsize must be a finite number"),
]


@pytest.mark.parametrize(("name", "suffix", "text", "message"), FORMATS)
def test_another_librarys_file_that_is_none_is_one_line(
    name, suffix, text, message, tmp_path, capsys
):
    file = tmp_path / f"file{suffix}"
    file.write_text(text)
    refused(["rescale", "--from", name, str(file), "--n-envs", "4"], message, capsys)


def test_widths_in_quotes_are_no_longer_read_digit_by_digit():
    with pytest.raises(UserError, match="net_arch must be a list"):
        exchange.read("sb3", {"policy_kwargs": {"net_arch": "64"}})


@pytest.mark.parametrize("kind", ["fifo", "folder", "loop", "absent", "long"])
def test_what_is_no_file_is_one_line(kind, tmp_path, capsys):
    for suffix in (".toml", ".yml", ".json"):
        path = tmp_path / f"{kind}{suffix}"
        if kind == "fifo":
            os.mkfifo(path)
        elif kind == "folder":
            path.mkdir()
        elif kind == "loop":
            path.symlink_to(path)
        elif kind == "long":
            path = tmp_path / f"{'x' * 300}{suffix}"
        read = ["--from", "sb3", str(path)] if suffix != ".toml" else [str(path)]
        # A folder may be a run.
        message = "cannot read|not a regular file|holds no run|too long|Too many levels"
        refused(["rescale", *read, "--n-envs", "4"], message, capsys)
        if suffix == ".toml":
            refused(["study", str(path), "--dry-run"], message, capsys)


def test_neighbours_of_a_long_name_are_not_looked_for():
    names = [f"{'a' * 50_000}{each}" for each in "bc"]
    claim = f'[[claims]]\ntext = "x"\nbetter = "{names[0]}"\nthan = "a"\n'
    with pytest.raises(UserError, match="a claim names the arm"):
        read_study(GOOD + claim, "x")


def test_a_minibatch_that_does_not_divide_a_huge_rollout_is_refused_at_once():
    recipe = Recipe(env="x").replace(n_envs=10**9, n_steps=10**8)
    with pytest.raises(UserError, match=r"do not divide a rollout of 1(0{17}) transitions$"):
        recipe.replace(minibatch_size=7)


def test_every_preset_still_loads():
    assert load("phasic").arms
