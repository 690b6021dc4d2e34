"""Inference of GPU memory that the driver's process lists do not explain."""

from otel_gpu.attribution.hidden.candidates import Candidate, CandidateId, Evidence
from otel_gpu.attribution.hidden.inference import HiddenMemory, HiddenSplit, Inferred

__all__ = ["Candidate", "CandidateId", "Evidence", "HiddenMemory", "HiddenSplit", "Inferred"]
