"""When a pipeline repeats itself, so that its run may jump to the end."""

REL_EPS = 1e-13  # relative; rounding alone makes two shifts differ by about 1e-15
MIN_STEADY_FRACTION = 0.25  # of the plans, that must repeat themselves for the jump to pay
