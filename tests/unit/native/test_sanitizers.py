"""The extension under sanitizers: built apart, run in processes of their own."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
KERNEL_TESTS = (
    "tests/unit/native",
    "tests/unit/native_kernels/test_recurrent.py",
    "tests/exactness/test_native_forward.py",
    "tests/exactness/test_native_mixers.py",
)

RUNTIMES = {
    "address": ("libasan.so", "libstdc++.so"),
    "undefined": ("libubsan.so", "libstdc++.so"),
}
"""What has to be loaded before Python."""

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("c++") is None, reason="no C++ compiler"),
]


def build(folder: Path, sanitizer: str, target: str) -> None:
    cmake = shutil.which("cmake")
    if cmake is None:
        pytest.skip("no cmake")
    python = f"-DPython_EXECUTABLE={sys.executable}"
    options = ["-DCMAKE_BUILD_TYPE=Release", f"-DTENURE_SANITIZE={sanitizer}", python]
    subprocess.run([cmake, "-S", ROOT, "-B", folder, *options], check=True, capture_output=True)
    jobs = str(os.cpu_count() or 1)
    command = [cmake, "--build", folder, "--target", target, "--parallel", jobs]
    subprocess.run(command, check=True, capture_output=True)


def library(name: str) -> str:
    """Where the compiler keeps a shared library."""
    found = subprocess.run(
        ["c++", f"-print-file-name={name}"], check=True, capture_output=True, text=True
    )
    return found.stdout.strip()


def test_the_pool_is_free_of_races(tmp_path):
    build(tmp_path, "thread", "pool_stress")
    subprocess.run([tmp_path / "pool_stress"], check=True, timeout=300)


@pytest.mark.parametrize("sanitizer", ["address", "undefined"])
def test_kernels_are_clean(tmp_path, sanitizer):
    """Runs the other tests of the extension against a sanitized build of it."""
    build(tmp_path / "build", sanitizer, "_native")
    package = tmp_path / "src" / "tenure"
    shutil.copytree(ROOT / "src" / "tenure", package, ignore=shutil.ignore_patterns("*.so"))
    (module,) = (tmp_path / "build").glob("_native*.so")
    shutil.copy(module, package)
    environment = os.environ | {
        "PYTHONPATH": str(package.parent),
        "ASAN_OPTIONS": "detect_leaks=0",
        "LD_PRELOAD": " ".join(map(library, RUNTIMES[sanitizer])),
        "PYTHONMALLOC": "malloc",
        "OMP_NUM_THREADS": "1",
    }
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-m", "not slow and not weights"]
    done = subprocess.run(
        [*command, "-p", "no:cacheprovider", "-o", f"pythonpath={package.parent}", *KERNEL_TESTS],
        check=False,
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=1800,
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
