"""Check the files of deployment and of GitHub with the tools that read them; `make lint` runs it.

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

import yaml

from polyrank.service.observe.metrics import Metrics

DOCKER = Path(__file__).parent
RULES, TESTS = DOCKER / "alerts.yml", DOCKER / "alerts.test.yml"
DASHBOARD = DOCKER / "grafana/dashboards/polyrank.json"
CHART = DOCKER / "helm"
GITHUB = DOCKER.parent / ".github"
RAY = DOCKER / "ray/cluster.yaml"
VALUES = (CHART / "values.yaml", CHART / "ci/full-values.yaml")
KUBERNETES = ("1.27", "1.37")  # the oldest that the chart names, and the latest whose schemas are known
RECEIVERS = ("page", "ticket")


@dataclass(frozen=True, slots=True)
class Check:
    """What to run, where its tool comes from, and what it reads: a text, or what another command prints."""

    title: str
    command: tuple[str, ...]
    source: str
    stdin: str | tuple[str, ...] = ""


def expressions(dashboard: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Title of each panel and its queries, with Grafana's own variables filled in."""
    for panel in dashboard["panels"]:
        for target in panel.get("targets", []):
            filled = target["expr"].replace("$__rate_interval", "1m").replace("$instance", ".*").replace("$pool", ".*")
            yield panel["title"], filled


def as_rules(dashboard: dict[str, Any]) -> str:
    """The dashboard's queries as a rules file, for promtool; JSON is YAML."""
    rules = [
        {"record": f"dashboard:{at}", "expr": query, "labels": {"panel": title}}
        for at, (title, query) in enumerate(expressions(dashboard))
    ]
    return json.dumps({"groups": [{"name": "dashboard", "rules": rules}]})


def checks() -> list[Check]:
    """Everything that is checked."""
    return [*of_prometheus(), *of_alertmanager(), *of_images(), *of_chart(), *of_ray(), *of_github()]


def of_prometheus() -> list[Check]:
    """Its configuration, rules and queries."""
    promtool = "Debian's package prometheus"
    dashboard = json.loads(DASHBOARD.read_text(encoding="utf-8"))
    return [
        Check("Prometheus", ("promtool", "check", "config", str(DOCKER / "prometheus.yml")), promtool),
        Check("alert rules", ("promtool", "check", "rules", str(RULES)), promtool),
        Check("alert rules at work", ("promtool", "test", "rules", str(TESTS)), promtool),
        Check("dashboard", ("promtool", "check", "rules", "/dev/stdin"), promtool, as_rules(dashboard)),
        Check("metrics", ("promtool", "check", "metrics"), promtool, Metrics().render().decode()),
    ]


def of_alertmanager() -> list[Check]:
    """Its configuration, and that each severity reaches the receiver of its name."""
    amtool, path = "Debian's package prometheus-alertmanager", str(DOCKER / "alertmanager.yml")
    routes = ("amtool", "config", "routes", "test", f"--config.file={path}")
    return [
        Check("Alertmanager", ("amtool", "check-config", path), amtool),
        *(
            Check(f"route of a {name}", (*routes, f"--verify.receivers={name}", f"severity={name}"), amtool)
            for name in RECEIVERS
        ),
    ]


def of_images() -> list[Check]:
    """The Dockerfile and the compose file."""
    pip = "make lint"
    return [
        Check("Dockerfile", ("hadolint", "--no-color", str(DOCKER / "Dockerfile")), pip),
        Check(
            "compose file",
            ("check-jsonschema", "--builtin-schema", "vendor.compose-spec", str(DOCKER.parent / "docker-compose.yml")),
            pip,
        ),
    ]


def of_chart() -> list[Check]:
    """The Helm chart: by helm, and what it renders by the schemas of Kubernetes."""
    pip, found = "make lint, on Linux on x86_64,", []
    for values in VALUES:
        title = f"chart, {values.name}"
        found.append(Check(title, ("helm", "lint", "--strict", str(CHART), "--values", str(values)), pip))
        rendered = ("helm", "template", "polyrank", str(CHART), "--values", str(values))
        for version in KUBERNETES:
            validate = ("kubernetes-validate", "--strict", "--kubernetes-version", version, "/dev/stdin")
            found.append(Check(f"{title}, Kubernetes {version}", validate, pip, rendered))
    return found


def of_ray() -> list[Check]:
    """The pods and the network policy of the Ray cluster, by the schemas of Kubernetes. No package has KubeRay's."""
    cluster, policy = yaml.safe_load_all(RAY.read_text(encoding="utf-8"))
    groups = [cluster["spec"]["headGroupSpec"], *cluster["spec"]["workerGroupSpecs"]]
    named = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "ray"}}
    documents = yaml.safe_dump_all([policy, *({**named, "spec": group["template"]["spec"]} for group in groups)])
    validate = ("kubernetes-validate", "--strict", "--kubernetes-version")
    return [
        Check(f"Ray cluster, Kubernetes {version}", (*validate, version, "/dev/stdin"), "make lint", documents)
        for version in KUBERNETES
    ]


def of_github() -> list[Check]:
    """Workflows and forms by their schemas; workflows by what they would let others do, too. No host is asked."""
    pip, schema, forms = "make lint", ("check-jsonschema", "--builtin-schema"), GITHUB / "ISSUE_TEMPLATE"
    workflows = [str(path) for path in sorted((GITHUB / "workflows").glob("*.yml"))]
    issues = [str(path) for path in sorted(forms.glob("*.yml")) if path.name != "config.yml"]
    return [
        Check("workflows", (*schema, "vendor.github-workflows", *workflows), pip),
        Check("workflows, audited", ("zizmor", "--offline", "--quiet", "--strict-collection", str(GITHUB)), pip),
        Check("issue forms", (*schema, "vendor.github-issue-forms", *issues), pip),
        Check("choice of issue forms", (*schema, "vendor.github-issue-config", str(forms / "config.yml")), pip),
    ]


def failed(check: Check, tools: str) -> bool:
    """Run a check with the tools of that path, and tell how it went."""
    commands = [check.stdin, check.command] if isinstance(check.stdin, tuple) else [check.command]
    for name in (command[0] for command in commands):
        if shutil.which(name, path=tools) is None:
            missing = f"{check.title}: {name} is not installed ({check.source} brings it)"
            print(f"{missing}; not checked" if not os.environ.get("CI") else missing, file=sys.stderr)
            return bool(os.environ.get("CI"))
    read = "" if isinstance(check.stdin, tuple) else check.stdin
    for name, *arguments in commands:
        tool = str(shutil.which(name, path=tools))
        ran = subprocess.run((tool, *arguments), input=read, text=True, capture_output=True, check=False)
        if ran.returncode:
            print(f"{check.title}: failed")
            print(ran.stdout + ran.stderr, file=sys.stderr)
            return True
        read = ran.stdout
    print(f"{check.title}: ok")
    return False


def main() -> int:
    """Run every check; the exit status."""
    tools = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    return int(any([failed(check, tools) for check in checks()]))


if __name__ == "__main__":
    sys.exit(main())
