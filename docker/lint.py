"""Check the deployment's files with the tools that read them; `make lint` runs it.

A tool that is not installed is named and left out, or an error where CI is set.
"""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from polyrank.service.observe.metrics import Metrics

DOCKER = Path(__file__).parent
RULES, TESTS = DOCKER / "alerts.yml", DOCKER / "alerts.test.yml"
DASHBOARD = DOCKER / "grafana/dashboards/polyrank.json"


@dataclass(frozen=True, slots=True)
class Check:
    """What to run, what it is given on standard input, and where the tool comes from."""

    title: str
    command: tuple[str, ...]
    source: str
    stdin: str = ""


def expressions(dashboard: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Title of each panel and its queries, with Grafana's own variables filled in."""
    for panel in dashboard["panels"]:
        for target in panel.get("targets", []):
            yield panel["title"], target["expr"].replace("$__rate_interval", "1m")


def as_rules(dashboard: dict[str, Any]) -> str:
    """The dashboard's queries as a rules file, for promtool; JSON is YAML."""
    rules = [
        {"record": f"dashboard:{at}", "expr": query, "labels": {"panel": title}}
        for at, (title, query) in enumerate(expressions(dashboard))
    ]
    return json.dumps({"groups": [{"name": "dashboard", "rules": rules}]})


def checks() -> list[Check]:
    """Everything that is checked."""
    promtool, pip = "Debian's package prometheus", "make lint"
    dashboard = json.loads(DASHBOARD.read_text(encoding="utf-8"))
    return [
        Check("Prometheus", ("promtool", "check", "config", str(DOCKER / "prometheus.yml")), promtool),
        Check("alert rules", ("promtool", "check", "rules", str(RULES)), promtool),
        Check("alert rules at work", ("promtool", "test", "rules", str(TESTS)), promtool),
        Check("dashboard", ("promtool", "check", "rules", "/dev/stdin"), promtool, as_rules(dashboard)),
        Check("metrics", ("promtool", "check", "metrics"), promtool, Metrics().render().decode()),
        Check("Dockerfile", ("hadolint", "--no-color", str(DOCKER / "Dockerfile")), pip),
        Check(
            "compose file",
            ("check-jsonschema", "--builtin-schema", "vendor.compose-spec", str(DOCKER.parent / "docker-compose.yml")),
            pip,
        ),
    ]


def failed(check: Check, tools: str) -> bool:
    """Run a check with the tools of that path, and tell how it went."""
    tool = shutil.which(check.command[0], path=tools)
    if tool is None:
        missing = f"{check.title}: {check.command[0]} is not installed ({check.source} brings it)"
        print(f"{missing}; not checked" if not os.environ.get("CI") else missing, file=sys.stderr)
        return bool(os.environ.get("CI"))
    ran = subprocess.run((tool, *check.command[1:]), input=check.stdin, text=True, capture_output=True, check=False)
    print(f"{check.title}: {'failed' if ran.returncode else 'ok'}")
    if ran.returncode:
        print(ran.stdout + ran.stderr, file=sys.stderr)
    return ran.returncode != 0


def main() -> int:
    """Run every check; the exit status."""
    tools = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    return int(any([failed(check, tools) for check in checks()]))


if __name__ == "__main__":
    sys.exit(main())
