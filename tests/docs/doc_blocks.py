"""Code blocks of the documentation's pages."""

import re
import shlex
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))]
SHELLS = ("sh", "console", "bash")
FENCE = re.compile(r"^( *)```(\w+)(?: title=\"([^\"]+)\")?\n(.*?)^\1```$", re.M | re.S)
OF_OTHERS = {
    "ppo.yml": "CartPole-v1:\n  n_envs: 8\n  n_timesteps: !!float 1e5\n  policy: 'MlpPolicy'\n"
    "  n_steps: 32\n  batch_size: 256\n  n_epochs: 20\n  learning_rate: lin_0.001\n",
    "runner.json": '{"num_envs": 4096, "num_steps_per_env": 24, "seed": 1, '
    '"algorithm": {"num_mini_batches": 4, "num_learning_epochs": 5, '
    '"schedule": "fixed", "gamma": 0.99, "entropy_coef": 0.01}}',
    "rsl_rl_ppo_cfg.py": "from isaaclab_rl.rsl_rl import RslRlOnPolicyRunnerCfg\n"
    "class FlatCfg(RslRlOnPolicyRunnerCfg):\n    num_steps_per_env = 24\n"
    "    algorithm = dict(num_mini_batches=4, num_learning_epochs=5, schedule='fixed',\n"
    "                     gamma=0.99, entropy_coef=0.01)\n",
}
"""Files of other libraries, which a reader of the page has."""


class Block(NamedTuple):
    page: Path
    language: str
    title: str
    text: str

    @property
    def place(self):
        return f"{self.page.relative_to(ROOT)}: {self.text.strip().splitlines()[0]}"


def blocks(page, *languages):
    found = FENCE.findall(page.read_text(encoding="utf-8"))
    every = [Block(page, language, title, text) for _, language, title, text in found]
    return [each for each in every if each.language in languages]


def all_blocks(*languages):
    return [block for page in PAGES for block in blocks(page, *languages)]


def commands(block):
    """Return a shell block's commands as words; a backslash goes on in the next line."""
    lines = block.text.replace("\\\n", " ").splitlines()
    return [words for line in lines if (words := shlex.split(line, comments=True))]
