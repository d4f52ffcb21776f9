"""A wheel as the tests see it: its tags, its files, and what its ELF files ask of a machine."""

import io
import re
import zipfile
from pathlib import Path

from elftools.elf.elffile import ELFFile
from elftools.elf.gnuversions import GNUVerNeedSection
from packaging.utils import parse_wheel_filename

# The C library, which every glibc machine has. No libstdc++, libgcc, libz, libsqlite3.
MACHINE_LIBRARIES = re.compile(
    r"^(libc\.so\.6|libm\.so\.6|libpthread\.so\.0|libdl\.so\.2|librt\.so\.1|ld-linux-.*\.so\.\d)$"
)
MACHINES = {"EM_X86_64": "x86_64", "EM_AARCH64": "aarch64"}


class Wheel:
    def __init__(self, path: Path):
        self.path = path
        self.name, self.version, _, tags = parse_wheel_filename(path.name)
        self.tags = {str(tag) for tag in tags}
        (tag,) = tags
        self.python, self.abi, self.platform = tag.interpreter, tag.abi, tag.platform
        self.glibc, self.machine = platform_of(tag.platform)

    def files(self) -> dict[str, bytes]:
        with zipfile.ZipFile(self.path) as archive:
            return {name: archive.read(name) for name in archive.namelist()}

    def elf_files(self) -> dict[str, bytes]:
        return {name: data for name, data in self.files().items() if data[:4] == b"\x7fELF"}

    def minor(self) -> int:
        return int(self.python.removeprefix("cp3"))

    def serves(self, minor: int, machine: str) -> bool:
        fits = self.minor() <= minor if self.abi == "abi3" else self.minor() == minor
        return fits and self.machine == machine


def platform_of(tag: str) -> tuple[tuple[int, int], str]:
    """(2, 28), "x86_64" of manylinux_2_28_x86_64."""
    major, minor, machine = re.fullmatch(r"manylinux_(\d+)_(\d+)_(\w+)", tag).groups()
    return (int(major), int(minor)), machine


def demands(data: bytes) -> dict:
    """What an ELF file needs: machine, libraries, {version name: symbols}; what it exports."""
    elf = ELFFile(io.BytesIO(data))
    found = {"machine": MACHINES.get(elf["e_machine"], elf["e_machine"])}
    found["libraries"] = {
        tag.needed for tag in elf.get_section_by_name(".dynamic").iter_tags("DT_NEEDED")
    }
    found["versions"] = {
        auxiliary.name
        for section in elf.iter_sections()
        if isinstance(section, GNUVerNeedSection)
        for _, auxiliaries in section.iter_versions()
        for auxiliary in auxiliaries
    }
    versions = elf.get_section_by_name(".gnu.version")
    exported, unversioned = set(), set()
    for i, symbol in enumerate(elf.get_section_by_name(".dynsym").iter_symbols()):
        if not symbol.name:
            continue
        weak = symbol["st_info"]["bind"] == "STB_WEAK"
        if symbol["st_shndx"] != "SHN_UNDEF":
            exported.add(symbol.name)
        elif not weak and versions.get_symbol(i)["ndx"] in ("VER_NDX_LOCAL", "VER_NDX_GLOBAL"):
            unversioned.add(symbol.name)
    return found | {"exported": exported, "unversioned": unversioned}


def too_new(found: dict, glibc: tuple[int, int]) -> set[str]:
    """The version names a glibc of this age does not have, or that are not glibc's at all."""
    bad = set()
    for name in found["versions"]:
        match = re.fullmatch(r"GLIBC_(\d+)\.(\d+)(?:\.\d+)?", name)
        if match is None or (int(match[1]), int(match[2])) > glibc:
            bad.add(name)
    return bad
