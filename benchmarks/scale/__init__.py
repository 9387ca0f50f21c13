"""Beyond one machine, measured with real processes: several stores, failovers, autoscaling, lost hosts. Not in the wheel."""
