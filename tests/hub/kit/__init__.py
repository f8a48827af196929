"""What hub tests are made of: kernels that really load, a hub on this machine, clean processes."""

from kit.making import KERNEL, make_kernel
from kit.processes import Outcome, Processes
from kit.server import FakeHub

__all__ = ["KERNEL", "FakeHub", "Outcome", "Processes", "make_kernel"]
