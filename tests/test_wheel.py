"""The wheel: what is in it, and that it works away from the repository."""

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest
import yaml

import isobatch

ROOT = Path(__file__).parents[1]
SOURCES = ("pyproject.toml", "README.md", "LICENSE", "isobatch")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """Build from a copy, since a build folder of the repository may hold files of another time."""
    source, out = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("dist")
    for name in SOURCES:
        if (ROOT / name).is_dir():
            shutil.copytree(
                ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__")
            )
        else:
            shutil.copy(ROOT / name, source)
    _pip("wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", out, source)
    (built,) = out.iterdir()
    return built


@pytest.fixture(scope="module")
def environment(wheel, tmp_path_factory):
    """An environment with the wheel, and of everything else what the running one has."""
    home = tmp_path_factory.mktemp("environment")
    venv.create(home, symlinks=True)
    python = home / "bin" / "python"
    _pip("--python", python, "install", "--no-deps", wheel)
    # A .pth file adds folders but does not read the .pth files in them: an editable install of
    # Isobatch in the running environment stays unseen.
    folders = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}
    (site,) = home.glob("lib/python*/site-packages")
    (site / "dependencies.pth").write_text("\n".join(folders))
    return home


@pytest.fixture
def run(environment, tmp_path):
    """Run a program of the environment in an empty folder; return what it prints."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}

    def run(program, *arguments):
        command = [environment / "bin" / program, *arguments]
        done = subprocess.run(command, cwd=tmp_path, env=clean, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run


def test_wheel_holds_the_whole_package_and_nothing_else(wheel):
    names = set(zipfile.ZipFile(wheel).namelist())
    info = f"isobatch-{isobatch.__version__}.dist-info/"
    held = {name for name in names if not name.startswith(info)}
    package = {
        path.relative_to(ROOT).as_posix()
        for path in (ROOT / "isobatch").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert held == package
    assert {
        "isobatch/py.typed",
        "isobatch/pages/base.html",
        "isobatch/pages/style.css",
        "isobatch/pages/app.js",
        "isobatch/probe/template.html",
        "isobatch/study/report/template.html",
        "isobatch/study/presets/n-vs-t.toml",
    } <= held
    assert info + "licenses/LICENSE" in names


def test_installed_package_is_used_away_from_the_repository(run, environment):
    file, typed, version = run(
        "python",
        "-c",
        "import isobatch, importlib.metadata as m, importlib.resources as r\n"
        "print(isobatch.__file__, r.files('isobatch').joinpath('py.typed').is_file(), "
        "m.version('isobatch'))",
    ).split()
    assert Path(file).is_relative_to(environment)
    assert typed == "True"
    assert version == isobatch.__version__


def test_commands_of_the_installed_package(run):
    assert run("isobatch", "--version") == f"isobatch {isobatch.__version__}\n"
    assert "minibatch" in run("isobatch", "show", "CartPole-v1")
    listed = run("isobatch", "study", "--list")
    presets = [path.stem for path in (ROOT / "isobatch/study/presets").glob("*.toml")]
    assert presets
    for name in presets:
        assert re.search(rf"^{re.escape(name)}: ", listed, re.MULTILINE)


def test_citation_and_changelog_know_this_version():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert citation["version"] == isobatch.__version__
    changelog = (ROOT / "CHANGELOG.md").read_text()
    sections = re.findall(r"^## \[?([0-9.]+)", changelog, re.MULTILINE)
    assert sections[0] == isobatch.__version__


def _pip(*arguments):
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", *arguments]
    # No network: what a build needs is in the running environment.
    environment = os.environ | {"PIP_NO_INDEX": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
