"""`polyrank loop`: from what feedback teaches to a better model that is live."""

import argparse
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from polyrank.service.cli.arguments import require_store
from polyrank.service.cli.output import add_json_option, print_result

if TYPE_CHECKING:
    from polyrank.service.loop.state import Run

_RUN = """Collect what feedback teaches, train on it from the live generation's model, compare both, build a generation
beside the live one, let it answer a growing share of the conversations, switch to it, and watch it. Each step may end
the run. The command takes days; killed, it goes on when it is started again. Exit status 0: the run has ended, whatever
came of it."""
_ABORT_SECONDS = 60.0


def add_to(commands: Any) -> None:
    """Add the command and its actions to the parser."""
    parser = commands.add_parser("loop", help="a better model from feedback: train, compare, try out, switch")
    actions = parser.add_subparsers(title="actions", metavar="ACTION", required=True)
    running = actions.add_parser("run", help="go on with the run that has not ended, or begin one", description=_RUN)
    running.add_argument("--config", required=True, type=Path, metavar="F", help="the settings, .toml")
    running.set_defaults(run=run)
    for name, act, text in (
        ("status", _status, "what the latest run has done and waits for, and the last verdict"),
        ("abort", _abort, "end the run that has not ended, and its canary; what is active stays"),
    ):
        action = actions.add_parser(name, help=text)
        of = action.add_mutually_exclusive_group(required=True)
        of.add_argument("--config", type=Path, metavar="F", help="the settings, .toml")
        of.add_argument("--store", type=Path, help="the store's directory")
        action.set_defaults(run=act)
    for action in actions.choices.values():
        add_json_option(action)


def run(arguments: argparse.Namespace) -> int:
    """Run the loop to a verdict, and print it."""
    from polyrank.service.loop.config import LoopConfig
    from polyrank.service.loop.run import run_loop

    config = LoopConfig.load(arguments.config)
    try:
        ended = run_loop(config, lambda line: print(line, file=sys.stderr, flush=True))
    except KeyboardInterrupt:
        raise KeyboardInterrupt("the same command goes on; a trial ends in three minutes") from None
    print_result(arguments, _facts(ended, is_at_work=False), _verdict_line(ended))
    return 0


def _store_of(arguments: argparse.Namespace) -> Path:
    if arguments.config is None:
        require_store(arguments.store)
        store: Path = arguments.store
        return store
    from polyrank.service.loop.config import LoopConfig

    return LoopConfig.load(arguments.config).store


def _status(arguments: argparse.Namespace) -> int:
    store = _store_of(arguments)
    from polyrank.service.loop.state import Runs

    runs = Runs(store)
    if (run := runs.latest()) is None:
        print_result(arguments, {"run": None}, f"{store}: the loop never ran; polyrank loop run begins it")
        return 0
    is_at_work = runs.is_at_work()
    lines = [f"run {run.id}, to replace generation {run.live}"]
    lines += [f"  {name:<8} {stage.said}" for name, stage in run.stages.items()]
    if run.verdict is not None:
        lines.append(_verdict_line(run))
    else:
        goes_on = "at work" if is_at_work else "nobody is at work; polyrank loop run goes on with it"
        lines += [f"  {run.stage:<8} {goes_on}"] + ([f"           {run.waits}"] if run.waits else [])
    judged = next(runs.judged(), None)
    if judged is not None and judged.id != run.id:
        lines.append(f"last verdict on a model, of run {judged.id}: {_verdict_line(judged)}")
    last = judged and {"run": judged.id, "verdict": judged.verdict, "why": judged.why}
    print_result(arguments, {**_facts(run, is_at_work), "judged": last}, *lines)
    return 0


def _abort(arguments: argparse.Namespace) -> int:
    store = _store_of(arguments)
    from polyrank.service.loop.run import abort

    run = abort(store, _ABORT_SECONDS)
    if run is None:
        print_result(arguments, {"run": None}, f"{store}: no run is under way")
    else:
        print_result(arguments, _facts(run, is_at_work=False), _verdict_line(run))
    return 0


def _facts(run: "Run", is_at_work: bool) -> dict[str, Any]:
    return {"run": run.id, **asdict(run), "stage": run.stage, "new": run.new, "at_work": is_at_work}


def _verdict_line(run: "Run") -> str:
    return f"{run.verdict}: {run.why}"
