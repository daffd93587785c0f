"""`quantise`: calibrate a checkpoint for int8, prove what that changes, and write both into it."""

from dataclasses import replace
from pathlib import Path

from polyrank.model.checkpoint.card import CARD_FILE, with_quantisation
from polyrank.model.checkpoint.files import CONFIG_FILE, read_config, write_config
from polyrank.model.checkpoint.quantised import QUANTISED_FILE, quantisation_bytes, read_quantisation
from polyrank.model.config import QuantisationConfig
from polyrank.model.durable import write_atomically
from polyrank.model.inference.runners import FLOAT32, INT8, OPENVINO, TORCH
from polyrank.model.inputs import read_input
from polyrank.model.quantisation.calibration import calibrated
from polyrank.model.quantisation.needs import Split
from polyrank.model.quantisation.proof import Report, proof
from polyrank.model.rankers.networks import load_network

_KEPT = "surrogateescape"  # what is no UTF-8 in a card stays as it is


def quantise(checkpoint: Path, examples: Split, report: Report) -> QuantisationConfig:
    """Calibrate a checkpoint for int8, compare it with float32, and write what was found and its proof into it.

    Nothing is written before the end. An int8 that loses too much is written, too: `auto` does not take it. Raises
    InvalidInput if NNCF or OpenVINO cannot do it here.
    """
    ranker = load_network(checkpoint, "cpu", TORCH, FLOAT32)
    content = quantisation_bytes(calibrated(ranker, examples.calibration, report))
    found = read_quantisation(content)
    ours = load_network(checkpoint, "cpu", OPENVINO, INT8, quantisation=found)
    reference = load_network(checkpoint, "cpu", OPENVINO, FLOAT32)
    proved = proof(ours, reference, examples.lists, found.sha256, report)
    write_atomically(checkpoint / QUANTISED_FILE, content)
    config = replace(read_config(checkpoint / CONFIG_FILE), quantisation=proved)
    write_config(checkpoint / CONFIG_FILE, config)
    card = checkpoint / CARD_FILE
    if card.is_file():
        before = read_input(card).decode(errors=_KEPT)
        write_atomically(card, with_quantisation(before, proved).encode(errors=_KEPT))
    return proved
