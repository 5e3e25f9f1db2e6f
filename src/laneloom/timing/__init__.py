"""A timing model of RDNA and CDNA that the emulator's trace drives. Its times are predicted, never measured."""

from __future__ import annotations

from .machine import Machine, machine_of
from .model import predict
from .prediction import KernelPrediction, Prediction

__all__ = ["KernelPrediction", "Machine", "Prediction", "machine_of", "predict"]
