"""The deployment files agree with each other and with the code; no Docker is needed to see it."""

import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from polyrank.service import cli
from polyrank.service.changes import builder_process
from polyrank.service.http import operations as routes_ops
from polyrank.service.observe import labels, tracing
from polyrank.service.observe.metrics import Metrics
from polyrank.service.process import draining
from polyrank.service.settings import PREFIX, Settings

ROOT = Path(__file__).parents[2]
DOCKER = ROOT / "docker"
SERVICES = {"redis", "builder", "api", "prometheus", "alertmanager", "grafana"}
GPU = "api-gpu"


def _compose_text() -> str:
    return (ROOT / "docker-compose.yml").read_text(encoding="utf-8")


def _compose(**variables: str) -> dict[str, Any]:
    """The compose file as it reads with these variables: `${NAME:-default}`, `${NAME:+what stands for a value}`."""

    def value(use: re.Match[str]) -> str:
        name, kind, other = use.groups()
        return variables.get(name) or other if kind == "-" else other if variables.get(name) else ""

    loaded: dict[str, Any] = yaml.safe_load(re.sub(r"\$\{(\w+):([-+])([^}]*)\}", value, _compose_text()))
    return loaded


@pytest.fixture(scope="module")
def compose() -> dict[str, Any]:
    """The compose file as it reads when no variable is set."""
    return _compose()


@pytest.fixture(scope="module")
def instructions() -> list[tuple[str, str]]:
    """The Dockerfile's instructions: (keyword, rest), continued lines joined."""
    text = (DOCKER / "Dockerfile").read_text(encoding="utf-8")
    joined = re.sub(r"\\\n\s*", " ", re.sub(r"^#.*\n", "", text, flags=re.MULTILINE))
    return [(line.split(None, 1)[0], line.split(None, 1)[1]) for line in joined.splitlines() if line.strip()]


@pytest.fixture(scope="module")
def stages(instructions: list[tuple[str, str]]) -> dict[str, tuple[str, list[tuple[str, str]]]]:
    """Name of each stage -> (what it is built from, its own instructions)."""
    found: dict[str, tuple[str, list[tuple[str, str]]]] = {}
    name = ""
    for keyword, rest in instructions:
        if keyword == "FROM":
            base, name = re.fullmatch(r"(\S+) AS (\S+)", rest).groups()  # type: ignore[union-attr]
            found[name] = (base, [])
        else:
            found[name][1].append((keyword, rest))
    return found


@pytest.fixture(scope="module")
def dashboard() -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads((DOCKER / "grafana/dashboards/polyrank.json").read_text(encoding="utf-8"))
    return loaded


def _yaml(name: str) -> Any:
    return yaml.safe_load((DOCKER / name).read_text(encoding="utf-8"))


def _value(stage: list[tuple[str, str]], keyword: str) -> str:
    return next(rest for key, rest in stage if key == keyword)


def _flag(command: list[str], name: str) -> str:
    return command[command.index(name) + 1]


# --- the image


def test_default_target_is_the_cpu_runtime_on_the_pinned_base(stages: dict[str, Any]) -> None:
    assert list(stages)[-1] == "runtime-cpu"
    assert {"runtime-cpu", "runtime-cuda"} <= set(stages)
    outside = {base for base, _ in stages.values() if base not in stages}
    assert outside == {"python:3.12-slim-bookworm"}


@pytest.mark.parametrize("target", ["runtime-cpu", "runtime-cuda"])
def test_a_target_adds_the_environment_to_the_runtime_and_on_a_gpu_a_compiler(
    stages: dict[str, Any], target: str
) -> None:
    base, added = stages[target]
    builder = target.replace("runtime", "builder")
    assert (base, added[-1]) == ("runtime", ("COPY", f"--from={builder} /opt/venv /opt/venv"))
    others = [key for key, _ in added[:-1]]
    assert others == (["USER", "RUN", "USER", "ENV"] if target == "runtime-cuda" else [])
    assert [rest for key, rest in added if key == "USER"][-1:] in ([], ["10001:10001"])
    assert stages["runtime"][0].startswith("python:")  # nothing of the build stages but that environment
    assert not [rest for key, rest in stages["runtime"][1] if key == "RUN" and ("pip" in rest or "apt" in rest)]


