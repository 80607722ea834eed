"""The networks that checkpoints may name, made by their names: this program's, and a user's own that the user names."""

import json
import textwrap
from collections.abc import Sequence
from inspect import signature
from pkgutil import resolve_name

import torch
from torch import Tensor, nn

from deblur.hub import CheckpointError
from deblur.models.diffusion import PREDICTION_TYPES
from deblur.models.networks.base import CASCADE, Cascade, IdentityPredictor, Predictor, ZeroPredictor
from deblur.models.networks.maxim import Maxim
from deblur.models.networks.mixins import ConfigMixin, ModelMixin
from deblur.models.networks.nafnet import SlimDenoiser, SlimPredictor
from deblur.models.networks.u2net import U2NetPredictor
from deblur.models.networks.unet import Denoiser, UNetPredictor

PREDICTORS = (U2NetPredictor, UNetPredictor, SlimPredictor, Maxim, Cascade, IdentityPredictor, ZeroPredictor)
NETWORKS = {network.__name__: network for network in (*PREDICTORS, Denoiser, SlimDenoiser)}
LEAST_TRIED_SIDE = 64  # pixels, of the image that a user's network is tried on

Classes = str | Sequence[str | type]


def is_of_this_program(network: nn.Module) -> bool:
    """Whether a network's class is one of NETWORKS."""
    return NETWORKS.get(type(network).__name__) is type(network)


def known_networks(classes: Classes = ()) -> dict[str, type]:
    """The classes that a checkpoint may name, by name: those of this program, and these of a user.

    Args:
        classes: classes, or their paths such as mypred.MyPredictor; a string holds paths separated by commas.

    Raises:
        CheckpointError: there is no such class, or it is no network.
    """
    by_name = dict(NETWORKS)
    for given in classes.split(",") if isinstance(classes, str) else classes:
        try:
            network_class = resolve_name(given.strip()) if isinstance(given, str) else given
        except (ImportError, AttributeError, ValueError) as error:
            raise CheckpointError(
                f"class {given} cannot be imported ({error}): its folder must be on PYTHONPATH"
            ) from None
        if not (
            isinstance(network_class, type)
            and issubclass(network_class, ModelMixin)
            and issubclass(network_class, ConfigMixin)
        ):
            raise CheckpointError(f"class {given} is neither a Predictor nor a denoiser (docs/extend.md)")
        by_name[network_class.__name__] = network_class
    return by_name


def network_of(by_name: dict[str, type], name: str, config: dict, state: dict[str, Tensor], what: str) -> nn.Module:
    """A network of a class of this name with these arguments and weights; `what` it is in messages."""
    if name not in by_name:
        raise CheckpointError(
            f"{what} holds a network of unknown class {name!r}; known are {', '.join(by_name)}; name your own"
            f" class with --classes MODULE.{name} (docs/extend.md)"
        )
    try:
        network = _build(by_name, name, config)
    except (TypeError, ValueError, LookupError, ArithmeticError, RuntimeError) as error:
        reason = textwrap.shorten(str(error), 200)
        raise CheckpointError(f"{what} has a config that {name} does not accept: {reason}") from error
    if not state and network.state_dict():
        raise CheckpointError(f"{what} has no weights: the checkpoint is incomplete")
    load_weights(network, state, what)
    return network


def _build(by_name: dict[str, type], name: str, config: dict) -> nn.Module:
    """A network of a class of this name with these arguments; a cascade's networks are described as one is."""
    if by_name[name] is Cascade:
        described = config["parts"]
        parts = [_build(by_name, described[part]["class"], described[part]["config"]) for part in CASCADE]
        return Cascade(*parts, config["frozen"])
    taken = signature(by_name[name].__init__).parameters  # diffusers and former versions store others, too
    return by_name[name].from_config({key: value for key, value in config.items() if key in taken})


def load_weights(network: nn.Module, state: dict[str, Tensor], what: str) -> None:
    """Load weights. Raises CheckpointError, naming the first differing keys, if they are not those of the network."""
    try:
        network.load_state_dict(state)
    except RuntimeError as error:  # of several lines, the first of which names the class
        difference = textwrap.shorten(str(error).splitlines()[1], 200)
        raise CheckpointError(f"{what} is of another architecture: {difference}") from None


def require_network(network: nn.Module, part: str) -> None:
    """Check that a user's own network can be trained, stored and loaded again; those of this program are not looked at.

    Args:
        network: a predictor or a denoiser.
        part: which of them, as its flag is called.

    Raises:
        ValueError: says what the class lacks.
    """
    if is_of_this_program(network):
        return
    kind = type(network)
    path = f"model.{part}: {kind.__module__}.{kind.__name__}"
    if part == "predictor" and not isinstance(network, Predictor):
        raise ValueError(
            f"{path} is no deblur.models.networks.base.Predictor, which a predictor is derived from (docs/extend.md)"
        )
    if not isinstance(network, ModelMixin) or not isinstance(network, ConfigMixin):
        raise ValueError(
            f"{path} is not derived from deblur.models.networks.base.ModelMixin and ConfigMixin (docs/extend.md)"
        )
    if kind.__name__ in NETWORKS:
        raise ValueError(f"{path} has the name of a class of this program, so its checkpoint would not load: rename it")
    config = getattr(network, "_internal_dict", None)
    if config is None or not signature(kind.__init__).parameters.keys() - {"self"} <= config.keys():
        raise ValueError(f"{path}.__init__ lacks @register_to_config, so its checkpoint would not load")
    try:
        json.dumps(dict(config))
    except TypeError as error:
        raise ValueError(f"{path} has an argument that a checkpoint cannot store: {error}") from None
    needed = {"receptive_field", "stride"} | ({"prediction_type"} if part == "denoiser" else set())
    if lacking := sorted(name for name in needed if not hasattr(network, name)):
        raise ValueError(f"{path} lacks the attribute {lacking[0]} (docs/extend.md)")
    if part == "denoiser" and network.prediction_type not in PREDICTION_TYPES:
        raise ValueError(f"{path} has a prediction_type that is none of {', '.join(PREDICTION_TYPES)}")
    _try(network, part, path)


@torch.no_grad()
def _try(network: nn.Module, part: str, path: str) -> None:
    """Call a network on one black image, in evaluation mode and without advancing the random generators."""
    side, training = max(LEAST_TRIED_SIDE, 2 * network.stride), network.training
    image, level = torch.zeros(1, 3, side, side), torch.full((1,), 0.5)
    inputs = (image,) if part == "predictor" else (image, image, level, image, torch.ones(1, 1, side, side))
    try:
        with torch.random.fork_rng():
            output = network.eval()(*inputs)
    except Exception as error:
        raise ValueError(f"{path} cannot be called as a {part} is: {' '.join(str(error).split())}") from error
    finally:
        network.train(training)
    outputs = [output] if isinstance(output, Tensor) or part == "denoiser" else list(output)
    shapes = [tuple(one.shape) for one in outputs]
    if shapes not in ([(1, 3, side, side)], [(1, 3, side, side), (1, 1, side, side)]):
        made = " and ".join(map(str, shapes))
        raise ValueError(
            f"{path} makes {made} of an image (1, 3, {side}, {side}): a {part} keeps the size (docs/extend.md)"
        )
