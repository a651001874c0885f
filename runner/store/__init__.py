"""Where commit records and state runs live: file systems behind one interface."""
