"""Failure reasons of SageMaker, one for each cause that the core's tests use."""

NODE_LOST = "InternalServerError: We encountered an internal error.  Please try again."
NO_MACHINES = "CapacityError: Unable to provision requested ML compute capacity."
ECC = "AlgorithmError: RuntimeError: CUDA error: uncorrectable ECC error encountered, exit code: 1"
OOM = "AlgorithmError: torch.OutOfMemoryError: CUDA out of memory., exit code: 1"
KILLED = "AlgorithmError: , exit code: 137"