@pytest.mark.parametrize(("builder", "extras"), [("builder-cpu", "${EXTRAS}"), ("builder-cuda", "demo,otel")])
def test_builders_install_what_the_constraints_pin_with_the_base_weights(
    stages: dict[str, Any], builder: str, extras: str
) -> None:
    install = _value(stages[builder][1], "RUN")
    assert "-c constraints.txt" in install
    assert install.rstrip("\"'").endswith(f".[{extras}]")
    assert ("TORCH_INDEX" in install) == (builder == "builder-cpu")


def test_the_extras_have_the_base_weights_as_default(stages: dict[str, Any]) -> None:
    assert ("ARG", "EXTRAS=demo,openvino,otel") in stages["builder-cpu"][1]


def test_torch_index_has_the_cpu_wheels_as_default(stages: dict[str, Any]) -> None:
    assert ("ARG", "TORCH_INDEX=https://download.pytorch.org/whl/cpu") in stages["builder-cpu"][1]


def test_runtime_is_unprivileged_offline_and_stops_on_sigterm(stages: dict[str, Any]) -> None:
    runtime = stages["runtime"][1]
    assert _value(runtime, "USER") == "10001:10001"
    assert _value(runtime, "STOPSIGNAL") == "SIGTERM"
    assert json.loads(_value(runtime, "ENTRYPOINT")) == ["polyrank"]
    environment = _value(runtime, "ENV").split()
    assert {"HF_HUB_OFFLINE=1", "TOKENIZERS_PARALLELISM=false"} <= set(environment)
    assert not [entry for entry in environment if entry.startswith(PREFIX)]  # flags would hide behind them
    assert "org.opencontainers.image.licenses" in _value(runtime, "LABEL")


def test_image_listens_where_its_healthcheck_looks(stages: dict[str, Any]) -> None:
    runtime = stages["runtime"][1]
    port = _flag(json.loads(_value(runtime, "CMD")), "--port")
    assert port == _value(runtime, "EXPOSE") == str(Settings.model_fields["port"].default)
    probe = json.loads(_value(runtime, "HEALTHCHECK").split("CMD ", 1)[1])
    assert probe[:2] == ["python", "-c"]
    compile(probe[2], "healthcheck", "exec")
    assert f"'http://127.0.0.1:{port}/readyz'" in probe[2]


def test_docker_context_holds_what_the_dockerfile_copies(instructions: list[tuple[str, str]]) -> None:
    ignore = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    allowed = {line[1:] for line in ignore if line.startswith("!")}
    copied = {
        source
        for keyword, rest in instructions
        if keyword == "COPY" and not rest.startswith("--from")
        for source in rest.split()[:-1]
    }
    assert "*" in ignore
    assert copied == allowed


def _make_image(path: str, *variables: str) -> subprocess.CompletedProcess[str]:
    make = shutil.which("make")
    assert make is not None
    environment = {"PATH": path, "LC_ALL": "C"}
    return subprocess.run([make, "image", *variables], cwd=ROOT, env=environment, text=True, capture_output=True)


def test_make_image_shows_and_runs_what_builds_the_image_that_compose_runs(
    tmp_path: Path, stages: dict[str, Any], compose: dict[str, Any]
) -> None:
    docker = tmp_path / "docker"
    docker.write_text('#!/bin/sh\necho "ran: $*"\n', encoding="utf-8")
    docker.chmod(0o755)
    done = _make_image(f"{tmp_path}:{os.defpath}")
    shown, ran = done.stdout.splitlines()
    assert shown.removeprefix("DOCKER_BUILDKIT=1 docker ") == ran.removeprefix("ran: ")
    words = ran.split()
    assert (ROOT / _flag(words, "--file")).is_file()
    assert _flag(words, "--target") in stages
    assert _flag(words, "--tag") == compose["services"]["api"]["image"]
    assert words[-1] == "."
    own = _make_image(
        f"{tmp_path}:{os.defpath}", "TARGET=runtime-cuda", "IMAGE=shop/polyrank:1", "TORCH_INDEX=http://a/b"
    )
    assert "--target runtime-cuda --tag shop/polyrank:1 --build-arg TORCH_INDEX=http://a/b ." in own.stdout


