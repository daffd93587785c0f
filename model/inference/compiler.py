"""Makes the parts of a model ready to run: from what is kept of them on disk, or by a back-end; its work is kept."""

import logging

from polyrank.model.errors import InvalidInput
from polyrank.model.inference import openvino_backend
from polyrank.model.inference.backend import Backend, Ready
from polyrank.model.inference.choice import AutomaticBackend
from polyrank.model.inference.disk_cache import DiskCache
from polyrank.model.inference.kept import Kept
from polyrank.model.inference.names import TORCH, Choice, Runner
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
            return self._compiled(part, None)
        kept = Kept(self._disk, part)
        runner = self._known(kept)
        return _restored(kept, runner) or self._compiled_and_kept(part, runner, kept)

    @property
    def choice(self) -> Choice | None:
        """How the back-end was chosen; None: there was no choice."""
        return self._backend.choice

    def _known(self, kept: Kept) -> Runner | None:
        """Return what is to run the part; None: it must be chosen."""
        if not isinstance(self._backend, AutomaticBackend):
            return self._backend.runner
        if (found := kept.choice(self._backend.names)) is None:
            return None
        self._backend.remember(*found)
        return found[0]

    def _compiled(self, part: LazyPart, runner: Runner | None) -> Ready:
        """Compile a part by the back-end that is known to be the best, or choose it."""
        module, backend = part.module(), self._backend
        if not isinstance(backend, AutomaticBackend):
            runner, forward = backend.runner, backend.compile(module)
        elif runner is None:
            runner, forward = backend.compile_best(module)
        else:
            forward = backend.by(runner).compile(module)
        return Ready(forward, Sizes.of(module.backbone()), runner)

    def _compiled_and_kept(self, part: LazyPart, known: Runner | None, kept: Kept) -> Ready:
        refused = set(self.choice.refused) if self.choice else set()
        ready = self._compiled(part, known)
        if known is None and isinstance(self._backend, AutomaticBackend):
            new = {which: why for which, why in self._backend.choice.refused.items() if which not in refused}
            kept.keep_choice(self._backend.names, ready.runner, Choice(self._backend.choice.milliseconds, new))
        if (pieces := openvino_backend.exported(ready.run)) is not None:
            kept.keep_model(ready.runner, ready.sizes, pieces)
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
