"""Files of strangers: nothing in them runs, and what cannot be read is one line."""

import base64
import io
import json
import pickle
import struct
import zipfile
from contextlib import suppress

import numpy as np
import pytest
import torch
from sb3_models import SMALL, Saved
from stable_baselines3 import PPO, SAC

from isobatch import UserError, exchange, weights
from isobatch.weights import inert, normalizer, sb3_zip, torch_file
from isobatch.weights.sb3 import SETTINGS, _optimizer, arguments


class Payload:
    """Creates a file when it is unpickled."""

    def __init__(self, path):
        self.path = str(path)

    def __reduce__(self):
        return open, (self.path, "w")


def members(path):
    with zipfile.ZipFile(path) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def written(path, content):
    with zipfile.ZipFile(path, "w") as archive:
        for name, each in content.items():
            archive.writestr(name, each)
    return path


def refused(call, *arguments, **named):
    with pytest.raises(UserError) as error:
        call(*arguments, **named)
    assert "\n" not in str(error.value)
    return str(error.value)


@pytest.fixture
def zipped(sb3, tmp_path):
    """Return a function that writes a zip of SB3's with some members changed, None for left out."""
    made: Saved = sb3("discrete")

    def change(**changed):
        content = members(made.path) | {name.replace("__", "."): x for name, x in changed.items()}
        kept = {name: each for name, each in content.items() if each is not None}
        return written(tmp_path / "changed.zip", kept)

    return change


def settings(sb3, **changed):
    data = json.loads(members(sb3("discrete").path)["data"])
    return json.dumps(data | changed).encode()


def test_serialized_entries_are_never_decoded(sb3, zipped, tmp_path):
    bomb, planted = tmp_path / "ran", {}
    code = base64.b64encode(pickle.dumps(Payload(bomb))).decode()
    data = json.loads(members(sb3("discrete").path)["data"])
    for name, value in data.items():
        if isinstance(value, dict) and ":serialized:" in value:
            planted[name] = value | {":serialized:": code}
    assert "policy_class" in planted
    path = zipped(data=settings(sb3, **planted))
    weights.from_sb3(path, "CartPole-v1", tmp_path / "run")
    assert not bomb.exists()
    pickle.loads(base64.b64decode(code)).close()  # It would have.
    assert bomb.exists()


@pytest.mark.parametrize("member", ["policy__pth", "policy__optimizer__pth"])
def test_code_in_tensors_does_not_run(zipped, tmp_path, member):
    bomb, content = tmp_path / "ran", io.BytesIO()
    torch.save({"log_std": Payload(bomb)}, content)
    said = refused(
        weights.from_sb3,
        zipped(**{member: content.getvalue()}),
        "CartPole-v1",
        tmp_path / "run",
    )
    assert f"{member.replace('__', '.')} in" in said
    assert "io.open" in said
    assert not bomb.exists()
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_code_in_the_normaliser_does_not_run(sb3, tmp_path, protocol):
    bomb, file = tmp_path / "ran", tmp_path / "vecnormalize.pkl"
    file.write_bytes(pickle.dumps({"obs_rms": Payload(bomb)}, protocol))
    made = sb3("discrete")
    said = refused(weights.from_sb3, made.path, made.env, tmp_path / "run", normalizer=file)
    assert f"{file} names" in said
    assert ".open'" in said
    assert not bomb.exists()


@pytest.mark.parametrize("protocol", range(3, pickle.HIGHEST_PROTOCOL + 1))
@pytest.mark.parametrize(
    "value",
    [
        np.arange(6.0).reshape(2, 3),
        np.asfortranarray(np.arange(6, dtype=">f4").reshape(2, 3)),
        np.array(7, np.int32),
        np.float64(0.5),
        3.25,
    ],
)
def test_arrays_are_read_without_numpy_unpickling_them(value, protocol):
    read = inert.array(inert.load(pickle.dumps(value, protocol), "x", ()))
    np.testing.assert_array_equal(read, np.asarray(value, np.float64))


