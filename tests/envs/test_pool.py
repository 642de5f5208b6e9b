import numpy as np
import pytest
import torch
from gymnasium.envs.classic_control import CartPoleEnv

from isobatch import UserError
from isobatch.envs.pool import PoolEnv

FAMILIES = {
    "classic": ("CartPole-v1", {}, 80),
    "procgen": ("FruitbotHard-v0", {}, 80),
    "minigrid": ("MiniGrid-Empty-5x5-v0", {"max_episode_steps": 7}, 30),
    "atari": ("Breakout-v5", {"episodic_life": True}, 60),
    "mujoco": ("HalfCheetah-v4", {"max_episode_steps": 7}, 30),
}


def make_pool(env_id, seeds, options=None, **settings):
    """Make a pool; Atari's lives are asked for as a recipe asks for them."""
    options = dict(options or {})
    life = options.pop("episodic_life", False)
    return PoolEnv(env_id, seeds, episodic_life=life, options=options, **settings)


def random_actions(env, n_steps, seed=0):
    rng = np.random.default_rng(seed)
    layout = env.action_layout
    for _ in range(n_steps):
        if layout.kind == "gaussian":
            yield torch.from_numpy(rng.uniform(-1, 1, (env.n_envs, len(layout.counts))))
        else:
            yield torch.from_numpy(rng.integers(0, layout.counts, (env.n_envs, 1)))


def play(env, actions):
    """Return the steps of a whole play, stacked to [T, N], and its observations [T + 1, N, ...]."""
    observations, steps = [env.reset()], []
    for action in actions:
        steps.append(env.step(action))
        observations.append(steps[-1].observation)
    env.close()
    names = ("reward", "terminated", "truncated", "valid")
    fields = {name: torch.stack([getattr(step, name) for step in steps]) for name in names}
    parts = {part: torch.stack([seen[part] for seen in observations]) for part in observations[0]}
    return fields, parts


@pytest.mark.parametrize("family", FAMILIES)
def test_the_valid_rows_are_the_transitions_envpool_itself_counts(family):
    env_id, options, n_steps = FAMILIES[family]
    env = make_pool(env_id, [3, 5], options)
    import envpool  # Only now: Procgen needs what the pool loaded before it.

    actions = list(random_actions(env, n_steps))
    fields, _ = play(env, actions)
    native = envpool.make(env_id, env_type="gymnasium", num_envs=2, seed=[3, 5], **options)
    native.reset()
    elapsed = np.zeros(2)
    for t, action in enumerate(actions):
        chosen = action.numpy() if env.action_layout.kind == "gaussian" else action[:, 0].numpy()
        _, reward, terminated, truncated, info = native.step(chosen)
        advanced = info["elapsed_step"] == elapsed + 1
        elapsed = info["elapsed_step"]
        assert fields["valid"][t].tolist() == advanced.tolist()
        assert fields["reward"][t].tolist() == reward.astype(np.float32).tolist()
        assert fields["terminated"][t].tolist() == terminated.tolist()
        assert fields["truncated"][t].tolist() == truncated.tolist()
    native.close()
    assert not fields["valid"].all(), "no episode ended: the play is too short to show anything"


@pytest.mark.parametrize("family", FAMILIES)
def test_only_the_row_after_a_done_is_no_transition_and_its_reward_is_nothing(family):
    env_id, options, n_steps = FAMILIES[family]
    env = make_pool(env_id, [3, 5], options)
    fields, _ = play(env, random_actions(env, n_steps))
    done = fields["terminated"] | fields["truncated"]
    assert torch.equal(~fields["valid"][1:], done[:-1])
    assert fields["valid"][0].all()
    assert not fields["reward"][~fields["valid"]].any()
    assert not done[~fields["valid"]].any()


def test_a_truncated_episode_shows_its_true_final_observation():
    env = PoolEnv("CartPole-v1", [3], options={"max_episode_steps": 4})
    fields, parts = play(env, [torch.tensor([[1]])] * 5)
    assert fields["truncated"][:, 0].tolist() == [False, False, False, True, False]
    cart = CartPoleEnv()
    cart.reset()
    cart.state = parts["vector"][0, 0].double().numpy()
    for _ in range(4):
        final, *_ = cart.step(1)
    np.testing.assert_allclose(parts["vector"][4, 0], final, atol=1e-5)
    assert parts["vector"][5].abs().max() <= 0.05, "the row after it shows the new episode's start"


def test_a_terminated_episode_shows_why_it_ended():
    env = PoolEnv("CartPole-v1", [3, 5])
    fields, parts = play(env, [torch.tensor([[1], [1]])] * 30)
    fallen = parts["vector"][1:][fields["terminated"]]
    assert len(fallen) >= 4
    assert (fallen[:, 2].abs() > 12 * np.pi / 180).all()


# Ids with actions under which the task ends by itself, and whether EnvPool tells that at the limit.
AT_THE_LIMIT = {
    "CartPole-v1": False,
    "LunarLander-v3": False,
    "FrozenLake-v1": False,
    "Hopper-v4": False,
    "MiniGrid-Empty-5x5-v0": False,
    "Breakout-v5": True,
    "BerkeleyHumanoidJoystickFlatTerrain-v1": True,
}


def end_of_first_episode(env_id, limit=None):
    """Return at which step the first episode ends, and how: (step, terminated, truncated)."""
    env = PoolEnv(env_id, [3], options={} if limit is None else {"max_episode_steps": limit})
    fire = [torch.tensor([[1]])] * 300 if env_id.startswith("Breakout") else None
    env.reset()
    for count, action in enumerate(fire or random_actions(env, 300), 1):
        step = env.step(action)
        if step.ended:
            env.close()
            return count, bool(step.terminated), bool(step.truncated)
    raise AssertionError("no episode ended")


