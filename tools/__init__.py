"""Commands for developers. A regular package, so that no installed one with this name takes its place."""
