"""The import of torch's compiler in the processes of local jobs."""

import subprocess
import sys

import pytest

from local.sagemaker.hosts import JOB_SITE

pytestmark = pytest.mark.slow
SCRIPT = """
import sys, torch
model = torch.nn.Linear(1, 1)
optimizer = torch.optim.AdamW(model.parameters())
before = model.weight.clone()
model(torch.ones(1, 1)).sum().backward()
optimizer.step()
assert not torch.equal(before, model.weight)
assert torch._dynamo.disable()(model) is torch._dynamo.disable(fn=model) is model
assert "torch._dynamo.eval_frame" not in sys.modules
import torch._dynamo.config as config
assert config is torch._dynamo.config is sys.modules["torch._dynamo.config"]
assert torch.compile(lambda value: value * 2, backend="eager")(torch.ones(1)) == 2
"""


def test_optimizers_import_no_compiler_and_who_compiles_has_it():
    environment = {"PYTHONPATH": str(JOB_SITE), "HOME": "/tmp"}
    done = subprocess.run([sys.executable, "-c", SCRIPT], env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
