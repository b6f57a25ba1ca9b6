r"""Compile the recipes for TPU slices, for docs/tpu.md.

    python -m tpu.compile_recipes
    python -m tpu.compile_recipes base_v2_125k large_v2_3m

Each recipe is compiled by `tpu.compile_check`, in a process of its own: an hour
or more for all of them. After each, tpu/compiled.json is written, so the
command may be interrupted. `make docs` writes the results into docs/tpu.md.
"""

import argparse
import json
import pathlib
import subprocess
import sys

from albert_tf.errors import describe_end
from albert_tf.io import files
from tpu.compile_check import EXIT_DOES_NOT_COMPILE

ROOT = pathlib.Path(__file__).parent.parent
FOUND = ROOT / "tpu" / "compiled.json"

# The flag files of each recipe, in configs/pretrain and configs/hardware, and
# the flags that follow them. The best micro-batch depends on model and slice.
_IN = "--gradient_accumulation_steps="
_NO_LIMIT = "--libtpu_init_args="
RECIPES = {
    "base_v1_125k": "base_v1_125k v5e_256",
    "base_v1_125k_packed": "base_v1_125k packed v5e_128",
    "base_v2_125k": f"base_v2_125k v5e_256 {_IN}4 {_NO_LIMIT}",
    "base_v2_125k_packed": f"base_v2_125k packed v5e_128 {_NO_LIMIT}",
    "base_v2_125k_v4": "base_v2_125k v4_128",
    "base_v2_125k_v5p": "base_v2_125k v5p_128",
    "base_v2_125k_v6e": "base_v2_125k v6e_8",
    "base_v2_10m": f"base_v2_10m v5e_256 {_IN}4 {_NO_LIMIT}",
    "base_v2_10m_packed": f"base_v2_10m packed v5e_128 {_NO_LIMIT}",
    "bert_base_125k": "bert_base_125k v5e_256",
    "bert_large_125k": f"bert_large_125k v5e_256 {_IN}4",
    "large_v1_125k": f"large_v1_125k v5e_256 {_IN}4",
    "large_v1_125k_packed": (
        "large_v1_125k packed v5e_256 "
        "--libtpu_init_args=--xla_tpu_scoped_vmem_limit_kib=28672"
    ),
    "large_v2_3m": f"large_v2_3m v5e_256 {_IN}4",
    "large_v2_3m_packed": f"large_v2_3m packed v5e_256 {_NO_LIMIT}",
    "xlarge_v1_125k": f"xlarge_v1_125k v5e_256 {_IN}4",
    "xlarge_v1_125k_packed": "xlarge_v1_125k packed v5e_256",
    "xlarge_v2_3m": f"xlarge_v2_3m v5e_256 {_IN}4",
    "xlarge_v2_3m_packed": "xlarge_v2_3m packed v5e_256",
    "xxlarge_dropout_removal": f"xxlarge_dropout_removal v5e_256 {_IN}8",
    "xxlarge_v1_125k": f"xxlarge_v1_125k v5e_256 {_IN}8",
    "xxlarge_v1_125k_packed": f"xxlarge_v1_125k packed v5e_256 {_IN}5",
    "xxlarge_v2_3m": f"xxlarge_v2_3m v5e_256 {_IN}8",
    "xxlarge_v2_3m_packed": f"xxlarge_v2_3m packed v5e_256 {_IN}5",
}


def flags_of(name: str) -> list[str]:
    """The command-line flags of a recipe: flag files, then single flags."""
    recipe, *words = RECIPES[name].split()
    found = [f"--flagfile=configs/pretrain/{recipe}.flags"]
    for word in words:
        directory = "pretrain/include" if word == "packed" else "hardware"
        file = f"--flagfile=configs/{directory}/{word}.flags"
        found.append(word if word.startswith("--") else file)
    return found


def main() -> None:
    """Compiles recipes, and writes the results."""
    parser = argparse.ArgumentParser("tpu.compile_recipes")
    parser.add_argument("recipe", nargs="*", help=f"of {', '.join(RECIPES)}")
    names = parser.parse_args().recipe or sorted(RECIPES)
    if unknown := {*names} - {*RECIPES}:
        parser.error(f"no such recipe: {', '.join(unknown)}; see --help")
    found = json.loads(FOUND.read_text())
    for name in names:
        print(f"compiling {name}", flush=True)
        # The compiler reads its flags when it is loaded, and some 10 GB of
        # memory are released with its process.
        command = [sys.executable, "-m", "tpu.compile_check", "--json"]
        done = subprocess.run(
            [*command, *flags_of(name)],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            check=False,
        )
        if done.returncode not in (0, EXIT_DOES_NOT_COMPILE):
            # After SIGKILL, the machine may have too little memory.
            sys.exit(f"{name}: {describe_end(done.returncode)}, see above")
        found[name] = {**json.loads(done.stdout), "flags": RECIPES[name]}
        content = json.dumps(found, indent=1, sort_keys=True) + "\n"
        files.write_bytes(str(FOUND), content.encode())


if __name__ == "__main__":
    main()
