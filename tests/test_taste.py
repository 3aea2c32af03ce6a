"""Rules of the project that a machine can see: what travels to the Hub, budgets, dead options, documentation."""

import ast
import dataclasses
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from transformers.dynamic_module_utils import get_relative_import_files

from modeling_vit_custom import ViTCustomConfig
from modeling_vit_custom.configuration_vit_custom import AUTO_MAP
from scripts.common.recipe import Recipe, field_paths


ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "modeling_vit_custom"
CARRIED = sorted(path for path in PACKAGE.glob("*.py") if path.name != "__init__.py")
SOURCES = sorted([*PACKAGE.glob("*.py"), *(ROOT / "conversion").rglob("*.py"), *(ROOT / "scripts").rglob("*.py")])
ALLOWED = {"torch", "transformers", "huggingface_hub", "torchvision", "PIL", "numpy"}


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


# ---------------------------------------------------------------------------------------------------------------------
# What travels to the Hub


@pytest.mark.parametrize("path", CARRIED, ids=name_of)
def test_carried_files_import_only_what_every_user_has(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            modules = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            if node.level:
                assert node.level == 1 and re.fullmatch(r"\w+_vit_custom", node.module or ""), ast.unparse(node)
                continue
            modules = [node.module]
        else:
            continue
        for module in modules:
            top = module.split(".")[0]
            assert top in ALLOWED or top in sys.stdlib_module_names, ast.unparse(node)


@pytest.mark.parametrize("name", sorted({reference.split(".")[0] for reference in AUTO_MAP.values()}))
def test_the_file_of_every_auto_class_leads_to_all_others(name):
    """What `save_pretrained` copies beside a class's own file, found by the same search."""
    path = PACKAGE / f"{name}.py"
    assert {Path(found).name for found in get_relative_import_files(path)} | {path.name} == {p.name for p in CARRIED}


def test_the_package_folder_holds_nothing_else():
    assert {path.suffix or path.name for path in PACKAGE.iterdir() if path.name != "__pycache__"} == {".py", ".typed"}


def test_the_wheel_holds_the_package_alone():
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    assert settings["packages"]["find"]["include"] == ["modeling_vit_custom"]
    assert settings["package-data"]["modeling_vit_custom"] == ["py.typed"]


def test_arrows_go_one_way():
    for path in PACKAGE.glob("*.py"):
        assert not re.search(r"^\s*(from|import) (scripts|conversion|tests)\b", path.read_text(), re.MULTILINE)
    for path in (ROOT / "conversion").rglob("*.py"):
        assert not re.search(r"^\s*(from|import) (scripts|tests)\b", path.read_text(), re.MULTILINE)
    for path in (ROOT / "scripts").rglob("*.py"):
        assert not re.search(r"^\s*(from|import) tests\b", path.read_text(), re.MULTILINE)


BANNED = re.compile(
    r"\bpickle\b|\beval\(|\bexec\(|weights_only=False|allow_pickle=True|os\.system|shell=True|yaml\.load\("
)


@pytest.mark.parametrize("path", SOURCES, ids=name_of)
def test_nothing_that_runs_what_a_file_says(path):
    text = re.sub(r"\.eval\(\)", "", path.read_text())
    assert not BANNED.search(text)
    for call in re.findall(r"torch\.load\((.*)\)", text):
        assert "weights_only=True" in call


# ---------------------------------------------------------------------------------------------------------------------
# Budgets

FILE_LINES = {"modeling_vit_custom.py": 620, "configuration_vit_custom.py": 480}
FUNCTION_LINES = {"train": 120}
FUNCTION_ARGUMENTS = 8


def functions(path: Path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.FunctionDef):
            yield node


@pytest.mark.parametrize("path", SOURCES, ids=name_of)
def test_files_and_functions_stay_readable(path):
    assert len(path.read_text().splitlines()) <= FILE_LINES.get(path.name, 300)
    for function in functions(path):
        docstring = ast.get_docstring(function, clean=False) or ""
        length = function.end_lineno - function.lineno + 1 - docstring.count("\n")
        assert length <= FUNCTION_LINES.get(function.name, 60), f"{function.name}: {length} lines"
        assert len(function.args.args + function.args.kwonlyargs) <= FUNCTION_ARGUMENTS, function.name


@pytest.mark.parametrize("path", CARRIED, ids=name_of)
def test_a_forward_is_straight(path):
    for function in functions(path):
        if function.name == "forward":
            branches = [node for node in ast.walk(function) if isinstance(node, ast.If)]
            assert len(branches) <= 3, f"{path.name}:{function.lineno}"


@pytest.mark.parametrize("path", SOURCES, ids=name_of)
def test_modules_and_classes_have_docstrings_and_functions_type_hints(path):
    tree = ast.parse(path.read_text())
    assert ast.get_docstring(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            assert ast.get_docstring(node), node.name
    for function in functions(path):
        arguments = [a for a in function.args.args + function.args.kwonlyargs if a.arg not in ("self", "cls")]
        if not function.name.startswith("__"):
            assert all(argument.annotation for argument in arguments) and function.returns, function.name


@pytest.mark.parametrize("arguments", [["check"], ["format", "--check"]], ids=" ".join)
def test_ruff_finds_nothing(arguments):
    command = [sys.executable, "-m", "ruff", *arguments, "--quiet", "--no-cache", str(ROOT)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


# ---------------------------------------------------------------------------------------------------------------------
# Dead options


def test_every_option_of_the_configuration_is_read():
    own = set(ViTCustomConfig.__annotations__) - {"model_type", "keys_to_ignore_at_inference"}
    code = "\n".join(path.read_text() for path in CARRIED)
    for name in own:
        assert re.search(rf"\.{name}\b", code), name


def test_every_option_of_the_configuration_is_documented():
    for name in set(ViTCustomConfig.__annotations__) - {"model_type", "keys_to_ignore_at_inference"}:
        assert name.startswith("_") or re.search(rf"^ +(\w+, )*{name}\b", ViTCustomConfig.__doc__, re.MULTILINE), name


def test_every_option_of_a_recipe_is_read():
    code = "\n".join(path.read_text() for path in (ROOT / "scripts").rglob("*.py"))
    sections = {field.name for field in dataclasses.fields(Recipe)}
    for path in field_paths(Recipe()):
        section, name = path.split(".")
        assert re.search(rf"\b(recipe|schedule|{section})\.{name}\b", code), path
        assert section in sections


# ---------------------------------------------------------------------------------------------------------------------
# Documentation

DOCUMENTS = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")]


@pytest.mark.parametrize("path", DOCUMENTS, ids=name_of)
def test_paths_and_commands_of_the_documents_exist(path):
    text = path.read_text()
    for target in re.findall(r"\]\((?!https?:)([^)#]+)\)", text):
        assert (ROOT / target).exists(), target
    for module in re.findall(r"-m (scripts(?:\.\w+)+)", text):
        assert (ROOT / (module.replace(".", "/") + ".py")).exists(), module
    for recipe in re.findall(r"--recipe (\w+)", text):
        assert (ROOT / "scripts" / "recipes" / f"{recipe}.py").exists(), recipe
    targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    for target in re.findall(r"^make ([\w-]+)", text, re.MULTILINE):
        assert target in targets, target
    for file in re.findall(r"`((?:tests|scripts|modeling_vit_custom)/[\w./]*)`", text):
        assert (ROOT / file).exists(), file
    known = {*field_paths(Recipe()), *ViTCustomConfig.field_names()}
    for assignment in re.findall(r"--set ([\w.]+)=", text):
        assert assignment in known or assignment.startswith("model.config."), assignment


def test_the_reading_order_is_as_long_as_the_readme_says():
    text = (ROOT / "README.md").read_text()
    stated = int(re.search(r"in about ([\d,]+) lines", text).group(1).replace(",", ""))
    section = text[text.index("## Reading order") : text.index("Beside them")]
    lines = sum(len((ROOT / target).read_text().splitlines()) for target in re.findall(r"\]\(([^)]+)\)", section))
    assert abs(lines - stated) < 0.1 * stated, f"{lines} lines"


def test_ci_runs_the_test_command_of_the_readme():
    assert "\nmake test " in (ROOT / "README.md").read_text()
    assert (ROOT / ".ci" / "run").read_text().rstrip().endswith("make test")
