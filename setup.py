"""Which folders become which packages of the wheel: `seesaw`, and a package under it for each room.

The rooms are folders beside `seesaw/`, and `seesaw/` holds a link to each of them. The links serve those who read the
source where it lies: mypy, editors, and Python in a checkout or an editable install. Builds do not use them, because
not every copy of the source has them: pip unpacks a zip archive (what code hosts offer for download) with Python's
zipfile, which writes a link as a text file that holds its target. So this file tells setuptools where each room is.
tests/package/test_install.py tries every way to build and install.
"""

from setuptools import find_namespace_packages, setup

ROOMS = ("actors", "configs", "experiments", "results", "runner")

setup(
    packages=[
        "seesaw",
        *(
            f"seesaw.{name}"
            for room in ROOMS
            for name in (room, *(f"{room}.{sub}" for sub in find_namespace_packages(room)))
        ),
    ],
    package_dir={"seesaw": "seesaw", **{f"seesaw.{room}": room for room in ROOMS}},
)
