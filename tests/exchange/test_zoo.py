import pytest
import yaml
from round_trip import comes_back

from isobatch import exchange
from isobatch.batch import Batch
from isobatch.errors import UserError
from isobatch.recipe import Recipe

# Entries of the zoo's ppo.yml and a2c.yml.
PPO = """
atari:
  env_wrapper:
    - stable_baselines3.common.atari_wrappers.AtariWrapper
  frame_stack: 4
  policy: 'CnnPolicy'
  n_envs: 8
  n_steps: 128
  n_epochs: 4
  batch_size: 256
  n_timesteps: !!float 1e7
  learning_rate: lin_2.5e-4
  clip_range: lin_0.1
  vf_coef: 0.5
  ent_coef: 0.01

CartPole-v1:
  n_envs: 8
  n_timesteps: !!float 1e5
  policy: 'MlpPolicy'
  n_steps: 32
  batch_size: 256
  gae_lambda: 0.8
  gamma: 0.98
  n_epochs: 20
  ent_coef: 0.0
  learning_rate: lin_0.001
  clip_range: lin_0.2

LunarLander-v2:
  n_envs: 16
  n_timesteps: !!float 1e6
  policy: 'MlpPolicy'
  n_steps: 1024
  batch_size: 64
  gae_lambda: 0.98
  gamma: 0.999
  n_epochs: 4
  ent_coef: 0.01

HalfCheetah-v4:
  normalize: true
  n_envs: 1
  policy: 'MlpPolicy'
  n_timesteps: !!float 1e6
  batch_size: 64
  n_steps: 512
  gamma: 0.98
  learning_rate: 2.0633e-05
  ent_coef: 0.000401762
  clip_range: 0.1
  n_epochs: 20
  gae_lambda: 0.92
  max_grad_norm: 0.8
  vf_coef: 0.58096
  policy_kwargs: "dict(
                    log_std_init=-2,
                    ortho_init=False,
                    activation_fn=nn.ReLU,
                    net_arch=dict(pi=[256, 256], vf=[256, 256])
                  )"

CarRacing-v2:
  env_wrapper:
    - rl_zoo3.wrappers.FrameSkip:
        skip: 2
  frame_stack: 2
  normalize: "{'norm_obs': False, 'norm_reward': True}"
  n_envs: 8
  n_timesteps: !!float 4e6
  policy: 'CnnPolicy'
  batch_size: 128
  n_steps: 512
  gamma: 0.99
  gae_lambda: 0.95
  n_epochs: 10
  ent_coef: 0.0
  sde_sample_freq: 4
  max_grad_norm: 0.5
  vf_coef: 0.5
  learning_rate: lin_1e-4
  use_sde: True
  clip_range: 0.2
  policy_kwargs: "dict(log_std_init=-2,
                       ortho_init=False,
                       activation_fn=nn.GELU,
                       net_arch=dict(pi=[256], vf=[256]),
                       )"
"""
A2C = """
CartPole-v1:
  n_envs: 8
  n_timesteps: !!float 5e5
  policy: 'MlpPolicy'
  ent_coef: 0.0

BipedalWalker-v3:
  normalize: true
  n_envs: 16
  n_timesteps: !!float 5e6
  policy: 'MlpPolicy'
  ent_coef: 0.0
  max_grad_norm: 0.5
  n_steps: 8
  gae_lambda: 0.9
  vf_coef: 0.4
  gamma: 0.99
  use_rms_prop: True
  normalize_advantage: False
  learning_rate: lin_0.00096
  use_sde: True
  policy_kwargs: "dict(log_std_init=-2, ortho_init=False)"
"""


@pytest.fixture
def entries(tmp_path):

    def read(name, text=PPO):
        path = tmp_path / name
        path.write_text(text)
        return exchange.arguments("zoo", [str(path)])

    return read


@pytest.mark.parametrize(
    ("env", "unknown"),
    [
        ("CartPole-v1", []),
        ("LunarLander-v2", []),
        ("BreakoutNoFrameskip-v4", []),
        ("HalfCheetah-v4", []),
        ("CarRacing-v2", [
        ]),
    ],
)  # fmt: skip
def test_entries_come_back(entries, env, unknown):
    imported = comes_back("zoo", entries("ppo.yml"), env)
    assert imported.recipe.env == env.replace("NoFrameskip-v4", "-v5")
    assert len(imported.unknown) == len(unknown)
    for line, begins in zip(imported.unknown, unknown, strict=True):
        assert line.startswith(begins)


@pytest.mark.parametrize("env", ["CartPole-v1", "BipedalWalker-v3"])
def test_a2cs_entries_come_back(entries, env):
    imported = comes_back("zoo", entries("a2c.yml", A2C), env)
    assert imported.recipe.algo == "a2c"


