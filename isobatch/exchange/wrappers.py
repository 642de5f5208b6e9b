"""What other libraries put around environments: VecNormalize, wrappers, frame stacks, arguments."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from isobatch.errors import UserError, shown
from isobatch.exchange import atari
from isobatch.exchange.values import Name, Reader, flag, number, options, whole
from isobatch.plain import literal
from isobatch.recipe import Normalize, Recipe

Lines = list[str]
UNCLIPPED = 1e9
"""A clip that clips nothing, as text that any YAML or Python has."""
BY_STEP = {"update_statistics": "step"}
"""When VecNormalize, Gymnasium's wrappers and rsl_rl update their statistics."""
OURS = Normalize()
ATARI = "stable_baselines3.common.atari_wrappers.AtariWrapper"
ATARI_FRAMES = 4
"""Frames that EnvPool's Atari stacks by itself."""
ATARI_OPTIONS = {
    "noop_max": (whole, "noop_max"),
    "screen_size": (whole, "img_height", "img_width"),
    "action_repeat_probability": (number, "repeat_action_probability"),
}  # fmt: skip
"""AtariWrapper's arguments as EnvPool's options; frame_skip is in `atari`, which knows the id's."""


def read_normalization(value: Any, gamma: float | None, lost: Lines) -> dict[str, Any]:
    """Return the fields of the zoo's `normalize`: true, false, or VecNormalize's arguments.

    The zoo gives VecNormalize the algorithm's `gamma` where the entry has one.
    """
    settings: dict[str, Any] = {}
    try:
        on = flag(value)
    except ValueError:
        try:
            settings, on = options(value), True
        except ValueError as error:
            raise UserError(f"normalize {error}, got {shown(value)}") from None
    on = take(settings, "training", flag, True) and on
    observations = on and take(settings, "norm_obs", flag, True)
    rewards = on and take(settings, "norm_reward", flag, True)
    own_gamma = take(settings, "gamma", number, OURS.reward_gamma)
    clips = [take(settings, name, number, 10.0) for name in ("clip_obs", "clip_reward")]
    epsilon = take(settings, "epsilon", number, OURS.normalize_epsilon)
    lost += [
        f"normalize {name} {each}: an argument of VecNormalize" for name, each in settings.items()
    ]
    fields = {"normalize_observations": observations, "normalize_rewards": rewards}
    if observations:
        fields["observation_clip"] = 0.0 if clips[0] >= UNCLIPPED else clips[0]
    if rewards:
        fields["reward_gamma"] = own_gamma if gamma is None else gamma
        fields["reward_clip"] = min(clips[1], UNCLIPPED)
    return fields | ({"normalize_epsilon": epsilon, **BY_STEP} if observations or rewards else {})


def write_normalization(recipe: Recipe) -> dict[str, Any]:
    """Return the zoo's `normalize` and, where it would give VecNormalize another, no `gamma`."""
    settings, gamma = recipe.normalize, recipe.objective.gamma
    observations, rewards = settings.normalize_observations, settings.normalize_rewards
    if not (observations or rewards):
        return {"normalize": False}
    said: dict[str, Any] = {}
    if not (observations and rewards):
        said |= {"norm_obs": observations, "norm_reward": rewards}
    if observations and settings.observation_clip != OURS.observation_clip:
        said["clip_obs"] = settings.observation_clip or UNCLIPPED
    if rewards and settings.reward_clip != OURS.reward_clip:
        said["clip_reward"] = settings.reward_clip
    if settings.normalize_epsilon != OURS.normalize_epsilon:
        said["epsilon"] = settings.normalize_epsilon
    silent = {}
    if rewards and settings.reward_gamma != gamma == OURS.reward_gamma:
        said["gamma"], silent = settings.reward_gamma, {"gamma": None}
    text = f"dict({', '.join(f'{k}={v!r}' for k, v in said.items())})" if said else True
    return {"normalize": text, **silent}


