"""`polyrank feedback`: what became of the rankings of a store's servers."""

import argparse
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from polyrank.model.telling import telling
from polyrank.service.cli.arguments import require_store, require_unused, require_writable
from polyrank.service.cli.output import add_json_option, print_result

if TYPE_CHECKING:
    from polyrank.service.feedback.erasure import Erasing

_LEFT_OUT = {
    "repeated": "events that came again",
    "alone": "events whose rankings are not there any more",
    "unknown": "events about replies that were not shown",
    "erased": "lines that were erased, and are in files until servers close them",
    "damaged": "damaged lines",
}
_EXPORTS = """Write DIR/train.jsonl for `polyrank train`: replies that people wrote or edited, then those that they
chose; DIR/later.jsonl to judge by: written and edited replies of the newest fifth of the conversations;
DIR/labels.jsonl for `polyrank train --only-calibration`: whether their first replies were right."""


def add_to(commands: Any) -> None:
    """Add the command and its actions to the parser."""
    parser = commands.add_parser("feedback", help="what became of rankings: count, report, export or erase it")
    actions = parser.add_subparsers(title="actions", metavar="ACTION", required=True)

    def add(name: str, run: Any, text: str) -> Any:
        action = actions.add_parser(name, help=text)
        action.add_argument("--store", required=True, type=Path, help="the store's directory")
        add_json_option(action)
        action.set_defaults(run=partial(_in_store, run))
        return action

    add("status", _status, "count what is recorded")
    erasing = actions.add_parser("erase", help="remove all that is recorded of conversations, from every pool")
    stores = "as for serve; may come again; default: that of POLYRANK_STORE or POLYRANK_CONFIG"
    erasing.add_argument("--store", action="extend", nargs="+", metavar="[NAME=]DIR", help=stores)
    names = "as requests name it, or a ranking_id; may come again"
    erasing.add_argument("--conversation", required=True, action="extend", nargs="+", metavar="NAME", help=names)
    add_json_option(erasing)
    erasing.set_defaults(run=_erase)
    exporting = add("export", _export, "write dialogues to train on and to judge by, and labels")
    exporting.description = _EXPORTS
    exporting.add_argument("--output", required=True, type=Path, metavar="DIR", help="new or empty")
    golden = "dialogues that no model may learn from; their contexts are left out"
    exporting.add_argument("--golden", nargs="+", default=[], type=Path, metavar="F", help=golden)
    reporting = add("report", _report, "write a page: what was taken, and what the pool lacks")
    reporting.add_argument("--output", required=True, type=Path, metavar="F", help="the page, .html")


def _in_store(run: Any, arguments: argparse.Namespace) -> int:
    require_store(arguments.store)
    status: int = run(arguments)
    return status


def _status(arguments: argparse.Namespace) -> int:
    from polyrank.service.feedback.files import size_of
    from polyrank.service.feedback.identity import folder_of
    from polyrank.service.feedback.reading import LogTally, uses
    from polyrank.service.feedback.records import KINDS

    tally, rankings, answered = LogTally(), 0, 0
    kinds, days, generations = Counter[str](), Counter[str](), Counter[str]()
    for use in uses(arguments.store, tally):
        rankings += 1
        answered += bool(use.events)
        kinds.update(event.kind for event in use.events)
        days[f"{datetime.fromtimestamp(use.ranking.at, UTC):%Y-%m-%d}"] += 1
        generations[use.ranking.generation] += 1
    facts = {
        "rankings": rankings,
        "with_feedback": answered,
        "events": {kind: kinds[kind] for kind in KINDS},
        "days": dict(sorted(days.items())),
        "generations": dict(sorted(generations.items())),
        "bytes": size_of(folder_of(arguments.store)),
        "left_out": asdict(tally),
    }
    print_result(arguments, facts, *_lines(facts))
    return 0


def _lines(facts: dict[str, Any]) -> list[str]:
    if not facts["rankings"]:
        return ["no ranking is recorded; polyrank serve --feedback texts records them", *_left_out(facts)]
    share, days = facts["with_feedback"] / facts["rankings"], list(facts["days"])
    return [
        f"{facts['rankings']} rankings from {days[0]} to {days[-1]}, in {facts['bytes']} bytes",
        f"{facts['with_feedback']} of them with feedback ({share:.1%})",
        *(f"  {kind}: {count}" for kind, count in facts["events"].items() if count),
        *(f"generation {name}: {count} rankings" for name, count in facts["generations"].items()),
        *_left_out(facts),
    ]


