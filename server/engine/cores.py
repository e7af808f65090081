"""How many cores and how much memory this process may use."""

from __future__ import annotations

import os
import platform
import subprocess
from pathlib import Path


def available_memory() -> int | None:
    """Bytes of main memory that can be had without swapping; None where the system does not say."""
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    except OSError:
        return None
    found = [line.split()[1] for line in lines if line.startswith("MemAvailable:")]
    return int(found[0]) * 1024 if found else None


def physical_cores() -> int:
    """Cores this process may use: hyper-threads count once, container limits are kept."""
    if platform.system() == "Darwin":
        return _mac_cores() or os.cpu_count() or 1
    try:
        allowed = os.sched_getaffinity(0)
    except (AttributeError, OSError):
        return os.cpu_count() or 1
    topology = Path("/sys/devices/system/cpu")
    siblings = {
        _first_line(topology / f"cpu{cpu}/topology/thread_siblings_list") or str(cpu) for cpu in allowed
    }
    quota = _first_line(Path("/sys/fs/cgroup/cpu.max")).split()
    cores = len(siblings)
    if len(quota) == 2 and quota[0].isdecimal():
        cores = min(cores, max(1, int(quota[0]) // int(quota[1])))
    return cores


def _mac_cores() -> int:
    """Performance cores, where the system tells them apart."""
    for name in ("hw.perflevel0.physicalcpu", "hw.physicalcpu"):
        answer = subprocess.run(["sysctl", "-n", name], capture_output=True, text=True, check=False)
        if answer.returncode == 0 and answer.stdout.strip().isdecimal():
            return int(answer.stdout)
    return 0


def _first_line(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii").strip()
    except OSError:
        return ""
