"""The pictures of the README and of the site, as SVG files in docs/pictures.

    python -m tools.pictures            # draws both
    python -m tools.pictures --record   # runs `penstock quickstart` in a terminal first, and keeps what it printed

overview    sources, frontier, epochs, commit, sinks
recording   a real run of the quickstart in a pseudo-terminal, as an asciicast
terminal    an asciicast as an animated picture
style       colours that suit light and dark pages
"""