def test_cartpole_is_read_with_its_schedules(entries):
    recipe = exchange.read("zoo", entries("ppo.yml"), "CartPole-v1").recipe
    assert recipe.batch == Batch(8, 32, 1, 20)
    assert recipe.total_timesteps == 100_000
    assert recipe.optimizer.learning_rate == 0.001
    assert recipe.optimizer.learning_rate_schedule == "linear"
    assert recipe.objective.clip_range_schedule == "linear"


def test_atari_and_normalisation_are_read(entries):
    recipe = exchange.read("zoo", entries("ppo.yml"), "BreakoutNoFrameskip-v4").recipe
    assert recipe.environment.episodic_life
    assert recipe.environment.sign_rewards
    cheetah = exchange.read("zoo", entries("ppo.yml"), "HalfCheetah-v4").recipe
    assert cheetah.normalize.normalize_observations
    assert cheetah.normalize.normalize_rewards
    # VecNormalize gets the algorithm's discount.
    assert cheetah.normalize.reward_gamma == 0.98
    assert cheetah.model.hidden_sizes == (256, 256)
    assert cheetah.objective.vf_coef == 2 * 0.58096


def test_the_environment_is_chosen_or_asked_for(entries):
    given = entries("ppo.yml")
    with pytest.raises(UserError, match="several environments, choose one of CartPole-v1, Lunar"):
        exchange.read("zoo", given)
    with pytest.raises(UserError, match=r"no CartPole-v0; it has .*mean CartPole-v1"):
        exchange.read("zoo", given, "CartPole-v0")
    assert exchange.read("zoo", given | {"env": "CartPole-v1"}).recipe.env == "CartPole-v1"
    moved = exchange.read("zoo", given | {"n_envs": "4"}, "CartPole-v1").recipe
    assert moved.batch.n_envs == 4
    assert moved.batch.n_steps == 32


def test_the_seed_is_the_zoos_command_lines():
    assert "seed" not in exchange.write("zoo", Recipe(env="CartPole-v1")).given["CartPole-v1"]
    missing = exchange.write("zoo", Recipe(env="CartPole-v1", seed=3)).missing
    assert "seed 3: not in zoo's configuration" in missing
    with pytest.raises(UserError, match="zoo has no seed"):
        exchange.read("zoo", {"seed": 3})


def test_one_entry_needs_no_choice():
    given = {"CartPole-v1": {"n_envs": 8, "n_steps": 32, "batch_size": 256}}
    imported = exchange.read("zoo", given)
    assert imported.recipe.env == "CartPole-v1"
    moved = imported.recipe.replace(n_envs=16, learning_rate=6e-4)
    assert exchange.write("zoo", moved, given).given == {
        "CartPole-v1": {"n_envs": 16, "n_steps": 32, "batch_size": 512, "learning_rate": 6e-4}
    }


@pytest.mark.parametrize(
    ("given", "line"),
    [
        ({"env_wrapper": "gymnasium.wrappers.FlattenObservation"}, "env_wrapper gymnasium"),
        ({"env_wrapper": {"rl_zoo3.wrappers.MaskVelocityWrapper": None}}, "env_wrapper {'rl_zoo3"),
        ({"env_wrapper": "mine.FrameSkip"}, "env_wrapper mine.FrameSkip: a wrapper"),
        ({"normalize": "dict(norm_obs_keys=['a'])"}, "normalize norm_obs_keys ['a']"),
        ({"env_kwargs": "dict(render=nn.ReLU)"}, "env_kwargs render"),
        ({"callback": "my.Callback"}, "callback my.Callback"),
        ({"env_wrapper": [{"stable_baselines3.common.atari_wrappers.AtariWrapper":
                           {"framing": 1}}], "frame_stack": 4}, "env_wrapper framing 1"),
    ],
)  # fmt: skip
def test_what_has_no_counterpart_is_said(given, line):
    unknown = exchange.read("zoo", given).unknown
    assert len(unknown) == 1
    assert unknown[0].startswith(line)


