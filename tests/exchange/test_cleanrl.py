import pytest
from round_trip import comes_back

from isobatch import exchange
from isobatch.batch import Batch
from isobatch.errors import UserError
from isobatch.recipe import Recipe

# The Args of CleanRL's scripts, as their args.json has them.
SHARED = {
    "seed": 1, "torch_deterministic": True, "cuda": True, "track": False,
    "wandb_project_name": "cleanRL", "wandb_entity": None, "capture_video": False,
    "anneal_lr": True, "gamma": 0.99, "gae_lambda": 0.95, "norm_adv": True, "clip_vloss": True,
    "vf_coef": 0.5, "max_grad_norm": 0.5, "target_kl": None,
}  # fmt: skip
SCRIPTS = {
    "ppo": {
        **SHARED, "exp_name": "ppo", "env_id": "CartPole-v1", "total_timesteps": 500_000,
        "learning_rate": 2.5e-4, "num_envs": 4, "num_steps": 128, "num_minibatches": 4,
        "update_epochs": 4, "clip_coef": 0.2, "ent_coef": 0.01, "batch_size": 512,
        "minibatch_size": 128, "num_iterations": 976,
    },
    "ppo_atari": {
        **SHARED, "exp_name": "ppo_atari", "env_id": "BreakoutNoFrameskip-v4",
        "total_timesteps": 10_000_000, "learning_rate": 2.5e-4, "num_envs": 8, "num_steps": 128,
        "num_minibatches": 4, "update_epochs": 4, "clip_coef": 0.1, "ent_coef": 0.01,
        "batch_size": 1024, "minibatch_size": 256, "num_iterations": 9765,
    },
    "ppo_continuous_action": {
        **SHARED, "exp_name": "ppo_continuous_action", "env_id": "HalfCheetah-v4",
        "total_timesteps": 1_000_000, "learning_rate": 3e-4, "num_envs": 1, "num_steps": 2048,
        "num_minibatches": 32, "update_epochs": 10, "clip_coef": 0.2, "ent_coef": 0.0,
        "save_model": False, "upload_model": False, "hf_entity": "", "batch_size": 2048,
        "minibatch_size": 64, "num_iterations": 488,
    },
    "ppo_procgen": {
        **SHARED, "exp_name": "ppo_procgen", "env_id": "starpilot", "total_timesteps": 25_000_000,
        "learning_rate": 5e-4, "num_envs": 64, "num_steps": 256, "anneal_lr": False,
        "gamma": 0.999, "num_minibatches": 8, "update_epochs": 3, "clip_coef": 0.2,
        "ent_coef": 0.01, "batch_size": 16384, "minibatch_size": 2048, "num_iterations": 1525,
    },
}  # fmt: skip


@pytest.mark.parametrize("script", SCRIPTS)
def test_scripts_arguments_come_back(script):
    imported = comes_back("cleanrl", SCRIPTS[script])
    assert imported.unknown == []
    objective = imported.recipe.objective
    assert objective.clip_range_vf == SCRIPTS[script]["clip_coef"]
    assert objective.clip_vf_loss == "max"


@pytest.mark.parametrize("script", SCRIPTS)
def test_what_is_not_given_is_the_scripts_default(script):
    least = exchange.read("cleanrl", {"exp_name": script})
    assert least == exchange.read("cleanrl", SCRIPTS[script])


def test_numbers_keep_their_meaning():
    recipe = exchange.read("cleanrl", SCRIPTS["ppo"]).recipe
    assert recipe.batch == Batch(n_envs=4, n_steps=128, n_minibatches=4, n_epochs=4)
    assert recipe.objective.vf_coef == 0.5
    assert recipe.objective.advantage_normalization == "minibatch"
    assert recipe.optimizer.learning_rate_schedule == "linear"
    assert recipe.optimizer.adam_eps == 1e-5