def test_make_image_without_docker_shows_the_command_and_fails(tmp_path: Path) -> None:
    for tool in ("sh", "echo"):
        (tmp_path / tool).symlink_to(str(shutil.which(tool)))
    done = _make_image(str(tmp_path))
    assert done.returncode != 0
    assert "docker build --file docker/Dockerfile" in done.stdout
    assert "docker is not installed" in done.stderr


# --- compose


def test_up_starts_all_six_and_the_gpu_is_asked_for(compose: dict[str, Any]) -> None:
    profiles = {name: service.get("profiles") for name, service in compose["services"].items()}
    assert profiles == {**dict.fromkeys(SERVICES), GPU: ["gpu"]}


def test_gpu_service_is_a_replica_that_reads_the_store(compose: dict[str, Any], stages: dict[str, Any]) -> None:
    gpu, api, builder = (compose["services"][name] for name in (GPU, "api", "builder"))
    assert gpu["gpus"] == "all"
    assert gpu["build"]["target"] in stages
    assert gpu["build"]["target"] != builder["build"]["target"]
    assert gpu["image"] not in (api["image"], builder["image"])
    assert gpu["volumes"] == ["store:/store:ro", "./examples/support:/data:ro"]
    assert gpu["tmpfs"] == ["/tmp:exec"], "Triton loads what it compiles from there"
    assert "TRITON_CACHE_DIR=/tmp/" in dict(stages[gpu["build"]["target"]][1])["ENV"]
    own = {"profiles", "image", "build", "gpus", "tmpfs", "volumes", "ports", "mem_limit"}
    assert {key: value for key, value in gpu.items() if key not in own} == {
        key: value for key, value in api.items() if key not in own
    }


def test_every_variable_has_a_default() -> None:
    uses = re.findall(r"(?<!\$)\$(?!\$)\S*", _compose_text())
    assert uses
    assert all(re.match(r"\$\{[A-Z_]+:[-+][^}]*\}", use) for use in uses)


def test_every_bind_mount_exists_and_every_volume_is_declared(compose: dict[str, Any]) -> None:
    for service in compose["services"].values():
        for mount in service.get("volumes", []):
            source, _, target = mount.partition(":")
            if source.startswith("."):
                assert (ROOT / source).exists(), source
                assert target.endswith(":ro")
            else:
                assert source in compose["volumes"]


def test_every_service_is_confined(compose: dict[str, Any]) -> None:
    for name, service in compose["services"].items():
        assert service["read_only"] is True, name
        assert service["cap_drop"] == ["ALL"], name
        assert service["security_opt"] == ["no-new-privileges:true"], name
        assert "privileged" not in service, name


def test_ports_are_published_on_this_machine_alone_and_redis_nowhere(compose: dict[str, Any]) -> None:
    published = {name: service.get("ports", []) for name, service in compose["services"].items()}
    assert published == {
        "redis": [],
        "builder": [],
        "api": ["127.0.0.1:8000:8000"],
        "api-gpu": ["127.0.0.1:8001:8000"],
        "prometheus": ["127.0.0.1:9090:9090"],
        "alertmanager": ["127.0.0.1:9093:9093"],
        "grafana": ["127.0.0.1:3000:3000"],
    }
    assert compose["services"]["redis"]["networks"] == ["data"]
    assert compose["networks"]["data"]["internal"] is True


def test_the_service_alone_is_opened_to_others() -> None:
    opened = _compose(BIND="0.0.0.0")["services"]
    beyond = {name for name, each in opened.items() for port in each.get("ports", []) if "127.0.0.1:" not in port}
    assert beyond == {"api", GPU}


def test_grafana_has_an_account_only_with_a_password_that_was_given() -> None:
    for variables, no_account in (({}, "true"), ({"GRAFANA_PASSWORD": "much longer"}, "false")):
        grafana = _compose(**variables)["services"]["grafana"]
        defaults = dict(each.removeprefix("cfg:default.").split("=") for each in grafana["command"])
        environment = {name: value for name, value in grafana["environment"].items() if value}  # it ignores empty ones
        name = "GF_SECURITY_DISABLE_INITIAL_ADMIN_CREATION"
        assert environment.get(name, defaults["security.disable_initial_admin_creation"]) == no_account
        assert environment.get("GF_SECURITY_ADMIN_PASSWORD") == variables.get("GRAFANA_PASSWORD")
        assert environment["GF_AUTH_ANONYMOUS_ORG_ROLE"] == "Viewer"


