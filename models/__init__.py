"""The method, in tensors alone: noise schedules, diffusion, samplers, losses and the networks."""
