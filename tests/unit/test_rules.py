"""The rules that keep the packages simple (DESIGN section 3), each a test over the source."""

from __future__ import annotations

import ast
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
PACKAGE = REPOSITORY / "src" / "adversariallm"
SOURCES = sorted(PACKAGE.rglob("*.py"))
BOTH = [*SOURCES, *sorted((REPOSITORY / "judgezoo" / "src" / "judgezoo").rglob("*.py"))]
MUTATORS = frozenset(
    "append extend insert remove pop clear add discard update setdefault popitem".split()
)
FAMILIES = re.compile(
    r"llama|gemma|mistral|mixtral|qwen|vicuna|zephyr|smollm|deepseek|\bphi-?\d|\bgpt-?\d|claude",
    re.I,
)


def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), str(path))


def where(path: Path, node: ast.AST) -> str:
    return f"{path.relative_to(REPOSITORY)}:{getattr(node, 'lineno', 0)}"


def relative(path: Path) -> str:
    return path.relative_to(PACKAGE).as_posix()


def calls(path: Path) -> Iterator[tuple[ast.Call, str]]:
    """Every call with its dotted name; unknown parts are written as `?`."""
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Call):
            yield node, dotted(node.func)


def dotted(node: ast.AST) -> str:
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        return f"{dotted(node.value)}.{node.attr}"
    return "?"


def imported(path: Path, *, with_type_checking: bool = False) -> Iterator[tuple[ast.AST, str]]:
    """Absolute names of imported modules, `from a import b` as `a.b`; type-only ones left out."""
    module = tree(path)
    skipped: set[ast.AST] = set()
    if not with_type_checking:
        for node in ast.walk(module):
            if isinstance(node, ast.If) and dotted(node.test) in (
                "TYPE_CHECKING",
                "typing.TYPE_CHECKING",
            ):
                skipped |= {n for part in node.body for n in ast.walk(part)}
    for node in ast.walk(module):
        if node in skipped:
            continue
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node, alias.name
        elif isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                yield node, f"{node.module}.{alias.name}"


def attack_files() -> list[Path]:
    return [p for p in sorted((PACKAGE / "attacks").glob("*.py")) if not p.name.startswith("_")]


# Rule 1: attacks


@pytest.mark.parametrize("path", attack_files(), ids=lambda p: p.stem)
def test_an_attack_imports_only_core_tokenization_its_kit_and_torch(path: Path) -> None:
    allowed = ("adversariallm.core", "adversariallm.tokenization", "adversariallm.attacks._kit")
    bad = []
    for node, name in imported(path):
        top = name.split(".")[0]
        if top == "adversariallm":
            good = any(name == a or name.startswith(f"{a}.") for a in allowed)
        else:
            good = top in sys.stdlib_module_names or top in {"torch", "numpy", "pydantic"}
        if not good:
            bad.append(f"{where(path, node)} {name}")
    assert not bad


# Rule 2: one place for each thing


def test_only_the_metered_model_charges_a_budget() -> None:
    allowed = {"models/metered.py", "core/budget.py"}
    bad = [
        where(p, node)
        for p in SOURCES
        if relative(p) not in allowed
        for node, name in calls(p)
        if name.endswith(".charge")
    ]
    assert not bad


def test_only_execute_samples_the_completions_that_are_scored() -> None:
    bad = [
        where(p, node)
        for p in SOURCES
        if relative(p) != "runs/execute.py"
        for node, name in calls(p)
        if name.endswith(".phase")
        and any(isinstance(a, ast.Constant) and a.value == "sampling" for a in node.args)
    ]
    assert not bad


def test_only_the_rng_module_makes_generators() -> None:
    makers = re.compile(
        r"(^|\.)(Generator|default_rng|RandomState|SeedSequence|Random|SystemRandom|manual_seed"
        r"|manual_seed_all|set_seed|seed_everything)$"
    )
    # published Best-of-N samples are replayed from their own integer seeds
    replays = {("attacks/_kit/augment.py", "random.Random")}
    bad = [
        f"{where(p, node)} {name}"
        for p in SOURCES
        if relative(p) != "core/rng.py"
        for node, name in calls(p)
        if makers.search(name) and (relative(p), name) not in replays
    ]
    assert not bad


def test_results_are_published_by_the_store_alone() -> None:
    writers = re.compile(r"\.(publish|mark_done)$")
    bad = [
        f"{where(p, node)} {name}"
        for p in SOURCES
        if not relative(p).startswith("runs/")
        for node, name in calls(p)
        if writers.search(name) and "store" in name
    ]
    assert not bad


# Rule 3: no ambient anything

DRAWS = re.compile(
    r"^(torch|F|torch\.nn\.functional)\.(rand|randn|randint|randperm|multinomial|bernoulli|normal"
    r"|poisson|dropout|gumbel_softmax)$"
)
IN_PLACE = re.compile(
    r"\.(normal_|uniform_|bernoulli_|exponential_|random_|cauchy_|geometric_|log_normal_)$"
)


