"""The recipe: everything that defines a run, frozen, in TOML and back.

The tables are nested for the reader; every field's name is unique, so overrides and command-line
flags are flat (`n_envs=64`, `--n-envs 64`).
"""

from __future__ import annotations

import ast
import dataclasses
import math
import numbers
import re
import tomllib
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Union, get_args, get_origin, get_type_hints

from isobatch.batch import ADAPTIVE, Batch, minibatch_count, parse_schedule, positive
from isobatch.errors import UserError, nearest

if TYPE_CHECKING:
    from isobatch.scaling import Rescaled

Schedule = Literal["constant", "linear"]
ALGORITHMS = ("ppo", "ppo-ewma", "ppg", "ppg-ewma", "a2c", "reinforce", "pqn")
OBJECTIVES = ["clip", "kl", "pg"]
"""Names of the policy objectives; `objectives.objective` adds a user's own."""
STALE_ALGORITHMS = ("ppo", "ppo-ewma", "ppg", "ppg-ewma")
ENVS_PER_SEGMENT = 16
"""An auxiliary minibatch holds a segment for so many environments: the reference's 4 of 64."""
UNPROBED = {
    "pqn": "pqn, which has no policy gradient",
    "reinforce": "reinforce, whose advantages wait for the ends of episodes",
}
"""Algorithms whose policy gradient is not measured while training, and why."""
ADAPTIVE_INTERVAL = 10
"""Iterations between two probes of a run with an adaptive batch that does not say it."""
ONE_STEP = {"objective": "pg", "n_minibatches": 1, "n_epochs": 1}
"""What makes an update the policy gradient itself: every row once, under the policy it names."""


@dataclass(frozen=True)
class Environment:
    """How the environments are made."""

    vectorization: Literal["sync", "async"] = "sync"
    """Gymnasium environments only: step them in this process, or in one process each."""
    env_threads: int = 0
    """EnvPool's threads; 0 lets it choose. The results do not depend on it."""
    env_options: tuple[str, ...] = ()
    """Options passed to the environment, as name=value (for Procgen: num_levels=200)."""
    episodic_life: bool = False
    """Atari: end an episode at each lost life in training; whole games are still scored."""
    sign_rewards: bool = False
    """Atari: train on the sign of the reward; the score reported is the game's own."""

    @property
    def options(self) -> dict[str, Any]:
        """`env_options` by name, each value read as a Python literal or else as text."""
        pairs = (text.partition("=") for text in self.env_options)
        return {name.strip(): literal(value.strip()) for name, _, value in pairs}


@dataclass(frozen=True)
class Model:
    """The networks."""

    encoder: Literal["auto", "mlp", "nature", "impala", "custom"] = "auto"
    """What reads the observation; auto takes nature for images and mlp for vectors."""
    architecture: Literal["shared", "dual", "detach"] = "dual"
    """One encoder for policy and value, two, or one that the value loss does not train."""
    hidden_sizes: tuple[int, ...] = (64, 64)
    """Widths of the MLP's hidden layers."""
    activation: Literal["tanh", "relu", "elu"] = "tanh"
    """The MLP's activation."""
    layer_norm: bool = False
    """Normalise each hidden layer before its activation, as PQN needs."""
    init: Literal["orthogonal", "reference"] = "orthogonal"
    """Orthogonal weights, or the reference implementation's row-normalised ones."""


@dataclass(frozen=True)
class Normalize:
    """Running statistics applied to what the environment gives."""

    normalize_observations: bool = False
    """Centre and scale vector observations by their running mean and deviation."""
    normalize_rewards: bool = False
    """Divide rewards by the running deviation of the discounted return."""
    reward_gamma: float = 0.99
    """Discount of that return; the reference keeps 0.99 whatever gamma is."""
    reward_clip: float = 10.0
    """Bound on the normalised reward."""


