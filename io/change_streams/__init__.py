"""What the readers of change streams share: moments, arguments, outages, watermarks, cuts. No client in here."""
