"""What `quantise` says of models that do not run in int8."""

import pytest

from polyrank.service.cli.commands.quantise import require_able
from polyrank.service.cli.output import UsageError


@pytest.mark.parametrize(("architecture", "why"), [
    ("lexical", "a lexical model, which ranks by words alone; there is no transformer to quantise"),
    ("uni", "a uni-encoder does not run in int8"),
])  # fmt: skip
def test_what_has_no_int8_is_told_once(architecture: str, why: str) -> None:
    with pytest.raises(UsageError, match=f"^{why}$"):
        require_able(architecture)
