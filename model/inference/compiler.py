"""Makes the parts of a model ready to run: from what is kept of them on disk, or by a back-end; its work is kept."""

import logging

from polyrank.model.errors import InvalidInput
from polyrank.model.inference import openvino_backend
from polyrank.model.inference.backend import Backend, Ready
from polyrank.model.inference.choice import AutomaticBackend
from polyrank.model.inference.disk_cache import DiskCache
from polyrank.model.inference.kept import Kept
from polyrank.model.inference.names import TORCH, Runner
from polyrank.model.inference.network import LazyPart
from polyrank.model.inference.parts import Sizes

log = logging.getLogger(__name__)


class Compiler:
    """Makes the parts of one model ready to run.

    Attributes:
        token_budget: how many tokens a batch should have at most, padding included.
    """

    def __init__(self, backend: Backend, disk: DiskCache | None = None) -> None:
        """`disk` is where compiled parts are kept; None: nowhere."""
        self.token_budget = backend.token_budget
        self._backend, self._disk = backend, disk

    def compile(self, part: LazyPart) -> Ready:
        """Make a part ready. Its torch module is built only if nothing is kept of it, or if torch is to run it.

        Raises:
            InvalidInput: the back-end cannot run it.
            ModelError: its network cannot be read.
        """
        if self._disk is None or not part.identity:
            return self._compiled(part)
        kept = Kept(self._disk, part)
        return _restored(kept, self._known(kept)) or self._compiled_and_kept(part, kept)

    def _known(self, kept: Kept) -> Runner | None:
        """Return what is to run the part; None: it must be measured."""
        if not isinstance(self._backend, AutomaticBackend):
            return self._backend.runner
        if self._backend.choice is None and (choice := kept.choice(self._backend.candidates)):
            self._backend.remember(choice)
        return self._backend.choice and self._backend.choice.runner

    def _compiled(self, part: LazyPart) -> Ready:
        module = part.module()
        forward = self._backend.compile(module)
        return Ready(forward, Sizes.of(module.backbone()), self._backend.runner)

    def _compiled_and_kept(self, part: LazyPart, kept: Kept) -> Ready:
        ready = self._compiled(part)
        if isinstance(self._backend, AutomaticBackend) and self._backend.choice is not None:
            kept.keep_choice(self._backend.candidates, self._backend.choice)
        if (made := openvino_backend.exported(ready.run)) is not None:
            runner, pieces = made
            kept.keep_model(runner, ready.sizes, pieces)
        return ready


def _restored(kept: Kept, runner: Runner | None) -> Ready | None:
    """Make a part ready from what is kept of it; None where nothing is, or it cannot be used."""
    found = None if runner is None or runner.backend == TORCH else kept.model(runner)
    if runner is None or found is None:
        return None
    try:
        forward = openvino_backend.imported(found.pieces, found.sizes, runner.precision)
    except InvalidInput as error:
        log.warning("a kept model cannot be used and is made anew", extra={"fields": {"why": str(error)}})
        return None
    return Ready(forward, found.sizes, runner)