def test_memory_and_processors_of_every_service_are_limited(compose: dict[str, Any]) -> None:
    for name, service in compose["services"].items():
        assert re.fullmatch(r"\d+[mg]", service["mem_limit"]), name
        assert service["cpu_quota"] in (100_000, 200_000), name
        assert "cpus" not in service, f"{name}: a machine with fewer processors would refuse it"
    own = _compose(CPUS="8", MEMORY="16g", REDIS_MEMORY="3g")["services"]
    assert {(own[name]["cpu_quota"], own[name]["mem_limit"]) for name in ("api", "builder", GPU)} == {(800_000, "16g")}
    assert own["redis"]["mem_limit"] == "3g"


def test_api_waits_for_redis_and_for_the_first_generation(compose: dict[str, Any]) -> None:
    assert compose["services"]["api"]["depends_on"] == {
        "redis": {"condition": "service_healthy"},
        "builder": {"condition": "service_completed_successfully"},
    }
    assert compose["services"]["redis"]["healthcheck"]["test"] == ["CMD", "redis-cli", "ping"]


def test_a_stop_is_given_the_time_that_it_may_take(compose: dict[str, Any]) -> None:
    drains = Settings.model_fields["drain_delay_s"].default + draining.FINISH_SECONDS
    most = drains + builder_process.GRACE_SECONDS + tracing.CLOSE_SECONDS
    for name in ("api", GPU):
        grace = re.fullmatch(r"(\d+)s", compose["services"][name]["stop_grace_period"])
        assert grace is not None
        assert most < int(grace.group(1)) < 2 * most


def test_one_service_builds_the_image_and_the_other_uses_it(compose: dict[str, Any], stages: dict[str, Any]) -> None:
    builder, api = compose["services"]["builder"], compose["services"]["api"]
    assert builder["image"] == api["image"]
    assert "build" not in api
    assert api["pull_policy"] == "never"
    assert builder["build"]["target"] in stages
    assert (ROOT / builder["build"]["context"] / builder["build"]["dockerfile"]).is_file()


def test_builder_and_api_share_store_and_redis(compose: dict[str, Any]) -> None:
    (script,) = compose["services"]["builder"]["command"]
    api = compose["services"]["api"]["command"]
    assert script.startswith('if [ -s /store/CURRENT ] && [ -z "$$REBUILD" ];')
    build = re.search(r"exec polyrank (build .*); fi", script)
    assert build is not None
    flags = build.group(1).split()
    assert _flag(flags, "--redis") == _flag(api, "--redis") == "redis://redis:6379/0"
    assert _flag(flags, "--store") == _flag(api, "--store") == "/store"
    assert "store:/store" in compose["services"]["api"]["volumes"]


def test_builder_takes_pool_and_model_of_ones_own_and_else_the_sample(compose: dict[str, Any]) -> None:
    builder, api = compose["services"]["builder"], compose["services"]["api"]
    [command] = builder["command"]
    assert '--model "$$MODEL" --pool "$$POOL"' in command
    [data] = [mount for mount in builder["volumes"] if ":/data" in mount]
    assert data in api["volumes"]
    pool, model = builder["environment"]["POOL"], builder["environment"]["MODEL"]
    assert (ROOT / data.split(":")[0] / pool.removeprefix("/data/")).is_file()
    assert (ROOT / model.removeprefix("/app/") / "polyrank.json").is_file()
    assert api["environment"][f"{PREFIX}POOL_ROOT"] == str(Path(pool).parent)
    assert all(f"${{{name}:-" in _compose_text() for name in ("DATA", "POOL", "MODEL"))


def test_commands_are_those_of_polyrank(compose: dict[str, Any], stages: dict[str, Any]) -> None:
    services = compose["services"]
    build = re.search(r"exec polyrank (build .*); fi", services["builder"]["command"][0])
    assert build is not None
    image = json.loads(_value(stages["runtime"][1], "CMD"))
    for command in (build.group(1).split(), services["api"]["command"], services[GPU]["command"], image):
        assert cli.parser().parse_args(command).run  # argparse ends the test where it knows a flag not


