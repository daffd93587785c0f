"""What `quantise` says of models that do not run in int8."""

import pytest

from polyrank.service.cli.commands.quantise import require_able
from polyrank.service.cli.output import UsageError


def test_what_has_no_transformer_is_told_once() -> None:
    why = "a lexical model, which ranks by words alone; there is no transformer to quantise"
    with pytest.raises(UsageError, match=f"^{why}$"):
        require_able("lexical")
