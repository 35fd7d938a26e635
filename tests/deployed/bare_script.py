"""A job that dies without a failure file: SageMaker knows its exit code, and only its log names the cause."""

import os
import sys

PEER = "[rank1]:[E ProcessGroupNCCL.cpp:616] [Rank 1] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=4)"
CAUSES = {
    "oom": "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB",
    "infrastructure": "torch.distributed.DistBackendError: NCCL error: unhandled system error, NCCL version 2.21.5",
    "user_code": "KeyError: 'eos'",
}

for step in range(10):
    print(f"step {step} loss 2.3", flush=True)
print(
    "Traceback (most recent call last):",
    '  File "train.py", line 9, in <module>',
    "    main()  # falls back when CUDA out of memory, retries on ECC error",
    CAUSES[os.environ["DIES_OF"]],
    PEER,
    sep="\n",
    file=sys.stderr,
    flush=True,
)
sys.exit(1)
