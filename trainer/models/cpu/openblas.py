"""OpenBLAS from the package `scipy-openblas32`, under the name by which MLX calls it.

The package prefixes every name, so that programs with another BLAS can use it too: `scipy_cblas_sgemm`. A library of
one function, compiled once into the user's cache, gives it the plain name.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import platform
import stat
import subprocess
from pathlib import Path

from trainer.files import cache_folder

_PACKAGE = "scipy_openblas32"
_SOURCE = """
extern "C" {
void scipy_cblas_sgemm(int order, int transpose_a, int transpose_b, int m, int n, int k, float alpha, const float* a,
                       int lda, const float* b, int ldb, float beta, float* c, int ldc);

void cblas_sgemm(int order, int transpose_a, int transpose_b, int m, int n, int k, float alpha, const float* a,
                 int lda, const float* b, int ldb, float beta, float* c, int ldc) {
  scipy_cblas_sgemm(order, transpose_a, transpose_b, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc);
}
}
"""


def is_installed() -> bool:
    """Return whether the package is there."""
    return _library() is not None


def named_library() -> Path:
    """Return a library that has the package's `cblas_sgemm` under that name; compile it on the first call.

    This takes about 0.1 s and needs g++, as MLX's own kernels do. Raises OSError if the package or g++ is absent, or
    the cache is not writable or belongs to another user.
    """
    library = _library()
    if library is None:
        raise FileNotFoundError("the package scipy-openblas32 is not installed")
    content = "\n".join((_SOURCE, str(library), platform.machine())).encode()
    target = _own_folder() / f"cblas-{hashlib.sha256(content).hexdigest()[:16]}.so"
    if not target.is_file():
        _compile(library, target)
    return target


def _library() -> Path | None:
    spec = importlib.util.find_spec(_PACKAGE)
    for place in (spec.submodule_search_locations or ()) if spec else ():
        if (library := Path(place) / "lib" / "libscipy_openblas.so").is_file():
            return library
    return None


def _own_folder() -> Path:
    """Return a folder of the cache that nobody else can put a library into. Raises OSError."""
    folder = cache_folder() / "blas"
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    found = folder.stat()
    if found.st_uid != os.geteuid() or found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise PermissionError(f"'{folder}' can be written by other users")
    return folder


def _compile(library: Path, target: Path) -> None:
    """Write the library whole or not at all, also if several processes do so at once. Raises OSError."""
    new = target.with_suffix(f".{os.getpid()}")
    command = ["g++", "-O2", "-shared", "-fPIC", "-x", "c++", "-", "-o", str(new)]
    command += [f"-L{library.parent}", "-lscipy_openblas", f"-Wl,-rpath,{library.parent}"]
    try:
        done = subprocess.run(command, input=_SOURCE, capture_output=True, text=True, check=False)
        if done.returncode:
            raise OSError(f"g++ failed: {(done.stderr.strip().splitlines() or ['without a message'])[-1]}")
        new.replace(target)
    finally:
        new.unlink(missing_ok=True)
