"""The hosts of a run's ranks, as `mlx.launch` wants them: from a file, or this machine several times."""

from __future__ import annotations

import ipaddress
import json
import re
import socket
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

from trainer.errors import UsageError, shortened
from trainer.files import read_given

Backend = Literal["ring", "jaccl", "jaccl-ring", "nccl"]
BACKENDS: tuple[Backend, ...] = get_args(Backend)
LOCAL = "127.0.0.1"
"""The name by which mlx.launch starts a rank without ssh."""

_FORM = 'a list of host names, or {"hosts": [{"ssh": NAME, "ips": [ADDRESS]}, ...]}'
_PORTS = range(32323, 60000)


class Hosts(NamedTuple):
    """Hosts of the ranks, in the order of the ranks, and how these talk to each other."""

    hosts: list[dict[str, Any]]  # ssh: name; ips: addresses; rdma: devices, which other backends than the ring need
    backend: Backend
    envs: list[str]  # NAME=VALUE

    @property
    def names(self) -> list[str]:
        """Names by which ssh reaches the hosts."""
        return [host["ssh"] for host in self.hosts]


def local_hosts(count: int, backend: Backend | None = None) -> Hosts:
    """Return this machine `count` times. Raises UsageError for fewer than two ranks."""
    return _checked([{"ssh": LOCAL, "ips": [LOCAL]} for _ in range(count)], backend or "ring", [], "--local")


def read_hosts(path: Path, backend: Backend | None = None) -> Hosts:
    """Read a file of hosts: mlx.launch's own form, or a list of names, whose addresses are looked up.

    backend: instead of the file's. Raises UsageError for what does not fit.
    """
    try:
        content = json.loads(read_given(path))
    except OSError as error:
        raise UsageError(f"cannot read the hosts in {path}: {error.strerror}: check the path") from None
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{path} is not JSON ({shortened(str(error))}): write {_FORM}") from None
    table = content if isinstance(content, dict) else {"hosts": content}
    if unknown := sorted(table.keys() - {"hosts", "backend", "envs"}):
        raise UsageError(f"{path}: unknown field '{shortened(unknown[0])}': write {_FORM}")
    hosts, envs = table.get("hosts"), table.get("envs", [])
    if not isinstance(hosts, list):
        raise UsageError(f"{path} has no list of hosts: write {_FORM}")
    if not _are_texts(envs) or not all(re.fullmatch(r"[A-Za-z_]\w*=[^\0]*", each, re.ASCII) for each in envs):
        raise UsageError(f"{path}: envs must be a list of texts such as 'NAME=VALUE'")
    named = backend or table.get("backend") or "ring"
    if named not in BACKENDS:
        raise UsageError(f"{path}: backend {shortened(repr(named))} is unknown: use {', '.join(BACKENDS)}")
    found = [_host(entry, f"{path}: host {place}") for place, entry in enumerate(hosts, 1)]
    return _checked(found, named, envs, str(path))


def free_port(count: int) -> int:
    """Return the first of `count` ports in a row that nobody on this machine listens on."""
    for first in range(_PORTS.start, _PORTS.stop, count):
        if all(_is_free(port) for port in range(first, first + count)):
            return first
    raise UsageError(f"no {count} free ports in a row between {_PORTS.start} and {_PORTS.stop}")


def _checked(hosts: list[dict[str, Any]], backend: Backend, envs: list[str], source: str) -> Hosts:
    if len(hosts) < 2:
        raise UsageError(f"{source} gives {len(hosts)} of the two or more ranks; for one, use ppo-workbench --no-ui")
    loopback = [host["ssh"] for host in hosts if any(_is_loopback(ip) for ip in host["ips"])]
    if loopback and len(loopback) < len(hosts):
        raise UsageError(
            f"{source}: the other hosts cannot reach '{loopback[0]}' at a loopback address: give the address that it "
            'has in their network, as in {"ssh": "127.0.0.1", "ips": ["192.168.1.10"]}'
        )
    return Hosts(hosts, backend, envs)


def _host(entry: object, where: str) -> dict[str, Any]:
    """Return a host in mlx.launch's form; a mere name gets the address that it has here."""
    if isinstance(entry, str) and entry:
        name = _name(LOCAL if entry == "localhost" else entry, where)
        return {"ssh": name, "ips": [_address(name, where)], "rdma": []}
    if not isinstance(entry, dict) or not isinstance(entry.get("ssh"), str) or not entry["ssh"]:
        raise UsageError(f"{where} is {shortened(json.dumps(entry))}: write a name, or {_FORM.partition('[')[2][:-6]}")
    if unknown := sorted(entry.keys() - {"ssh", "ips", "rdma"}):
        raise UsageError(f"{where}: unknown field '{shortened(unknown[0])}': use ssh, ips and rdma")
    ips, rdma = entry.get("ips", []), entry.get("rdma", [])
    if not _are_texts(ips):
        raise UsageError(f"{where}: ips must be a list of addresses such as '192.168.1.10'")
    for ip in ips:
        if not _is_address(ip):
            raise UsageError(f"{where}: '{shortened(ip)}' is not an address such as '192.168.1.10'")
    if not isinstance(rdma, list) or not all(one is None or isinstance(one, str) or _are_texts(one) for one in rdma):
        raise UsageError(f"{where}: rdma must be a list with a device for each host, null for itself")
    name = _name(entry["ssh"], where)
    return {"ssh": name, "ips": ips or [_address(name, where)], "rdma": rdma}


def _name(name: str, where: str) -> str:
    """Return `name`. Raises UsageError unless ssh takes it for a host: one that begins with - would be an option."""
    if not re.fullmatch(r"(\w[\w.\-]*@)?\w[\w.\-:%]*", name):
        raise UsageError(f"{where}: {shortened(repr(name))} is not the name of a host: write it as in 'user@host'")
    return name


def _address(name: str, where: str) -> str:
    host = name.rpartition("@")[2]  # of user@host
    try:
        return socket.gethostbyname(host)
    except (OSError, UnicodeError):  # a label of a name that is too long
        raise UsageError(
            f"{where}: the address of '{shortened(host)}' is unknown here: give it, as in "
            f'{{"ssh": "{shortened(name)}", "ips": ["192.168.1.10"]}}'
        ) from None


def _are_texts(values: object) -> bool:
    return isinstance(values, list) and all(isinstance(value, str) for value in values)


def _is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


def _is_loopback(ip: str) -> bool:
    return ipaddress.ip_address(ip).is_loopback


def _is_free(port: int) -> bool:
    with socket.socket() as one:
        try:
            one.bind((LOCAL, port))
        except OSError:
            return False
    return True