@dataclass(frozen=True)
class Objective:
    """What is maximised and how far one update may go."""

    gamma: float = 0.99
    """Discount per step."""
    gae_lambda: float = 0.95
    """GAE's lambda: 0 trusts the value function, 1 the returns."""
    objective: str = "clip"
    """clip the ratio, a kl penalty on it, or pg, the policy gradient without one."""
    clip_range: float = 0.2
    """Clipping's epsilon."""
    clip_range_schedule: Schedule = "constant"
    """Constant, or linear to 0 over the budget in environment steps."""
    kl_coef: float = 1.0
    """The KL penalty's beta."""
    kl_estimator: Literal["squared", "exact"] = "squared"
    """KL penalty: half the squared log-ratio (the reference's), or the distributions' own KL."""
    max_ratio: float = 100.0
    """No importance ratio exceeds this."""
    ent_coef: float = 0.0
    """Weight of the entropy bonus."""
    vf_coef: float = 0.5
    """Weight of the value loss 0.5 (v - target)^2; twice SB3's vf_coef, who has no half there."""
    target_kl: float | None = None
    """Stop the iteration's updates once the approximate KL exceeds 1.5 times this."""
    advantage_normalization: Literal["batch", "minibatch", "ewma", "none"] = "batch"
    """Normalise advantages over the rollout, each minibatch, several iterations, or not at all."""
    advantage_decay: float = 0.0
    """With ewma: decay of the advantage moments per iteration; 0 is the rollout alone."""
    proximal_decay: float = 0.889
    """PPO-EWMA: decay of the averaged weights per gradient step."""
    minibatches_by: Literal["samples", "envs"] = "samples"
    """Draw minibatches from single rows, or from whole environments' trajectories."""
    n_value_epochs: int = 0
    """Epochs of the value function alone, before the policy's n_epochs; 0 trains both at once."""
    baseline: bool = True
    """REINFORCE: subtract the value function from the returns."""
    staleness: int = 0
    """Learn from each rollout this many iterations after it was collected."""
    staleness_loss: Literal["decoupled", "behavior", "proximal"] = "decoupled"
    """Stale data: weigh it by the policy that acted and limit the step from the one before the
    update (decoupled), or take for both the one that acted, or the one before the update."""


