"""From what was read to who used what. Pure: no file, no driver, no clock, no state of its own."""
