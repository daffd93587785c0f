"""Makes the parts of a model ready to run: from what is kept of them on disk, or by a back-end; its work is kept."""

import logging

from polyrank.model.errors import InvalidInput
from polyrank.model.inference import openvino_backend
from polyrank.model.inference.backend import Backend, Ready
from polyrank.model.inference.choice import Chooser
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

    def __init__(self, backend: Backend, chooser: Chooser | None = None, disk: DiskCache | None = None) -> None:
        """`chooser` chooses between several back-ends, of which `backend` is the safest; None: there is only that.

        `disk` is where compiled parts are kept; None: nowhere.
        """
        self.token_budget = backend.token_budget
        self._backend, self._chooser, self._disk = backend, chooser, disk

    def compile(self, part: LazyPart) -> Ready:
        """Make a part ready. Its torch module is built only if nothing is kept of it, or if torch is to run it.

        Raises:
            InvalidInput: the back-end cannot run it.
            ModelError: its network cannot be read.
        """
        if self._disk is None or not part.identity:
            return self._made(part)
        kept = Kept(self._disk, part)
        if (ready := self._found(part, kept)) is None:
            with self._disk.alone():  # workers start together: one makes it, undisturbed, and the others find it
                ready = self._found(part, kept) or self._made_and_kept(part, kept)
        return ready

    @property
    def choice(self) -> Choice | None:
        """How the back-end was chosen; None: there was no choice."""
        return self._chooser.choice if self._chooser else None

    def _found(self, part: LazyPart, kept: Kept) -> Ready | None:
        """Make a part ready by what is kept; None where that is not enough."""
        runner = self._known(part, kept)
        if runner is None:
            return None
        if runner.backend == TORCH:
            module = part.module()
            return Ready(self._by(runner).compile(module), Sizes.of(module.backbone()), runner)
        return _restored(kept, runner)

    def _known(self, part: LazyPart, kept: Kept) -> Runner | None:
        """Return what is to run the part; None: it must be chosen."""
        if self._chooser is None:
            return self._backend.runner
        self._chooser.learn(part.name, kept.findings(tuple(self._chooser.backends)))
        return self._chooser.known(part.name)

    def _by(self, runner: Runner) -> Backend:
        return self._chooser.backends[runner] if self._chooser else self._backend

    def _made(self, part: LazyPart) -> Ready:
        module, runner = part.module(), self._backend.runner
        if self._chooser is None:
            forward = self._backend.compile(module)
        else:
            runner, forward = self._chooser.choose(part.name, module)
            fields = {**runner._asdict(), "part": part.name, "ms": self._chooser.choice.milliseconds}
            log.info("back-end chosen", extra={"fields": fields})
        return Ready(forward, Sizes.of(module.backbone()), runner)

    def _made_and_kept(self, part: LazyPart, kept: Kept) -> Ready:
        ready = self._made(part)
        if self._chooser is not None:
            kept.keep_findings(tuple(self._chooser.backends), self._chooser.findings(part.name))
        if (pieces := openvino_backend.exported(ready.run)) is not None:
            kept.keep_model(ready.runner, ready.sizes, pieces)
        return ready


def _restored(kept: Kept, runner: Runner) -> Ready | None:
    """Make a part ready from what is kept of it; None where nothing is, or it cannot be used."""
    found = kept.model(runner)
    if found is None:
        return None
    try:
        forward = openvino_backend.imported(found.pieces, found.sizes, runner.precision)
    except InvalidInput as error:
        log.warning("a kept model cannot be used and is made anew", extra={"fields": {"why": str(error)}})
        kept.drop_model(runner)
        return None
    return Ready(forward, found.sizes, runner)
