"""Devices of records in tests."""

from kernels_bench_tools.records.device import Device

H200 = Device(kind="cuda", name="NVIDIA H200", slug="nvidia-h200", driver="580.95.05")
EPYC = Device(kind="cpu", name="AMD EPYC, 2 cores", slug="amd-epyc-2-cores")
