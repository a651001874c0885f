"""Test services that ordinary clients talk to. They never import a reader."""