def test_paths_in_the_image_are_copied_into_it(stages: dict[str, Any]) -> None:
    copied = {rest.split()[-1] for keyword, rest in stages["runtime"][1] if keyword == "COPY"}
    paths = set(re.findall(r"/app/[\w./-]+", _compose_text()))
    assert {"/app/checkpoints/chat-cross", "/app/checkpoints/chat-poly"} <= paths
    for path in paths:
        assert (ROOT / path.removeprefix("/app/")).exists(), path
        assert any(path.startswith(root) for root in copied), path


def test_health_and_metrics_are_where_they_are_asked_for() -> None:
    paths = {route.path for route in routes_ops.router.routes}  # type: ignore[attr-defined]
    assert {"/readyz", "/livez", "/metrics"} <= paths
    assert paths >= labels.QUIET


def test_api_gets_known_settings_alone(compose: dict[str, Any]) -> None:
    names = [name for name in compose["services"]["api"]["environment"] if name.startswith(PREFIX)]
    assert {name.removeprefix(PREFIX).lower() for name in names} <= set(Settings.model_fields)


def test_redis_is_a_bounded_cache_without_disk(compose: dict[str, Any]) -> None:
    command = compose["services"]["redis"]["command"]
    assert _flag(command, "--maxmemory") == "512mb"
    config = (DOCKER / "redis.conf").read_text(encoding="utf-8").splitlines()
    assert {"maxmemory-policy volatile-lfu", 'save ""', "appendonly no"} <= set(config)


# --- Prometheus and Grafana


def _families() -> dict[str, str]:
    """Every metric of the service -> its type."""
    text = Metrics().render().decode()
    found = dict(re.findall(r"^# TYPE (polyrank_\w+) (\w+)", text, flags=re.MULTILINE))
    return {name: kind for name, kind in found.items() if not name.endswith("_created")}


def _series() -> dict[str, str]:
    """Every name that a query may use -> the metric it belongs to."""
    suffixes = {"histogram": ("_bucket", "_sum", "_count")}
    return {name + end: name for name, kind in _families().items() for end in suffixes.get(kind, ("",))}


def _alerts() -> list[dict[str, Any]]:
    return [rule for group in _yaml("alerts.yml")["groups"] for rule in group["rules"] if "alert" in rule]


def _expressions(dashboard: dict[str, Any]) -> list[str]:
    shown = [target["expr"] for panel in dashboard["panels"] for target in panel.get("targets", [])]
    alerts = [rule["expr"] for group in _yaml("alerts.yml")["groups"] for rule in group["rules"]]
    return shown + alerts


def test_prometheus_scrapes_the_api_and_reads_the_mounted_rules(compose: dict[str, Any]) -> None:
    config = _yaml("prometheus.yml")
    (job,) = config["scrape_configs"]
    assert job["job_name"] == "polyrank"  # as the alerts call it
    assert job["static_configs"] == [{"targets": ["api:8000"]}]  # /metrics is Prometheus' default path
    (found,) = job["dns_sd_configs"]
    assert (found["names"], found["type"], found["port"]) == ([GPU], "A", 8000)
    mounted = {mount.split(":")[1] for mount in compose["services"]["prometheus"]["volumes"]}
    assert {f"/etc/prometheus/{name}" for name in [*config["rule_files"], "prometheus.yml"]} <= mounted
    assert set(compose["services"]["prometheus"]["networks"]) & set(compose["services"]["api"]["networks"])


def test_prometheus_tells_alertmanager_and_its_receivers_are_there_to_be_filled_in(compose: dict[str, Any]) -> None:
    [managers] = _yaml("prometheus.yml")["alerting"]["alertmanagers"]
    service = compose["services"]["alertmanager"]
    [port] = [published.rsplit(":", 1)[1] for published in service["ports"]]
    assert managers["static_configs"] == [{"targets": [f"alertmanager:{port}"]}]
    assert set(service["networks"]) & set(compose["services"]["prometheus"]["networks"])
    [mounted] = [mount.split(":") for mount in service["volumes"] if mount.startswith("./")]
    assert f"--config.file={mounted[1]}" in service["command"]
    config = yaml.safe_load((ROOT / mounted[0]).read_text(encoding="utf-8"))
    assert {rule["labels"]["severity"] for rule in _alerts()} == {each["name"] for each in config["receivers"]}