def test_nothing_draws_from_ambient_randomness() -> None:
    bad = []
    for path in BOTH:
        for node, name in calls(path):
            ambient = re.match(r"(random|np\.random|numpy\.random)\.[a-z]\w*$", name)
            torch_draw = DRAWS.match(name) or IN_PLACE.search(name)
            seeded = any(k.arg == "generator" for k in node.keywords)
            if (ambient or (torch_draw and not seeded)) and path.name != "rng.py":
                bad.append(f"{where(path, node)} {name}")
    assert not bad


def test_nothing_is_evaluated_or_unpickled() -> None:
    forbidden = {"eval", "exec", "pickle.load", "pickle.loads", "marshal.loads", "dill.load"}
    bad = []
    for path in BOTH:
        for node, name in calls(path):
            weights_only = any(
                k.arg == "weights_only"
                and isinstance(k.value, ast.Constant)
                and k.value.value is True
                for k in node.keywords
            )
            if name in forbidden or (name == "torch.load" and not weights_only):
                bad.append(f"{where(path, node)} {name}")
    assert not bad


@pytest.mark.parametrize("path", BOTH, ids=lambda p: p.relative_to(REPOSITORY).as_posix())
def test_no_function_changes_module_level_state(path: Path) -> None:
    module = tree(path)
    names = {
        target.id
        for node in module.body
        for target in (
            node.targets
            if isinstance(node, ast.Assign)
            else [node.target]
            if isinstance(node, ast.AnnAssign)
            else []
        )
        if isinstance(target, ast.Name)
    }
    bad = []
    for function in ast.walk(module):
        if not isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        local = {a.arg for a in ast.walk(function) if isinstance(a, ast.arg)} | {
            n.id
            for n in ast.walk(function)
            if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)
        }
        shared = names - local
        for node in ast.walk(function):
            if isinstance(node, ast.Global):
                bad.append(where(path, node))
            changed: ast.AST | None = None
            if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store | ast.Del):
                changed = node.value
            elif (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Attribute)
                and node.func.attr in MUTATORS
            ):
                changed = node.func.value
            if isinstance(changed, ast.Name) and changed.id in shared:
                bad.append(f"{where(path, node)} {changed.id}")
    assert not bad


def test_no_code_tests_a_models_name() -> None:
    bad = []
    for path in BOTH:
        for node in ast.walk(tree(path)):
            operands: list[ast.AST] = []
            if isinstance(node, ast.Compare):
                operands = [node.left, *node.comparators]
                if any(re.search(r"(^|\.)(options|config)\.", dotted(o)) for o in operands):
                    continue  # the value of an option is no model's name
            elif isinstance(node, ast.Call) and dotted(node.func).split(".")[-1] in {
                "startswith", "endswith", "find", "search", "match", "fullmatch",
            }:  # fmt: skip
                operands = list(node.args)
            elif isinstance(node, ast.match_case):
                operands = [node.pattern]
            for operand in operands:
                for part in ast.walk(operand):
                    if (
                        isinstance(part, ast.Constant)
                        and isinstance(part.value, str)
                        and FAMILIES.search(part.value)
                    ):
                        bad.append(f"{where(path, node)} {part.value!r}")
    assert not bad


# Layers and import cost


@pytest.mark.skipif(shutil.which("git") is None, reason="needs git")
def test_large_files_and_secrets_stay_out_of_the_repository() -> None:
    listed = subprocess.run(
        ["git", "ls-files", "-z"], cwd=REPOSITORY, capture_output=True, text=True, check=True
    ).stdout.split("\0")
    secret = re.compile(
        rb"-----BEGIN [A-Z ]*PRIVATE KEY-----|\bsk-(?:ant-|proj-)?[A-Za-z0-9]{24,}"
        rb"|\bhf_[A-Za-z0-9]{30,}"
    )
    bad = []
    for name in filter(None, listed):
        path = REPOSITORY / name
        if not path.is_file():
            continue
        if path.stat().st_size > 2_000_000:
            bad.append(f"{name}: {path.stat().st_size} bytes")
        elif secret.search(path.read_bytes()):
            bad.append(f"{name}: looks like a key")
    assert not bad


def test_imports_follow_the_layers() -> None:
    command = [str(Path(sys.executable).with_name("lint-imports")), "--no-cache"]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_importing_the_package_is_cheap() -> None:
    code = (
        "import sys, adversariallm, adversariallm.core.protocols, adversariallm.models.card\n"
        "heavy = {'torch', 'transformers', 'numpy', 'scipy', 'pandas', 'duckdb', 'matplotlib'}\n"
        "sys.exit(' '.join(sorted(heavy & set(sys.modules))) or 0)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"imported: {done.stderr}"
