"""The sink of Spanner: a replica of the source's tables. `penstock.io.spanner` names what users need."""
