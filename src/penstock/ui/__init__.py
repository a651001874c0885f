"""Pages about jobs, from what their checkpoints say: for `penstock ui`, and as one file for `penstock status --html`.

`view` has the facts as plain values, `drawings` the geometry of the pictures. `render` makes the HTML, and `server`
serves it.
"""
