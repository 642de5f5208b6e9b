"""The recipe: everything that defines a run, frozen. Each field's bound stands in its type.

The tables are nested for the reader; every field's name is unique, so overrides and command-line
flags are flat (`n_envs=64`, `--n-envs 64`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from isobatch import files, plain, registry
from isobatch.batch import ADAPTIVE, Batch, minibatch_count, parse_schedule, positive
from isobatch.errors import UserError, nearest, shown
from isobatch.plain import literal
from isobatch.recipe import toml
from isobatch.recipe.checks import (
    Bound,
    Count,
    Decay,
    NotNegative,
    Pairs,
    Positive,
    PositiveBound,
    Ratio,
    Seed,
    Size,
    Text,
    Unit,
    Whole,
    Widths,
    as_field,
    leaves,
    problem,
    refuse_misfits,
)

if TYPE_CHECKING:
    from isobatch.scaling import Rescaled

Schedule = Literal["constant", "linear"]
RateSchedule = Literal["constant", "linear", "kl-adaptive"]
Rate = Annotated[float, Bound(lambda x: 0 < x <= 100, "must be positive and at most 100")]
RateOrNone = Annotated[float, Bound(lambda x: 0 <= x <= 100, "must lie in [0, 100]")]
LogStd = Annotated[float, Bound(lambda x: abs(x) <= 20, "must lie in [-20, 20]")]
SampleFreq = Annotated[int, Bound(lambda x: x == -1 or x > 0, "must be positive, or -1")]
Threads = Annotated[int, Bound(lambda x: 0 <= x <= 1024, "must lie in [0, 1024]")]
USERS_OWN = "python:make_env"
"""The environment id of recipes whose environment comes through `make_env`."""
ENVS_PER_SEGMENT = 16
"""An auxiliary minibatch holds a segment for so many environments: the reference's 4 of 64."""
LONG_EPISODE, LEAST_EPISODES, MOST_EPISODES = 500, 4, 16
"""Evaluations that do not say how many episodes they have: steps of one, and the bounds."""
ADAPTIVE_INTERVAL = 10
"""Iterations between two probes of a run with an adaptive batch that does not say it."""


class Coefficients(dict[str, float]):
    """Settings of an algorithm's or an objective's own, by name; frozen like the tables."""

    def __hash__(self) -> int:  # pyright: ignore[reportIncompatibleVariableOverride]
        return hash(frozenset(self.items()))

    def __setitem__(self, name: str, value: float) -> None:
        raise TypeError("a recipe is frozen: use recipe.replace")


@dataclass(frozen=True)
class Environment:
    """How the environments are made."""

    vectorization: Literal["sync", "async", "supervised"] = "sync"
    """Gymnasium environments: step them in this process (sync), in one process each (async), or in
    one process each that is replaced when its environment fails (supervised)."""
    env_timeout: Positive = 60.0
    """With supervised: seconds a step or a reset may take before the environment is replaced."""
    env_threads: Threads = 0
    """EnvPool's threads; 0 lets EnvPool choose. Results do not depend on it."""
    env_options: Pairs = ()
    """Options of the environment, as name=value (for Procgen: num_levels=200): EnvPool's, or the
    keyword arguments that Gymnasium's make takes."""
    frame_stack: Count = 1
    """Stack this many of the last observations, images along their channels; after a reset the
    frames before it are zeros, as in SB3. EnvPool's Atari stacks 4 already (stack_num)."""
    wrappers: tuple[Text, ...] = ()
    """Wrappers of each environment, in this order: frame_skip=N, resize=HxW, grayscale,
    rescale_action=LOW:HIGH and time, which Gymnasium then makes; for MiniGrid flat_obs."""
    episodic_life: bool = False
    """Atari: end training episodes at each lost life; returns are still those of full games."""
    stagger: bool = False
    """Start the environments at different steps of their episodes, after a warm-up."""
    count_warmup: bool = False
    """Count the warm-up steps of stagger towards the budget."""
    remake_steps: Whole = 0
    """Replace each environment by a new one after this many of its steps, a quarter of them at a
    time and not before 20 episodes; 0: never. For simulators that leak memory, and to shorten exact
    resuming, which then replays only the current environments. Unfinished episodes are dropped."""
    sign_rewards: bool = False
    """Atari: clip training rewards to their sign; returns are still the game's score."""

    @property
    def options(self) -> dict[str, Any]:
        """`env_options` by name, each value read as a Python literal or else as text."""
        pairs = (text.partition("=") for text in self.env_options)
        return {name.strip(): literal(value.strip()) for name, _, value in pairs}


