"""A fused stage in process: Beam's SDK harness without its gRPC, and the elements, state and side inputs it is given.

The only package that uses `apache_beam.runners.worker`, which is no public API.
"""
