from __future__ import annotations

from pathlib import Path

import torch
import torch.distributed.checkpoint as dcp

from trn_validate.records import Saved
from trn_validate.workload.saved import saved


def save(folder: Path, **state: object) -> None:
    dcp.save(dict(state), checkpoint_id=folder, no_dist=True)


def test_each_checkpoint_tells_its_entries_and_their_elements(tmp_path: Path) -> None:
    weight = torch.zeros(3, 4)
    save(tmp_path / "step-3", **{"norm.weight": weight, "optimizer": {"state": {"a": weight[0]}}})
    save(tmp_path / "step-6", **{"norm.weight": weight, "train_state": b"step 6"})
    assert list(saved(tmp_path)) == [
        Saved(step=3, elements={"norm.weight": 12, "optimizer.state.a": 4}),
        Saved(step=6, elements={"norm.weight": 12, "train_state": 0}),
    ]


def test_a_folder_without_an_index_tells_nothing(tmp_path: Path) -> None:
    (tmp_path / "step-3").mkdir()
    (tmp_path / "step-3/model.safetensors").write_bytes(b"an export")
    assert list(saved(tmp_path)) == []
    assert list(saved(tmp_path / "absent")) == []
