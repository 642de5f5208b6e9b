import pytest
import torch
from hypothesis import settings

settings.register_profile("isobatch", max_examples=50, deadline=None, derandomize=True)
settings.load_profile("isobatch")


@pytest.fixture(scope="session", autouse=True)
def one_thread():
    torch.set_num_threads(1)
