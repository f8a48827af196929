"""The device: its environment, clocks, measured peaks and roofline."""