def test_scripts_bring_their_networks_and_wrappers():
    atari = exchange.read("cleanrl", SCRIPTS["ppo_atari"]).recipe
    assert (atari.model.encoder, atari.model.architecture) == ("nature", "shared")
    assert atari.environment.episodic_life
    cheetah = exchange.read("cleanrl", {"exp_name": "ppo_continuous_action", "gamma": 0.9}).recipe
    assert cheetah.normalize.normalize_observations
    assert cheetah.normalize.reward_gamma == 0.9
    assert cheetah.normalize.update_statistics == "step"
    assert cheetah.normalize.observation_clip == cheetah.normalize.reward_clip == 10
    procgen = exchange.read("cleanrl", SCRIPTS["ppo_procgen"]).recipe
    assert procgen.env == "StarpilotEasy-v0"
    assert (procgen.model.init, atari.model.init) == ("torch-encoder", "orthogonal")


def test_statistics_of_each_environment_are_said():
    script = {"exp_name": "ppo_continuous_action"}
    one, several = (exchange.read("cleanrl", script | {"num_envs": n}).unknown for n in (1, 4))
    (line,) = [each for each in several if each not in one]
    assert line.startswith("num_envs 4: each environment is normalised by statistics of its own")


def test_target_kl_is_another_multiple():
    imported = exchange.read("cleanrl", {"target_kl": 0.015})
    assert imported.recipe.objective.target_kl == pytest.approx(0.01)
    assert any(line.startswith("target_kl") for line in imported.unknown)
    assert exchange.write("cleanrl", imported.recipe).given["target_kl"] == 0.015


def test_the_command_is_read_as_it_was_typed():
    words = "python cleanrl/ppo_atari.py --env-id PongNoFrameskip-v4 --no-clip-vloss --exp-name me"
    given = exchange.arguments("cleanrl", words.split())
    imported = exchange.read("cleanrl", given)
    assert imported.unknown == []
    assert imported.recipe.objective.clip_range_vf is None
    assert imported.recipe.env == "Pong-v5"
    assert imported.recipe.batch.n_envs == 8
    moved = imported.recipe.replace(n_envs=16)
    text = exchange.write("cleanrl", moved, given).text
    assert text == (
        "python cleanrl/ppo_atari.py --env-id PongNoFrameskip-v4 --no-clip-vloss --exp-name me "
        "--num-envs 16"
    )


def test_the_text_is_a_command_that_is_read_back():
    recipe = Recipe(env="CartPole-v1").replace(
        target_kl=0.02, max_grad_norm=None, advantage_normalization="none"
    )
    exported = exchange.write("cleanrl", recipe)
    assert exported.missing == []
    back = exchange.arguments("cleanrl", exported.text.split())
    assert exchange.read("cleanrl", back).recipe == recipe


def test_a_script_is_never_guessed():
    with pytest.raises(UserError, match="exp_name 'mine' is none of its scripts: give script=NAME"):
        exchange.read("cleanrl", {"exp_name": "mine"})
    with pytest.raises(UserError, match=r"script 'ppo_atar' is none .* mean ppo_atari\?"):
        exchange.read("cleanrl", exchange.arguments("cleanrl", ["python", "ppo_atar.py"]))
    given = exchange.arguments("cleanrl", ["python", "my_atari.py", "script=ppo_atari"])
    assert exchange.read("cleanrl", given | {"exp_name": "mine"}).recipe.batch.n_envs == 8


@pytest.mark.parametrize(
    ("script", "why"),
    [
        ("dqn_atari_jax", "learns off-policy"),
        ("sac_continuous_action", "learns off-policy"),
        ("ppo_rnd_envpool", "rewards novelty"),
        ("ppo_atari_lstm", "needs a recurrent network"),
        ("pqn_atari_envpool_lstm", "needs a recurrent network"),
        ("ppo_trxl", "needs a network with memory"),
        ("ppo_pettingzoo_ma_atari", "trains several agents"),
    ],
)
def test_other_scripts_are_refused_by_name(script, why):
    for key in ("script", "exp_name"):
        with pytest.raises(UserError, match=rf"cleanrl: {script}\.py {why}"):
            exchange.read("cleanrl", {key: script})