@dataclass(frozen=True)
class Phasic:
    """PPG's phases."""

    n_policy_iterations: int = 32
    """Iterations of a policy phase, N_pi; an auxiliary phase follows."""
    n_aux_epochs: int = 6
    """Passes over the whole phase's data in the auxiliary phase, E_aux."""
    clone_coef: float = 1.0
    """Auxiliary phase: weight of KL(policy before it, policy)."""
    aux_learning_rate: float = 0.0
    """Step size of the auxiliary phase's own optimiser; 0 takes learning_rate."""
    aux_segments: int = 0
    """Auxiliary minibatches hold this many environments' rollouts; 0 takes n_envs / 16."""
    phase_memory: str = "4GB"
    """Memory for the phase's compressed observations; what exceeds it goes to a file in the run."""

    def segments(self, n_envs: int) -> int:
        """Return how many environments' rollouts an auxiliary minibatch holds."""
        return self.aux_segments or max(1, n_envs // ENVS_PER_SEGMENT)


@dataclass(frozen=True)
class Reshape:
    """The batch in the course of the run."""

    batch_schedule: str = ""
    """Batches by environment step or part of the budget, N x T [x minibatches]: "0:8x128,
    100k:32x128, 50%:128x32x8". Or adaptive: they follow the gradient's noise, which is then
    measured every 10 iterations unless probe_every says otherwise."""
    rescale: bool = True
    """Move the hyperparameters, which belong to the recipe's own batch, by the rules."""

    @property
    def is_adaptive(self) -> bool:
        """True where the batch follows what is measured."""
        return self.batch_schedule.strip() == ADAPTIVE


@dataclass(frozen=True)
class Probe:
    """What is measured while training."""

    probe_every: int = 0
    """Measure the policy gradient's noise every so many iterations; 0 never. A probe takes as long
    as an epoch and a half: every 10 iterations cost some 5 percent at 3 or 4 epochs, every 20 at
    one, every 50 at one step (a2c)."""


@dataclass(frozen=True)
class Exploration:
    """PQN's random actions."""

    epsilon_start: float = 1.0
    """Probability of a random action at the start."""
    epsilon_end: float = 0.05
    """The same at the end."""
    epsilon_fraction: float = 0.2
    """Part of the budget over which it falls, linearly."""


@dataclass(frozen=True)
class Optimizer:
    """How gradients become steps."""

    optimizer: Literal["adam", "radam", "rmsprop", "sgd"] = "adam"
    """The update rule."""
    learning_rate: float = 3e-4
    """Step size."""
    learning_rate_schedule: Schedule = "constant"
    """Constant, or linear to 0 over the budget in environment steps."""
    adam_beta1: float = 0.9
    """Adam's decay of the gradient's mean."""
    adam_beta2: float = 0.999
    """Adam's decay of the squared gradient's mean."""
    adam_eps: float = 1e-5
    """Adam's (RAdam's, RMSprop's) epsilon."""
    rms_decay: float = 0.99
    """RMSprop's decay of the squared gradient's mean."""
    momentum: float = 0.0
    """SGD's momentum."""
    max_grad_norm: float | None = None
    """Clip the gradient's norm to this; none by default, as in the reference."""


@dataclass(frozen=True)
class Machine:
    """Where and how the numbers are computed."""

    device: Literal["auto", "cpu", "cuda"] = "auto"
    """auto takes CUDA where there is one."""
    threads: int = 0
    """PyTorch's CPU threads; 0 takes one for small MLPs and every core for images."""
    chunk_size: int = 0
    """Rows per forward-backward pass; 0 chooses a cache-sized number. Gradients are exact."""
    compile: Literal["auto", "on", "off"] = "auto"
    """Compile the update of small networks; auto does where the run is long enough to repay it."""
    checkpoint_seconds: float = 60.0
    """Write a checkpoint about this often."""
    keep_policies: int = 4
    """Keep the policy at this many equal parts of the budget, for probing; 0 keeps the last one
    only."""


@dataclass(frozen=True)
class Recipe:
    """Environment, algorithm, batch, objective, optimiser and model of one run."""

    env: str
    """Environment id: EnvPool's, Gymnasium's (gymnasium:Id, module:Id) or tensor:Id."""
    algo: Literal["ppo", "ppo-ewma", "ppg", "ppg-ewma", "a2c", "reinforce", "pqn"] = "ppo"
    """The algorithm."""
    total_timesteps: int = 100_000
    """Data budget in environment steps; the run ends within n_envs of it."""
    seed: int = 1
    """Seed of everything random in the run."""
    batch: Batch = field(default_factory=Batch)
    objective: Objective = field(default_factory=Objective)
    reshape: Reshape = field(default_factory=Reshape)
    probe: Probe = field(default_factory=Probe)
    phasic: Phasic = field(default_factory=Phasic)
    exploration: Exploration = field(default_factory=Exploration)
    optimizer: Optimizer = field(default_factory=Optimizer)
    model: Model = field(default_factory=Model)
    normalize: Normalize = field(default_factory=Normalize)
    environment: Environment = field(default_factory=Environment)
    machine: Machine = field(default_factory=Machine)

    def __post_init__(self) -> None:
        _check_types(self)
        _check_ranges(self)
        _check_algorithm(self)

    @property
    def is_phasic(self) -> bool:
        """True where auxiliary phases follow policy phases."""
        return self.algo in ("ppg", "ppg-ewma")

    @property
    def averages_policy(self) -> bool:
        """True where the proximal policy is an average of recent ones."""
        return self.algo in ("ppo-ewma", "ppg-ewma")

    @property
    def trains_value_apart(self) -> bool:
        """True where the value function has epochs, and so an optimiser, of its own."""
        return self.objective.n_value_epochs not in (0, self.batch.n_epochs)

    @property
    def probe_interval(self) -> int:
        """Iterations from one probe of the gradient to the next; 0: there are none."""
        return self.probe.probe_every or ADAPTIVE_INTERVAL * self.reshape.is_adaptive

    @property
    def values(self) -> dict[str, Any]:
        """Return every leaf field by its flat name."""
        return {name: value for name, _, value in _leaves(self)}

    def replace(self, **overrides: Any) -> Recipe:
        """Return a recipe with the fields named, whatever table they are in, replaced.

        A whole table is replaced by its own name (`batch=Batch(...)`).

        `minibatch_size` may stand for `n_minibatches`; `batch_size` is refused because SB3 and
        CleanRL mean different things by it.
        """
        tables = {k: v for k, v in overrides.items() if dataclasses.is_dataclass(v)}
        if tables:
            rest = {k: v for k, v in overrides.items() if k not in tables}
            return dataclasses.replace(self, **tables).replace(**rest)
        overrides = {
            name: _as_field(value) for name, value in _named_batch(self, overrides).items()
        }
        known = self.values
        for name in overrides:
            if name not in known:
                raise UserError(f"unknown recipe field {name!r}.{nearest(name, list(known))}")
        changes: dict[str, Any] = {}
        for item in dataclasses.fields(self):
            value = getattr(self, item.name)
            if dataclasses.is_dataclass(value) and not isinstance(value, type):
                names = {leaf.name for leaf in dataclasses.fields(value)}
                chosen = {key: overrides[key] for key in overrides if key in names}
                if chosen:
                    changes[item.name] = dataclasses.replace(value, **chosen)
            elif item.name in overrides:
                changes[item.name] = overrides[item.name]
        return dataclasses.replace(self, **changes)

    def rescale(self, **batch: Any) -> Rescaled:
        """Return this recipe at another batch, by the published rules: see `scaling.rescale`."""
        from isobatch.scaling import rescale

        return rescale(self, **batch)

    def to_toml(self) -> str:
        """Return the recipe as TOML; fields that are None are left out."""
        import tomli_w

        return tomli_w.dumps(_without_none(dataclasses.asdict(self)))

    @classmethod
    def from_toml(cls, text: str, source: str = "recipe") -> Recipe:
        """Read a recipe; a mistake is reported with its line and field."""
        try:
            tables = tomllib.loads(text)
        except tomllib.TOMLDecodeError as error:
            raise UserError(f"{source}: not valid TOML: {_one_line(error)}") from None
        return _build(cls, tables, text, source)

    @classmethod
    def load(cls, path: str | Path) -> Recipe:
        """Read a recipe file."""
        try:
            text = Path(path).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise UserError(f"cannot read recipe {path}: {_one_line(error)}") from None
        return cls.from_toml(text, source=str(path))


def check_budget(recipe: Recipe) -> None:
    """Refuse a budget that does not hold one rollout."""
    if recipe.total_timesteps < recipe.batch.rollout_size:
        raise UserError(
            f"total_timesteps {recipe.total_timesteps} is less than one rollout of "
            f"{recipe.batch.rollout_size} (n_envs {recipe.batch.n_envs} x n_steps "
            f"{recipe.batch.n_steps})"
        )


def refuse_batch_size() -> UserError:
    """The error for a bare `batch_size`, which no one can read one way."""
    return UserError(
        "batch_size is ambiguous: Stable-Baselines3 means the rows of one gradient step "
        "(here minibatch_size), CleanRL the whole rollout (here n_envs x n_steps); use those"
    )


def _named_batch(recipe: Recipe, overrides: dict[str, Any]) -> dict[str, Any]:
    """Turn `minibatch_size` into `n_minibatches`, and refuse `batch_size`."""
    if "batch_size" in overrides:
        raise refuse_batch_size()
    size = overrides.get("minibatch_size")
    rest = {name: value for name, value in overrides.items() if name != "minibatch_size"}
    if size is None:
        return rest
    if "n_minibatches" in rest:
        raise UserError("give n_minibatches or minibatch_size, not both")
    n_envs = positive("n_envs", rest.get("n_envs", recipe.batch.n_envs))
    n_steps = positive("n_steps", rest.get("n_steps", recipe.batch.n_steps))
    return rest | {"n_minibatches": minibatch_count(n_envs * n_steps, size)}


def literal(text: str) -> Any:
    """Read a Python literal, or else take the text as it is."""
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text


def _as_field(value: Any) -> Any:
    """Return lists as tuples and NumPy's numbers as Python's, which is what fields hold."""
    if isinstance(value, list | tuple):
        return tuple(_as_field(each) for each in value)
    if isinstance(value, numbers.Integral) and not isinstance(value, bool):
        return int(value)
    return (
        float(value) if isinstance(value, numbers.Real) and not isinstance(value, bool) else value
    )


@cache
def _hints(kind: Any) -> dict[str, Any]:
    """Return the types of a table's fields; reading them anew takes a millisecond."""
    return get_type_hints(kind)


def _leaves(node: Any) -> list[tuple[str, Any, Any]]:
    """Return (name, type, value) of every field that is not itself a table."""
    hints = _hints(type(node))
    leaves = []
    for item in dataclasses.fields(node):
        value = getattr(node, item.name)
        if dataclasses.is_dataclass(value):
            leaves.extend(_leaves(value))
        else:
            leaves.append((item.name, hints[item.name], value))
    return leaves


def _check_types(recipe: Recipe) -> None:
    for name, hint, value in _leaves(recipe):
        problem = _type_problem(hint, value)
        if problem:
            raise UserError(f"{name} {problem}, got {value!r}")


def _type_problem(hint: Any, value: Any) -> str | None:
    """Return what `value` should have been ('must be ...'), or None where it fits `hint`."""
    origin = get_origin(hint)
    if origin is Literal:
        choices = get_args(hint)
        return None if value in choices else f"must be one of {', '.join(map(str, choices))}"
    if origin is tuple:
        inner = get_args(hint)[0]
        if not isinstance(value, tuple):
            return f"must be a list of {_type_name(inner)}"
        problems = [_type_problem(inner, each) for each in value]
        return f"must be a list of {_type_name(inner)}" if any(problems) else None
    if origin is Union or type(hint).__name__ == "UnionType":
        inner = next(each for each in get_args(hint) if each is not type(None))
        return None if value is None else _type_problem(inner, value)
    if hint is float:
        fits = isinstance(value, int | float) and not isinstance(value, bool)
        return None if fits and math.isfinite(value) else "must be a finite number"
    if hint is int:
        fits = isinstance(value, int) and not isinstance(value, bool)
        return None if fits else "must be a whole number"
    return None if isinstance(value, hint) else f"must be {_type_name(hint)}"


def _type_name(hint: Any) -> str:
    return {int: "whole numbers", str: "a text", bool: "true or false"}.get(hint, str(hint))


def _check_ranges(recipe: Recipe) -> None:
    """Refuse values no run can mean; the bounds are the formulas' own."""
    values = recipe.values
    for name in (
        "gamma", "gae_lambda", "reward_gamma", "epsilon_start", "epsilon_end", "epsilon_fraction",
    ):  # fmt: skip
        _require(0 <= values[name] <= 1, name, "must lie in [0, 1]", values[name])
    for name in (
        "proximal_decay", "advantage_decay", "adam_beta1", "adam_beta2", "rms_decay", "momentum",
    ):  # fmt: skip
        _require(0 <= values[name] < 1, name, "must lie in [0, 1)", values[name])
    for name in ("learning_rate", "adam_eps", "reward_clip", "clip_range", "target_kl"):
        _require(values[name] is None or values[name] > 0, name, "must be positive", values[name])
    _require(
        recipe.optimizer.max_grad_norm is None or recipe.optimizer.max_grad_norm > 0,
        "max_grad_norm",
        "must be positive (leave it out for none)",
        recipe.optimizer.max_grad_norm,
    )
    for name in (
        "kl_coef", "vf_coef", "ent_coef", "env_threads", "threads", "chunk_size", "seed",
        "checkpoint_seconds", "staleness", "n_value_epochs", "n_aux_epochs", "clone_coef",
        "aux_learning_rate", "aux_segments", "keep_policies", "probe_every",
    ):  # fmt: skip
        _require(values[name] >= 0, name, "must not be negative", values[name])
    _require(values["seed"] < 1 << 63, "seed", "must be below 2^63", values["seed"])
    _require(values["max_ratio"] >= 1, "max_ratio", "must be at least 1", values["max_ratio"])
    for name in ("total_timesteps", "n_policy_iterations"):
        _require(values[name] >= 1, name, "must be at least 1", values[name])
    known = f"must be one of {', '.join(OBJECTIVES)}"
    _require(values["objective"] in OBJECTIVES, "objective", known, repr(values["objective"]))
    memory_size(values["phase_memory"], "phase_memory")
    parse_schedule(values["batch_schedule"], values["total_timesteps"])
    widths = recipe.model.hidden_sizes
    _require(bool(widths) and min(widths) > 0, "hidden_sizes", "must be positive", widths)
    for option in recipe.environment.env_options:
        name, _, value = option.partition("=")
        _require(bool(name and value), "env_options", "must be name=value", option)


def _check_algorithm(recipe: Recipe) -> None:
    """Refuse fields that contradict the algorithm."""
    values = recipe.values
    if recipe.algo in ("a2c", "reinforce"):
        for name, value in ONE_STEP.items():
            _require(
                values[name] == value, name, f"must be {value} for {recipe.algo}", values[name]
            )
    if recipe.algo in UNPROBED:
        why = UNPROBED[recipe.algo]
        every, schedule = values["probe_every"], values["batch_schedule"]
        _require(every == 0, "probe_every", f"must be 0 for {why}", every)
        adaptive = recipe.reshape.is_adaptive
        _require(not adaptive, "batch_schedule", f"must not be adaptive for {why}", schedule)
    if recipe.objective.staleness:
        able = ", ".join(STALE_ALGORITHMS)
        _require(recipe.algo in STALE_ALGORITHMS, "staleness", f"is for {able}", recipe.algo)
        _require(
            not recipe.averages_policy or recipe.objective.staleness_loss == "decoupled",
            "staleness_loss",
            f"must be decoupled for {recipe.algo}, whose proximal policy is its average",
            recipe.objective.staleness_loss,
        )


def memory_size(text: str, name: str = "size") -> int:
    """Return the bytes of a size such as 512MB, 4GB or 1.5GiB."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([kKMGT]?)(i?)B", text.strip())
    if match is None:
        raise UserError(f"{name} must be a size such as 512MB or 4GB, got {text!r}")
    number, unit, binary = match.groups()
    power = " kMGT".index(unit.replace("K", "k") or " ")
    return int(float(number) * (1024 if binary else 1000) ** power)


def _require(holds: bool, name: str, demand: str, value: Any) -> None:
    if not holds:
        raise UserError(f"{name} {demand}, got {value}")


def _without_none(tables: dict[str, Any]) -> dict[str, Any]:
    return {
        key: _without_none(value) if isinstance(value, dict) else value
        for key, value in tables.items()
        if value is not None
    }


def _build(kind: Any, table: dict[str, Any], text: str, source: str, header: str = "") -> Any:
    """Build the dataclass `kind` from a TOML table, naming line and field of a mistake."""
    hints = _hints(kind)
    values: dict[str, Any] = {}
    for name, value in table.items():
        place = f"{source}, line {_line_of(text, header, name)}"
        if name == "batch_size":
            raise UserError(f"{place}: {refuse_batch_size()}")
        if name not in hints:
            raise UserError(f"{place}: unknown field {name!r}.{nearest(name, list(hints))}")
        if dataclasses.is_dataclass(hints[name]):
            if not isinstance(value, dict):
                raise UserError(f"{place}: {name} must be a table [{name}], got {value!r}")
            values[name] = _build(hints[name], value, text, source, name)
        else:
            value = _as_field(value)
            problem = _type_problem(hints[name], value)
            if problem:
                raise UserError(f"{place}: {name} {problem}, got {value!r}")
            values[name] = value
    if kind is Recipe and "env" not in values:
        raise UserError(f"{source}, line 1: the field env is missing")
    try:
        return kind(**values)
    except UserError as error:
        name = str(error).split(" ", 1)[0]
        line = _line_of(text, header or _table_of(name), name)
        raise UserError(f"{source}, line {line}: {error}") from None


def _table_of(name: str) -> str:
    """Return the table a field belongs to, '' for those at the top."""
    for table, kind in _hints(Recipe).items():
        if dataclasses.is_dataclass(kind) and name in _hints(kind):
            return table
    return ""


def _line_of(text: str, header: str, name: str) -> int:
    """Return the 1-based line that sets `name` in the table `header`, or that begins the table.

    TOML writes it as `name =` under [header], as `header.name =`, or inside `header = { ... }`.
    """
    key = rf"[\"']?{re.escape(name)}[\"']?"
    inside = rf"\s*{re.escape(header)}\s*(\.\s*{key}\s*=|=\s*\{{.*\b{key}\s*=)" if header else None
    table, fallback = "", 1
    for number, line in enumerate(text.splitlines(), start=1):
        if match := re.match(r"\s*\[+\s*([\w.-]+)\s*\]", line):
            table = match[1]
            if table == name and not header:
                return number
            if header and table.split(".")[0] == header:
                fallback = number
        elif (table == header and re.match(rf"\s*{key}\s*=", line)) or (
            inside and not table and re.match(inside, line)
        ):
            return number
        elif header and not table and re.match(rf"\s*{re.escape(header)}\b", line):
            fallback = number
    return fallback


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())
