"""Freed memory stays with the process, so that the second allocation of an array costs no page faults."""

import os
import platform
import subprocess
import sys

import pytest

from trainer.models.cpu.blas import mlx_runs_on_linux_cpu

BLOCK = 64 * 2**20
FAULTS = f"""
import resource, trainer, mlx.core as mx
def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    mx.eval(mx.zeros(({BLOCK // 4},)) + 1)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
faults()
print(faults())
"""


def page_faults_of_a_second_block(**env: str) -> int:
    inherited = {key: value for key, value in os.environ.items() if not key.startswith(("MALLOC_", "GLIBC_"))}
    done = subprocess.run(
        [sys.executable, "-c", FAULTS], env=inherited | env, capture_output=True, text=True, check=True
    )
    return int(done.stdout)


@pytest.mark.skipif(not mlx_runs_on_linux_cpu() or platform.libc_ver()[0] != "glibc", reason="for glibc on a CPU only")
def test_freed_memory_is_used_again_unless_the_user_has_settings_of_their_own() -> None:
    pages = BLOCK // os.sysconf("SC_PAGESIZE")
    assert page_faults_of_a_second_block() < pages / 20
    assert page_faults_of_a_second_block(MALLOC_MMAP_THRESHOLD_="65536") >= pages
