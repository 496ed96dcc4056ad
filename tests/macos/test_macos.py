"""What scripts/macos.sh linked for macOS, as its file says: nothing is run here. Each check is shown a program that fails it."""

import os
import subprocess
from pathlib import Path

import pytest

import macho

PROGRAM = Path(os.environ["COPPICE_MACOS_PROGRAM"])
MADE = Path(os.environ["COPPICE_MACOS"])  # what scripts/macos_sysroot.sh made
SYSTEM = "/usr/lib/libSystem.B.dylib"
LEAST = 13  # CMAKE_OSX_DEPLOYMENT_TARGET of cmake/macos.cmake


def faults(program: macho.Program) -> set[str]:
    """What would keep it from starting, or from being what we say it is."""
    found = set()
    flags = macho.NO_UNDEFINED | macho.TWO_LEVEL | macho.PIE
    if (program.cpu, program.kind, program.flags & flags) != (macho.ARM64, macho.EXECUTE, flags):
        found.add("kind")
    if program.system() != (macho.MACOS, LEAST):
        found.add("system")
    if program.libraries() != [SYSTEM] or program.places(macho.RPATH):
        found.add("libraries")
    wanted, given = program.symbols()
    if wanted - macho.names_in(MADE / "sysroot/usr/lib/libSystem.tbd"):
        found.add("symbols")
    # src/port/process_macos.cpp stands in for the system's: libraries that are linked in call it, too.
    if "_pthread_create" not in given:
        found.add("stacks")
    if not program.places(macho.CODE_SIGNATURE) or program.damaged_pages():
        found.add("signature")
    return found


@pytest.fixture(scope="module")
def program():
    return macho.Program(PROGRAM.read_bytes())


def test_the_program_has_no_fault(program):
    assert faults(program) == set()


def test_a_byte_that_is_another_breaks_the_signature(program):
    data = bytearray(program.data)
    data[len(data) // 2] ^= 1
    assert faults(macho.Program(bytes(data))) == {"signature"}


SMALL = "#include <pthread.h>\nint pthread_create(pthread_t*, const pthread_attr_t*, void* (*)(void*), void*) { return 0; }\n"


@pytest.mark.parametrize(("source", "options", "fault"), [
    (SMALL, [], None),
    ("", [], "stacks"),
    (SMALL, ["-target", "arm64-apple-macos26.0"], "system"),
    (SMALL, ["-target", "x86_64-apple-macos13.0"], "kind"),
    (SMALL, ["-Wl,-rpath,@loader_path"], "libraries"),
    (SMALL, ["-Wl,-no_adhoc_codesign"], "signature"),
    (SMALL + "extern int made_up; int* at = &made_up;", ["-Wl,-undefined,dynamic_lookup"], "symbols"),
])
def test_faults_are_seen(tmp_path, source, options, fault):
    file = tmp_path / "small.c"
    file.write_text(source + "\nint main(void) { return 0; }\n")
    command = ["clang-19", "--target=arm64-apple-macos13.0", "-isysroot", MADE / "sysroot", "-fuse-ld=lld", file, "-o", tmp_path / "small", *options]
    subprocess.run(command, check=True)
    seen = faults(macho.Program((tmp_path / "small").read_bytes()))
    assert (fault in seen) if fault else not seen
