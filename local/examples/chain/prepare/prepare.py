"""Make points of two classes; those of the part `rare` follow a slightly different rule. Needs only Python."""

import argparse
import json
import os
import random
import time
from pathlib import Path

SHIFTS = {"common": 0.0, "rare": 0.5}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--samples", type=int, default=400)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=0.0, help="how much longer it takes, to look at it")
    given = parser.parse_args()
    time.sleep(given.seconds)
    chance, folder = random.Random(given.seed), Path(os.environ["SM_OUTPUT_DATA_DIR"])
    for part, shift in SHIFTS.items():
        points = [(chance.uniform(-1, 1), chance.uniform(-1, 1)) for _ in range(given.samples)]
        rows = [[x, y, int(x + 2 * y > shift)] for x, y in points]
        (folder / f"{part}.json").write_text(json.dumps(rows))
        print(f"{part}: {len(rows)} points", flush=True)


main()
