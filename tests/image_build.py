"""docker/Dockerfile built without Docker: by Debian's buildah, on a base that debootstrap makes."""

import ast
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from compose_file import ROOT
from container import Image

DOCKERFILE = ROOT / "docker/Dockerfile"
NEEDS = {
    "buildah": "buildah", "debootstrap": "debootstrap", "ip": "iproute2",
    "nsenter": "util-linux", "setpriv": "util-linux", "unshare": "util-linux",
}  # fmt: skip
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
BASE_PACKAGES = "ca-certificates,python3,python3-pip,python3-venv,python-is-python3"
TAG = "localhost/polyrank:test"


def refusal() -> str:
    """Why this machine cannot build and run images, and what to do; empty if it can."""
    if sys.platform != "linux" or os.geteuid() != 0:
        return "make test-image mounts file systems and changes roots: run it as root, on Linux"
    missing = {package for tool, package in NEEDS.items() if shutil.which(tool) is None}
    return f"make test-image needs more tools: apt-get install {' '.join(sorted(missing))}" if missing else ""


def base_name() -> str:
    """The image that the Dockerfile begins with."""
    stages: set[str] = set()
    bases: set[str] = set()
    for base, stage in re.findall(r"^FROM (\S+) AS (\S+)$", DOCKERFILE.read_text(encoding="utf-8"), re.MULTILINE):
        if base not in stages:
            bases.add(base)
        stages.add(stage)
    [found] = bases
    return found


@dataclass(frozen=True, slots=True)
class Layer:
    """What one instruction added, as an archive."""

    made_by: str
    archive: Path

    @property
    def size(self) -> int:
        """In bytes, not compressed."""
        return self.archive.stat().st_size

    def files(self) -> list[str]:
        """The names of what is in it, from the root."""
        with tarfile.open(self.archive) as layer:
            return [member.name.removeprefix("./") for member in layer]


class Pip:
    """The settings of this machine's pip: a build asks the indexes that this machine asks."""

    def __init__(self, folder: Path) -> None:
        listed = subprocess.run(
            [sys.executable, "-m", "pip", "config", "list"], text=True, capture_output=True, check=True
        )
        named = [line.partition("=") for line in listed.stdout.splitlines()]
        ranked = sorted(named, key=lambda each: each[0].startswith(":env:"))  # variables win
        self.settings = {key.rpartition(".")[2]: " ".join(ast.literal_eval(value).split()) for key, _, value in ranked}
        self._file = folder / "pip.conf"
        lines = [f"{name} = {value}" for name, value in self.settings.items()]
        self._file.write_text("\n".join(["[global]", *lines, ""]), encoding="utf-8")

    def mounts(self) -> dict[Path, str]:
        """What the settings name on this machine -> where it is in the build."""
        found = {self._file: "/etc/pip.conf"}
        for word in " ".join(self.settings.values()).split():
            path = Path(word.removeprefix("file://"))
            if path.is_absolute() and path.exists():
                held = path.parent if word.startswith("file://") else path  # an index's files lie beside it
                found[held] = str(held)
        return found

    @property
    def torch_index(self) -> str:
        """Where torch for processors is; empty: where the Dockerfile says."""
        return os.environ.get("TORCH_INDEX") or self.settings.get("extra-index-url", "").partition(" ")[0]


