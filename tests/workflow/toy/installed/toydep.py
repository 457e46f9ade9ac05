"""What the toy measures: microseconds a call takes, by path."""

COST_US = {"slow": 3.0, "fast": 2.0}
