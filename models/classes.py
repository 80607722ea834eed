"""The classes of networks that checkpoints may name: those of this program, and a user's own, which the user names."""

import json
from collections.abc import Sequence
from inspect import signature
from pkgutil import resolve_name

import torch
from torch import nn

from models.cascade import Cascade
from models.diffusion import PREDICTION_TYPES
from models.heads import IdentityPredictor, Predictor, ZeroPredictor
from models.index import CheckpointError
from models.maxim import Maxim
from models.parts import ConfigMixin, ModelMixin
from models.slim_unet import SlimDenoiser, SlimPredictor
from models.u2net import U2NetPredictor
from models.unet import Denoiser, UNetPredictor

PREDICTORS = (U2NetPredictor, UNetPredictor, SlimPredictor, Maxim, Cascade, IdentityPredictor, ZeroPredictor)
NETWORKS = {network.__name__: network for network in (*PREDICTORS, Denoiser, SlimDenoiser)}
SIDE = 64  # of the image that a user's network is tried on, in pixels, before its stride is known to be larger

Classes = str | Sequence[str | type]


def known_networks(classes: Classes = ()) -> dict[str, type]:
    """The classes that a checkpoint may name, by name: those of this program, and these of a user.

    Args:
        classes: classes, or their paths such as mypred.MyPredictor; a string holds paths separated by commas.

    Raises:
        CheckpointError: there is no such class, or it is no network.
    """
    known = dict(NETWORKS)
    for given in classes.split(",") if isinstance(classes, str) else classes:
        try:
            found = resolve_name(given.strip()) if isinstance(given, str) else given
        except (ImportError, AttributeError, ValueError) as error:
            raise CheckpointError(
                f"class {given} cannot be imported ({error}): its folder must be on PYTHONPATH"
            ) from None
        if not (isinstance(found, type) and issubclass(found, ModelMixin) and issubclass(found, ConfigMixin)):
            raise CheckpointError(f"class {given} is neither a Predictor nor a denoiser (docs/extend.md)")
        known[found.__name__] = found
    return known


def require_network(network: nn.Module, part: str) -> None:
    """Check that a user's own network can be trained, stored and loaded again; those of this program are not looked at.

    Args:
        network: a predictor or a denoiser.
        part: which of them, as its flag is called.

    Raises:
        ValueError: says what the class lacks.
    """
    kind = type(network)
    if NETWORKS.get(kind.__name__) is kind:
        return
    path = f"model.{part}: {kind.__module__}.{kind.__name__}"
    if part == "predictor" and not isinstance(network, Predictor):
        raise ValueError(f"{path} is no models.heads.Predictor, which a predictor is derived from (docs/extend.md)")
    if not isinstance(network, ModelMixin) or not isinstance(network, ConfigMixin):
        raise ValueError(f"{path} is not derived from models.parts.ModelMixin and ConfigMixin (docs/extend.md)")
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
    side, training = max(SIDE, 2 * network.stride), network.training
    image, level = torch.zeros(1, 3, side, side), torch.full((1,), 0.5)
    inputs = (image,) if part == "predictor" else (image, image, level, image, torch.ones(1, 1, side, side))
    channels = (3, 4) if part == "predictor" else (3,)
    try:
        with torch.random.fork_rng():
            shape = tuple(network.eval()(*inputs).shape)
    except Exception as error:
        raise ValueError(f"{path} cannot be called as a {part} is: {' '.join(str(error).split())}") from error
    finally:
        network.train(training)
    if shape not in [(1, count, side, side) for count in channels]:
        raise ValueError(f"{path} makes {shape} of an image (1, 3, {side}, {side}): a {part} keeps the size")
