"""Makes the parts of a model ready to run: from what is kept of them on disk, or by a back-end; its work is kept.

What is kept is found again only for an equal network on an equal machine: same weights, same code of this package, same
versions of the libraries, same processor and number of threads. What is kept was tried when it was made. To find it no
torch is imported.
"""

import hashlib
import importlib.metadata
import logging
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache
from importlib.util import find_spec
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any

from polyrank.model import processor, threads
from polyrank.model.errors import InvalidInput
from polyrank.model.inference import openvino_backend
from polyrank.model.inference.auto import DISTURBED_HOLDS_SECONDS, Chooser, Findings, Timing
from polyrank.model.inference.disk_cache import DiskCache
from polyrank.model.inference.network import Backend, LazyPart, Ready, Sizes
from polyrank.model.inference.runners import TORCH, Choice, Runner
from polyrank.model.progress import stage
from polyrank.model.registry import ARCHITECTURES

if TYPE_CHECKING:
    from polyrank.model.inference.parts import NetworkPart

_MODEL = Path(__file__).parents[1]
# What the numbers of a part come from, beside its weights.
_CODE = ("architectures", "checkpoint", "inference", "openvino_core.py", "text/chat.py", "text/chat.txt")
_LIBRARIES = ("openvino", "torch", "transformers")


class PartCache:
    """What is kept of one part, in a cache on disk."""

    def __init__(self, disk: DiskCache, part: LazyPart) -> None:
        self._disk, self._part = disk, part
        self._threads = threads.count()  # of now: torch, once it is imported, may tell another number

    def findings(self, names: Sequence[Runner]) -> Findings:
        """Return what was found out about back-ends to choose from, and holds; empty where nothing is kept."""
        speeds, verdicts = (self._disk.get(key) for key in self._findings_keys(names))
        timing = Timing({})
        now = time.time()  # which may have been set back since
        try:
            if speeds and ((until := speeds.facts["until"]) is None or now < until <= now + DISTURBED_HOLDS_SECONDS):
                timing = Timing({Runner(*runner): float(each) for *runner, each in speeds.facts["seconds"]}, until)
            tried = verdicts.facts["verdicts"] if verdicts else []
            return Findings(timing, {Runner(*runner): why for *runner, why in tried})
        except (LookupError, TypeError, ValueError):  # what is kept makes no sense
            return Findings(Timing({}), {})

    def keep_findings(self, names: Sequence[Runner], findings: Findings) -> None:
        """Keep what was found out about back-ends to choose from: speeds for the network, verdicts for the part."""
        speeds, verdicts = self._findings_keys(names)
        seconds, until = findings.timing
        self._disk.put(speeds, {"seconds": [[*runner, each] for runner, each in seconds.items()], "until": until})
        self._disk.put(verdicts, {"verdicts": [[*runner, why] for runner, why in findings.verdicts.items()]})

    def model(self, runner: Runner) -> tuple[Sizes, list[memoryview]] | None:
        """Return the part as compiled for a back-end and a precision; None: there is none. Raises InvalidInput.

        These are the sizes of its transformer, and the models that it consists of, as they were exported.
        """
        entry = self._disk.get(self._model_key(runner))
        if entry is None:
            return None
        try:
            sizes = entry.facts["bytes"]
            pieces = [entry.data[end - size : end] for size, end in zip(sizes, accumulate(sizes), strict=True)]
            return Sizes(*entry.facts["sizes"]), pieces
        except (LookupError, TypeError) as error:
            raise InvalidInput(f"what is kept with it makes no sense: {error!r}") from None

    def keep_model(self, runner: Runner, sizes: Sizes, pieces: Sequence[memoryview]) -> None:
        facts = {"sizes": list(sizes), "bytes": [len(piece) for piece in pieces]}
        self._disk.put(self._model_key(runner), facts, *pieces)

    def drop_model(self, runner: Runner) -> None:
        """Forget the part as compiled for a back-end and a precision."""
        self._disk.drop(self._model_key(runner))

    def _findings_keys(self, names: Sequence[Runner]) -> tuple[dict[str, Any], dict[str, Any]]:
        runners = [list(each) for each in names]
        return self._key({"timed": runners}), self._key({"tried": runners, "part": self._part.name})

    def _model_key(self, runner: Runner) -> dict[str, Any]:
        return self._key({"compiled for": list(runner), "part": self._part.name})

    def _key(self, what: Mapping[str, Any]) -> dict[str, Any]:
        here = {"versions": versions(), "code": [code(*_CODE), code_outside()], "processor": processor.identity()}
        return {"network": self._part.identity, "threads": self._threads, **what, **here}