def _left_out(facts: dict[str, Any]) -> list[str]:
    return [f"left out: {count} {_LEFT_OUT[why]}" for why, count in facts["left_out"].items() if count]


def _erase(arguments: argparse.Namespace) -> int:
    from polyrank.service.errors import EraseUnfinished
    from polyrank.service.feedback.erasure import erase
    from polyrank.service.loop.state import Runs
    from polyrank.service.settings import Settings

    stores = Settings.load({"store": arguments.store}).store
    for store in stores.values():  # all of them, before the first is touched
        require_store(store)
    facts: dict[str, Any] = {"rankings": 0, "files_left": 0, "loop_collects_anew": False}
    lines, unfinished, unknown = list[str](), list[str](), dict.fromkeys(arguments.conversation)
    for name, store in stores.items():
        try:
            erasing = erase(store, arguments.conversation)
        except EraseUnfinished as error:
            unfinished.append(str(error))
            continue
        if erasing.unfinished is not None:
            unfinished.append(erasing.unfinished)
        try:
            collects_anew = Runs(store).leave_out(erasing.names)
        except OSError as error:
            why = f"the log of {store} holds nothing of it any more, but a run of the loop may ({error.strerror})"
            unfinished.append(f"{why}; free some space and run the same command again")
            continue
        unknown = {each: None for each in unknown if each not in erasing.recorded}
        facts["rankings"] += erasing.rankings
        facts["files_left"] += erasing.left
        facts["loop_collects_anew"] |= collects_anew
        lines += (f"{name}: {line}" if name else line for line in _what_went(erasing, collects_anew))
    if facts["rankings"] and unknown and not unfinished:
        lines.append(f"nothing is recorded of {', '.join(map(repr, unknown))}; are they named as requests named them?")
    print_result(arguments, facts | {"unknown": [*unknown]}, *lines)
    if unfinished:
        raise EraseUnfinished("; ".join(unfinished))
    return 0


def _what_went(erasing: "Erasing", collects_anew: bool) -> Iterator[str]:
    yield f"erased: {erasing.rankings} rankings and their events" if erasing.rankings else "nothing is recorded of it"
    if erasing.left:
        yield (
            f"{erasing.left} files that servers have open still hold some of it; nobody reads that, and it goes within "
            "an hour, when they are closed"
        )
    if collects_anew:
        yield "the run of the loop that might have learnt from it collects anew"


def _export(arguments: argparse.Namespace) -> int:
    from polyrank.service.feedback.export import export

    require_unused("--output", arguments.output)
    with telling("reading the log"):
        tally = export(arguments.store, arguments.output, golden=arguments.golden)
    for reason, count in tally.left_out.most_common():
        print(f"left out {count}: {reason}", file=sys.stderr)
    facts = {
        "output": str(arguments.output),
        "rankings": tally.rankings,
        "with_feedback": tally.with_feedback,
        "files": {name: dict(counts) for name, counts in tally.files.items()},
        "left_out": [{"reason": reason, "count": count} for reason, count in tally.left_out.most_common()],
    }
    lines = [f"{tally.rankings} rankings, {tally.with_feedback} of them with feedback"]
    for name, counts in tally.files.items():
        parts = ", ".join(f"{count} {kind}" for kind, count in sorted(counts.items()))
        lines.append(f"{arguments.output / name}: {counts.total()} examples" + (f" ({parts})" if parts else ""))
    print_result(arguments, facts, *lines)
    return 0


def _report(arguments: argparse.Namespace) -> int:
    from polyrank.service.cli.reports import write_feedback
    from polyrank.service.feedback.report import figures

    require_writable("--output", arguments.output, ())
    with telling("reading the log"):
        report = figures(arguments.store)
    write_feedback(arguments.output, arguments.store, report)
    low, high = report.first.interval()
    facts = {
        "output": str(arguments.output),
        "rankings": report.rankings,
        "judged": report.judged,
        "first_taken": {"value": report.first.value, "low": low, "high": high},
    }
    print_result(arguments, facts, f"{arguments.output}: {report.rankings} rankings, {report.judged} with an outcome")
    return 0