def take(settings: dict[str, Any], name: str, read: Reader, default: Any) -> Any:
    """Take an argument out of others; a mistake names it."""
    value = settings.pop(name, default)
    try:
        return read(value)
    except ValueError as error:
        raise UserError(f"{name} {error}, got {shown(value)}") from None


def read_arguments(value: Any, lost: Lines) -> list[str]:
    """Return the keyword arguments of an environment as `env_options`."""
    if value is None:
        return []
    try:
        given = options(value)
    except ValueError as error:
        raise UserError(f"env_kwargs {error}, got {shown(value)}") from None
    found = []
    for name, each in given.items():
        text = each if isinstance(each, str) and literal(each) == each else repr(each)
        data = not isinstance(each, Name) and literal(text) == each
        if data and text and text.strip() == text:
            found.append(f"{name}={text}")
        else:
            lost.append(f"env_kwargs {name} {shown(each)}: an argument of the environment")
    return found


def write_arguments(recipe: Recipe, apart: tuple[str, ...] = ()) -> dict[str, Any] | None:
    """Return `env_options` as keyword arguments, but those that are said `apart`."""
    found = {k: v for k, v in recipe.environment.options.items() if k not in apart}
    return found or None


Arguments = dict[str, Any]
READ: dict[str, Callable[[Arguments], str]] = {
    "FrameSkip": lambda given: f"frame_skip={take(given, 'skip', whole, 4)}",
    "YAMLCompatResizeObservation": lambda given: f"resize={_size(given)}",
    "ResizeObservation": lambda given: f"resize={_size(given)}",
    "GrayscaleObservation": lambda given: _grayscale(given),
    "GrayScaleObservation": lambda given: _grayscale(given),
    "RescaleAction": lambda given: f"rescale_action={_bounds(given)}",
    "FlatObsWrapper": lambda given: "flat_obs",
}
"""Wrappers by the name of their class, as the recipe's `wrappers` has them."""
WRITE: dict[str, Callable[[str], Any]] = {
    "frame_skip": lambda value: {"rl_zoo3.wrappers.FrameSkip": {"skip": int(value)}},
    "resize": lambda value: {
        "rl_zoo3.wrappers.YAMLCompatResizeObservation": {"shape": [*map(int, value.split("x"))]}
    },
    "grayscale": lambda value: {
        "gymnasium.wrappers.transform_observation.GrayscaleObservation": {"keep_dim": True}
    },
    "rescale_action": lambda value: {
        "gymnasium.wrappers.RescaleAction": dict(
            zip(("min_action", "max_action"), map(float, value.split(":")), strict=True)
        )
    },
    "flat_obs": lambda value: "minigrid.wrappers.FlatObsWrapper",
}
LIBRARIES = (
    "gymnasium", "gym", "rl_zoo3", "utils", "minigrid", "gym_minigrid", "stable_baselines3",
    "sb3_contrib",
)  # fmt: skip
"""Whose wrappers are known by the names of their classes."""
EFFECTS = {
    "TimeFeatureWrapper": "adds the time left to the observation",
    "HistoryWrapper": "adds past observations and actions to the observation",
    "MaskVelocityWrapper": "hides velocities, which makes the task harder: a recurrent policy's",
    "ActionNoiseWrapper": "adds noise to the actions",
    "ActionSmoothingWrapper": "smooths the actions",
    "DelayedRewardWrapper": "gives rewards late",
    "TruncatedOnSuccessWrapper": "ends episodes at the first success",
    "ImgObsWrapper": "leaves out direction and mission; here they are part of the observation",
}
"""What wrappers do that have no counterpart."""


def each_wrapper(value: Any) -> Iterator[tuple[Any, Any, Any]]:
    """Yield each wrapper of `env_wrapper` as it is given, its name and its arguments."""
    for wrapper in [] if value is None else value if isinstance(value, list) else [value]:
        if isinstance(wrapper, Mapping) and len(wrapper) == 1:
            yield wrapper, *next(iter(wrapper.items()))
        else:
            yield wrapper, wrapper, {}


