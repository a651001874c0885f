"""Beam's own test suites, from the installed wheel, under our runner and under Beam's.

python -m tools.beam_suites.run fn-api-runner --runner penstock
python -m tools.beam_suites.page
"""
