"""Beam's own test suites, from the installed wheel, under our runner and under Beam's.

python -m tests.beam.run fn-api-runner --runner penstock
python -m tests.beam.page
"""
