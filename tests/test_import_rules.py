"""Imports point one way, as WORKSPACE.md draws it."""

import ast
import graphlib
import pathlib
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).parent.parent

# Each tier may import those above it, and its own.
TIERS = (
    {
        "errors",
        "files",
        "config",
        "flags",
        "features",
        "tokenization",
        "array_ops",
        "keyed_random",
        "tfrecord_files",
        "versions",
        "tpu_chips",
        "weight_names",
        "model_weights",
    },
    {
        "masking",
        "tensor_ops",
        "fusion",
        "losses",
        "metrics",
        "schedules",
        "step_cost",
        "rollback",
        "optimizers",
        "modeling",
    },
    {
        "training_records",
        "input_pipeline",
        "corrupt_records",
        "distribution",
        "worker_rendezvous",
        "preemption",
        "run_directory",
        "checkpoints",
        "checkpoint_archive",
        "checkpoint_formats",
        "published_checkpoint",
        "run_log",
        "model_card",
        "hugging_face",
        "hugging_face_check",
        "hugging_face_tokenizer",
    },
    {
        "train",
        "train_step",
        "evaluate",
        "preflight",
        "warm_start",
    },
    {
        "run_pretraining",
        "export_saved_model",
        "fill_mask",
        "serving",
        "serving_signatures",
        "text_tokenizer",
        "convert_checkpoint",
        "report",
        "report_curves",
        "report_page",
        "report_runs",
    },
)
WITHOUT_TENSORFLOW = TIERS[0] | {"masking"}


def modules(package):
    return sorted(ROOT.glob(f"{package}/**/*.py"))


def imported_by(path):
    """Dotted names that a module imports, inside functions, too."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path} imports relatively"
            names.add(node.module)
            names.update(f"{node.module}.{alias.name}" for alias in node.names)
    return names


def rooms_of_albert_tf(names):
    """`albert_tf.modeling.layers.Block` -> `modeling`."""
    parts = (name.split(".") for name in names)
    return {p[1] for p in parts if p[0] == "albert_tf" and len(p) > 1}


def room_of(path):
    return path.relative_to(ROOT / "albert_tf").parts[0].removesuffix(".py")


def tier_of(room):
    tiers = [number for number, tier in enumerate(TIERS) if room in tier]
    assert tiers, f"{room} has no tier: add it here and to WORKSPACE.md"
    return tiers[0]


@pytest.mark.parametrize(
    "path", modules("albert_tf"), ids=lambda path: room_of(path)
)
def test_no_module_imports_a_later_tier(path):
    if path.parent.name == "albert_tf" and path.stem == "__init__":
        return
    for imported in rooms_of_albert_tf(imported_by(path)):
        assert tier_of(imported) <= tier_of(room_of(path)), (
            f"{path.relative_to(ROOT)} imports {imported}"
        )


@pytest.mark.parametrize("room", sorted(WITHOUT_TENSORFLOW))
def test_what_prepares_data_needs_no_tensorflow(room):
    """Neither itself nor by what it imports; `files` does for gs:// alone."""
    path = ROOT / "albert_tf" / f"{room}.py"
    roots = {name.split(".")[0] for name in imported_by(path)}
    assert room == "files" or not roots & {"tensorflow", "keras"}
    assert rooms_of_albert_tf(imported_by(path)) <= WITHOUT_TENSORFLOW


def test_importing_it_does_not_load_tensorflow():
    names = ", ".join(f"albert_tf.{room}" for room in WITHOUT_TENSORFLOW)
    code = f"import sys, {names}; sys.exit('tensorflow' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)


def test_albert_tf_imports_neither_data_prep_nor_tpu_nor_tests():
    for path in modules("albert_tf"):
        roots = {name.split(".")[0] for name in imported_by(path)}
        assert not roots & {"data_prep", "tpu", "tests", "benchmarks"}, path


def test_data_prep_uses_only_rooms_without_tensorflow():
    for path in modules("data_prep"):
        used = rooms_of_albert_tf(imported_by(path))
        assert used <= WITHOUT_TENSORFLOW, path


def test_no_modules_import_each_other_in_a_circle():
    graph = {}
    for path in modules("albert_tf") + modules("data_prep"):
        name = ".".join(path.relative_to(ROOT).with_suffix("").parts)
        graph[name.removesuffix(".__init__")] = imported_by(path)
    graphlib.TopologicalSorter(graph).prepare()


def test_rules_are_read_from_real_imports():
    """Or an empty set would pass them all."""
    path = ROOT / "albert_tf" / "schedules.py"
    assert rooms_of_albert_tf(imported_by(path)) == {"config"}
    assert "tensorflow" in imported_by(path)
