"""What the machine has."""

from dape import machine


def test_available_memory_respects_the_control_group(tmp_path):
    (tmp_path / "memory.max").write_text("1000\n")
    (tmp_path / "memory.current").write_text("400\n")
    assert machine._cgroup_available(tmp_path) == 600
    (tmp_path / "memory.max").write_text("max\n")
    assert machine._cgroup_available(tmp_path) is None
    assert machine.available_bytes() > 10**6
