"""What is calibrated on, and what proves it."""

import pytest

from polyrank.model.errors import InvalidInput
from polyrank.model.inference import openvino_backend
from polyrank.model.quantisation import needs
from polyrank.model.quantisation.needs import split
from polyrank.model.text.assembly import Conversation
from polyrank.model.text.dialogues import Dialogue


def examples(file: str, conversations: int, turns: int = 3) -> list[Dialogue]:
    return [
        Dialogue(Conversation.of(f"{file} {at} {turn}"), f"reply {file} {at} {turn}", dialogue=f"{at}")
        for at in range(conversations)
        for turn in range(turns)
    ]


@pytest.fixture(autouse=True)
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(needs, "CALIBRATED_ON", 10)


def test_no_conversation_is_on_both_sides() -> None:
    files = [examples("a", 12), examples("b", 12)]
    found = split(files, 30, seed=1)
    assert (len(found.calibration), len(found.lists)) == (10, 30)
    said = {each.response.rsplit(" ", 1)[0] for each in found.calibration}
    assert len(said) == 10, "one example of each"
    assert not said & {each.response.rsplit(" ", 1)[0] for each in found.lists}
    assert len({each.dialogue for each in found.lists}) == 10, "whole ones, told apart between files"


def test_lists_are_drawn_from_their_own_file_where_there_are_none() -> None:
    given = [Dialogue(Conversation.of(f"{at}"), "yes", ("no", "yes"), 1, dialogue=f"{at}") for at in range(20)]
    for each in split([examples("a", 12), given], 30, seed=0).lists:
        assert each.candidates[each.label] == each.response
        assert len(each.candidates) == (2 if each.response == "yes" else 20)
        assert each.response == "yes" or all(text.startswith("reply a") for text in each.candidates)


def test_the_seed_decides() -> None:
    files = [examples("a", 30)]
    assert split(files, 40, seed=1) == split(files, 40, seed=1) != split(files, 40, seed=2)


def test_too_few_lists_are_refused() -> None:
    why = r"^12 conversations, of which 10 are to calibrate on, leave 6 lists for the proof, not 7; give more data, or "
    with pytest.raises(InvalidInput, match=why):
        split([examples("a", 12)], 7, seed=0)
    assert len(split([examples("a", 12)], 6, seed=0).lists) == 6
    with pytest.raises(InvalidInput, match=r"^3 conversations, of which 3 are"):
        split([examples("a", 3)], 1, seed=0)


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(needs, "find_spec", lambda name: None if name == "nncf" else object())
    with pytest.raises(InvalidInput, match=r"^polyrank quantise needs nncf: pip install 'polyrank\[quantise\]'$"):
        needs.require_equipped()


def test_a_processor_without_int8_is_told_before_anything_is_calibrated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(needs, "find_spec", lambda name: object())
    monkeypatch.setattr(openvino_backend, "is_supported", lambda precision: precision != "int8")
    with pytest.raises(InvalidInput, match=r"^this processor does not compute in int8; run polyrank quantise on one"):
        needs.require_equipped()