@pytest.mark.parametrize("env_id", AT_THE_LIMIT)
def test_an_end_at_the_time_limit_is_what_envpool_tells_of_it(env_id):
    """Most families cannot tell a task that ends in its last step from one that is cut there."""
    length, *ending = end_of_first_episode(env_id)
    assert ending == [True, False]
    told = AT_THE_LIMIT[env_id]
    assert end_of_first_episode(env_id, length) == (length, told, not told)
    assert end_of_first_episode(env_id, length - 1) == (length - 1, False, True)


@pytest.mark.parametrize("env_id", ["FruitbotHard-v0", "Highway-v0"])
def test_a_limit_that_is_not_heeded_is_refused(env_id):
    with pytest.raises(UserError, match="ignores max_episode_steps"):
        PoolEnv(env_id, [3], options={"max_episode_steps": 7})


def test_a_game_of_procgen_shows_its_last_frame_before_the_next_level():
    env = PoolEnv("FruitbotHard-v0", [3, 5])
    fields, parts = play(env, random_actions(env, 80))
    frames = parts["image"].float()
    step, n = (int(place) for place in fields["terminated"].nonzero()[0])
    within = (frames[step + 1, n] - frames[step, n]).abs().mean()
    across = (frames[step + 2, n] - frames[step + 1, n]).abs().mean()
    assert within < across / 2


def test_atari_ends_an_episode_with_each_life_and_the_score_with_the_game():
    env = PoolEnv("Breakout-v5", [3], episodic_life=True)
    env.reset()
    steps = [env.step(torch.tensor([[1]])) for _ in range(140)]
    env.close()
    lost = [t for t, step in enumerate(steps) if step.terminated.any()]
    ended = [t for t, step in enumerate(steps) if step.over is not None and step.over.any()]
    assert ended == [lost[4]], "Breakout has five lives"


def test_atari_trains_on_the_sign_of_the_reward_and_scores_the_reward():
    env = PoolEnv("SpaceInvaders-v5", [3], sign_rewards=True)
    env.reset()
    steps = [env.step(action) for action in random_actions(env, 120)]
    env.close()
    pairs = {(float(step.reward), float(step.score)) for step in steps if step.score is not None}
    assert (0.0, 0.0) in pairs
    assert {reward for reward, score in pairs if score >= 5} == {1.0}


def test_minigrid_gives_one_vector_of_image_direction_and_mission():
    env = PoolEnv("MiniGrid-Empty-5x5-v0", [3])
    observation = env.reset()
    env.close()
    assert {part: tuple(given.shape) for part, given in observation.items()} == {
        "vector": (1, 7 * 7 * 3 + 4 + 96)
    }


@pytest.mark.parametrize(
    ("env_id", "actions", "complaint"),
    [
        ("CartPole-v1", [[0]], "1 actions for 2 environments"),
        ("CartPole-v1", [[0], [1], [0]], "3 actions for 2 environments"),
        ("CartPole-v1", [[0], [2]], "outside"),
        ("CartPole-v1", [[-1], [0]], "outside"),
        ("CartPole-v1", [0, 1], "should be"),
        ("Pendulum-v1", [[0.0], [float("nan")]], "not finite"),
        ("Pendulum-v1", [[0.0], [float("inf")]], "not finite"),
        ("Pendulum-v1", [[0.0]], "1 actions for 2 environments"),
    ],
)
def test_bad_actions_are_stopped_before_they_reach_envpool(env_id, actions, complaint):
    env = PoolEnv(env_id, [3, 5])
    env.reset()
    with pytest.raises(ValueError, match=complaint):
        env.step(torch.tensor(actions))
    good = next(random_actions(env, 1))
    assert env.step(good).valid.all(), "the pool goes on as if nothing had happened"
    env.close()


def test_actions_beyond_the_bounds_act_as_the_bounds_do():
    wild, bounded = (PoolEnv("Pendulum-v1", [3]) for _ in range(2))
    seen = [play(env, [torch.tensor([[size]])] * 5) for env, size in ((wild, 99.0), (bounded, 2.0))]
    assert torch.equal(seen[0][1]["vector"], seen[1][1]["vector"])


@pytest.mark.parametrize("family", ["classic", "procgen", "mujoco"])
def test_the_same_seeds_give_the_same_bits_whatever_the_threads(family):
    env_id, options, _ = FAMILIES[family]
    plays = []
    for threads in (1, 2):
        env = make_pool(env_id, [3, 5, 7], options, threads=threads)
        plays.append(play(env, random_actions(env, 25)))
    for part, seen in plays[0][1].items():
        assert torch.equal(seen, plays[1][1][part])
    assert torch.equal(plays[0][0]["reward"], plays[1][0]["reward"])


def test_each_environment_follows_its_own_seed():
    starts = [PoolEnv("CartPole-v1", seeds).reset()["vector"] for seeds in ([3, 5], [5, 3])]
    assert torch.equal(starts[0], starts[1].flip(0))
    assert not torch.equal(starts[0][0], starts[0][1])


def test_an_option_the_environment_lacks_is_refused_with_the_nearest():
    with pytest.raises(UserError, match=r"no option 'num_level'.*num_levels"):
        PoolEnv("CoinrunHard-v0", [3], options={"num_level": 200})


def test_an_option_reaches_the_environment():
    levels = [
        PoolEnv("CoinrunHard-v0", [3, 5, 7, 9], options=options).reset()["image"]
        for options in ({}, {"num_levels": 1})
    ]
    distinct = [len(torch.unique(images.flatten(1), dim=0)) for images in levels]
    assert distinct == [4, 1]
