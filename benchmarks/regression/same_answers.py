"""Check that NEW builds, answers and reads as OLD does; exit status 1 and the differences where it does not.

    python benchmarks/regression/same_answers.py OLD NEW

OLD and NEW are paths of checkouts. Both build OLD's sample pool with OLD's checkpoints, and are asked the same requests
over HTTP. Then NEW opens what OLD wrote: its checkpoints, and where their stores have one format, its generation with
the log of updates and its HNSW index.
"""

import argparse
import json
import re
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from checkouts import Checkout, call, read_lines
from questions import Body, mixture, updates

SHOWN = 5  # differences of a check
Settings = dict[str, str]  # of a server, as variables of the environment

# Of a manifest: what two builds of the same code differ in, and why.
DIFFERENT_EACH_TIME = {
    "id": "holds the time of the build",
    "created_at": "a time",
    "build.seconds": "times",
    "build.candidates_per_second": "a rate",
    "recall.p50_ms": "a time",
    "recall.p99_ms": "a time",
    "sha256": "of the manifest itself",
}
# Of an answer, likewise.
OF_THE_REQUEST = ("request_id", "timings_ms")
# Of GET /index: besides times and ids what the machine measured.
OF_THE_BUILD = r"active\.(id|built_at|loaded_at|recall\.p(50|99)_ms)$"
CHECKPOINTS = ("chat-bi", "chat-poly", "chat-uni")


class Checks:
    """Prints each check, and remembers whether one failed."""

    def __init__(self) -> None:
        self.failed = 0

    def __call__(self, what: str, differences: Sequence[str]) -> None:
        print(f"{'DIFFERENT' if differences else 'same':9}  {what}", flush=True)
        for line in differences[:SHOWN]:
            print(f"           {line}")
        if len(differences) > SHOWN:
            print(f"           and {len(differences) - SHOWN} more")
        self.failed += bool(differences)

    @staticmethod
    def note(text: str) -> None:
        print(f"expected   {text}", flush=True)


@dataclass(frozen=True, slots=True)
class Session:
    """What one server answered.

    Attributes:
        built: to the mixture, before any update.
        updating: to the updates.
        updated: to the mixture, after them.
        index: to GET /index, after them.
    """

    built: list[Any]
    updating: list[Any]
    updated: list[Any]
    index: Any


def generation_of(store: Path) -> Path:
    (only,) = (store / "generations").iterdir()
    return only


def files_of(folder: Path) -> dict[str, Path]:
    return {path.relative_to(folder).as_posix(): path for path in folder.rglob("*") if path.is_file()}


