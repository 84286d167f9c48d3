"""Times a real GPU and its links, and writes what it saw into a file.

The list of what is measured is made by pure functions (`shapes`, `work`); torch is imported only
where something is timed. Nothing here needs more than torch and the standard library, so that it
runs on any machine that trains.
"""
