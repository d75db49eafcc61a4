"""Trains on the same data uninterrupted and cut several times, and prints both as JSON."""

from __future__ import annotations

import json
import sys

from loader_data import Noisy, collate, streams, take

from outlast_worker.batches import Batches, batches

LENGTH, SIZE = 22, 4


def main(method: str, cuts: list[int], total: int) -> None:
    def made(workers: int) -> Batches:
        return batches(Noisy(LENGTH), SIZE, workers=workers, seed=5, start_method=method, collate_fn=collate)

    whole = take(made(0), total)
    before = streams()
    pieces, state = [], None
    for begin, end in zip([0, *cuts], [*cuts, total], strict=True):
        data = made(2)
        if state is not None:
            data.load_state_dict(state)
        pieces += take(data, end - begin)
        state = json.loads(json.dumps(data.state_dict()))
        data.close()
    print(json.dumps({"whole": whole, "pieces": pieces, "undisturbed": streams() == before}))


if __name__ == "__main__":
    main(sys.argv[1], [int(cut) for cut in sys.argv[2].split(",")], int(sys.argv[3]))
