"""`polyrank feedback`: what became of the rankings of a store's servers."""

import argparse
from collections import Counter
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

from polyrank.service.cli.arguments import require_store
from polyrank.service.cli.output import add_json_option, print_result

_LEFT_OUT = {
    "repeated": "events that came again",
    "alone": "events whose rankings are not there any more",
    "erased": "lines that were erased, and are in files until servers close them",
    "damaged": "damaged lines",
}


def add_to(commands: Any) -> None:
    """Add the command and its actions to the parser."""
    parser = commands.add_parser("feedback", help="what became of rankings: count it, erase a conversation")
    actions = parser.add_subparsers(title="actions", metavar="ACTION", required=True)

    def add(name: str, run: Any, text: str) -> Any:
        action = actions.add_parser(name, help=text)
        action.add_argument("--store", required=True, type=Path, help="the store's directory")
        add_json_option(action)
        action.set_defaults(run=partial(_in_store, run))
        return action

    add("status", _status, "count what is recorded")
    erasing = add("erase", _erase, "remove all that is recorded of one conversation")
    erasing.add_argument("--conversation", required=True, metavar="NAME", help="as requests name it, or a ranking_id")


def _in_store(run: Any, arguments: argparse.Namespace) -> int:
    require_store(arguments.store)
    status: int = run(arguments)
    return status


def _status(arguments: argparse.Namespace) -> int:
    from polyrank.service.feedback.files import size_of
    from polyrank.service.feedback.identity import folder_of
    from polyrank.service.feedback.reading import LogTally, uses
    from polyrank.service.feedback.records import KINDS

    tally, answered = LogTally(), 0
    kinds, days, generations = Counter[str](), Counter[str](), Counter[str]()
    for use in uses(arguments.store, tally):
        answered += bool(use.events)
        kinds.update(event.kind for event in use.events)
        days[f"{datetime.fromtimestamp(use.ranking.at, UTC):%Y-%m-%d}"] += 1
        generations[use.ranking.generation] += 1
    facts = {
        "rankings": tally.rankings,
        "with_feedback": answered,
        "events": {kind: kinds[kind] for kind in KINDS},
        "days": dict(sorted(days.items())),
        "generations": dict(sorted(generations.items())),
        "bytes": size_of(folder_of(arguments.store)),
        "left_out": {
            "repeated": tally.repeated,
            "alone": tally.alone,
            "erased": tally.erased,
            "damaged": tally.damaged,
        },
    }
    print_result(arguments, facts, *_lines(facts))
    return 0


def _lines(facts: dict[str, Any]) -> list[str]:
    if not facts["rankings"]:
        return ["no ranking is recorded; polyrank serve --feedback texts records them", *_left_out(facts)]
    share, days = facts["with_feedback"] / facts["rankings"], [*facts["days"]]
    return [
        f"{facts['rankings']} rankings on {len(days)} days, {days[0]} to {days[-1]}, in {facts['bytes']} bytes",
        f"{facts['with_feedback']} of them with feedback ({share:.1%})",
        *(f"  {kind}: {count}" for kind, count in facts["events"].items() if count),
        *(f"generation {name}: {count} rankings" for name, count in facts["generations"].items()),
        *_left_out(facts),
    ]


def _left_out(facts: dict[str, Any]) -> list[str]:
    return [f"left out: {count} {_LEFT_OUT[why]}" for why, count in facts["left_out"].items() if count]


def _erase(arguments: argparse.Namespace) -> int:
    from polyrank.service.feedback.erasing import erase

    done = erase(arguments.store, arguments.conversation)
    facts = {"rankings": done.rankings, "files_left": done.left}
    lines = [
        f"{done.rankings} rankings and what became of them are erased" if done.rankings else "there is nothing of it"
    ]
    if done.left:
        lines.append(
            f"{done.left} files of running servers still hold some of it, which nothing counts any more; it goes when "
            "they close these files, within an hour"
        )
    print_result(arguments, facts, *lines)
    return 0
