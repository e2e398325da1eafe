"""Every kernel gives the same bits on all instruction sets of x86-64 and aarch64.

The program `kernel_digest` runs the kernels on seeded inputs. Built for this machine it runs here;
built for aarch64 it runs under QEMU, which stands for a CPU with and one without dot products of
8-bit integers. It says nothing of speed.
"""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
ARM_COMPILER = "aarch64-linux-gnu-g++"
ARM_LIBRARIES = "/usr/aarch64-linux-gnu"

Digests = dict[str, dict[str, str]]
"""By instruction set: kernel to digest."""

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("c++") is None, reason="no C++ compiler"),
    pytest.mark.skipif(shutil.which("cmake") is None, reason="no cmake"),
]


def build(folder: Path, *options: str) -> Path:
    configure = ["cmake", "-S", ROOT, "-B", folder, "-DTENURE_MODULE=OFF", *options]
    subprocess.run(configure, check=True, capture_output=True)
    jobs = str(os.cpu_count() or 1)
    command = ["cmake", "--build", folder, "--target", "kernel_digest", "--parallel", jobs]
    subprocess.run(command, check=True, capture_output=True)
    return folder / "kernel_digest"


def digests(*command: str | Path) -> Digests:
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=600)
    found: Digests = {}
    for line in done.stdout.splitlines():
        isa, kernel, digest = line.split()
        found.setdefault(isa, {})[kernel] = digest
    return found


@pytest.fixture(scope="module")
def here(tmp_path_factory) -> Digests:
    return digests(build(tmp_path_factory.mktemp("here")))


@pytest.fixture(scope="module")
def arm_program(tmp_path_factory) -> Path:
    for program in (ARM_COMPILER, "qemu-aarch64"):
        if shutil.which(program) is None:
            pytest.skip(f"no {program}")
    return build(
        tmp_path_factory.mktemp("aarch64"),
        "-DCMAKE_SYSTEM_NAME=Linux",
        "-DCMAKE_SYSTEM_PROCESSOR=aarch64",
        f"-DCMAKE_CXX_COMPILER={ARM_COMPILER}",
    )


def test_instruction_sets_of_this_machine_agree(here):
    assert here["portable"]
    if len(here) == 1:
        pytest.skip("only portable code runs here")
    for isa, found in here.items():
        assert found == here["portable"], isa


@pytest.mark.parametrize(
    ("cpu", "isas"),
    [
        ("cortex-a72", {"portable", "neon"}),
        ("cortex-a76", {"portable", "neon", "neondot"}),
    ],
)
def test_aarch64_agrees(here, arm_program, cpu, isas):
    found = digests("qemu-aarch64", "-cpu", cpu, "-L", ARM_LIBRARIES, arm_program)
    assert found.keys() == isas
    for isa in isas:
        assert found[isa] == here["portable"], isa