def test_the_text_is_yaml_the_zoo_reads():
    recipe = Recipe(env="CartPole-v1").replace(
        learning_rate=1e-5, max_grad_norm=None, normalize_rewards=True, reward_clip=5.0,
        update_statistics="step",
        clip_range_schedule="linear", hidden_sizes=(32, 32), sign_rewards=True,
        advantage_normalization="minibatch",
    )  # fmt: skip
    exported = exchange.write("zoo", recipe)
    assert exported.missing == []
    read = yaml.safe_load(exported.text)
    assert read == exported.given
    assert read["CartPole-v1"]["learning_rate"] == 1e-5


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("sac", "SAC, which learns off-policy"),
        ("td3", "TD3, which learns off-policy"),
        ("dqn", "DQN, which learns off-policy"),
        ("tqc", "TQC, which learns off-policy"),
        ("ddpg", "DDPG, which learns off-policy"),
        ("qrdqn", "QR-DQN, which learns off-policy"),
        ("crossq", "CrossQ, which learns off-policy"),
        ("her", "HER, which learns off-policy"),
        ("trpo", "TRPO, which takes trust-region steps"),
        ("ars", "ARS, which searches the weights at random"),
        ("ppo_lstm", "recurrent PPO, which needs a recurrent network"),
    ],
)
def test_files_of_other_algorithms_are_refused_by_name(entries, name, said):
    with pytest.raises(UserError, match=rf"{name}\.yml is for {said}.*: Isobatch imports PPO"):
        entries(f"{name}.yml", "Pendulum-v1:\n  n_timesteps: 20000\n  policy: MlpPolicy\n")
    with pytest.raises(UserError, match=f"algo {name} is for {said}"):
        exchange.read("zoo", {"algo": name, "n_timesteps": 20000})


@pytest.mark.parametrize(
    ("key", "whose"),
    [
        ("buffer_size", "off-policy"),
        ("tau", "off-policy"),
        ("cg_damping", "TRPO"),
        ("n_delta", "ARS"),
        ("model_class", "HER"),
    ],
)
def test_what_only_other_algorithms_have_is_refused(key, whose):
    for source in ("zoo", "sb3"):
        with pytest.raises(UserError, match=f"{source}: {key} is an argument of {whose}"):
            exchange.read(source, {key: 1})
    # An entry without such a key is of the same algorithm as the others of its file.
    file = {"Pendulum-v1": {"policy": "MlpPolicy"}, "Ant-v4": {key: 1}}
    with pytest.raises(UserError, match=f"{key} is an argument of {whose}"):
        exchange.read("zoo", file, "Pendulum-v1")


def test_a2cs_arguments_ask_for_a2c():
    with pytest.raises(UserError, match="use_rms_prop is an argument of A2C: add algo=a2c"):
        exchange.read("zoo", {"use_rms_prop": True})


def test_environments_without_an_entry_have_the_default(entries):
    given = entries("ppo.yml", "default:\n  n_timesteps: 1e6\n  n_envs: 3\n" + PPO)
    imported = exchange.read("zoo", given, "CartPole-v0")
    assert (imported.recipe.env, imported.recipe.batch.n_envs) == ("CartPole-v0", 3)
    said = "the file has no entry for CartPole-v0: its default is used. Did you mean CartPole-v1?"
    assert said in imported.notes
    assert exchange.read("zoo", given, "PongNoFrameskip-v4").recipe.batch.n_envs == 8
    for name in ("default", "atari"):
        with pytest.raises(UserError, match=f"zoo: {name} is no environment but the entry of"):
            exchange.read("zoo", given, name)
    with pytest.raises(UserError, match="choose one of CartPole-v1"):
        exchange.read("zoo", given)


def test_an_entry_may_be_asked_for_by_name(entries):
    given = entries("ppo.yml") | {"entry": "LunarLander-v2"}
    recipe = exchange.read("zoo", given, "Acrobot-v1").recipe
    assert (recipe.env, recipe.batch.n_steps) == ("Acrobot-v1", 1024)
    with pytest.raises(UserError, match=r"no entry Lunar\."):
        exchange.read("zoo", given | {"entry": "Lunar"}, "Acrobot-v1")


@pytest.mark.parametrize(
    ("env", "options", "said"),
    [
        ("PongNoFrameskip-v4", (), "no sticky actions, frame skip 4"),
        (
            "PongNoFrameskip-v0",
            ("repeat_action_probability=0.25",),
            "sticky actions (0.25), frame skip 4",
        ),
        (
            "ALE/Pong-v5",
            ("repeat_action_probability=0.25", "frame_skip=16"),
            "sticky actions (0.25), frame skip 16 (its own 4 x the wrapper's 4)",
        ),
    ],
)
def test_games_are_envpools_with_the_options_that_their_ids_mean(entries, env, options, said):
    imported = exchange.read("zoo", entries("ppo.yml"), env)
    assert imported.recipe.env == "Pong-v5"
    assert imported.recipe.environment.env_options == options
    assert imported.notes[0] == f"{env} runs as EnvPool's Pong-v5: {said}"
    exported = exchange.write("zoo", imported.recipe)
    assert list(exported.given) == [env]
    assert exported.missing == []
    # EnvPool takes these options, and they are what its own id does not do.
    assert exchange.read("zoo", entries("ppo.yml"), "Pong-v5").recipe.environment.env_options == ()


