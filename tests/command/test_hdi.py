"""`mhanw hdi`: what it prints and writes for a checkpoint, and what it says of bad calls."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from books import call_in
from safetensors.numpy import save_file

from mhanw import CallError, checkpoints, hdi
from mhanw_core import diversity, subspaces


def bert(folder: Path, heads: int = 4, layers: int = 2, width: int = 16, spoil: Any = None) -> Path:
    """A folder with BERT-named random weights."""
    rng, tensors = np.random.default_rng(0), {}
    for layer in range(layers):
        for name in ("query", "key"):
            stem = f"encoder.layer.{layer}.attention.self.{name}"
            tensors[f"{stem}.weight"] = rng.standard_normal((width, width)).astype(np.float32)
            tensors[f"{stem}.bias"] = np.zeros(width, np.float32)
    if spoil is not None:
        spoil(tensors)
    folder.mkdir()
    save_file(tensors, folder / "model.safetensors")
    config = {"model_type": "bert", "num_attention_heads": heads, "hidden_size": width}
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def test_the_numbers_are_the_librarys(tmp_path: Path) -> None:
    folder = bert(tmp_path / "tiny")
    found = hdi.measure(str(folder), seed=3)
    with checkpoints.open_checkpoint(folder) as opened:
        for layer, measured in zip(opened.layers, found.layers, strict=True):
            expected = diversity.report(layer.W_K(), layer.W_Q(), seed=3)
            assert measured.report == expected
            assert measured.report is not None
            np.testing.assert_array_equal(
                measured.report.overlaps, subspaces.pairwise_overlaps(layer.W_K())
            )


def test_table_summary_json_csv_and_picture(tmp_path: Path) -> None:
    bert(tmp_path / "tiny")
    args = ["hdi", "tiny", "--json", "a.json", "--csv", "a.csv", "--plot", "a.png"]
    result = call_in(tmp_path, *args)
    assert result.exit_code == 0, result.stderr
    assert "2 layers" in result.stdout
    assert "does not say that a head can be removed" in " ".join(result.stdout.split())
    (model,) = json.loads((tmp_path / "a.json").read_text())["models"]
    assert [layer["n_heads"] for layer in model["layers"]] == [4, 4]
    rows = list(csv.DictReader(io.StringIO((tmp_path / "a.csv").read_text())))
    assert len(rows) == 2 * 6
    mean = np.mean([float(row["overlap"]) for row in rows[:6]])
    assert 1 - mean == pytest.approx(model["layers"][0]["hdi"], abs=1e-5)
    assert (tmp_path / "a.png").read_bytes()[:4] == b"\x89PNG"


def test_streams_hold_the_data_alone(tmp_path: Path) -> None:
    bert(tmp_path / "tiny")
    result = call_in(tmp_path, "hdi", "tiny", "--layers", "1", "--json", "-")
    assert len(json.loads(result.stdout)["models"][0]["layers"]) == 1
    assert "tiny: 1 layer," in " ".join(result.stderr.split())


def test_the_closest_pair_is_found(tmp_path: Path) -> None:
    def clone(tensors: dict[str, Any]) -> None:
        key = tensors["encoder.layer.1.attention.self.key.weight"]
        key[12:] = key[4:8] + 0.1 * key[12:]

    found = hdi.measure(str(bert(tmp_path / "tiny", spoil=clone)))
    assert "L1H1–H3" in hdi.summary(found)


def shared_directions(tensors: dict[str, Any]) -> None:
    for name, value in tensors.items():
        if name.endswith("key.weight"):
            value.reshape(-1, 4, value.shape[1])[:] *= 0.2
            value.reshape(-1, 4, value.shape[1])[:] += value[:4]


@pytest.mark.parametrize("few", [True, False])
def test_random_layers_are_not_said_to_share_directions(
    tmp_path: Path, few: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if few:
        monkeypatch.setattr(hdi, "LIGHT", 0)
    random = hdi.summary(hdi.measure(str(bert(tmp_path / "random", layers=40))))
    assert "of 40 lie below" in random
    assert f"(by chance, about {3 if few else 1} would)." in random
    made = bert(tmp_path / "shared", layers=40, spoil=shared_directions)
    assert "beyond those of the layer." in hdi.summary(hdi.measure(str(made)))


def test_clones_cannot_be_dealt(tmp_path: Path) -> None:
    def clone(tensors: dict[str, Any]) -> None:
        for name, value in tensors.items():
            if name.endswith("key.weight"):
                value[4:] = np.tile(value[:4], (3, 1))

    found = hdi.summary(hdi.measure(str(bert(tmp_path / "clones", spoil=clone))))
    assert "No layer could be dealt: heads share columns." in found


def test_several_models_are_compared(tmp_path: Path) -> None:
    bert(tmp_path / "one")
    bert(tmp_path / "two", heads=2)
    result = call_in(tmp_path, "hdi", "one", "two", "--csv", "-")
    assert {row["path"] for row in csv.DictReader(io.StringIO(result.stdout))} == {"one", "two"}


def test_one_key_head_has_no_pairs(tmp_path: Path) -> None:
    bert(tmp_path / "tiny", heads=1)
    result = call_in(tmp_path, "hdi", "tiny")
    assert result.exit_code == 0
    assert "there is nothing to compare" in " ".join(result.stdout.split())


def zero(tensors: dict[str, Any]) -> None:
    tensors["encoder.layer.0.attention.self.key.weight"][3] = 0


def infinite(tensors: dict[str, Any]) -> None:
    tensors["encoder.layer.0.attention.self.key.weight"][3, 2] = np.inf


@pytest.mark.parametrize(
    ("args", "spoil", "message"),
    [
        (["nowhere"], None, "nowhere is neither a model file nor a folder"),
        (["tiny", "--layers", "7"], None, "tiny has layers 0 to 1"),
        (["tiny", "--layers", "a-b"], None, "is not a number or a range like 5-7"),
        (["tiny", "--plot", "a.txt"], None, "must end in .png"),
        (["tiny", "tiny", "--plot", "a.png"], None, "--plot draws one model"),
        (["tiny", "--csv", "no/a.csv"], None, "cannot be written"),
        (["tiny", "--heads", "5"], None, "5"),
        (["tiny"], zero, "head 0 of W has 4 columns of numerical rank 3"),
        (["tiny"], infinite, "infinite"),
    ],
)
def test_bad_calls_get_a_sentence(
    tmp_path: Path, args: list[str], spoil: Any, message: str
) -> None:
    bert(tmp_path / "tiny", spoil=spoil)
    result = call_in(tmp_path, "hdi", *args)
    assert result.exit_code == 2
    assert message in " ".join(result.stderr.split())
    assert "Traceback" not in result.stderr
    assert not list(tmp_path.glob("a.*"))


def test_a_hub_name_that_is_not_given_is_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    import huggingface_hub

    def refuse(*_: Any, **__: Any) -> None:
        raise ConnectionError

    monkeypatch.setattr(huggingface_hub, "snapshot_download", refuse)
    with pytest.raises(CallError, match="the hub did not give it: ConnectionError"):
        hdi.measure("someone/something")
