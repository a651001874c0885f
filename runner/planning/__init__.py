"""From Beam's pipeline proto to a plan of stages and edges, on the driver; and what cannot run here, by name."""
