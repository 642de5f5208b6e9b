"""What one policy's gradients are like: all that was measured, and what follows from it."""

from __future__ import annotations

from dataclasses import dataclass

from isobatch.batch import Shape
from isobatch.probe import curve
from isobatch.probe.batches import Batches
from isobatch.probe.collapse import Exploration
from isobatch.probe.collection import Experience
from isobatch.probe.compare import Comparisons, most_often
from isobatch.probe.gradients import Directions
from isobatch.probe.plan import Question
from isobatch.probe.reference import Kind, Returns
from isobatch.probe.sizing import Sizing
from isobatch.run.policy import Policy


@dataclass(frozen=True)
class Findings:
    """What one policy's gradients are like."""

    policy: Policy
    question: Question
    own: Shape
    samples: int
    """The size of batch the curve is for."""
    experience: Experience
    directions: Directions
    seconds: float
    batches: list[Batches]
    biases: list[curve.Bias]
    """Against GAE that looks on; the recipe's own lambda first."""
    returns: Returns | None
    """Whole returns; None where they are not what advantages estimate."""
    against_returns: curve.Bias | None
    """The bias of the recipe's own lambda against them."""
    curves: dict[Kind, list[curve.Point]]
    """Each reference's, the one to advise by first."""
    comparisons: Comparisons
    """The shapes asked for, against the reference to advise by."""
    exploration: Exploration | None
    """How much of chance is left in the actions; None of Q-networks, whose policy is greedy."""
    untimed: str | None
    """Why shapes were not timed, where they were asked to be."""
    cautions: list[str]
    """What was warned of while collecting."""

    @property
    def has_collapsed(self) -> bool:
        """True where the policy always takes the same action, so that it has no gradient."""
        return (
            self.question.loss == "policy"
            and self.exploration is not None
            and self.exploration.has_collapsed
        )

    @property
    def reference(self) -> Kind:
        """What advice rests on: whole returns, where they tell a gradient from noise, else GAE."""
        return next(iter(self.curves))

    @property
    def curve(self) -> list[curve.Point]:
        """The curve that advice rests on."""
        return self.curves[self.reference]

    def bias(self, reference: Kind) -> curve.Bias:
        """Return the bias of the recipe's own lambda against a reference."""
        if reference == "monte-carlo":
            assert self.against_returns is not None
            return self.against_returns
        return self.biases[0]

    def is_decided(self, reference: Kind) -> bool:
        """Say whether a reference's gradient stands out of its noise, so that shapes compare."""
        tells = curve.tells(self.bias(reference), self.curves[reference])
        return tells and not self.has_collapsed

    @property
    def has_advice(self) -> bool:
        """True where the reference to advise by tells its gradient from noise."""
        return self.is_decided(self.reference)

    def best(self, over_updates: bool = False, reference: Kind | None = None) -> curve.Point:
        """Return the shape that most often has the smallest error, over one update or several."""
        return most_often(self.curves[reference or self.reference], over_updates)

    def best_per_second(self, reference: Kind | None = None) -> curve.Point | None:
        """Return the shape that most often has the smallest error x time, where they were timed."""
        shapes = self.curves[reference or self.reference]
        timed = [each for each in shapes if each.best_share_per_second is not None]
        return max(timed, key=lambda each: each.best_share_per_second or 0.0, default=None)

    def point(self, shape: Shape) -> curve.Point | None:
        """Return a shape of the curve that advice rests on."""
        return next((each for each in self.curve if each.shape == shape), None)

    @property
    def sized_by(self) -> Batches:
        """The batches whose noise scale the recipe's batch is held against: its own, if asked."""
        own = (each for each in self.batches if each.shape == self.own)
        return next(own, self.batches[0])

    @property
    def minibatch(self) -> Sizing:
        """The recipe's minibatch against the noise scale of single transitions."""
        rows = self.policy.recipe.batch.minibatch_size
        return Sizing(rows, self.sized_by.noise_scale("minibatch"))

    @property
    def rollout(self) -> Sizing:
        """The recipe's rollout against the noise scale of whole trajectories."""
        return Sizing(self.own.samples, self.sized_by.noise_scale("per-environment"))

    @property
    def doubled_seconds(self) -> float | None:
        """Seconds of an iteration with twice the environments, over those of one as it is.

        From the shapes that were timed: 2N x T takes twice as long as 2N x T/2. None without them.
        """
        here = self.point(self.own)
        wide = self.point(Shape(2 * self.own.n_envs, self.own.n_steps // 2))
        if here is None or wide is None or self.own.n_steps % 2:
            return None
        if here.steps_per_second is None or wide.steps_per_second is None:
            return None
        return 2 * here.steps_per_second / wide.steps_per_second
