import subprocess
import sys

from lensaudit.models import device
from lensaudit.models.device import free_bytes

ASKED = """
import resource
from lensaudit.models.device import free_bytes
for limit, place in (resource.RLIMIT_AS, 0), (resource.RLIMIT_DATA, 5):
    used = int(open("/proc/self/statm").read().split()[place]) * resource.getpagesize()
    resource.setrlimit(limit, (used + (300 << 20), resource.RLIM_INFINITY))
    print(free_bytes("cpu") >> 20)
    resource.setrlimit(limit, (resource.RLIM_INFINITY,) * 2)
"""


def group(root, path, limit, used, cache):
    folder = root / path
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "memory.max").write_text(f"{limit}\n")
    (folder / "memory.current").write_text(f"{used}\n")
    (folder / "memory.stat").write_text(f"anon 5\ninactive_file {cache}\n")


def test_limits_of_the_process_are_kept():
    done = subprocess.run([sys.executable, "-c", ASKED], capture_output=True, text=True, check=True)
    assert all(290 <= int(line) <= 300 for line in done.stdout.splitlines())
    assert len(done.stdout.splitlines()) == 2


def test_the_narrowest_control_group_counts_and_cached_files_can_be_given_up(monkeypatch, tmp_path):
    proc, groups = tmp_path / "proc", tmp_path / "groups"
    (proc / "self").mkdir(parents=True)
    (proc / "self" / "cgroup").write_text("1:cpu:/elsewhere\n0::/outer/inner\n")
    monkeypatch.setattr(device, "PROC", proc)
    monkeypatch.setattr(device, "GROUPS", groups)
    assert device.left_by_limits() is None
    group(groups, ".", "max", 900, 0)
    group(groups, "outer", 1000, 700, 50)
    group(groups, "outer/inner", 4000, 600, 0)
    assert device.left_by_limits() == 350
    assert free_bytes("cpu") == 350
    group(groups, "outer/inner", 400, 600, 100)
    assert device.left_by_limits() == 0