def test_dashboard_can_be_provisioned(compose: dict[str, Any], dashboard: dict[str, Any]) -> None:
    assert dashboard["id"] is None
    assert dashboard["uid"] == "polyrank"
    assert len({panel["id"] for panel in dashboard["panels"]}) == len(dashboard["panels"])
    (source,) = _yaml("grafana/provisioning/datasources/prometheus.yml")["datasources"]
    assert source["uid"] == "polyrank-prometheus"
    variable, _ = dashboard["templating"]["list"]
    assert variable["current"]["value"] == source["uid"]
    (provider,) = _yaml("grafana/provisioning/dashboards/polyrank.yml")["providers"]
    path = provider["options"]["path"]
    assert f"./docker/grafana/dashboards:{path}:ro" in compose["services"]["grafana"]["volumes"]


def test_panels_use_the_data_source_variable(dashboard: dict[str, Any]) -> None:
    sources = [panel["datasource"] for panel in dashboard["panels"] if panel["type"] != "row"]
    assert sources
    assert all(source == {"type": "prometheus", "uid": "${datasource}"} for source in sources)


def test_panels_show_the_instances_that_are_chosen(dashboard: dict[str, Any]) -> None:
    _, variable = dashboard["templating"]["list"]
    assert (variable["name"], variable["multi"], variable["includeAll"]) == ("instance", True, True)
    assert "label_values(" in variable["query"]["query"]
    shown = [target["expr"] for panel in dashboard["panels"] for target in panel.get("targets", [])]
    assert "process_resident_memory_bytes" in " ".join(shown)
    for expression in shown:  # recorded series are those of all instances together
        series = re.findall(r"\b(?:polyrank|process)_\w+(?:\{[^}]*\})?", expression)
        assert series or expression.startswith("polyrank:"), expression
        assert all('instance=~"$instance"' in each for each in series), expression


def test_dashboard_and_alerts_name_metrics_that_exist_and_leave_none_out(dashboard: dict[str, Any]) -> None:
    used = {name for expression in _expressions(dashboard) for name in re.findall(r"polyrank_\w+", expression)}
    series = _series()
    assert used - set(series) == set()
    assert set(_families()) - {series[name] for name in used} == set()


def test_recorded_series_are_used_and_those_used_are_recorded(dashboard: dict[str, Any]) -> None:
    rules = [rule for group in _yaml("alerts.yml")["groups"] for rule in group["rules"]]
    used = {name for expression in _expressions(dashboard) for name in re.findall(r"polyrank:[\w:]+", expression)}
    assert used == {rule["record"] for rule in rules if "record" in rule}


def test_every_alert_leads_to_its_entry_in_the_runbook_and_every_entry_has_an_alert(compose: dict[str, Any]) -> None:
    config, environment = _yaml("prometheus.yml"), compose["services"]["prometheus"]["environment"]
    assert config["global"]["external_labels"] == {"runbook": "${RUNBOOK_URL}"}
    assert environment == {"RUNBOOK_URL": "docs/runbook.md"}
    entries = re.findall(r"^## (\w+)$", (ROOT / "docs/runbook.md").read_text(encoding="utf-8"), flags=re.MULTILINE)
    assert sorted(entries) == sorted({rule["alert"] for rule in _alerts()})
    for rule in _alerts():
        link = re.fullmatch(
            r'\{\{ or \$externalLabels\.runbook "([^"]+)" \}\}(#\w+)', rule["annotations"]["runbook_url"]
        )
        assert link is not None
        assert link.groups() == (environment["RUNBOOK_URL"], f"#{rule['alert'].lower()}")  # a heading's own anchor
        assert rule["labels"]["severity"] in ("page", "ticket")


def test_every_alert_is_tried_where_it_fires_and_where_it_does_not() -> None:
    tried = [each for test in _yaml("alerts.test.yml")["tests"] for each in test.get("alert_rule_test", [])]
    fires = {each["alertname"] for each in tried if each["exp_alerts"]}
    is_silent = {each["alertname"] for each in tried if not each["exp_alerts"]}
    assert fires == is_silent == {rule["alert"] for rule in _alerts()}
    seen = {(each["alertname"], alert["exp_labels"].get("window")) for each in tried for alert in each["exp_alerts"]}
    assert seen == {(rule["alert"], rule["labels"].get("window")) for rule in _alerts()}
