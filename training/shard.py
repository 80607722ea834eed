"""FSDP: weights, averages, gradients and the optimizer's moments spread over the processes."""

from collections.abc import Mapping
from copy import deepcopy
from typing import Any

import torch
from lightning.pytorch.callbacks import WeightAveraging
from lightning.pytorch.strategies import DDPStrategy
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard, register_fsdp_forward_method
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.utils._pytree import tree_map

from models.lightning_module import Predict
from models.u2net import RSU
from models.unet import ResidualBlock


class Sharded(DDPStrategy):
    """`trainer.strategy: fsdp`: every process keeps its share of each weight, and of all that belongs to it.

    Torch's FSDP2 (`fully_shard`) on the networks, a block at a time: its weights are gathered for its forward and its
    backward pass, and freed after. For the rest this is DDP: the launcher, and checkpoints of whole tensors, with which
    a run can go on under another strategy or number of processes.
    """

    def configure_ddp(self) -> None:
        module = self.lightning_module
        mesh = init_device_mesh(self.root_device.type, (self.world_size,))
        for name in ("predictor", "denoiser"):
            network = getattr(module, name, None)
            # A frozen network has no backward pass, after which alone FSDP2 lets go of what it gathered.
            if network is not None and any(parameter.requires_grad for parameter in network.parameters()):
                module.copies[name] = deepcopy(network).cpu()
        averages = [c._average_model.module for c in module.trainer.callbacks if isinstance(c, WeightAveraging)]
        for owner in (module, *averages):
            for name in module.copies:
                _shard(getattr(owner, name), mesh)

    def lightning_module_state_dict(self) -> dict[str, Any]:
        return stored(super().lightning_module_state_dict())

    def optimizer_state(self, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
        return stored(super().optimizer_state(optimizer))

    def load_optimizer_state_dict(self, checkpoint: Mapping[str, Any]) -> None:
        for optimizer, state in zip(self.optimizers, checkpoint["optimizer_states"], strict=True):
            parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
            for number, values in state["state"].items():
                like = parameters[number]
                for name, value in values.items():
                    if isinstance(like, DTensor) and value.shape == like.shape:
                        local = value.to(like.device).contiguous()  # as the weights here lie
                        values[name] = distribute_tensor(local, like.device_mesh, like.placements, src_data_rank=None)
            optimizer.load_state_dict(state)


def gathered(value: Tensor) -> Tensor:
    """A sharded tensor whole, another as it is; all processes must call it."""
    return value.full_tensor() if isinstance(value, DTensor) else value


def own(values: list[Tensor]) -> list[Tensor]:
    """This process's part of every sharded tensor, without a copy."""
    return [value.to_local() if isinstance(value, DTensor) else value for value in values]


def stored(values: Any) -> Any:
    """A nest of values for a checkpoint: sharded tensors whole, in the first process's host memory; all must call it.

    One after the other, so that no device holds more than one of them. They lie in memory as they do where nothing is
    sharded: the fused AdamW takes moments to lie as their weights do.
    """

    def store(value: Any) -> Any:
        if not isinstance(value, DTensor):
            return value
        full = value.full_tensor()
        if torch.distributed.get_rank():
            return full.new_empty(0)
        return full.contiguous(memory_format=torch.channels_last).cpu() if full.dim() == 4 else full.cpu()

    return tree_map(store, values)


def gather(module: Predict) -> None:
    """Bring whole networks with the weights as they are now to the device, for sampling; all processes must call it."""
    for name, network in module.copies.items():
        network.to(module.device).eval()
        values = getattr(module, name).state_dict()
        for key, value in network.state_dict().items():
            value.copy_(gathered(values[key]))
        for buffer in network.buffers():  # batch statistics differ, and a checkpoint has the first process's
            if buffer.numel():
                torch.distributed.broadcast(buffer, 0)


def release(module: Predict) -> None:
    """Free the device of what `gather` brought there."""
    for network in module.copies.values():
        network.cpu()


def _shard(network: nn.Module, mesh: DeviceMesh) -> None:
    network.to(memory_format=torch.contiguous_format)  # weights in channels_last cannot be cut
    for block in network.modules():
        if isinstance(block, ResidualBlock | RSU):
            fully_shard(block, mesh=mesh)
    fully_shard(network, mesh=mesh)
    if hasattr(network, "estimates"):  # of predictors, what training calls
        register_fsdp_forward_method(network, "estimates")
    for part in network.modules():
        if isinstance(part, FSDPModule) and mesh.device_type == "cpu":
            part.set_force_sum_reduction_for_comms(True)  # gloo cannot average
