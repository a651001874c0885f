"""The sink of Bigtable: a copy of a table. `penstock.io.bigtable` names what users need."""
