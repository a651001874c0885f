"""Object stores for tests: servers from registries, a proxy with faults, and a simulated store."""
