"""A script in the manner of nanoGPT: it knows nothing of Rerail and overwrites one checkpoint in place."""

import os
import pickle
import time

out_dir = "out"
eval_interval = 10
max_iters = 60
init_from = "scratch"
step_seconds = 0.05
crash_at = -1
exec(open("configurator.py").read())  # noqa: SIM115

os.makedirs(out_dir, exist_ok=True)
iter_num, weights = 0, 1.0
if init_from == "resume":
    print(f"Resuming training from {out_dir}")
    with open(os.path.join(out_dir, "ckpt.pt"), "rb") as file:
        iter_num, weights = pickle.load(file)
while True:
    if iter_num % eval_interval == 0 and iter_num:
        with open(os.path.join(out_dir, "ckpt.pt"), "wb") as file:
            pickle.dump((iter_num, weights), file)
        print(f"saving checkpoint to {out_dir}")
    if iter_num == crash_at:
        raise KeyError(iter_num)
    print(f"iter {iter_num}: loss {weights:.4f}", flush=True)
    time.sleep(step_seconds)
    iter_num, weights = iter_num + 1, weights * 0.99
    if iter_num > max_iters:
        break
