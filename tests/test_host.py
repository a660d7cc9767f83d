import getpass
import os
import platform
from pathlib import Path

import pytest
import torch

from shardbench.base import host as environment
from shardbench.base import memory
from shardbench.base.errors import BadInput
from shardbench.base.host import Environment, load
from shardbench.base.serialise import to_json

COMMITTED = Path(__file__).parent.parent / "results" / "environments"


def test_here_is_filled():
    here = Environment.here()
    assert here.python == platform.python_version()
    assert 1 <= here.cores <= (os.cpu_count() or 1)
    assert here.memory_gib > 0
    assert here.gpus.count == len(here.gpus.names)
    assert here.versions["shardbench"]
    assert {"torchrec", "fbgemm-gpu", "CUDA", "NCCL"} <= here.versions.keys()
    assert all(here.versions[name] for name in ("numpy", "scipy", "highspy", "torch"))


@pytest.mark.parametrize("path", sorted(COMMITTED.glob("*.json")), ids=lambda path: path.stem)
def test_committed_environments_of_earlier_versions_are_read_and_still_have_their_hash(path):
    assert load(COMMITTED.parent, path.stem).cores > 0


def test_names_no_host_path_or_user():
    text = to_json(Environment.here())
    assert platform.node() not in text
    assert "/home" not in text
    assert str(Path.cwd()) not in text
    assert getpass.getuser() not in text.replace("processor", "")


@pytest.mark.parametrize(("nccl", "stated"), [(True, "2.27.3"), (False, None)])
def test_a_cuda_build_states_cuda_and_nccl(monkeypatch, nccl, stated):
    monkeypatch.setattr(environment, "_has_cuda_build", lambda: True)
    monkeypatch.setattr(torch.version, "cuda", "12.8")
    monkeypatch.setattr(torch.distributed, "is_nccl_available", lambda: nccl)
    monkeypatch.setattr(torch.cuda.nccl, "version", lambda: (2, 27, 3))
    versions = Environment.here().versions
    assert (versions["CUDA"], versions["NCCL"]) == ("12.8", stated)


def test_absent_package_is_null(monkeypatch):
    monkeypatch.setattr(environment, "PACKAGES", ("numpy", "no-such-distribution"))
    versions = Environment.here().versions
    assert versions["no-such-distribution"] is None
    assert versions["numpy"]


def test_thread_variables_change_the_hash(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.delenv("OMP_WAIT_POLICY", raising=False)
    one = Environment.here()
    assert one.threads == {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": None}
    assert Environment.here().hash == one.hash
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    assert Environment.here().hash != one.hash


def test_saved_once_and_loaded(tmp_path):
    here = Environment.here()
    path = here.save(tmp_path)
    assert path == tmp_path / "environments" / f"{here.hash}.json"
    before = path.stat().st_mtime_ns
    assert here.save(tmp_path) == path
    assert path.stat().st_mtime_ns == before
    assert load(tmp_path, here.hash) == here
    assert [p.name for p in path.parent.iterdir()] == [path.name], "no temporary file is left"


def test_missing_and_edited_are_refused(tmp_path):
    with pytest.raises(BadInput, match="does not exist"):
        load(tmp_path, "0" * 16)
    here = Environment.here()
    path = here.save(tmp_path)
    path.write_text(path.read_text().replace(f'"cores":{here.cores}', f'"cores":{here.cores + 1}'))
    with pytest.raises(BadInput, match="edited"):
        load(tmp_path, here.hash)
    path.write_text("{")
    with pytest.raises(BadInput, match=str(path)):
        load(tmp_path, here.hash)


@pytest.mark.parametrize("version", [1, 2])
def test_free_memory_is_that_of_the_tightest_control_group(tmp_path, version):
    own, root = tmp_path / "cgroup", tmp_path / "groups"
    limit, used = (
        ("memory.max", "memory.current") if version == 2 else ("memory.limit_in_bytes", "memory.usage_in_bytes")
    )
    own.write_text("1:name=systemd:/\n" + ("0::/batch/job\n" if version == 2 else "4:cpu,memory:/batch/job\n"))
    job = (root if version == 2 else root / "memory") / "batch" / "job"
    job.mkdir(parents=True)
    (job / limit).write_text("max\n" if version == 2 else f"{1 << 63}\n")
    (job / used).write_text("400\n")
    (job.parent / limit).write_text("1000\n")
    (job.parent / used).write_text("700\n")
    (job.parent / "memory.stat").write_text("anon 600\ninactive_file 100\n")
    assert min(memory._free_in_groups(own, root)) == 1000 - 700 + 100
    assert memory._free_in_groups(tmp_path / "none", root) == []
    assert 0 < memory.free_memory_bytes() <= os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