def leaves(left: Any, right: Any, place: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Places in two JSON values at which they differ, with what stands there; a missing key is "(absent)"."""
    if isinstance(left, dict) and isinstance(right, dict):
        for key in dict.fromkeys([*left, *right]):
            yield from leaves(left.get(key, "(absent)"), right.get(key, "(absent)"), f"{place}.{key}".lstrip("."))
    elif isinstance(left, list) and isinstance(right, list) and len(left) == len(right):
        for at, pair in enumerate(zip(left, right, strict=True)):
            yield from leaves(*pair, f"{place}[{at}]")
    elif type(left) is not type(right) or left != right:
        yield place, left, right


def told(place: str, left: Any, right: Any) -> str:
    return f"{place}: {json.dumps(left)[:120]} became {json.dumps(right)[:120]}"


def unequal(one: bytes, other: bytes) -> str:
    first = next((at for at, pair in enumerate(zip(one, other, strict=False)) if pair[0] != pair[1]), None)
    where = "one is the beginning of the other" if first is None else f"they differ from byte {first} on"
    return f"{len(one)} bytes became {len(other)}; {where}"


def compare_stores(check: Checks, kind: str, old: Path, new: Path) -> None:
    """Every file of the two generations byte for byte, and the names of the files around them."""
    around = [sorted(name.replace(generation_of(store).name, "ID") for name in files_of(store)) for store in (old, new)]
    check(f"{kind}: names of all files of the store", [told("names", *around)] if around[0] != around[1] else [])
    left, right = files_of(generation_of(old)), files_of(generation_of(new))
    for name in sorted((left.keys() & right.keys()) - {"manifest.json"}):
        one, other = left[name].read_bytes(), right[name].read_bytes()
        check(f"{kind}: {name}, byte for byte", [unequal(one, other)] if one != other else [])
    compare_manifests(check, kind, left["manifest.json"], right["manifest.json"])


def fingerprint_of(*stores: Path) -> str:
    """The pattern of places that hold a model's fingerprint, where the checkouts write a checkpoint differently."""
    written = {(generation_of(store) / "model/polyrank.json").read_bytes() for store in stores}
    return r"^$" if len(written) == 1 else r"model\.fingerprint$"


def have_one_format(*stores: Path) -> bool:
    """Whether the code that built one of these stores can open the others."""
    manifests = [json.loads((generation_of(store) / "manifest.json").read_bytes()) for store in stores]
    return len({manifest["format_version"] for manifest in manifests}) == 1


def compare_manifests(check: Checks, kind: str, old: Path, new: Path) -> None:
    found = list(leaves(json.loads(old.read_bytes()), json.loads(new.read_bytes())))
    reasons = {place: _reason(place) for place, _, _ in found}
    check(f"{kind}: manifest.json", [told(*each) for each in found if reasons[each[0]] is None])
    expected = [f"{place} ({why})" for place, why in reasons.items() if why]
    if expected:
        check.note(f"{kind}: manifest.json differs in {', '.join(expected)}")


def _reason(place: str) -> str | None:
    within = re.sub(r"^parts\[\d+\]\.", "", place)  # a part has fields of the whole
    return next((why for field, why in DIFFERENT_EACH_TIME.items() if f"{within}.".startswith(f"{field}.")), None)


def build(checkout: Checkout, data: Checkout, store: Path, index: str) -> Path:
    """Build the sample pool. One thread: FAISS makes an HNSW graph in another order with several."""
    model = data.checkpoints / "chat-poly"
    flags = ["--model", model, "--pool", data.pool, "--store", store, "--backend", "torch", "--index", index]
    checkout.result("build", *flags, OMP_NUM_THREADS="1")
    return store


def ask(url: str, bodies: Sequence[Body]) -> list[Any]:
    """Answers without what belongs to the request; of a refusal its kind, for its words may change."""
    answers = []
    for body in bodies:
        status, answer = call(url, "POST", "/rank", body)
        if status == 200:
            kept = {name: value for name, value in answer.items() if name not in OF_THE_REQUEST}
        else:
            kept = {name: answer.get(name) for name in ("type", "title", "status")}
        answers.append({"http": status, **kept})
    return answers


def session(checkout: Checkout, data: Checkout, store: Path, bodies: Sequence[Body], settings: Settings) -> Session:
    """Serve a store that was just built: ask, update, ask again."""
    with checkout.served(store, "--reranker", data.checkpoints / "chat-uni", **settings) as server:
        built = ask(server.url, bodies)
        updating = [call(server.url, *each) for each in updates(read_lines(data.pool))]
        return Session(built, updating, ask(server.url, bodies), call(server.url, "GET", "/index"))


def compare_answers(
    check: Checks, what: str, bodies: Sequence[Body], old: Sequence[Any], new: Sequence[Any], ignored: str = "^$"
) -> None:
    """Compare answers one by one; places that `ignored` (a pattern) matches may differ."""
    differences, furthest, only_scores = [], 0.0, True
    for at, pair in enumerate(zip(old, new, strict=True)):
        found = [each for each in leaves(*pair) if not re.search(ignored, each[0])]
        if found:
            differences.append(f"request {at} {json.dumps(bodies[at])[:100]}: {told(*found[0])}")
        for place, left, right in found:
            if re.search(r"\.scores?(\.\w+)?$", place) and isinstance(left, float) and isinstance(right, float):
                furthest = max(furthest, abs(left - right))
            else:
                only_scores = False
    if differences:
        kind = "scores alone" if only_scores else "more than scores"
        differences.insert(0, f"{len(differences)} of {len(old)} answers, in {kind}; scores by {furthest:.2g} at most")
    check(f"{what}: {len(old)} answers", differences)


def check_variety(check: Checks, answers: Sequence[Any], asked: int) -> None:
    """The mixture reaches what it is meant to: else equal answers would show little."""
    good = [each for each in answers[:asked] if each["http"] == 200]
    missing = [
        what
        for what, holds in {
            "all requests but the refused ones are answered": len(good) == asked,
            "all others are refused": all(each["http"] >= 400 for each in answers[asked:]),
            "some are reranked": any("cross" in place["scores"] for each in good for place in each["results"]),
            "some name missing ids": any(each["missing_ids"] for each in good),
            "some contexts are cut": any(each["truncated"]["turns"] for each in good),
            "none is degraded": not any(each["degraded"] for each in good),
        }.items()
        if not holds
    ]
    check("OLD's answers are what the mixture is made for", [f"not true: {each}" for each in missing])


def compare_serving(
    check: Checks, old: Checkout, new: Checkout, old_store: Path, new_store: Path, settings: Settings
) -> None:
    """Each serves its own store; then NEW serves OLD's, with OLD's updates."""
    conversations = read_lines(old.conversations)
    bodies = mixture(conversations, read_lines(old.pool))
    left = session(old, old, old_store, bodies, settings)
    right = session(new, old, new_store, bodies, settings)
    check_variety(check, left.built, len(conversations))
    if (fingerprint := fingerprint_of(old_store, new_store)) != r"^$":
        check.note("fingerprints differ: polyrank.json is written in another form")
    ignored = rf"^generation$|{fingerprint}"
    compare_answers(check, "each over its own store", bodies, left.built, right.built, ignored)
    calls = [json.loads(json.dumps(each.updating)) for each in (left, right)]
    found = [each for each in leaves(*calls) if not each[0].endswith(".generation")]
    check("answers to updates", [told(*each) for each in found])
    compare_answers(check, "each over its own store, updated", bodies, left.updated, right.updated, ignored)
    unchanged = left.built == left.updated
    check("the updates change answers", ["no answer knows of them"] if unchanged else [])
    compare_index(
        check, "GET /index, each over its own store", left.index, right.index, rf"{OF_THE_BUILD}|{fingerprint}"
    )
    if not have_one_format(old_store, new_store):
        check.note("NEW does not open OLD's store, which has another format")
        return
    with new.served(old_store, "--reranker", old.checkpoints / "chat-uni", **settings) as server:
        read, index = ask(server.url, bodies), call(server.url, "GET", "/index")
    compare_answers(check, "NEW over OLD's store and update log", bodies, left.updated, read)
    compare_index(check, "GET /index, NEW over OLD's store", left.index, index, r"active\.loaded_at$")
    verified = new.polyrank("store", "verify", "--store", old_store)
    check.note(f"NEW verifies OLD's store: {' '.join(verified.split())}")


def compare_index(check: Checks, what: str, old: Any, new: Any, ignored: str) -> None:
    found = [each for each in leaves(list(old), list(new)) if not re.search(ignored, each[0])]
    check(what, [told(*each) for each in found])


def compare_hnsw(
    check: Checks, old: Checkout, new: Checkout, old_store: Path, new_store: Path, settings: Settings
) -> None:
    """NEW opens OLD's index file if it can; requests that a scan answers are left in, as a filter may decide that."""
    opened = old_store if have_one_format(old_store, new_store) else new_store
    bodies = mixture(read_lines(old.conversations), read_lines(old.pool))[:64]
    answers = []
    for each, store in ((old, old_store), (new, opened)):
        with each.served(store, "--reranker", old.checkpoints / "chat-uni", **settings) as server:
            answers.append(ask(server.url, bodies))
    left, right = answers
    what = "NEW over OLD's HNSW index" if opened == old_store else "each over its own HNSW index"
    compare_answers(check, what, bodies, left, right, rf"^generation$|{fingerprint_of(old_store, new_store)}")


def compare_checkpoints(check: Checks, old: Checkout, new: Checkout) -> None:
    """Both evaluate OLD's checkpoints: fingerprints are compared by what is built and served, here the figures."""
    for name in CHECKPOINTS:
        flags = ["--model", old.checkpoints / name, "--data", old.conversations, "--limit", "30"]
        left, right = (each.result("evaluate", *flags) for each in (old, new))
        found = [each for each in leaves(left, right) if not re.search(r"seconds", each[0])]
        check(f"evaluate, {name} of OLD", [told(*each) for each in found])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("old", metavar="OLD", type=Checkout)
    parser.add_argument("new", metavar="NEW", type=Checkout)
    parser.add_argument(
        "--deterministic",
        action="store_true",
        help="let the servers read each text alone: batches that are cut otherwise then round nothing otherwise",
    )
    given = parser.parse_args()
    settings: Settings = {"POLYRANK_DETERMINISTIC": "true"} if given.deterministic else {}
    check = Checks()
    with tempfile.TemporaryDirectory() as folder:
        for kind in ("exact", "hnsw"):
            old, new = (
                build(each, given.old, Path(folder) / f"{name}-{kind}", kind)
                for name, each in (("old", given.old), ("new", given.new))
            )
            compare_stores(check, kind, old, new)
            if kind == "exact":
                compare_serving(check, given.old, given.new, old, new, settings)
            else:
                compare_hnsw(check, given.old, given.new, old, new, settings)
    compare_checkpoints(check, given.old, given.new)
    print(f"{check.failed} checks failed" if check.failed else "no difference")
    return 1 if check.failed else 0


if __name__ == "__main__":
    sys.exit(main())
