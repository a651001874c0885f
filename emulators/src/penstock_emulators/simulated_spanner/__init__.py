"""A simulated Cloud Spanner with change streams, written from the service's documentation.

    with SimulatedSpanner.start(churn_seconds=2, seed=7) as simulation:
        simulation.create_database("my-project", "my-instance", "bank", ["CREATE TABLE …", "CREATE CHANGE …"])
        subprocess.run(pipeline, env={**os.environ, **simulation.environment()})
        simulation.control.add_fault(code="UNAVAILABLE", after_rows=10)

Any Spanner client reaches it through SPANNER_EMULATOR_HOST. docs/simulated-spanner.md lists
the behaviours that it simulates and those that it does not.
"""

from penstock_emulators.simulated_spanner.control import Control, ControlError
from penstock_emulators.simulated_spanner.process import SimulatedSpanner

__all__ = ["Control", "ControlError", "SimulatedSpanner"]
