"""Print the path of the provider file."""

from penstock.beam_yaml import PROVIDERS

if __name__ == "__main__":
    print(PROVIDERS)
