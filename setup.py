"""The packages of the wheel: `seesaw`, and each room under it.

In a checkout `seesaw/` has a link to each room, which mypy, editors and `python -m pytest` follow. Builds do not use the
links: pip unpacks a zip archive without them, so the rooms are mapped here to the folders that they are.
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
