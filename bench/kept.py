"""Figures of loads that aren't finished: a run that was cut off goes on with them (bench/run.py --resume)."""

import results
from machine import OthersShare


class Kept:
    """{load: {what ran: its figures}} in a file, of one commit and its options. Without a file nothing is kept."""

    def __init__(self, path=None, of=None):
        self.path, self.of = path, of
        content = results.read(path) if path else {}
        self.found = content.get("found", {}) if content.get("of") == of else {}

    def forget(self, loads):
        for load in loads:
            self.found.pop(load.name, None)

    def get(self, load, what, measure):
        """The figures of `what` on the load: kept ones, or else measured now."""
        if self.path is None:
            return measure()
        found = self.found.setdefault(load.name, {})
        if what not in found:
            others = OthersShare()
            figures = measure()
            found[what] = {"figures": figures, "seconds": others.seconds()}
            results.write(self.path, {"of": self.of, "found": self.found})
        return found[what]["figures"]

    def seconds(self, load):
        """Processor time that others used while all of the load's kept figures were measured, and all there was."""
        return tuple(map(sum, zip((0, 0), *(one["seconds"] for one in self.found.get(load.name, {}).values()))))
