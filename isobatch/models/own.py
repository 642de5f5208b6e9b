"""Encoders of the user's own: given in Python, or registered under a name that a recipe has."""

from __future__ import annotations

from collections.abc import Callable

from torch import nn

from isobatch import registry
from isobatch.envs.spaces import ObservationLayout
from isobatch.errors import UserError, one_line

EncoderFactory = Callable[[ObservationLayout], nn.Module]


def encoder(name: str) -> Callable[[EncoderFactory], EncoderFactory]:
    """Register a function from `ObservationLayout` to a torch module as the encoder `name`.

    A class whose constructor takes the layout works too.
    """

    def register(factory: EncoderFactory) -> EncoderFactory:
        if name in registry.ENCODERS:
            raise UserError(f"there is an encoder {name!r} already")
        registry.ENCODERS[name] = factory
        return factory

    return register


def name_of(custom: EncoderFactory | nn.Module) -> str:
    """Return the name that an encoder is registered under, custom where it is not."""
    names = (name for name, each in registry.ENCODERS.items() if each is custom)
    return next(names, registry.NAMELESS)


def find(name: str) -> EncoderFactory | None:
    """Return the encoder registered under a name, None of one that is built in."""
    registry.refuse_unknown_encoder(name)
    if name not in registry.ENCODERS:
        raise UserError(
            "the run has your own encoder, which is not registered: in Python pass encoder=; on "
            f'the command line --import MODULE, one that has @isobatch.encoder("{name}") above it',
            field="encoder",
        )
    return registry.ENCODERS[name]


def made(factory: EncoderFactory, observations: ObservationLayout) -> nn.Module:
    """Call the user's function; a class that does not take a layout is told how to be given."""
    if not callable(factory):
        raise UserError(
            f"encoder must be a torch module or a function from ObservationLayout to one, got a "
            f"{type(factory).__name__}",
            field="encoder",
        )
    name = getattr(factory, "__name__", type(factory).__name__)
    try:
        module = factory(observations)
    except Exception as error:
        if not isinstance(factory, type):
            raise
        raise UserError(
            f"the encoder class {name} does not take an ObservationLayout ({one_line(error)}): "
            f"pass an instance, encoder={name}(...), or a function, encoder=lambda layout: "
            f"{name}(layout.vector)",
            field="encoder",
        ) from error
    if not isinstance(module, nn.Module):
        raise UserError(
            f"the encoder {name} must return a torch module, got a {type(module).__name__}",
            field="encoder",
        )
    return module
