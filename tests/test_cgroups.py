"""Limits of cgroups, of both versions, as their files say."""

from __future__ import annotations

from pathlib import Path

import pytest

from lowtide.cgroups import headroom_bytes, quota_cores


def fake_cgroup(root: Path, lines: str, files: dict[str, str]) -> Path:
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/self/cgroup").write_text(lines)
    for name, text in files.items():
        path = root / "sys/fs/cgroup" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")
    return root


def test_cgroup_v2_limit_less_what_is_used_and_cannot_be_reclaimed(tmp_path: Path) -> None:
    root = fake_cgroup(
        tmp_path,
        "0::/user/job\n",
        {
            "user/job/memory.max": "max",
            "user/memory.max": "1000000",
            "user/memory.current": "700000",
            "user/memory.stat": "anon 400000\ninactive_file 300000",
        },
    )
    assert headroom_bytes(root) == 600_000


def test_cgroup_v2_high_counts_and_the_tightest_group_wins(tmp_path: Path) -> None:
    root = fake_cgroup(
        tmp_path,
        "0::/user/job\n",
        {
            "user/job/memory.max": "900000",
            "user/job/memory.high": "500000",
            "user/job/memory.current": "100000",
            "user/memory.max": "1000000",
            "user/memory.current": "950000",
        },
    )
    assert headroom_bytes(root) == 50_000


def test_cgroup_v2_inside_a_container_is_at_the_mount(tmp_path: Path) -> None:
    root = fake_cgroup(
        tmp_path, "0::/not/visible/here\n", {"memory.max": "4096", "memory.current": "0"}
    )
    assert headroom_bytes(root) == 4096


def test_cgroup_v1(tmp_path: Path) -> None:
    root = fake_cgroup(
        tmp_path,
        "5:cpu,cpuacct:/job\n4:memory:/job\n0::/\n",
        {
            "memory/job/memory.limit_in_bytes": "2000",
            "memory/job/memory.usage_in_bytes": "1500",
            "memory/job/memory.stat": "inactive_file 1\ntotal_inactive_file 500",
            "memory/memory.limit_in_bytes": "9223372036854771712",
            "cpu,cpuacct/job/cpu.cfs_quota_us": "150000",
            "cpu,cpuacct/job/cpu.cfs_period_us": "100000",
            "cpu,cpuacct/cpu.cfs_quota_us": "-1",
            "cpu,cpuacct/cpu.cfs_period_us": "100000",
        },
    )
    assert headroom_bytes(root) == 1000
    assert quota_cores(root) == 1.5


@pytest.mark.parametrize(("text", "cores"), [("max 100000", None), ("250000 100000", 2.5)])
def test_cgroup_v2_cpu_quota(tmp_path: Path, text: str, cores: float | None) -> None:
    root = fake_cgroup(tmp_path, "0::/job\n", {"job/cpu.max": text})
    assert quota_cores(root) == cores


def test_no_cgroup_no_limit(tmp_path: Path) -> None:
    assert headroom_bytes(tmp_path) is None
    assert quota_cores(tmp_path) is None


def test_a_cgroup_that_is_over_its_limit_leaves_nothing(tmp_path: Path) -> None:
    root = fake_cgroup(tmp_path, "0::/\n", {"memory.max": "100", "memory.current": "200"})
    assert headroom_bytes(root) == 0


def test_the_lower_of_two_limits_of_a_group_counts(tmp_path: Path) -> None:
    for number, (most, high) in enumerate(((500, 900), (900, 500))):
        root = fake_cgroup(
            tmp_path / str(number),
            "0::/job\n",
            {
                "job/memory.max": str(most),
                "job/memory.high": str(high),
                "job/memory.current": "100",
            },
        )
        assert headroom_bytes(root) == 400


def test_no_limit_is_what_the_kernel_writes_for_none(tmp_path: Path) -> None:
    """Of version 1 a number near 2^63, in whole pages; less than 2^60 is a limit."""
    for number, (limit, expected) in enumerate(
        ((1 << 60, None), ((1 << 60) - 1, (1 << 60) - 1), ((1 << 63) - 4096, None))
    ):
        root = fake_cgroup(
            tmp_path / str(number), "4:memory:/\n", {"memory/memory.limit_in_bytes": str(limit)}
        )
        assert headroom_bytes(root) == expected


def test_the_least_of_several_quotas_counts_and_damaged_ones_do_not(tmp_path: Path) -> None:
    files = {"a/b/cpu.max": "300000 100000", "a/cpu.max": "150000 100000", "cpu.max": "nonsense"}
    assert quota_cores(fake_cgroup(tmp_path / "1", "0::/a/b\n", files)) == 1.5
    files = {"a/b/cpu.max": "x 100000", "a/cpu.max": "200000 x", "cpu.max": "0 100000"}
    assert quota_cores(fake_cgroup(tmp_path / "2", "0::/a/b\n", files)) is None
    files = {"a/cpu.max": "max", "cpu.max": "50000 100000"}
    assert quota_cores(fake_cgroup(tmp_path / "3", "0::/a\n", files)) == 0.5


def test_what_is_held_is_never_less_than_nothing(tmp_path: Path) -> None:
    files = {
        "memory.max": "1000", "memory.current": "200", "memory.stat": "inactive_file 300",
    }  # fmt: skip
    assert headroom_bytes(fake_cgroup(tmp_path / "1", "0::/\n", files)) == 1000
    files = {"memory.max": "1000", "memory.stat": "damaged"}
    assert headroom_bytes(fake_cgroup(tmp_path / "2", "0::/\n", files)) == 1000
    files = {"memory.max": "1000", "memory.current": "300", "memory.stat": "anon 5"}
    assert headroom_bytes(fake_cgroup(tmp_path / "3", "0::/\n", files)) == 700
