"""Of the repository's root, only the package's own two modules go into a wheel; the rest is in pyproject.toml."""

from setuptools import setup
from setuptools.command.build_py import build_py


class OwnModules(build_py):
    """setuptools takes every *.py file of a package's folder, and users keep their training scripts in this root."""

    def find_package_modules(self, package: str, package_dir: str) -> list[tuple[str, str, str]]:
        modules = super().find_package_modules(package, package_dir)
        return [module for module in modules if package != "ds_advise" or module[1] in ("__init__", "__main__")]


setup(cmdclass={"build_py": OwnModules})
