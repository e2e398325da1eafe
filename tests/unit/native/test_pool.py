"""Threads of the extension: any number, from several callers, across a fork."""

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from tenure.backend.native_model import ENCODING_NUMBERS
from tenure.model.weights.base import Encoding
from tenure.testing.quantise import quantise

native = pytest.importorskip("tenure._native", reason="built without the extension")

N_OUT, N_IN = 640, 256


def make(threads):
    values = np.random.default_rng(0).standard_normal((N_OUT, N_IN))
    stored = quantise(values, Encoding.Q8_0)
    number = ENCODING_NUMBERS[Encoding.Q8_0]
    return native.Matrix(number, stored, N_OUT, N_IN, 0, native.detect_isa(), threads)


def apply(matrix):
    x = np.random.default_rng(1).standard_normal((9, N_IN)).astype(np.float32)
    out = np.zeros((9, N_OUT), np.float32)
    matrix.load(x)
    matrix.apply(out)
    return out


@pytest.mark.parametrize("threads", [2, 5, 17])
def test_more_threads_than_cores_give_the_same(threads):
    expected = apply(make(1))
    matrix = make(threads)
    for _ in range(20):
        np.testing.assert_array_equal(apply(matrix), expected)


def test_pools_work_side_by_side():
    expected = apply(make(1))

    def many(threads):
        matrix = make(threads)
        return [apply(matrix) for _ in range(20)]

    with ThreadPoolExecutor(4) as callers:
        for results in callers.map(many, [1, 2, 3, 3]):
            for result in results:
                np.testing.assert_array_equal(result, expected)


FORK = """
import os, sys
sys.path.insert(0, {folder!r})
import numpy as np
from test_pool import apply, make

matrix = make(3)
expected = apply(matrix)
child = os.fork()
if child == 0:
    same = np.array_equal(apply(matrix), expected)
    del matrix
    os._exit(0 if same else 1)
_, status = os.waitpid(child, 0)
assert os.waitstatus_to_exitcode(status) == 0
assert np.array_equal(apply(matrix), expected)
"""


def run(program, *flags):
    """In a process of its own, so that a fork copies no other thread of the tests."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, *flags, "-c", program.format(folder=str(Path(__file__).parent))]
    subprocess.run(command, check=True, timeout=60, env=environment)


def test_a_forked_child_computes_with_threads_of_its_own():
    run(FORK, "-W", "ignore")


def test_a_process_exits_while_workers_sleep():
    run(FORK.split("child =", maxsplit=1)[0])
