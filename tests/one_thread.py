"""Loaded first by a server that processes are forked from: torch's threads do not survive a fork, so it starts none."""

import torch

torch.set_num_threads(1)
