# Chosen curves of a run for trackers, one file for each. `trainmon push` runs bridges/push.py.
