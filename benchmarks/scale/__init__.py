"""Beyond one machine, measured with real processes: clusters, failovers, autoscaling, lost hosts. Not in the wheel."""
