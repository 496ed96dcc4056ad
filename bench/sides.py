"""Who runs a load: coppice, another build of it, or llama.cpp's programs with one of their settings."""

import dataclasses
import itertools
import pathlib

from loads import Burst

FLASH = ("on", "off")
UNIFIED = ("--kv-unified", "--no-kv-unified")


@dataclasses.dataclass(frozen=True)
class Side:
    name: str               # "coppice", or a peer's setting as a reader would type it
    program: pathlib.Path   # the coppice binary, or the folder of llama.cpp's programs
    options: tuple = ()
    peer: bool = False      # one of llama.cpp's programs
    slots: int = 0          # of a peer's server

    @property
    def kind(self):
        """The setting without its slots."""
        return self.name.split(", -np")[0]


def _peer(build, folder, flash, unified, slots=0, more=""):
    options = ("-fa", flash, *filter(None, (unified, *more.split())))
    name = ", ".join(filter(None, (build, f"-fa {flash}", unified, more, f"-np {slots}" if slots else "")))
    return Side(name, folder, options, True, slots)


def peers_of(load, builds):
    """All settings of the peer for a load. builds: {name: folder}; the name is empty where there is only one."""
    for (build, folder), flash in itertools.product(builds.items(), FLASH):
        if isinstance(load, Burst):
            for slots in load.slots or (load.requests,):
                for unified, more in itertools.product(UNIFIED if slots > 1 else ("",), load.peer_options):
                    yield _peer(build, folder, flash, unified, slots, more)
        elif any(row.peer for row in load.rows):
            for unified, more in itertools.product(UNIFIED if load.streams > 1 else ("",), load.peer_options):
                yield _peer(build, folder, flash, unified, more=more)


def others_of(load, coppice, before, builds):
    """Whom coppice is compared with: a build of it from before, itself with other options, or all settings of the peer."""
    if before:
        return [Side("before", before, getattr(load, "options", ()))]
    if isinstance(load, Burst) or not load.against:
        return list(peers_of(load, builds))
    return [Side(" ".join(load.against), coppice, load.against)]