@dataclass(frozen=True)
class Model:
    """The networks."""

    encoder: Text = "auto"
    """Observation encoder: mlp, nature (DQN's CNN), impala, or one of your own; auto is nature for
    images and mlp for vectors."""
    architecture: Literal["shared", "dual", "detach"] = "dual"
    """One encoder for policy and value (shared), one each (dual), or one shared whose gradient
    from the value loss is stopped (detach)."""
    hidden_sizes: Widths = (64, 64)
    """Widths of the MLP's hidden layers; none: no hidden layer."""
    policy_hidden_sizes: Widths = ()
    """Widths of further hidden layers that only the policy has, after the encoder. With an empty
    hidden_sizes they are all of its layers, so that policy and value may have different widths."""
    value_hidden_sizes: Widths = ()
    """Widths of further hidden layers that only the value function has, after the encoder."""
    activation: Literal["tanh", "relu", "elu", "gelu", "silu", "leaky_relu"] = "tanh"
    """Activation function of the MLP, with PyTorch's defaults."""
    layer_norm: bool = False
    """Layer normalisation before each hidden activation, as PQN needs."""
    init: Literal["orthogonal", "reference", "torch", "torch-encoder"] = "orthogonal"
    """Initialisation: orthogonal; row-normalised as in openai/ppo-ewma (reference); PyTorch's own,
    biases included (torch); or PyTorch's own but for orthogonal heads (torch-encoder)."""
    log_std_init: LogStd = 0.0
    """Initial log standard deviation of continuous actions."""
    use_sde: bool = False
    """State-dependent exploration (gSDE) of continuous actions, as in SB3: the noise is the last
    features of the policy times a random matrix, which each environment keeps for some steps."""
    sde_sample_freq: SampleFreq = -1
    """With use_sde: draw new matrices every this many steps of a rollout; -1: once per rollout."""


@dataclass(frozen=True)
class Normalize:
    """Running normalisation of observations and rewards."""

    normalize_observations: bool = False
    """Normalise vector observations by their running mean and standard deviation."""
    normalize_rewards: bool = False
    """Divide rewards by the running standard deviation of the discounted return."""
    reward_gamma: Unit = 0.99
    """Discount factor of that return; openai/ppo-ewma uses 0.99 whatever gamma is."""
    observation_clip: NotNegative = 10.0
    """Clip normalised observations to [-x, x]; 0: no clipping."""
    reward_clip: Positive = 10.0
    """Clip normalised rewards to [-x, x]."""
    normalize_epsilon: Positive = 1e-8
    """Added to the variance of observations and of returns before its square root is taken."""
    update_statistics: Literal["rollout", "step"] = "rollout"
    """Update these statistics once per rollout (observations after it, rewards before they are
    used), or at every step as SB3 and Gymnasium do: then the first rollout is normalised too, and
    each observation is learned from as it was when acted on."""


