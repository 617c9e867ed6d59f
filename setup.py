"""Add the course to a built package: the files that MANIFEST.in includes become lablib/handed_out/.

pyproject.toml has everything else. An editable installation reads the course in its checkout.
"""

from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

ROOT = Path(__file__).parent


class BuildWithCourse(build_py):
    def run(self) -> None:
        super().run()
        if self.editable_mode:
            return
        lines = (ROOT / "MANIFEST.in").read_text("utf-8").splitlines()
        patterns = [word for line in lines if line.startswith("include ") for word in line.split()[1:]]
        for path in sorted(path for pattern in patterns for path in ROOT.glob(pattern) if path.is_file()):
            target = Path(self.build_lib, "lablib", "handed_out", path.relative_to(ROOT))
            target.parent.mkdir(parents=True, exist_ok=True)
            self.copy_file(str(path), str(target))


setup(cmdclass={"build_py": BuildWithCourse})
