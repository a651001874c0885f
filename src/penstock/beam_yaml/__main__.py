"""Print the path of the provider file."""

from penstock.beam_yaml import PROVIDERS

print(PROVIDERS)
