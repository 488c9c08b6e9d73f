"""Files of hosts: both forms, the addresses of names, and what each mistake is told."""

from __future__ import annotations

import json
import os
import socket
from pathlib import Path
from typing import Any

import pytest
from mlx._distributed_utils.common import Hostfile

from trainer.distributed.hosts import free_port, local_hosts, read_hosts
from trainer.errors import UsageError

ADDRESSES = {"a": "10.0.0.1", "b.local": "10.0.0.2", "here": "127.0.1.1"}


@pytest.fixture(autouse=True)
def _names(monkeypatch: pytest.MonkeyPatch) -> None:
    """Look names up in ADDRESSES."""

    def looked_up(name: str) -> str:
        name.encode("idna")  # as the real one does
        if name not in ADDRESSES:
            raise socket.gaierror("unknown")
        return ADDRESSES[name]

    monkeypatch.setattr(socket, "gethostbyname", looked_up)


def written(folder: Path, content: Any) -> Path:
    file = folder / "hosts.json"
    file.write_text(content if isinstance(content, str) else json.dumps(content))
    return file


def test_a_list_of_names_gets_addresses_in_the_order_of_the_ranks(tmp_path: Path) -> None:
    hosts = read_hosts(written(tmp_path, ["a", "me@b.local", "a"]))
    assert hosts.names == ["a", "me@b.local", "a"]
    assert [host["ips"] for host in hosts.hosts] == [["10.0.0.1"], ["10.0.0.2"], ["10.0.0.1"]]
    assert hosts.backend == "ring"


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # mlx leaves the file open
def test_mlx_launch_reads_what_is_written_of_its_own_form(tmp_path: Path) -> None:
    own = [
        {"ssh": "x", "ips": ["192.168.1.1"], "rdma": [None, "rdma_en2"]},
        {"ssh": "y", "ips": ["192.168.1.2", "192.168.2.2"], "rdma": ["rdma_en2", None]},
    ]
    hosts = read_hosts(written(tmp_path, {"backend": "jaccl", "envs": ["A=1"], "hosts": own}))
    assert hosts.hosts == own
    read = Hostfile.from_file(str(written(tmp_path, hosts._asdict())))
    assert (read.backend, read.envs) == ("jaccl", ["A=1"])
    assert [host.ips for host in read.hosts] == [["192.168.1.1"], ["192.168.1.2", "192.168.2.2"]]
    assert read_hosts(written(tmp_path, own), "ring").backend == "ring"


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("[", "not JSON"),
        ({"host": []}, "unknown field 'host'"),
        ("5", "no list of hosts"),
        (["a"], "1 of the two or more ranks"),
        (["a", 5], "host 2 is 5"),
        (["a", ""], 'host 2 is ""'),
        (["a", "nowhere"], "the address of 'nowhere' is unknown"),
        (["a", "here"], "cannot reach 'here' at a loopback address"),
        ([{"ssh": "a", "ips": "10.0.0.1"}, "a"], "ips must be a list"),
        ([{"ssh": "a", "ips": ["b.local"]}, "a"], "'b.local' is not an address"),
        ([{"ssh": "a", "port": 1}, "a"], "unknown field 'port'"),
        ([{"ssh": "a", "rdma": "en2"}, "a"], "rdma must be a list"),
        ({"hosts": ["a", "a"], "backend": "mpi"}, "backend 'mpi' is unknown"),
        ({"hosts": ["a", "a"], "envs": ["A"]}, "envs must be a list"),
        ({"hosts": ["a", "a"], "envs": ["A=\0"]}, "envs must be a list"),
        ({"hosts": ["a", "a"], "envs": ["A;B=1"]}, "envs must be a list"),
        ("[" * 100_000, "not JSON"),
        (f"[{'1' * 10_000}]", "not JSON"),
        (["a", "-oProxyCommand=touch x"], "is not the name of a host"),
        (["a", "me@-oProxyCommand=touch x"], "is not the name of a host"),
        (["a", "a b"], "is not the name of a host"),
        (["a", "a\0b"], "is not the name of a host"),
        (["a", "a\n"], "is not the name of a host"),
        ([{"ssh": "-v", "ips": ["10.0.0.1"]}, "a"], "is not the name of a host"),
        (["a", "a" * 300], "is unknown"),
        ([{"ssh": "a", "rdma": [{}]}, "a"], "rdma must be a list"),
    ],
)
def test_a_mistake_is_one_line_that_names_it(content: Any, says: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError) as refused:
        read_hosts(written(tmp_path, content))
    assert says in str(refused.value)
    assert len(str(refused.value).splitlines()) == 1


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"cannot read the hosts in .*nope"):
        read_hosts(tmp_path / "nope")


@pytest.mark.parametrize("what", ["pipe", "device", "folder", "large"])
def test_only_a_file_of_a_moderate_size_is_read(what: str, tmp_path: Path) -> None:
    path = tmp_path / "hosts.json"
    match what:
        case "pipe":
            os.mkfifo(path)
        case "device":
            path.symlink_to("/dev/zero")
        case "folder":
            path.mkdir()
        case "large":
            path.write_text(f'["a"{" " * (1 << 20)}]')
    with pytest.raises(UsageError, match=r"cannot read the hosts in .*hosts\.json: "):
        read_hosts(path)


def test_this_machine_several_times() -> None:
    assert local_hosts(3).names == ["127.0.0.1"] * 3
    with pytest.raises(UsageError, match="--local gives 1"):
        local_hosts(1)


def test_the_ports_of_local_ranks_are_free() -> None:
    with socket.socket() as one:
        one.bind(("127.0.0.1", free_port(1)))
        taken = one.getsockname()[1]
        first = free_port(3)
        assert taken not in range(first, first + 3)
