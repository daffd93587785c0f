"""docker-compose.yml as `docker compose` reads it."""

import re
from graphlib import TopologicalSorter
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[1]
UNITS = {"m": 1 << 20, "g": 1 << 30}


def text() -> str:
    """The file as it is written."""
    return (ROOT / "docker-compose.yml").read_text(encoding="utf-8")


def compose(**variables: str) -> dict[str, Any]:
    """The file as it reads with these variables: `${NAME:-default}`, `${NAME:+what stands for a value}`, `$$`."""

    def value(use: re.Match[str]) -> str:
        name, kind, other = use.groups()
        if name is None:
            return "$"
        return variables.get(name) or other if kind == "-" else other if variables.get(name) else ""

    loaded: dict[str, Any] = yaml.safe_load(re.sub(r"\$\$|\$\{(\w+):([-+])([^}]*)\}", value, text()))
    return loaded


def conditions(service: dict[str, Any]) -> dict[str, str]:
    """The services that it waits for, and for what of each."""
    waits = service.get("depends_on", {})
    return {name: waits[name]["condition"] if isinstance(waits, dict) else "service_started" for name in waits}


def in_order(services: dict[str, Any]) -> list[str]:
    """Their names, each after those that it waits for."""
    return list(TopologicalSorter({name: conditions(each) for name, each in services.items()}).static_order())


def bytes_of(size: str) -> int:
    """Of `3g` and `512m`."""
    return int(size[:-1]) * UNITS[size[-1]]