def test_statistics_that_are_none(sb3, tmp_path):
    made = sb3("continuous")
    record = pickle.dumps(made.normalizer.obs_rms)
    assert "not a VecNormalize" in refused(normalizer.read, record, "x")
    whole = (made.path.parent / "vecnormalize.pkl").read_bytes()
    assert "x" in refused(normalizer.read, whole[: len(whole) // 2], "x")
    three = struct.pack("<3d", *made.normalizer.obs_rms.mean)
    broken = whole.replace(three, struct.pack("<3d", float("nan"), 0, 0))
    assert broken != whole
    assert "not finite" in refused(normalizer.read, broken, "x")


def test_a_zip_that_needs_statistics_is_not_read_without(sb3, tmp_path):
    made = sb3("continuous")
    alone = tmp_path / "alone.zip"
    alone.write_bytes(made.path.read_bytes())
    assert "--normalizer" in refused(weights.from_sb3, alone, made.env, tmp_path / "run")
    weights.from_sb3(alone, made.env, tmp_path / "run", normalizer="none")
    other = sb3("parts").path.parent / "vec_normalize.pkl"
    said = refused(weights.from_sb3, alone, made.env, tmp_path / "b", normalizer=other)
    assert "no statistics of" in said


def test_other_algorithms_are_named(tmp_path):
    SAC("MlpPolicy", "Pendulum-v1", buffer_size=10, device="cpu").save(tmp_path / "sac.zip")
    said = refused(weights.from_sb3, tmp_path / "sac.zip", "Pendulum-v1", tmp_path / "run")
    assert "holds SAC" in said
    kwargs = {"squash_output": True}
    gsde = PPO("MlpPolicy", "Pendulum-v1", use_sde=True, policy_kwargs=kwargs, **SMALL)
    gsde.save(tmp_path / "gsde.zip")
    said = refused(weights.from_sb3, tmp_path / "gsde.zip", "Pendulum-v1", tmp_path / "run")
    assert "squash_output=True" in said


def test_spaces_that_do_not_fit_are_said_with_both_shapes(sb3, tmp_path):
    path = sb3("discrete").path
    said = refused(weights.from_sb3, path, "Acrobot-v1", tmp_path / "run")
    assert "32x4 in the file and 32x6" in said
    said = refused(weights.from_sb3, path, "Colours-v0", tmp_path / "run")
    assert "does not fit Colours-v0" in said
    said = refused(weights.from_sb3, sb3("images").path, "CartPole-v1", tmp_path / "run")
    assert "needs images" in said
    assert not (tmp_path / "run").exists()


def test_damaged_and_foreign_zips(sb3, zipped, tmp_path):
    made, run = sb3("discrete"), tmp_path / "run"
    whole = made.path.read_bytes()
    cut = tmp_path / "cut.zip"
    cut.write_bytes(whole[: len(whole) // 2])
    assert "not a zip" in refused(weights.from_sb3, cut, made.env, run)
    place = whole.index(members(made.path)["policy.pth"][:200]) + 2000
    cut.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
    assert "policy.pth in" in refused(weights.from_sb3, cut, made.env, run)
    for changed, said in (
        ({"policy__pth": None}, "policy.pth is not in it"),
        ({"data": b"{"}, "not valid JSON"),
        ({"data": b"[]"}, "settings"),
        ({"policy__pth": b"nothing"}, "policy.pth in"),
        ({"data": settings(sb3, policy_class={"__module__": "mine"})}, "class of its own"),
        ({"data": settings(sb3, policy_kwargs={"activation_fn": "<class 'a.Odd'>"})}, "Odd"),
        (
            {"data": settings(sb3, policy_kwargs={"features_extractor_class": "<class 'm.Own'>"})},
            "m.Own",
        ),
    ):
        assert said in refused(weights.from_sb3, zipped(**changed), made.env, run)
    assert not run.exists()


ODD = [None, "x", [1], {}, {":serialized:": 1}, -1, 1e999, True]
READ = ["learning_rate", "clip_range", "policy_class", "observation_space", "num_timesteps"]


def test_settings_of_any_kind_are_read_or_refused(sb3):
    archive = sb3_zip.read(sb3("a2c").path.read_bytes(), "x")
    recipe = exchange.read("sb3", arguments(archive, "x", {})[0], "CartPole-v1").recipe
    entries = ("optimizer_kwargs", "activation_fn", "use_expln", "features_extractor_class")
    changed = [(name, value) for name in (*SETTINGS, *READ) for value in ODD]
    changed += [("policy_kwargs", {name: value}) for name in entries for value in ODD]
    for name, value in changed:
        odd = archive._replace(data=archive.data | {name: value})
        with suppress(UserError):
            sb3_zip.refuse_others(odd.data, "x")
            exchange.read("sb3", arguments(odd, "x", {})[0], "CartPole-v1")
    for value in (*ODD, {"state": 3}, {"state": {0: 3}, "param_groups": [{"params": [0]}]}):
        notes = []
        assert _optimizer(archive._replace(optimizer=value), recipe, notes) is None
        assert len(notes) == 1


def test_a_bomb_is_not_unpacked(sb3, zipped, tmp_path, monkeypatch):
    made = sb3("discrete")
    monkeypatch.setattr("isobatch.weights.sb3_zip.MOST_DATA", 1000)
    said = refused(weights.from_sb3, zipped(), made.env, tmp_path / "run")
    assert "more than the 1,000" in said
    monkeypatch.undo()
    inner = written(tmp_path / "inner", members_of_torch(members(made.path)["policy.pth"]))
    monkeypatch.setattr("isobatch.weights.torch_file.MOST", inner.stat().st_size // 2)
    assert "more than the" in refused(torch_file.load, inner.read_bytes(), "inner")


def members_of_torch(content):
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def test_an_existing_directory_stays_as_it_is(sb3, tmp_path):
    made = sb3("discrete")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "mine.txt").write_text("mine")
    assert "exists" in refused(weights.from_sb3, made.path, made.env, tmp_path / "run")
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["mine.txt"]
