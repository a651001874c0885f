"""Pipeline templates: parameter specs (YAML), validation and the `penstock` command line."""