@dataclass(frozen=True)
class Objective:
    """What is maximised and how far one update may go."""

    gamma: Unit = 0.99
    """Discount factor."""
    gae_lambda: Unit = 0.95
    """GAE's lambda: 0 for one-step TD errors, 1 for full returns minus values."""
    objective: Text = "clip"
    """Policy objective: clip (PPO's clipped ratio), kl (a KL penalty), pg (the plain policy
    gradient), or one of your own."""
    clip_range: Positive = 0.2
    """PPO's clipping epsilon."""
    clip_range_schedule: Schedule = "constant"
    """Constant, or linear decay to 0 over the budget in environment steps."""
    clip_range_vf: Positive | None = None
    """Clip values in their loss to within this of what they were when acting; none: no clipping.
    Depends on the scale of rewards; follows clip_range_schedule."""
    clip_vf_loss: Literal["max", "clipped"] = "max"
    """With clip_range_vf: the larger of the clipped and the unclipped value's squared errors (max,
    as in Baselines, CleanRL and rsl_rl), or that of the clipped value alone (clipped, as in
    SB3)."""
    kl_coef: NotNegative = 1.0
    """Coefficient of the KL penalty, beta."""
    kl_estimator: Literal["squared", "exact"] = "squared"
    """KL penalty: half the squared log-ratio (squared, as in openai/ppo-ewma), or the exact KL of
    the distributions (exact)."""
    max_ratio: Ratio = 100.0
    """Cap on the importance ratio; REINFORCE: on the weight of transitions that waited."""
    ent_coef: NotNegative = 0.0
    """Coefficient of the entropy bonus."""
    vf_coef: NotNegative = 0.5
    """Coefficient of the value loss 0.5 (v - target)^2; twice SB3's vf_coef, whose loss has no
    0.5."""
    target_kl: Positive | None = None
    """Stop the iteration's updates early once the approximate KL from the policy before them
    exceeds 1.5 times this."""
    advantage_normalization: Literal["batch", "minibatch", "ewma", "none"] = "batch"
    """Normalise advantages over the rollout (batch), over each minibatch, by moving averages over
    iterations (ewma), or not at all (none)."""
    advantage_decay: Decay = 0.0
    """With ewma: decay per iteration of the advantages' mean and variance; 0 uses the current
    rollout only."""
    proximal_decay: Decay = 8 / 9
    """PPO-EWMA: decay per gradient step of the proximal policy, an average of weights."""
    minibatches_by: Literal["samples", "envs"] = "samples"
    """Draw minibatches from single transitions (samples) or whole trajectories (envs)."""
    n_value_epochs: Whole = 0
    """Separate epochs for the value function, before the policy's n_epochs; 0 trains both
    together."""
    baseline: bool = True
    """REINFORCE: subtract the value function from the returns, and bootstrap truncated ones with
    it."""
    staleness: Whole = 0
    """Learn from each rollout this many iterations after it was collected."""
    staleness_loss: Literal["decoupled", "behavior", "proximal"] = "decoupled"
    """Loss on stale data. decoupled: importance weights relative to the behaviour policy, step
    limited relative to the proximal policy (that before the update); behavior: both relative to
    the behaviour policy; proximal: both relative to the proximal policy."""
    coefficients: Coefficients = field(default_factory=Coefficients)
    """Additional settings of a user's own objective or algorithm."""


