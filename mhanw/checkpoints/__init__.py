"""Reads the key and query maps of every attention head out of transformer checkpoints."""

from __future__ import annotations

from mhanw.checkpoints.families import Checkpoint, Layer, open_checkpoint
from mhanw.checkpoints.formats import CheckpointError

__all__ = ["Checkpoint", "CheckpointError", "Layer", "open_checkpoint"]