def frame_skip(value: Any) -> int:
    """Return how many frames AtariWrapper skips, 1 where there is none."""
    for _, name, given in each_wrapper(value):
        if name == ATARI:
            settings = dict(given) if isinstance(given, Mapping) else {}
            return take(settings, "frame_skip", whole, atari.SKIP)
    return 1


def read_wrappers(value: Any, frames: int | None, lost: Lines) -> tuple[dict[str, Any], list[str]]:
    """Return the fields of `env_wrapper` and `frame_stack`, and environment options they mean."""
    fields: dict[str, Any] = {"episodic_life": False, "sign_rewards": False}
    found, extra, plays_atari = list[str](), list[str](), False
    for wrapper, name, given in each_wrapper(value):
        known = str(name).partition(".")[0] in LIBRARIES and isinstance(given, Mapping | None)
        kind, rest = str(name).rpartition(".")[2], dict(given or {}) if known else {}
        if known and name == ATARI:
            plays_atari = True
            fields["episodic_life"] = take(rest, "terminal_on_life_loss", flag, True)
            fields["sign_rewards"] = take(rest, "clip_reward", flag, True)
            rest.pop("frame_skip", None)
            for each, (read, *theirs) in ATARI_OPTIONS.items():
                if each in rest:
                    amount = take(rest, each, read, None)
                    extra += [f"{option}={amount!r}" for option in theirs]
        elif known and kind == "TimeLimit" and "max_episode_steps" in rest:
            extra.append(f"max_episode_steps={take(rest, 'max_episode_steps', whole, None)}")
        elif known and kind in READ:
            found.append(READ[kind](rest))
        else:
            lost.append(
                f"env_wrapper {wrapper}: {EFFECTS.get(kind, 'a wrapper of each environment')}"
            )
            continue
        lost += [f"env_wrapper {each} {rest[each]}: an argument of {kind}" for each in rest]
    if plays_atari and (frames or 1) != ATARI_FRAMES:
        extra.append(f"stack_num={frames or 1}")
    stacked = 1 if plays_atari else frames or 1
    return {**fields, "frame_stack": stacked, "wrappers": tuple(found)}, extra


def write_wrappers(recipe: Recipe) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Return `env_wrapper` and `frame_stack`, and the options of the environment they say."""
    settings = recipe.environment
    life, sign, given = settings.episodic_life, settings.sign_rewards, settings.options
    wrappers: list[Any] = []
    frames, apart = settings.frame_stack, ()
    if life or sign:
        arguments: Arguments = {} if life else {"terminal_on_life_loss": False}
        arguments |= {} if sign else {"clip_reward": False}
        beside = atari.beside_id(recipe)
        for each, (_, option, *_) in ATARI_OPTIONS.items():
            arguments |= {each: beside[option]} if option in beside else {}
        if "frame_skip" in beside:
            arguments["frame_skip"] = beside["frame_skip"]
        wrappers.append({ATARI: arguments} if arguments else ATARI)
        frames = given.get("stack_num", ATARI_FRAMES)
        apart = (
            "stack_num",
            "frame_skip",
            *(name for _, *names in ATARI_OPTIONS.values() for name in names),
        )
    for spec in settings.wrappers:
        name, _, value = spec.partition("=")
        if name in WRITE:
            wrappers.append(WRITE[name](value))
    single = len(wrappers) == 1 and isinstance(wrappers[0], str) and wrappers[0] != ATARI
    said = wrappers[0] if single else wrappers or None
    return {"env_wrapper": said, "frame_stack": frames if frames != 1 else None}, apart


def _size(given: Arguments) -> str:
    return "x".join(map(str, take(given, "shape", _height_and_width, None)))


def _height_and_width(value: Any) -> tuple[int, int]:
    if not isinstance(value, list | tuple) or len(value) != 2:
        raise ValueError("must be a height and a width")
    return whole(value[0]), whole(value[1])


def _bounds(given: Arguments) -> str:
    names = ("min_action", "max_action")
    return ":".join(repr(float(take(given, name, number, None))) for name in names)


def _grayscale(given: Arguments) -> str:
    given.pop("keep_dim", None)  # An image of one channel either way.
    return "grayscale"
