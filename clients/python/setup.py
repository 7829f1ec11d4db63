"""Generates the messages and stubs of proto/ete/v1 with protoc into the package; pyproject.toml has everything else."""

import pathlib
import shutil
import subprocess

from setuptools import setup
from setuptools.command.build_py import build_py
from setuptools.errors import SetupError

HERE = pathlib.Path(__file__).resolve().parent
PROTOS = ("ete/v1/session.proto", "ete/v1/generation.proto")


def proto_folder():
    """Beside this file when somebody put a copy there, else that of the repository."""
    for folder in (HERE / "proto", HERE.parents[1] / "proto"):
        if (folder / PROTOS[0]).is_file():
            return folder
    raise SetupError(f"{PROTOS[0]} is neither in {HERE / 'proto'} nor in {HERE.parents[1] / 'proto'}")


def program(name, package):
    path = shutil.which(name)
    if path is None:
        raise SetupError(f"{name} is missing: Debian's package {package} holds it")
    return path


class BuildWithStubs(build_py):
    def run(self):
        super().run()
        plugin = program("grpc_python_plugin", "protobuf-compiler-grpc")
        subprocess.run(
            [
                program("protoc", "protobuf-compiler"),
                f"-I{proto_folder()}",
                f"--plugin=protoc-gen-grpc={plugin}",
                f"--python_out={self.build_lib}",
                f"--pyi_out={self.build_lib}",
                f"--grpc_out={self.build_lib}",
                *PROTOS,
            ],
            check=True,
        )


setup(cmdclass={"build_py": BuildWithStubs})
