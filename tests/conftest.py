"""Tests run side by side on few cores: one thread each, also in the processes that they start."""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch

torch.set_num_threads(1)