def test_a_name_like_a_games_is_not_taken_for_one(entries):
    given = {"default": {"n_envs": 2}, "atari": {"n_envs": 8}}
    assert exchange.read("zoo", given, "Humanoid-v5").recipe.batch.n_envs == 2
    assert exchange.read("zoo", given, "Humanoid-v5").recipe.env == "Humanoid-v5"


def test_how_the_zoos_scores_were_played_is_said(entries):
    notes = exchange.read("zoo", entries("ppo.yml"), "CartPole-v1").notes
    assert notes == [
        "the zoo's published scores are of deterministic actions: compare them with "
        "isobatch eval RUN --deterministic"
    ]
    (_, said) = exchange.read("zoo", entries("ppo.yml"), "PongNoFrameskip-v4").notes
    assert "of sampled actions" in said


@pytest.mark.parametrize(
    ("given", "fields"),
    [
        ({"normalize": True}, {"observation_clip": 10, "update_statistics": "step"}),
        ({"normalize": False}, {"normalize_observations": False, "update_statistics": "rollout"}),
        ({"normalize": "dict(norm_obs=True, norm_reward=False)"},
         {"normalize_observations": True, "normalize_rewards": False}),
        ({"normalize": {"training": False}}, {"normalize_observations": False}),
        ({"normalize": {"clip_obs": 5, "epsilon": 1e-4, "clip_reward": 3}},
         {"observation_clip": 5, "normalize_epsilon": 1e-4, "reward_clip": 3}),
        ({"normalize": {"clip_obs": float("inf")}}, {"observation_clip": 0}),
        # The algorithm's discount, where the entry has one; else VecNormalize's own.
        ({"normalize": {"gamma": 0.9}}, {"gamma": 0.99, "reward_gamma": 0.9}),
        ({"normalize": {"gamma": 0.9}, "gamma": 0.98}, {"gamma": 0.98, "reward_gamma": 0.98}),
        ({"env_kwargs": {"continuous": True, "gravity": -9.5, "map_name": "8x8", "n": "3"}},
         {"env_options": ("continuous=True", "gravity=-9.5", "map_name=8x8", "n='3'")}),
        ({"frame_stack": 3}, {"frame_stack": 3, "wrappers": ()}),
        ({"env_wrapper": "minigrid.wrappers.FlatObsWrapper"}, {"wrappers": ("flat_obs",)}),
        ({"env_wrapper": [{"gymnasium.wrappers.RescaleAction":
                           {"min_action": -1, "max_action": 1}}]},
         {"wrappers": ("rescale_action=-1.0:1.0",)}),
        ({"env_wrapper": [
            {"rl_zoo3.wrappers.FrameSkip": {"skip": 2}},
            {"rl_zoo3.wrappers.YAMLCompatResizeObservation": {"shape": [64, 64]}},
            {"gymnasium.wrappers.transform_observation.GrayscaleObservation": {"keep_dim": True}},
         ], "frame_stack": 2},
         {"wrappers": ("frame_skip=2", "resize=64x64", "grayscale"), "frame_stack": 2}),
        ({"env_wrapper": [{"stable_baselines3.common.atari_wrappers.AtariWrapper":
                           {"screen_size": 42, "clip_reward": False}}], "frame_stack": 2},
         {"episodic_life": True, "sign_rewards": False, "frame_stack": 1,
          "env_options": ("img_height=42", "img_width=42", "stack_num=2")}),
    ],
)  # fmt: skip
def test_what_surrounds_the_environment_is_read_and_comes_back(given, fields):
    imported = exchange.read("zoo", given)
    assert imported.unknown == []
    found = imported.recipe.values
    assert {name: found[name] for name in fields} == fields
    exported = exchange.write("zoo", imported.recipe)
    assert exported.missing == []
    assert exchange.read("zoo", exported.given).recipe.replace(env="") == imported.recipe.replace(
        env=""
    )
    assert exchange.write("zoo", imported.recipe, given).given == given


def test_a_time_limit_is_an_option_of_the_environment():
    given = {"env_wrapper": {"gymnasium.wrappers.TimeLimit": {"max_episode_steps": 100}}}
    imported = exchange.read("zoo", given)
    assert imported.unknown == []
    assert imported.recipe.environment.options == {"max_episode_steps": 100}


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"normalize": "os.system('x')"}, "normalize must be a dictionary"),
        ({"normalize": {"clip_obs": "a"}}, "clip_obs must be a number"),
        ({"env_kwargs": [1]}, "env_kwargs must be a dictionary"),
        ({"env_wrapper": {"rl_zoo3.wrappers.YAMLCompatResizeObservation": {"shape": 64}}},
         "shape must be a height and a width"),
    ],
)  # fmt: skip
def test_what_surrounds_it_wrongly_is_said_in_one_line(given, said):
    with pytest.raises(UserError, match=said):
        exchange.read("zoo", given)