def test_ppg_is_read_with_its_phases():
    imported = comes_back("cleanrl", {"exp_name": "ppg_procgen"})
    recipe = imported.recipe
    assert (recipe.algo, recipe.env, recipe.batch) == (
        "ppg",
        "StarpilotEasy-v0",
        Batch(n_envs=64, n_steps=256, n_minibatches=8, n_epochs=1),
    )
    assert recipe.phasic.n_policy_iterations == 32
    assert recipe.phasic.n_aux_epochs == 6
    assert recipe.phasic.segments(64) == 4
    assert (recipe.model.architecture, recipe.model.init) == ("detach", "reference")
    assert recipe.objective.advantage_normalization == "batch"
    assert recipe.optimizer.adam_eps == 1e-8
    assert len(imported.unknown) == 1
    assert "share one Adam" in imported.unknown[0]
    words = ["python", "ppg_procgen.py", "--no-adv-norm-fullbatch", "--n-aux-grad-accum", "2"]
    moved = exchange.read("cleanrl", exchange.arguments("cleanrl", words)).recipe
    assert moved.objective.advantage_normalization == "none"
    assert moved.phasic.segments(64) == 8  # 4 rollouts, accumulated twice.


def test_pqn_is_read_with_the_gradient_that_its_loss_has():
    recipe = comes_back("cleanrl", {"exp_name": "pqn"}).recipe
    assert recipe.algo == "pqn"
    # Its loss is twice that here, so a norm of 10 there is one of 5 here.
    assert recipe.optimizer.max_grad_norm == 5.0
    assert (recipe.optimizer.optimizer, recipe.model.hidden_sizes) == ("radam", (120, 84))
    assert recipe.model.layer_norm
    assert recipe.objective.gae_lambda == 0.65
    exploration = recipe.exploration
    assert (exploration.epsilon_start, exploration.epsilon_end) == (1.0, 0.05)
    assert exploration.epsilon_fraction == 0.5
    atari = comes_back("cleanrl", {"exp_name": "pqn_atari_envpool"}).recipe
    assert (atari.env, atari.model.encoder) == ("Breakout-v5", "nature")
    assert atari.exploration.epsilon_end == 0.01


def test_processes_of_several_gpus_are_added_up():
    given = {"exp_name": "ppo_atari_multigpu", "local_num_envs": 4, "world_size": 3}
    imported = exchange.read("cleanrl", given)
    assert imported.recipe.batch == Batch(12, 128, 4, 4)
    assert imported.unknown[0].startswith("world_size 3: each process normalises")
    moved = exchange.write("cleanrl", imported.recipe.replace(n_envs=24), given)
    assert moved.given == given | {"local_num_envs": 8}
    with pytest.raises(UserError, match=r"num_envs 8 does not agree .* make it 12"):
        exchange.read("cleanrl", given | {"num_envs": 8})


def test_what_a_script_does_not_read_is_not_read():
    given = {"exp_name": "ppo_atari_envpool_xla_jax", "clip_vloss": True, "target_kl": 0.01}
    imported = exchange.read("cleanrl", given)
    assert imported.unknown == []
    assert imported.recipe.objective.clip_range_vf is None
    assert imported.recipe.objective.target_kl is None


def test_only_what_moved_is_written_and_what_follows_is_left_out():
    given = SCRIPTS["ppo"]
    recipe = exchange.read("cleanrl", given).recipe.replace(n_envs=8, learning_rate=5e-4)
    written = exchange.write("cleanrl", recipe, given).given
    assert written == {
        **{k: v for k, v in given.items() if not k.endswith(("_size", "_iterations"))},
        "num_envs": 8, "learning_rate": 5e-4,
    }  # fmt: skip
