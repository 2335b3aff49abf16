"""The C++ kernels under AddressSanitizer, UndefinedBehaviorSanitizer and ThreadSanitizer, in programs without Python
(sanitized.cpp, sanitized_rows.cpp), and what each says of a defect that is put in. ``make sanitize`` runs this file and
prints it all."""

import shutil
import subprocess
from pathlib import Path

import pytest
from tests.ops.attention.kernels import with_defect

from dape.ops import native
from dape.ops.attention.fused import kinds
from dape.ops.attention.fused.library import SOURCE

pytestmark = [pytest.mark.slow, pytest.mark.skipif(shutil.which("g++") is None, reason="sanitizers are g++'s here")]

SANITIZERS = ["address,undefined", "thread"]
"""The first two go together in one program, the third does not go with them."""
DRIVERS = {SOURCE.stem: "sanitized.cpp", **dict.fromkeys(kinds.STRUCTURES, "sanitized_rows.cpp")}
DEFECTS = {
    "address": (  # one number beyond the last row
        "for (long n = 0; n < c.value_width; n++) to[n] = O[n] / total;",
        "for (long n = 0; n <= c.value_width; n++) to[n] = O[n] / total;",
        "heap-buffer-overflow",
    ),
    "undefined": (  # vectors only where they are aligned
        "vector_size(4 * LANES), aligned(4), may_alias",
        "vector_size(4 * LANES), may_alias",
        "misaligned address",
    ),
    "thread": (  # the threads' own sums become one
        "fold_lanes(c.hidden * c.heads, wa, g.d_wa + t * c.hidden * c.heads);",
        "fold_lanes(c.hidden * c.heads, wa, g.d_wa);",
        "data race",
    ),
}
DEFECTS_OF_ROWS = {
    "relative": (  # a window of one vector too few
        "constexpr long WINDOW = ROWS_OF_TILE + BLOCK + 2 * LANES;",
        "constexpr long WINDOW = ROWS_OF_TILE + BLOCK - LANES;",
        "address",
        "use-after-poison",
    ),
    "counted": (  # the edge of the tile after the last
        "std::memcpy(edges + key / BLOCK * ROWS_OF_TILE, after, 4 * rows.rows);",
        "std::memcpy(edges + (key / BLOCK + 1) * ROWS_OF_TILE, after, 4 * rows.rows);",
        "address",
        "use-after-poison",
    ),
    "convolved": (  # the threads' own sums become one
        "fold_lanes(weights, wa, g.d_wa + t * weights);",
        "fold_lanes(weights, wa, g.d_wa);",
        "thread",
        "data race",
    ),
}


def run_sanitized(sanitizer: str, source: Path, folder: Path) -> subprocess.CompletedProcess[str]:
    """Compile the calls with the kernel in it, and run them. ``sanitizer``: one, or several with commas."""
    checked = ["-O1", "-g", f"-fsanitize={sanitizer}", "-fno-sanitize-recover=all", f'-DKERNEL="{source}"']
    checked.append(f"-DOF_{source.stem.upper()}")
    driver = Path(__file__).with_name(DRIVERS[source.stem])
    made, program = folder / "calls.o", folder / "calls"
    # Two steps: linked with -fopenmp the program would have libgomp's threads instead of its own.
    for command in (
        ["g++", *native.FLAGS, *checked, "-c", str(driver), "-o", str(made)],
        ["g++", f"-fsanitize={sanitizer}", str(made), "-o", str(program), "-lpthread"],
    ):
        subprocess.run(command, check=True, timeout=600, capture_output=True, text=True)
    done = subprocess.run([str(program)], capture_output=True, text=True, timeout=600)
    print(f"{sanitizer}: exit code {done.returncode}\n{done.stdout}{done.stderr[:1500]}")
    return done


@pytest.mark.parametrize("kernel", DRIVERS)
@pytest.mark.parametrize("sanitizer", SANITIZERS)
def test_nothing_to_report(sanitizer, kernel, tmp_path):
    done = run_sanitized(sanitizer, kinds.source(kernel), tmp_path)
    assert done.returncode == 0 and not done.stderr, done.stderr[:4000]
    assert "calls, forward and backward" in done.stdout


@pytest.mark.parametrize("sanitizer", DEFECTS)
def test_a_defect_is_reported(sanitizer, tmp_path):
    right, wrong, report = DEFECTS[sanitizer]
    done = run_sanitized(sanitizer, with_defect(tmp_path, right, wrong), tmp_path)
    assert done.returncode != 0 and report in done.stderr, done.stderr[:4000]


@pytest.mark.parametrize("kernel", DEFECTS_OF_ROWS)
def test_a_defect_of_another_kernel_is_reported(kernel, tmp_path):
    right, wrong, sanitizer, report = DEFECTS_OF_ROWS[kernel]
    done = run_sanitized(sanitizer, with_defect(tmp_path, right, wrong, kinds.source(kernel)), tmp_path)
    assert done.returncode != 0 and report in done.stderr, done.stderr[:4000]
