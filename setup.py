"""The packages of the wheel: `ds_advise` is the root of the repository, its subpackages are folders there."""

from setuptools import find_packages, setup
from setuptools.command.build_py import build_py

FOLDERS = ("advisor", "ds_configs", "estimators", "probes", "validate")


class OwnModules(build_py):
    """Of the root, take the package's own two modules only: users keep their training scripts there."""

    def find_package_modules(self, package: str, package_dir: str) -> list[tuple[str, str, str]]:
        modules = super().find_package_modules(package, package_dir)
        return [module for module in modules if package != "ds_advise" or module[1] in ("__init__", "__main__")]


setup(
    cmdclass={"build_py": OwnModules},
    packages=[
        "ds_advise",
        *(f"ds_advise.{name}" for name in find_packages(include=[*FOLDERS, *(f"{each}.*" for each in FOLDERS)])),
    ],
)
