"""Two hosts on one machine: two network namespaces with their own addresses, joined by a cable (a veth pair).

Rates are shaped by `tc` (a token bucket on either end). Latency would need netem, which not every kernel has: instead,
the cable is two TUN devices with a relay between them that holds every packet back; it costs some processor time.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import selectors
import shutil
import signal
import struct
import subprocess
import sys
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

CABLE = "cable0"
ADDRESSES = ("10.77.0.1", "10.77.0.2")
PACKET = 65_000  # bytes of the largest packet a TUN device takes: few packets, so that the relay is not the limit


def missing() -> str:
    """Why this machine cannot play two hosts; "" if it can."""
    for tool in ("ip", "tc"):
        if not shutil.which(tool):
            return f"{tool} is not installed (iproute2)"
    name = f"bertkit-try-{os.getpid()}"
    tried = subprocess.run(["ip", "netns", "add", name], capture_output=True, text=True)
    if tried.returncode:
        return f"network namespaces are not permitted here: {tried.stderr.strip()}"
    _run("ip", "netns", "del", name)
    return ""


def shaping(mbit: int) -> list[str]:
    """The words for `tc` that limit what an end of the cable sends."""
    burst = max(PACKET * 2, mbit * 125)  # bytes: what a millisecond carries
    return ["tbf", "rate", f"{mbit}mbit", "burst", str(burst), "latency", "200ms"]


def _run(*words: str) -> None:
    done = subprocess.run(words, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{' '.join(words)}: {done.stderr.strip()}")


class Hosts:
    """Two namespaces, connected. `start(0, command)` runs a command on the first of them."""

    def __init__(self, ms: float = 0.0) -> None:
        self.names = [f"bertkit-{os.getpid()}-{n}" for n in (0, 1)]
        self.relay: subprocess.Popen[bytes] | None = None
        for name in self.names:
            _run("ip", "netns", "add", name)
        if ms:
            self._delayed(ms)
        else:
            _run(
                "ip",
                "link",
                "add",
                CABLE,
                "netns",
                self.names[0],
                "type",
                "veth",
                "peer",
                "name",
                CABLE,
                "netns",
                self.names[1],
            )
        for name, address in zip(self.names, ADDRESSES):
            _run("ip", "-n", name, "addr", "add", f"{address}/24", "dev", CABLE)
            _run("ip", "-n", name, "link", "set", CABLE, "up")
            _run("ip", "-n", name, "link", "set", "lo", "up")

    def _delayed(self, ms: float) -> None:
        for name in self.names:
            _run("ip", "netns", "exec", name, "ip", "tuntap", "add", "dev", CABLE, "mode", "tun")
            _run("ip", "-n", name, "link", "set", CABLE, "mtu", str(PACKET))
        self.relay = subprocess.Popen([sys.executable, __file__, str(ms), *self.names])
        time.sleep(0.5)

    def start(
        self, host: int, command: Sequence[str], log: IO[Any] | int | None, **more: Any
    ) -> subprocess.Popen[bytes]:
        """Start a command on a host; its exit code is the command's."""
        words = ["ip", "netns", "exec", self.names[host], *command]
        return subprocess.Popen(words, stdout=log, stderr=log, start_new_session=True, **more)

    def processes(self, host: int) -> list[int]:
        """Every process on a host."""
        listed = subprocess.run(["ip", "netns", "pids", self.names[host]], capture_output=True, text=True).stdout
        return [int(number) for number in listed.split()]

    def kill(self, host: int) -> None:
        """Kill every process on a host, as if its power went."""
        for number in self.processes(host):
            with suppress(ProcessLookupError):
                os.kill(number, signal.SIGKILL)

    def close(self) -> None:
        """Kill what still runs on the hosts, and remove them."""
        for host in (0, 1):
            self.kill(host)
        if self.relay is not None:
            self.relay.kill()
            self.relay.wait()
        for name in self.names:
            subprocess.run(["ip", "netns", "del", name], capture_output=True)


@contextmanager
def two_hosts(ms: float = 0.0) -> Iterator[Hosts]:
    """Two connected hosts that are gone afterwards. ms: latency of the cable, one way."""
    hosts = Hosts(ms)
    try:
        yield hosts
    finally:
        hosts.close()


def _tun(namespace: str) -> int:
    """The file of the TUN device of a namespace."""
    libc = ctypes.CDLL(None, use_errno=True)
    with Path(f"/run/netns/{namespace}").open() as file:
        if libc.setns(file.fileno(), 0x40000000):  # CLONE_NEWNET
            raise OSError(ctypes.get_errno(), "setns")
    device = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(device, 0x400454CA, struct.pack("16sH22x", CABLE.encode(), 0x1001))  # TUNSETIFF: IFF_TUN, IFF_NO_PI
    return device


def relay(ms: float, names: Sequence[str]) -> None:
    """Carry packets between the TUN devices of two namespaces, each `ms` after it came; until killed."""
    ends = [_tun(name) for name in names]
    other = {ends[0]: ends[1], ends[1]: ends[0]}
    waiting: deque[tuple[float, int, bytes]] = deque()
    chosen = selectors.DefaultSelector()
    for end in ends:
        chosen.register(end, selectors.EVENT_READ)
    while True:
        patience = max(0.0, waiting[0][0] - time.monotonic()) if waiting else None
        for key, _ in chosen.select(patience):
            with suppress(BlockingIOError):
                waiting.append((time.monotonic() + ms / 1000, other[key.fd], os.read(key.fd, PACKET + 100)))
        while waiting and waiting[0][0] <= time.monotonic():
            _, end, packet = waiting.popleft()
            with suppress(OSError):  # a full or a vanished device loses packets, as a cable does
                os.write(end, packet)


if __name__ == "__main__":
    relay(float(sys.argv[1]), sys.argv[2:])
