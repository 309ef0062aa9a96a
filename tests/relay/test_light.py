import subprocess
import sys

import flockrl


def test_importing_the_relay_imports_no_jax():
    code = "import sys, flockrl.relay, flockrl.spec; print(sorted(m for m in sys.modules if m.split('.')[0] == 'jax'))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_every_public_name_is_there():
    from flockrl.training import train  # importing a module must not hide the function of the package

    assert flockrl.train is train
    assert all(getattr(flockrl, name) is not None for name in flockrl.__all__)
    assert flockrl.envs.check is not None
    assert set(flockrl.__all__) <= set(dir(flockrl))