@dataclass(frozen=True)
class Phasic:
    """PPG's phases."""

    n_policy_iterations: Count = 32
    """Iterations of a policy phase, N_pi; an auxiliary phase follows."""
    n_aux_epochs: Whole = 6
    """Epochs of the auxiliary phase over all data of the policy phase, E_aux."""
    clone_coef: NotNegative = 1.0
    """Auxiliary phase: coefficient of the behaviour cloning loss KL(policy before it, policy)."""
    aux_learning_rate: RateOrNone = 0.0
    """Learning rate of the auxiliary phase, which has its own optimiser; 0 uses learning_rate."""
    aux_segments: Whole = 0
    """Segments (one environment's part of a rollout) per auxiliary minibatch; 0 uses n_envs / 16,
    at least 1."""
    phase_memory: Size = "4GB"
    """Memory for the phase's compressed observations; the rest goes to a file in the run
    directory."""

    def segments(self, n_envs: int) -> int:
        """Return how many environments' rollouts an auxiliary minibatch holds."""
        return self.aux_segments or max(1, n_envs // ENVS_PER_SEGMENT)

    def minibatch_rows(self, batch: Batch) -> int:
        """Return the rows of an auxiliary minibatch, of whole segments of T."""
        return self.segments(batch.n_envs) * batch.n_steps


@dataclass(frozen=True)
class Reshape:
    """Changes of the batch during the run."""

    batch_schedule: Text = ""
    """Batch by environment step or percentage of the budget, N x T [x minibatches]: "0:8x128,
    100k:32x128, 50%:128x32x8". Or adaptive: the batch follows the measured gradient noise, every
    10 iterations unless probe_every is set."""
    rescale: bool = True
    """Rescale the hyperparameters with the batch, by the rules of isobatch rescale."""

    @property
    def is_adaptive(self) -> bool:
        """True where the batch follows what is measured."""
        return self.batch_schedule.strip() == ADAPTIVE


@dataclass(frozen=True)
class Probe:
    """What is measured while training."""

    probe_every: Whole = 0
    """Measure the noise of the policy gradient every this many iterations; 0: never. A measurement
    takes as long as 1.5 epochs: about 5% of the run time with 10 at 3 or 4 epochs, with 20 at one
    epoch, with 50 at one gradient step (a2c)."""
    diagnostics: Literal["cheap", "full", "off"] = "cheap"
    """Measure weight norm, gradient kurtosis, feature rank, dormant units, policy variance,
    importance weights and state coverage. cheap: every 16,384 transitions (10 iterations at most).
    full: in every iteration (for images as often as cheap), with two more ranks, the entropy of
    visited states if they are few, and, as often as cheap, the kurtosis of the samples' gradient
    norms. Learning does not depend on it."""


@dataclass(frozen=True)
class Evaluation:
    """Evaluating the policy while it trains, in separate environments."""

    eval_marks: Whole = 0
    """Evaluate at the start and at this many equal parts of the budget; 0: never. The environment
    steps are the same for every batch, so learning curves can be compared."""
    eval_every: Whole = 0
    """Instead of eval_marks: evaluate every N environment steps."""
    eval_episodes: Whole = 0
    """Full episodes per evaluation; 0: 4 to 16, depending on the budget (measured: 5% of a run's
    time if episodes are short, 27% on LunarLander)."""

    def episodes(self, total_timesteps: int) -> int:
        """Return how many episodes an evaluation has.

        Acting alone is some five times as fast as training: half the budget's steps, or a tenth of
        its time. No clock decides, so that every arm and machine plays as many.
        """
        if self.eval_episodes:
            return self.eval_episodes
        count = len(self.marks(total_timesteps))
        fitting = total_timesteps // (2 * LONG_EPISODE * count) if count else 0
        return min(MOST_EPISODES, max(LEAST_EPISODES, fitting))

    def marks(self, total_timesteps: int) -> list[int]:
        """Return the environment steps at which the policy is evaluated, ascending from 0."""
        if self.eval_every:
            return list(range(0, total_timesteps + 1, self.eval_every))
        if not self.eval_marks:
            return []
        return [round(k * total_timesteps / self.eval_marks) for k in range(self.eval_marks + 1)]


@dataclass(frozen=True)
class Exploration:
    """PQN's random actions."""

    epsilon_start: Unit = 1.0
    """Epsilon, the probability of a random action, at the start."""
    epsilon_end: Unit = 0.05
    """Epsilon at the end."""
    epsilon_fraction: Unit = 0.2
    """Fraction of the budget over which epsilon is annealed linearly."""


@dataclass(frozen=True)
class Optimizer:
    """The optimiser and its settings."""

    optimizer: Literal["adam", "radam", "rmsprop", "sgd"] = "adam"
    """Optimiser."""
    learning_rate: Rate = 3e-4
    """Learning rate."""
    learning_rate_schedule: RateSchedule = "constant"
    """Constant, linear decay to 0 over the budget in environment steps, or adapted to the KL
    divergence before every gradient step, as in rsl_rl (kl-adaptive)."""
    desired_kl: Positive = 0.01
    """With kl-adaptive: divide the learning rate by 1.5 if the minibatch's exact KL from the policy
    before the iteration exceeds twice this, multiply it by 1.5 below half of this."""
    min_learning_rate: Rate = 1e-5
    """With kl-adaptive: the learning rate is never reduced below this."""
    max_learning_rate: Rate = 1e-2
    """With kl-adaptive: the learning rate is never increased above this."""
    adam_beta1: Decay = 0.9
    """Adam's and RAdam's beta1, the decay of the mean gradient."""
    adam_beta2: Decay = 0.999
    """Adam's and RAdam's beta2, the decay of the mean squared gradient."""
    adam_eps: Positive = 1e-5
    """Epsilon of Adam, RAdam and RMSprop."""
    rms_decay: Decay = 0.99
    """RMSprop's alpha, the decay of the mean squared gradient."""
    momentum: Decay = 0.0
    """SGD's momentum."""
    max_grad_norm: PositiveBound | None = None
    """Clip the gradient's global norm to this; none: no clipping."""
    on_divergence: Literal["stop", "skip"] = "stop"
    """When losses or weights are no longer finite: stop the run, or undo the iteration's update and
    continue (skip)."""


@dataclass(frozen=True)
class Machine:
    """Device, threads, compilation and checkpoints."""

    device: Literal["auto", "cpu", "cuda"] = "auto"
    """PyTorch device; auto uses CUDA if available."""
    threads: Threads = 0
    """CPU threads that share the rows of a gradient; 0 uses all cores for images, one for MLPs, and
    more if minibatches are large (rows x parameters of 16 million or more)."""
    chunk_size: Whole = 0
    """Rows per forward and backward pass, accumulated to the exact gradient of the minibatch; 0
    chooses a cache-sized number."""
    shards: Count = 1
    """Equal parts of the environments, each of which acts and differentiates by itself; workers own
    shards. Results depend on the number of shards, by rounding and by the order of random numbers,
    and not on the number of workers."""
    elastic: Literal["hold", "rescale"] = "hold"
    """When workers join or leave: hold the batch, dealt anew; or rescale: environments per worker
    stay, and the batch and its hyperparameters follow the number of workers."""
    compile: Literal["auto", "on", "off"] = "auto"
    """Compile the update of small networks; auto does if the run is long enough to pay off."""
    checkpoint_seconds: NotNegative = 60.0
    """Seconds between checkpoints."""
    exact_resume: bool = False
    """Save the actions taken, so that a resumed run is bit-identical to an uninterrupted one:
    resuming replays all of them in the environments."""
    overlap: bool = False
    """Collect the next rollout while learning from the last one, in two threads. Sets staleness to
    1, which it needs; the numbers are those of staleness 1 without it."""
    keep_policies: Whole = 4
    """Save the policy at this many equal fractions of the budget, for probing; 0 saves the last
    one only."""


@dataclass(frozen=True)
class Recipe:
    """Environment, algorithm, batch, objective, optimiser and model of one run."""

    env: Text
    """Environment id: EnvPool's, Gymnasium's (gymnasium:Id, module:Id) or tensor:Id."""
    algo: Text = "ppo"
    """Algorithm: ppo, ppo-ewma, ppg, ppg-ewma, a2c, reinforce, pqn, or one of your own."""
    total_timesteps: Count = 100_000
    """Budget in environment steps; the run ends within n_envs of it."""
    seed: Seed = 1
    """Random seed of the run."""
    batch: Batch = field(default_factory=Batch)
    objective: Objective = field(default_factory=Objective)
    reshape: Reshape = field(default_factory=Reshape)
    probe: Probe = field(default_factory=Probe)
    evaluation: Evaluation = field(default_factory=Evaluation)
    phasic: Phasic = field(default_factory=Phasic)
    exploration: Exploration = field(default_factory=Exploration)
    optimizer: Optimizer = field(default_factory=Optimizer)
    model: Model = field(default_factory=Model)
    normalize: Normalize = field(default_factory=Normalize)
    environment: Environment = field(default_factory=Environment)
    machine: Machine = field(default_factory=Machine)

    def __post_init__(self) -> None:
        refuse_misfits(self)
        parse_schedule(self.reshape.batch_schedule, self.total_timesteps)
        if self.evaluation.eval_marks and self.evaluation.eval_every:
            raise UserError("give eval_marks or eval_every, not both", field="eval_every")
        _check_algorithm(self)
        if self.machine.overlap:
            _check_overlap(self)
        if self.adapts_rate:
            _check_adaptive_rate(self)

    @property
    def algorithm(self) -> registry.Algorithm:
        """The algorithm's properties; the defaults if it is not registered here."""
        return registry.known(self.algo)

    @property
    def is_phasic(self) -> bool:
        """Whether auxiliary phases follow policy phases."""
        return self.algorithm.phasic

    @property
    def eval_actions(self) -> Literal["sampled", "deterministic"]:
        """How evaluations act while training: a network of action values acts greedily."""
        return "deterministic" if self.algorithm.explores else "sampled"

    @property
    def averages_policy(self) -> bool:
        """Whether the proximal policy is an average of recent ones."""
        return self.algorithm.proximal == "average"

    @property
    def adapts_rate(self) -> bool:
        """Whether the learning rate follows the KL divergence, and is only begun with."""
        return self.optimizer.learning_rate_schedule == "kl-adaptive"

    @property
    def trains_value_apart(self) -> bool:
        """Whether the value function has its own epochs, and so its own optimiser."""
        return self.objective.n_value_epochs not in (0, self.batch.n_epochs)

    @property
    def noise_hold(self) -> int:
        """Steps for which an environment's exploration noise is held: 1 but with use_sde."""
        frequency, n_steps = self.model.sde_sample_freq, self.batch.n_steps
        if not self.model.use_sde:
            return 1
        return n_steps if frequency == -1 else min(frequency, n_steps)

    @property
    def probe_interval(self) -> int:
        """Iterations between probes of the gradient; 0: none."""
        return self.probe.probe_every or ADAPTIVE_INTERVAL * self.reshape.is_adaptive

    @property
    def values(self) -> dict[str, Any]:
        """Return every leaf field by its flat name."""
        return {name: value for name, _, value in leaves(self)}

    def differing(self, other: Recipe) -> dict[str, Any]:
        """Return the fields in which another recipe differs, with its values."""
        known = self.values
        return {
            name: value
            for name, value in other.values.items()
            if name not in known or known[name] != value
        }

    def replace(self, /, **overrides: Any) -> Recipe:
        """Return a recipe with the given fields replaced, whatever table they are in.

        A whole table is replaced by its own name (`batch=Batch(...)`).

        `minibatch_size` may replace `n_minibatches`; `batch_size` is refused because SB3 and
        CleanRL mean different things by it. `overlap=True` sets `staleness` to 1 where it is 0 and
        not given.
        """
        tables = {k: v for k, v in overrides.items() if dataclasses.is_dataclass(v)}
        if tables:
            rest = {k: v for k, v in overrides.items() if k not in tables}
            return dataclasses.replace(self, **tables).replace(**rest)
        overrides = {name: as_field(value) for name, value in _named_batch(self, overrides).items()}
        if overrides.get("overlap") is True and not self.objective.staleness:
            overrides.setdefault("staleness", 1)
        _refuse_types(self, overrides)
        if "algo" in overrides:
            registry.find(overrides["algo"])
        if "encoder" in overrides:
            registry.refuse_unknown_encoder(overrides["encoder"])
        own = _coefficients(self, overrides)
        known = self.values | own
        for name in overrides:
            if name not in known:
                raise _unknown_field(name, known, overrides.get("objective", known["objective"]))
        changes: dict[str, Any] = {}
        for item in dataclasses.fields(self):
            value = getattr(self, item.name)
            if dataclasses.is_dataclass(value) and not isinstance(value, type):
                names = {leaf.name for leaf in dataclasses.fields(value)}
                chosen = {key: overrides[key] for key in overrides if key in names}
                if item.name == "objective" and own != self.objective.coefficients:
                    chosen["coefficients"] = own
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
        return toml.dump(self)

    @classmethod
    def from_toml(cls, text: str, source: str = "recipe", to_train: bool = False) -> Recipe:
        """Read a recipe; a mistake is reported with its line and field.

        An encoder that is not registered is one only of a recipe that is read `to_train`.
        """
        recipe: Recipe = toml.build(cls, plain.from_toml(text, source), text, source)
        try:
            if to_train:
                registry.refuse_unknown_encoder(recipe.model.encoder)
            return recipe.replace() if recipe.algo in registry.ALGORITHMS else recipe
        except UserError as error:
            name = error.field or ""
            raise toml.located(error, text, source, toml.table_of(cls, name), name) from None

    @classmethod
    def load(cls, path: str | Path, to_train: bool = False) -> Recipe:
        """Read a recipe file, as `from_toml` does."""
        return cls.from_toml(files.read_text(path, "recipe"), str(path), to_train)


def check_budget(recipe: Recipe) -> None:
    """Refuse a budget that does not hold one rollout."""
    if recipe.total_timesteps < recipe.batch.rollout_size:
        raise UserError(
            f"total_timesteps {recipe.total_timesteps} is less than one rollout of "
            f"{recipe.batch.rollout_size} (n_envs {recipe.batch.n_envs} x n_steps "
            f"{recipe.batch.n_steps})",
            field="total_timesteps",
        )


def _refuse_types(recipe: Recipe, overrides: Mapping[str, Any]) -> None:
    """Refuse values of another type than their field's, before anything looks at them."""
    for name, hint, _ in leaves(recipe):
        if name in overrides and (found := problem(hint, overrides[name])):
            raise UserError(f"{name} {found}, got {shown(overrides[name])}", field=name)


def _named_batch(recipe: Recipe, overrides: dict[str, Any]) -> dict[str, Any]:
    """Turn `minibatch_size` into `n_minibatches`, and refuse `batch_size`."""
    if "batch_size" in overrides:
        raise toml.refuse_batch_size()
    size = overrides.get("minibatch_size")
    rest = {name: value for name, value in overrides.items() if name != "minibatch_size"}
    if size is None:
        return rest
    if "n_minibatches" in rest:
        raise UserError("give n_minibatches or minibatch_size, not both", field="n_minibatches")
    n_envs = positive("n_envs", rest.get("n_envs", recipe.batch.n_envs))
    n_steps = positive("n_steps", rest.get("n_steps", recipe.batch.n_steps))
    return rest | {"n_minibatches": minibatch_count(n_envs * n_steps, size)}


def _unknown_field(name: str, known: Mapping[str, Any], objective: str) -> UserError:
    hint = nearest(name, list(known))
    if objective not in registry.OBJECTIVES:
        # Then it may well be a coefficient.
        hint = f" The objective {objective!r} is not registered: {registry.IMPORT_IT}"
    return UserError(f"unknown recipe field {shown(name)}.{hint}", field=name)


def _coefficients(recipe: Recipe, overrides: Mapping[str, Any]) -> Coefficients:
    """Return the settings of the algorithm's and objective's own, defaults where none are given.

    What belongs to an algorithm or objective that is not registered here is kept as it is.
    """
    before = recipe.algo, recipe.objective.objective
    after = overrides.get("algo", before[0]), overrides.get("objective", before[1])
    defaults = registry.coefficients(*after)
    have = recipe.objective.coefficients
    if after != before:
        have = {name: value for name, value in have.items() if name in defaults}
    elif after[0] in registry.ALGORITHMS and after[1] in registry.OBJECTIVES:
        for name in have:
            if name not in defaults:
                hint = nearest(name, list(defaults))
                raise UserError(f"{after[1]} has no coefficient {name!r}.{hint}", field=name)
    named = {name: overrides[name] for name in {*defaults, *have} if name in overrides}
    return Coefficients({**defaults, **have, **named})


def _check_algorithm(recipe: Recipe) -> None:
    """Refuse fields that contradict the algorithm; of one not registered here nothing is known."""
    algorithm = registry.ALGORITHMS.get(recipe.algo)
    if algorithm is None:
        return
    values = recipe.values
    for name, value in algorithm.fixes.items():
        _require(values[name] == value, name, f"must be {value} for {recipe.algo}", values[name])
    if algorithm.unprobed is not None:
        every, schedule = values["probe_every"], values["batch_schedule"]
        _require(every == 0, "probe_every", f"must be 0 for {algorithm.unprobed}", every)
        adaptive = recipe.reshape.is_adaptive
        demand = f"must not be adaptive for {algorithm.unprobed}"
        _require(not adaptive, "batch_schedule", demand, schedule)
    if recipe.objective.staleness:
        able = ", ".join(name for name, each in registry.ALGORITHMS.items() if each.stale)
        _require(algorithm.stale, "staleness", f"is for {able}", recipe.algo)
        _require(
            not recipe.averages_policy or recipe.objective.staleness_loss == "decoupled",
            "staleness_loss",
            f"must be decoupled for {recipe.algo}, whose proximal policy is its average",
            recipe.objective.staleness_loss,
        )


def _check_overlap(recipe: Recipe) -> None:
    """Refuse what cannot be collected while learning, or would not give the same numbers."""
    staleness, normalize = recipe.objective.staleness, recipe.normalize
    demand = "must be 1 with overlap: a rollout is learned from while the next one is collected"
    _require(staleness == 1, "staleness", demand, staleness)
    by_step = normalize.normalize_observations and normalize.update_statistics == "step"
    demand = f"must be rollout for {recipe.algo} with overlap: its auxiliary phase reads them"
    _require(not (by_step and recipe.is_phasic), "update_statistics", demand, "step")


def _check_adaptive_rate(recipe: Recipe) -> None:
    """Refuse a learning rate that follows a KL which is not there, or bounds that cross."""
    settings, name = recipe.optimizer, "learning_rate_schedule"
    demand = f"cannot follow the KL for {recipe.algo}, which has no policy gradient"
    _require(recipe.algorithm.policy_gradient, name, demand, settings.learning_rate_schedule)
    steps = recipe.batch.grad_steps_per_iteration
    demand = "needs 2 or more gradient steps per iteration: before the first the KL is 0"
    _require(steps > 1, name, f"kl-adaptive {demand}", steps)
    least, most = settings.min_learning_rate, settings.max_learning_rate
    _require(least <= most, "min_learning_rate", f"must be at most max_learning_rate {most}", least)


def _require(holds: bool, name: str, demand: str, value: Any) -> None:
    if not holds:
        raise UserError(f"{name} {demand}, got {value}", field=name)
