"""How each client is built and run, and what that takes."""

import dataclasses
import re
import shutil
import subprocess

SYSTEM_PYTHON = "/usr/bin/python3"  # Debian's packages are not seen by another
BUILD_TIMEOUT = 1200


def java(folder, program):
    return ["java", "-cp", (folder / "classpath").read_text(), program]


@dataclasses.dataclass(frozen=True)
class Language:
    name: str
    programs: tuple  # that must be on PATH
    checks: tuple  # commands that must succeed
    readme_block: str  # the fence of the README's example
    readme_program: str  # the file that it becomes
    generate: object  # folder of the build -> command of the example
    readme: object  # folder of the build -> command of the README's example
    unix_sockets: bool = True


def python_command(folder, program):
    return ["env", f"PYTHONPATH={folder}", SYSTEM_PYTHON, "-W", "error", str(program)]


def ruby_command(folder, program):
    return ["ruby", "-w", "-I", str(folder), str(program)]


def languages(clients):
    """By name; `clients` is the folder of their sources."""
    python_example, ruby_example = clients / "python/examples/generate.py", clients / "ruby/examples/generate.rb"
    grpc_for_ruby = ("ruby", "-e", "require 'grpc'")
    found = [
        Language(
            "python",
            ("protoc", "grpc_python_plugin"),
            ((SYSTEM_PYTHON, "-c", "import grpc, google.protobuf, setuptools, pip"),),
            "python",
            "readme.py",
            lambda folder: python_command(folder, python_example),
            lambda folder: python_command(folder, folder / "readme.py"),
        ),
        Language(
            "asyncio",
            ("protoc", "grpc_python_plugin"),
            ((SYSTEM_PYTHON, "-c", "import grpc, google.protobuf, setuptools, pip"),),
            "python asyncio",
            "readme_asyncio.py",
            lambda folder: [*python_command(folder, python_example), "--asyncio"],
            lambda folder: python_command(folder, folder / "readme_asyncio.py"),
        ),
        Language(
            "go",
            ("protoc", "go", "protoc-gen-go", "protoc-gen-go-grpc"),
            (("test", "-d", "/usr/share/gocode/src/google.golang.org/grpc"),),
            "go",
            "readme.go",
            lambda folder: [str(folder / "generate")],
            lambda folder: [str(folder / "readme")],
        ),
        Language(
            "ruby",
            ("protoc", "grpc_ruby_plugin", "ruby"),
            (grpc_for_ruby,),
            "ruby",
            "readme.rb",
            lambda folder: ruby_command(folder, ruby_example),
            lambda folder: ruby_command(folder, folder / "readme.rb"),
        ),
        Language(
            "java",
            ("protoc", "grpc_java_plugin", "javac", "java"),
            (("test", "-e", "/usr/share/java/grpc-netty.jar"), ("test", "-e", "/usr/share/java/netty-tcnative.jar")),
            "java",
            "Readme.java",
            lambda folder: java(folder, "Generate"),
            lambda folder: java(folder, "Readme"),
            unix_sockets=False,
        ),
        Language(
            "cpp",
            ("protoc", "grpc_cpp_plugin", "cmake", "ninja", "c++"),
            (("test", "-e", "/usr/include/grpcpp/grpcpp.h"),),
            "cpp",
            "readme.cc",
            lambda folder: [str(folder / "ete_client_generate")],
            lambda folder: [str(folder / "readme")],
        ),
    ]
    return {language.name: language for language in found}


def missing(language):
    """What of the toolchain is not here, or None."""
    for program in language.programs:
        if shutil.which(program) is None:
            return program
    for check in language.checks:
        if subprocess.run(check, capture_output=True, timeout=60).returncode != 0:
            return " ".join(check)
    return None


def build(language, clients, work):
    """Builds client, example and the README's example; returns the folder. asyncio is a part of python."""
    source = clients / ("python" if language.name == "asyncio" else language.name)
    folder = work / language.name
    folder.mkdir(parents=True, exist_ok=True)
    program = extract(source / "README.md", language.readme_block, work / "readme" / language.readme_program)
    compiled = language.name in ("go", "java", "cpp")
    command = [source / "build.sh", folder, *([program] if compiled else [])]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=BUILD_TIMEOUT)
    if done.returncode != 0:
        raise RuntimeError(f"{source}/build.sh failed:\n{done.stdout.decode(errors='replace')[-4000:]}")
    if not compiled:
        shutil.copy(program, folder)
    return folder


def extract(readme, fence, to):
    """The one block of the README behind ```fence, as a file."""
    blocks = re.findall(rf"^```{re.escape(fence)}\n(.*?)^```$", readme.read_text(), re.DOTALL | re.MULTILINE)
    if len(blocks) != 1:
        raise RuntimeError(f"{readme}: one block ```{fence} is expected, there are {len(blocks)}")
    to.parent.mkdir(parents=True, exist_ok=True)
    if not to.exists() or to.read_text() != blocks[0]:
        to.write_text(blocks[0])
    return to