class Workshop:
    """A folder of its own with buildah's storage; `log` holds what the tools say."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.log = folder, folder / "log"
        self._pip = Pip(folder)
        policy = folder / "policy.json"
        policy.write_text('{"default": [{"type": "insecureAcceptAnything"}]}', encoding="utf-8")
        registries = folder / "registries.conf"
        registries.write_text('unqualified-search-registries = ["docker.io"]\n', encoding="utf-8")
        self._environment = {
            **os.environ,
            "TMPDIR": str(folder),  # cache mounts are there, too
            "CONTAINERS_REGISTRIES_CONF": str(registries),
            "BUILDAH_ISOLATION": "chroot",
        }

    def run(self, *command: str) -> str:
        """What a tool prints; the log gets all that it says."""
        with self.log.open("a") as log:
            print("$", *command, file=log, flush=True)
            done = subprocess.run(
                command, stdout=subprocess.PIPE, stderr=log, text=True, env=self._environment, stdin=subprocess.DEVNULL
            )
            log.write(done.stdout)
        assert done.returncode == 0, self.log.read_text()[-8000:]
        return done.stdout.strip()

    def buildah(self, *arguments: str) -> str:
        """Run it with the storage in this folder: overlays where the machine has them, else copies."""
        storage = ["--root", str(self.folder / "storage"), "--runroot", str(self.folder / "run")]
        return self.run("buildah", *storage, *arguments)

    def close(self) -> None:
        """Unmount what is mounted; the folder can be removed then."""
        self.buildah("rm", "--all")

    def bootstrap(self, packages: str, root: Path) -> None:
        """Put a small Debian with these packages there: of the release that the Dockerfile names."""
        cache = self.folder / "packages"
        cache.mkdir(exist_ok=True)
        options = ["--variant=minbase", f"--include={packages}", f"--cache-dir={cache}"]
        # In a space of its own: what it mounts there is gone when it ends, however it ends.
        self.run("unshare", "--mount", "debootstrap", *options, base_name().rpartition("-")[2], str(root))
        for kept in (*root.glob("var/cache/apt/archives/*.deb"), *root.glob("var/lib/apt/lists/*_*")):
            kept.unlink()

    def make_base(self) -> None:
        """Make what stands for the Dockerfile's base, under its name."""
        name = self.buildah("from", "scratch")
        root = Path(self.buildah("mount", name))
        self.bootstrap(BASE_PACKAGES, root)
        for source, target in self._pip.mounts().items():  # there already: mounting them adds nothing to a layer
            place = root / target.lstrip("/")
            (place if source.is_dir() else place.parent).mkdir(parents=True, exist_ok=True)
            if source.is_file():
                place.touch()
        self.buildah("config", "--env", f"PATH={PATH}", name)
        self.buildah("commit", "--format", "docker", "--rm", name, f"docker.io/library/{base_name()}")

    def build(self, target: str) -> None:
        """Build a target of the Dockerfile, a layer for each instruction."""
        volumes = [f"--volume={source}:{place}:ro" for source, place in self._pip.mounts().items()]
        index = [f"--build-arg=TORCH_INDEX={self._pip.torch_index}"] if self._pip.torch_index else []
        options = ["--format", "docker", "--layers", "--pull-never", *index, *volumes]
        self.buildah("build", *options, "--file", str(DOCKERFILE), "--target", target, "--tag", TAG, str(ROOT))

    @cached_property
    def _described(self) -> dict[str, Any]:
        described: dict[str, Any] = json.loads(self.buildah("inspect", "--type", "image", TAG))["Docker"]
        return described

    def layers(self) -> list[Layer]:
        """Those of the image, the base's first."""
        archives = self.folder / "archives"
        self.buildah("push", "--disable-compression", TAG, f"dir:{archives}")
        manifest = json.loads((archives / "manifest.json").read_text(encoding="utf-8"))
        makers = [each.get("created_by", "") for each in self._described["history"] if not each.get("empty_layer")]
        paths = [archives / each["digest"].partition(":")[2] for each in manifest["layers"]]
        return [Layer(maker.split("#(nop) ")[-1], path) for maker, path in zip(makers, paths, strict=True)]

    def image(self) -> Image:
        """The image, its files laid out to be run."""
        config = self._described["config"]
        check = config["Healthcheck"]
        root = Path(self.buildah("mount", self.buildah("from", "--pull-never", TAG)))
        return Image(
            root=root,
            user=config["User"],
            environment=dict(each.split("=", 1) for each in config["Env"]),
            entrypoint=tuple(config["Entrypoint"]),
            command=tuple(config["Cmd"]),
            folder=config["WorkingDir"],
            probe=tuple(check["Test"][1:]),
            patience_s=(check["StartPeriod"] + check["Retries"] * check["Interval"]) / 1e9,
        )