@cache
def versions() -> dict[str, str]:
    """Return the versions of the libraries that run models, of those that are installed."""
    by_library = {}
    for name in _LIBRARIES:
        with suppress(importlib.metadata.PackageNotFoundError):
            by_library[name] = importlib.metadata.version(name)
    return by_library


@cache
def code(*places: str) -> str:
    """Digest files of polyrank.model, and the modules in its folders; "." is all of them."""
    digest = hashlib.sha256()
    paths = [_MODEL / place for place in places]
    modules = (path for place in paths for path in (place.rglob("*.py") if place.is_dir() else [place]))
    for path in sorted(modules):
        digest.update(f"{path.relative_to(_MODEL)}\n".encode() + path.read_bytes())
    return digest.hexdigest()


def code_outside() -> str:
    """Digest the modules of networks from outside polyrank that are registered."""
    digest = hashlib.sha256()
    for name in sorted({row.encoder.partition(":")[0] for row in ARCHITECTURES.values() if row.encoder}):
        if not name.startswith("polyrank."):
            spec = find_spec(name)
            digest.update(Path(spec.origin).read_bytes() if spec and spec.origin else name.encode())
    return digest.hexdigest()


log = logging.getLogger(__name__)


class Compiler:
    """Makes the parts of one model ready to run.

    `token_budget`: how many tokens a batch should have at most, padding included.
    """

    def __init__(self, backend: Backend, chooser: Chooser | None = None, disk: DiskCache | None = None) -> None:
        """`chooser` chooses between several back-ends, of which `backend` is the safest; None: there is only that.

        `disk` is where compiled parts are kept; None: nowhere.
        """
        self.token_budget = backend.token_budget
        self._backend, self._chooser, self._disk = backend, chooser, disk

    def compile(self, part: LazyPart) -> Ready:
        """Make a part ready. Its torch module is built only if nothing is kept of it, or if torch is to run it.

        Raises InvalidInput if the back-end cannot run it.
        """
        with stage(f"making the encoder of {part.name} ready"):
            if self._disk is None or not part.identity:
                return self._compile_anew(part)
            part_cache = PartCache(self._disk, part)
            if (ready := self._from_cache(part, part_cache)) is None:
                with self._disk.alone():  # workers start together: one makes it, undisturbed, and the others find it
                    ready = self._from_cache(part, part_cache) or self._compile_and_store(part, part_cache)
            return ready

    @property
    def choice(self) -> Choice | None:
        """How the back-end was chosen; None: there was no choice."""
        return self._chooser.choice if self._chooser else None

    def _from_cache(self, part: LazyPart, part_cache: PartCache) -> Ready | None:
        """Make a part ready by what is kept; None where that is not enough."""
        runner = self._runner(part, part_cache)
        if runner is None:
            return None
        if runner.backend == TORCH:
            module = _loaded(part)
            backend = self._chooser.backends[runner] if self._chooser else self._backend
            return Ready(backend.compile(module), Sizes.of(module.backbone()), runner)
        try:
            if (model := part_cache.model(runner)) is None:
                return None
            sizes, pieces = model
            forward = openvino_backend.imported(pieces, sizes, runner.precision)
        except InvalidInput as error:
            log.warning("a kept model cannot be used and is made anew", extra={"fields": {"why": str(error)}})
            part_cache.drop_model(runner)
            return None
        return Ready(forward, sizes, runner)

    def _runner(self, part: LazyPart, part_cache: PartCache) -> Runner | None:
        """Return what is to run the part; None: it must be chosen."""
        if self._chooser is None:
            return self._backend.runner
        self._chooser.learn(part.name, part_cache.findings(tuple(self._chooser.backends)))
        return self._chooser.runner_of(part.name)

    def _compile_anew(self, part: LazyPart) -> Ready:
        module, runner = _loaded(part), self._backend.runner
        if self._chooser is None:
            forward = self._backend.compile(module)
        else:
            runner, forward = self._chooser.choose(part.name, module)
            fields = {**runner._asdict(), "part": part.name, "ms": self._chooser.choice.milliseconds}
            log.info("back-end chosen", extra={"fields": fields})
        return Ready(forward, Sizes.of(module.backbone()), runner)

    def _compile_and_store(self, part: LazyPart, part_cache: PartCache) -> Ready:
        ready = self._compile_anew(part)
        if self._chooser is not None:
            part_cache.keep_findings(tuple(self._chooser.backends), self._chooser.findings(part.name))
        if (pieces := openvino_backend.exported(ready.run)) is not None:
            part_cache.keep_model(ready.runner, ready.sizes, pieces)
        return ready


def _loaded(part: LazyPart) -> "NetworkPart":
    with stage("loading torch and the weights"):
        return part.module()
