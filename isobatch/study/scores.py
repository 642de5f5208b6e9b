"""What counts as 0 and as 1 in an environment, so that scores can be averaged over tasks."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Scale:
    """The returns that count as 0 and as 1, and where they come from."""

    low: float
    high: float
    source: str

    def normalized(self, score: float) -> float:
        """(score - low) / (high - low)."""
        return (score - self.low) / (self.high - self.low)


def constants(env_id: str) -> Scale | None:
    """Return the scale of an environment, or None where none is published or measured.

    `gymnasium:Id` and `tensor:Id` play by the rules of EnvPool's Id.
    """
    return SCALES.get(env_id.removeprefix("gymnasium:").removeprefix("tensor:"))


ATARI = {
    "Alien": (227.8, 7127.7),
    "Amidar": (5.8, 1719.5),
    "Assault": (222.4, 742.0),
    "Asterix": (210.0, 8503.3),
    "Asteroids": (719.1, 47388.7),
    "Atlantis": (12850.0, 29028.1),
    "BankHeist": (14.2, 753.1),
    "BattleZone": (2360.0, 37187.5),
    "BeamRider": (363.9, 16926.5),
    "Berzerk": (123.7, 2630.4),
    "Bowling": (23.1, 160.7),
    "Boxing": (0.1, 12.1),
    "Breakout": (1.7, 30.5),
    "Centipede": (2090.9, 12017.0),
    "ChopperCommand": (811.0, 7387.8),
    "CrazyClimber": (10780.5, 35829.4),
    "Defender": (2874.5, 18688.9),
    "DemonAttack": (152.1, 1971.0),
    "DoubleDunk": (-18.6, -16.4),
    "Enduro": (0.0, 860.5),
    "FishingDerby": (-91.7, -38.7),
    "Freeway": (0.0, 29.6),
    "Frostbite": (65.2, 4334.7),
    "Gopher": (257.6, 2412.5),
    "Gravitar": (173.0, 3351.4),
    "Hero": (1027.0, 30826.4),
    "IceHockey": (-11.2, 0.9),
    "Jamesbond": (29.0, 302.8),
    "Kangaroo": (52.0, 3035.0),
    "Krull": (1598.0, 2665.5),
    "KungFuMaster": (258.5, 22736.3),
    "MontezumaRevenge": (0.0, 4753.3),
    "MsPacman": (307.3, 6951.6),
    "NameThisGame": (2292.3, 8049.0),
    "Phoenix": (761.4, 7242.6),
    "Pitfall": (-229.4, 6463.7),
    "Pong": (-20.7, 14.6),
    "PrivateEye": (24.9, 69571.3),
    "Qbert": (163.9, 13455.0),
    "Riverraid": (1338.5, 17118.0),
    "RoadRunner": (11.5, 7845.0),
    "Robotank": (2.2, 11.9),
    "Seaquest": (68.4, 42054.7),
    "Skiing": (-17098.1, -4336.9),
    "Solaris": (1236.3, 12326.7),
    "SpaceInvaders": (148.0, 1668.7),
    "StarGunner": (664.0, 10250.0),
    "Surround": (-10.0, 6.5),
    "Tennis": (-23.8, -8.3),
    "TimePilot": (3568.0, 5229.2),
    "Tutankham": (11.4, 167.6),
    "UpNDown": (533.4, 11693.2),
    "Venture": (0.0, 1187.5),
    "VideoPinball": (16256.9, 17667.9),
    "WizardOfWor": (563.5, 4756.5),
    "YarsRevenge": (3092.9, 54576.9),
    "Zaxxon": (32.5, 9173.3),
}
"""Game -> (random play, a professional human tester), whole games after up to 30 no-ops."""

PROCGEN = {
    "Bigfish": (0, 40, 1, 40),
    "Bossfight": (0.5, 13, 0.5, 13),
    "Caveflyer": (2, 13.4, 3.5, 12),
    "Chaser": (0.5, 14.2, 0.5, 13),
    "Climber": (1, 12.6, 2, 12.6),
    "Coinrun": (5, 10, 5, 10),
    "Dodgeball": (1.5, 19, 1.5, 19),
    "Fruitbot": (-0.5, 27.2, -1.5, 32.4),
    "Heist": (2, 10, 3.5, 10),
    "Jumper": (1, 10, 3, 10),
    "Leaper": (1.5, 10, 3, 10),
    "Maze": (4, 10, 5, 10),
    "Miner": (1.5, 20, 1.5, 13),
    "Ninja": (2, 10, 3.5, 10),
    "Plunder": (3, 30, 4.5, 30),
    "Starpilot": (1.5, 35, 2.5, 64),
}
"""Game -> (R_min, R_max) of hard, then of easy levels."""

THRESHOLD = "Gymnasium's reward threshold"
LARGEST = "the largest possible return"
SMALL = {
    "CartPole-v0": (22.2, 195, THRESHOLD),
    "CartPole-v1": (22.2, 475, THRESHOLD),
    "Acrobot-v1": (-499.2, -100, THRESHOLD),
    "MountainCar-v0": (-200, -110, THRESHOLD),
    "MountainCarContinuous-v0": (-33.2, 90, THRESHOLD),
    "Pendulum-v1": (-1225, 0, LARGEST),
    "LunarLander-v3": (-187, 200, THRESHOLD),
    "LunarLanderContinuous-v3": (-215, 200, THRESHOLD),
    "BipedalWalker-v3": (-99.6, 300, THRESHOLD),
    "BipedalWalkerHardcore-v3": (-108.5, 300, THRESHOLD),
    "Catch-v0": (-0.602, 1, LARGEST),
    "FrozenLake-v1": (0.017, 0.7, THRESHOLD),
    "FrozenLake8x8-v1": (0.001, 0.85, THRESHOLD),
    "Taxi-v3": (-745, 8, THRESHOLD),
}
"""Id -> (mean return of random actions, what counts as 1, which kind of number that is)."""


def _scales() -> dict[str, Scale]:
    scales = {}
    for game, (low, high) in ATARI.items():
        source = "random and human play (Wang et al. 2016, no-op starts)"
        scales[f"{game}-v5"] = Scale(low, high, source)
    for game, (hard_low, hard_high, easy_low, easy_high) in PROCGEN.items():
        source = "R_min and R_max (Cobbe et al. 2019, appendix C)"
        scales[f"{game}Hard-v0"] = Scale(hard_low, hard_high, source)
        scales[f"{game}Easy-v0"] = Scale(easy_low, easy_high, source)
    for env_id, (low, high, kind) in SMALL.items():
        source = f"random actions over 1,000 episodes (benchmarks/random_scores.py) and {kind}"
        scales[env_id] = Scale(low, high, source)
    return scales


SCALES = _scales()
